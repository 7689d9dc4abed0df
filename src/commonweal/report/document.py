"""A report of runs: one HTML file that a person can mail, without scripts and other files."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from statistics import fmean

from commonweal import __version__
from commonweal.analysis.labels import seed_of
from commonweal.analysis.regret import of_run
from commonweal.base.errors import RunError, TrustError
from commonweal.base.plain import flat
from commonweal.base.text import shortened
from commonweal.record.record import Record
from commonweal.report import figures, html
from commonweal.report.clients import partner_weights
from commonweal.report.compare import Comparison
from commonweal.report.figures import Drawing, Picture
from commonweal.report.formats import cells_of
from commonweal.report.html import Html, join, minus, strong, tag
from commonweal.report.overview import Overview, overview

MOST_PICTURES = 12  # heat maps and regrets

STYLE = files("commonweal.report").joinpath("document.css").read_text(encoding="utf-8")


def render(comparison: Comparison, title: str, trust: bool = False) -> str:
    """The report as an HTML page: the answer and the client plot first, then the details.

    trust: import rules of the user's own that the runs name, which their regret needs
    """
    summary = overview(comparison)
    sections = [
        _details(comparison, summary),
        _rounds(comparison),
        _weights(comparison),
        _partners(comparison),
        _regret(comparison, trust),
        _experiment(comparison),
        _runs(comparison),
    ]
    shown = list(filter(None, sections))
    links = [tag("li", tag("a", section.title, href=f"#{section.name}")) for section in shown]
    body = join(
        [
            tag("header", *_first_page(comparison, summary, title)),
            tag("nav", tag("ul", *links), aria_label="Contents"),
            tag("main", *(section.html for section in shown)),
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
        tag("style", Html(f"\n{STYLE}")),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, "\n", tag("body", body), lang="en") + "\n"


def _first_page(comparison: Comparison, summary: Overview, title: str) -> list[Html]:
    """Answer, three numbers, picture and table."""
    first, *_ = runs = next(iter(comparison.records.values()))
    seeds = ", ".join(str(seed_of(record)) for record in runs)
    facts = (
        f"{summary.name}: {first.facts.clients} clients, {first.experiment.get('rounds')} rounds, "
        f"seeds {seeds}."
    )
    cards = []
    for card in summary.cards:
        value = strong(minus(card.value))
        note = tag("p", minus(card.note))
        cards.append(tag("div", tag("h2", card.title), value, card.more, note))
    advice = []
    for text in summary.advice:
        advice.append(tag("code", text) if text.startswith("commonweal ") else text)
    return [
        tag("p", f"{title} · {facts}", class_="about"),
        tag("h1", summary.sentence),
        tag("p", summary.about),
        *([tag("p", join(advice, " "))] if advice else []),
        *paragraphs(comparison.failures),
        tag("div", *cards, class_="cards"),
        html.figure(comparison.client_picture(), "clients-figure"),
        html.columns("Methods", summary.table.labels, summary.table.columns),
    ]


def paragraphs(texts: Iterable[str]) -> list[Html]:
    return [tag("p", text) for text in texts]


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    html: Html


def _section(name: str, title: str, *content: str) -> Section:
    whole = tag("section", tag("h2", title), *content, id=name)
    return Section(name, title, Html(whole + "\n"))


# Sections


def _details(comparison: Comparison, summary: Overview) -> Section:
    """Who gained and who lost, all columns, and notes."""
    content = []
    for named in summary.named:
        clients = ", ".join(f"{shortened(name)} {minus(gain)}" for name, gain in named.clients)
        more = f" and {named.more} more" if named.more else ""
        content.append(tag("p", f"{named.title}: {clients}{more}."))
    content += paragraphs(map(minus, (*summary.sentences, *summary.notes)))
    # A row per number: the table stays narrow enough to be printed.
    rows = []
    for column in summary.more.columns:
        rows.append([column.title, *cells_of(column, strong, minus)])
    content.append(html.table("All numbers", ["metric", *summary.more.labels], rows))
    return _section("details", "Who gained, who lost, and all numbers", *content)


def _rounds(comparison: Comparison) -> Section | None:
    for records in comparison.methods.values():
        if any(len(record.evaluated) > 1 for record in records):
            picture = html.figure(comparison.round_picture(), "rounds-figure")
            return _section("rounds", "Scores over rounds", picture)
    return None


def _weights(comparison: Comparison) -> Section | None:
    pictures = _pictures(comparison, _draw_weights)
    if not pictures:
        return None
    note = (
        "The first seed of each method. A weight of 1 is an equal share of the cohort's update; "
        "the rule favoured clients with more than 1. Methods whose weights never change are left "
        "out."
    )
    title = "Weights: whom the rule favoured"
    return _section("weights", title, tag("p", note), *html.figures(pictures, "weights"))


def _draw_weights(record: Record, label: str) -> Picture:
    if figures.relative_weights(record).are_constant:
        raise RunError(f"the weights of {label} never change: nothing to see")
    return figures.weights(record, label)


def _partners(comparison: Comparison) -> Section | None:
    """How much each client's partners count, where predictions are mixed."""
    columns: dict[str, dict[str, float]] = {}
    for label, records in comparison.methods.items():
        by_client: dict[str, list[float]] = {}
        seeds = list(filter(None, map(partner_weights, records)))
        for weights in seeds:
            for name, weight in weights.items():
                by_client.setdefault(name, []).append(weight)
        means = {name: fmean(w) for name, w in by_client.items() if len(w) == len(seeds)}
        if means:
            columns[label] = means
    if not columns:
        return None
    rows = []
    for name in dict.fromkeys(chain(*columns.values())):
        rows.append([name])
        for column in columns.values():
            rows[-1].append(f"{column[name]:.2f}" if name in column else "")
    note = (
        "How much the global and the fine-tuned model count in a client's predictions, as a mean "
        "over seeds. The rest is the weight of its local models."
    )
    table = html.table("Weight of partners by client", ["client", *columns], rows)
    return _section("partners", "Weight of partners", tag("p", note), table)


def _regret(comparison: Comparison, trust: bool) -> Section | None:
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

    pictures = _pictures(comparison, draw)
    if not pictures and not untrusted:
        return None
    note = "The first seed of each method."
    if untrusted:
        note += f" Left out: {', '.join(untrusted)} (written with --trust, the report imports it)."
    return _section("regret", "Regret", tag("p", note), *html.figures(pictures, "regret"))


def _pictures(comparison: Comparison, draw: Drawing) -> list[Picture]:
    """A picture of the first run of each label, where it has one."""
    pictures = []
    for label, records in comparison.methods.items():
        try:
            pictures.append(draw(records[0], label))
        except RunError:  # a rule without weights, or without a regret
            continue
    return pictures[:MOST_PICTURES]


def _experiment(comparison: Comparison) -> Section:
    first = comparison.first
    content = []
    for label, records in comparison.records.items():
        title, text = f"{label}, in full:", experiment_text(first)
        if records[0] is not first:
            title, text = f"{label} differs in:", _changed(first, records[0])
        content += [tag("p", title), tag("pre", tag("code", text), tabindex="0")]
    return _section("experiment", "The experiment", *content)


def experiment_text(record: Record) -> str:
    """A run's experiment as TOML, without the lines that name what is not set."""
    text = (record.folder / "experiment.toml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not re.fullmatch(r"# \w+ is not set", line)]
    return "\n".join(lines)


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


def _runs(comparison: Comparison) -> Section:
    header = ["folder", "method", "seed", "rounds", "warnings", "replies not used"]
    rows = []
    versions: Counter[str] = Counter()  # how many runs have them
    for label, records in comparison.records.items():
        for record in records:
            known = record.facts.table()
            text = ", ".join(f"{key} {known.get(key, '-')}" for key in FACTS)
            versions[text] += 1
            warned = sum(len(done.warnings) for done in record.rounds)
            dropped = sum(len(done.dropped) for done in record.rounds)
            rounds = f"{len(record.rounds)} of {record.experiment.get('rounds')}"
            seed = str(seed_of(record))
            rows.append([str(record.folder), label, seed, rounds, str(warned), str(dropped)])
    facts = paragraphs(f"{count} runs: {text}." for text, count in versions.items())
    return _section("runs", "Versions and seeds", *facts, html.table("Runs", header, rows))
