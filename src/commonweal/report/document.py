"""A report of runs: one HTML file that a person can mail, without scripts and other files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commonweal import __version__
from commonweal.analysis.compare import Result
from commonweal.analysis.comparison import Comparison
from commonweal.analysis.gains import ClientGain, gains
from commonweal.analysis.labels import by_label, find_runs, seed_of
from commonweal.base.errors import RunError
from commonweal.base.plain import flat
from commonweal.record.record import Record
from commonweal.report import figures, html
from commonweal.report.clients import client_lines
from commonweal.report.comparison import answer, layout, summarize, verdict, worth_sentences
from commonweal.report.figures import Drawing, Picture
from commonweal.report.formats import cell_rows, points
from commonweal.report.html import Html, join, tag
from commonweal.report.run_table import fallback_notes

__all__ = ["Report", "collect", "render"]

MOST_ROWS = 200  # of a table of numbers
MOST_NAMES = 10  # clients that a sentence names
MOST_PICTURES = 12  # heat maps and regrets

STYLE = """
:root { color-scheme: light; }
body { font: 1rem/1.5 system-ui, sans-serif; color: #111; background: #fff; margin: 0 auto;
  max-width: 60rem; padding: 1rem; overflow-wrap: anywhere; }
p, figcaption, li { max-width: 46rem; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #767676; }
h3 { font-size: 1.05rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
.scroll:focus { outline: 2px solid #0072b2; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right;
  white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; min-width: 4rem; }
tbody th, thead th:first-child { text-align: left; font-weight: 600; }
figure { margin: 1.5rem 0; }
svg { display: block; width: 100%; max-width: 34rem; height: auto; }
figcaption { margin: .4rem 0; }
summary { cursor: pointer; color: #00507d; padding: .4rem 0; }
pre { overflow-x: auto; background: #f4f4f4; padding: .8rem; font-size: .85rem; }
nav ul { padding-left: 1.2rem; }
a { color: #00507d; }
@media print { details > * { display: block; } }
"""


@dataclass(frozen=True, eq=False)
class Report:
    """What a report is made of."""

    runs: dict[str, list[Record]]  # by label, the first is what others are compared with
    results: list[Result]  # over the seeds that all labels have
    baselines: list[Result]  # clients alone and pooled rows, where they were run
    left_out: list[str]  # sentences

    @property
    def federated(self) -> dict[str, list[Record]]:
        """The runs without those of the baselines, unless there are no others."""
        known = {each.label for each in self.baselines}
        return {label: runs for label, runs in self.runs.items() if label not in known}

    @property
    def score(self) -> str:
        return str(next(iter(self.runs.values()))[0].facts.score)


def collect(folders: Sequence[str | Path]) -> Report:
    """Read the runs in some folders and what they give over the seeds that all of them have."""
    left_out = []
    shown = []
    for record in find_runs(folders):
        if record.evaluated:
            shown.append(record)
            left_out += [f"{record.folder}: {note}." for note in fallback_notes(record)]
            if not record.finished:
                total = record.experiment.get("rounds")
                left_out.append(f"{record.folder}: {len(record.rounds)} of {total} rounds so far.")
        else:
            left_out.append(f"{record.folder} is left out: no round has been evaluated yet.")
    if not shown:
        raise RunError(f"no run in {_listed(folders)} has been evaluated: nothing to report")
    runs = _baseline_first(by_label(shown))
    comparison = Comparison.of(runs)
    for label, records in runs.items():
        compared = set(map(seed_of, comparison.records[label]))
        beyond = sorted(seed_of(record) for record in records if seed_of(record) not in compared)
        if beyond:
            left_out.append(f"{label}: seeds {beyond} are left out, as other labels lack them.")
    return Report(comparison.records, comparison.results, comparison.baselines, left_out)


def _listed(folders: Sequence[str | Path]) -> str:
    return ", ".join(repr(str(folder)) for folder in folders)


def _baseline_first(runs: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """FedAvg first, if it is among them: others are compared with it."""
    first = [label for label in runs if label.split(" ")[0] == "fedavg"]
    return {label: runs[label] for label in [*first, *(each for each in runs if each not in first)]}


def render(report: Report, title: str) -> str:
    """The report as an HTML page."""
    sections = [
        _comparison(report),
        _worth(report),
        _clients(report),
        _rounds(report),
        _weights(report),
        _regret(report),
        _experiment(report),
        _runs(report),
    ]
    kept = [section for section in sections if section is not None]
    body = join(
        [
            tag("header", tag("h1", title), *_introduction(report)),
            _contents(kept),
            tag("main", *(section.html for section in kept)),
            tag("footer", tag("p", f"Written by commonweal {__version__}.")),
        ],
        "\n",
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, "\n", tag("body", body), lang="en") + "\n"


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    html: Html


def _section(name: str, title: str, *content: str) -> Section:
    whole = tag("section", tag("h2", title), *content, id=name)
    return Section(name, title, Html(whole + "\n"))


def _contents(sections: Sequence[Section]) -> Html:
    links = [tag("li", tag("a", each.title, href=f"#{each.name}")) for each in sections]
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _introduction(report: Report) -> list[Html]:
    first = next(iter(report.runs.values()))[0]
    dataset = first.experiment.get("dataset", {})
    name = dataset.get("name", "own rows") if isinstance(dataset, Mapping) else str(dataset)
    seeds = ", ".join(str(seed_of(record)) for record in next(iter(report.runs.values())))
    facts = (
        f"{name}: {first.facts.clients} clients, {first.experiment.get('rounds')} rounds; "
        f"{', '.join(report.runs)}; seeds {seeds}. The score is {report.score} on test rows."
    )
    return [tag("p", facts), *(tag("p", sentence) for sentence in report.left_out)]


# Sections


def _comparison(report: Report) -> Section:
    grid = layout(summarize(report.results, report.score))
    header = ["method", *(column.title for column in grid.figures)]
    content = [html.table(grid.title, header, cell_rows(grid, grid.figures, "{}"))]
    if grid.differences:
        header = ["method", *(column.title for column in grid.differences)]
        rows = cell_rows(grid, grid.differences, "{}")[1:]
        content.append(html.table("Differences", header, rows))
    content += [tag("p", f"{note[0].upper()}{note[1:]}.") for note in grid.notes]
    base, *others = report.results
    content += [tag("p", verdict(base, other, report.score)) for other in others]
    return _section("comparison", "The comparison", *content)


def _worth(report: Report) -> Section | None:
    """Who is better off than with local training."""
    summary = summarize(report.results, report.score, baselines=report.baselines)
    if not summary.gains:
        return None
    sentences = [answer(summary), *worth_sentences(summary)]
    content = [tag("p", sentence) for sentence in sentences]
    grid = layout(summary)
    header = ["method", *(column.title for column in grid.against_local)]
    rows = cell_rows(grid, grid.against_local, "{}")
    content.append(html.table("Compared with local training", header, rows))
    return _section("worth", "Worth it, for whom: compared with local training", *content)


def _clients(report: Report) -> Section:
    lines = client_lines(report.results, report.baselines, report.score)
    content = [html.figure(figures.clients(lines), "clients-figure", MOST_ROWS)]
    base, *others = report.results
    for other in others:
        change = gains(base, other)
        content.append(tag("h3", f"{change.label} compared with {base.label}"))
        content.append(tag("p", _who("gained", change.better, report.score)))
        content.append(tag("p", _who("lost", change.worse, report.score)))
        if change.unclear:
            clients = "client" if change.unclear == 1 else "clients"
            content.append(tag("p", f"{change.unclear} {clients}: no significant difference."))
    return _section("clients", "Clients: who gained, who lost", *content)


def _who(what: str, clients: Sequence[ClientGain], score: str) -> str:
    if not clients:
        return f"Nobody {what} significantly."
    named = ", ".join(f"{c.client} {points(c.gain, score)}" for c in clients[:MOST_NAMES])
    more = f", and {len(clients) - MOST_NAMES} more" if len(clients) > MOST_NAMES else ""
    return f"{len(clients)} {what} significantly: {named}{more}."


def _rounds(report: Report) -> Section:
    picture = figures.rounds(report.federated)
    return _section(
        "rounds", "Scores over rounds", html.figure(picture, "rounds-figure", MOST_ROWS)
    )


def _weights(report: Report) -> Section | None:
    pictures = _pictures(report, _draw_weights)
    if not pictures:
        return None
    note = (
        "The first seed of each label. A weight of 1 is an equal share of the cohort's update; "
        "clients with more than 1 were favoured by the rule. Labels whose weights are always equal "
        "are left out."
    )
    drawn = [html.figure(p, f"weights-{i}", MOST_ROWS) for i, p in enumerate(pictures)]
    return _section("weights", "Weights: whom the rule favoured", tag("p", note), *drawn)


def _draw_weights(record: Record, label: str) -> Picture:
    if figures.relative_weights(record).are_equal:
        raise RunError(f"{label} gives equal weights: nothing to see")
    return figures.weights(record, label)


def _regret(report: Report) -> Section | None:
    pictures = _pictures(report, figures.regret)  # FedAvg's is 0 throughout: nothing to see
    pictures = [each for each in pictures if any(float(row[1]) for row in each.rows)]
    if not pictures:
        return None
    drawn = [html.figure(p, f"regret-{i}", MOST_ROWS) for i, p in enumerate(pictures)]
    return _section("regret", "Regret", tag("p", "The first seed of each label."), *drawn)


def _pictures(report: Report, draw: Drawing) -> list[Picture]:
    """A picture of the first run of each label, where it has one."""
    found = []
    for label, records in report.federated.items():
        try:
            found.append(draw(records[0], label))
        except RunError:  # a rule without weights, or without a regret
            continue
    return found[:MOST_PICTURES]


def _experiment(report: Report) -> Section:
    first_label, *labels = report.runs
    first = report.runs[first_label][0]
    toml = (first.folder / "experiment.toml").read_text(encoding="utf-8")
    content = [tag("p", f"{first_label}, in full:"), tag("pre", tag("code", toml))]
    for label in labels:
        changed = _changed(first, report.runs[label][0])
        content += [tag("p", f"{label} differs in:"), tag("pre", tag("code", changed))]
    return _section("experiment", "The experiment", *content)


def _changed(first: Record, other: Record) -> str:
    before = flat(first.experiment)
    after = flat(other.experiment)
    lines = [f"{key} = {value!r}" for key, value in after.items() if before.get(key) != value]
    lines += [f"without {key}" for key in before if key not in after]
    return "\n".join(lines)


FACTS = ("commonweal", "torch", "python", "engine", "vectorize")


def _runs(report: Report) -> Section:
    header = ["folder", "label", "seed", "rounds", *FACTS, "warnings", "replies not used"]
    rows = []
    for label, records in report.runs.items():
        for record in records:
            known = record.facts.table()
            facts = [str(known.get(key, "-")) for key in FACTS]
            warned = sum(len(each.warnings) for each in record.rounds)
            dropped = sum(len(each.dropped) for each in record.rounds)
            rounds = f"{len(record.rounds)} of {record.experiment.get('rounds')}"
            counts = [str(warned), str(dropped)]
            seed = str(seed_of(record))
            rows.append([str(record.folder), label, seed, rounds, *facts, *counts])
    return _section("runs", "Versions and seeds", html.table("Runs", header, rows))
