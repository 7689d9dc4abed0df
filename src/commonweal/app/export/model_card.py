"""The model card: what a model is, its data, and how well it serves each client."""

import math
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from commonweal.app.export.badge import badge, sentence
from commonweal.app.export.prediction import class_names
from commonweal.base.errors import ConfigError, RunError
from commonweal.base.files import write_file
from commonweal.base.plain import Table
from commonweal.base.text import shown
from commonweal.record.final import read_final
from commonweal.record.record import Record
from commonweal.report.formats import pipes, show_client
from commonweal.study.units import worst_first

MOST = 10  # columns whose importance is listed
FEW = 30  # test samples below which a client's score is uncertain


def write_card(record: Record, to: Path | None = None) -> Path:
    """Write a run's model card, and its badge (.svg) of the same name next to it."""
    path = to or record.folder / "card.md"
    if record.is_public_part:
        write_file(path, card(record).encode())
        return path
    if not record.evaluated:
        raise RunError(f"{record.folder}: no round has been evaluated yet: finish the run first")
    picture = path.with_suffix(".svg")
    if picture == path:
        raise ConfigError(f"{str(path)!r} is the badge's name: name the card's file, as card.md")
    write_file(picture, badge(record).encode())
    write_file(path, card(record, picture.name).encode())
    return path


def card(record: Record, picture: str = "card.svg") -> str:
    """A model card in Markdown.

    Args:
        record: A run with an evaluated round.
        picture: The badge's file, next to the card.
    """
    if record.is_public_part:
        parts = [_about(record), _data(record), _privacy(record)]
    else:
        parts = [_about(record, picture), _data(record), _served(record), _limits(record)]
        parts += [_privacy(record)] if record.facts.privacy is not None else []
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _about(record: Record, picture: str = "") -> list[str]:
    experiment = record.experiment
    facts = record.facts
    noise = ""
    if facts.privacy is not None and not facts.privacy.simulated:
        noise = " but the cohorts and the noise, which cannot be repeated"
    torch_version = f", torch {facts.torch}" if facts.torch else ""
    lines = [f"# Model card: {_name(record.folder.resolve().name)}", ""]
    if picture:
        lines += [f"![{_name(sentence(record))}]({quote(picture)})", ""]
    what = f"{facts.parameters} parameters, trained by federated learning"
    how = f"`{record.title}`, the clients' method {_part(experiment, 'client')}"
    if _has_trees(record):  # clients have no method
        what = "decision trees, grown by federated boosting"
        how = _part(experiment, "rule")
    lines.append(
        f"A model ({_part(experiment, 'model')}) of {what} over {facts.clients} clients in "
        f"{len(record.rounds)} rounds: the server's rule is {how}, the seed "
        f"{experiment.get('seed', 0)}. Commonweal {facts.commonweal}{torch_version}. "
        f"`experiment.toml` has all settings{noise}."
    )
    if read_final(record.folder).importance:
        shares = [f"{_name(k)} {100 * share:.0f} %" for k, share in _most_important(record)]
        lines += ["", f"Importance of columns, by the gain of their splits: {', '.join(shares)}."]
    return lines


def _has_trees(record: Record) -> bool:
    return record.part("algorithm") == "boosting"


def _most_important(record: Record) -> list[tuple[str, float]]:
    return list(read_final(record.folder).importance.items())[:MOST]


def _part(experiment: Table, key: str) -> str:
    """The name of a part; an object that was given in Python, or a Flower app, has none."""
    part = experiment.get(key)
    name = str(part.get("name", "given")) if isinstance(part, Mapping) else "given"
    return "given in Python" if name == "given" else f"`{_name(name)}`"


def _data(record: Record) -> list[str]:
    facts = record.facts
    counts = ""
    if not record.is_public_part:
        train = "unknown" if facts.train_rows is None else facts.train_rows
        test = "unknown" if facts.test_rows is None else facts.test_rows
        counts = f", {train} training samples and {test} test samples"
    lines = ["## Data", "", f"- Dataset: {_part(record.experiment, 'dataset')}{counts}."]
    preprocessing = record.preprocessing()
    if preprocessing is not None:
        used = preprocessing.used
        lines.append(f"- It predicts {_name(preprocessing.label)} from {len(used)} columns:")
        lines += [f"  - {_name(column.name)} ({column.becomes})" for column in used]
    names = class_names(record, 0)
    if names:
        lines.append(f"- Classes: {', '.join(map(_name, names))}.")
    return lines + [f"- {_name(note[0].upper() + note[1:])}." for note in facts.notes or ()]


def _name(text: str) -> str:
    """A name of the data, as text and not as markup."""
    return shown(text, "markdown")


def _served(record: Record) -> list[str]:
    """A table of clients, the worst served first."""
    score = record.facts.score
    table = record.clients()
    evaluation = table.evaluation
    personal = evaluation.personal
    final = read_final(record.folder)
    shared = final.bounds.get(score)
    titles = ["client", "test samples", score if personal is None else f"{score}, global model"]
    if personal is not None:
        titles.append("personal model")
    partners = None if personal is None else personal.partners
    if partners is not None:
        titles.append("weight of partners")
    certainty = ", with 95 % confidence intervals" if shared else ""
    lines = [
        "## How well each client is served",
        "",
        f"`{score}` on each client's test samples, after round {record.evaluated[-1].number}"
        f"{certainty}.",
        "",
        pipes(titles),
        "|---|" + "--:|" * (len(titles) - 1),
    ]
    values = evaluation.score.tolist()
    for k in worst_first(values, score):
        cells = [_name(table.names[k]), str(int(evaluation.sizes[k]))]
        cells.append(show_client(values[k], score, shared, k))
        if personal is not None:
            cells.append(show_client(float(personal.score[k]), score, final.personal.get(score), k))
        if partners is not None:
            cells.append(f"{float(partners[k]):.2f}")
        lines.append(pipes(cells))
    unscored = record.facts.unscored or ()
    if unscored:
        lines += ["", f"Without a score: {', '.join(map(_name, unscored))}."]
    return lines


def _privacy(record: Record) -> list[str]:
    """The promise of a private run; a simulated one has no epsilon here."""
    promise = record.facts.privacy
    assert promise is not None
    lines = ["## Privacy", ""]
    if promise.simulated:
        lines.append(
            "- Simulated promise: cohorts and noise follow from the seed, so that this model "
            "promises nothing."
        )
    else:
        drawn = "everyone" if promise.rate == 1 else f"{promise.cohort:g} by independent coins"
        lines += [
            f"- Client-level differential privacy with epsilon = {promise.epsilon:.2f} and delta = "
            f"{promise.delta:g}. The unit is a client with all its samples; its contribution is "
            "replaced by nothing, and the list of clients is public.",
            f"- {promise.rounds} rounds, {drawn} in each, noise {promise.noise:.4g}; accounting "
            f"by {promise.accountant}.",
            f"- It bounds the odds of any guess about one client by a factor of "
            f"{math.exp(promise.epsilon):,.0f}.",
        ]
    return [
        *lines,
        "- The server is trusted. It sees losses and updates of the clients of each round.",
        "- Not promised: anything about scores, personal models, choices between several runs, "
        "a person at several clients, or attacks on floating-point noise.",
        "- Scores on clients' samples are outside the promise.",
    ]


def _limits(record: Record) -> list[str]:
    sizes = record.clients().evaluation.sizes
    small = int(((sizes > 0) & (sizes < FEW)).sum())
    lines = [
        "## Limits",
        "",
        "- The scores are those of the clients above. Nothing here says how a client that took no "
        "part would be served.",
    ]
    if small:
        lines.append(
            f"- {small} clients have fewer than {FEW} test samples: one sample changes their "
            "scores by more than 3 points."
        )
    simulated = record.facts.engine in ("simulator", "torchrun")
    where = "simulated in one process" if simulated else "processes or machines of their own"
    protocol = ""
    if record.facts.privacy is None:
        sent = "sums over rows" if _has_trees(record) else "updates"
        protocol = (
            f" In the protocol only {sent} leave a client; unless the run is private, this gives "
            "no formal guarantee of privacy."
        )
    return [*lines, f"- The clients were {where}.{protocol}"]
