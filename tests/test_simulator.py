"""Three ways to run a cohort give the same numbers; a client's numbers are its own affair; the server weighs them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from commonweal.engines.simulator import MODES, Simulator
from commonweal.errors import ConfigError
from commonweal.federation import Federation
from commonweal.local import Local, Tensors
from commonweal.rule import Reports, State
from commonweal.rules.fedavg import FedAvg
from commonweal.server import SGD
from commonweal.task import Task
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
    torch_sgd,
)

UNEQUAL = {"five": 5, "twenty": 20, "fifty-seven": 57, "three hundred": 300}
EQUAL = {"p": 24, "q": 24, "r": 24, "s": 24}
MIXED = {"p": 24, "q": 9, "r": 24, "s": 9, "t": 41}  # 41 leaves a rest of one row
KINDS = ["logistic", "mlp", "norm", "cnn", "cnn-norm"]
LOCALS = {
    "plain": Local(),
    "full": Local(batch=0, epochs=2),
    "steps": Local(steps=7, batch=8),
    "all": Local(epochs=2, batch=8, lr=0.05, momentum=0.8, weight_decay=0.01, clip=1.0, decay=0.9),
}


def same(a: Tensors, b: Tensors) -> None:
    assert set(a) == set(b)
    for name in a:
        close(a[name], b[name], rtol=1e-3, atol=1e-5)


# The three ways


@pytest.mark.parametrize("sizes", [UNEQUAL, EQUAL, MIXED], ids=["unequal", "equal", "mixed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOCALS)
def test_the_three_ways_agree(kind: str, name: str, sizes: dict[str, int]) -> None:
    task, f, local = Task(module(kind)), federation(sizes, SHAPES[kind]), LOCALS[name]
    loop = collected(task, f, "loop", local)
    assert loop["update"].shape == (len(sizes), task.size)
    assert loop["update"].abs().max(1).values.min() > 1e-4  # every client learnt something
    # The budget is that of two clients of twenty rows, so that chunks of one and of several clients occur.
    budget = 2 * (6 * task.size + 60 * task.width(f.train.x))
    same(collected(task, f, "vmap", local), loop)
    same(collected(task, f, "chunked", local, budget=budget), loop)
    same(collected(task, f, "chunked", local, budget=1), loop)


@pytest.mark.parametrize("mode", ["loop", "vmap", "chunked"])
@pytest.mark.parametrize("kind", ["mlp", "cnn-norm"])
def test_every_way_is_torchs_sgd(kind: str, mode: str) -> None:
    task, f, local = Task(module(kind)), federation(MIXED, SHAPES[kind]), LOCALS["all"]
    replies = collected(task, f, mode, local)
    for k in range(f.clients):
        want = torch_sgd(task, local, task.initial, f.train, batches_of(planned(local, task, f, [k])))
        close(task.initial - replies["update"][k], want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", ["loop", "vmap", "chunked"])
def test_images_of_bytes(mode: str) -> None:
    f = federation(UNEQUAL, (1, 6, 6))
    as_bytes = [type(p)((p.x * 40 + 100).clamp(0, 255).byte(), p.y, p.offsets) for p in (f.train, f.test)]
    as_floats = [type(p)(p.x.float() / 255, p.y, p.offsets) for p in as_bytes]
    a, b = (Federation(*parts, f.names, 3) for parts in (as_bytes, as_floats))
    task = Task(module("cnn"))
    same(collected(task, a, mode, Local()), collected(task, b, mode, Local()))


@pytest.mark.parametrize(("criterion", "score", "outputs"), [("binary", "auroc", 1), ("squared", "r2", 1)])
def test_the_three_ways_agree_for_other_losses(criterion: str, score: str, outputs: int) -> None:
    f = federation({"p": 24, "q": 13}, classes=2)
    if criterion == "squared":
        f = Federation(
            *(type(p)(p.x, p.x[:, 0] * 2 + p.y, p.offsets) for p in (f.train, f.test)), f.names, 1, "squared"
        )
    task = Task(module("mlp", outputs), criterion, score)
    loop = collected(task, f, "loop", Local())
    assert loop["score"].isfinite().all()
    same(collected(task, f, "vmap", Local()), loop)


def test_the_replies_of_a_repeated_round_are_the_same_numbers() -> None:
    task, f = Task(module("norm")), federation(UNEQUAL)
    for mode in MODES:
        a, b = (collected(task, f, mode, LOCALS["all"]) for _ in range(2))
        assert all(torch.equal(a[name], b[name]) for name in a)


# A client's own affair


@pytest.mark.parametrize("mode", ["loop", "vmap", "chunked"])
@pytest.mark.parametrize("kind", ["mlp", "norm"])
def test_an_update_does_not_depend_on_the_cohort(kind: str, mode: str) -> None:
    task, f = Task(module(kind)), federation(UNEQUAL)
    everyone = collected(task, f, mode, Local(batch=8))
    for ids in ([0], [3], [2, 0], [1, 3, 0], [3, 2, 1, 0]):
        some = collected(task, f, mode, Local(batch=8), ids)
        same(some, {name: value[torch.tensor(ids)] for name, value in everyone.items()})
        assert some["size"].tolist() == [list(UNEQUAL.values())[i] for i in ids]


def test_in_the_loop_an_update_does_not_depend_on_the_cohort_at_all() -> None:
    task, f = Task(module("cnn-norm")), federation(MIXED, (1, 6, 6))
    everyone = collected(task, f, "loop", Local(batch=8))
    for ids in ([4], [2, 0], [4, 3, 2, 1, 0]):
        some = collected(task, f, "loop", Local(batch=8), ids)
        assert torch.equal(some["update"], everyone["update"][torch.tensor(ids)])


@pytest.mark.parametrize("mode", ["loop", "vmap", "chunked"])
def test_an_update_does_not_depend_on_a_new_client(mode: str) -> None:
    task = Task(module("mlp"))
    before = collected(task, federation(UNEQUAL), mode, Local(batch=8))
    after = collected(task, federation({"aaa newcomer": 33, **UNEQUAL}), mode, Local(batch=8))
    same({name: value[1:] for name, value in after.items()}, before)


def test_clients_with_the_same_rows_and_other_names_take_other_batches() -> None:
    f = federation({"p": 40})
    x, y = f.train.x, f.train.y
    twice = Federation(joined([(x, y), (x, y)]), joined([(x, y), (x, y)]), ("p", "q"), 3)
    update = collected(Task(module("mlp")), twice, "loop", Local(batch=8))["update"]
    assert not torch.equal(update[0], update[1])
    close(update[:1], collected(Task(module("mlp")), f, "loop", Local(batch=8))["update"])


def test_another_seed_gives_other_batches_and_another_round_too() -> None:
    task, f, algorithm = Task(module("mlp")), federation(UNEQUAL), averaging(Local(batch=8))
    seen = algorithm.ask(algorithm.init(task, 4))
    simulator, ids = Simulator(task, f), torch.arange(4)
    a = simulator.collect(algorithm, seen, ids, 0)["update"]
    b = simulator.collect(algorithm, seen, ids, 1)["update"]
    c = simulator.collect(algorithm, seen | {"round": torch.tensor(2)}, ids, 0)["update"]
    # The client of five rows takes them in one batch, whatever their order.
    assert (a[1:] - b[1:]).abs().max(1).values.min() > 1e-5 and (a[1:] - c[1:]).abs().max(1).values.min() > 1e-5


# Which way, and why


@pytest.mark.parametrize(
    ("m", "way", "why"),
    [
        (module("mlp"), "chunked", "67 parameters"),
        (module("logistic"), "chunked", "faster together"),
        (module("norm"), "chunked", "faster together"),
        (module("cnn"), "loop", "convolutions"),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2)), "loop", "convolutions"),
        (nn.GRU(4, 2), "loop", "recurrent"),
        (module("dropout"), "loop", "dropout"),
        (nn.Linear(4, 1 << 17), "loop", f"{5 << 17} parameters"),
    ],
)
def test_auto_decides_by_the_module_and_says_why(m: nn.Module, way: str, why: str) -> None:
    decided, reason = Simulator(Task(m), federation(EQUAL)).decision
    assert decided == way and why in reason


@pytest.mark.parametrize("mode", ["vmap", "chunked", "loop"])
def test_what_is_asked_for_is_done(mode: str) -> None:
    assert Simulator(Task(module("mlp")), federation(EQUAL), mode).decision == (mode, "asked for")


def test_an_unknown_way_is_suggested() -> None:
    with pytest.raises(ConfigError, match="no engine is called 'vmpa': did you mean 'vmap'"):
        Simulator(Task(module("mlp")), federation(EQUAL), "vmpa")


@pytest.mark.parametrize("mode", ["vmap", "chunked"])
def test_dropout_cannot_be_run_together(mode: str) -> None:
    with pytest.raises(ConfigError, match=f"engine '{mode}' cannot run a model with dropout: use 'loop' or 'auto'"):
        Simulator(Task(module("dropout")), federation(EQUAL), mode)


def test_dropout_is_repeatable_and_each_clients_own() -> None:
    task, f = Task(module("dropout")), federation(EQUAL)
    state = torch.get_rng_state()
    a = collected(task, f, "auto", Local())["update"]
    assert torch.equal(torch.get_rng_state(), state)  # torch's own generator is as it was
    torch.manual_seed(99)
    assert torch.equal(collected(task, f, "auto", Local())["update"], a)
    assert torch.equal(collected(task, f, "loop", Local(), [3, 1])["update"], a[[3, 1]])
    # Without dropout the numbers are others, so something was dropped.
    plain = nn.Sequential(*(part for part in task.module.children() if not isinstance(part, nn.Dropout)))
    assert (collected(Task(plain), f, "loop", Local())["update"] - a).abs().max() > 1e-3


def test_dropout_differs_by_client_and_round() -> None:
    # Five equal rows: their order does not matter, so that only what is dropped can differ.
    part = joined([(torch.ones(5, 4), torch.ones(5, dtype=torch.int64))] * 2)
    f, task, algorithm = Federation(part, part, ("p", "q"), 3), Task(module("dropout")), averaging()
    seen = algorithm.ask(algorithm.init(task, 2))
    update, later = (
        Simulator(task, f).collect(algorithm, seen | {"round": torch.tensor(r)}, torch.arange(2), 0)["update"]
        for r in (1, 2)
    )
    assert not torch.equal(update[0], update[1]) and not torch.equal(update, later)


class Branch(nn.Module):
    """A path that depends on the numbers, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x if x.sum() > 0 else 2 * x)  # type: ignore[no-any-return]


class Drops(nn.Module):
    """Dropout as a function, which no list of layers shows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(nn.functional.dropout(x, 0.5, self.training))  # type: ignore[no-any-return]


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(2, 1, 4, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (2, 2)), layer, nn.Flatten(), nn.Linear(4, 3))


def weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("make", [Branch, Drops, attention, weight_norm])
def test_auto_runs_what_vmap_cannot(make: Callable[[], nn.Module]) -> None:
    task, f = Task(make()), federation(EQUAL)
    simulator = Simulator(task, f)
    assert simulator.decision[0] == "loop"
    same(collected(task, f, "auto", Local()), collected(task, f, "loop", Local()))


@pytest.mark.parametrize("make", [Branch, Drops, attention, weight_norm])
def test_a_users_module_is_repeatable_in_the_loop(make: Callable[[], nn.Module]) -> None:
    task, f = Task(make()), federation(EQUAL)
    assert torch.equal(*(collected(task, f, "loop", Local())["update"] for _ in range(2)))


@pytest.mark.parametrize(
    "m",
    [
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.GELU(), nn.Linear(8, 3, bias=False)),
        nn.Sequential(
            nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, affine=True, track_running_stats=True), nn.Flatten()
        ),
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=False), nn.Tanh(), nn.Linear(8, 3)),
    ],
    ids=["layer norm", "group norm", "instance norm", "plain batch norm"],
)
def test_the_three_ways_agree_for_other_layers(m: nn.Module) -> None:
    task, f = Task(m), federation(EQUAL | {"t": 13})
    loop = collected(task, f, "loop", Local(batch=8))
    same(collected(task, f, "vmap", Local(batch=8)), loop)
    same(collected(task, f, "auto", Local(batch=8)), loop)


# Groups


def groups(f: Federation, local: Local, mode: str = "vmap", kind: str = "mlp", **how: int) -> list[list[int]]:
    """The sizes of the clients that are run together."""
    simulator = Simulator(Task(module(kind)), f, mode, **how)
    order = torch.argsort(f.train.sizes, descending=True, stable=True)
    cut = list(simulator._groups(averaging(local), order))
    assert torch.equal(torch.cat(cut), order)
    return [f.train.sizes[group].tolist() for group in cut]


def test_a_small_client_is_never_padded_to_a_large_one() -> None:
    f = federation({"small": 20, "large": 20_000})
    assert groups(f, Local(batch=0)) == [[20_000], [20]]


def test_batches_of_a_group_are_at_most_twice_as_long_as_the_shortest() -> None:
    f = federation({str(n): n for n in (3, 5, 6, 7, 12, 13, 25, 100, 180, 200, 1000)})
    cut = groups(f, Local(batch=0))
    assert cut == [[1000], [200, 180, 100], [25, 13], [12, 7, 6], [5, 3]]
    # Rows that are computed, padding included, stay below twice those that there are.
    assert sum(len(g) * max(g) for g in cut) < 2 * sum(map(sum, cut))


def test_clients_of_full_batches_are_run_together_whatever_their_size() -> None:
    f = federation({"small": 20, "large": 20_000, "smaller": 9})
    assert groups(f, Local(batch=20)) == [[20_000, 20], [9]]
    assert groups(f, Local(batch=16)) == [[20_000, 20, 9]]


def test_normalised_clients_are_run_together_when_equal() -> None:
    assert groups(federation(MIXED), Local(), kind="norm") == [[41], [24, 24], [9, 9]]


def test_the_loop_is_groups_of_one() -> None:
    assert groups(federation(MIXED), Local(), "loop") == [[41], [24], [24], [9], [9]]


def test_chunks_keep_to_the_budget() -> None:
    f = federation({str(k): 20 for k in range(10)})
    task = Task(module("mlp"))
    one = 6 * task.size + 3 * 20 * task.width(f.train.x)
    for most in (1, 3, 4, 10):
        cut = groups(f, Local(), "chunked", budget=most * one)
        assert [len(g) for g in cut] == [most] * (10 // most) + [10 % most] * (10 % most > 0)
    assert [len(g) for g in groups(f, Local(), "chunked", budget=1)] == [1] * 10


@pytest.mark.parametrize("mode", ["vmap", "chunked"])
def test_a_small_client_beside_a_large_one_gives_the_same_update(mode: str) -> None:
    task, f = Task(module("mlp")), federation({"small": 20, "large": 20_000})
    for local in (Local(batch=0), Local(steps=3, batch=0)):
        same(collected(task, f, mode, local), collected(task, f, "loop", local))


# What clients keep


@pytest.mark.parametrize("mode", ["loop", "vmap", "chunked"])
def test_what_a_client_keeps_lasts_and_is_its_own(mode: str) -> None:
    task, f, algorithm = Task(module("mlp")), federation(UNEQUAL), averaging(Visitor(batch=8))
    simulator, server = Simulator(task, f, mode), averaging().init(task, 4)
    visits, trained = [0] * 4, {}
    for round, ids in enumerate(([0, 1, 2], [2, 3], [3, 0, 1], [2]), 1):
        seen = algorithm.ask(server | {"round": torch.tensor(round)})
        replies = simulator.collect(algorithm, seen, torch.tensor(ids), 0)
        assert replies["visited"].tolist() == [visits[i] for i in ids]
        for k, i in enumerate(ids):
            w = seen["w"] - replies["update"][k]
            close(replies["far"][k], (w - trained.get(i, torch.zeros(task.size))).square().sum())
            visits[i], trained[i] = visits[i] + 1, w
    assert {i: int(kept["visits"]) for i, kept in simulator.kept.items()} == dict(enumerate(visits))
    for i, kept in simulator.kept.items():
        close(kept["last"], trained[i])


def test_what_is_kept_starts_from_the_clients_own_seed() -> None:
    task, algorithm = Task(module("mlp")), averaging(Visitor())
    seen = algorithm.ask(algorithm.init(task, 4))

    def own(sizes: dict[str, int], seed: int) -> dict[str, int]:
        f = federation(sizes)
        simulator = Simulator(task, f)
        simulator.collect(algorithm, seen, torch.arange(f.clients), seed)
        return {f.names[i]: int(kept["own"]) for i, kept in simulator.kept.items()}

    a, b = own(UNEQUAL, 0), own({"aaa": 9, **UNEQUAL}, 0)
    assert len(set(b.values())) == 5
    assert {name: b[name] for name in a} == a == own(UNEQUAL, 0)
    assert not set(own(UNEQUAL, 1).values()) & set(a.values())


def test_two_simulators_share_nothing() -> None:
    task, f = Task(module("mlp")), federation(UNEQUAL)
    a, b = Simulator(task, f), Simulator(task, f)
    algorithm = averaging(Visitor())
    a.collect(algorithm, algorithm.ask(algorithm.init(task, 4)), torch.arange(4), 0)
    assert set(a.kept) == {0, 1, 2, 3} and b.kept == {}


# Judging


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_is_a_loop_over_clients(kind: str) -> None:
    task, f = Task(module(kind)), federation(UNEQUAL, SHAPES[kind])
    algorithm = averaging()
    server = algorithm.init(task, 4) | {"w": task.fresh(5)}
    losses, scores = Simulator(task, f).evaluate(algorithm, server)
    plain = loaded(task, server["w"]).eval()
    for k in range(4):
        own = f.test.of(k)
        close(losses[k], torch_loss("cross-entropy", plain(own.x), own.y))
        assert scores[k].item() == pytest.approx((plain(own.x).argmax(1) == own.y).double().mean().item())


def test_evaluation_gives_nan_where_there_are_no_test_rows() -> None:
    f = Federation.from_arrays(torch.randn(5, 4), [0, 1, 2, 0, 1], ["one", "four", "four", "four", "four"])
    algorithm, task = averaging(), Task(module("mlp"))
    losses, scores = Simulator(task, f).evaluate(algorithm, algorithm.init(task, 2))
    assert losses.isnan().tolist() == scores.isnan().tolist() == [False, True]


def test_evaluation_without_any_test_rows_is_nan() -> None:
    f = Federation.from_arrays(torch.randn(4, 4), [0, 1, 2, 0], ["a", "a", "b", "b"], test=0)
    algorithm, task = averaging(), Task(module("mlp"))
    losses, scores = Simulator(task, f).evaluate(algorithm, algorithm.init(task, 2))
    assert losses.isnan().tolist() == scores.isnan().tolist() == [True, True]


@pytest.mark.parametrize("mode", ["loop", "vmap", "chunked"])
@pytest.mark.parametrize("kind", ["mlp", "norm"])
def test_replies_tell_of_the_received_model_before_training(kind: str, mode: str) -> None:
    task, f, algorithm = Task(module(kind)), federation(UNEQUAL), averaging(Local(lr=0.5))
    seen = algorithm.ask(algorithm.init(task, 4)) | {"w": task.fresh(5)}
    ids = torch.tensor([2, 0, 3])
    replies = Simulator(task, f, mode).collect(algorithm, seen, ids, 0)
    plain = loaded(task, seen["w"]).eval()
    for k, client in enumerate(ids.tolist()):
        own = f.train.of(client)
        close(replies["loss"][k], torch_loss("cross-entropy", plain(own.x), own.y))
        assert replies["score"][k].item() == pytest.approx((plain(own.x).argmax(1) == own.y).double().mean().item())
        assert replies["size"][k] == len(own.y)


# The server


@dataclass(frozen=True)
class Fixed:
    """A rule with given weights that counts its rounds."""

    weights: tuple[float, ...]

    def init(self, clients: int) -> State:
        return {"rounds": torch.tensor(0)}

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        assert reports.clients == 4
        return torch.tensor(self.weights, dtype=torch.float64), {"rounds": state["rounds"] + 1}


def a_round(kind: str = "mlp") -> tuple[Task, Tensors]:
    task, f = Task(module(kind)), federation(UNEQUAL)
    return task, collected(task, f, "loop", Local())


IDS = torch.arange(4)


def test_the_average_of_models_by_rows() -> None:
    task, replies = a_round()
    algorithm = averaging()
    server = algorithm.init(task, 4)
    told = algorithm.tell(task, server, IDS, replies, 4)
    share = torch.tensor([5, 20, 57, 300]) / 382
    close(told.server["w"], share @ (task.initial - replies["update"]))
    close(told.weights, share)
    assert told.ids.tolist() == [0, 1, 2, 3] and told.dropped == {}
    assert int(told.server["round"]) == 2 and int(server["round"]) == 1


def test_telling_changes_nothing_that_it_was_given() -> None:
    task, replies = a_round("norm")
    algorithm = averaging(step=SGD(momentum=0.9))
    server = algorithm.init(task, 4)
    w, copies = server["w"].clone(), {name: value.clone() for name, value in replies.items()}
    told = algorithm.tell(task, server, IDS, replies, 4)
    assert torch.equal(server["w"], w) and int(server["round"]) == 1 and not torch.equal(told.server["w"], w)
    assert all(torch.equal(copies[name], replies[name]) for name in copies)


def test_the_server_starts_from_a_copy_of_the_model() -> None:
    task = Task(module("mlp"))
    server = averaging().init(task, 4)
    server["w"].zero_()
    assert task.initial.abs().max() > 0


def test_statistics_are_averaged_with_normalised_weights() -> None:
    task, replies = a_round("norm")
    algorithm = averaging(rule=Fixed((2.0, 1.0, 0.5, 0.5)), step=SGD(lr=0.1))
    told = algorithm.tell(task, algorithm.init(task, 4), IDS, replies, 4)
    t, update, w = task.trained, replies["update"], task.initial
    weights = torch.tensor([2.0, 1.0, 0.5, 0.5])
    close(told.server["w"][:t], w[:t] - 0.1 * weights @ update[:, :t])
    close(told.server["w"][t:], weights / 4 @ (w - update)[:, t:])
    assert told.server["w"][t:].sub(w[t:]).abs().max() > 1e-3
    assert told.weights.tolist() == [2, 1, 0.5, 0.5]


def test_the_servers_momentum_leaves_statistics_alone() -> None:
    task, replies = a_round("norm")
    algorithm = averaging(step=SGD(momentum=0.9))
    server = algorithm.init(task, 4)
    assert server["step"]["velocity"].shape == (task.trained,)
    once = algorithm.tell(task, server, IDS, replies, 4).server
    again = algorithm.tell(task, once, IDS, replies, 4).server
    share = torch.tensor([5, 20, 57, 300]) / 382
    first = share @ replies["update"]
    close(again["w"][: task.trained], once["w"][: task.trained] - 1.9 * first[: task.trained])
    close(again["w"][task.trained :], once["w"][task.trained :] - first[task.trained :])


def test_rules_see_trained_coordinates_only() -> None:
    @dataclass(frozen=True)
    class Looks(FedAvg):
        def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
            assert reports.updates.shape == (4, task.trained)
            assert reports.losses.tolist() == replies["loss"].tolist()
            assert reports.scores.tolist() == replies["score"].tolist()
            assert reports.sizes.tolist() == [5, 20, 57, 300] and reports.ids.tolist() == [0, 1, 2, 3]
            return super().__call__(reports, state)

    task, replies = a_round("norm")
    algorithm = averaging(rule=Looks())
    assert len(algorithm.tell(task, algorithm.init(task, 4), IDS, replies, 4).weights) == 4


# Reports that cannot be used


def spoilt(replies: Tensors, name: str, client: int, value: float) -> Tensors:
    changed = replies[name].clone()
    changed[client if changed.ndim == 1 else (client, 3)] = value  # type: ignore[index]
    return replies | {name: changed}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("name", "why"), [("loss", "its loss is not a finite"), ("update", "training diverged")])
def test_what_is_not_finite_is_dropped_and_named(name: str, why: str, value: float) -> None:
    task, replies = a_round()
    algorithm = averaging()
    server = algorithm.init(task, 4)
    ids = torch.tensor([1, 0, 3, 2])
    told = algorithm.tell(task, server, ids, spoilt(replies, name, 2, value), 4)
    assert list(told.dropped) == [3] and why in told.dropped[3]
    assert told.ids.tolist() == [1, 0, 2]
    rest = torch.tensor([0, 1, 3])
    without = algorithm.tell(task, server, ids[rest], {n: v[rest] for n, v in replies.items()}, 4)
    assert torch.equal(told.server["w"], without.server["w"]) and torch.equal(told.weights, without.weights)


def test_an_undefined_score_drops_nobody() -> None:
    task, replies = a_round()
    algorithm = averaging()
    told = algorithm.tell(task, algorithm.init(task, 4), IDS, spoilt(replies, "score", 1, math.nan), 4)
    assert told.dropped == {} and len(told.ids) == 4


def test_a_finite_update_whose_sum_overflows_is_kept() -> None:
    task, replies = a_round()
    changed = replies["update"].clone()
    changed[1, :2] = 3e38
    algorithm = averaging(rule=Fixed((0.25,) * 4))
    told = algorithm.tell(task, algorithm.init(task, 4), IDS, replies | {"update": changed}, 4)
    assert told.dropped == {} and told.server["w"].isfinite().all()


def test_with_nothing_left_the_model_stays_and_the_round_advances() -> None:
    task, replies = a_round("norm")
    algorithm = averaging(rule=Fixed((0.25,) * 4), step=SGD(momentum=0.5))
    server = algorithm.init(task, 4)
    told = algorithm.tell(task, server, IDS, replies | {"loss": torch.full((4,), math.nan)}, 4)
    assert torch.equal(told.server["w"], server["w"]) and int(told.server["round"]) == 2
    assert told.ids.tolist() == told.weights.tolist() == [] and set(told.dropped) == {0, 1, 2, 3}
    assert told.server["rule"] is server["rule"] and told.server["step"] is server["step"]


def wild_federation() -> Federation:
    f = federation({"calm": 20, "wild": 20, "quiet": 20})
    scale = torch.ones(3, 1).index_fill(0, torch.tensor([1]), 1e12).repeat_interleave(20, 0)
    train = replace(f.train, x=f.train.x * scale, y=f.train.x[:, 0])
    test = replace(f.test, y=f.test.x[:, 0])
    return Federation(train, test, f.names, 1, "squared", "r2")


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_client_that_diverges_is_left_out_and_the_others_go_on(mode: str) -> None:
    f, task = wild_federation(), Task(module("logistic", 1), "squared", "r2")
    algorithm = averaging(Local(batch=4))
    server, simulator = algorithm.init(task, 3), Simulator(task, f, mode)
    before = simulator.evaluate(algorithm, server)[0]
    for _ in range(5):
        replies = simulator.collect(algorithm, algorithm.ask(server), torch.arange(3), 0)
        assert replies["loss"].isfinite().all()
        told = algorithm.tell(task, server, torch.arange(3), replies, 3)
        assert list(told.dropped) == [1] and "diverged" in told.dropped[1]
        assert told.weights.tolist() == [0.5, 0.5]
        server = told.server
    after = simulator.evaluate(algorithm, server)[0]
    assert (after[[0, 2]] < 0.1 * before[[0, 2]]).all() and int(server["round"]) == 6


def test_a_model_of_nan_stays_and_every_client_says_so() -> None:
    task, f = Task(module("mlp")), federation(UNEQUAL)
    algorithm = averaging()
    server = algorithm.init(task, 4) | {"w": torch.full_like(task.initial, math.nan)}
    simulator = Simulator(task, f)
    replies = simulator.collect(algorithm, algorithm.ask(server), IDS, 0)
    told = algorithm.tell(task, server, IDS, replies, 4)
    assert set(told.dropped) == {0, 1, 2, 3} and int(told.server["round"]) == 2


def test_a_federation_learns() -> None:
    task, f = Task(module("mlp")), federation(UNEQUAL, test=50)
    algorithm, simulator = averaging(Local(batch=8)), Simulator(task, f)
    server = algorithm.init(task, 4)
    first = simulator.evaluate(algorithm, server)
    for _ in range(5):
        replies = simulator.collect(algorithm, algorithm.ask(server), IDS, 0)
        server = algorithm.tell(task, server, IDS, replies, 4).server
    last = simulator.evaluate(algorithm, server)
    assert (last[0] < first[0]).all() and (last[1] > first[1]).all()
