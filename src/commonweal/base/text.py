"""Names and other texts of data files, runs and clients, shown as text and as nothing else."""

import html
import json
import re
from typing import Literal

Form = Literal["plain", "markup", "html", "latex", "markdown", "json"]

FULL = 70  # characters from which on a line of a paragraph may be broken for its length
FORMULA = re.compile(r"'*[=+\-@\t\r]")  # a cell that a spreadsheet would compute, perhaps quoted
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "%": r"\%",
        "_": r"\_",
        "#": r"\#",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)
MARKDOWN = str.maketrans({c: "\\" + c for c in "\\|<>[]`*"})


def shown(text: str, form: Form = "plain", lines: bool = False) -> str:
    """A text as it may be printed: what is not printable is written as Python writes it.

    Control sequences of terminals, line separators, bidirectional and invisible characters and
    lone surrogates have no effect then, nor has the markup of the form.

    lines: keep line breaks

    >>> shown("a\\x1b[2Jb\\u202e")
    'a\\\\x1b[2Jb\\\\u202e'
    """
    if form == "json":
        return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    kept = "\n\t" if lines else ""
    plain = "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )
    if form == "markup":
        from rich.markup import escape

        return escape(plain)
    if form == "html":
        return html.escape(plain, quote=True)
    if form == "latex":
        return plain.translate(LATEX)
    return plain.translate(MARKDOWN) if form == "markdown" else plain


def shortened(name: str, length: int = 100) -> str:
    """A name as text of limited length, without control characters: SVG must not contain any."""
    name = shown(name[: length + 1])  # a name may have megabytes
    return name if len(name) <= length else name[: length - 1] + "…"


def reflowed(text: str) -> str:
    """Join long lines with those that continue them, for a terminal that wraps them itself."""
    joined: list[str] = []
    for line in text.split("\n"):
        continues = bool(joined) and line[:1].strip() != "" and len(joined[-1]) >= FULL
        if continues and not re.match(r"\w+(, \w+)*: ", line):
            joined[-1] += " " + line
        else:
            joined.append(line)
    return "\n".join(joined)


def quoted(cell: str) -> str:
    """A text for a CSV file that spreadsheets do not compute; `unquoted` inverts it.

    >>> quoted("=1+2"), quoted("-5"), unquoted("'=1+2")
    ("'=1+2", '-5', '=1+2')
    """
    is_formula = FORMULA.match(cell) and not NUMBER.fullmatch(cell)
    return "'" + cell if is_formula else cell


def unquoted(cell: str) -> str:
    """Invert `quoted`."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell[1:]) else cell
