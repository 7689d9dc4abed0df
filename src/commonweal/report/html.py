"""Pages from templates, which cannot be broken by what is written into them."""

import re
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from commonweal.base.text import shortened, shown
from commonweal.report.figures import Picture, draw

NAME = 200  # characters of a client's or a method's name
MOST_ROWS = 200  # of a picture's numbers, from both ends


def fill(template: str, **values: object) -> str:
    """A template with values. All text is escaped, and has no control characters."""
    return _environment().get_template(template).render(**values)


def style() -> Markup:
    """The style sheet of the report."""
    environment = _environment()
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, "report.css")
    return Markup(source)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("commonweal.report"),
        autoescape=True,
        finalize=_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["minus"] = minus
    environment.filters["name"] = lambda name: shortened(name, NAME)
    return environment


def _text(value: object) -> Markup:
    """Any value as HTML."""
    if isinstance(value, Markup):
        return value
    return Markup(shown(str(value), "html", lines=True))


def minus(value: object) -> str:
    """Numbers with minus signs instead of hyphens."""
    return re.sub(r"(^|[\s\[(])-(?=\d)", "\\1\N{MINUS SIGN}", str(value))


@dataclass(frozen=True)
class Figure:
    """A picture on a page, with a name that no other has."""

    name: str
    picture: Picture

    @property
    def caption(self) -> str:
        """The title of the numbers, and how many of them are shown."""
        number = len(self.picture.rows)
        if number <= MOST_ROWS:
            return self.picture.title
        return f"{self.picture.title} (the first and last {MOST_ROWS // 2} of {number} lines)"

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The numbers, from both ends where there are too many."""
        rows = list(self.picture.rows)
        half = MOST_ROWS // 2
        return rows if len(rows) <= MOST_ROWS else [*rows[:half], *rows[-half:]]

    @property
    def svg(self) -> Markup:
        """The picture as SVG with title and description."""
        drawn = draw(self.picture.figure, "svg", salt=self.name).decode()
        drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
        start = re.search(r"<svg\b[^>]*>", drawn)
        assert start is not None, "matplotlib wrote no SVG"
        box = re.search(r'viewBox="[^"]*"', start[0])
        # Groups are called figure_1, patch_2, ...: ids must be unique on a page.
        body = re.sub(r'<g id="[^"]*"', "<g", drawn[start.end() :])
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'{box[0] if box else ""} role="img" '
            f'aria-labelledby="{self.name}-title {self.name}-desc">'
        )
        title, description = _text(self.picture.title), _text(self.picture.description)
        return Markup(
            f'{opening}<title id="{self.name}-title">{title}</title>'
            f'<desc id="{self.name}-desc">{description}</desc>{body}'
        )
