"""A client's visit against torch.optim.SGD on the plain module, fed with the very same batches."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from commonweal import local as local_module
from commonweal.algorithm import Averaging
from commonweal.errors import CommonwealError, ConfigError
from commonweal.federation import Federation
from commonweal.local import Local, Tensors, alone, many, measure, plan, visit
from commonweal.scores import SCORES
from commonweal.task import Task
from helpers import (
    SHAPES,
    Visitor,
    averaging,
    batches_of,
    close,
    federation,
    loaded,
    module,
    planned,
    stream,
    torch_loss,
    torch_sgd,
)

SIZES = {"a": 5, "b": 20, "c": 57, "d": 41}


def trained(local: Local, task: Task, f: Federation, client: int, round: int = 1) -> Tensor:
    """The vector that a client ends with, by the code under test."""
    seen = {"w": task.initial, "round": torch.tensor(round)}
    p = planned(local, task, f, [client], round=round)
    replies, kept = visit(local, task, seen, {}, f.train, p, alone)
    assert kept == {} and set(replies) == {"update"}
    return task.initial - replies["update"][0]


def by_torch(local: Local, task: Task, f: Federation, client: int, round: int = 1) -> Tensor:
    p = planned(local, task, f, [client], round=round)
    return torch_sgd(task, local, task.initial, f.train, batches_of(p), round)


LOCALS = {
    "plain": Local(),
    "epochs": Local(epochs=3, batch=7),
    "steps": Local(steps=11, batch=8),
    "full": Local(batch=0, epochs=4),
    "full steps": Local(batch=0, steps=3),
    "batches of one": Local(batch=1),
    "momentum": Local(epochs=2, batch=6, momentum=0.9, lr=0.05),
    "decay": Local(epochs=2, batch=6, weight_decay=0.1),
    "clip": Local(epochs=2, batch=6, clip=0.3),
    "clip that never bites": Local(epochs=2, batch=6, clip=1e6),
    "all": Local(epochs=2, batch=6, lr=0.05, momentum=0.8, weight_decay=0.05, clip=0.5, decay=0.5, decay_every=2),
}


@pytest.mark.parametrize("client", range(4))
@pytest.mark.parametrize("name", LOCALS)
def test_a_visit_is_torchs_sgd(name: str, client: int) -> None:
    task, f = Task(module("mlp")), federation(SIZES)
    close(trained(LOCALS[name], task, f, client), by_torch(LOCALS[name], task, f, client))


@pytest.mark.parametrize("kind", ["logistic", "norm", "cnn", "cnn-norm"])
@pytest.mark.parametrize("name", ["plain", "steps", "full", "all"])
def test_a_visit_is_torchs_sgd_for_every_kind_of_module(kind: str, name: str) -> None:
    task, f = Task(module(kind)), federation(SIZES, SHAPES[kind])
    for client in (0, 2, 3):
        got, want = trained(LOCALS[name], task, f, client), by_torch(LOCALS[name], task, f, client)
        close(got, want, rtol=1e-3, atol=1e-5)
        assert not torch.equal(got, task.initial)


@pytest.mark.parametrize(("criterion", "classes"), [("binary", 2), ("squared", 2)])
def test_a_visit_with_another_loss(criterion: str, classes: int) -> None:
    f = federation(SIZES, classes=classes)
    if criterion == "squared":
        f = Federation(*(type(p)(p.x, p.y + 0.5, p.offsets) for p in (f.train, f.test)), f.names, 1, "squared", "r2")
    task = Task(module("mlp", 1), criterion, "auroc" if criterion == "binary" else "r2")
    close(trained(LOCALS["all"], task, f, 2), by_torch(LOCALS["all"], task, f, 2))


@pytest.mark.parametrize("round", [1, 2, 3, 7])
def test_the_rate_falls_with_the_rounds(round: int) -> None:
    task, f = Task(module("mlp")), federation(SIZES)
    local = Local(lr=0.2, decay=0.5, decay_every=2)
    close(trained(local, task, f, 1, round), by_torch(local, task, f, 1, round))


def test_the_rate_by_hand() -> None:
    assert [Local(lr=1.0, decay=0.5, decay_every=3).rate(r) for r in range(1, 8)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    assert [Local(lr=0.1).rate(r) for r in (1, 50)] == [0.1, 0.1]
    assert Local(lr=2.0, decay=0.9).rate(3) == pytest.approx(2 * 0.81)


def test_a_visit_leaves_what_it_was_sent_alone() -> None:
    task, f = Task(module("norm")), federation(SIZES)
    before, x = task.initial.clone(), f.train.x.clone()
    trained(LOCALS["all"], task, f, 2)
    assert torch.equal(task.initial, before) and torch.equal(f.train.x, x)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_gradients_that_autograd_shares_are_not_written_over(rho: float) -> None:
    """Two vectors may get the very same tensor, and a vector one number many times."""
    g = torch.full((1, 1), 2.0).expand(1, 3)
    v = {"a": torch.zeros(1, 3), "b": torch.zeros(1, 3), "c": torch.zeros(1, 3)}
    local, memory, same = Local(momentum=rho, weight_decay=1.0), dict[str, Tensor](), torch.full((1, 3), 2.0)
    want, moved = torch.zeros(1, 3), torch.zeros(1, 3)
    for _ in range(3):
        v, memory = local.descend(v, {"a": same.clone(), "b": g, "c": g}, memory, lr=0.5)
        moved = rho * moved + 2.0 + want
        want = want - 0.5 * moved
        assert all(torch.allclose(v[name], want) for name in v) and float(g[0, 0]) == 2
    shared = local.descend({"a": want, "b": want}, {"a": same, "b": same}, {}, lr=0.5)[0]
    assert torch.equal(shared["a"], shared["b"]) and torch.allclose(shared["a"], want - 0.5 * (2 + want))


def test_weight_decay_and_clipping_do_not_reach_statistics() -> None:
    task, f = Task(module("norm")), federation(SIZES)
    got = trained(Local(steps=1, weight_decay=0.5, clip=1e-3), task, f, 1)[task.trained :]
    want = trained(Local(steps=1), task, f, 1)[task.trained :]
    assert torch.equal(got, want)


# Plans


def test_an_epoch_takes_every_row_once() -> None:
    task, f = Task(module("mlp")), federation(SIZES)
    for client, n in enumerate(SIZES.values()):
        batches = batches_of(planned(Local(epochs=3, batch=8), task, f, [client]))
        per_pass = math.ceil(n / 8)
        assert len(batches) == 3 * per_pass
        first = int(f.train.offsets[client])
        for e in range(3):
            taken = torch.cat(batches[e * per_pass : (e + 1) * per_pass])
            assert sorted(taken.tolist()) == list(range(first, first + n))
            assert [len(b) for b in batches[e * per_pass :][:per_pass]] == [8] * (n // 8) + [n % 8] * (n % 8 > 0)


def test_epochs_take_rows_in_different_orders() -> None:
    batches = batches_of(planned(Local(epochs=2, batch=57), Task(module("mlp")), federation(SIZES), [2]))
    assert batches[0].tolist() != batches[1].tolist()
    assert batches[0].tolist() != sorted(batches[0].tolist())


def test_steps_go_round_the_rows() -> None:
    # 5 rows by 2 are three batches a pass, so eight steps are two passes and two batches of a third.
    batches = batches_of(planned(Local(steps=8, batch=2), Task(module("mlp")), federation(SIZES), [0]))
    assert [len(b) for b in batches] == [2, 2, 1, 2, 2, 1, 2, 2]
    for start in (0, 3):
        assert sorted(torch.cat(batches[start : start + 3]).tolist()) == [0, 1, 2, 3, 4]
    assert len(set(torch.cat(batches[6:]).tolist())) == 4


def test_a_step_count_replaces_epochs() -> None:
    p = planned(Local(steps=4, epochs=9), Task(module("mlp")), federation(SIZES), [2, 3, 1, 0])
    assert p.steps.tolist() == [4, 4, 4, 4]


def test_a_full_batch_is_every_row() -> None:
    for local in (Local(batch=0, epochs=2), Local(batch=0, steps=2), Local(batch=1000, epochs=2)):
        batches = batches_of(planned(local, Task(module("mlp")), federation(SIZES), [2]))
        assert [len(b) for b in batches] == [57, 57]


@pytest.mark.parametrize(
    ("n", "batch", "sizes"),
    [
        (41, 20, [20, 20]),  # a rest of one row is left out
        (42, 20, [20, 20, 2]),
        (40, 20, [20, 20]),
        (21, 20, [20]),
        (20, 20, [20]),
        (3, 2, [2]),
        (2, 20, [2]),
        (5, 0, [5]),
    ],
)
def test_normalisation_leaves_out_a_rest_of_one_row(n: int, batch: int, sizes: list[int]) -> None:
    f, task = federation({"a": n}), Task(module("norm"))
    p = planned(Local(batch=batch, epochs=2), task, f, [0])
    assert [len(b) for b in batches_of(p)] == sizes * 2
    assert trained(Local(batch=batch, epochs=2), task, f, 0).isfinite().all()


def test_without_normalisation_a_rest_of_one_row_is_used() -> None:
    batches = batches_of(planned(Local(batch=20), Task(module("mlp")), federation({"a": 41}), [0]))
    assert [len(b) for b in batches] == [20, 20, 1]


def test_the_row_left_out_is_another_in_every_pass() -> None:
    batches = batches_of(planned(Local(batch=3, epochs=20), Task(module("norm")), federation({"a": 4}), [0]))
    assert {tuple(sorted(b.tolist())) for b in batches} == {(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)}


@pytest.mark.parametrize(("n", "batch"), [(1, 20), (4, 1)])
def test_normalisation_of_single_rows_is_an_error_in_words(n: int, batch: int) -> None:
    with pytest.raises(CommonwealError, match=r"[Nn]orm"):
        trained(Local(batch=batch), Task(module("norm")), federation({"a": n}), 0)


def test_shares_of_a_step_add_up_to_one_and_padding_has_none() -> None:
    p = planned(Local(batch=8), Task(module("mlp")), federation(SIZES), [2, 3, 1, 0])
    assert p.steps.tolist() == [8, 6, 3, 1]
    lengths = [[min(8, n - 8 * t) for n in (57, 41, 20, 5) if n > 8 * t] for t in range(8)]
    for t, want in enumerate(lengths):
        rows, share, u = p.at(t, len(want))
        assert rows.shape == share.shape == (len(want), max(want)) and u.shape == (len(want), 0)
        assert [(row > 0).sum().item() for row in share] == want
        close(share.sum(1), torch.ones(len(want)))
        assert all(set(row[row > 0].tolist()) == {np.float32(1 / n)} for row, n in zip(share, want, strict=True))


def test_padding_repeats_rows_of_the_same_client() -> None:
    f = federation(SIZES)
    p = planned(Local(batch=0), Task(module("mlp")), f, [2, 3, 1, 0])
    rows, _, _ = p.at(0, 4)
    for k, client in enumerate([2, 3, 1, 0]):
        assert rows[k].min() >= f.train.offsets[client] and rows[k].max() < f.train.offsets[client + 1]


def test_a_clients_plan_does_not_depend_on_its_company() -> None:
    task, f, local = Task(module("mlp")), federation(SIZES), Local(batch=8, epochs=2)
    together = planned(local, task, f, [2, 3, 1, 0])
    for k, client in enumerate([2, 3, 1, 0]):
        single = planned(local, task, f, [client])
        for t in range(int(single.steps[0])):
            who = int((together.steps > t).sum())
            rows, share, _ = together.at(t, who)
            assert rows[k][share[k] > 0].tolist() == single.at(t, 1)[0][0].tolist()


def test_another_round_or_seed_is_another_plan() -> None:
    task, f = Task(module("mlp")), federation(SIZES)
    orders = [planned(Local(), task, f, [2], seed, round).order.tolist() for seed, round in ((0, 1), (0, 2), (1, 1))]
    assert orders[0] != orders[1] and orders[0] != orders[2]
    assert orders[0] == planned(Local(), task, f, [2]).order.tolist()


def test_a_plan_holds_the_rows_of_its_passes_and_no_more() -> None:
    f, task = federation({"large": 20_000, "small": 20}), Task(module("mlp"))
    p = planned(Local(batch=20, epochs=2), task, f, [0, 1])
    assert p.order.nbytes == 8 * 2 * 20_020
    assert sum(a.nbytes for a in (p.base, p.sizes, p.batch, p.per_pass, p.steps, p.u)) <= 5 * 8 * 2
    # Over all steps as many rows are computed as the clients have: the small one leaves when it is done.
    taken = sum(p.at(t, int((p.steps > t).sum()))[0].numel() for t in range(int(p.steps[0])))
    assert taken == 2 * 20_020


@dataclass(frozen=True)
class Noisy(Local):
    """Moves every step by the uniform numbers it was given, and tells how many steps it took."""

    def draws(self, task: Task) -> int:
        return 3

    def loss(
        self, task: Task, v: Tensors, batch: Any, seen: Tensors, kept: Tensors, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        return v["w"][:3] @ u + 0 * v["w"].sum(), v["w"].new_empty(0)

    def reply(self, task: Task, v: Tensors, seen: Tensors, kept: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"update": seen["w"] - v["w"], "steps": steps}, kept


def test_uniform_numbers_are_drawn_for_every_step() -> None:
    p = planned(Noisy(batch=8), Task(module("mlp")), federation(SIZES), [2, 0])
    drawn = torch.cat([p.at(t, 1)[2] for t in range(8)])
    assert drawn.shape == (8, 3) and drawn.dtype == torch.float32
    assert drawn.unique().numel() == 24 and drawn.min() >= 0 and drawn.max() < 1
    assert torch.equal(
        p.at(0, 2)[2][1], planned(Noisy(batch=8), Task(module("mlp")), federation(SIZES), [0]).at(0, 1)[2][0]
    )


def test_uniform_numbers_and_steps_reach_the_client() -> None:
    task, f = Task(module("mlp")), federation(SIZES)
    local = Noisy(batch=8, lr=1.0)
    p = planned(local, task, f, [2, 3, 1, 0])
    seen = {"w": task.initial, "round": torch.tensor(1)}
    replies, _ = visit(local, task, seen, {}, f.train, p, many)
    assert replies["steps"].tolist() == [8, 6, 3, 1]
    for k in range(4):
        want = sum(p.at(t, 4 if t < 1 else 3 if t < 3 else 2 if t < 6 else 1)[2][k] for t in range(int(p.steps[k])))
        close(replies["update"][k, :3], want, atol=1e-5)  # type: ignore[arg-type]
        assert replies["update"][k, 3:].abs().max() == 0


def test_what_a_client_keeps_is_its_own() -> None:
    task, f, local = Task(module("mlp")), federation(SIZES), Visitor(batch=8)
    kept = {name: torch.stack([v] * 4) for name, v in local.keep(task, 5).items()}
    kept["visits"] = torch.tensor([3, 2, 1, 0])
    seen = {"w": task.initial, "round": torch.tensor(1)}
    replies, after = visit(local, task, seen, kept, f.train, planned(local, task, f, [2, 3, 1, 0]), many)
    assert replies["visited"].tolist() == [3, 2, 1, 0] and after["visits"].tolist() == [4, 3, 2, 1]
    close(after["last"], task.initial - replies["update"])
    assert after["own"].tolist() == [5] * 4


def test_many_and_alone_give_the_same_numbers() -> None:
    task, f, local = Task(module("mlp")), federation(SIZES), LOCALS["all"]
    seen = {"w": task.initial, "round": torch.tensor(3)}
    together, _ = visit(local, task, seen, {}, f.train, planned(local, task, f, [2, 3, 1, 0], round=3), many)
    for k, client in enumerate([2, 3, 1, 0]):
        single, _ = visit(local, task, seen, {}, f.train, planned(local, task, f, [client], round=3), alone)
        close(together["update"][k], single["update"][0])


# Judging


@pytest.mark.parametrize("at_once", [1, 100, 1 << 24])
@pytest.mark.parametrize("kind", ["mlp", "cnn-norm"])
def test_measure_is_a_loop_over_clients(kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "PASS", at_once)
    task, f = Task(module(kind)), federation(SIZES, SHAPES[kind])
    plain = loaded(task, task.initial).eval()
    for ids in (None, [2, 0], [3, 1, 2, 0]):
        losses, scores = measure(task, task.initial, f.train, None if ids is None else torch.tensor(ids))
        assert losses.dtype == scores.dtype == torch.float64 and not losses.requires_grad
        for k, client in enumerate(range(4) if ids is None else ids):
            own = f.train.of(client)
            close(losses[k], torch_loss("cross-entropy", plain(own.x), own.y))
            assert scores[k].item() == pytest.approx((plain(own.x).argmax(1) == own.y).double().mean().item())


def test_measure_gives_nan_for_a_client_without_rows() -> None:
    f = Federation.from_arrays(np.zeros((4, 4)), [0, 1, 2, 0], ["one", "three", "three", "three"])
    losses, scores = measure(Task(module("mlp")), Task(module("mlp")).initial, f.test)
    assert losses.isnan().tolist() == scores.isnan().tolist() == [True, False]


@pytest.mark.parametrize("score", SCORES)
def test_measure_without_any_rows_is_nan(score: str) -> None:
    f = Federation.from_arrays(np.zeros((4, 4)), [0, 1, 1, 0], ["a", "a", "b", "b"], test=0)
    values = score in ("r2", "neg-mae")
    task = Task(module("mlp", 1), "squared", score) if values else Task(module("mlp", 2), score=score)
    losses, scores = measure(task, task.initial, f.test)
    assert losses.isnan().tolist() == scores.isnan().tolist() == [True, True]


def test_work_measures_before_it_trains() -> None:
    task, f = Task(module("norm")), federation(SIZES)
    algorithm: Averaging = averaging(Local(lr=0.5, epochs=3))
    ids = torch.tensor([2])
    seen = algorithm.ask(algorithm.init(task, 4))
    replies, _ = algorithm.work(task, seen, {}, f.train, ids, [stream("c")], alone)
    losses, scores = measure(task, task.initial, f.train, ids)
    assert torch.equal(replies["loss"], losses) and torch.equal(replies["score"], scores)
    assert replies["size"].tolist() == [57]


# Parameters that cannot be right


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("epochs", 0, "at least 1"),
        ("batch", -1, "at least 0"),
        ("decay_every", 0, "at least 1"),
        ("momentum", -0.1, "at least 0"),
        ("weight_decay", -1e-4, "at least 0"),
        ("lr", 0.0, "above 0"),
        ("lr", -1.0, "above 0"),
        ("decay", 0.0, "above 0"),
        ("clip", 0.0, "above 0"),
        ("steps", 0, "above 0"),
        ("steps", -3, "above 0"),
        ("lr", math.nan, ""),
        ("momentum", math.nan, ""),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(name: str, value: float, words: str) -> None:
    with pytest.raises(ConfigError, match=f"client {name} = {value}.*{words}"):
        Local(**{name: value})  # type: ignore[arg-type]


def test_the_smallest_values_are_allowed() -> None:
    Local(epochs=1, steps=1, batch=0, lr=1e-9, momentum=0.0, weight_decay=0.0, clip=1e-9, decay=1e-9, decay_every=1)


def test_an_empty_stream_list_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        plan(Local(), Task(module("mlp")), federation(SIZES).train, torch.tensor([0]), [])
