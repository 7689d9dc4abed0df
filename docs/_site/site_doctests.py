"""An extension of griffe, which reads docstrings for mkdocstrings."""

import re

import griffe
from site_formulas import typeset

__all__ = ["Extension"]

FORMULAS = ("commonweal.rules.", "commonweal.clients.")  # whose docstrings begin with one
EXAMPLE = re.compile(r"(^>>> .*?(?=\n\n|\Z)|`[^`\n]+`)", re.M | re.S)


class Extension(griffe.Extension):
    """Show doctests outside of an Examples section as code, `<` as text, and typeset formulas."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is None:
            return
        first, gap, rest = obj.docstring.value.partition("\n\n")
        shown = "".join(_shown(piece) for piece in EXAMPLE.split(rest))
        if obj.is_class and obj.path.startswith(FORMULAS):
            first = typeset(first)
        else:
            first = "".join(_shown(piece) for piece in EXAMPLE.split(first))
        obj.docstring.value = first + gap + shown


def _shown(piece: str) -> str:
    if piece.startswith(">>>"):
        return f"```pycon\n{piece}\n```"
    return piece if piece.startswith("`") else re.sub(r"<(?=\S)", "&lt;", piece)
