"""Tables of cases: one test per question, not one per row."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

Test = Callable[..., None]


def cases(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test with every row of a table, and name all rows that fail.

    For questions whose rows take no files and change nothing: fixtures are shared by all rows.
    Two tables on one test give every combination.

    Args:
        names: The parameter that a row gives, or several.
        rows: Its values; with several parameters, a value for each of them.
    """
    keys = (names,) if isinstance(names, str) else tuple(names)
    table = [(row,) if isinstance(names, str) else tuple(row) for row in rows]
    assert table, "a table without rows tests nothing"

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            failures = []
            for row in table:
                given = dict(zip(keys, row, strict=True))
                try:
                    test(**fixtures, **given)
                except Exception as error:
                    error.add_note(f"in the case {given}")
                    failures.append(error)
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(table)} cases fail", failures)

        signature = inspect.signature(test)
        others = [p for name, p in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
