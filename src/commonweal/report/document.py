"""A report of runs: one HTML file that a person can mail, without scripts and other files."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from statistics import fmean

from commonweal import __version__
from commonweal.base.errors import RunError, TrustError
from commonweal.base.plain import flat
from commonweal.record.record import Record
from commonweal.report import figures
from commonweal.report.clients import partner_weights
from commonweal.report.figures import Drawing, Picture
from commonweal.report.formats import ReportColumn, ReportTable
from commonweal.report.html import Figure, fill, style
from commonweal.report.overview import overview
from commonweal.study.comparison import Comparison
from commonweal.study.labels import seed_of
from commonweal.study.regret import of_run

MOST_PICTURES = 12  # heat maps and regrets
TITLES = {  # of the sections
    "details": "Who gained, who lost, and all numbers",
    "rounds": "Scores over rounds",
    "weights": "Weights: whom the rule favoured",
    "partners": "Weight of partners",
    "regret": "Regret",
    "experiment": "The experiment",
    "runs": "Versions and seeds",
}


def render(comparison: Comparison, title: str, trust: bool = False) -> str:
    """The report as an HTML page: the verdict and the client plot first, then the details.

    trust: import rules of the user's own that the runs name, which their regret needs
    """
    seen = overview(comparison)
    regrets, untrusted = _regrets(comparison, trust)
    weights = _pictures(comparison, _draw_weights)
    rounds = _rounds(comparison)
    partners = _partners(comparison)
    shown = {
        "rounds": rounds is not None,
        "weights": bool(weights),
        "partners": partners is not None,
        "regret": bool(regrets or untrusted),
    }
    contents = {name: text for name, text in TITLES.items() if shown.get(name, True)}
    first = comparison.first
    seeds = ", ".join(str(seed_of(record)) for record in next(iter(comparison.records.values())))
    return fill(
        "report.html",
        title=title,
        style=style(),
        facts=(
            f"{seen.name}: {first.facts.clients} clients, {first.experiment.get('rounds')} rounds, "
            f"seeds {seeds}."
        ),
        seen=seen,
        failures=comparison.failures,
        clients=Figure("clients-figure", figures.of_comparison(comparison, "clients")),
        contents=contents,
        numbers=_turned(seen.numbers),
        rounds=rounds,
        weights=_numbered(weights, "weights"),
        partners=partners,
        regrets=_numbered(regrets, "regret"),
        untrusted=", ".join(untrusted),
        experiments=_experiments(comparison),
        versions=_versions(comparison),
        runs=_runs(comparison),
        version=__version__,
    )


def summary_html(comparison: Comparison) -> str:
    """The verdict and the table of methods, for a notebook."""
    return fill("summary.html", seen=overview(comparison))


def _numbered(pictures: Iterable[Picture], name: str) -> list[Figure]:
    return [Figure(f"{name}-{i}", picture) for i, picture in enumerate(pictures)]


def _turned(table: ReportTable) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table with a row per column: it stays narrow enough to be printed."""
    rows = [[column.title, *column.cells] for column in table.columns]
    return ["metric", *table.labels], rows


# Sections


def _rounds(comparison: Comparison) -> Figure | None:
    for records in comparison.methods.values():
        if any(len(record.evaluated) > 1 for record in records):
            return Figure("rounds-figure", figures.of_comparison(comparison, "rounds"))
    return None


def _draw_weights(record: Record, label: str) -> Picture:
    if figures.relative_weights(record).are_constant:
        raise RunError(f"the weights of {label} never change: nothing to see")
    return figures.weights(record, label)


def _partners(comparison: Comparison) -> ReportTable | None:
    """Return the weight of each client's partners, where predictions are mixed."""
    by_label: dict[str, dict[str, float]] = {}
    for label, records in comparison.methods.items():
        by_client: dict[str, list[float]] = {}
        seeds = list(filter(None, map(partner_weights, records)))
        for weights in seeds:
            for name, weight in weights.items():
                by_client.setdefault(name, []).append(weight)
        means = {name: fmean(w) for name, w in by_client.items() if len(w) == len(seeds)}
        if means:
            by_label[label] = means
    if not by_label:
        return None
    names = list(dict.fromkeys(chain(*by_label.values())))
    columns = []
    for label, means in by_label.items():
        cells = [f"{means[name]:.2f}" if name in means else "" for name in names]
        columns.append(ReportColumn(label, cells))
    return ReportTable("Weight of partners by client", "client", names, columns)


def _regrets(comparison: Comparison, trust: bool) -> tuple[list[Picture], list[str]]:
    """Pictures, and the labels of rules that would have to be imported."""
    untrusted: list[str] = []

    def draw(record: Record, label: str) -> Picture:
        try:
            picture = figures.regret(of_run(record, trust=trust), label)
        except TrustError as error:
            untrusted.append(label)
            raise RunError(str(error)) from None
        if not any(float(row[1]) for row in picture.rows):
            raise RunError(f"the regret of {label} is 0 throughout: nothing to see")  # FedAvg's
        return picture

    return _pictures(comparison, draw), untrusted


def _pictures(comparison: Comparison, draw: Drawing) -> list[Picture]:
    """A picture of the first run of each label, where it has one."""
    pictures = []
    for label, records in comparison.methods.items():
        try:
            pictures.append(draw(records[0], label))
        except RunError:  # a rule without weights, or without a regret
            continue
    return pictures[:MOST_PICTURES]


def _experiments(comparison: Comparison) -> dict[str, str]:
    """The first run's experiment, and what is different in others."""
    first = comparison.first
    texts = {}
    for label, records in comparison.records.items():
        if records[0] is first:
            texts[f"{label}, in full:"] = experiment_text(first)
        else:
            texts[f"{label} differs in:"] = _changed(first, records[0])
    return texts


def experiment_text(record: Record) -> str:
    """A run's experiment as TOML."""
    return (record.folder / "experiment.toml").read_text(encoding="utf-8").rstrip()


def _changed(first: Record, other: Record) -> str:
    before = flat(first.experiment)
    after = flat(other.experiment)
    lines = []
    for key, value in after.items():
        if before.get(key) != value:
            lines.append(f"{key} = {value!r}")
    for key in before:
        if key not in after:
            lines.append(f"without {key}")
    return "\n".join(lines)


FACTS = ("commonweal", "torch", "python", "engine", "vectorize")


def _versions(comparison: Comparison) -> list[str]:
    """Return the versions that the runs were made with."""
    counts: Counter[str] = Counter()
    for record in chain(*comparison.records.values()):
        known = record.facts.table()
        counts[", ".join(f"{key} {known.get(key, '-')}" for key in FACTS)] += 1
    return [f"{count} runs: {text}." for text, count in counts.items()]


def _runs(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of runs."""
    rows = []
    for label, records in comparison.records.items():
        for record in records:
            warned = sum(len(done.warnings) for done in record.rounds)
            dropped = sum(len(done.dropped) for done in record.rounds)
            rounds = f"{len(record.rounds)} of {record.experiment.get('rounds')}"
            seed = str(seed_of(record))
            rows.append([str(record.folder), label, seed, rounds, str(warned), str(dropped)])
    return ["folder", "method", "seed", "rounds", "warnings", "replies not used"], rows
