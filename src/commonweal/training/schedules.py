"""Schedules: how a learning rate changes over the rounds, as a formula of t that a file can hold.

With lr = 0.5, schedule = "1/t" gives 0.5, 0.25, 0.167, ... in the rounds 1, 2, 3; "0.99^(t-1)"
decays, "1.01^(t-1)" grows, "1/sqrt(t)" and "max(0.1, 1 - t/100)" do what they say.
"""

import ast
import math
import operator
from collections.abc import Callable

from commonweal.base.errors import ConfigError

LONGEST = 200  # characters
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: math.pow,
}
FUNCTIONS: dict[str, Callable[..., float]] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "cos": math.cos,
    "min": min,
    "max": max,
}
WRONG = (ConfigError, ValueError, TypeError, ArithmeticError, SyntaxError, RecursionError)
EXAMPLES = "write a formula of the round t, such as 1/t, 1/sqrt(t) or 0.99^(t-1)"


def factor(schedule: str | None, t: int) -> float:
    """Return the factor of the learning rate in round t = 1, 2, ...; 1 without a schedule.

    >>> [factor("1/t", t) for t in (1, 2, 4)]
    [1.0, 0.5, 0.25]
    """
    if schedule is None:
        return 1.0
    try:
        if len(schedule) > LONGEST:
            raise ConfigError(f"it has more than {LONGEST} characters")
        formula = ast.parse(schedule.strip().replace("^", "**"), mode="eval").body
        value = _value(formula, float(t))
    except WRONG as error:
        raise ConfigError(f"schedule = {schedule[:60]!r}: {error}; {EXAMPLES}") from None
    if not 0 < value < math.inf:
        raise ConfigError(
            f"schedule = {schedule!r} is {value:g} in round {t}: it must be above 0 and finite in "
            "every round, as by max(0.01, ...)"
        )
    return value


def check_schedule(schedule: str | None, rounds: int) -> None:
    """Raise ConfigError for a schedule that is no formula, or not above 0 in one of the rounds."""
    if schedule is not None:
        for t in range(1, rounds + 1):
            factor(schedule, t)


def _value(node: ast.expr, t: float) -> float:
    if isinstance(node, ast.Constant) and not isinstance(node.value, bool):
        if isinstance(node.value, int | float):
            return float(node.value)
        raise ConfigError(f"{ast.unparse(node)!r} is not a number")
    if isinstance(node, ast.Name) and node.id in ("t", "pi"):
        return t if node.id == "t" else math.pi
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, t)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left, t), _value(node.right, t))
    if isinstance(node, ast.Call) and not node.keywords:
        function = FUNCTIONS.get(ast.unparse(node.func))
        if function is not None:
            return function(*(_value(argument, t) for argument in node.args))
    raise ConfigError(f"{ast.unparse(node)!r} is not known")
