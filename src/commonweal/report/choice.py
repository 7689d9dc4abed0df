"""What clients choose, as tables and in sentences."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.table import Table

from commonweal.analysis.choosing import HOWS, Choice, ClientChoice
from commonweal.analysis.compare import Result
from commonweal.analysis.gains import gains
from commonweal.report.formats import decimals_of, markup, plain_table, points, scale, unit
from commonweal.report.run_table import add_column
from commonweal.training.choice import ALONE

__all__ = ["choice_table", "client_table", "evidence", "method_name", "paragraph", "sentence"]

MANY = 20  # with this many clients, the worst 10 % are shown instead of the worst client
NAMES = {ALONE: "local training", "fedavg": "FedAvg"}
REFIT = " All models were then trained again on all samples, validation included."

WORDS = {  # the methods of `fit`, for those who have not heard of them
    ALONE: "local training",
    "fedavg": "the global model (fedavg)",
    "aaggff-s": "the global model of a fair rule (aaggff-s)",
    "fine-tune": "the global model, fine-tuned at each client (fine-tune)",
    "blend": "local and global predictions mixed (blend)",
}


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
    gained = gains(local, result)
    lost = gained.changes[gained.changes < 0]  # in any seed
    harm = f"{100 * len(lost) / max(1, gained.changes.size):.0f} %"
    if len(lost):
        harm += f" ({points(float(lost.min()), choice.score)})"
    return [*cells, points(gained.mean.difference, choice.score), harm]


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
    gain_of = {gain.client: points(gain.gain, choice.score) for gain in choice.worth.clients}
    for client in choice.names[:most]:
        model = choice.model_of(client)
        takes = method_name(model.candidate)
        if several:
            takes += f" ({choice.votes(client)[model.candidate]} of {len(choice.seeds)} seeds)"
        lines = [line for line in choice.clients if line.client == client]
        reason = evidence([line for line in lines if line.taken == model.candidate])
        table.add_row(markup(client), markup(takes), markup(reason), gain_of.get(client, "-"))
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
    gained = choice.worth
    taken = {client: choice.model_of(client).candidate for client in choice.names}
    leaving = {client for client, name in taken.items() if name != ALONE}
    points_of = " points" if unit(choice.score) else ""
    most = "" if len(choice.seeds) == 1 else " in most seeds"
    text = (
        f"With a {choice.how} choice {len(leaving)} of {len(taken)} clients leave local training"
        f"{most} and {len(taken) - len(leaving)} keep it."
    )
    if choice.refit:
        text += REFIT
    mean = gained.mean
    interval = ""
    if not math.isnan(mean.low):
        low, high = points(mean.low, choice.score), points(mean.high, choice.score)
        interval = f" (95 % confidence interval {low} to {high})"
    gain = points(mean.difference, choice.score)
    text += f" On test samples the mean gain over all clients is {gain}{points_of}{interval}"
    losers = gained.losers
    if not losers:
        return f"{text}; nobody is worse off than with local training."
    change = points(losers[0].gain, choice.score)
    verb = "is" if len(losers) == 1 else "are"
    return (
        f"{text}; {len(losers)} {verb} worse off than with local training, at most "
        f"{losers[0].client} ({change})."
    )


# The paragraph of `fit`


def paragraph(choice: Choice) -> str:
    """Whether joining helps, which method is for whom, who gains, and how certain that is."""
    return " ".join((_verdict(choice), _methods(choice), _gainers(choice), _certainty(choice)))


def _verdict(choice: Choice) -> str:
    taken = [choice.model_of(client).candidate for client in choice.names]
    if set(taken) == {ALONE}:
        return (
            "Joining does not help here: on its own validation samples no client finds a model "
            "that is clearly better than its local one."
        )
    mean = choice.worth.mean
    gain = f"{points(mean.difference, choice.score)}{' points' if unit(choice.score) else ''}"
    low, high = points(mean.low, choice.score), points(mean.high, choice.score)
    interval = f"95 % confidence interval {low} to {high} over {_seeds(choice)}"
    if not mean.significant:
        return (
            f"Whether joining helps is open: the mean gain in {choice.score} over local training "
            f"is {gain}, which is not significant ({interval})."
        )
    verb = "helps" if mean.difference > 0 else "does not help"
    return (
        f"Joining {verb}: the mean gain in {choice.score} over local training is {gain} "
        f"({interval})."
    )


def _methods(choice: Choice) -> str:
    takers: dict[str, list[str]] = {}
    for client in choice.names:
        takers.setdefault(choice.model_of(client).candidate, []).append(client)
    parts = []
    for name in sorted(takers, key=lambda name: (name == ALONE, -len(takers[name]))):
        verb = "keep" if name == ALONE else "take"
        verb += "s" if len(takers[name]) == 1 else ""
        parts.append(f"{_names(takers[name])} {verb} {WORDS.get(name, name)}")
    return "; ".join(parts) + "."


def _names(clients: Sequence[str], most: int = 5) -> str:
    """Some names in a sentence, with how many there are more."""
    if len(clients) > most:
        return f"{', '.join(clients[:most])} and {len(clients) - most} more"
    return " and ".join([", ".join(clients[:-1]), clients[-1]] if clients[1:] else clients)


def _gainers(choice: Choice) -> str:
    """Who gains and who loses, on test samples."""
    gained = choice.worth
    where = "on test samples, which had no part in training or choosing"
    if not gained.better and not gained.worse:
        return f"No client's difference {where}, is significant."
    parts = []
    for clients, word in ((gained.better, "better"), (gained.worse, "worse")):
        verb = "are" if len(clients) > 1 else "is"
        who = _names([client.client for client in clients]) if clients else "nobody"
        parts.append(f"{who} {verb} significantly {word} off")
    rest = f"{gained.unclear} of {len(gained.clients)} show no clear difference"
    text = f"{where}, {' and '.join(parts)}; {rest}."
    return text[0].upper() + text[1:]


def _certainty(choice: Choice) -> str:
    """What a client's decision rests on, and how often seeds agree on it."""
    samples = _range([line.samples for line in choice.clients])
    agreed = [max(choice.votes(client).values()) for client in choice.names]
    share = 100 * sum(agreed) / (len(agreed) * len(choice.seeds))
    return (
        f"A client leaves local training only if its {samples} validation samples show a lower "
        f"loss with a confidence of {100 * choice.level:g} %.{REFIT if choice.refit else ''} "
        f"Everything was repeated for {_seeds(choice)}, "
        f"with other splits of the samples: {share:.0f} % of the decisions agree with the model "
        "taken."
    )
