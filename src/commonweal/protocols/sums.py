"""Rules and client methods for protocols whose server uses sums over clients only."""

from commonweal.config.catalog import entries
from commonweal.rules.rule import Need, Rule
from commonweal.training.client import Client

UNAVAILABLE: frozenset[Need] = frozenset({"update", "loss_after"})  # where weights come first


def rules_of_losses() -> list[str]:
    """The names of the rules that decide before clients train, by their defaults."""
    names = []
    for name, entry in entries("rules").items():
        try:
            rule = entry.factory()
        except TypeError:  # it is a rule around another one
            continue
        if isinstance(rule, Rule) and not rule.needs & UNAVAILABLE:
            names.append(name)
    return names


def collected(client: Client, rounds: int) -> str:
    """The first request of a method in any round whose replies are used; empty: there is none."""
    if type(client).after is Client.after:
        return ""
    for round in range(1, rounds + 1):
        requests = client.after(round, rounds)
        try:
            request = next(requests)
            while request.silent:
                request = requests.send({})
        except StopIteration:
            continue
        requests.close()
        return f"{request.purpose!r} after round {round}"
    return ""
