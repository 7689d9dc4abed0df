"""The publications behind a run's parts, as BibTeX."""

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files

from commonweal import __version__
from commonweal.config.catalog import KINDS
from commonweal.record.record import Outline

OURS = f"""@software{{commonweal,
  author = {{{{Commonweal contributors}}}},
  title = {{Commonweal: federated learning that leaves no client behind}},
  version = {{{__version__}}}}}"""
# Parts that have no publication but this one.
OWN = frozenset(
    {"rules:guarded", *(f"clients:{name}" for name in ("alone", "blend", "choice", "recalibrate"))}
)
KEYWORDS = re.compile(r" keywords = \{([^}]*)\},")


def references() -> dict[str, frozenset[str]]:
    """All BibTeX entries, with the parts that each one describes, such as "rules:afl"."""
    text = files("commonweal.report").joinpath("references.bib").read_text(encoding="utf-8")
    table = {}
    for entry in re.split(r"\n(?=@)", text.strip()):
        parts = KEYWORDS.search(entry)
        assert parts is not None, entry
        table[KEYWORDS.sub("", entry)] = frozenset(parts[1].split())
    return table


def bibtex(records: Iterable[Outline]) -> tuple[str, list[str]]:
    """BibTeX for what some runs used, and the names of parts without an entry.

    Rules around other rules, such as `guarded`, bring the references of both.
    """
    used: dict[str, None] = {}
    for record in records:
        for kind, about in KINDS.items():
            for name in _names(record.experiment.get(about.key)):
                used[f"{kind}:{name}"] = None
    entries = references()
    cited = [entry for entry, parts in entries.items() if parts & used.keys()]
    known = OWN.union(*entries.values())
    missing = []
    for part in used:
        kind, _, name = part.partition(":")
        if kind in ("rules", "clients") and part not in known:
            missing.append(name)
    return "\n\n".join([OURS, *cited]) + "\n", missing


def _names(part: object) -> list[str]:
    """The name of a part and of the part inside it."""
    if isinstance(part, Mapping):
        return [str(part.get("name")), *_names(part.get("rule"))]
    return [part] if isinstance(part, str) else []
