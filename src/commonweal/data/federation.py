"""Every client's rows, concatenated, with offsets: client k owns rows offsets[k]:offsets[k + 1].

Nothing is padded: a million clients with three rows each take the memory of three million rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from commonweal.base.arguments import expect, expect_callable, expect_int, expect_names
from commonweal.base.errors import ConfigError, DataError
from commonweal.base.shares import product
from commonweal.data.arrays import as_array, as_features, as_labels, mapped, named_classes
from commonweal.data.identity import Identity
from commonweal.data.population import Population
from commonweal.data.reading import (
    MEMORY,
    ClientDataset,
    Collate,
    HuggingFaceDataset,
    MapDataset,
    of_table,
    read_parts,
)
from commonweal.data.rows import (
    Labels,
    Rows,
    joined_rows,
    labels_of,
    of_clients,
    scale_target,
    select_rows,
    usual_loss,
    with_labels,
)
from commonweal.data.samples import Inputs, Transform, joined_inputs, non_finite_samples, subset
from commonweal.data.split import (
    GroupedRows,
    Split,
    check_names,
    check_without,
    draw_names,
    some,
    split_rows,
    systematic_sample,
)
from commonweal.data.tables.preprocessing import Preprocessing, is_fitted

VALIDATION = 0x76616C6964  # makes the draws of other splits those of another seed
HOLD_OUT = 0x756E7365656E


class Features(NamedTuple):
    """The features of a split's training and test rows, and how a table's columns became them."""

    train: Inputs  # (n, ...)
    test: Inputs
    preprocessing: Preprocessing | None = None
    notes: tuple[str, ...] = ()
    pooled: bool = False  # scaled by statistics of all clients' training rows

    @classmethod
    def of(cls, inputs: Inputs, split: Split) -> "Features":
        """The inputs of a split's rows, as they are."""
        train, test = torch.from_numpy(split.train.rows), torch.from_numpy(split.test.rows)
        return cls(subset(inputs, train), subset(inputs, test))


class DatasetOptions(TypedDict, total=False):
    """Options for reading datasets of torch, and the task: see `Federation.from_function`."""

    collate_fn: Collate | None
    transform: Transform | None
    memory: int
    workers: int
    outputs: int | None
    groups: Sequence[str] | None
    class_names: Sequence[str]


class HeldOut(NamedTuple):
    """Clients that take no part in training, and all their rows."""

    names: tuple[str, ...]
    rows: Rows


@dataclass(frozen=True, eq=False)
class Federation:
    """Training and test rows of K clients, their names, and what their labels are.

    `outputs` is how many numbers a model gives per row. A `Task` has the loss; `score` is the one
    by which experiments score these rows where they name none.
    """

    train: Rows
    test: Rows
    names: tuple[str, ...]
    outputs: int
    labels: Labels = "classes"
    score: str = "accuracy"
    groups: tuple[str, ...] | None = None  # each client's group, where the data has groups
    notes: tuple[str, ...] = ()  # what a user should know about how the rows were prepared
    class_names: tuple[str, ...] = ()  # the labels' own words; empty: they are numbers
    preprocessing: Preprocessing | None = None  # how a table's columns became these rows
    validation: Rows | None = None  # rows to choose by: best round, early stop; never trained on
    held_out: "HeldOut | None" = None  # clients that take no part in training
    validated: np.ndarray | None = None  # (N,) which samples became validation samples
    pooled: bool = False  # features were scaled by statistics of all clients' training rows
    identity: Identity | None = None  # of all samples, however they are split (`identified`)
    test_share: float | None = None  # of each client's rows that is tested, where that was given

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.train.inputs.shape[1:]))
        what = f"{self.classes} classes" if self.classes else self.labels
        return (
            f"<Federation: {self.clients} clients, {len(self.train.y)} training and "
            f"{len(self.test.y)} test rows of {shape or 1} numbers, {what}>"
        )

    def with_validation(self, share: float, seed: int = 0) -> "Federation":
        """Move a share of each client's training rows to `validation`, stratified by class.

        Which rows depends on (seed, the client's name) only.
        """
        owner = np.repeat(np.arange(self.clients), self.train.sizes.numpy())
        labels = self.train.y.numpy()
        chosen = systematic_sample(owner, labels, self.names, share, seed ^ VALIDATION)
        train = select_rows(self.train, owner, ~chosen)
        validation = select_rows(self.train, owner, chosen)
        return replace(self, train=train, validation=validation, validated=chosen)

    @cached_property
    def undivided(self) -> Rows | None:
        """Training and validation samples together, in the order that they had before the split.

        Where samples were added after the split, the validation samples of a client come last.
        """
        if self.validation is None:
            return None
        train, validation = self.train, self.validation
        sizes = torch.cat([train.sizes, validation.sizes])
        owner = torch.arange(self.clients).repeat(2).repeat_interleave(sizes)
        order = torch.argsort(owner, stable=True)
        if self.validated is not None and len(self.validated) == len(owner):
            chosen = torch.from_numpy(self.validated).int()
            order = torch.argsort(torch.argsort(chosen, stable=True))
        inputs = joined_inputs([train.inputs, validation.inputs])
        labels = torch.cat([train.y, validation.y])
        together = replace(train, inputs=inputs, y=labels, numbers=None)
        return together.take(order, train.offsets + validation.offsets)

    def with_labels(self, labels: Labels) -> "Federation":
        """The federation with its labels taken as classes, values and so on.

        Raises:
            DataError: They are something else.
        """
        if labels == self.labels:
            return self
        if labels == "values" and self.class_names:
            raise DataError(f"the labels are classes ({self.class_names[0]!r}, ...), not numbers")
        held_out = self.held_out
        if held_out is not None:
            held_out = held_out._replace(rows=with_labels(held_out.rows, labels))
        train = with_labels(self.train, labels)
        outputs = self.outputs
        outputs = _outputs(torch.cat([self.train.y, self.test.y]), labels)
        return replace(
            self,
            train=train,
            test=with_labels(self.test, labels),
            validation=None if self.validation is None else with_labels(self.validation, labels),
            held_out=held_out,
            labels=labels,
            outputs=outputs,
        )

    def augmented(self, x: Tensor, y: Tensor) -> "Federation":
        """Give these rows, such as synthetic ones, to every client for training."""
        shape = tuple(self.train.x.shape[1:])
        if tuple(x.shape[1:]) != shape or y.shape[1:] != self.train.y.shape[1:]:
            raise DataError(
                f"rows of shape {tuple(x.shape[1:])} cannot be added to clients' rows of {shape}: "
                "take those of a run on the same dataset"
            )
        if self.train.x.dtype == torch.uint8 and x.is_floating_point():
            x = (255 * x).round()
        added = torch.arange(len(y)) + len(self.train.y)
        index: list[Tensor] = []
        for start, end in pairwise(self.train.offsets.tolist()):
            index += [torch.arange(start, end), added]
        chosen = torch.cat(index)
        offsets = self.train.offsets + len(y) * torch.arange(self.clients + 1)
        features = torch.cat([self.train.x, x.to(self.train.x.dtype)])
        labels = torch.cat([self.train.y, y.to(self.train.y.dtype)])
        note = f"every client trains on {len(y)} added rows, which are in its number of rows"
        x, y = features[chosen], labels[chosen]
        # Added rows have no numbers.
        train = replace(self.train, inputs=x, y=y, offsets=offsets, numbers=None)
        return replace(self, train=train, notes=(*self.notes, note))

    def hold_out(self, share: float, seed: int = 0) -> "Federation":
        """Hold a share of the clients out of training: `held_out` has all their rows.

        Which clients depends on the seed and their names only.
        """
        count = max(1, round(product(share, self.clients)))
        if count >= self.clients:
            raise DataError(
                f"holdout_clients = {share}: of {self.clients} clients, {count} would be held out "
                "and none would train; give a smaller share"
            )
        drawn = draw_names(self.names, count, seed ^ HOLD_OUT, position=0)
        held_out = torch.from_numpy(drawn)
        training = torch.from_numpy(np.setdiff1d(np.arange(self.clients), drawn))
        groups = self.groups
        return replace(
            self,
            train=of_clients(self.train, training),
            test=of_clients(self.test, training),
            names=_chosen(self.names, training),
            groups=None if groups is None else _chosen(groups, training),
            held_out=HeldOut(
                _chosen(self.names, held_out), joined_rows(self.train, self.test, held_out)
            ),
        )

    def without(self, names: Sequence[str]) -> "Federation":
        """The federation without some clients, as if it had never had them.

        Raises ConfigError where they are no clients, or where the features depend on their rows.
        """
        check_without(names, self.names)
        if self.pooled:
            raise ConfigError(
                f"without = {list(names)}: the features are scaled by all clients' rows, so that "
                "the others' depend on it; a table is read without it (dataset 'table')"
            )
        others = [k for k, name in enumerate(self.names) if name not in names]
        ids = torch.tensor(others)
        groups = self.groups
        return replace(
            self,
            train=of_clients(self.train, ids),
            test=of_clients(self.test, ids),
            names=_chosen(self.names, ids),
            groups=None if groups is None else _chosen(groups, ids),
        )

    def __post_init__(self) -> None:
        check_names(self.names)
        for part in (self.train, self.test):
            _check_offsets(part, self.names)
            _check_shapes(part, self)
            _check_features(part, self.names)
            _check_labels(part, self)
        empty = _chosen(self.names, (self.train.sizes == 0).nonzero()[:, 0])
        if empty:
            raise DataError(
                f"no training rows for {some(empty)}: leave such clients out, or give them rows"
            )

    @property
    def clients(self) -> int:
        return len(self.names)

    @property
    def population(self) -> Population:
        """The facts on these clients that a server may know."""
        return Population(
            names=self.names,
            sizes=self.train.sizes,
            shape=tuple(self.train.inputs.shape[1:]),
            outputs=self.outputs,
            groups=self.groups,
        )

    @property
    def classes(self) -> int | None:
        """The number of classes; None where a row has no class."""
        if self.labels not in ("classes", "binary"):
            return None
        return 2 if self.labels == "binary" else self.outputs

    @cached_property
    def target(self) -> tuple[float, float] | None:
        """The mean and deviation of the training labels of a regression; None: not scaled."""
        return scale_target(self.train.y, "squared") if self.labels == "values" else None

    @cached_property
    def scored(self) -> Tensor:
        """The clients that have test rows. The others train but have no score."""
        return (self.test.sizes > 0).nonzero().flatten()

    @property
    def unscored(self) -> list[str]:
        """The names of the clients without test rows."""
        return list(_chosen(self.names, (self.test.sizes == 0).nonzero()[:, 0]))

    @cached_property
    def counts(self) -> Tensor:
        """Rows per client and class, training and test together (K, classes)."""
        classes = 2 if self.labels == "binary" else self.outputs
        total = torch.zeros(self.clients * classes, dtype=torch.int64)
        for part in (self.train, self.test):
            owner = torch.repeat_interleave(torch.arange(self.clients), part.sizes)
            total += torch.bincount(owner * classes + part.y, minlength=len(total))
        return total.view(self.clients, classes)

    @cached_property
    def unseen(self) -> list[int]:
        """The classes that occur in test rows only: no model can learn them."""
        if self.classes is None:
            return []
        missing: list[int] = np.setdiff1d(self.test.y.numpy(), self.train.y.numpy()).tolist()
        return missing

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike | Tensor,
        y: ArrayLike | Tensor,
        client: ArrayLike | Tensor,
        test: float | ArrayLike = 0.2,
        seed: int = 0,
        names: Sequence[str] | None = None,
        *,
        outputs: int | None = None,
        loss: str | None = None,
        score: str | None = None,
        groups: Sequence[str] | None = None,
        notes: Sequence[str] = (),
        class_names: Sequence[str] = (),
    ) -> "Federation":
        """Build a federation from arrays.

        Args:
            x: Features (N, ...).
            y: Labels (N,). Strings are classes, numbered in alphabetical order (`class_names`).
            client: The name or number of each row's client (N,).
            test: The share of each client's rows that is tested, stratified by
                class, or a mask of the test rows. A client with one row keeps it for training.
            seed: Which rows are tested depends on it and on the client's name only.
            names: The clients' names; `client` then holds positions among them.
            outputs: How many numbers a model gives per row. This and what follows is inferred
                from the labels where it is not given.
            loss: The usual loss of such labels, by name: it says what they are, as "binary",
                "tokens" and "cox" do. A `Task` decides which loss is minimised.
            score: The score of experiments that name none.
            groups: Each client's group.
            notes: What a user should know about the data.
            class_names: The names of classes 0, 1, ...

        >>> x = [[0.0], [1.0], [2.0], [3.0]]
        >>> f = Federation.from_arrays(x, [0, 1, 0, 1], ["a", "a", "b", "b"], test=0.5)
        >>> f.names, f.train.sizes.tolist(), f.test.sizes.tolist()
        (('a', 'b'), [1, 1], [1, 1])
        """
        inputs = mapped(x) if isinstance(x, np.memmap) else as_features(x)
        texts = None if isinstance(y, Tensor) else as_array(y, "labels (y)")
        if texts is not None and texts.dtype.kind in "UO" and texts.ndim == 1:
            class_names, y = named_classes(texts)
        labels = as_labels(y)
        owner = as_array(client, "client")
        _check_lengths(inputs, labels, owner)
        split = split_rows(owner, labels.numpy(), test, seed, names)
        return cls.from_split(
            split,
            Features.of(inputs, split),
            labels,
            outputs=outputs,
            loss=loss,
            score=score,
            groups=groups,
            notes=notes,
            class_names=class_names,
        )

    @classmethod
    def from_datasets(
        cls,
        datasets: Mapping[str, MapDataset],
        test: float | Mapping[str, MapDataset] = 0.2,
        seed: int = 0,
        label: str | None = None,
        **options: Unpack[DatasetOptions],
    ) -> "Federation":
        """Build a federation from one dataset of torch per client.

        Args:
            datasets: The clients' names and their map-style datasets. Samples are tuples
                (input, ..., label), or dicts of inputs and a label. Several inputs are the
                module's arguments, those of a dict its keywords.
            test: The share of each client's samples that is tested, or test datasets by name.
            seed: Which samples are tested depends on it and on the client's name only.
            label: The key of the label, where samples are dicts.
            options: collate_fn, transform, memory, workers, outputs, groups and class_names, as
                in `from_function`.

        >>> data = {name: torch.utils.data.TensorDataset(torch.rand(9, 2), torch.arange(9) % 3)
        ...         for name in ("a", "b")}
        >>> Federation.from_datasets(data)
        <Federation: 2 clients, 14 training and 4 test rows of 2 numbers, 3 classes>
        """
        expect("datasets", datasets, Mapping, "a dict of datasets by the client's name")
        if not datasets:
            raise DataError("datasets is empty: there are no clients")
        if isinstance(test, Mapping):
            unknown = sorted(map(str, test.keys() - datasets))
            if unknown:
                raise DataError(
                    f"test names {some(unknown)}, which datasets does not: use its names"
                )
        held_out = partial(_test_dataset, test) if isinstance(test, Mapping) else test
        return cls.from_function(
            list(datasets), datasets.__getitem__, held_out, seed, label=label, **options
        )

    @classmethod
    def from_function(
        cls,
        names: Sequence[str],
        make_dataset: Callable[[str], MapDataset],
        test: float | Callable[[str], MapDataset] = 0.2,
        seed: int = 0,
        *,
        label: str | None = None,
        collate_fn: Collate | None = None,
        transform: Transform | None = None,
        memory: int = MEMORY,
        workers: int = 4,
        outputs: int | None = None,
        groups: Sequence[str] | None = None,
        class_names: Sequence[str] = (),
    ) -> "Federation":
        """Build a federation from a function that opens a client's dataset.

        Each dataset is opened once to read its labels. Where the inputs do not fit into memory, it
        is opened again when its client is asked.

        Args:
            names: The clients' names.
            make_dataset: Opens the dataset of a client by its name.
            test: The share of each client's samples that is tested, or a function that opens a
                client's test dataset.
            seed: Which samples are tested depends on it and on the client's name only.
            label: The key of the label, where samples are dicts.
            collate_fn: Makes a batch of a list of samples, as in a DataLoader.
            transform: A function of a client's batch and a generator, applied while it trains.
            memory: The bytes of inputs that are read once and kept. Beyond them, samples are read
                when they are needed.
            workers: How many threads then read.
            outputs: How many numbers a model gives per sample; by default as the labels suggest.
            groups: Each client's group.
            class_names: The names of classes 0, 1, ...
        """
        expect_callable("make_dataset", make_dataset, "a function of a client's name")
        expect("names", names, Sequence, "a list of names")
        expect_int("memory", memory, most=2**63)
        expect_int("workers", workers, least=1)
        if label is not None:
            expect("label", label, str, "the key of the label")
        for name, function in (("collate_fn", collate_fn), ("transform", transform)):
            if function is not None:
                expect_callable(name, function, "a function")
        if isinstance(names, str) or not names:
            raise DataError(f"names = {names!r}: give a list with the names of the clients")
        parts = [_dataset("make_dataset", make_dataset, name) for name in names]
        if callable(test):
            parts += [_dataset("test", test, name) for name in names]
        names = list(map(str, names))
        inputs, y, sizes = read_parts(parts, label, collate_fn, memory, workers)
        owner = np.repeat(np.arange(len(parts)) % len(names), sizes)
        from_test = np.arange(len(owner)) >= sum(sizes[: len(names)])
        held_out = from_test if callable(test) else test
        labels = as_labels(y)
        split = split_rows(owner, labels.numpy(), held_out, seed, names)
        federation = cls.from_split(
            split,
            Features.of(inputs, split),
            labels,
            outputs=outputs,
            groups=groups,
            class_names=class_names,
        )
        return replace(federation, train=replace(federation.train, transform=transform))

    @classmethod
    def from_huggingface(
        cls,
        dataset: HuggingFaceDataset,
        client: str,
        inputs: Sequence[str],
        label: str = "label",
        test: float = 0.2,
        seed: int = 0,
        **options: Unpack[DatasetOptions],
    ) -> "Federation":
        """Build a federation from a dataset of Hugging Face, with a column that names the client.

        Args:
            dataset: The dataset (`datasets.Dataset`).
            client: The column of clients.
            inputs: The columns of inputs. Several are the module's keyword arguments.
            label: The column of labels.
            test: The share of each client's samples that is tested.
            seed: Which samples are tested.
            options: collate_fn, transform, memory, workers, outputs, groups and class_names, as
                in `from_function`.
        """
        return cls.from_datasets(of_table(dataset, client, inputs, label), test, seed, **options)

    @classmethod
    def from_split(
        cls,
        split: Split,
        features: Features,
        labels: Tensor,
        *,
        outputs: int | None = None,
        loss: str | None = None,
        score: str | None = None,
        groups: Sequence[str] | None = None,
        notes: Sequence[str] = (),
        class_names: Sequence[str] = (),
    ) -> "Federation":
        """Build a federation of rows that are already split.

        Args:
            split: The numbers of each client's training and test rows.
            features: The features of these rows.
            labels: The labels of all rows, by row number.
            outputs: As in `from_arrays`, like loss, score, groups, notes and class_names.
        """
        if outputs is not None:
            expect_int("outputs", outputs, least=1)
        for name, text in (("loss", loss), ("score", score)):
            if text is not None:
                expect(name, text, str, f"the name of a {name}")
        expect_names("notes", notes)
        expect_names("class_names", class_names)
        if groups is not None:
            expect_names("groups", groups)
            if len(groups) != len(split.names):
                raise DataError(
                    f"groups has {len(groups)} names for {len(split.names)} clients: give each "
                    "client's group"
                )
        kind, usual_score = _suggested(labels)
        if loss is not None:
            kind = _checked_labels(loss)
        train = _rows(features.train, labels, split.train)
        test = _rows(features.test, labels, split.test)
        return cls(
            train=with_labels(train, kind),
            test=with_labels(test, kind),
            names=split.names,
            outputs=_outputs(labels, kind) if outputs is None else outputs,
            labels=kind,
            score=usual_score if score is None else score,
            groups=None if groups is None else tuple(groups),
            notes=(*notes, *features.notes),
            class_names=tuple(class_names),
            preprocessing=features.preprocessing,
            pooled=features.pooled or is_fitted(features.preprocessing),
            test_share=split.share,
        )


def _suggested(labels: Tensor) -> tuple[Labels, str]:
    """What labels are by their type, and their usual score."""
    if labels.ndim > 1:  # several numbers per row suggest nothing
        return "own", ""
    return ("values", "r2-pooled") if labels.is_floating_point() else ("classes", "accuracy")


def _checked_labels(loss: str) -> Labels:
    """What labels are by their usual loss. Raises DataError for a loss that is a choice."""
    kind = labels_of(loss)
    if kind != "own" and loss != usual_loss(kind):
        raise DataError(
            f"loss = {loss!r} is one of several losses of {kind}: leave it out here, and give it "
            f"to the task or experiment instead, as in Task(module, loss={loss!r})"
        )
    return kind


def _outputs(labels: Tensor, kind: Labels) -> int:
    """Return the number of outputs per row: the numbers of a label, or one per class."""
    if kind in ("binary", "values", "survival"):
        return 1
    if kind in ("classes", "tokens"):
        return int(labels.max()) + 1
    is_class = labels.ndim == 1 and not labels.is_floating_point()
    return int(labels.max()) + 1 if is_class else labels[0].numel()


def _dataset(argument: str, make: Callable[[str], MapDataset], name: str) -> ClientDataset:
    """A client's dataset, which a user's function opens."""

    def opened() -> MapDataset:
        try:
            return make(name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"{argument}({name!r}) raised {reason[:200]}") from error

    return ClientDataset(str(name), opened)


def _test_dataset(datasets: Mapping[str, MapDataset], name: str) -> MapDataset:
    return datasets.get(name, ())


def _chosen(names: Sequence[str], clients: Tensor) -> tuple[str, ...]:
    return tuple(map(names.__getitem__, clients.tolist()))


def _rows(x: Inputs, labels: Tensor, part: GroupedRows) -> Rows:
    numbers = torch.from_numpy(part.rows)
    return Rows(x, labels[numbers], torch.from_numpy(part.offsets), numbers=numbers)


# Checks


def _check_lengths(x: Inputs, y: Tensor, client: np.ndarray) -> None:
    for name, values in (("x", x), ("y", y)):
        if len(values.shape) == 0:
            raise DataError(f"{name} is one number, not one per row: give arrays")
    rows = len(x)
    clients = len(np.atleast_1d(client))
    if not rows == len(y) == clients:
        raise DataError(f"x has {rows} rows, y {len(y)}, client {clients}: they must agree")
    if rows == 0:
        raise DataError("there are no rows: a federation needs at least one client with one row")


def _check_offsets(part: Rows, names: Sequence[str]) -> None:
    clients = len(part.offsets) - 1
    if clients != len(names) or int(part.offsets[-1]) != len(part.inputs):
        raise DataError(
            f"{len(names)} names but offsets for {clients} clients and {len(part.inputs)} rows"
        )
    if int(part.offsets[0]) != 0 or (part.sizes < 0).any():
        first = part.offsets[:5].tolist()
        raise DataError(f"offsets {first}...: they must start at 0 and never decrease")


def _check_shapes(part: Rows, federation: Federation) -> None:
    single = federation.labels in ("classes", "binary", "values")  # one label per row
    axes = 2 if single else 1
    if federation.labels == "survival" and tuple(part.y.shape[1:]) != (2,):
        shape = tuple(part.y.shape)
        raise DataError(f"labels of shape {shape}: cox needs (time, event) per row, event 0 or 1")
    if part.y.shape[:axes] != part.inputs.shape[:1]:
        shape = tuple(part.y.shape)
        raise DataError(
            f"labels of shape {shape} for {len(part.inputs)} rows: give one label per row, or a "
            "loss of your own for several"
        )
    expected = tuple(federation.train.inputs.shape[1:])
    shape = tuple(part.inputs.shape[1:])
    if shape != expected:
        raise DataError(
            f"training rows have shape {expected} and test rows {shape}: they must agree"
        )


def _check_features(part: Rows, names: Sequence[str]) -> None:
    bad = non_finite_samples(part.inputs)
    if len(bad):
        owner = _owner(part, names, bad[0])
        raise DataError(
            f"client {owner!r} has NaN or infinite features in {len(bad)} rows: fill or remove them"
        )


def _check_labels(part: Rows, federation: Federation) -> None:
    limit = ""
    if federation.labels in ("values", "own"):
        wrong = ~torch.isfinite(part.y)
    elif federation.labels == "survival":
        time, event = part.y.unbind(1)
        wrong = ~torch.isfinite(time) | ((event != 0) & (event != 1))
        limit = "; labels are (time, event), with event 0 or 1"
    else:
        top = 2 if federation.labels == "binary" else federation.outputs
        least = -1 if federation.labels == "tokens" else 0  # -1 marks a token that does not count
        outside = (part.y < least) | (part.y >= top)
        wrong = outside | (part.y != part.y.long())
        usual = usual_loss(federation.labels)
        limit = f"; with the loss {usual!r} labels are whole numbers from 0 to {top - 1}"
    if wrong.any():
        first = wrong.nonzero()[0]
        owner = _owner(part, federation.names, first[0])
        raise DataError(f"client {owner!r} has the label {part.y[tuple(first)].tolist()}{limit}")


def _owner(part: Rows, names: Sequence[str], row: Tensor) -> str:
    return names[int(torch.searchsorted(part.offsets, row, right=True)) - 1]
