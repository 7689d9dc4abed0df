"""A badge: how well a model serves its clients on average and at worst, as a small SVG picture."""

from commonweal.base.text import shown
from commonweal.record.record import Record
from commonweal.report.formats import show_score
from commonweal.report.html import tag

HEIGHT = 20
PER_CHARACTER = 6.6  # pixels of a character of 11 pixels, on average
COLOURS = ("#444", "#2a6f97", "#9a3412")  # the score, the mean, the worst


def cells(record: Record) -> tuple[str, str, str]:
    """The name of the score, its mean and its worst value over the clients.

    Of a personal method they are those of the clients' own models.
    """
    last = record.evaluated[-1]
    score = record.facts.score
    metrics = last.personal or last.metrics
    mean, worst = show_score(metrics["mean"], score, 1), show_score(metrics["worst"], score, 1)
    return shown(score), f"mean {mean}", f"worst {worst}"


def sentence(record: Record) -> str:
    """The badge in words."""
    score, mean, worst = cells(record)
    return f"{score}: {mean}, {worst} over {len(record.clients().names)} clients"


def badge(record: Record) -> str:
    """The badge as SVG, which needs no other file."""
    parts = []
    left = 0.0
    for text, colour in zip(cells(record), COLOURS, strict=True):
        width = round(PER_CHARACTER * len(text) + 12)
        box = {"x": f"{left:g}", "width": str(width), "height": str(HEIGHT), "fill": colour}
        parts.append(tag("rect", **box))
        middle = {"x": f"{left + width / 2:g}", "y": "14", "text-anchor": "middle"}
        parts.append(tag("text", text, **middle))
        left += width
    body = tag("g", *parts, **{"font-family": "sans-serif", "font-size": "11", "fill": "#fff"})
    title = tag("title", sentence(record))
    size = {"width": f"{left:g}", "height": str(HEIGHT), "role": "img"}
    return tag("svg", title, body, xmlns="http://www.w3.org/2000/svg", **size) + "\n"
