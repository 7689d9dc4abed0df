"""An extension of griffe, which reads docstrings for mkdocstrings."""

import re

import griffe

__all__ = ["Extension"]

EXAMPLE = re.compile(r"(^>>> .*?(?=\n\n|\Z)|`[^`\n]+`)", re.M | re.S)


class Extension(griffe.Extension):
    """Show doctests outside of an Examples section as code, and `<` as text."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = "".join(_shown(p) for p in EXAMPLE.split(obj.docstring.value))


def _shown(piece: str) -> str:
    if piece.startswith(">>>"):
        return f"```pycon\n{piece}\n```"
    return piece if piece.startswith("`") else re.sub(r"<(?=\S)", "&lt;", piece)
