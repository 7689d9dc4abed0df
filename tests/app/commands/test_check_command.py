"""`commonweal check`: which properties of a rule or client method hold, or which is broken."""

from pathlib import Path

import pytest

from command_helpers import Command, mistake

RULES = """
from dataclasses import dataclass, replace
import torch
from commonweal import Decision, Rule


@dataclass(frozen=True)
class MaxMin(Rule):
    \"\"\"weights_i ~ 1 for the largest loss, else share\"\"\"

    share: float = 0.5

    def __call__(self, reports, state):
        losses = reports.losses.double()
        raw = torch.full_like(losses, self.share)
        raw[losses == losses.max()] = 1
        return Decision(raw / raw.sum(), state)


@dataclass(frozen=True)
class Half(Rule):
    \"\"\"half of the weights of uniform\"\"\"

    def __call__(self, reports, state):
        size = len(reports.ids)
        return Decision(torch.full((size,), 0.5 / size, dtype=torch.float64), state)


class Neither:
    pass
"""


@pytest.fixture
def rules_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_rules.py"
    path.write_text(RULES)
    return path


def test_check_names_the_properties_that_hold(command: Command, rules_file: Path) -> None:
    own = "./my_rules.py:MaxMin"
    for name in (own, f"{own}(share=0.2)", "term", "guarded(rule=afl)"):
        result = command("check", name)
        assert (result.code, result.err) == (0, ""), name
        lines = result.out.splitlines()
        assert len(lines) > 10 and "ok  pure" in lines, name
    assert command("check", "term", "--quiet").out == ""


def test_check_takes_client_methods_too(command: Command) -> None:
    for name in ("sgd", "ditto(lam=0.5)", "commonweal.clients.ditto:Ditto"):
        result = command("check", name)
        assert (result.code, result.err) == (0, ""), name
        lines = result.out.splitlines()
        assert len(lines) > 5 and all(line.startswith("ok  ") for line in lines), name


def test_check_names_the_broken_property(command: Command, rules_file: Path) -> None:
    said = mistake(command("check", "./my_rules.py:Half"))
    assert said == "rule Half fails the check 'mixing': mixing is true, but the weights sum to 0.5"


def test_check_of_something_else_is_one_line(command: Command, rules_file: Path) -> None:
    assert "no subclass of Rule" in mistake(command("check", "./my_rules.py:Neither"))
    assert "did you mean 'term'?" in mistake(command("check", "trem"))
    assert "cannot be used" in mistake(command("check", "./none.py:Rule"))
