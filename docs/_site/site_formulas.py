"""Formulas of docstrings, which are plain text, as HTML with symbols, sub- and superscripts."""

import html
import re

__all__ = ["typeset"]

SYMBOLS = {"<=": "≤", ">=": "≥", "<-": "←", "->": "→", "~": "∝", "*": "·", " - ": " − "}
SYMBOLS |= {"...": "…", "..": "…", "sum": "∑", "sqrt": "√", "log2": "log<sub>2</sub>"}
SYMBOLS |= {"fbar": "<i>f̄</i>", "rbar": "<i>r̄</i>"}
GREEK = {"lam": "λ", "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε"}
GREEK |= {"theta": "θ", "tau": "τ", "mu": "μ", "nu": "ν", "rho": "ρ"}
PRODUCT = re.compile(r"<([^<>=]+), ([^<>=]+)>")  # of two vectors
SCRIPT = re.compile(r"([_^])(\((?:[^()]|\([^()]*\))*\)|[+]|[\w.]+)")
TOKEN = re.compile(
    r"(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)|(?P<word>[A-Za-z][A-Za-z0-9]*(?:'s)?)"
    r"|(?P<sign><=|>=|<-|->| - |\.\.\.|\.\.|[~*])|(?P<other>.)",
    re.S,
)


def typeset(formula: str) -> str:
    """A formula as HTML, in one line.

    >>> typeset("w_i ~ n_i^2")
    '<i>w</i><sub><i>i</i></sub> ∝ <i>n</i><sub><i>i</i></sub><sup>2</sup>'
    """
    text = PRODUCT.sub(r"⟨\1, \2⟩", " ".join(formula.split()))
    pieces = []
    end = 0
    for script in SCRIPT.finditer(text):
        tag = "sub" if script[1] == "_" else "sup"
        inner = script[2][1:-1] if script[2].startswith("(") else script[2]
        pieces += [_symbols(text[end : script.start()]), f"<{tag}>{_symbols(inner)}</{tag}>"]
        end = script.end()
    return "".join([*pieces, _symbols(text[end:])])


def _symbols(text: str) -> str:
    return "".join(_symbol(match) for match in TOKEN.finditer(text))


def _symbol(match: re.Match[str]) -> str:
    text = match[0]
    rest = match.string[match.end() :]
    if text in SYMBOLS and not (text == "sum" and rest.startswith((" to ", " of "))):  # a word
        return SYMBOLS[text]
    if text in GREEK:
        return f"<i>{GREEK[text]}</i>"
    if match.lastgroup == "word" and len(text) == 1 and (text != "a" or not rest):  # an article
        return f"<i>{text}</i>"
    return html.escape(text, quote=False).replace("|", "&#124;").replace("*", "&#42;")
