"""The interface of engines: who carries the messages between server and clients."""

from collections.abc import Callable, Iterator
from pathlib import Path

from torch import Tensor

from commonweal.algorithms.algorithm import Algorithm, Replies, Request
from commonweal.base.tensors import State, Tensors
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.data.preprocessing import Preprocessing
from commonweal.record.facts import RunFacts
from commonweal.training.evaluation import Evaluation
from commonweal.training.uses import Uses

__all__ = ["Engine"]


class Engine:
    """Carries requests to clients and their replies back, and owns the clients' states."""

    population: Population  # all that the server may know; it may grow between rounds

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        """Ask clients and wait for their replies, given in the order in which they were asked."""
        raise NotImplementedError

    def evaluate(self, algorithm: Algorithm, state: State, part: str = "test") -> Evaluation:
        """Evaluate the server's model, and the clients' own, on a part of every client's rows."""
        raise NotImplementedError

    def facts(self, algorithm: Algorithm) -> RunFacts:
        """What the run's record says about the engine and the data."""
        raise NotImplementedError

    def digest(self) -> str:
        """A hash of the data; empty where the engine has none, or where it grows during a run."""
        return ""

    # Clients' states

    def reset(self) -> None:
        """Forget all client states."""

    def save(self, last: int) -> State:
        """What a checkpoint after round `last` holds of the clients."""
        return {}

    def confirm(self) -> None:
        """The checkpoint is written."""

    def restore(self, saved: State, folder: Path, resume: bool = True) -> None:
        """Take over the clients' states of a checkpoint.

        resume: the run continues, so that files of later rounds are deleted
        """

    # Where all rows are at hand

    @property
    def federation(self) -> Federation | None:
        """All clients' rows, where this process has them."""
        return None

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How a table's columns became the rows, where this process knows it."""
        return None if self.federation is None else self.federation.preprocessing

    def client_states(self) -> dict[int, Tensors]:
        """The states of the clients that have taken part, where this process has them."""
        return {}

    def models(
        self, algorithm: Algorithm, own: Callable[[Tensors], Uses], part: str = "test"
    ) -> Iterator[tuple[Tensor, Uses]]:
        """Yield (ids, models (S, M, d) with weights (S, M)) of clients that have taken part."""
        return iter(())
