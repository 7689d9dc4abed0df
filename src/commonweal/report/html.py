"""HTML that cannot be broken by what is written into it: text is escaped unless it is `Html`."""

import re
from collections.abc import Iterable, Sequence

from commonweal.base.text import shortened, shown
from commonweal.report.figures import Picture, draw
from commonweal.report.formats import Column, cell_rows, header

VOID = ("meta",)  # elements without content
NAME = 200  # characters of a client's or a method's name
MOST_ROWS = 200  # of a picture's numbers, from both ends


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
    given = ""
    for key, value in attributes.items():
        given += f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table whose first column names its rows. It scrolls by itself on narrow screens."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in titles))
    lines = []
    for first, *cells in rows:
        name = first if isinstance(first, Html) else shortened(first, NAME)
        lines.append(tag("tr", tag("th", name, scope="row"), *(tag("td", c) for c in cells)))
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *lines))
    # A region that scrolls must be reachable by the keyboard.
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def columns(caption: str, labels: Iterable[str], columns: Sequence[Column]) -> Html:
    """A table of methods in which the significantly best cells are bold."""
    return table(caption, header(columns), cell_rows(labels, columns, strong, minus))


def strong(text: str) -> Html:
    return tag("strong", text)


def minus(text: str) -> str:
    """A text whose negative numbers have a minus sign instead of a hyphen."""
    return re.sub(r"(^|[\s\[(])-(?=\d)", "\\1\N{MINUS SIGN}", text)


def figures(pictures: Iterable[Picture], name: str) -> list[Html]:
    """Pictures, numbered by their names."""
    return [figure(picture, f"{name}-{i}") for i, picture in enumerate(pictures)]


def figure(picture: Picture, name: str) -> Html:
    """A picture as SVG with a unique name, title and description, and its numbers to unfold."""
    rows = list(picture.rows)
    caption = picture.title
    if len(rows) > MOST_ROWS:
        half = MOST_ROWS // 2
        caption += f" (the first and last {half} of {len(rows)} lines)"
        rows = [*rows[:half], *rows[-half:]]
    numbers = tag("details", tag("summary", "The numbers"), table(caption, picture.header, rows))
    description = tag("figcaption", picture.description)
    return tag("figure", _svg(picture, name), description, numbers, id=name)


def _svg(picture: Picture, name: str) -> Html:
    drawn = draw(picture.figure, "svg", salt=name).decode()
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    start = re.search(r"<svg\b[^>]*>", drawn)
    assert start is not None, "matplotlib wrote no SVG"
    box = re.search(r'viewBox="[^"]*"', start[0])
    title = tag("title", shown(picture.title), id=f"{name}-title")
    description = tag("desc", shown(picture.description), id=f"{name}-desc")
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{box[0] if box else ""} role="img" aria-labelledby="{name}-title {name}-desc">'
    )
    # Groups are called figure_1, patch_2, ...: ids must be unique on a page.
    body = re.sub(r'<g id="[^"]*"', "<g", drawn[start.end() :])
    return Html(opening + title + description + body)
