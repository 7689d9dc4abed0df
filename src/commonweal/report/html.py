"""HTML that cannot be broken by what is written into it: text is escaped unless it is `Html`."""

import re
from collections.abc import Iterable, Sequence

from commonweal.base.text import shown
from commonweal.report.figures import Picture, draw

__all__ = ["Html", "figure", "join", "table", "tag"]

VOID = ("meta",)  # elements without content


class Html(str):
    """A piece of HTML, as opposed to text."""

    __slots__ = ()


def text(value: str) -> Html:
    """Text as HTML."""
    return value if isinstance(value, Html) else Html(shown(value, "html", lines=True))


def join(pieces: Iterable[str], between: str = "") -> Html:
    return Html(between.join(text(piece) for piece in pieces))


def tag(name: str, /, *children: str, **attributes: str) -> Html:
    """An element. An underscore in an attribute's name stands for a hyphen, or for nothing.

    >>> tag("th", "a < b", scope="col")
    '<th scope="col">a &lt; b</th>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items()
    )
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table whose first column names its rows. It scrolls by itself on narrow screens."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    lines = []
    for first, *cells in rows:
        lines.append(tag("tr", tag("th", first, scope="row"), *(tag("td", c) for c in cells)))
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *lines))
    # A region that scrolls must be reachable by the keyboard.
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def figure(picture: Picture, name: str, most_rows: int) -> Html:
    """A picture as SVG with title and description, and its numbers to unfold.

    name: unique on the page; most_rows: of the numbers that are shown, from both ends
    """
    drawn = _svg(picture, name)
    shown = ends(picture.rows, most_rows)
    caption = picture.title
    if len(shown) < len(picture.rows):
        caption += f" (the first and last {most_rows // 2} of {len(picture.rows)} lines)"
    numbers = tag("details", tag("summary", "The numbers"), table(caption, picture.header, shown))
    return tag("figure", drawn, tag("figcaption", picture.description), numbers, id=name)


def ends(rows: Sequence[tuple[str, ...]], most: int) -> list[tuple[str, ...]]:
    half = most // 2
    return list(rows) if len(rows) <= most else [*rows[:half], *rows[-half:]]


def _svg(picture: Picture, name: str) -> Html:
    drawn = draw(picture.figure, "svg", salt=name).decode()
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    start = re.search(r"<svg\b[^>]*>", drawn)
    assert start is not None, "matplotlib wrote no SVG"
    box = re.search(r'viewBox="[^"]*"', start[0])
    labels = join(
        [
            tag("title", shown(picture.title), id=f"{name}-title"),
            tag("desc", shown(picture.description), id=f"{name}-desc"),
        ]
    )
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{box[0] if box else ""} role="img" aria-labelledby="{name}-title {name}-desc">'
    )
    # Groups are called figure_1, patch_2, ...: ids must be unique on a page.
    body = re.sub(r'<g id="[^"]*"', "<g", drawn[start.end() :])
    return Html(opening + labels + body)
