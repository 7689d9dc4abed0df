"""What clients choose, as tables and in sentences."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.table import Table

from commonweal.analysis.choosing import HOWS, Choice, ClientChoice
from commonweal.analysis.compare import Result
from commonweal.analysis.gains import gains
from commonweal.report.clients import mean_of
from commonweal.report.formats import (
    add_columns,
    counted,
    decimals_of,
    in_points,
    markup,
    plain_table,
    points,
    scale,
    unit,
)
from commonweal.training.choice import ALONE

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
    per_cent = " in %" if unit(choice.score) else ""
    table = plain_table(
        f"{choice.score}{per_cent} on test samples: {clients} clients, {_seeds(choice)}, "
        f"{_samples(choice)} validation samples each"
    )
    add_columns(table, "")
    worst = "worst 10 %" if clients >= MANY else "worst"
    add_columns(table, "mean", worst, "gain", "worse off", right=True)
    add_columns(table, "taken by (clients)")
    for name, result in choice.results.items():
        table.add_row(markup(method_name(name)), *_figures(choice, result), "")
    for how in HOWS:
        result = choice.by_how[how]
        taken = _taken(choice.taken[how], len(choice.seeds))
        table.add_row(result.label, *_figures(choice, result), markup(taken))
    return table


def _seeds(choice: Choice) -> str:
    return counted(len(choice.seeds), "seed")


def _samples(choice: Choice) -> str:
    """How many validation samples clients have: "4 to 10"."""
    counts = [line.samples for line in choice.clients]
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _figures(choice: Choice, result: Result) -> list[str]:
    worst = "worst_10" if len(choice.names) >= MANY else "worst"
    digits = decimals_of(choice.score, result.scores)
    cells = []
    for metric in ("mean", worst):
        cells.append(f"{scale(choice.score) * mean_of(result, metric):.{digits}f}")
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
    """The first clients' models, the evidence for them, and their gains on test samples."""
    table = plain_table(None)
    add_columns(table, "client", "takes", "on validation samples")
    add_columns(table, "gain", right=True)
    gain_of = {gain.client: points(gain.gain, choice.score) for gain in choice.worth.clients}
    for client in choice.names[:most]:
        taken = choice.model_of(client).candidate
        takes = method_name(taken)
        if len(choice.seeds) > 1:
            takes += f" ({choice.votes(client)[taken]} of {len(choice.seeds)} seeds)"
        lines = [line for line in choice.clients if (line.client, line.taken) == (client, taken)]
        reason = markup(evidence(lines))
        table.add_row(markup(client), markup(takes), reason, gain_of.get(client, "-"))
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
    clients = len(choice.names)
    staying = len(_takers(choice).get(ALONE, ()))
    most = "" if len(choice.seeds) == 1 else " in most seeds"
    text = (
        f"With a {choice.how} choice {clients - staying} of {clients} clients leave local training"
        f"{most} and {staying} keep it."
    )
    if choice.refit:
        text += REFIT
    interval = "" if math.isnan(gained.mean.low) else f" ({_interval(choice)})"
    text += f" On test samples the mean gain over all clients is {_mean_gain(choice)}{interval}"
    losers = gained.losers
    if not losers:
        return f"{text}; nobody is worse off than with local training."
    change = points(losers[0].gain, choice.score)
    verb = "is" if len(losers) == 1 else "are"
    return (
        f"{text}; {len(losers)} {verb} worse off than with local training, at most "
        f"{losers[0].client} ({change})."
    )


def _takers(choice: Choice) -> dict[str, list[str]]:
    """The clients by the model that they take."""
    takers: dict[str, list[str]] = {}
    for client in choice.names:
        takers.setdefault(choice.model_of(client).candidate, []).append(client)
    return takers


def _mean_gain(choice: Choice) -> str:
    return in_points(points(choice.worth.mean.difference, choice.score), choice.score)


def _interval(choice: Choice) -> str:
    mean = choice.worth.mean
    low, high = points(mean.low, choice.score), points(mean.high, choice.score)
    return f"95 % confidence interval {low} to {high}"


# The paragraph of `fit`


def paragraph(choice: Choice) -> str:
    """Whether joining helps, which method is for whom, who gains, and how certain that is."""
    return " ".join((_verdict(choice), _methods(choice), _gainers(choice), _certainty(choice)))


def _verdict(choice: Choice) -> str:
    if set(_takers(choice)) == {ALONE}:
        return (
            "Joining does not help here: on its own validation samples no client finds a model "
            "that is clearly better than its local one."
        )
    gain = _mean_gain(choice)
    interval = f"{_interval(choice)} over {_seeds(choice)}"
    mean = choice.worth.mean
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
    takers = _takers(choice)
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
    agreed = [max(choice.votes(client).values()) for client in choice.names]
    share = 100 * sum(agreed) / (len(agreed) * len(choice.seeds))
    return (
        f"A client leaves local training only if its {_samples(choice)} validation samples show a "
        f"lower loss with 95 % confidence.{REFIT if choice.refit else ''} "
        f"Everything was repeated for {_seeds(choice)}, with other splits of the samples: "
        f"{share:.0f} % of the decisions agree with the model taken."
    )
