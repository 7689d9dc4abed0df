"""Tables of what clients are given, for a terminal."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from commonweal.base.text import shown
from commonweal.clients.evidence import ALONE
from commonweal.report import formats
from commonweal.report.clients import NAMES, gain_cell
from commonweal.report.formats import add_columns, frameless_table, markup
from commonweal.report.overview import notes_on_verdict, overview
from commonweal.study.choosing import HOWS, Choice, ClientChoice
from commonweal.study.units import counted, decimals_of, scale, unit

MANY = 20  # with this many clients, the worst 10 % are shown instead of the worst client
MOST = 50  # clients of a table


def method_name(method: str) -> str:
    """A method as a person reads it."""
    return NAMES.get(method, method)


def choice_for_terminal(choice: Choice) -> Group:
    """The verdict, what methods give, and what clients are given, as rich prints them."""
    seen = overview(choice.comparison)
    parts: list[Text | Table | Group] = [Text(shown(seen.headline), style="bold")]
    parts += [Text(shown(seen.about)), Text(), formats.terminal_tables(seen.methods)]
    parts.append(client_table(choice))
    parts += [Text(shown(str(named))) for named in seen.named]
    if len(choice.names) > MOST:
        parts.append(Text(f"{len(choice.names) - MOST} more clients are in the report."))
    notes = notes_on_verdict(choice.comparison)
    parts += [Text(shown(note), style="dim") for note in notes]
    return Group(*parts)


def client_table(choice: Choice) -> Table:
    """Return the table of the first clients: models, gains, and whether these are significant."""
    table = frameless_table("What clients are given")
    add_columns(table, "client", "given")
    if choice.how != "pooled":  # which has one reason for all clients
        add_columns(table, "on validation samples")
    add_columns(table, "gain over local training", right=True)
    add_columns(table, "")
    comparison = choice.comparison
    for client in choice.names[:MOST]:
        cells = [client, _given(choice.votes(client))]
        if choice.how != "pooled":
            cells.append(evidence_text(choice, client))
        gain = comparison.gain(choice.given.method, client)
        word = "n.s."
        if gain is None:
            word = ""
        elif gain.significant:
            word = "better" if gain.gain > 0 else "worse"
        table.add_row(*map(markup, cells), gain_cell(gain, choice.score), word)
    return table


def _given(votes: Counter[str]) -> str:
    """Return the model that a client is given, and in how many seeds where they differ."""
    parts = []
    for method, count in votes.most_common():
        name = method_name(method)
        parts.append(name if len(votes) == 1 else f"{name} ({count} of {votes.total()})")
    return ", ".join(parts)


def evidence_text(choice: Choice, client: str) -> str:
    """Return the reason for a client's choice by its own validation samples, over all seeds."""
    taken = choice.model_of(client).candidate
    lines = [line for line in choice.clients if (line.client, line.taken) == (client, taken)]
    samples = sum(line.samples for line in lines)
    if samples == 0:
        return "none: no validation samples"
    measured = [line for line in lines if not np.isnan(line.improvement)]
    if not measured:
        return "none: no other model has a finite loss"
    about = _about(lines)
    if not any(line.better or line.worse for line in measured):
        return f"{about}no difference"
    mean = float(np.mean([line.improvement for line in measured]))
    return f"{about}loss {-mean:+.2g} on {counted(samples, 'sample')}"


def _about(lines: Sequence[ClientChoice]) -> str:
    """Return the name of what a client that keeps local training was compared with."""
    compared = Counter(line.compared for line in lines)
    if lines[0].taken != ALONE or set(compared) == {ALONE}:
        return ""
    return f"{method_name(compared.most_common(1)[0][0])}: "


def ways_table(choice: Choice) -> Table:
    """Return the results of every way to choose: the mean, the worst, and the models."""
    worst = "worst_10" if len(choice.names) >= MANY else "worst"
    per_cent = " in %" if unit(choice.score) else ""
    table = frameless_table(f"Ways to choose (--how): {choice.score}{per_cent}")
    add_columns(table, "how")
    add_columns(table, "mean", "worst 10 %" if worst == "worst_10" else "worst", right=True)
    add_columns(table, f"given to (of {counted(len(choice.names), 'client')})")
    for how in HOWS:
        result = choice.by_how[how]
        digits = decimals_of(choice.score, result.scores)
        figures = []
        for metric in ("mean", worst):
            figures.append(f"{scale(choice.score) * result.metric(metric):.{digits}f}")
        table.add_row(how, *figures, markup(_taken(choice.taken[how], len(choice.seeds))))
    return table


def _taken(counts: Counter[str], seeds: int) -> str:
    parts = []
    for name, count in counts.most_common():
        digits = 0 if count % seeds == 0 else 1
        parts.append(f"{method_name(name)} {count / seeds:.{digits}f}")
    return ", ".join(parts)
