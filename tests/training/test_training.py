"""Local training against torch.optim on the plain module, fed with the very same batches."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cases import cases
from commonweal.base.errors import CommonwealError, ConfigError
from commonweal.base.tensors import Tensors
from commonweal.clients import Client
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.task.task import Batch, Task
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training.batches import schedule
from commonweal.training.client import learning_rate
from commonweal.training.local import keep_freed_memory, train_locally
from commonweal.training.objective import Custom, Objective, Phase
from commonweal.training.optimizers import Optimizer
from helpers import (
    SHAPES,
    Visitor,
    batches_of,
    close,
    federation,
    module,
    planned,
    torch_training,
)

SIZES = {"a": 5, "b": 20, "c": 57, "d": 41}
BY_SIZE = [2, 3, 1, 0]


def message_of(task: Task, round: int = 1) -> Tensors:
    return {"w": task.initial, "round": torch.tensor(round)}


def trained(client: Client, task: Task, f: Federation, who: int, round: int = 1) -> Tensor:
    """The vector that a client ends with, by the code under test."""
    plan = planned(client, task, f, [who], round=round)
    done = train_locally(client, task, message_of(task, round), {}, f.train, plan, single)
    assert done.states == {} and set(done.replies) == {"update"}
    assert torch.equal(done.replies["update"], task.initial - done.models)
    return done.models[0]


def by_torch(client: Client, task: Task, f: Federation, who: int, round: int = 1) -> Tensor:
    plan = planned(client, task, f, [who], round=round)
    return torch_training(task, client, task.initial, f.train, batches_of(plan), round)


CLIENTS = {
    "plain": Client(),
    "epochs": Client(epochs=3, batch=7),
    "steps": Client(steps=11, batch=8),
    "full": Client(batch=0, epochs=4),
    "full steps": Client(batch=0, steps=3),
    "batches of one": Client(batch=1),
    "momentum": Client(epochs=2, batch=6, momentum=0.9, lr=0.05),
    "decay": Client(epochs=2, batch=6, weight_decay=0.1),
    "clip": Client(epochs=2, batch=6, clip=0.3),
    "clip that never bites": Client(epochs=2, batch=6, clip=1e6),
    "all": Client(
        epochs=2,
        batch=6,
        lr=0.05,
        momentum=0.8,
        weight_decay=0.05,
        clip=0.5,
        decay=0.5,
        decay_every=2,
    ),
    "adam": Client(epochs=2, batch=6, lr=0.01, optimizer="adam"),
    "adam with all": Client(
        epochs=2,
        batch=6,
        lr=0.01,
        optimizer="adam",
        weight_decay=0.05,
        clip=0.5,
        beta1=0.5,
        beta2=0.9,
        decay=0.5,
    ),
    "adamw": Client(epochs=2, batch=6, lr=0.01, optimizer="adamw", weight_decay=0.1),
    "adamw without decay": Client(epochs=2, batch=6, lr=0.01, optimizer="adamw"),
}


@cases("who", range(4))
@cases("name", CLIENTS)
def test_local_training_is_torch_optim(name: str, who: int) -> None:
    task, f = Task(module("mlp")), federation(SIZES)
    close(trained(CLIENTS[name], task, f, who), by_torch(CLIENTS[name], task, f, who))


# The gradient of a bias before BatchNorm is rounding noise, which AdamW scales up to full steps.
KINDS = ["logistic", "norm", "cnn", "cnn-norm"]
CASES = [(kind, name) for kind in KINDS for name in ("plain", "steps", "full", "all")]
CASES += [(kind, "adam with all") for kind in KINDS] + [("logistic", "adamw"), ("cnn", "adamw")]


@cases(("kind", "name"), CASES)
def test_local_training_is_torch_optim_for_every_kind_of_module(kind: str, name: str) -> None:
    task, f = Task(module(kind)), federation(SIZES, SHAPES[kind])
    for who in (0, 2, 3):
        got = trained(CLIENTS[name], task, f, who)
        close(got, by_torch(CLIENTS[name], task, f, who), rtol=1e-3, atol=1e-5)
        assert not torch.equal(got, task.initial)


@cases(("loss", "score"), [("binary", "auroc"), ("squared", "r2")])
def test_local_training_with_another_loss(loss: str, score: str) -> None:
    f = federation(SIZES, classes=2)
    if loss == "squared":
        train, test = (Rows(p.x, p.y + 0.5, p.offsets) for p in (f.train, f.test))
        f = Federation(train, test, f.names, 1, "values", "r2")
    task = Task(module("mlp", 1), loss, score)
    close(trained(CLIENTS["all"], task, f, 2), by_torch(CLIENTS["all"], task, f, 2))


@cases("round", [1, 2, 3, 7])
@cases("optimizer", ["sgd", "adam"])
def test_the_rate_falls_with_the_rounds(optimizer: Any, round: int) -> None:
    task, f = Task(module("mlp")), federation(SIZES)
    client = Client(lr=0.2, decay=0.5, decay_every=2, optimizer=optimizer)
    close(trained(client, task, f, 1, round), by_torch(client, task, f, 1, round))


def test_the_rate_by_hand() -> None:
    client = Client(lr=1.0, decay=0.5, decay_every=3)
    assert [learning_rate(client, r) for r in range(1, 8)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    assert [learning_rate(Client(lr=0.1), r) for r in (1, 50)] == [0.1, 0.1]
    assert learning_rate(Client(lr=2.0, decay=0.9), 3) == pytest.approx(2 * 0.81)


@cases("name", ["all", "adam with all"])
def test_training_changes_nothing_it_was_given(name: str) -> None:
    task, f = Task(module("norm")), federation(SIZES)
    before, x = task.initial.clone(), f.train.x.clone()
    trained(CLIENTS[name], task, f, 2)
    assert torch.equal(task.initial, before) and torch.equal(f.train.x, x)


@cases("momentum", [0.0, 0.9])
def test_gradients_that_autograd_shares_are_not_written_over(momentum: float) -> None:
    """Two vectors may get the very same tensor, and a vector one number many times."""
    grad = torch.full((1, 1), 2.0).expand(1, 3)
    same = torch.full((1, 3), 2.0)
    optimizer = Optimizer("sgd", lr=0.5, momentum=momentum, weight_decay=1.0)
    vectors = [torch.zeros(1, 3) for _ in range(3)]
    memory = [optimizer.memory(v) for v in vectors]
    want, moved = torch.zeros(1, 3), torch.zeros(1, 3)
    for _ in range(3):
        for v, each, values in zip(vectors, (same, grad, grad), memory, strict=True):
            optimizer.step(v, each, values)
        moved = momentum * moved + 2.0 + want
        want = want - 0.5 * moved
        assert all(torch.allclose(v, want) for v in vectors)
        assert torch.equal(same, torch.full((1, 3), 2.0)) and float(grad[0, 0]) == 2


def test_weight_decay_and_clipping_do_not_reach_buffers() -> None:
    task, f = Task(module("norm")), federation(SIZES)
    n = task.num_trainable
    want = trained(Client(steps=1), task, f, 1)[n:]
    assert torch.equal(trained(Client(steps=1, weight_decay=0.5, clip=1e-3), task, f, 1)[n:], want)
    adamw = Client(steps=1, weight_decay=0.5, optimizer="adamw")
    assert torch.equal(trained(adamw, task, f, 1)[n:], want)


# Schedules


def test_an_epoch_takes_every_row_once() -> None:
    task, f = Task(module("mlp")), federation(SIZES)
    for who, n in enumerate(SIZES.values()):
        batches = batches_of(planned(Client(epochs=3, batch=8), task, f, [who]))
        per_epoch = math.ceil(n / 8)
        assert len(batches) == 3 * per_epoch
        first = int(f.train.offsets[who])
        for e in range(3):
            epoch = batches[e * per_epoch : (e + 1) * per_epoch]
            assert sorted(torch.cat(epoch).tolist()) == list(range(first, first + n))
            assert [len(b) for b in epoch] == [8] * (n // 8) + [n % 8] * (n % 8 > 0)


def test_epochs_take_rows_in_different_orders() -> None:
    plan = planned(Client(epochs=2, batch=57), Task(module("mlp")), federation(SIZES), [2])
    first, second = batches_of(plan)
    assert first.tolist() != second.tolist()
    assert first.tolist() != sorted(first.tolist())


def test_steps_go_round_the_rows() -> None:
    # 5 rows by 2 are three batches per epoch: eight steps are two epochs and two batches.
    plan = planned(Client(steps=8, batch=2), Task(module("mlp")), federation(SIZES), [0])
    batches = batches_of(plan)
    assert [len(b) for b in batches] == [2, 2, 1, 2, 2, 1, 2, 2]
    for start in (0, 3):
        assert sorted(torch.cat(batches[start : start + 3]).tolist()) == [0, 1, 2, 3, 4]
    assert len(set(torch.cat(batches[6:]).tolist())) == 4


def test_a_step_count_replaces_epochs() -> None:
    plan = planned(Client(steps=4, epochs=9), Task(module("mlp")), federation(SIZES), BY_SIZE)
    assert plan.steps.tolist() == [4, 4, 4, 4]


@cases(
    "client",
    [Client(batch=0, epochs=2), Client(batch=0, steps=2), Client(batch=1000, epochs=2)],
)
def test_a_full_batch_is_every_row(client: Client) -> None:
    batches = batches_of(planned(client, Task(module("mlp")), federation(SIZES), [2]))
    assert [len(b) for b in batches] == [57, 57]


@cases(
    ("n", "batch", "sizes"),
    [
        (41, 20, [20, 20]),  # a remainder of one row is left out
        (42, 20, [20, 20, 2]),
        (40, 20, [20, 20]),
        (21, 20, [20]),
        (20, 20, [20]),
        (3, 2, [2]),
        (2, 20, [2]),
        (5, 0, [5]),
    ],
)
def test_batchnorm_leaves_out_a_remainder_of_one_row(n: int, batch: int, sizes: list[int]) -> None:
    f, task = federation({"a": n}), Task(module("norm"))
    client = Client(batch=batch, epochs=2)
    assert [len(b) for b in batches_of(planned(client, task, f, [0]))] == sizes * 2
    assert trained(client, task, f, 0).isfinite().all()


def test_without_batchnorm_a_remainder_of_one_row_is_used() -> None:
    plan = planned(Client(batch=20), Task(module("mlp")), federation({"a": 41}), [0])
    assert [len(b) for b in batches_of(plan)] == [20, 20, 1]


def test_the_row_left_out_is_another_in_every_epoch() -> None:
    client = Client(batch=3, epochs=20)
    batches = batches_of(planned(client, Task(module("norm")), federation({"a": 4}), [0]))
    taken = {tuple(sorted(b.tolist())) for b in batches}
    assert taken == {(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)}


@cases(("n", "batch"), [(1, 20), (4, 1)])
def test_batchnorm_of_single_rows_is_an_error_in_words(n: int, batch: int) -> None:
    with pytest.raises(CommonwealError, match="BatchNorm needs two samples per step"):
        trained(Client(batch=batch), Task(module("norm")), federation({"a": n}), 0)


def test_weights_of_a_step_add_up_to_one_and_padding_has_none() -> None:
    plan = planned(Client(batch=8), Task(module("mlp")), federation(SIZES), BY_SIZE)
    assert plan.steps.tolist() == [8, 6, 3, 1]
    for step in range(8):
        want = [min(8, n - 8 * step) for n in (57, 41, 20, 5) if n > 8 * step]
        rows, weight, noise = plan.at(step, len(want))
        assert rows.shape == weight.shape == (len(want), max(want))
        assert noise.shape == (len(want), 0)
        assert [int((row > 0).sum()) for row in weight] == want
        close(weight.sum(1), torch.ones(len(want)))
        for row, n in zip(weight, want, strict=True):
            assert set(row[row > 0].tolist()) == {np.float32(1 / n)}


def test_padding_repeats_rows_of_the_same_client() -> None:
    f = federation(SIZES)
    rows, _, _ = planned(Client(batch=0), Task(module("mlp")), f, BY_SIZE).at(0, 4)
    for k, who in enumerate(BY_SIZE):
        assert rows[k].min() >= f.train.offsets[who]
        assert rows[k].max() < f.train.offsets[who + 1]


def test_a_clients_batches_do_not_depend_on_the_other_clients() -> None:
    task, f, client = Task(module("mlp")), federation(SIZES), Client(batch=8, epochs=2)
    together = planned(client, task, f, BY_SIZE)
    for k, who in enumerate(BY_SIZE):
        for step, want in enumerate(batches_of(planned(client, task, f, [who]))):
            active = int((together.steps > step).sum())
            rows, weight, _ = together.at(step, active)
            assert rows[k][weight[k] > 0].tolist() == want.tolist()


def test_another_round_or_seed_is_another_schedule() -> None:
    task, f = Task(module("mlp")), federation(SIZES)

    def order(seed: int, round: int) -> list[int]:
        orders: list[int] = planned(Client(), task, f, [2], seed, round).order.tolist()
        return orders

    assert order(0, 1) != order(0, 2) and order(0, 1) != order(1, 1)
    assert order(0, 1) == order(0, 1)


def test_a_schedule_holds_the_rows_of_its_epochs_and_no_more() -> None:
    f, task = federation({"large": 20_000, "small": 20}), Task(module("mlp"))
    plan = planned(Client(batch=20, epochs=2), task, f, [0, 1])
    assert plan.order.nbytes == 8 * 2 * 20_020
    others = (plan.base, plan.sizes, plan.batch, plan.steps_per_epoch, plan.steps, plan.noise)
    assert sum(array.nbytes for array in others) <= 5 * 8 * 2
    # Over all steps as many rows are computed as the clients have: the small one leaves early.
    active = [int((plan.steps > step).sum()) for step in range(int(plan.steps[0]))]
    taken = sum(plan.at(step, k)[0].numel() for step, k in enumerate(active))
    assert taken == 2 * 20_020


def test_missing_streams_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        schedule(Client(), Task(module("mlp")), federation(SIZES).train, torch.tensor([0]), [])


# Groups of clients


@dataclass(frozen=True)
class Noisy(Client):
    """Moves every step by the uniform numbers it was given, and reports its number of steps."""

    def draws(self, task: Task) -> int:
        return 3

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(at=(), custom=Custom(self.along_noise))

    def along_noise(self, task: Task, vectors: Tensors, batch: Batch) -> Tensor:
        return (vectors["w"][:3] * vectors["noise"]).sum()

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {"steps": steps}, state


def test_uniform_numbers_are_drawn_for_every_step() -> None:
    task, f, client = Task(module("mlp")), federation(SIZES), Noisy(batch=8)
    plan = planned(client, task, f, [2, 0])
    drawn = torch.cat([plan.at(step, 1)[2] for step in range(8)])
    assert drawn.shape == (8, 3) and drawn.dtype == torch.float32
    assert len(set(drawn.flatten().tolist())) == 24 and drawn.min() >= 0 and drawn.max() < 1
    assert torch.equal(plan.at(0, 2)[2][1], planned(client, task, f, [0]).at(0, 1)[2][0])


def test_uniform_numbers_and_steps_reach_the_client() -> None:
    task, f = Task(module("mlp")), federation(SIZES)
    client = Noisy(batch=8, lr=1.0)
    plan = planned(client, task, f, BY_SIZE)
    replies = train_locally(client, task, message_of(task), {}, f.train, plan, vmap_clients).replies
    assert replies["steps"].tolist() == [8, 6, 3, 1]
    for k in range(4):
        want = torch.zeros(3)
        for step in range(int(plan.steps[k])):
            want = want + plan.at(step, int((plan.steps > step).sum()))[2][k]
        close(replies["update"][k, :3], want, atol=1e-5)
        assert replies["update"][k, 3:].abs().max() == 0


def test_a_clients_state_is_its_own() -> None:
    task, f, client = Task(module("mlp")), federation(SIZES), Visitor(batch=8)
    state = client.init_client(task, 5)
    states = {name: torch.stack([value] * 4) for name, value in state.items()}
    states["visits"] = torch.tensor([3, 2, 1, 0])
    plan = planned(client, task, f, BY_SIZE)
    replies, after, models = train_locally(
        client, task, message_of(task), states, f.train, plan, vmap_clients
    )
    assert replies["visited"].tolist() == [3, 2, 1, 0]
    assert after["visits"].tolist() == [4, 3, 2, 1]
    close(after["last"], task.initial - replies["update"])
    assert torch.equal(after["last"], models)
    assert after["own"].tolist() == [5] * 4


@cases("name", ["all", "adam with all", "adamw"])
def test_together_and_one_by_one_give_the_same_numbers(name: str) -> None:
    task, f, client = Task(module("mlp")), federation(SIZES), CLIENTS[name]

    def updates(ids: list[int], vectorize: Vectorize) -> Tensor:
        plan = planned(client, task, f, ids, round=3)
        message = message_of(task, 3)
        return train_locally(client, task, message, {}, f.train, plan, vectorize).replies["update"]

    together = updates(BY_SIZE, vmap_clients)
    for k, who in enumerate(BY_SIZE):
        close(together[k], updates([who], single)[0])


@dataclass(frozen=True)
class Counting(Client):
    """Two steps per batch, then 1 is added; half of the coordinates move in the last epoch."""

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return Phase(2), Phase(1, torch.arange(task.size) % 2 == 0)

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"], "batches": torch.zeros(1), "count": torch.zeros(task.size)}

    def objective(self, task: Task, message: Tensors) -> Objective:
        custom = Custom(self.minus_sum, trains=("count",))
        return Objective(at=(), custom=custom, steps=2, lr=1.0, after=self.counted)

    def minus_sum(self, task: Task, vectors: Tensors, batch: Batch) -> Tensor:
        return -vectors["count"].sum()

    def counted(self, vectors: Tensors, lr: float) -> Tensors:
        return {"batches": vectors["batches"] + 10 * lr}

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {"count": vectors["count"], "batches": vectors["batches"]}, state


@cases("vectorize", [single, vmap_clients])
def test_steps_follow_phases_and_are_followed_by_what_comes_after(vectorize: Vectorize) -> None:
    task, f = Task(module("logistic")), federation({"a": 8, "b": 12})
    client = Counting(batch=4, lr=0.1)
    ids = [0] if vectorize is single else [0, 1]
    plan = planned(client, task, f, ids)
    done = train_locally(client, task, message_of(task), {}, f.train, plan, vectorize)
    for k, batches in zip(ids, (2, 3), strict=False):
        even, odd = done.replies["count"][k, ::2], done.replies["count"][k, 1::2]
        assert set(even.tolist()) == {2.0 * 3 * batches}
        assert set(odd.tolist()) == {2.0 * 2 * batches}
        close(done.replies["batches"][k], torch.tensor([3.0 * batches]))
    assert torch.equal(done.replies["update"], torch.zeros(len(ids), task.size))


def test_memory_can_be_kept_for_reuse() -> None:
    keep_freed_memory(1 << 28)  # has no result: it must not fail on any C library


# Parameters that cannot be right


@cases(
    ("name", "value", "words"),
    [
        ("epochs", 0, "above 0"),
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
        ("momentum", 1.0, "below 1"),
        ("beta1", 1.0, "below 1"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"client {name} = {value}.*{words}"):
        Client(**{name: value})


def test_adam_has_no_momentum_parameter() -> None:
    with pytest.raises(ConfigError, match=r"momentum = 0\.5: adam has beta1 instead"):
        Client(optimizer="adam", momentum=0.5)


def test_the_smallest_values_are_allowed() -> None:
    tiny = 1e-9
    Client(
        epochs=1,
        steps=1,
        batch=0,
        lr=tiny,
        momentum=0.0,
        weight_decay=0.0,
        clip=tiny,
        decay=tiny,
        decay_every=1,
        beta1=0.0,
        beta2=0.0,
    )
