"""A site's policy: read completely or not at all, and checked at every reply of the simulator."""

import json
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from commonweal.base.errors import ConfigError, PolicyError, RunError
from commonweal.config.experiment import Experiment
from commonweal.config.policy import Policy, read_policy
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_experiment, with_validation
from commonweal.protocols.algorithm import Request
from commonweal.record.record import Record

TEXT = """\
min_rows = 20
min_count = 5
purposes = ["describe", "train", "evaluate"]
metrics = ["accuracy"]
rounds_per_day = 100
"""


def policy_file(folder: Path, text: str = TEXT) -> str:
    path = folder / "policy.toml"
    path.write_text(text)
    return str(path)


def test_half_a_file_is_an_error(tmp_path: Path) -> None:
    """Cut anywhere, it is refused: never read as a laxer policy."""
    assert read_policy(policy_file(tmp_path)).min_rows == 20
    for end in range(len(TEXT)):
        with pytest.raises(ConfigError, match="policy"):
            read_policy(policy_file(tmp_path, TEXT[:end]))


@pytest.mark.parametrize(
    "changed",
    [
        TEXT + "min_row = 5\n",
        TEXT.replace("20", "0"),
        TEXT.replace("20", '"20"'),
        TEXT.replace("20", "true"),
        TEXT.replace("100", "0"),
        TEXT.replace("100", '"any"'),
        TEXT.replace('["accuracy"]', '"accuracy"'),
        TEXT + "min_rows = 1\n",
        TEXT + "\ufeff\n",
    ],
)
def test_a_mistake_is_an_error(tmp_path: Path, changed: str) -> None:
    with pytest.raises(ConfigError, match="policy"):
        read_policy(policy_file(tmp_path, changed))


def test_a_file_that_is_missing_stops_the_run(tmp_path: Path) -> None:
    given = Experiment(dataset="vowel", policy=str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        job_from_experiment(given)


def test_what_is_permitted() -> None:
    policy = Policy(
        min_rows=20, min_count=5, purposes=("train",), metrics=("auroc",), rounds_per_day=2
    )
    policy.check_request("train", ["auroc"], 2)
    policy.check_reply(20, [0, 5])
    for purpose, metrics, count in (("tune", [], 1), ("train", ["f1"], 1), ("train", [], 3)):
        with pytest.raises(PolicyError):
            policy.check_request(purpose, metrics, count)
    for rows, counts in ((19, []), (20, [4]), (0, [])):
        with pytest.raises(PolicyError):
            policy.check_reply(rows, counts)


def of_sizes(sizes: list[int]) -> Federation:
    """Clients of two classes, of so many rows."""
    rng = np.random.default_rng(0)
    owner = np.repeat([f"c{k}" for k in range(len(sizes))], sizes)
    x = rng.normal(size=(len(owner), 3)).astype(np.float32)
    return Federation.from_arrays(x, (x[:, 0] > 0).astype(np.int64), owner, test=0.2)


ONLY = '["describe", "train", "evaluate"]'
ASKED = [  # methods whose requests have every purpose
    {"rule": "aaggff-s"},
    {"rule": "fedavg", "client": "blend"},
    {"rule": "fedavg", "client": "choice", "validation": 0.2},
    {"rule": "term", "algorithm": {"name": "two-phase"}},
    {"algorithm": "drfa"},
    {"algorithm": "boosting"},
    {"algorithm": "boosting", "client": "blend", "validation": 0.2},
    {"algorithm": {"name": "averaging", "loss": "batch"}, "client": {"name": "sgd", "batch": 8}},
]


@pytest.mark.parametrize("parts", ASKED)
def test_no_value_over_few_rows_crosses_the_engine(
    tmp_path: Path, parts: dict[str, object]
) -> None:
    """Where all purposes are permitted, a client answers as without a policy or not at all."""
    text = TEXT.replace(ONLY, json.dumps(PURPOSES))
    path = policy_file(tmp_path, text)
    given = Experiment(dataset="vowel", rounds=2, policy=path, **parts)
    federation = with_validation(of_sizes([12, 40, 130, 160]), given)
    small = {
        name
        for name, size in zip(federation.names, federation.train.sizes.tolist(), strict=True)
        if size < 20
    }
    assert small
    job = job_from_experiment(given, federation)
    assert isinstance(job.engine, Simulator)
    crossed = []
    whole = parts.get("algorithm") != {"name": "averaging", "loss": "batch"}
    collect = job.engine.collect

    def watched(algorithm: object, request: Request) -> object:
        replies = collect(job.algorithm, request)
        assert not {job.population.names[k] for k in replies.clients.tolist()} & small
        if request.purpose in ("count", "histogram"):  # cells of single rows
            assert len(replies.clients) == 0
        assert whole or len(replies.clients) == 0  # losses of 8 samples
        crossed.append(request.purpose)
        return replies

    job.engine.collect = watched  # type: ignore[method-assign, assignment]
    stops = suppress(RunError) if "boosting" in str(parts) else nullcontext()  # without bins
    with stops:
        for done in rounds.run(job, out=tmp_path / "run"):
            sizes = done.evaluation.sizes  # type: ignore[union-attr]
            assert ((sizes == 0) | (sizes >= 20)).all()
            assert all("policy: " in reason for reason in done.dropped.values())
    assert crossed


PURPOSES = ["describe", "train", "evaluate", "loss", "weigh", "mix", "tune", "choose", "fit"]
PURPOSES += ["retrain", "count", "histogram", "median"]


def test_a_unique_diagnosis_does_not_reach_the_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["client,age,diagnosis,died"]
    for k in range(240):
        word = "zebra-fever" if k == 7 else ["flu", "asthma", "gout"][int(rng.integers(3))]
        lines.append(f"c{k % 3},{rng.normal(60, 9):.3f},{word},{('no', 'yes')[k % 2]}")
    table = tmp_path / "t.csv"
    table.write_text("\n".join(lines) + "\n")
    folder = tmp_path / "run"
    dataset = {"name": "table", "path": str(table), "label": "died", "test": "last"}
    for policy, found in ((policy_file(tmp_path), False), ("", True)):
        given = Experiment(dataset=dataset, rounds=2, policy=policy, rule="aaggff-s")
        list(rounds.run(job_from_experiment(given), out=folder, force=True))
        written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert (b"zebra" in written) == found
        assert b"asthma" in written
        ages = [line.split(",")[1].encode() for line in lines[1:]]
        if policy:
            assert not any(age in written for age in (min(ages), max(ages)))
    assert Record.read(folder).rounds[-1].metrics


def test_a_policy_that_refuses_nothing_changes_nothing(tmp_path: Path) -> None:
    lax = 'min_rows = 1\nmin_count = 1\npurposes = ["train", "evaluate"]\n'
    path = policy_file(tmp_path, lax + 'metrics = "all"\nrounds_per_day = "all"\n')
    models = []
    for policy in ("", path):
        given = Experiment(dataset="vowel", rule="term", client="ditto", rounds=2, policy=policy)
        models.append([done.state["w"] for done in rounds.run(job_from_experiment(given))][-1])
    torch.testing.assert_close(*models, rtol=1e-4, atol=1e-6)


def test_refusals_are_recorded(tmp_path: Path) -> None:
    path = policy_file(tmp_path, TEXT.replace("100", "1").replace('"train", ', ""))
    given = Experiment(dataset="vowel", rounds=1, policy=path)
    list(rounds.run(job_from_experiment(given), out=tmp_path / "run"))
    dropped = Record.read(tmp_path / "run").rounds[0].dropped
    assert dropped and set(dropped.values()) == {
        "policy: purpose 'train' is not permitted, only describe, evaluate"
    }
