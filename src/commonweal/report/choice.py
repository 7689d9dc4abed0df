"""What clients choose, as tables and in sentences."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.table import Table

from commonweal.analysis.choice import ALONE
from commonweal.analysis.choosing import HOWS, Choice, ClientChoice
from commonweal.analysis.compare import Result
from commonweal.analysis.worth import worth
from commonweal.report.formats import decimals_of, markup, plain_table, points, scale, unit
from commonweal.report.run_table import add_column

__all__ = ["choice_table", "client_table", "evidence", "method_name", "sentence"]

MANY = 20  # with this many clients, the worst 10 % are shown instead of the worst client
NAMES = {ALONE: "local training", "fedavg": "FedAvg"}


def method_name(candidate: str) -> str:
    """A candidate as a person reads it."""
    return NAMES.get(candidate, candidate)


def choice_table(choice: Choice) -> Table:
    """Every candidate and every way to choose: mean, worst, and who is worse off."""
    clients = len(choice.names)
    samples = [line.samples for line in choice.clients]
    title = f"{choice.score}{' in %' if unit(choice.score) else ''} on test samples"
    table = plain_table(
        f"{title}: {clients} clients, {_seeds(choice)}, {_range(samples)} validation samples each"
    )
    worst = "worst_10" if clients >= MANY else "worst"
    titles = ("", "mean", "worst 10 %" if clients >= MANY else "worst", "gain", "worse off")
    for name in titles:
        add_column(table, name, right=name != "")
    add_column(table, "taken by (clients)")
    for name, result in choice.results.items():
        table.add_row(markup(method_name(name)), *_figures(choice, result, worst), "")
    for how in HOWS:
        result = choice.by_how[how]
        taken = _taken(choice.taken[how], len(choice.seeds))
        table.add_row(result.label, *_figures(choice, result, worst), markup(taken))
    return table


def _seeds(choice: Choice) -> str:
    return f"{len(choice.seeds)} seed{'s' if len(choice.seeds) > 1 else ''}"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _figures(choice: Choice, result: Result, worst: str) -> list[str]:
    factor = scale(choice.score)
    digits = decimals_of(choice.score, result.scores)
    means = [np.mean([seed[key] for seed in result.metrics]) for key in ("mean", worst)]
    cells = [f"{factor * mean:.{digits}f}" for mean in means]
    local = choice.results[ALONE]
    if result is local:
        return [*cells, "", ""]
    (found,) = worth([result], [local])
    lost = found.gains[found.gains < 0]
    share = 100 * len(lost) / max(1, found.gains.size)
    harm = f"{share:.0f} %"
    if len(lost):
        harm += f" ({points(float(lost.min()), choice.score)})"
    return [*cells, points(float(found.gains.mean()), choice.score), harm]


def _taken(counts: Counter[str], seeds: int) -> str:
    parts = []
    for name, count in counts.most_common():
        digits = 0 if count % seeds == 0 else 1
        parts.append(f"{method_name(name)} {count / seeds:.{digits}f}")
    return ", ".join(parts)


def client_table(choice: Choice, most: int = 50) -> Table:
    """Every client's model, the evidence for it, and its gain on test samples.

    Args:
        choice: The choice.
        most: How many clients are shown; choice.json has all.
    """
    several = len(choice.seeds) > 1
    table = plain_table(None)
    for title in ("client", "takes", "on validation samples"):
        add_column(table, title)
    add_column(table, "gain", right=True)
    gains = dict(zip(choice.worth.clients, choice.worth.change.tolist(), strict=True))
    for client in choice.names[:most]:
        model = choice.model_of(client)
        takes = method_name(model.candidate)
        if several:
            takes += f" ({choice.votes(client)[model.candidate]} of {len(choice.seeds)} seeds)"
        lines = [line for line in choice.clients if line.client == client]
        reason = evidence([line for line in lines if line.taken == model.candidate])
        gain = points(gains[client], choice.score) if client in gains else "-"
        table.add_row(markup(client), markup(takes), markup(reason), gain)
    return table


def evidence(lines: Sequence[ClientChoice]) -> str:
    """Why a client takes what it takes, in one or several seeds."""
    samples = sum(line.samples for line in lines)
    if samples == 0:
        return "none: no validation samples"
    compared = Counter(line.compared for line in lines)
    about = ""
    if lines[0].taken == ALONE and set(compared) != {ALONE}:
        about = f"{method_name(compared.most_common(1)[0][0])}: "
    measured = [line for line in lines if not math.isnan(line.improvement)]
    if not measured:
        return "none: no other model has a finite loss"
    mean = float(np.mean([line.improvement for line in measured]))
    error = float(np.mean([line.error for line in measured]))
    deviation = "" if math.isnan(error) else f" ±{error:.2g}"
    better = sum(line.better for line in measured)
    return f"{about}loss {-mean:+.2g}{deviation}, lower for {better} of {samples}"


def sentence(choice: Choice) -> str:
    """Who leaves local training, what that gives, and who is worse off, on test samples."""
    found = choice.worth
    taken = {client: choice.model_of(client).candidate for client in choice.names}
    leaving = {client for client, name in taken.items() if name != ALONE}
    points_of = " points" if unit(choice.score) else ""
    text = (
        f"With a {choice.how} choice {len(leaving)} of {len(taken)} clients leave local training "
        f"in most seeds and {len(taken) - len(leaving)} keep it."
    )
    if len(choice.seeds) == 1:
        text = text.replace(" in most seeds", "")
    mean = found.mean
    interval = ""
    if not math.isnan(mean.low):
        low, high = points(mean.low, choice.score), points(mean.high, choice.score)
        interval = f" (95 % confidence interval {low} to {high})"
    gain = points(mean.difference, choice.score)
    text += f" On test samples the mean gain over all clients is {gain}{points_of}{interval}"
    losers = found.losers
    if not losers:
        return f"{text}; nobody is worse off than with local training."
    worst = found.clients[losers[0]]
    change = points(float(found.change[losers[0]]), choice.score)
    verb = "is" if len(losers) == 1 else "are"
    return (
        f"{text}; {len(losers)} {verb} worse off than with local training, at most {worst} "
        f"({change})."
    )
