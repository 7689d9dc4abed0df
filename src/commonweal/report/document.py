"""A report of runs: one HTML file that a person can mail, without scripts and other files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from commonweal import __version__
from commonweal.analysis.labels import seed_of
from commonweal.base.errors import RunError, TrustError
from commonweal.base.plain import flat
from commonweal.base.text import shortened
from commonweal.record.record import Record
from commonweal.report import figures, html
from commonweal.report.clients import partner_weights
from commonweal.report.compare import Comparison
from commonweal.report.figures import Drawing, Picture
from commonweal.report.html import Html, join, minus, strong, tag
from commonweal.report.overview import Overview, overview

__all__ = ["experiment_text", "render"]

MOST_ROWS = 200  # of a table of numbers
MOST_PICTURES = 12  # heat maps and regrets

STYLE = """
:root { color-scheme: light; --background: #fff; --text: #1b1f24; --muted: #57606a; --line: #d5d9df;
  --accent: #00507d; --shade: #f4f4f4; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --background: #14181d; --text: #eceff3; --muted: #9aa4b0;
    --line: #333a43; --accent: #7cc4f2; --shade: #1d2127; }
  svg { background: #fff; filter: invert(.92) hue-rotate(180deg); }
}
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--background);
  margin: 0 auto; max-width: 60rem; padding: 1rem; overflow-wrap: anywhere; }
p, figcaption, li, h1 { max-width: 44rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .2rem 0 .6rem; }
h2 { font-size: 1.25rem; margin-top: 2rem; border-bottom: 1px solid var(--line); }
.about { color: var(--muted); margin: 0; }
.cards { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1rem 0; }
.cards > div { flex: 1 1 14rem; border: 1px solid var(--line); border-radius: 8px;
  padding: .8rem 1rem; color: var(--muted); font-size: .9rem; }
.cards strong { color: var(--text); font-size: 1.4rem; margin-right: .5rem; }
.cards h2 { font-size: .9rem; border: 0; margin: 0; }
.cards p { margin: .2rem 0 0; }
.scroll { overflow-x: auto; margin: 1rem 0; }
.scroll:focus { outline: 2px solid var(--accent); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; min-width: 4rem; }
tbody th, thead th:first-child { text-align: left; font-weight: 600; }
figure { margin: 1.5rem 0; }
svg { display: block; width: 100%; max-width: 44rem; height: auto; }
figcaption { margin: .4rem 0; color: var(--muted); }
summary { cursor: pointer; color: var(--accent); padding: .4rem 0; }
pre { overflow-x: auto; background: var(--shade); padding: .8rem; font-size: .85rem; }
nav ul { padding-left: 1.2rem; }
a { color: var(--accent); }
@page { size: A4; margin: 15mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  nav, summary, header figcaption { display: none; }
  h1 { font-size: 15pt; }
  p { break-inside: avoid; }
  h2, caption, h2 + p { break-after: avoid; }
  .cards { flex-wrap: nowrap; gap: .6rem; margin: .6rem 0; }
  .cards > div { flex: 1 1 0; font-size: 8.5pt; padding: .4rem .6rem; }
  .cards strong { font-size: 12pt; }
  .scroll { overflow: visible; }
  th, td { white-space: normal; padding: .15rem .3rem; font-size: 8.5pt; }
  thead th { min-width: 0; overflow-wrap: normal; }
  pre { white-space: pre-wrap; }
  figure, table, .cards > div { break-inside: avoid; }
  figure { margin: .6rem 0; }
  svg { max-height: 95mm; }
  header svg { max-height: 120mm; }
}
"""


def render(comparison: Comparison, title: str, trust: bool = False) -> str:
    """The report as an HTML page: the answer and the client plot first, then the details.

    Args:
        comparison: What to report.
        title: The heading.
        trust: Import rules of the user's own that the runs name, which their regret needs.
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
    shown = [section for section in sections if section is not None]
    body = join(
        [
            tag("header", *_first_page(comparison, summary, title)),
            _contents(shown),
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
        tag("style", Html(STYLE)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, "\n", tag("body", body), lang="en") + "\n"


def _first_page(comparison: Comparison, summary: Overview, title: str) -> list[Html]:
    """Answer, three numbers, picture and table."""
    first = next(iter(comparison.records.values()))[0]
    seeds = ", ".join(str(seed_of(r)) for r in next(iter(comparison.records.values())))
    facts = (
        f"{summary.name}: {first.facts.clients} clients, {first.experiment.get('rounds')} rounds, "
        f"seeds {seeds}."
    )
    cards = []
    for card in summary.cards:
        value = tag("strong", minus(card.value))
        note = tag("p", minus(card.note))
        cards.append(tag("div", tag("h2", card.title), value, card.more, note))
    advice = [
        tag("code", text) if text.startswith("commonweal ") else text for text in summary.advice
    ]
    return [
        tag("p", f"{title} · {facts}", class_="about"),
        tag("h1", summary.sentence),
        tag("p", summary.about),
        *([tag("p", join(advice, " "))] if advice else []),
        *(tag("p", sentence) for sentence in comparison.failures),
        tag("div", *cards, class_="cards"),
        html.figure(comparison.client_picture(), "clients-figure", MOST_ROWS),
        html.columns("Methods", summary.table.labels, summary.table.columns),
    ]


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    html: Html


def _section(name: str, title: str, *content: str) -> Section:
    whole = tag("section", tag("h2", title), *content, id=name)
    return Section(name, title, Html(whole + "\n"))


def _contents(sections: Sequence[Section]) -> Html:
    links = [tag("li", tag("a", section.title, href=f"#{section.name}")) for section in sections]
    return tag("nav", tag("ul", *links), aria_label="Contents")


# Sections


def _details(comparison: Comparison, summary: Overview) -> Section:
    """Who gained and who lost, all columns, and notes."""
    content = []
    for named in summary.named:
        clients = ", ".join(f"{shortened(name)} {minus(gain)}" for name, gain in named.clients)
        more = f" and {named.more} more" if named.more else ""
        content.append(tag("p", f"{named.title}: {clients}{more}."))
    content += [tag("p", minus(note)) for note in (*summary.sentences, *summary.notes)]
    # A row per number: the table stays narrow enough to be printed.
    rows = []
    for column in summary.more.columns:
        row = [minus(cell) for cell in column.cells]
        if column.best is not None:
            row[column.best] = strong(row[column.best])
        rows.append([column.title, *row])
    content.append(html.table("All numbers", ["metric", *summary.more.labels], rows))
    return _section("details", "Who gained, who lost, and all numbers", *content)


def _rounds(comparison: Comparison) -> Section | None:
    records = [record for records in comparison.methods.values() for record in records]
    if all(len(record.evaluated) < 2 for record in records):
        return None
    picture = comparison.round_picture()
    return _section(
        "rounds", "Scores over rounds", html.figure(picture, "rounds-figure", MOST_ROWS)
    )


def _weights(comparison: Comparison) -> Section | None:
    pictures = _pictures(comparison, _draw_weights)
    if not pictures:
        return None
    note = (
        "The first seed of each method. A weight of 1 is an equal share of the cohort's update; "
        "the rule favoured clients with more than 1. Methods whose weights never change are left "
        "out."
    )
    drawn = [html.figure(p, f"weights-{i}", MOST_ROWS) for i, p in enumerate(pictures)]
    return _section("weights", "Weights: whom the rule favoured", tag("p", note), *drawn)


def _draw_weights(record: Record, label: str) -> Picture:
    if figures.relative_weights(record).are_constant:
        raise RunError(f"the weights of {label} never change: nothing to see")
    return figures.weights(record, label)


def _partners(comparison: Comparison) -> Section | None:
    """How much each client's partners count, where predictions are mixed."""
    columns: dict[str, dict[str, float]] = {}
    for label, records in comparison.methods.items():
        seeds = [weights for weights in map(partner_weights, records) if weights]
        if seeds:
            names = [name for name in seeds[0] if all(name in weights for weights in seeds)]
            columns[label] = {name: fmean(weights[name] for weights in seeds) for name in names}
    if not columns:
        return None
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = []
    for name in names:
        cells = [f"{column[name]:.2f}" if name in column else "" for column in columns.values()]
        rows.append([name, *cells])
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
            return figures.regret(record, label, trust)
        except TrustError as error:
            untrusted.append(label)
            raise RunError(str(error)) from None

    pictures = _pictures(comparison, draw)  # FedAvg's is 0 throughout: nothing to see
    pictures = [picture for picture in pictures if any(float(row[1]) for row in picture.rows)]
    if not pictures and not untrusted:
        return None
    note = "The first seed of each method."
    if untrusted:
        note += f" Left out: {', '.join(untrusted)} (written with --trust, the report imports it)."
    drawn = [html.figure(p, f"regret-{i}", MOST_ROWS) for i, p in enumerate(pictures)]
    return _section("regret", "Regret", tag("p", note), *drawn)


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
    first_label, *labels = comparison.records
    first = comparison.records[first_label][0]
    texts = {f"{first_label}, in full:": experiment_text(first)}
    for label in labels:
        texts[f"{label} differs in:"] = _changed(first, comparison.records[label][0])
    content = []
    for title, text in texts.items():
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
    lines = [f"{key} = {value!r}" for key, value in after.items() if before.get(key) != value]
    lines += [f"without {key}" for key in before if key not in after]
    return "\n".join(lines)


FACTS = ("commonweal", "torch", "python", "engine", "vectorize")


def _runs(comparison: Comparison) -> Section:
    header = ["folder", "method", "seed", "rounds", "warnings", "replies not used"]
    rows = []
    versions: dict[str, int] = {}  # how many runs have them
    for label, records in comparison.records.items():
        for record in records:
            known = record.facts.table()
            text = ", ".join(f"{key} {known.get(key, '-')}" for key in FACTS)
            versions[text] = versions.get(text, 0) + 1
            warned = sum(len(done.warnings) for done in record.rounds)
            dropped = sum(len(done.dropped) for done in record.rounds)
            rounds = f"{len(record.rounds)} of {record.experiment.get('rounds')}"
            seed = str(seed_of(record))
            rows.append([str(record.folder), label, seed, rounds, str(warned), str(dropped)])
    facts = [tag("p", f"{count} runs: {text}.") for text, count in versions.items()]
    return _section("runs", "Versions and seeds", *facts, html.table("Runs", header, rows))
