"""Channels: what happens to replies on their way, at the client and at the server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.clients.fedper import FedPer
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, change
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.rounds import run
from commonweal.protocols.algorithm import Replies, Request
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.channels import Channel, Clip, PrivateMask
from commonweal.protocols.servers.sgd import SGD
from commonweal.record.record import Record
from commonweal.rules.fedavg import FedAvg
from commonweal.task.task import Task
from commonweal.training.client import Client
from run_helpers import contents, federation, states_of, stop, task

NOTHING = torch.empty(0)


def averaging(t: Task, *channels: Channel, client: Client | None = None) -> Averaging:
    return Averaging(t, FedAvg(), client or Client(batch=5), SGD(), channels, loss="always")


def mlp() -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Task(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)))


def sent(
    algorithm: Averaging, f: Federation, round: int = 1, clients: Tensor | None = None, **how: Any
) -> Replies:
    """The replies as they leave the clients."""
    state = algorithm.init(f.population) | {"round": torch.tensor(round)}
    asked = torch.arange(f.clients) if clients is None else clients
    return Simulator(f, **how).collect(algorithm, Request(asked, algorithm.ask(state)))


def final(t: Task, f: Federation, **parts: Any) -> Tensor:
    """The model after three rounds."""
    *_, last = run(t, f, rounds=3, **parts)
    w: Tensor = last.state["w"]
    return w


# Clip


def test_clip_shortens_what_is_too_long_and_leaves_the_rest() -> None:
    long = torch.tensor([3.0, -4.0])
    reply, memory = Clip(norm=2.0).encode({"update": long, "loss": torch.ones(1)}, {}, NOTHING)
    assert torch.equal(reply["update"], torch.tensor([1.2, -1.6])) and memory == {}
    assert reply["loss"].item() == 1
    for short in (torch.tensor([1.2, -1.6]) / 2, torch.zeros(2)):
        reply, _ = Clip(norm=2.0).encode({"update": short}, {}, NOTHING)
        assert torch.equal(reply["update"], short)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6, 1e18])
@pytest.mark.parametrize("norm", [1e-3, 1.0, 50.0])
def test_clip_bounds_the_norm_and_keeps_the_direction(norm: float, scale: float) -> None:
    update = scale * torch.randn(200, generator=torch.Generator().manual_seed(0))
    reply, _ = Clip(norm).encode({"update": update}, {}, NOTHING)
    assert reply["update"].norm() <= norm * (1 + 1e-5)
    cosine = torch.cosine_similarity(reply["update"].double(), update.double(), dim=0, eps=0)
    assert cosine.item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("vectorize", ["loop", "vmap"])
def test_every_reply_of_a_cohort_is_clipped_by_itself(vectorize: str) -> None:
    t, f = task(), federation(scale={1: 30.0})
    free = sent(averaging(t), f, vectorize=vectorize).values
    norms = free["update"].norm(dim=1)
    bound = norms.median().item()
    clipped = sent(averaging(t, Clip(bound)), f, vectorize=vectorize).values
    factor = (bound / norms).clamp(max=1)
    torch.testing.assert_close(clipped["update"], free["update"] * factor[:, None])
    assert (factor < 1).any() and (factor == 1).any()
    assert torch.equal(clipped["loss"], free["loss"])


def test_a_bound_that_is_never_reached_changes_nothing() -> None:
    t, f = task(), federation()
    assert torch.equal(final(t, f, channels=Clip(1e6)), final(t, f))
    assert not torch.equal(final(t, f, channels=Clip(1e-3)), final(t, f))


def test_a_clipped_model_moves_no_further_than_the_bound() -> None:
    t = task()
    w = t.initial
    for done in run(t, federation(scale={2: 100.0}), rounds=3, channels=["clip(norm=0.01)"]):
        assert (done.state["w"] - w).norm() <= 0.01 * (1 + 1e-4)
        w = done.state["w"]


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_a_norm_that_cannot_be_is_an_error(norm: float) -> None:
    with pytest.raises(ConfigError, match=r"clip norm = .*: it must be above 0"):
        Clip(norm)


# The private mask


def test_the_mask_removes_coordinates_and_the_server_has_zeros_there() -> None:
    channel = PrivateMask(torch.tensor([False, True, False, True]))
    reply, _ = channel.encode({"update": torch.tensor([1.0, 2.0, 3.0, 4.0])}, {}, NOTHING)
    assert reply["update"].tolist() == [1, 3]
    values = {"update": torch.stack([reply["update"], 10 * reply["update"]]), "loss": torch.ones(2)}
    decoded = channel.decode(values)
    assert decoded["update"].tolist() == [[1, 0, 3, 0], [10, 0, 30, 0]]
    assert decoded["loss"] is values["loss"] and values["update"].shape == (2, 2)


@pytest.mark.parametrize("sent", [1, 3, 4])
def test_an_update_of_another_length_is_not_taken_for_the_shared_part(sent: int) -> None:
    channel = PrivateMask(torch.tensor([False, True, False, True]))
    with pytest.raises(ValueError, match="places"):
        channel.decode({"update": torch.ones(2, sent)})


def test_clip_follows_the_private_mask_of_fedper() -> None:
    """The bound is on what is sent: a client's private head is neither counted nor clipped."""
    t, f = mlp(), federation(scale={1: 30.0})
    method = FedPer(batch=5, lr=0.5)
    mask = method.private(t)
    assert mask is not None
    algorithm = averaging(t, Clip(0.05), client=method)
    assert [type(channel) for channel in algorithm.path] == [PrivateMask, Clip]
    free = sent(averaging(t, client=method), f).values["update"]
    clipped = sent(algorithm, f).values["update"]
    assert clipped.shape == free.shape == (4, int((~mask).sum()))
    assert (free.norm(dim=1) > 0.05).all()
    torch.testing.assert_close(clipped, 0.05 * free / free.norm(dim=1, keepdim=True))
    decoded = algorithm.decode(Replies(torch.arange(4), {"update": clipped})).values["update"]
    assert decoded.shape == (4, t.size)
    assert torch.equal(decoded[:, ~mask], clipped) and not decoded[:, mask].any()


def test_clipping_does_not_reach_a_clients_private_layers() -> None:
    t, f = mlp(), federation()
    heads = []
    for channels in ((), (Clip(1e-9),)):
        engine = Simulator(f)
        algorithm = averaging(t, *channels, client=FedPer(batch=5))
        message = algorithm.ask(algorithm.init(f.population))
        engine.collect(algorithm, Request(torch.arange(4), message))
        heads.append([state["private"] for state in states_of(engine).values()])
    assert all(torch.equal(a, b) for a, b in zip(*heads, strict=True))


def test_private_layers_of_the_servers_model_never_move() -> None:
    t, f = mlp(), federation()
    mask = FedPer().private(t)
    w = final(t, f, client="fedper", channels=["clip(norm=0.5)"])
    assert torch.equal(w[mask], t.initial[mask]) and not torch.equal(w, t.initial)


def test_what_stays_with_the_clients_is_not_counted_as_sent() -> None:
    t, f = mlp(), federation()
    (whole,) = run(t, f, rounds=1)
    (part,) = run(t, f, rounds=1, client="fedper")
    private = int(FedPer().private(t).sum())
    assert whole.bytes["up"] - part.bytes["up"] == 4 * 4 * private
    assert whole.bytes["weights"] == part.bytes["weights"] == 2 * 4 * 4 * t.size


# Channels of one's own


@dataclass(frozen=True)
class Rounded(Channel):
    """Send multiples of `grid`; what rounding takes away is added to the next reply."""

    grid: float = 0.05

    def init(self, task: Task) -> Tensors:
        return {"residual": torch.zeros(task.size), "times": torch.tensor(0)}

    def encode(self, reply: Tensors, memory: Tensors, noise: Tensor) -> tuple[Tensors, Tensors]:
        wanted = reply["update"] + memory["residual"]
        update = self.grid * torch.round(wanted / self.grid)
        left = {"residual": wanted - update, "times": memory["times"] + 1}
        return reply | {"update": update}, left


@dataclass(frozen=True)
class Noisy(Channel):
    """Add a client's own noise to its update."""

    def draws(self, task: Task) -> int:
        return task.size

    def encode(self, reply: Tensors, memory: Tensors, noise: Tensor) -> tuple[Tensors, Tensors]:
        return reply | {"update": reply["update"] + noise.float()}, memory


@dataclass(frozen=True)
class Released(Channel):
    """Add the server's noise to the weighted sum, by its largest weight."""

    scale: float = 1.0

    def release(self, direction: Tensor, weights: Tensor, rng: np.random.Generator) -> Tensor:
        drawn = torch.from_numpy(rng.normal(size=len(direction))).float()
        return direction + self.scale * float(weights.max()) * drawn


@dataclass(frozen=True)
class Scaled(Channel):
    factor: float

    def encode(self, reply: Tensors, memory: Tensors, noise: Tensor) -> tuple[Tensors, Tensors]:
        return reply | {"update": reply["update"] * self.factor}, memory

    def decode(self, values: Tensors) -> Tensors:
        return values | {"update": values["update"] / self.factor}


@dataclass(frozen=True)
class Shifted(Channel):
    by: float

    def encode(self, reply: Tensors, memory: Tensors, noise: Tensor) -> tuple[Tensors, Tensors]:
        return reply | {"update": reply["update"] + self.by}, memory

    def decode(self, values: Tensors) -> Tensors:
        return values | {"update": values["update"] - self.by}


def test_channels_are_applied_in_order_and_undone_in_the_opposite_order() -> None:
    t, f = task(), federation()
    free = sent(averaging(t), f).values["update"]
    algorithm = averaging(t, Scaled(4.0), Shifted(1.0))
    replies = sent(algorithm, f)
    torch.testing.assert_close(replies.values["update"], 4 * free + 1)
    torch.testing.assert_close(algorithm.decode(replies).values["update"], free)
    torch.testing.assert_close(final(t, f, channels=[Scaled(4.0), Shifted(1.0)]), final(t, f))


def test_memory_is_each_clients_own_and_lasts() -> None:
    t, f = task(), federation()
    free, rounded = averaging(t), averaging(t, Rounded())
    engine = Simulator(f)
    message = free.ask(free.init(f.population))
    residual = torch.zeros(4, t.size)
    for round, ids in enumerate(([0, 1, 2], [2, 3], [0, 2]), 1):
        asked = torch.tensor(ids)
        request = Request(asked, message | {"round": torch.tensor(round)})
        update = Simulator(f).collect(free, request).values["update"]
        got = engine.collect(rounded, request).values["update"]
        wanted = update + residual[asked]
        torch.testing.assert_close(got, 0.05 * torch.round(wanted / 0.05))
        residual[asked] = wanted - got
    states = dict(engine.states)
    times = {client: int(state.channels[0]["times"]) for client, state in states.items()}
    assert times == {0: 2, 1: 1, 2: 3, 3: 1}
    for client, state in states.items():
        torch.testing.assert_close(state.channels[0]["residual"], residual[client])


@pytest.mark.parametrize("client", ["sgd", "ditto", "scaffold"])
@pytest.mark.parametrize("vectorize", ["vmap", "chunked"])
def test_channels_compute_the_same_in_all_modes(vectorize: str, client: str) -> None:
    parts = {"channels": [Rounded(), Noisy(), Clip(2.0)], "cohort": 3, "client": client}
    loop = final(task(), federation(), vectorize="loop", **parts)
    torch.testing.assert_close(
        final(task(), federation(), vectorize=vectorize, **parts), loop, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("client", ["sgd", "ditto", "fedper"])
def test_memory_survives_a_resume(tmp_path: Path, client: str) -> None:
    t, f = mlp(), federation(5)

    @dataclass(frozen=True)
    class Fitting(Rounded):
        """Of as many coordinates as are sent."""

        def init(self, task: Task) -> Tensors:
            mask = catalog.build("clients", client).private(task)
            size = task.size if mask is None else int((~mask).sum())
            return {"residual": torch.zeros(size), "times": torch.tensor(0)}

    def rounds(folder: str) -> Any:
        parts: Any = {
            "client": client,
            "channels": [Fitting(0.2), Clip(1.0)],
            "cohort": 2,
            "rounds": 6,
        }
        return run(t, f, out=tmp_path / folder, resume=True, **parts)

    *_, last = rounds("whole")
    states = last.job.local.states
    k = 1 if client == "fedper" else 0  # after the mask of private layers
    memories = [state.channels[k]["residual"] for state in states.values()]
    assert memories and all(memory.abs().max() > 0.001 for memory in memories)
    for _ in range(6):
        part = rounds("part")
        next(part)
        stop(part)
    assert list(rounds("part")) == []
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def test_a_client_that_diverges_keeps_its_memory() -> None:
    """Else its memory would never be finite again, and the client never heard again."""
    t, f = task(), federation(scale={2: 1e30})
    engine = Simulator(f)
    algorithm = averaging(t, Rounded())
    state: State = algorithm.init(f.population)
    for _ in range(2):
        replies = engine.collect(algorithm, Request(torch.arange(4), algorithm.ask(state)))
        outcome = algorithm.tell(state, replies, 4)
        assert list(outcome.dropped) == [2]
        state = outcome.state
    for client, kept in dict(engine.states).items():
        assert kept.channels[0]["residual"].isfinite().all()
        assert int(kept.channels[0]["times"]) == (0 if client == 2 else 2)


def test_a_clients_noise_depends_on_seed_round_and_name_only() -> None:
    t, f = task(), federation()
    algorithm = averaging(t, Noisy())

    def noise(round: int = 1, seed: int = 0, clients: Tensor | None = None) -> Tensor:
        how: dict[str, Any] = {"round": round, "seed": seed, "vectorize": "loop"}
        noisy = sent(algorithm, f, clients=clients, **how).values["update"]
        return noisy - sent(averaging(t), f, clients=clients, **how).values["update"]

    everyone = noise()
    assert ((everyone > -1e-6) & (everyone < 1 + 1e-6)).all()
    some = torch.tensor([3, 1])
    torch.testing.assert_close(noise(clients=some), everyone[some])
    for other in (noise(round=2), noise(seed=1), everyone.roll(1, 0)):
        assert (other - everyone).abs().max(1).values.min() > 0.1


def test_noise_of_a_channel_leaves_the_batches_alone() -> None:
    t, f = task(), federation()
    quiet = averaging(t, Scaled(1.0))
    assert torch.equal(sent(quiet, f).values["update"], sent(averaging(t), f).values["update"])


def test_the_servers_noise_depends_on_seed_and_round() -> None:
    t, f = task(), federation()
    runs = [final(t, f, channels=[Released()], seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_the_servers_noise_is_other_in_every_round_and_channel() -> None:
    t, f = task(), federation()
    algorithm = averaging(t, Released(), Released())
    once = averaging(t, Released())
    weights = torch.tensor([0.25, 0.75])
    state = algorithm.init(f.population)
    still = torch.zeros(t.size)

    def noise(of: Averaging, round: int) -> Tensor:
        moved = of.move(state | {"round": torch.tensor(round)}, still, weights)
        drawn: Tensor = (state["w"] - moved["w"]) / 0.75
        return drawn

    first = noise(once, 1)
    assert 0.1 < first.std() < 3
    assert (noise(once, 2) - first).abs().max() > 0.1
    second = noise(algorithm, 1) - first  # of the other channel
    assert (second - first).abs().max() > 0.1


# In an experiment


def test_channels_of_an_experiment() -> None:
    e = Experiment(dataset="vowel", channels=["clip(norm=0.5)", {"name": "clip", "norm": 2}])
    assert e.model_dump()["channels"] == [
        {"name": "clip", "norm": 0.5},
        {"name": "clip", "norm": 2.0},
    ]
    algorithm = job_from_experiment(e).algorithm
    assert isinstance(algorithm, Averaging)
    assert algorithm.channels == (Clip(0.5), Clip(2.0))
    assert Experiment(dataset="vowel").model_dump()["channels"] == []


@pytest.mark.parametrize(
    "text",
    ["channels=clip(norm=0.5)", 'channels=["clip(norm=0.5)"]', 'channels={name="clip", norm=0.5}'],
)
def test_channels_by_a_change(text: str) -> None:
    e = Experiment(**change({"dataset": "vowel"}, [text]))
    assert e.model_dump()["channels"] == [{"name": "clip", "norm": 0.5}]


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ("clp", "no channel is called 'clp': did you mean 'clip'"),
        (
            [{"name": "clip", "nrm": 1}],
            "channel 'clip' has no parameter 'nrm': did you mean 'norm'",
        ),
        (3, "channels = 3: give a list of names or tables"),
        ([3], "channel = 3: give a name, or a table"),
    ],
)
def test_wrong_channels_are_errors(channels: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Experiment(dataset="vowel", channels=channels)


def test_an_algorithm_without_channels_refuses_them() -> None:
    with pytest.raises(ConfigError, match="algorithm 'drfa' does not take a channel,"):
        run(task(), federation(), algorithm="drfa", channels=["clip"])


def test_the_private_mask_is_not_chosen_by_name() -> None:
    assert list(catalog.entries("channels")) == ["clip"]


@pytest.mark.parametrize("own", [False, True])
def test_a_run_names_its_channels(tmp_path: Path, own: bool) -> None:
    """Also those of an algorithm that is given as a thing."""
    t = task()
    channels = (Clip(0.5), Rounded())
    parts = {"algorithm": averaging(t, *channels)} if own else {"channels": channels}
    list(run(t, federation(), rounds=1, out=tmp_path / "run", **parts))
    named = Record.read(tmp_path / "run").experiment["channels"]
    assert named == [{"name": "clip", "norm": 0.5}, {"name": "test_channels:Rounded", "grid": 0.05}]
