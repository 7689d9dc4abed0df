"""What every client method in the folder promises: any rule, any server step, any engine, any interruption."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from commonweal import catalog, randomness
from commonweal.engines.simulator import Simulator
from commonweal.errors import ConfigError
from commonweal.local import Local, alone
from commonweal.run import given, run
from personal_helpers import METHODS, averaging, client, contents, federation, sent, task

PARTS = [("aaggff-s", "sgd", "all"), ("aaggff-d", "sgd", 3), ("term", "yogi", 3)]


def job(name: str, rule: str = "fedavg", server: str = "sgd", cohort: Any = 3, norm: bool = False, **how: Any) -> Any:
    parts = {"rule": rule, "client": client(name), "server": server}
    return given(task(norm), federation(), **parts, rounds=4, cohort=cohort, evaluate_every=2, **how)


@pytest.mark.parametrize(("rule", "server", "cohort"), PARTS)
@pytest.mark.parametrize("name", METHODS)
def test_any_rule_and_step_runs_and_resumes_to_the_same_bytes(
    name: str, rule: str, server: str, cohort: Any, tmp_path: Path
) -> None:
    last = list(run(job(name, rule, server, cohort), out=tmp_path / "whole"))[-1]
    assert last.dropped == {} and not torch.equal(last.server["w"], task().initial)
    for stop in (1, 2):
        rounds: Iterator[Any] = run(job(name, rule, server, cohort), out=tmp_path / "part", resume=True)
        for _ in range(stop):
            next(rounds)
        rounds.close()  # type: ignore[attr-defined]
    assert len(list(run(job(name, rule, server, cohort), out=tmp_path / "part", resume=True))) == 1
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_engines_agree(name: str, norm: bool) -> None:
    if norm and name.startswith("superfed"):
        with pytest.raises(ConfigError, match="cannot mix models with BatchNorm, which Sequential has"):
            list(run(job(name, norm=norm)))
        return
    ways = []
    for mode in ("loop", "vmap", "chunked"):
        j = job(name, norm=norm, engine=mode)
        budget = 3000 if mode == "chunked" else j.simulator.budget
        object.__setattr__(j.simulator, "budget", budget)
        last = list(run(j))[-1]
        own = last.personal[0] if last.personal is not None else torch.empty(0)
        kept = [value.double().flatten() for row in j.simulator.kept.values() for value in row.values()]
        ways.append((last.server["w"], own, torch.cat([torch.empty(0).double(), *kept]), last.evaluation[0]))
    for other in ways[1:]:
        for a, b in zip(ways[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_job_that_is_run_again_begins_again(name: str, tmp_path: Path) -> None:
    j = job(name)
    for folder in ("first", "second"):
        list(run(j, out=tmp_path / folder))
    last = list(run(j))[-1]
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert torch.equal(last.server["w"], list(run(job(name)))[-1].server["w"])


@pytest.mark.parametrize("name", METHODS)
def test_an_interrupted_round_leaves_no_trace(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have kept what the third round gave them, then the server dies: the second is what is saved."""
    list(run(job(name), out=tmp_path / "whole"))
    j = job(name)
    rounds = run(j, out=tmp_path / "part")
    next(rounds), next(rounds)
    collect = Simulator.collect

    def dies(self: Any, *arguments: Any) -> Any:
        collect(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "collect", dies)
        with pytest.raises(KeyboardInterrupt):
            next(rounds)
    list(run(job(name), out=tmp_path / "part", resume=True))
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", METHODS)
def test_a_client_that_diverges_keeps_what_it_had(name: str) -> None:
    t, f, local = task(), federation(), client(name, lr=1e30)
    algorithm = averaging(local)
    simulator, server = Simulator(t, f, "loop"), algorithm.init(t, f.clients)
    replies = simulator.collect(algorithm, algorithm.ask(server), torch.tensor([0, 1]), 0)
    assert not replies["update"].isfinite().all()
    assert all(v.isfinite().all() for row in simulator.kept.values() for v in row.values() if v.is_floating_point())


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_reported_is_of_the_model_before_training(name: str) -> None:
    """By the received model, with the client's own part of it where it has one."""
    t, f, local = task(), federation(), client(name)
    algorithm = averaging(local)
    simulator, server = Simulator(t, f), algorithm.init(t, f.clients)
    for _ in range(2):
        seen, before = algorithm.ask(server), dict(simulator.kept)
        replies = simulator.collect(algorithm, seen, torch.arange(5), 0)
        for k in range(5):
            kept = before.get(k, local.keep(t, 0))
            private = local.private(t)
            w = seen["w"].clone()
            if private is not None:
                w[private] = kept["part"]
            own = f.train.of(k)
            expected = torch.nn.functional.cross_entropy(t.outputs(w, own.x), own.y)
            assert float(replies["loss"][k]) == pytest.approx(float(expected), rel=1e-5)
        server = algorithm.tell(t, server, torch.arange(5), replies, 5).server


@pytest.mark.parametrize("name", METHODS)
def test_the_file_says_what_it_is(name: str) -> None:
    entry = catalog.find("clients", name)
    source = inspect.getsourcefile(entry.factory)
    assert issubclass(entry.factory, Local) and source is not None
    assert len(Path(source).read_text().splitlines()) <= (80 if name != "sgd" else 400)
    for parameter in set(entry.parameters) - set(catalog.find("clients", "sgd").parameters):
        assert f"{parameter}:" in entry.details or f"{parameter}," in entry.details


@pytest.mark.parametrize("name", METHODS)
def test_a_visit_changes_nothing_it_was_given(name: str) -> None:
    t, f, local = task(), federation(), client(name)
    algorithm = averaging(local)
    seen = algorithm.ask(algorithm.init(t, 5) | {"round": torch.tensor(3)})
    before = {n: v.clone() for n, v in seen.items()}
    kept = {n: v[None] for n, v in local.keep(t, 7).items()}
    held = {n: v.clone() for n, v in kept.items()}
    stream = randomness.stream(0, 3, 0, randomness.TRAIN)
    algorithm.work(t, seen, kept, f.train, torch.tensor([2]), [stream], alone)
    assert all(torch.equal(seen[n], before[n]) for n in before) and all(torch.equal(kept[n], held[n]) for n in held)
    assert set(sent(t)) <= set(seen)
