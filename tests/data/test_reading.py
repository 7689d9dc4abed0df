"""Datasets of torch as clients: the same numbers as from arrays, stacked or read when needed."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import commonweal
from cases import cases
from commonweal import Federation, Task
from commonweal.base.errors import DataError
from commonweal.config import catalog
from commonweal.data.samples import Lazy, Stacked
from commonweal.data.transforms import crop_and_flip, random_crop, random_flip
from commonweal.jobs.rounds import Round

RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.normal(size=(90, 4)).astype(np.float32))
Y = torch.from_numpy(RNG.integers(0, 3, 90))
NAMES = ("a", "b", "c")
SYNTHETIC = ("fedcgan", "fedcvae", "fedevg")  # the first two train by averaging
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedcorr": {"iterations": 1, "beta": 0.0},
    "private": {"entropy": "seed", "noise": 1e-9},
}


def clients() -> dict[str, TensorDataset]:
    return {name: TensorDataset(X[k::3], Y[k::3]) for k, name in enumerate(NAMES)}


def arrays() -> Federation:
    owner = np.repeat(np.array(NAMES), 30)
    order = torch.cat([torch.arange(k, 90, 3) for k in range(3)])
    return Federation.from_arrays(X[order], Y[order], owner)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def losses(task: Task, federation: Federation, **parts: Any) -> list[float]:
    settings: dict[str, Any] = {"rounds": 3, "client": {"name": "sgd", "lr": 0.1, "batch": 8}}
    settings |= parts
    *_, last = commonweal.run(task, federation, **settings)
    return evaluated(last)


def evaluated(done: Round) -> list[float]:
    assert done.evaluation is not None
    found: list[float] = done.evaluation.losses.tolist()
    return found


class Named(Dataset[dict[str, object]]):
    """Samples that are dicts."""

    def __init__(self, base: TensorDataset) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> dict[str, object]:
        x, y = self.base[index]
        return {"first": x[:2], "second": x[2:], "label": int(y)}


class Two(nn.Module):
    """A module of two inputs, by position or by name, with one that is masked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        out: Tensor = self.layer(torch.cat([first, second], -1))
        return out


def test_datasets_are_the_arrays_that_they_hold() -> None:
    federation = Federation.from_datasets(clients())
    expected = arrays()
    assert federation.names == NAMES and federation.outputs == 3
    for part in ("train", "test"):
        ours, theirs = getattr(federation, part), getattr(expected, part)
        assert torch.equal(ours.x, theirs.x) and torch.equal(ours.y, theirs.y)
    assert losses(Task(model()), federation) == losses(Task(model()), expected)


def test_samples_that_do_not_fit_are_read_when_needed_with_the_same_result() -> None:
    lazy = Federation.from_datasets(clients(), memory=100)
    assert isinstance(lazy.train.inputs, Lazy)
    want = losses(Task(model()), Federation.from_datasets(clients()), vectorize="loop")
    assert losses(Task(model()), lazy, vectorize="loop") == pytest.approx(want, rel=1e-5)
    more = {"validation": 0.2, "holdout_clients": 0.3}
    want = losses(Task(model()), Federation.from_datasets(clients()), **more)
    assert losses(Task(model()), lazy, **more) == pytest.approx(want, rel=1e-5)


def test_subsets_and_test_datasets_by_name() -> None:
    data = clients()
    train = {name: Subset(data[name], range(20)) for name in NAMES}
    test = {name: Subset(data[name], range(20, 30)) for name in NAMES[:2]}
    federation = Federation.from_datasets(train, test)
    assert federation.train.sizes.tolist() == [20, 20, 20]
    assert federation.test.sizes.tolist() == [10, 10, 0] and federation.unscored == ["c"]
    assert torch.equal(federation.test.client(1).x, X[1::3][20:30])
    with pytest.raises(DataError, match="test names 'd'"):
        Federation.from_datasets(train, {"d": data["a"]})


def test_a_function_opens_each_client_and_no_more_than_some_at_once() -> None:
    opened: list[str] = []

    def make(name: str) -> TensorDataset:
        opened.append(name)
        return clients()[name]

    federation = Federation.from_function(NAMES, make, memory=0)
    assert opened == list(NAMES)
    assert losses(Task(model()), federation) == pytest.approx(losses(Task(model()), arrays()))
    assert len(opened) == 6


@pytest.mark.parametrize("memory", [1 << 30, 0])
@pytest.mark.parametrize("vectorize", ["vmap", "loop"])
def test_several_inputs_are_the_modules_arguments(memory: int, vectorize: str) -> None:
    by_name = {name: Named(data) for name, data in clients().items()}
    by_place = {
        name: TensorDataset(X[k::3, :2], X[k::3, 2:], Y[k::3]) for k, name in enumerate(NAMES)
    }
    plain = nn.Linear(4, 3)
    plain.load_state_dict(Two().layer.state_dict())
    want = losses(Task(plain), arrays(), vectorize=vectorize)
    for data in (by_name, by_place):
        federation = Federation.from_datasets(data, memory=memory)
        taken = federation.train.inputs[torch.tensor([0, 1])]
        assert isinstance(taken, Stacked) and taken.shape == (2, 2)
        got = losses(Task(Two()), federation, vectorize=vectorize)
        assert got == pytest.approx(want, rel=1e-5)


def test_collate_fn_pads_samples_of_different_lengths() -> None:
    data = {name: [(torch.ones(1 + i % 3), i % 2) for i in range(9)] for name in NAMES}

    def pad(samples: list[Any]) -> tuple[Tensor, Tensor]:
        x = torch.stack([nn.functional.pad(x, (0, 3 - len(x))) for x, _ in samples])
        return x, torch.tensor([y for _, y in samples])

    with pytest.raises(DataError, match="give a collate_fn"):
        Federation.from_datasets(data)
    for memory in (0, 1 << 20):
        federation = Federation.from_datasets(data, collate_fn=pad, memory=memory)
        assert federation.train.inputs.shape[1:] == (3,)


class Stream(IterableDataset[tuple[Tensor, int]]):
    """Samples without an index, though with a length."""

    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter([(torch.ones(2), 1)] * 9)


class Lying(Dataset[tuple[Tensor, int]]):
    """Has fewer samples than it says."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return ([(torch.ones(2), 1)] * 5)[index]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([torch.ones(2)] * 4, "a sample is a Tensor"),
        ([{"a": torch.ones(2)}] * 4, r"a sample has \['a'\]: name its label"),
        ([(torch.ones(2), "ill")] * 4, "label of a sample is a str"),
        ([("word", 1)] * 4, "input 1 of a sample is a str"),
        (iter([1]), "client 'a': list_iterator has no length"),
        ([], "hold no samples"),
        ([{"x": torch.ones(2), "label": 1, "labels": 1}] * 4, "name its label"),
        ([(torch.ones(2, dtype=torch.complex64), 1)] * 4, "complex"),
        ([(torch.tensor([1.0, math.nan]), 1)] * 4, "client 'a' has NaN .* in sample 0"),
        (DataLoader(TensorDataset(X, Y)), r"client 'a': DataLoader cannot be read.*\.dataset"),
        (Stream(), "client 'a': Stream cannot be read by index"),
        (Lying(), "client 'a': sample 5 of Lying, which has 9, raised IndexError"),
    ],
)
def test_wrong_samples_are_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Federation.from_datasets({"a": data})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ([(torch.ones(3), 1)] * 4, r"different shapes: \(3,\) and \(2,\)"),
        ([(torch.ones(2), torch.ones(2), 1)] * 4, "different shapes"),
        ([(torch.ones(2), 1.5)] * 4, "client 'b' has labels of torch.float64"),
        ([(torch.ones(2), torch.ones(2))] * 4, "client 'b' has labels of"),
        ([({"x": torch.ones(2)}, 1)] * 4, r"different shapes: x \(2,\) and \(2,\)"),
    ],
)
def test_clients_whose_samples_differ_are_refused(other: Any, message: str) -> None:
    for memory in (0, 1 << 20):
        with pytest.raises(DataError, match=message):
            Federation.from_datasets({"a": [(torch.ones(2), 1)] * 4, "b": other}, memory=memory)


def test_inputs_of_dicts_go_by_their_names_whatever_their_order() -> None:
    """They went by their place: the second client's mask was taken for its tokens."""
    first = [{"x": torch.ones(2), "keep": torch.tensor([True, False]), "y": 1}] * 4
    second = [{"keep": torch.tensor([True, False]), "y": 1, "x": torch.ones(2)}] * 4
    for memory in (0, 1 << 20):
        data: dict[Any, Any] = {1: first, 2: second}
        federation = Federation.from_datasets(data, memory=memory)
        inputs = federation.train.inputs[:]
        assert federation.names == ("1", "2") and isinstance(inputs, Stacked)
        assert inputs.names == ("x", "keep")
        assert inputs.values[0].eq(1).all() and inputs.values[1].dtype == torch.bool


class Masked(nn.Module):
    """Takes tokens, a mask and a group, each in the type that it has in the dataset."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(9, 3))
        self.group = nn.Parameter(torch.zeros(2, 3))

    def forward(self, tokens: Tensor, keep: Tensor, group: Tensor) -> Tensor:
        assert (tokens.dtype, keep.dtype, group.dtype) == (torch.int64, torch.bool, torch.uint8)
        kept: Tensor = (self.table[tokens] * keep[..., None]).mean(1)
        return kept + self.group[group.long()]


def test_several_inputs_keep_their_types() -> None:
    tokens = torch.arange(60).view(20, 3) % 9
    group = torch.ones(20, dtype=torch.uint8)
    data = TensorDataset(tokens, tokens > 3, group, torch.arange(20) % 3)
    federation = Federation.from_datasets({"a": data, "b": data})
    assert math.isfinite(sum(losses(Task(Masked()), federation)))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, torch.bool])
def test_one_input_of_any_type_is_what_arrays_are(kind: torch.dtype) -> None:
    data = {name: TensorDataset(X[k::3].to(kind), Y[k::3]) for k, name in enumerate(NAMES)}
    federation = Federation.from_datasets(data)
    assert federation.train.x.dtype == torch.float32
    parts = [X[k::3].to(kind).requires_grad_(kind.is_floating_point) for k in range(3)]
    owner = np.repeat(np.array(NAMES), 30)
    labels = torch.cat([Y[k::3] for k in range(3)])
    same = Federation.from_arrays(torch.cat(parts), labels, owner)
    assert torch.equal(federation.train.x, same.train.x)


def test_datasets_that_draw_random_numbers_warn() -> None:
    class Random(Lying):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.rand(2), 1

    with pytest.warns(commonweal.CommonwealWarning, match="client 'a' .* draw random numbers"):
        Federation.from_datasets({"a": Random()})


def test_samples_that_are_read_when_needed_must_be_finite(tmp_path: Path) -> None:
    values = X.numpy().copy()
    values[7, 2] = np.nan
    np.save(tmp_path / "x.npy", values)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    federation = Federation.from_arrays(mapped, Y, np.arange(90) % 3)
    with pytest.raises(DataError, match="sample 7 has NaN or infinite inputs"):
        losses(Task(model()), federation)


def test_a_memmap_stays_in_its_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    owner = np.arange(90) % 3
    federation = Federation.from_arrays(mapped, Y, owner)
    assert isinstance(federation.train.inputs, Lazy)
    want = losses(Task(model()), Federation.from_arrays(X, Y, owner), vectorize="loop")
    assert losses(Task(model()), federation, vectorize="loop") == pytest.approx(want, rel=1e-5)


class Made(Dataset[tuple[Tensor, int]]):
    """Samples of 40 kB that exist only while they are read."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((10_000,), float(index % 2)), index % 2


def test_training_takes_a_tenth_of_the_memory_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 clients of 4 MB each, with a limit of 4 MB: never more than a few batches are held."""
    largest = 0
    begin = Lazy.begin

    def watched(self: Lazy, index: Any) -> Any:
        def waited() -> Tensor | Stacked:
            nonlocal largest
            inputs = read()
            assert isinstance(inputs, Tensor)
            largest = max(largest, inputs.numel() * 4)
            return inputs

        read = begin(self, index)
        return waited

    monkeypatch.setattr(Lazy, "begin", watched)
    federation = Federation.from_function(
        [f"c{k}" for k in range(10)], lambda _: Made(), memory=1 << 22
    )
    assert isinstance(federation.train.inputs, Lazy)
    module = nn.Linear(10_000, 2)
    got = losses(Task(module), federation, rounds=1, vectorize="loop")
    assert max(got) < 0.7 and 0 < largest <= 1 << 22


def test_a_transform_changes_training_batches_only_and_is_drawn_from_the_clients_stream() -> None:
    seen: list[tuple[int, ...]] = []

    def shift(x: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(tuple(x.shape))
        return x + torch.rand(1, generator=generator)

    federation = Federation.from_datasets(clients(), transform=shift)
    plain = losses(Task(model()), Federation.from_datasets(clients()))
    first = losses(Task(model()), federation)
    assert seen and set(seen) == {(8, 4)} and first != plain
    assert losses(Task(model()), federation) == first
    one_by_one = losses(Task(model()), federation, vectorize="loop")
    assert one_by_one == pytest.approx(first, rel=1e-5)


def without_inputs(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.zeros_like(x)


def moved(federation: Federation, **parts: Any) -> tuple[float, float]:
    """How far a run moves the weight and the bias of a linear model."""
    module = nn.Linear(4, 3)
    *_, last = commonweal.run(Task(module), federation, rounds=2, **parts)
    weight, bias = module.weight.detach(), module.bias.detach()
    after = last.state_dict()
    return float((after["weight"] - weight).norm()), float((after["bias"] - bias).norm())


@cases(
    "name", [n for n in catalog.entries("algorithms") if n not in (*SYNTHETIC, "boosting", "glm")]
)
def test_every_algorithm_trains_on_transformed_batches(name: str) -> None:
    """The weight of a linear model gets no gradient from inputs of 0; its bias does."""
    federation = Federation.from_datasets(clients(), transform=without_inputs)
    algorithm = {"name": name} | ALGORITHMS.get(name, {})
    sampler = {"sampler": "poisson"} if name == "private" else {}
    weight, bias = moved(federation, algorithm=algorithm, **sampler)
    assert bias > 0.01 and weight < 1e-6  # for private's noise


def test_samples_made_of_others_keep_the_transform() -> None:
    federation = Federation.from_datasets(clients(), transform=without_inputs)
    divided = federation.with_validation(0.2)
    assert divided.undivided is not None
    for made in (
        federation.augmented(X[:5], Y[:5]),
        divided,
        replace(federation, train=divided.undivided),
        federation.hold_out(0.4),
        federation.with_labels("classes"),
    ):
        assert moved(made)[0] == 0


def test_fedevg_refuses_a_transform_which_it_would_not_apply() -> None:
    federation = Federation.from_datasets(clients(), transform=without_inputs)
    with pytest.raises(DataError, match="needs no transform"):
        moved(federation, algorithm={"name": "fedevg", "bound": 3.0, "steps": 1, "spc": 1})


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda x: x, "transform raised TypeError"),
        (lambda x, generator: x[:, :2], r"transform made \(8, 2\) of a batch of shape \(8, 4\)"),
        (lambda x, generator: x.numpy(), "transform made ndarray"),
    ],
)
def test_transforms_that_cannot_be_used_are_refused(transform: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        losses(Task(model()), Federation.from_datasets(clients(), transform=transform))


def test_a_transform_that_draws_from_torchs_generator_draws_from_the_clients_stream() -> None:
    federation = Federation.from_datasets(clients(), transform=lambda x, _: x + torch.rand(1))
    before = torch.get_rng_state()
    first = losses(Task(model()), federation)
    torch.rand(9)
    assert losses(Task(model()), federation) == first
    torch.set_rng_state(before)


class Columns(dict[Any, Any]):
    """A stand-in for datasets.Dataset: columns by name, rows by number."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        return {name: self[name][key] for name in self}

    def __len__(self) -> int:
        return len(self["hospital"])


def test_a_hugging_face_dataset_with_a_column_of_clients() -> None:
    owner = [NAMES[i % 3] for i in range(90)]
    table = Columns(hospital=owner, first=X[:, :2].tolist(), second=X[:, 2:].tolist())
    table["label"] = Y.tolist()
    federation = Federation.from_huggingface(table, "hospital", ["first", "second"])
    assert losses(Task(Two()), federation) == pytest.approx(
        losses(Task(Two()), Federation.from_datasets({n: Named(d) for n, d in clients().items()}))
    )
    with pytest.raises(DataError, match=r"inputs = 'third'.*no such column"):
        Federation.from_huggingface(table, "hospital", ["third"])


def test_partition_gives_every_sample_to_one_client() -> None:
    parts = commonweal.partition(Y, "dirichlet", clients=5, alpha=0.5, seed=1)
    assert len(parts) == 5
    assert sorted(np.concatenate(parts).tolist()) == list(range(90))
    again = commonweal.partition(Y.tolist(), "dirichlet", clients=5, alpha=0.5, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_crops_and_flips_move_whole_images() -> None:
    image = torch.arange(1.0, 65.0).view(1, 1, 8, 8)
    batch = image.expand(200, 3, 8, 8)
    generator = torch.Generator().manual_seed(0)
    flipped = random_flip(batch, generator)
    straight = torch.tensor([torch.equal(each, batch[0]) for each in flipped])
    assert 70 < int(straight.sum()) < 130
    assert torch.equal(flipped[~straight][0], batch[0].flip(-1))
    padded = nn.functional.pad(batch[0], (2, 2, 2, 2))
    windows = {
        padded[:, a : a + 8, b : b + 8].numpy().tobytes() for a in range(5) for b in range(5)
    }
    crops = {each.numpy().tobytes() for each in random_crop(batch, generator, padding=2)}
    assert crops == windows  # 200 draws of 25 places
    assert crop_and_flip(batch, generator).shape == batch.shape
