"""Reasons why a guessed label or client may be wrong, and what else it may be.

`fit` trains nothing on a guess with such a doubt. It lists the columns that are possible, each with
the command that names it.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from commonweal.data.tables.columns import CLIENT, Profile, Table
from commonweal.datasets.guess import roles
from commonweal.datasets.guess.leaks import Leak
from commonweal.datasets.guess.roles import ColumnCandidate

NEAR = 1.0  # points of a candidate below the first one, within which it is as likely
MOST = 5  # columns that are offered
FACT = 0.98  # of the rows have the label of most rows of their client: it is a fact of the client
EXPLAINED = 0.95  # of the label by another column: one of the two is a form of the other


class Option(NamedTuple):
    """Another way to read a table, as options of a command."""

    label: str | None = None
    client: str | None = None
    drop: tuple[str, ...] = ()
    about: str = ""

    def command(self, start: Sequence[str], end: Sequence[str] = ()) -> str:
        """The command with these options. start, end: its other words"""
        words = list(start)
        if self.drop:
            words.append(f"dataset.drop={','.join(self.drop)}")
        for option, value in (("--label", self.label), ("--client", self.client)):
            if value is not None:
                words += [option, value]
        return shlex.join([*words, *end])


class Doubt(NamedTuple):
    """A doubt about a guess, and the columns that are possible instead of it."""

    text: str
    options: tuple[Option, ...]


# Labels


def of_label(
    contents: Table,
    ranked: Sequence[ColumnCandidate],
    leaks: Mapping[str, Leak],
    client: str | None,
) -> Doubt | None:
    """Return the doubt about the guessed label; None: its name and its values leave none.

    Args:
        contents: The table with the guessed label.
        ranked: The columns that may be the label, the likeliest first.
        leaks: The columns that give the label away.
        client: The column of clients, where it is given.
    """
    guessed = contents.facts.roles.label
    survival = roles.survival(contents.profiles)
    times = survival[0] if survival else guessed
    reasons = []
    if is_constant(contents, contents.facts.event or contents.label):
        reasons.append(f"{guessed!r} is constant within {' and '.join(contents.facts.client)}")
    if times != guessed:
        reasons.append(f"there are columns of survival times and events, {times!r}")
    else:
        reasons += _by_name(guessed, ranked)
    drop = tuple(name for name, leak in leaks.items() if leak.explained >= EXPLAINED)
    names = [candidate.name for candidate in ranked] if reasons else []
    options = []
    if drop:
        why = leaks[drop[0]].why
        reasons.append(f"{guessed!r} is explained by another column, {drop[0]!r} ({why})")
        options.append(Option(guessed, client, drop, f"without {_listed(drop)}"))
    if not reasons:
        return None
    taken = roles.columns(times)[:1] if times != guessed else []
    for name in dict.fromkeys([times, guessed, *drop, *names]):
        about = None if name in taken else _about(contents, name)
        if about is not None and len(options) < MOST:
            options.append(Option(name, client, about=about))
    return Doubt(f"the label is doubtful: {'; '.join(reasons)}", tuple(options))


def _by_name(guessed: str, ranked: Sequence[ColumnCandidate]) -> list[str]:
    """Return the doubt about the names of the columns that may be the label."""
    own = roles.columns(guessed)
    first = next(candidate for candidate in ranked if candidate.name in own)
    if first.name.lower() in roles.NAMES_IT:
        return []
    if len(own) == 1 and not first.is_clear:
        return [f"no name says which column it is; {guessed!r} is guessed by {first.why}"]
    others = [
        candidate.name
        for candidate in ranked
        if candidate.name not in own
        and (candidate.is_clear or (len(own) == 1 and candidate.points > first.points - NEAR))
    ]
    return [f"{_listed([guessed, *others])} are equally likely"] if others else []


def _about(contents: Table, name: str) -> str | None:
    """Describe the contents of a column; None where it cannot be a label of single samples."""
    if "," in name and name not in contents.profiles:
        return "survival times and events"
    profile = contents.profiles.get(name)
    if profile is None or profile.column.becomes in ("nothing", "date"):
        return None
    if is_constant(contents, name):
        return "constant within each client"
    if profile.column.becomes == "number" and not profile.different <= roles.MOST_CLASSES:
        return "numbers"
    return f"{profile.different} different values"


def is_constant(contents: Table, name: str) -> bool:
    """Return whether a column that varies hardly varies within clients: a fact of the client."""
    coded = contents.clients()
    if coded is None:
        return False
    values = contents.texts(name)[1] if contents.is_text(name) else contents.numbers(name)
    owner = np.asarray(coded[1], dtype=np.int64)
    known = (owner >= 0) & ~contents.gaps(name)
    owner, values = owner[known], np.asarray(values)[known]
    sizes = np.bincount(owner)
    repeated = sizes[owner] > 1
    owner, values = owner[repeated], values[repeated]
    different, position = np.unique(values, return_inverse=True)
    if len(different) < 2 or len(np.unique(owner)) < 2:
        return False
    pairs, counts = np.unique(owner * len(different) + position, return_counts=True)
    most = np.zeros(len(sizes), dtype=np.int64)
    np.maximum.at(most, pairs // len(different), counts)
    usual = np.bincount(position).max() / len(position)
    return bool(most.sum() >= max(FACT, 1 - (1 - usual) / 10) * len(owner))


# Clients


def of_client(
    profiles: Mapping[str, Profile],
    ranked: Sequence[ColumnCandidate],
    again: Sequence[str],
    label: str | None,
) -> Doubt | None:
    """Return the doubt about the guessed client.

    Args:
        profiles: The columns.
        ranked: The columns that may name the clients, the likeliest first.
        again: Those that name the guessed clients once more.
        label: The label, where it is given.
    """
    first, *others = ranked
    near = [
        other.name
        for other in others
        if other.points > first.points - NEAR and other.name not in again
    ]
    if first.name == CLIENT or (first.is_clear and not near):
        return None
    text = f"{_listed([first.name, *near][:MOST])} are equally likely"
    if not near:
        text = f"{first.name!r} may be a feature"
        near = [name for name in roles.could_name(profiles, label or "") if name != first.name]
    options = []
    for name in [first.name, *near][:MOST]:
        options.append(Option(label, name, about=f"{profiles[name].different} different values"))
    return Doubt(f"the client is doubtful: {text}", tuple(options))


def no_client(profiles: Mapping[str, Profile], given: str | None) -> Doubt:
    """Return the doubt where no name names the clients, with the columns that may do so.

    given: the label, where a person named it
    """
    names = roles.could_name(profiles, given or "")[:MOST]
    options = []
    for name in names:
        options.append(Option(given, name, about=f"{profiles[name].different} different values"))
    return Doubt("no column looks like clients: name it with --client COLUMN", tuple(options))


# Messages


def advice(doubts: Sequence[Doubt], start: Sequence[str], end: Sequence[str] = ()) -> str:
    """The doubts, and a command for each option. start, end: the other words of the command"""
    lines = []
    for doubt in doubts:
        lines.append(f"{doubt.text}.")
        for option in doubt.options:
            about = f"   # {option.about}" if option.about else ""
            lines.append(f"  {option.command(start, end)}{about}")
    return "\n".join(lines)


def _listed(names: Sequence[str]) -> str:
    quoted = [repr(name) for name in names[:MOST]]
    if len(names) > MOST:
        quoted.append(f"{len(names) - MOST} more")
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)
