"""The simulator's modes compute the same numbers, and a client's numbers are its own."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases import cases
from commonweal.base.errors import ConfigError, DataError
from commonweal.base.tensors import Tensors
from commonweal.clients.blend import Blend
from commonweal.clients.ditto import Ditto
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.engines.simulator import MODES, VECTORS_PER_CLIENT, Simulator
from commonweal.protocols.algorithm import Algorithm, Group, Request
from commonweal.protocols.servers.sgd import SGD
from commonweal.protocols.two_phase import TwoPhase
from commonweal.rules.fedavg import FedAvg
from commonweal.task.task import Task
from commonweal.training.batches import chunks
from commonweal.training.client import Client
from helpers import (
    SHAPES,
    Visitor,
    averaging,
    batches_of,
    close,
    collected,
    federation,
    joined,
    loaded,
    module,
    planned,
    torch_loss,
    torch_training,
)
from run_helpers import states_of

UNEQUAL = {"five": 5, "twenty": 20, "fifty-seven": 57, "three hundred": 300}
EQUAL = {"p": 24, "q": 24, "r": 24, "s": 24}
MIXED = {"p": 24, "q": 9, "r": 24, "s": 9, "t": 41}  # 41 leaves a remainder of one row
KINDS = ["logistic", "mlp", "norm", "cnn", "cnn-norm"]
CLIENTS = {
    "plain": Client(),
    "full": Client(batch=0, epochs=2),
    "steps": Client(steps=7, batch=8),
    "all": Client(epochs=2, batch=8, lr=0.05, momentum=0.8, weight_decay=0.01, clip=1.0, decay=0.9),
    "adam": Client(epochs=2, batch=8, lr=0.01, optimizer="adam"),
}
# The gradient of a bias before BatchNorm is 0 up to rounding, which Adam scales up.
PAIRS = [
    (name, kind) for name in CLIENTS for kind in KINDS if (name, kind[-4:]) != ("adam", "norm")
]


def same(a: Tensors, b: Tensors) -> None:
    assert set(a) == set(b)
    for name in a:
        close(a[name], b[name], rtol=1e-3, atol=1e-5)


def cost(task: Task, f: Federation, rows: int) -> int:
    """The numbers of a client in training with that many rows per step."""
    return task.size + rows * task.width(f.train.x)


# The modes


@cases("sizes", [UNEQUAL, EQUAL, MIXED])
@cases(("name", "kind"), PAIRS)
def test_the_modes_agree(kind: str, name: str, sizes: dict[str, int]) -> None:
    task, f, client = Task(module(kind)), federation(sizes, SHAPES[kind]), CLIENTS[name]
    loop = collected(task, f, "loop", client)
    assert loop["update"].shape == (len(sizes), task.size)
    assert loop["update"].abs().max(1).values.min() > 1e-4  # every client learnt something
    # In this way chunks of one and of several clients occur, and several groups.
    chunk = 2 * cost(task, f, 20)
    same(collected(task, f, "vmap", client), loop)
    same(collected(task, f, "chunked", client, chunk=chunk), loop)
    same(collected(task, f, "chunked", client, chunk=1), loop)
    budget = 2 * VECTORS_PER_CLIENT * task.size
    same(collected(task, f, "chunked", client, budget=budget), loop)


@cases("mode", ["loop", "vmap", "chunked"])
@cases(("name", "kind"), [("all", "mlp"), ("all", "cnn-norm"), ("adam", "mlp"), ("adam", "cnn")])
def test_every_mode_is_torchs_optimizer(kind: str, mode: str, name: str) -> None:
    task, f, client = Task(module(kind)), federation(MIXED, SHAPES[kind]), CLIENTS[name]
    replies = collected(task, f, mode, client)
    for k in range(f.clients):
        batches = batches_of(planned(client, task, f, [k]))
        want = torch_training(task, client, task.initial, f.train, batches)
        close(task.initial - replies["update"][k], want, rtol=1e-3, atol=1e-5)


@cases("mode", ["loop", "vmap", "chunked"])
def test_images_of_bytes(mode: str) -> None:
    f = federation(UNEQUAL, (1, 6, 6))
    parts = [replace(p, inputs=(p.x * 40 + 100).clamp(0, 255).byte()) for p in (f.train, f.test)]
    as_bytes = replace(f, train=parts[0], test=parts[1])
    floats = [replace(p, inputs=p.x.float() / 255) for p in parts]
    as_floats = replace(f, train=floats[0], test=floats[1])
    task = Task(module("cnn"))
    expected = collected(task, as_floats, mode, Client())
    same(collected(task, as_bytes, mode, Client()), expected)


@cases(("loss", "score"), [("binary", "auroc"), ("squared", "r2")])
def test_the_modes_agree_for_other_losses(loss: str, score: str) -> None:
    f = federation({"p": 24, "q": 13}, classes=2)
    if loss == "squared":
        train, test = (replace(p, y=p.x[:, 0] * 2 + p.y) for p in (f.train, f.test))
        f = Federation(train, test, f.names, 1, "values")
    task = Task(module("mlp", 1), loss, score)
    loop = collected(task, f, "loop", Client())
    assert loop["score"].isfinite().all()
    same(collected(task, f, "vmap", Client()), loop)


def test_the_replies_of_a_repeated_round_are_the_same_numbers() -> None:
    task, f = Task(module("norm")), federation(UNEQUAL)
    for mode in MODES:
        a, b = (collected(task, f, mode, CLIENTS["all"]) for _ in range(2))
        assert all(torch.equal(a[name], b[name]) for name in a)


# A client's numbers are its own


@cases("mode", ["loop", "vmap", "chunked"])
@cases("kind", ["mlp", "norm"])
def test_an_update_does_not_depend_on_the_cohort(kind: str, mode: str) -> None:
    task, f = Task(module(kind)), federation(UNEQUAL)
    everyone = collected(task, f, mode, Client(batch=8))
    for ids in ([0], [3], [2, 0], [1, 3, 0], [3, 2, 1, 0]):
        some = collected(task, f, mode, Client(batch=8), ids)
        same(some, {name: value[torch.tensor(ids)] for name, value in everyone.items()})
        assert some["size"].tolist() == [list(UNEQUAL.values())[i] for i in ids]


def test_in_the_loop_an_update_does_not_depend_on_the_cohort_at_all() -> None:
    task, f = Task(module("cnn-norm")), federation(MIXED, (1, 6, 6))
    everyone = collected(task, f, "loop", Client(batch=8))
    for ids in ([4], [2, 0], [4, 3, 2, 1, 0]):
        some = collected(task, f, "loop", Client(batch=8), ids)
        assert torch.equal(some["update"], everyone["update"][torch.tensor(ids)])


@cases("mode", ["loop", "vmap", "chunked"])
def test_an_update_does_not_depend_on_a_new_client(mode: str) -> None:
    task = Task(module("mlp"))
    before = collected(task, federation(UNEQUAL), mode, Client(batch=8))
    after = collected(task, federation({"aaa newcomer": 33, **UNEQUAL}), mode, Client(batch=8))
    same({name: value[1:] for name, value in after.items()}, before)


def test_clients_with_the_same_rows_and_other_names_take_other_batches() -> None:
    f = federation({"p": 40})
    x, y = f.train.x, f.train.y
    twice = Federation(joined([(x, y), (x, y)]), joined([(x, y), (x, y)]), ("p", "q"), 3)
    update = collected(Task(module("mlp")), twice, "loop", Client(batch=8))["update"]
    assert not torch.equal(update[0], update[1])
    close(update[:1], collected(Task(module("mlp")), f, "loop", Client(batch=8))["update"])


def test_another_seed_gives_other_batches_and_another_round_too() -> None:
    task, f = Task(module("mlp")), federation(UNEQUAL)
    algorithm = averaging(task, Client(batch=8))
    message = algorithm.ask(algorithm.init(f.population))

    def updates(seed: int, round: int) -> Tensor:
        request = Request(torch.arange(4), message | {"round": torch.tensor(round)})
        return Simulator(f, seed).collect(algorithm, request).values["update"]

    first = updates(0, 1)
    assert torch.equal(updates(0, 1), first)
    for other in (updates(1, 1), updates(0, 2)):
        # The client of five rows takes them in one batch, whatever their order.
        assert (first[1:] - other[1:]).abs().max(1).values.min() > 1e-5


# Which mode, and why


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.gru(x)[0]
        return outputs


def decision(m: nn.Module, mode: str = "auto") -> tuple[str, str]:
    return Simulator(federation(EQUAL), vectorize=mode).decision(averaging(Task(m)))


@cases(
    ("m", "mode", "why"),
    [
        (module("mlp"), "chunked", "closed form"),
        (module("logistic"), "chunked", "closed form"),
        (module("norm"), "chunked", "100 parameters in layers that are faster together"),
        (
            nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Flatten()),
            "loop",
            "conv",
        ),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()), "loop", "conv"),
        (Recurrent(), "loop", "recurrent"),
        (module("dropout"), "loop", "dropout"),
        (nn.Sequential(nn.Linear(4, 1 << 16), nn.Linear(1 << 16, 3)), "chunked", "closed form"),
        (
            nn.Sequential(nn.Linear(4, 1 << 16), nn.Tanh(), nn.Linear(1 << 16, 3)),
            "loop",
            f"{(8 << 16) + 3} parameters",
        ),
    ],
)
def test_auto_decides_by_the_module_and_records_the_reason(
    m: nn.Module, mode: str, why: str
) -> None:
    decided, reason = decision(m)
    assert decided == mode and why in reason


@cases("outputs", [2, 5])
def test_a_model_with_other_outputs_than_classes_is_refused(outputs: int) -> None:
    with pytest.raises(ConfigError, match=f"Linear (gives {outputs} numbers|does not fit)"):
        decision(nn.Linear(4, outputs))


@cases("mode", ["vmap", "chunked", "loop"])
def test_a_requested_mode_is_used(mode: str) -> None:
    assert decision(module("mlp"), mode) == (mode, "requested")


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ConfigError, match="vectorize = 'vmpa' is not a mode: did you mean 'vmap'"):
        Simulator(federation(EQUAL), vectorize="vmpa")


@cases("mode", ["vmap", "chunked"])
def test_dropout_cannot_be_run_for_several_clients_at_once(mode: str) -> None:
    sentence = f"vectorize = '{mode}' cannot run a model with dropout: use 'loop' or 'auto'"
    with pytest.raises(ConfigError, match=sentence):
        decision(module("dropout"), mode)


def test_dropout_is_repeatable_and_each_clients_own() -> None:
    task, f = Task(module("dropout")), federation(EQUAL)
    state = torch.get_rng_state()
    a = collected(task, f, "auto", Client())["update"]
    assert torch.equal(torch.get_rng_state(), state)  # torch's own generator is as it was
    torch.manual_seed(99)
    assert torch.equal(collected(task, f, "auto", Client())["update"], a)
    assert torch.equal(collected(task, f, "loop", Client(), [3, 1])["update"], a[[3, 1]])
    # Without dropout the numbers are others, so something was dropped.
    layers = [part for part in task.module.children() if not isinstance(part, nn.Dropout)]
    plain = collected(Task(nn.Sequential(*layers)), f, "loop", Client())["update"]
    assert (plain - a).abs().max() > 1e-3


def test_dropout_differs_by_client_and_round() -> None:
    # Five equal rows: their order does not matter, so that only what is dropped can differ.
    part = joined([(torch.ones(5, 4), torch.ones(5, dtype=torch.int64))] * 2)
    f, algorithm = Federation(part, part, ("p", "q"), 3), averaging(Task(module("dropout")))
    message = algorithm.ask(algorithm.init(f.population))
    update, later = (
        Simulator(f)
        .collect(algorithm, Request(torch.arange(2), message | {"round": torch.tensor(r)}))
        .values["update"]
        for r in (1, 2)
    )
    assert not torch.equal(update[0], update[1]) and not torch.equal(update, later)


class Branch(nn.Module):
    """A path that depends on the numbers, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.linear(x if x.sum() > 0 else 2 * x)
        return outputs


class Drops(nn.Module):
    """Dropout as a function, which no list of layers shows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.linear(nn.functional.dropout(x, 0.5, self.training))
        return outputs


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(2, 1, 4, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (2, 2)), layer, nn.Flatten(), nn.Linear(4, 3))


def weight_norm() -> nn.Module:
    first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(8, 3))


@cases("make", [Branch, Drops, attention, weight_norm])
def test_auto_runs_what_vmap_cannot(make: Callable[[], nn.Module]) -> None:
    task, f = Task(make()), federation(EQUAL)
    assert decision(task.module)[0] == "loop"
    same(collected(task, f, "auto", Client()), collected(task, f, "loop", Client()))


@cases("make", [Branch, Drops, attention, weight_norm])
def test_a_users_module_is_repeatable_in_the_loop(make: Callable[[], nn.Module]) -> None:
    task, f = Task(make()), federation(EQUAL)
    assert torch.equal(*(collected(task, f, "loop", Client())["update"] for _ in range(2)))


@cases(
    "m",
    [
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.GELU(), nn.Linear(8, 3, bias=False)),
        nn.Sequential(
            nn.Unflatten(1, (2, 2)),
            nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=False), nn.Tanh(), nn.Linear(8, 3)),
    ],
)
def test_the_modes_agree_for_other_layers(m: nn.Module) -> None:
    task, f = Task(m), federation(EQUAL | {"t": 13})
    loop = collected(task, f, "loop", Client(batch=8))
    same(collected(task, f, "vmap", Client(batch=8)), loop)
    same(collected(task, f, "auto", Client(batch=8)), loop)


# Groups


def groups(
    f: Federation, client: Client, at_once: int | None = None, kind: str = "mlp"
) -> list[list[int]]:
    """The sizes of the clients that are trained together."""
    task = Task(module(kind))
    plan = planned(client, task, f, list(range(f.clients)))
    parts = chunks(task, f.train, plan, at_once)
    order = torch.argsort(f.train.sizes, descending=True, stable=True)
    assert list(chain(*parts)) == order.tolist()
    return [f.train.sizes[part].tolist() for part in parts]


def test_a_small_client_is_never_padded_to_a_large_one() -> None:
    f = federation({"small": 20, "large": 20_000})
    assert groups(f, Client(batch=0)) == [[20_000], [20]]


def test_batches_of_a_group_are_at_most_twice_as_long_as_the_shortest() -> None:
    f = federation({str(n): n for n in (3, 5, 6, 7, 12, 13, 25, 100, 180, 200, 1000)})
    cut = groups(f, Client(batch=0))
    assert cut == [[1000], [200, 180, 100], [25, 13], [12, 7, 6], [5, 3]]
    # Rows that are computed, padding included, stay below twice those that there are.
    assert sum(len(g) * max(g) for g in cut) < 2 * sum(map(sum, cut))


def test_clients_of_full_batches_are_run_together_whatever_their_size() -> None:
    f = federation({"small": 20, "large": 20_000, "smaller": 9})
    assert groups(f, Client(batch=20)) == [[20_000, 20], [9]]
    assert groups(f, Client(batch=16)) == [[20_000, 20, 9]]


def test_clients_with_batchnorm_are_run_together_when_equal() -> None:
    assert groups(federation(MIXED), Client(), kind="norm") == [[41], [24, 24], [9, 9]]


class Watching(Simulator):
    """Remembers which clients answered together."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.together: list[list[int]] = []

    def _group(self, algorithm: Algorithm, request: Request, positions: Tensor) -> Group:
        self.together.append(request.clients[positions].tolist())
        return super()._group(algorithm, request, positions)


@cases(
    ("mode", "client", "budget", "want"),
    [
        ("loop", Client(), 1 << 28, [[4], [0], [2]]),
        ("vmap", Client(), 1, [[4, 0, 2]]),
        ("chunked", Client(), 1, [[4, 0, 2]]),  # groups would only copy the replies
        ("chunked", Ditto(), 1, [[4], [0], [2]]),
        ("chunked", Ditto(), 3 * VECTORS_PER_CLIENT * 67, [[4, 0, 2]]),
        ("chunked", Ditto(), 2 * VECTORS_PER_CLIENT * 67, [[4, 0], [2]]),
    ],
)
def test_groups_keep_to_the_budget(
    mode: str, client: Client, budget: int, want: list[list[int]]
) -> None:
    f, algorithm = federation(MIXED), averaging(Task(module("mlp")), client)
    simulator = Watching(f, vectorize=mode, budget=budget)
    message = algorithm.ask(algorithm.init(f.population))
    simulator.collect(algorithm, Request(torch.tensor([4, 0, 2]), message))
    assert simulator.together == want


def test_chunks_keep_to_their_numbers() -> None:
    f = federation({str(k): 20 for k in range(10)})
    task = Task(module("mlp"))
    one = cost(task, f, 20)
    for most in (1, 3, 4, 10):
        cut = groups(f, Client(), most * one)
        assert [len(g) for g in cut] == [most] * (10 // most) + [10 % most] * (10 % most > 0)
    assert [len(g) for g in groups(f, Client(), 1)] == [1] * 10


@cases("mode", ["vmap", "chunked"])
def test_a_small_client_beside_a_large_one_gives_the_same_update(mode: str) -> None:
    task, f = Task(module("mlp")), federation({"small": 20, "large": 20_000})
    for client in (Client(batch=0), Client(steps=3, batch=0)):
        same(collected(task, f, mode, client), collected(task, f, "loop", client))


def test_an_empty_request_has_empty_replies() -> None:
    f, algorithm = federation(EQUAL), averaging(Task(module("mlp")))
    message = algorithm.ask(algorithm.init(f.population))
    replies = Simulator(f).collect(algorithm, Request(torch.empty(0, dtype=torch.int64), message))
    assert len(replies.clients) == 0 and replies.values == {} and replies.failed == {}


def test_what_is_sent_to_each_client_reaches_that_client() -> None:
    """By two-phase's weights, whatever the order of the request and the groups."""
    task, f = Task(module("mlp")), federation(UNEQUAL)
    algorithm = TwoPhase(task, FedAvg(), Client(batch=8), SGD())
    message = algorithm.ask(algorithm.init(f.population))
    plain = collected(task, f, "loop", Client(batch=8))["update"]
    ids = torch.tensor([2, 0, 3, 1])
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    each = {"weight": weights, "buffer_weight": weights}
    for mode in ("loop", "vmap", "chunked"):
        request = Request(ids, message, "train", each)
        replies = Simulator(f, vectorize=mode, budget=1).collect(algorithm, request)
        close(replies.values["update"], weights[:, None] * plain[ids], rtol=1e-3, atol=1e-5)


# Clients' states


@cases("mode", ["loop", "vmap", "chunked"])
def test_a_clients_state_lasts_and_is_its_own(mode: str) -> None:
    task, f = Task(module("mlp")), federation(UNEQUAL)
    algorithm = averaging(task, Visitor(batch=8))
    simulator = Simulator(f, vectorize=mode)
    state = algorithm.init(f.population)
    visits = [0] * 4
    trained: Tensors = {}
    for round, ids in enumerate(([0, 1, 2], [2, 3], [3, 0, 1], [2]), 1):
        message = algorithm.ask(state | {"round": torch.tensor(round)})
        replies = simulator.collect(algorithm, Request(torch.tensor(ids), message)).values
        assert replies["visited"].tolist() == [visits[i] for i in ids]
        for k, i in enumerate(ids):
            w = message["w"] - replies["update"][k]
            before = trained.get(str(i), torch.zeros(task.size))
            close(replies["far"][k], (w - before).square().sum())
            visits[i] += 1
            trained[str(i)] = w
    states = states_of(simulator)
    assert {i: int(own["visits"]) for i, own in states.items()} == dict(enumerate(visits))
    for i, own in states.items():
        close(own["last"], trained[str(i)])


def test_a_state_starts_from_the_clients_own_seed() -> None:
    task = Task(module("mlp"))
    algorithm = averaging(task, Visitor())

    def own(sizes: dict[str, int], seed: int) -> dict[str, int]:
        f = federation(sizes)
        simulator = Simulator(f, seed)
        message = algorithm.ask(algorithm.init(f.population))
        simulator.collect(algorithm, Request(torch.arange(f.clients), message))
        states = states_of(simulator)
        return {f.names[i]: int(state["own"]) for i, state in states.items()}

    a, b = own(UNEQUAL, 0), own({"aaa": 9, **UNEQUAL}, 0)
    assert len(set(b.values())) == 5
    assert {name: b[name] for name in a} == a == own(UNEQUAL, 0)
    assert not set(own(UNEQUAL, 1).values()) & set(a.values())


def test_two_simulators_share_nothing() -> None:
    task, f = Task(module("mlp")), federation(UNEQUAL)
    a, b = Simulator(f), Simulator(f)
    algorithm = averaging(task, Visitor())
    message = algorithm.ask(algorithm.init(f.population))
    a.collect(algorithm, Request(torch.arange(4), message))
    assert set(dict(a.states)) == {0, 1, 2, 3} and dict(b.states) == {}
    a.states.reset()
    assert dict(a.states) == {}


def test_a_request_that_trains_nothing_leaves_states_as_they_are() -> None:
    f = federation(EQUAL)
    simulator = Simulator(f)
    algorithm = averaging(Task(module("mlp")), Visitor())
    message = algorithm.ask(algorithm.init(f.population)) | {"classes": torch.tensor(3)}
    simulator.collect(algorithm, Request(torch.arange(4), message, "describe"))
    assert dict(simulator.states) == {}


# Evaluation


@cases("kind", KINDS)
def test_evaluation_is_a_loop_over_clients(kind: str) -> None:
    task, f = Task(module(kind)), federation(UNEQUAL, SHAPES[kind])
    algorithm = averaging(task)
    state = algorithm.init(f.population) | {"w": task.reinitialised(5).initial}
    plain = loaded(task, state["w"]).eval()
    for part, rows in (("test", f.test), ("train", f.train)):
        found = Simulator(f).evaluate(algorithm, state, part)
        assert found.sizes.tolist() == rows.sizes.tolist() and found.personal is None
        for k in range(4):
            own = rows.client(k)
            close(found.losses[k], torch_loss("cross-entropy", plain(own.x), own.y))
            assert found.score[k].item() == pytest.approx(accuracy(plain, own))


def accuracy(plain: nn.Module, rows: Rows) -> float:
    return float((plain(rows.x).argmax(1) == rows.y).double().mean())


def test_evaluation_gives_nan_where_there_are_no_test_rows() -> None:
    owner = ["one", "four", "four", "four", "four"]
    f = Federation.from_arrays(torch.randn(5, 4), [0, 1, 2, 0, 1], owner)
    algorithm = averaging(Task(module("mlp")))
    found = Simulator(f).evaluate(algorithm, algorithm.init(f.population))
    assert found.losses.isnan().tolist() == found.score.isnan().tolist() == [False, True]
    assert found.scored.tolist() == [0]


def test_a_federation_without_any_test_rows_is_refused() -> None:
    f = Federation.from_arrays(torch.randn(4, 4), [0, 1, 2, 0], ["a", "a", "b", "b"], test=0)
    with pytest.raises(DataError, match="no client has test rows: give a test share above 0"):
        Simulator(f)


@cases("mode", ["loop", "vmap", "chunked"])
@cases("kind", ["mlp", "norm"])
def test_own_models_are_evaluated_client_by_client(kind: str, mode: str) -> None:
    task, f = Task(module(kind)), federation(UNEQUAL)
    algorithm = averaging(task, Ditto(batch=8))
    simulator = Simulator(f, vectorize=mode, budget=20 * task.size)
    state = algorithm.init(f.population)
    before = simulator.evaluate(algorithm, state)
    assert before.personal is not None  # nobody has a model of its own yet
    assert torch.equal(before.personal.score, before.score)
    ids = torch.tensor([3, 0, 1])
    simulator.collect(algorithm, Request(ids, algorithm.ask(state)))
    found = simulator.evaluate(algorithm, state).personal
    assert found is not None
    message = algorithm.message(state)
    states = states_of(simulator)
    assert set(states) == {0, 1, 3}
    for k in range(4):
        own = f.test.client(k)
        w = algorithm.uses(message, simulator.states[k]).models[0] if k in states else state["w"]
        plain = loaded(task, w).eval()
        close(found.losses[k], torch_loss("cross-entropy", plain(own.x), own.y))
        assert found.score[k].item() == pytest.approx(accuracy(plain, own))


def test_several_scores_are_evaluated_in_one_pass() -> None:
    task = Task(module("mlp", 7), also=("top-5", "ece"))
    f = federation(UNEQUAL, classes=7)
    algorithm = averaging(task)
    found = Simulator(f).evaluate(algorithm, algorithm.init(f.population))
    assert list(found.scores) == ["accuracy", "top-5", "ece"]
    alone = task.replace(score="top-5", also=())
    single = Simulator(f).evaluate(averaging(alone), algorithm.init(f.population))
    assert torch.equal(found.scores["top-5"], single.score)
    assert torch.equal(found.losses, single.losses)


def test_a_model_that_does_not_fit_the_rows_is_an_error() -> None:
    sentence = r"the model Linear does not fit the data: rows have shape \(4,\) and 3 outputs"
    with pytest.raises(ConfigError, match=sentence):
        decision(nn.Linear(5, 3))


@cases("mode", ["loop", "vmap", "chunked"])
@cases("kind", ["mlp", "norm"])
def test_replies_have_the_loss_of_the_received_model(kind: str, mode: str) -> None:
    task, f = Task(module(kind)), federation(UNEQUAL)
    algorithm = averaging(task, Client(lr=0.5))
    message = algorithm.ask(algorithm.init(f.population)) | {"w": task.reinitialised(5).initial}
    ids = torch.tensor([2, 0, 3])
    replies = Simulator(f, vectorize=mode).collect(algorithm, Request(ids, message)).values
    plain = loaded(task, message["w"]).eval()
    for k, client in enumerate(ids.tolist()):
        own = f.train.client(client)
        close(replies["loss"][k], torch_loss("cross-entropy", plain(own.x), own.y))
        assert replies["score"][k].item() == pytest.approx(accuracy(plain, own))
        assert replies["size"][k] == len(own.y)


def test_a_federation_learns() -> None:
    task, f = Task(module("mlp")), federation(UNEQUAL, test=50)
    algorithm, simulator = averaging(task, Client(batch=8)), Simulator(f)
    state = algorithm.init(f.population)
    first = simulator.evaluate(algorithm, state)
    for _ in range(5):
        replies = simulator.collect(algorithm, Request(torch.arange(4), algorithm.ask(state)))
        state = algorithm.tell(state, replies, 4).state
    last = simulator.evaluate(algorithm, state)
    assert (last.losses < first.losses).all() and (last.score > first.score).all()


def test_samples_are_not_copied_for_parts_that_nobody_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To undivide training and validation samples is to copy all of them."""
    f = federation({"a": 12, "b": 9}, SHAPES["mlp"])
    task = Task(module("mlp"))
    algorithm = averaging(task, Blend(lr=0.1, batch=4))
    monkeypatch.delattr(Federation, "undivided")
    simulator = Simulator(f)
    request = Request(torch.arange(2), algorithm.ask(algorithm.init(f.population)))
    assert len(simulator.collect(algorithm, request).clients) == 2
