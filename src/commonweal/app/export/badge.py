"""A badge: how well a model serves its clients on average and at worst, as a small SVG picture."""

from commonweal.base.text import shown
from commonweal.record.record import Record
from commonweal.study.units import show_score

HEIGHT = 20
PER_CHARACTER = 6.6  # pixels of a character of 11 pixels, on average
COLOURS = ("#444", "#2a6f97", "#9a3412")  # the score, the mean, the worst


def badge_cells(record: Record) -> tuple[str, str, str]:
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
    score, mean, worst = badge_cells(record)
    return f"{score}: {mean}, {worst} over {len(record.clients().names)} clients"


def badge(record: Record) -> str:
    """The badge as SVG, which needs no other file."""
    parts = []
    left = 0.0
    for text, colour in zip(badge_cells(record), COLOURS, strict=True):
        width = round(PER_CHARACTER * len(text) + 12)
        parts.append(f'<rect x="{left:g}" width="{width}" height="{HEIGHT}" fill="{colour}"/>')
        middle = f"{left + width / 2:g}"
        parts.append(f'<text x="{middle}" y="14" text-anchor="middle">{shown(text, "html")}</text>')
        left += width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left:g}" height="{HEIGHT}" role="img">'
        f"<title>{shown(sentence(record), 'html')}</title>"
        f'<g font-family="sans-serif" font-size="11" fill="#fff">{"".join(parts)}</g></svg>\n'
    )
