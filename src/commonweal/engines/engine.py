"""The interface of engines: who carries the messages between server and clients."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from commonweal.base.tensors import State
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.protocols.algorithm import Algorithm, Replies, Request
from commonweal.record.client_states import ClientStates, StateStore
from commonweal.record.facts import RunFacts
from commonweal.task.uses import Uses
from commonweal.training.client_state import ClientState
from commonweal.training.evaluation import Evaluation


class Engine:
    """Carries requests to clients and their replies back."""

    population: Population  # all that the server may know; it may grow between rounds
    states: StateStore = StateStore()  # of the clients; by default they keep them themselves
    leads: bool = True  # whether this process runs the rounds; others only answer

    def running(self, algorithm: Algorithm, text: str) -> AbstractContextManager[None]:
        """Enclose a run. A process that does not lead answers until the run is over.

        Args:
            algorithm: of the run
            text: the experiment, which is the same in all processes
        """
        return nullcontext()

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        """Ask clients and wait for their replies, given in the order in which they were asked."""
        raise NotImplementedError

    def evaluate(self, algorithm: Algorithm, state: State, part: str = "test") -> Evaluation:
        """Evaluate the global model, and the personal ones, on a part of every client's samples."""
        raise NotImplementedError

    def facts(self, algorithm: Algorithm) -> RunFacts:
        """Return the entries of the run's record on the engine and the data."""
        return RunFacts(engine=type(self).__name__, clients=self.population.clients)

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing of a table to the samples, where this process knows it."""
        return None


class LocalEngine(Engine):
    """An engine with all clients' samples and states in this process, as an analysis needs them."""

    federation: Federation
    states: ClientStates

    @property
    def preprocessing(self) -> Preprocessing | None:
        return self.federation.preprocessing

    def digest(self) -> str:
        """A hash of the data; empty where it grows during a run."""
        raise NotImplementedError

    def models(
        self, algorithm: Algorithm, own: Callable[[ClientState], Uses], part: str = "test"
    ) -> Iterator[tuple[Tensor, Uses]]:
        """Yield (ids, models (S, M, d) with weights (S, M)) of clients that have taken part.

        Args:
            algorithm: The run's algorithm.
            own: From a client's state to the models that it uses.
            part: Of the data; clients without samples in it are left out.
        """
        raise NotImplementedError
