"""Choosing among finished runs: by validation samples only, with clear errors, and saved."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import commonweal as cw
from commonweal.base.errors import ConfigError, RunError
from commonweal.clients.evidence import Evidence
from commonweal.clients.evidence import choose_by_client as choose_from_improvements
from commonweal.config.experiment import change, values
from commonweal.jobs.reopening import reopen
from commonweal.record.record import Record
from commonweal.study import choosing
from commonweal.study.choosing import Choice, chosen_model
from commonweal.study.compare import Step, run_cells
from commonweal.study.plan import Cell, baseline_cells, cells
from commonweal.task.uses import mixed_module

PROGRAM = '''
from dataclasses import replace

import numpy as np

from commonweal import Federation


def groups(poison: bool = False, seed: int = 0) -> Federation:
    """Four clients with one boundary and little data, two with the opposite boundary and much."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(6), [30, 30, 30, 30, 200, 200])
    x = rng.normal(size=(len(owner), 8))
    sign = np.where(owner < 4, 1.0, -1.0)
    y = (sign * x.sum(1) + 1.5 * rng.normal(size=len(owner)) > 0).astype(int)
    federation = Federation.from_arrays(x, y, owner, seed=seed)
    if poison:
        federation = replace(federation, test=replace(federation.test, y=1 - federation.test.y))
    return federation
'''

METHODS = "client=sgd,fine-tune,blend(rejoin=false)"


def write_runs(
    folder: Path,
    changes: Sequence[str] = (),
    vary: Sequence[str] = (METHODS,),
    seeds: int = 2,
    baselines: bool = True,
) -> Path:
    """A comparison of FedAvg's clients with local training, below folder/runs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.py").write_text(PROGRAM)
    (folder / "e.toml").write_text(
        'dataset = { name = "./data.py:groups" }\nrounds = 6\nmodel = "logistic"\n'
        'client = { name = "sgd", lr = 0.5, batch = 10 }\nvalidation = 0.4\n'
    )
    base = change(values(folder / "e.toml"), changes)
    plan = cells(base, ["fedavg"], seeds, vary, folder / "runs")
    if baselines:
        plan += baseline_cells(base, seeds, folder / "runs")
    failures = [step.failure for step in run_cells(plan) if step.failure]
    assert failures == []
    return folder / "runs"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("choosing"))


@pytest.fixture(scope="module")
def safe(runs: Path) -> Choice:
    return cw.choose(runs, how="safe", trust=True)


def test_candidates_are_methods_by_their_short_names_without_pooled_training(safe: Choice) -> None:
    assert list(safe.candidates) == ["alone", "blend", "fine-tune", "fedavg"]
    assert [each.personal for each in safe.candidates.values()] == [True, True, True, False]
    assert safe.seeds == (0, 1) and len(safe.clients) == 12


def test_the_losses_are_those_of_what_a_client_uses_on_its_validation_samples(
    runs: Path, safe: Choice
) -> None:
    """Against whole modules that predict one client's samples."""
    losses = {}
    candidates = cw.choose(runs, trust=True, refit=False).candidates
    for name in candidates:
        job, state = reopen(candidates[name].runs[1].folder, trust=True)
        assert job.local is not None and job.local.federation.validation is not None
        rows = job.local.federation.validation
        a, b = rows.offsets[2:4].tolist()
        module = job.task.module_of(job.algorithm.model(state))
        if candidates[name].personal:
            uses = job.algorithm.uses(job.algorithm.message(state), job.local.states[2])
            module = mixed_module(job.task, job.task.module, uses)
        with torch.no_grad():
            p = module(rows.x[a:b]).log_softmax(1)
        losses[name] = -p.gather(1, rows.y[a:b, None])[:, 0].double().numpy()
    improvements = {n: losses["alone"] - own for n, own in losses.items() if n != "alone"}
    (line,) = [each for each in safe.clients if (each.client, each.seed) == ("2", 1)]
    assert line.taken == choose_from_improvements([improvements])[0]
    own = improvements[line.compared]
    assert line.samples == len(own)
    assert (line.better, line.worse) == ((own > 1e-6).sum(), (own < -1e-6).sum())
    assert line.improvement == pytest.approx(own.mean(), abs=1e-5)
    assert line.error == pytest.approx(own.std(ddof=1) / np.sqrt(len(own)), abs=1e-5)


def test_the_ways_differ_in_caution_and_some_clients_leave_local_training(
    runs: Path, safe: Choice
) -> None:
    local = {how: taken["alone"] for how, taken in safe.taken.items()}
    assert local["likely"] <= local["safe"] <= local["proved"]
    assert local["likely"] < 12
    likely = cw.choose(runs, how="likely", trust=True)
    assert likely.taken == safe.taken
    assert sum(line.taken == "alone" for line in likely.clients) == local["likely"]
    assert all(line.improvement > 0 for line in likely.clients if line.taken != "alone")


def test_all_clients_are_given_blend_unless_another_is_better_for_them_together(
    runs: Path, safe: Choice
) -> None:
    """Two clients call the classes the other way round: no global model is better for all."""
    pooled = cw.choose(runs, trust=True)
    assert pooled.how == "pooled" and pooled.taken == safe.taken
    assert pooled.taken["pooled"] == {"blend": 12}
    assert {pooled.model_of(client).candidate for client in pooled.names} == {"blend"}
    assert {(each.base, each.seed) for each in pooled.pooled} == {("blend", 0), ("blend", 1)}
    assert all(each.limit <= 0 for each in pooled.pooled)


def test_a_blend_that_went_wrong_is_not_what_others_are_compared_with() -> None:
    """Its losses are not finite at one client: then local training is."""
    finite, broken = Evidence(np.ones(3), None), Evidence(np.array([1.0, np.inf, 1.0]), None)
    runs: dict[str, Any] = {}
    for name in ("alone", "blend"):
        runs[name] = SimpleNamespace(part=lambda key, name=name: name)
    clients = [{"alone": finite, "blend": finite}, {"alone": finite, "blend": broken}]
    assert choosing._base(runs, clients[:1]) == "blend"
    assert choosing._base(runs, clients) == "alone"


def test_scores_are_those_that_the_runs_recorded(safe: Choice) -> None:
    result = safe.by_how["safe"]
    for line in safe.clients:
        table = safe.candidates[line.taken].runs[line.seed].clients()
        evaluation = table.evaluation
        if safe.candidates[line.taken].personal:
            assert evaluation.personal is not None
            evaluation = evaluation.personal
        expected = float(evaluation.score[table.names.index(line.client)])
        own = result.scores[safe.seeds.index(line.seed), result.clients.index(line.client)]
        assert own == expected


def test_choosing_never_reads_test_labels(tmp_path: Path, safe: Choice) -> None:
    poisoned = cw.choose(write_runs(tmp_path, ["dataset.poison=true"]), how="safe", trust=True)
    assert poisoned.clients == safe.clients
    assert poisoned.taken == safe.taken
    assert poisoned.results["alone"].scores != pytest.approx(safe.results["alone"].scores)


def test_a_client_takes_what_it_took_in_most_seeds(safe: Choice, runs: Path) -> None:
    for client in safe.names:
        model = safe.model_of(client)
        votes = safe.votes(client)
        assert votes[model.candidate] == max(votes.values())
        assert model.folder.name == "refit"
        seed = int(model.folder.parent.name.removeprefix("seed-"))
        assert (client, seed, model.candidate) in [line[:3] for line in safe.clients]
        if votes["alone"] == max(votes.values()):
            assert model.candidate == "alone"
    with pytest.raises(ConfigError, match="no client '9'"):
        safe.model_of("9")


@pytest.mark.parametrize("method", ["alone", "fedavg", "fine-tune", "blend"])
def test_clients_use_models_of_all_samples(
    method: str, runs: Path, safe: Choice, tmp_path: Path
) -> None:
    """Against runs without validation samples, made apart; blend has them and takes them back."""
    plain = cw.choose(runs, how="safe", trust=True, refit=False)
    assert (plain.refit, safe.refit) == (False, True)
    assert (plain.clients, plain.taken) == (safe.clients, safe.taken)
    changes = ["client.rejoin=true"] if method == "blend" else ["validation=0"]
    for k, seed in enumerate(safe.seeds):
        first = plain.candidates[method].runs[seed].folder
        apart = cw.Experiment(**change(values(first / "experiment.toml"), changes))
        for _ in cw.run(apart, out=tmp_path / str(seed)):
            pass
        whole, before = used_scores(tmp_path / str(seed)), used_scores(first)
        assert whole != before
        for choice, expected in ((safe, whole), (plain, before)):
            scores = choice.results[method].scores[k]
            assert dict(zip(choice.names, scores, strict=True)) == expected
            chosen = choice.by_how["safe"]
            for line in choice.clients:
                if (line.seed, line.taken) == (seed, method):
                    column = chosen.clients.index(line.client)
                    assert chosen.scores[k, column] == expected[line.client]
        job, _ = reopen(first, trust=True)
        again, _ = reopen(safe.candidates[method].runs[seed].folder, trust=True)
        assert job.local is not None and again.local is not None
        test, same = job.local.federation.test, again.local.federation.test
        for a, b in ((test.x, same.x), (test.y, same.y), (test.offsets, same.offsets)):
            assert torch.equal(a, b)
        assert (again.local.federation.validation is None) == (method != "blend")


def used_scores(folder: Path) -> dict[str, float]:
    """Every client's score by what it uses."""
    table = Record.read(folder).clients()
    evaluation = table.evaluation.personal or table.evaluation
    return dict(zip(table.names, evaluation.score.tolist(), strict=True))


def test_training_on_all_samples_is_not_repeated(tmp_path: Path) -> None:
    folder = write_runs(tmp_path, ["rounds=2"], (), 1)

    def stop(plan: Sequence[Cell]) -> dict[Path, str]:
        next(iter(run_cells(plan)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cw.choose(folder, trust=True, train=stop)
    steps: list[Step] = []

    def count(plan: Sequence[Cell]) -> dict[Path, str]:
        steps.extend(run_cells(plan))
        return {}

    first = cw.choose(folder, trust=True, train=count)
    labels = [step.cell.label for step in steps]
    assert labels == ["alone, all samples", *["fedavg, all samples"] * 2]
    assert [step.round and step.round.number for step in steps] == [2, 1, 2]  # round 1 was saved
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("refit/*")}
    assert written
    steps.clear()
    second = cw.choose(folder, trust=True, train=count)
    assert [step.round for step in steps] == [None, None]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("refit/*")} == written
    assert list(second.candidates) == list(first.candidates) == ["alone", "fedavg"]
    with pytest.raises(RunError, match=r"lost its data.*--no-refit"):
        cw.choose(folder, trust=True, train=lambda plan: {plan[0].folder: "lost its data"})


def test_training_on_other_samples_is_an_error(tmp_path: Path) -> None:
    folder = write_runs(tmp_path, ["rounds=1"], (), 1)

    def train_on_fewer(plan: Sequence[Cell]) -> dict[Path, str]:
        for cell in plan:
            fewer = cell.experiment.model_copy(update={"validation": 0.1})
            for _ in cw.run(fewer, out=cell.folder):
                pass
        return {}

    with pytest.raises(RunError, match="the data changed since the runs"):
        cw.choose(folder, trust=True, train=train_on_fewer)


def test_local_training_that_needs_validation_samples_is_not_refitted(tmp_path: Path) -> None:
    folder = write_runs(tmp_path, ["rounds=2", "patience=2"], (), 1)
    choice = cw.choose(folder, trust=True)
    assert not choice.refit and not (folder / "alone/seed-0/refit").exists()
    assert any("patience needs validation samples" in note for note in choice.notes)


def test_the_choice_is_written_and_read(safe: Choice, runs: Path) -> None:
    path = safe.write(runs)
    saved = json.loads(path.read_text())
    assert saved["how"] == "safe" and len(saved["clients"]) == 12
    for client in safe.names:
        assert chosen_model(runs, client) == safe.model_of(client)
    assert len(safe.frame()["client"]) == 12
    path.write_text("{}")
    with pytest.raises(RunError, match="damaged"):
        chosen_model(runs, "0")


def test_runs_that_cannot_be_compared_are_errors(tmp_path: Path, runs: Path) -> None:
    short = ["rounds=1"]
    with pytest.raises(RunError, match=r"no validation samples.*validation=0\.2"):
        cw.choose(write_runs(tmp_path / "a", [*short, "validation=0.0"], (), 1), trust=True)
    with pytest.raises(RunError, match="no run of client = 'alone'"):
        cw.choose(write_runs(tmp_path / "b", short, (), 1, baselines=False), trust=True)
    rejoined = write_runs(tmp_path / "c", short, ["client=blend"], 1)
    with pytest.raises(RunError, match=r"client.rejoin=false"):
        cw.choose(rejoined, trust=True)
    choosing = write_runs(tmp_path / "e", short, ["client=choice"], 1)
    with pytest.raises(RunError, match="has chosen on its validation samples already"):
        cw.choose(choosing, trust=True)
    other = write_runs(tmp_path / "d", [*short, "validation=0.3"], (), 2, baselines=False)
    with pytest.raises(RunError, match="different samples"):
        cw.choose([runs, other], trust=True)
    with pytest.raises(ConfigError, match="safe"):
        cw.choose(runs, how="save")  # type: ignore[arg-type]


def test_auroc_is_proved_by_losses(tmp_path: Path) -> None:
    folder = write_runs(tmp_path, ["score=auroc", "rounds=2"], (), 1)
    choice = cw.choose(folder, how="proved", trust=True)
    assert any("auroc has no value per sample" in note for note in choice.notes)


def test_cox_keeps_local_training_unless_likely(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["site,age,marker,time,event"]
    for i in range(240):
        age, marker = rng.normal(size=2)
        time = rng.exponential(np.exp(-age - marker))
        lines.append(f"s{i % 6},{age:.3f},{marker:.3f},{time:.4f},{int(rng.random() < 0.8)}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    base = change(
        {"dataset": "table"},
        [
            f"dataset.path={tmp_path / 't.csv'}",
            "dataset.label=time,event",
            "dataset.client=site",
            "model=logistic",
            "rounds=3",
            "validation=0.3",
        ],
    )
    plan = [
        *cells(base, ["fedavg"], 1, [], tmp_path / "r"),
        *baseline_cells(base, 1, tmp_path / "r"),
    ]
    assert [step.failure for step in run_cells(plan) if step.failure] == []
    choice = cw.choose(tmp_path / "r", how="safe")
    assert choice.taken["safe"] == choice.taken["proved"] == {"alone": 6}
    assert choice.taken["likely"]["fedavg"] > 0
    assert any("Cox" in note for note in choice.notes)
    assert {line.samples for line in choice.clients} == {10}
    pooled = cw.choose(tmp_path / "r")
    assert not any("Cox" in note for note in pooled.notes)
    (evidence,) = pooled.pooled  # of clients' mean losses
    assert evidence.base == "alone" and math.isfinite(evidence.limit)
    expected = "fedavg" if evidence.limit > 0 else "alone"
    assert pooled.taken["pooled"] == {expected: 6}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"models": {"a": 3}}', '{"models": {"a": {}}}', "[" * 10**5]
)
def test_the_error_of_a_damaged_choice_names_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "choice.json").write_text(text)
    with pytest.raises(RunError, match=r"damaged .*: run commonweal choose again"):
        chosen_model(tmp_path, "a")
