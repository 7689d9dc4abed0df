"""A client on a machine of its own: its rows, what it tells about them, and its state on disk.

Nothing here imports flwr.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import safetensors.torch
import torch

from commonweal.algorithms.algorithm import Algorithm, Group, Request
from commonweal.base import randomness
from commonweal.base.errors import DataError
from commonweal.base.files import write_file
from commonweal.base.tensors import Tensors
from commonweal.base.values import Values
from commonweal.data.federation import Federation, Rows
from commonweal.data.population import Population
from commonweal.flower.own_table import Agreement, OwnTable, agree, check_fits
from commonweal.training import scores
from commonweal.training.evaluation import evaluate, evaluate_models
from commonweal.training.local import single
from commonweal.training.uses import Uses

__all__ = ["About", "Member", "Node", "When", "agreed", "described", "fits", "joined"]


@dataclass(frozen=True)
class About:
    """What a client tells about its data, once."""

    name: str
    rows: int
    shape: tuple[int, ...]  # of a row
    labels: tuple[int, ...]  # of a row's label, () for one class or value
    outputs: int
    loss: str
    score: str
    group: str = ""
    position: int = -1  # among all clients, where the data has an order
    target: tuple[float, float] | None = None  # mean and deviation of a regression's labels
    table: str = ""  # JSON: what a file of its own holds; all before follows from the agreement

    @classmethod
    def read(cls, values: Values) -> "About":
        """From what arrived. Raises DataError where something is missing."""
        try:
            lists = {key: tuple(int(n) for n in values[key]) for key in ("shape", "labels")}
            numbers = {key: int(values[key]) for key in ("rows", "outputs", "position")}
            texts = {key: str(values[key]) for key in ("name", "loss", "score", "group", "table")}
            target = tuple(float(number) for number in values["target"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"it does not describe its data as Commonweal does ({error})") from None
        about = cls(**lists, **numbers, **texts, target=target or None)  # type: ignore[arg-type]
        if about.rows < 1 or (about.outputs < 1 and not about.table):
            raise DataError(f"it has {about.rows} rows and {about.outputs} outputs")
        return about

    @property
    def population(self) -> Population:
        """What this client knows of the population: itself, and the outputs of the model."""
        return Population(
            (self.name,), torch.tensor([self.rows]), self.shape, self.outputs, self.loss
        )

    def values(self) -> Values:
        lists = {"shape": list(self.shape), "labels": list(self.labels)}
        return vars(self) | lists | {"target": list(self.target or ())}


def agreed(clients: Sequence[About]) -> Agreement | None:
    """How clients with files of their own prepare them; None where they have none."""
    with_table = [client for client in clients if client.table]
    if not with_table:
        return None
    if len(with_table) < len(clients):
        without = next(client.name for client in clients if not client.table)
        raise DataError(
            f"{with_table[0].name!r} has a file of its own, but {without!r} has not: give each "
            "node data= in its --node-config, or none"
        )
    return agree({client.name: json.loads(client.table) for client in clients})


def fits(client: About, agreement: Agreement | None) -> About:
    """A client with what follows from the agreement. Raises DataError where it does not fit."""
    if agreement is None or not client.table:
        return client
    check_fits(agreement, json.loads(client.table))
    return replace(
        client,
        shape=agreement.shape,
        outputs=agreement.outputs,
        loss=agreement.loss,
        score=agreement.score,
        target=agreement.target,
    )


def joined(clients: Sequence[About]) -> tuple[Population, About]:
    """The population of these clients, and what is common to their data. Outputs: the most."""
    first = clients[0]
    outputs = max(client.outputs for client in clients)
    for client in clients:
        for key in ("shape", "labels", "loss"):
            if vars(client)[key] != vars(first)[key]:
                raise DataError(
                    f"clients have different data: {key} is {vars(first)[key]} at {first.name!r}, "
                    f"but {vars(client)[key]} at {client.name!r}"
                )
    groups = tuple(client.group for client in clients)
    population = Population(
        names=tuple(client.name for client in clients),
        sizes=torch.tensor([client.rows for client in clients]),
        shape=first.shape,
        outputs=outputs,
        loss=first.loss,
        groups=groups if all(groups) else None,
    )
    return population, replace(first, outputs=outputs, target=_target(clients))


def _target(clients: Sequence[About]) -> tuple[float, float] | None:
    """The mean and deviation over all clients' rows, where labels are values."""
    targets = [client.target for client in clients if client.target is not None]
    if len(targets) < len(clients) or len(set(targets)) == 1:
        return targets[0] if len(targets) == len(clients) else None
    rows = torch.tensor([client.rows for client in clients], dtype=torch.float64)
    means, deviations = torch.tensor(targets, dtype=torch.float64).T
    mean = (rows * means).sum() / rows.sum()
    variance = (rows * (deviations**2 + (means - mean) ** 2)).sum() / rows.sum()
    return mean.item(), variance.sqrt().item()


@dataclass(frozen=True)
class When:
    """Which request of which run this is: states are kept by it."""

    run: int  # tells runs apart
    round: int
    step: int  # of the round's requests
    saved: int = 0  # the round of the server's last checkpoint: a resumed run continues there


@dataclass(frozen=True, eq=False)
class Member:
    """A client before the clients have agreed on how tables are prepared."""

    about: About
    node: "Callable[[str], Node]"  # from the agreement's text, empty where there is none
    algorithm: Callable[[About], Algorithm]


def described(own: OwnTable, rows: int) -> About:
    """What a client with a file of its own tells; rows: those that it trains on."""
    return About(own.name, rows, (), (), 0, "", "", table=json.dumps(own.describe()))


@dataclass(frozen=True, eq=False)
class Node:
    """A client: its name, its rows, and a folder for its states."""

    about: About
    train: Rows
    test: Rows
    seed: int
    folder: Path
    validation: Rows | None = None

    @classmethod
    def of(cls, federation: Federation, name: str, seed: int, folder: Path) -> "Node":
        """One client of a federation."""
        if name not in federation.names:
            raise DataError(
                f"no client is called {name!r}: this node's client must be one of "
                f"{list(federation.names[:5])}, ..."
            )
        k = federation.names.index(name)
        about = About(
            name=name,
            rows=int(federation.train.sizes[k]),
            shape=tuple(federation.train.x.shape[1:]),
            labels=tuple(federation.train.y.shape[1:]),
            outputs=federation.outputs,
            loss=federation.loss,
            score=federation.score,
            group="" if federation.groups is None else federation.groups[k],
            position=k if federation.clients > 1 else -1,
            target=federation.target,
        )
        validation = None if federation.validation is None else federation.validation.client(k)
        train, test = federation.train.client(k), federation.test.client(k)
        return cls(about, train, test, seed, folder, validation)

    @property
    def key(self) -> int:
        return randomness.key(self.about.name)

    # Requests

    def answer(self, algorithm: Algorithm, request: Request, when: When) -> Tensors:
        """Answer a request from the client's own rows; its state stays here."""
        state = self.state(when)
        if state is None:
            rng = randomness.stream(self.seed, 0, self.key, randomness.INIT_CLIENT)
            state = algorithm.init_client(int(rng.integers(1 << 62)))
        states = {name: value[None] for name, value in state.items()}
        purpose = randomness.purpose(request.purpose)
        stream = randomness.stream(self.seed, when.round, self.key, purpose)
        me = torch.tensor([0])
        group = Group(me, self.train, states, [stream], single, request.each)
        replies, after = algorithm.answer(request._replace(clients=me), group)
        if after and after is not states:
            self.keep({name: value[0] for name, value in after.items()}, when)
        return replies

    def evaluate(self, algorithm: Algorithm, message: Tensors, when: When, part: str) -> Tensors:
        """The loss and the scores of the global model, and of this client's own."""
        rows = {"train": self.train, "test": self.test, "validation": self.validation}[part]
        if rows is None:
            raise DataError(f"there are no {part} rows here")
        task = algorithm.task
        shared = evaluate(task, message["w"], rows)
        undefined = len(scores.undefined(task.score, rows.y, rows.offsets)) > 0
        values = {"size": shared.sizes, "undefined": torch.tensor([undefined])}
        values["loss"] = shared.losses
        values |= {f"score/{name}": value for name, value in shared.scores.items()}
        if not algorithm.personalizes:
            return values
        own = shared
        state = self.state(replace(when, step=1 << 20))
        if state is not None and len(rows.y):
            uses = Uses(*(value[None] for value in algorithm.uses(message, state)))
            own = evaluate_models(task, uses, rows, torch.tensor([0]), single)
        values["own_loss"] = own.losses
        return values | {f"own_score/{name}": value for name, value in own.scores.items()}

    # The client's state

    def state(self, when: When) -> Tensors | None:
        """The client's newest state before a request, or None."""
        for path in sorted(self._files(when), reverse=True):
            if path.name < self._name(when):
                read = safetensors.torch.load(path.read_bytes())
                return {name: value.clone() for name, value in read.items()}
        return None

    def keep(self, state: Tensors, when: When) -> None:
        """Write the state after a request; delete what no resumed run can need."""
        data = safetensors.torch.save({n: v.detach().contiguous() for n, v in state.items()})
        write_file(self._states(when) / self._name(when), data)
        limit = self._name(When(when.run, when.saved + 1, 0))
        needless = sorted(path for path in self._files(when) if path.name < limit)[:-1]
        for path in needless:
            path.unlink(missing_ok=True)

    def forget(self, run: int) -> None:
        """Delete the states of a run that is over."""
        shutil.rmtree(self._states(When(run, 0, 0)), ignore_errors=True)

    def _states(self, when: When) -> Path:
        return self.folder / quote(self.about.name, safe="") / f"{when.run:016x}"

    def _files(self, when: When) -> list[Path]:
        return list(self._states(when).glob("*.safetensors"))

    def _name(self, when: When) -> str:
        return f"{when.round:08d}-{when.step:08d}.safetensors"
