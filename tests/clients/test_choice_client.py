"""choice: what clients take inside a run is what `choose` takes over three runs."""

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import commonweal as cw
from commonweal.base.errors import ConfigError
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import Round, run
from commonweal.protocols.algorithm import Request
from commonweal.record.record import Record
from commonweal.report.run_table import result, run_summary
from commonweal.task.task import Task
from run_helpers import states_of

SETTINGS: dict[str, Any] = {"batch": 5, "lr": 0.1}


def table(path: Path) -> Path:
    """Clients that agree, and one that calls the classes the other way round."""
    rng = np.random.default_rng(3)
    owner = np.repeat(list("abcdef"), 60)
    x = rng.normal(size=(360, 3))
    y = (x[:, 0] + 0.7 * rng.normal(size=360) > 0) ^ (owner == "b")
    lines = ["client,u,v,w,label"]
    for name, row, label in zip(owner, x, y, strict=True):
        lines.append(",".join([name, *(f"{value:.4f}" for value in row), f"is{int(label)}"]))
    path.write_text("\n".join(lines))
    return path


def experiment(path: Path, client: dict[str, Any], validation: float = 0.3) -> cw.Experiment:
    dataset = {"name": "table", "path": str(path), "label": "label", "client": "client"}
    return cw.Experiment(
        dataset=dataset,
        model={"name": "mlp", "hidden": [6]},
        client=SETTINGS | client,
        rounds=5,
        evaluate_every=5,
        validation=validation,
        seed=2,
    )


def last(what: cw.Experiment, out: Path | None = None) -> Round:
    *_, done = run(what, out=out)
    return done


@pytest.mark.parametrize("how", ["safe", "likely", "proved"])
def test_clients_take_what_choose_takes_over_three_runs(how: Any, tmp_path: Path) -> None:
    path = table(tmp_path / "table.csv")
    folder = tmp_path / "runs"
    for name in ("alone", "sgd", "fine-tune"):
        last(experiment(path, {"name": name}), folder / name)
    chosen = cw.choose(folder, how=how, refit=False)
    inside = last(experiment(path, {"name": "choice", "how": how}))
    names = inside.job.population.names
    named = {"alone": "alone", "fedavg": "global", "fine-tune": "tuned"}
    expected = {line.client: named[line.taken] for line in chosen.clients}
    taken = {}
    for k, state in states_of(inside.job.engine).items():
        one_hot = state["taken"].tolist()
        assert sorted(one_hot) == [0.0, 0.0, 1.0]
        taken[names[k]] = ("alone", "global", "tuned")[one_hot.index(1.0)]
    assert taken == expected
    if how == "likely":
        assert len(set(taken.values())) > 1
    assert inside.evaluation is not None and inside.evaluation.personal is not None
    scores = dict(zip(names, inside.evaluation.personal.score.tolist(), strict=True))
    result = chosen.by_how[how]
    for name, score in zip(result.clients, result.scores[0], strict=True):
        assert scores[name] == pytest.approx(score)


def test_the_reply_has_the_choice_and_nothing_else(tmp_path: Path) -> None:
    done = last(experiment(table(tmp_path / "table.csv"), {"name": "choice"}))
    algorithm, engine = done.job.algorithm, done.job.engine
    message = algorithm.message(done.state)
    replies = engine.collect(algorithm, Request(torch.arange(6), message, "choose"))
    assert {name: tuple(value.shape) for name, value in replies.values.items()} == {"taken": (6, 3)}


def test_it_needs_validation_samples_and_losses_by_sample() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    f = Federation.from_arrays(x, (x[:, 0] > 0).astype(int), np.repeat(["a", "b"], 30))
    *_, done = run(Task(nn.Linear(2, 2)), f, client={"name": "choice"}, rounds=2)
    assert any("validation = 0.2" in warning for warning in done.warnings)
    assert all(
        state["taken"].tolist() == [1, 0, 0] for state in states_of(done.job.engine).values()
    )
    with pytest.raises(ConfigError, match="how = 'sure'"):
        list(run(Task(nn.Linear(2, 2)), f, client={"name": "choice", "how": "sure"}, rounds=2))
    values = Federation.from_arrays(x, x[:, 0], np.repeat(["a", "b"], 30))
    method = {"name": "choice", "how": "proved"}
    with pytest.raises(ConfigError, match="use blend"):
        list(run(Task(nn.Linear(2, 1), loss="squared"), values, client=method, rounds=2))


def test_the_record_counts_who_takes_what(tmp_path: Path) -> None:
    what = experiment(table(tmp_path / "table.csv"), {"name": "choice", "how": "likely"})
    done = last(what, tmp_path / "run")
    counts = {"alone": 0, "global": 0, "tuned": 0}
    for state in states_of(done.job.engine).values():
        counts[list(counts)[int(state["taken"].argmax())]] += 1
    record = Record.read(tmp_path / "run")
    assert record.facts.taken == run_summary(record)["taken"] == counts
    assert sum(counts.values()) == 6 and counts["alone"] < 6
    written = (tmp_path / "run/run.json").read_bytes()
    assert list(run(what, out=tmp_path / "run", resume=True)) == []
    assert (tmp_path / "run/run.json").read_bytes() == written
    text = StringIO()
    console = Console(file=text, width=200)
    console.print(result(record))
    shown = ", ".join(f"{count} {name}" for name, count in counts.items())
    assert f"what clients take: {shown}" in text.getvalue()
