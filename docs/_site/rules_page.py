"""The page of rules: `python docs/_site/rules_page.py > docs/rules.md`."""

from collections.abc import Iterable

from commonweal.config.catalog import Entry
from commonweal.report.listing import families
from commonweal.rules.rule import Rule

__all__ = ["main", "markdown_row", "page", "rules_table"]

HEADER = ("rule", "family", "response", "update rule", "weights")
PAGE = """# Rules

This page covers every rule with its formula, in one table. [Which rule for whom](choose.md) helps
to choose.

A rule decides how much each report of a cohort counts: `direction = weights @ updates`. f are the
losses of the received model on each client's training rows before local training, n the numbers of
rows, p = n / sum n, u the updates, G their inner products, S the size of the cohort, K the number
of clients. `commonweal show NAME` tells more about each rule.

{table}
*Response* is how a loss enters, *update rule* how the decision follows from it: the unification of
Hahn et al., ICML 2024 (Table 1), extended to rules that it does not cover. A *mixture* uses the
current round only; an *online* rule has a memory; a *direction* depends on the geometry of the
updates; a *reweighting* penalises differences between clients; a *combinator* wraps a rule.

Some are members of one family: CVaR, the k worst clients and GIFAIR's ranks are ordered weights
(`owa`); FedEBA's server weights are `term` with t = 1 / tau. The directions of multi-task learning
(`directions`, `fedmgda`, `fedfv`) are rules with clients as tasks. Defaults are those that serve
several federations (docs/results.md), with the published form by a field; `commonweal show NAME`
prints the grid that a publication tried. With the published constants `aaggff-d` is nearly uniform
when few of many clients report: docs/results.md says by how much, and what makes it bite.

The mixtures that `afl` may choose from are all mixtures of clients, a chi-square ball (`radius`),
the hull of given ones (`mixtures=[[1, 0, 0], [0, 0.5, 0.5]]`), or mixtures of groups (`grouped`);
what it learns, as a mean over the rounds, is in the record and in `commonweal show`. The sampler
`only(names=[...])` trains on some clients or groups and evaluates on all. `excess(rule=afl,
path=runs/alone)` takes the losses that clients reach alone from a run with `client=alone`.

Learning rates of clients and servers follow a formula of the round t: with `client.lr=0.5
client.schedule=1/t` it is 0.5, 0.25, 0.167, ...; 1/sqrt(t), 0.99^(t-1) and max(0.1, 1 - t/100) are
others, and `server.schedule` is the same for the server's.

This page is generated: `python docs/_site/rules_page.py > docs/rules.md`.
"""


def page() -> str:
    """docs/rules.md."""
    return PAGE.format(table=rules_table())


def rules_table() -> str:
    """The table of all rules in Markdown."""
    lines = [markdown_row(HEADER), "|" + "---|" * len(HEADER)]
    for found in families().values():
        lines += [markdown_row(_cells(entry)) for entry in found]
    return "\n".join(lines) + "\n"


def _cells(entry: Entry) -> tuple[str, ...]:
    rule = entry.factory
    assert isinstance(rule, type) and issubclass(rule, Rule)
    kind = rule.kind
    return (entry.name, kind.family, kind.response, kind.update, _formula(entry))


def _formula(entry: Entry) -> str:
    """The first paragraph of the rule's docstring."""
    return entry.details.split("\n\n")[0].replace("\n", " ")


def markdown_row(cells: Iterable[object]) -> str:
    """A row of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    print(page(), end="")


if __name__ == "__main__":
    main()
