"""What the commands and snippets of a page print, as the page shows it, at 80 columns.

A block of text after a command or a snippet, under `<!-- prints -->`, has what it prints, and under
`<!-- prints 1-3 7- -->` these lines of it, with `...` where lines are left out. `make outputs`
writes the blocks, and the tests of the pages compare them.
"""

import math
import os
import re
from pathlib import Path

SHOWN = re.compile(
    r"(?:^    (?P<command>(?:commonweal|python) .*)\n"
    r"|^```python\n(?P<snippet>(?:(?!^```).*\n)+)```\n)"
    r"\n<!-- prints(?P<lines>[ \d-]*) -->\n\n```text\n(?P<text>(?:(?!^```).*\n)*)```$",
    re.M,
)
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def shown(page: str) -> dict[str, str]:
    """The commands and snippets of a page whose output it shows, with the output."""
    return {_source(found): found["text"] for found in SHOWN.finditer(page)}


def selected(printed: str, lines: str) -> str:
    """Lines of an output, such as those of `1-3 7-`; without blanks at their ends."""
    all_lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    text, last = "", 0
    for part in lines.split() or ["1-"]:
        first, dash, end = part.partition("-")
        stop = int(end) if end else len(all_lines) if dash else int(first)
        text += "...\n" if int(first) > last + 1 else ""
        text += "".join(line + "\n" for line in all_lines[int(first) - 1 : stop])
        last = stop
    return text + ("...\n" if last < len(all_lines) else "")


def check(page: Path, printed: dict[str, str]) -> None:
    """Compare the blocks of a page with what was printed, or write them (`make outputs`)."""
    text = page.read_text(encoding="utf-8")
    if os.environ.get("COMMONWEAL_WRITE_OUTPUTS"):
        page.write_text(SHOWN.sub(lambda found: _rewritten(found, printed), text), encoding="utf-8")
        return
    for found in SHOWN.finditer(text):
        now = selected(printed[_source(found)], found["lines"])
        differs = f"{page.name} shows another output than this of {_source(found)!r}"
        assert same(found["text"], now), f"{differs} (`make outputs` writes it):\n{now}"


def same(one: str, other: str) -> bool:
    """Equal but for rounding: other processors and versions of torch round differently."""
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (one, other)]
    words = [NUMBER.sub("0", re.sub(r"\s+", " ", text)) for text in (one, other)]
    return words[0] == words[1] and all(
        math.isclose(a, b, rel_tol=0.01) for a, b in zip(*numbers, strict=True)
    )


def _source(found: re.Match[str]) -> str:
    return found["command"] or found["snippet"]


def _rewritten(found: re.Match[str], printed: dict[str, str]) -> str:
    head = found[0][: found.start("text") - found.start()]
    return head + selected(printed[_source(found)], found["lines"]) + "```"
