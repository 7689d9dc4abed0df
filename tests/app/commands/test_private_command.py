"""Private runs by the command: what is refused, and what is printed before the first round."""

from pathlib import Path

import pytest

from command_helpers import Command, mistake

BASE = """
dataset = { name = "synthetic", clients = 30 }
sampler = "poisson"
cohort = 10
rounds = 2
algorithm = { name = "private", noise = 1.0, entropy = "seed" }
"""


@pytest.fixture
def private(tmp_path: Path) -> Path:
    path = tmp_path / "private.toml"
    path.write_text(BASE)
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["rule=adafed"], "updates aaggff-d"),
        (["rule=fedmgda"], "updates"),
        (["rule=afl"], "others aaggff-d"),
        (["rule=qfedavg"], "term"),
        (["rule=owa"], "cvar"),
        (["rule=vred"], "semi-vred"),
        (["rule=guarded(rule=fedavg)"], "aaggff-d"),
        (["rule=term(relative=false)"], "relative = true"),
        (["rule=aaggff-d(scale=spacing)"], "number as scale"),
        (["sampler=uniform"], "fixed size poisson cohort"),
        (["sampler=size"], "poisson"),
        (["client=scaffold"], "scaffold server fedprox"),
        (["client=blend"], "mixing 'mix' noise"),
        (["client=blend(rejoin=false)", "rounds=10"], "'mix' 'ditto'"),
        (["client=choice", "rounds=3"], "'choose' noise"),
        (["validation=0.2"], "validation best round"),
        (["validation=0.2", "patience=3"], "patience"),
        (["channels=clip(norm=1)"], "channels"),
        (["algorithm.epsilon=8"], "epsilon noise one"),
        (["algorithm.noise=0"], "noise above 0"),
        (["algorithm.delta=0.1"], "delta below"),
        (["algorithm.quantile=2"], "quantile none"),
        (["dataset=students", "cohort=all", "sampler=uniform"], "statistics public numbers"),
    ],
)
def test_what_would_break_the_promise_is_refused(
    command: Command, private: Path, changes: list[str], words: str
) -> None:
    message = mistake(command("run", private, *changes, "-o", "run"))
    assert message.startswith("private")
    for word in words.split():
        assert word in message
    assert not Path("run").exists()


def test_what_epsilon_costs_is_shown_before_the_run(command: Command, private: Path) -> None:
    said = command("run", private, "-o", "run", width=4000)
    assert said.code == 0
    assert "simulated promise" in said.err
    assert "noise of a round is" in said.err
    shown = command("show", "run", width=4000).out
    assert "simulated promise" in shown and "run/private" in shown
    assert "worst 5 %" not in shown
    assert "worst 5 %" in command("show", "run/private", width=4000).out


def test_an_experiment_is_explained_before_it_runs(command: Command, private: Path) -> None:
    shown = command("show", private, "algorithm.entropy=system", width=4000).out
    assert "epsilon" in shown and "r = z H sqrt(d) / S" in shown


def test_twenty_silos_are_hopeless(command: Command, private: Path) -> None:
    changes = ["dataset.clients=20", "cohort=all", "rounds=40", "dataset.features=50"]
    changes.append("algorithm={name='private', epsilon=8.0}")
    shown = command("show", private, *changes, width=4000)
    assert "hopeless" in shown.out.lower()


def test_a_comparison_notes_different_promises(command: Command, private: Path) -> None:
    compared = ["--rules", "fedavg", "--seeds", "1", "--no-baselines", "-o", "runs"]
    varied = command("compare", private, *compared, "--vary", "algorithm.noise=1.0,2.0")
    assert varied.code == 0, varied.err
    note = " ".join((varied.out + varied.err).split())
    assert "these methods promise different privacy" in note
    assert note.count("epsilon = ") == 2
    equal = command("compare", private, *compared[:-1], "equal")
    assert "different privacy" not in equal.out + equal.err
