"""All clients in this process: a cohort at once by vmap, in chunks, or one client after the other.

The three modes compute the same numbers up to rounding. Which one "auto" chooses depends only on
the model, so that it is the same on every machine; the record of a run states it.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from threading import Lock

import torch
from torch import Tensor, nn

from commonweal.base import randomness
from commonweal.base.devices import find_device
from commonweal.base.errors import ConfigError, DataError, PolicyError, did_you_mean
from commonweal.base.packing import pack
from commonweal.base.randomness import Streams
from commonweal.base.tensors import State, Tensors, concatenate, select, summed
from commonweal.base.threads import in_threads
from commonweal.clients.local_model import with_own_validation
from commonweal.config.policy import Policy
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.data.rows import Rows
from commonweal.data.samples import Inputs, sampled
from commonweal.engines.engine import LocalEngine
from commonweal.protocols.algorithm import (
    Algorithm,
    Group,
    Replies,
    Request,
    answer_within,
    first_state,
)
from commonweal.record.client_states import ClientStates
from commonweal.record.facts import RunFacts
from commonweal.task import scores
from commonweal.task.own import function_identity
from commonweal.task.task import Batch, Task
from commonweal.task.trial import check_step
from commonweal.task.uses import Uses
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training.ask import Role, Samples
from commonweal.training.client_state import NO_STATE, ClientState, stack_states
from commonweal.training.dense import dense_stack
from commonweal.training.evaluation import Evaluation, by_client, evaluate_models, evaluate_rows
from commonweal.training.local import keep_freed_memory

MODES = ("auto", "vmap", "chunked", "loop")
BUDGET = 1 << 28  # numbers that a group of clients may hold at once: 1 GB
CHUNK = 1 << 20  # numbers that clients who are trained together may hold: 4 MB, of a cache
LARGE = 1 << 19  # parameters from which one client keeps the cores busy

VECTORS_PER_CLIENT = 6  # its reply, states before and after
MODELS_PER_CHUNK = 16  # copies of a model while personal models are evaluated

Answer = tuple[Tensors, ClientState]  # replies, and states where they changed


class Simulator(LocalEngine):
    """Runs the clients of a federation in this process."""

    def __init__(
        self,
        federation: Federation,
        seed: int = 0,
        vectorize: str = "auto",
        budget: int | None = None,
        chunk: int | None = None,
        device: str = "cpu",
        deterministic: bool = False,
        policy: Policy | None = None,
    ) -> None:
        if vectorize not in MODES:
            hint = did_you_mean(vectorize, MODES)
            raise ConfigError(f"vectorize = {vectorize!r} is not a mode: {hint}")
        if len(federation.scored) == 0:
            raise DataError(
                "no client has test rows: give a test share above 0, or clients with more rows"
            )
        self.federation = federation
        self.population: Population = federation.population
        self.seed = seed
        self.vectorize = vectorize
        self.budget = BUDGET if budget is None else budget
        self.chunk = CHUNK if chunk is None else chunk
        self.deterministic = deterministic
        self.policy = policy  # of every client
        self.device = find_device(device)
        self._reading = Lock()  # of the samples, which are divided and placed once
        self._placed: dict[str, tuple[Rows, Rows]] = {}  # parts of the rows, and on the device
        self._divided: tuple[Federation | None, Federation] = (None, federation)
        self.states = ClientStates(federation.clients)
        keep_freed_memory()
        self._decisions: dict[Task, tuple[str, str]] = {}
        self._stateless: dict[Algorithm, bool] = {}

    # How clients are computed

    def decision(self, algorithm: Algorithm) -> tuple[str, str]:
        """The mode in which this algorithm's clients are run, and why."""
        if self.device.type != "cpu" and not algorithm.on_devices:
            name = type(algorithm).__name__
            raise ConfigError(f"{name} runs on the CPU only: set device = 'cpu'")
        if algorithm.client is None and not algorithm.together:
            return "loop", "the algorithm runs one client at a time"
        task = algorithm.client_task
        if task not in self._decisions:
            check_fit(algorithm.task, self.federation)
            undefined_clients(algorithm.task, self.federation)
            if algorithm.together:
                self._decisions[task] = "together", "a pass over the rows of all clients"
                return self._decisions[task]
            mode, why = self._preferred(task)
            problem = "" if mode == "loop" else _vmap_problem(task, self.federation)
            if problem:
                mode = "loop"
                why = f"the model cannot be run for several clients at once ({problem})"
            self._decisions[task] = mode, why
        if algorithm.one_by_one:
            return "loop", "the algorithm runs one client at a time"
        return self._decisions[task]

    def _preferred(self, task: Task) -> tuple[str, str]:
        draws = task.draws_inside(self.federation.train.inputs)
        if self.vectorize in ("vmap", "chunked") and draws:
            raise ConfigError(
                f"vectorize = {self.vectorize!r} cannot run a model with dropout: "
                "use 'loop' or 'auto'"
            )
        if self.vectorize != "auto":
            return self.vectorize, "requested"
        if draws:
            return "loop", "the model draws random numbers (dropout)"
        if _has_large_layers(task):
            return "loop", "convolutions and recurrent layers are faster client by client"
        if dense_stack(task) is not None:
            return "chunked", "stacks of linear layers are trained together in closed form"
        if task.size >= LARGE:
            return "loop", f"{task.size} parameters keep the cores busy client by client"
        return "chunked", f"{task.size} parameters in layers that are faster together"

    def _vectorizer(self, algorithm: Algorithm) -> Vectorize:
        """Return the way in which the functions of one client are run for a group."""
        return single if self.decision(algorithm)[0] == "loop" else vmap_clients

    # Messages

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        if len(request.clients) == 0:
            return Replies(request.clients, {})
        if self.policy is not None:
            return self._collect_one_by_one(algorithm, request, self.policy)
        values: Tensors = {}
        parts = self._groups(algorithm, request.clients)
        groups = (self._group(algorithm, request, positions) for positions in parts)
        answers = self._answers(algorithm, request, groups, len(parts))
        round = int(request.message["round"])
        for positions, (replies, states) in zip(parts, answers, strict=True):
            # Views of a group of all clients are replaced together; others would keep it in memory.
            alone = len(positions) < self.population.clients
            for k, client in enumerate(request.clients[positions].tolist() if states else ()):
                self.states.put(client, states.row(k, copy=alone), round)
            if request.summed:
                add(values, replies)
            elif len(parts) == 1:
                return Replies(request.clients, replies)
            else:
                place(values, replies, positions, len(request.clients))
        return Replies(request.clients, values)

    def _collect_one_by_one(
        self, algorithm: Algorithm, request: Request, policy: Policy
    ) -> Replies:
        """Collect the replies that a policy permits, each as a node would send it."""
        round = int(request.message["round"])
        values: list[Tensors] = []
        failed: dict[int, str] = {}
        for position, client in enumerate(request.clients.tolist()):
            group = self._group(algorithm, request, torch.tensor([position]))
            try:
                replies, states = answer_within(policy, algorithm, request, group, round)
            except PolicyError as error:
                failed[client] = f"policy: {error}"
                continue
            values.append(replies)
            if states and states is not group.states:
                self.states.put(client, states.row(0, copy=True), round)
        answered = [client for client in request.clients.tolist() if client not in failed]
        together = concatenate(values) if values else {}
        if request.summed and values:
            together = summed(together)
        return Replies(torch.tensor(answered, dtype=torch.int64), together, failed)

    def _group(self, algorithm: Algorithm, request: Request, positions: Tensor) -> Group:
        """The clients at these positions of a request."""
        ids = request.clients[positions]
        round = int(request.message["round"])
        purpose = randomness.purpose(request.purpose)
        keys = [self.population.key(client) for client in ids.tolist()]
        return Group(
            ids=ids,
            samples=Samples(self._of_role),
            states=self._states(algorithm, ids),
            streams=Streams(self.seed, round, keys, purpose),
            vectorize=self._vectorizer(algorithm),
            each=select(request.each, positions),
            at_once=None if self.vectorize == "vmap" else self.chunk,
        )

    def _of_role(self, role: Role) -> Rows | None:
        """The samples of a role, where clients compute. Groups may ask in several threads."""
        if role in ("validation", "everything") and self.federation.validation is None:
            return None
        with self._reading:
            return self._on_device(role)

    def _inner(self) -> Federation:
        """The federation with a part of the training samples for validation."""
        source, divided = self._divided
        if source is not self.federation:  # a population may grow between rounds
            divided = with_own_validation(self.federation, self.seed)
            self._divided = (self.federation, divided)
        return divided

    def _answers(
        self, algorithm: Algorithm, request: Request, groups: Iterator[Group], count: int
    ) -> Iterator[Answer]:
        """Yield the answers of groups, in their order."""

        def answer(group: Group) -> Answer:
            replies, states = algorithm.answer(request, group)
            return replies, NO_STATE if states is group.states else states

        return in_threads(answer, groups, count if self._takes_threads(algorithm) else 1)

    def _takes_threads(self, algorithm: Algorithm) -> bool:
        """Return whether clients that are computed one by one may be so in threads.

        `train_locally` divides those that are trained together. Where "loop" is requested, no
        threads are taken: then it is for debugging, or the model is small.
        """
        if algorithm.client is None or self.vectorize == "loop" or self.device.type != "cpu":
            return False
        one_by_one = self.decision(algorithm)[0] == "loop"
        # Random numbers inside a module come from one generator for all threads.
        return one_by_one and not algorithm.client_task.draws_inside(self.federation.train.inputs)

    def _states(self, algorithm: Algorithm, ids: Tensor) -> ClientState:
        if self._is_stateless(algorithm) and len(self.states) == 0:
            return NO_STATE  # a random stream per client would be drawn for nothing
        states = []
        for client in ids.tolist():
            state = self.states.get(client)
            if state is None:
                state = first_state(algorithm, self.seed, self.population.key(client))
            states.append(state)
        return stack_states(states)

    def _is_stateless(self, algorithm: Algorithm) -> bool:
        if algorithm not in self._stateless:
            self._stateless[algorithm] = not algorithm.init_client(0)
        return self._stateless[algorithm]

    def _groups(self, algorithm: Algorithm, clients: Tensor) -> list[Tensor]:
        """The positions in a request of the clients that answer together."""
        mode, _ = self.decision(algorithm)
        positions = torch.arange(len(clients))
        if algorithm.together:
            return [positions]
        budget: int | None = None
        cost = 1
        if mode == "loop" or algorithm.client is None:
            budget = 0
        elif mode == "chunked" and self.deterministic:
            # Groups that do not depend on who else is asked of this process: those of several
            # processes are the same, and so are the bytes. Clients of similar size train together.
            budget = self.chunk
            cost = algorithm.client_task.size
            sizes = self.population.sizes[clients]
            positions = torch.argsort(sizes, descending=True, stable=True)
        elif mode == "chunked":
            # A group that holds nothing but its replies stays whole: several would copy them.
            replies_only = self.device.type == "cpu" and self._is_stateless(algorithm)
            if not replies_only:
                budget = self.budget
                cost = VECTORS_PER_CLIENT * algorithm.client_task.size
        groups = pack([cost] * len(clients), budget)
        return [positions[group].sort().values for group in groups]

    # Evaluation

    def evaluate(self, algorithm: Algorithm, state: State, part: str = "test") -> Evaluation:
        rows = self._part(part)
        task = algorithm.task
        losses, stats = self._results(algorithm, algorithm.model(state), part)
        shared = by_client(task, losses, stats, self._on_device(part).offsets)
        undefined = torch.zeros(len(rows.sizes), dtype=torch.bool)
        undefined[task.undefined(rows.y, rows.offsets)] = True
        shared = replace(shared, undefined=undefined)
        if self.policy is None:
            return self._with_personal(algorithm, state, part, shared)
        refused = {}
        for client, size in enumerate(shared.sizes.tolist()):
            try:
                self.policy.check_request("evaluate", task.scores, 0)
                self.policy.check_reply(size, ())
            except PolicyError as error:
                if size > 0:
                    refused[client] = f"policy: {error}"
        return self._with_personal(algorithm, state, part, shared).without(refused)

    def _with_personal(
        self, algorithm: Algorithm, state: State, part: str, shared: Evaluation
    ) -> Evaluation:
        """An evaluation with that of clients' own models, where they have any."""
        if not algorithm.personalizes or part == "unseen":  # who has no model of its own
            return shared
        personal = shared
        for ids, evaluation in self._personal(algorithm, algorithm.message(state), part):
            personal = personal.updated(ids, evaluation)
        return replace(shared, personal=personal)

    def _results(self, algorithm: Algorithm, w: Tensor, part: str) -> tuple[Tensor, Tensors]:
        """The losses and statistics of all rows of a part by the global model."""
        return evaluate_rows(algorithm.task, w, self._on_device(part))

    def _personal(
        self, algorithm: Algorithm, message: Tensors, part: str
    ) -> Iterator[tuple[Tensor, Evaluation]]:
        """Yield clients that have taken part, with the evaluation of what they use."""
        return self._evaluate_own(algorithm, message, part, self.states)

    def _evaluate_own(
        self, algorithm: Algorithm, message: Tensors, part: str, clients: Iterable[int]
    ) -> Iterator[tuple[Tensor, Evaluation]]:
        """Evaluate what some clients use, in groups that memory holds."""
        rows = self._on_device(part)
        for ids in self._model_groups(algorithm, part, clients):
            uses = self._uses(ids, lambda own: algorithm.uses(message, own))
            vectorize = self._vectorizer(algorithm)
            yield ids, evaluate_models(algorithm.task, uses, rows, ids, vectorize)

    def models(
        self, algorithm: Algorithm, own: Callable[[ClientState], Uses], part: str = "test"
    ) -> Iterator[tuple[Tensor, Uses]]:
        for ids in self._model_groups(algorithm, part, self.states):
            yield ids, self._uses(ids, own)

    def _uses(self, ids: Tensor, own: Callable[[ClientState], Uses]) -> Uses:
        states = stack_states([self.states[client] for client in ids.tolist()])
        uses: Uses = torch.vmap(own)(states)
        return uses

    def _model_groups(
        self, algorithm: Algorithm, part: str, clients: Iterable[int]
    ) -> list[Tensor]:
        """The clients that have samples, in groups of which memory holds one."""
        sizes = self._part(part).sizes
        ids = torch.tensor([client for client in clients if sizes[client] > 0], dtype=torch.int64)
        ids = ids[torch.argsort(sizes[ids], descending=True, stable=True)]
        cost = MODELS_PER_CHUNK * algorithm.task.size
        # With a policy clients answer apart, and what one of them is refused changes its state.
        budget = self.budget if self.policy is None else 0
        return [ids[group] for group in pack([cost] * len(ids), budget)]

    def _part(self, part: str) -> Rows:
        federation = self._inner() if part in ("kept", "held") else self.federation
        held_out = federation.held_out
        parts = {
            "train": federation.train,
            "kept": federation.train,
            "test": federation.test,
            "validation": federation.validation,
            "held": federation.validation,
            "unseen": None if held_out is None else held_out.rows,
        }
        # The federation makes a copy of its samples for this part.
        rows = federation.undivided if part == "everything" else parts[part]
        if rows is None:
            raise ConfigError(f"the federation has no {part} rows: set {part} = 0.2")
        return rows

    def _on_device(self, part: str) -> Rows:
        """A part of the rows where clients compute."""
        rows = self._part(part)
        source, placed = self._placed.get(part, (None, rows))
        if source is not rows:  # a population may grow between rounds
            placed = rows.to(self.device)
            self._placed[part] = (rows, placed)
        return placed

    # The run's record

    def facts(self, algorithm: Algorithm) -> RunFacts:
        mode, why = self.decision(algorithm)
        rows = self.federation
        return RunFacts(
            engine="simulator",
            vectorize=mode,
            vectorize_because=why,
            device=str(self.device),
            clients=rows.clients,
            unscored=(*rows.unscored, *undefined_clients(algorithm.task, rows)),
            notes=tuple(rows.notes),
            train_rows=len(rows.train.y),
            test_rows=len(rows.test.y),
            majority=_majority(rows),
            validation_rows=None if rows.validation is None else len(rows.validation.y),
            held_out=None if rows.held_out is None else tuple(rows.held_out.names),
        )

    def digest(self) -> str:
        words = [self.federation.labels, *self.federation.names]
        if self.federation.train.transform is not None:
            words.append(function_identity(self.federation.train.transform))
        digest = hashlib.blake2b("\0".join(words).encode(), digest_size=8)
        for part in (self.federation.train, self.federation.test):
            for tensor in (*sampled(part.inputs), part.y, part.offsets):
                digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()


def place(values: Tensors, replies: Tensors, positions: Tensor, clients: int) -> None:
    """Write the replies of some clients to their positions among those of all."""
    for name, value in replies.items():
        if name not in values:
            values[name] = value.new_empty(clients, *value.shape[1:])
        values[name].index_copy_(0, positions, value)


def add(values: Tensors, replies: Tensors) -> None:
    """Add the replies of some clients to the sum over all."""
    for name, value in summed(replies).items():
        values[name] = values[name] + value if name in values else value


def _has_large_layers(task: Task) -> bool:
    """Return whether a model has convolutions or recurrent layers, which keep a core busy."""
    kinds = nn.modules.conv._ConvNd | nn.RNNBase
    return any(isinstance(layer, kinds) for layer in task.module.modules())


def gains_from_threads(task: Task) -> bool:
    """Return whether the operations of a model are large enough to be shared by threads.

    Threads that share small products wait for each other, above all on a busy machine.
    """
    return task.size >= LARGE or _has_large_layers(task)


def check_fit(task: Task, federation: Federation) -> None:
    """Raise ConfigError where the module cannot take the rows."""
    rows = slice(0, 2)
    x, y = federation.train.inputs[rows], federation.train.y[rows]
    try:
        with torch.no_grad():
            task.evaluate_rows(task.initial, x, y)
            outputs = task.outputs(task.initial, x)
        check_step(task, x, y)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        name = type(task.module).__name__
        reason = str(error).split("\n")[0][:200]
        raise ConfigError(
            f"the model {name} does not fit the data: rows have shape {tuple(x.shape[1:])} and "
            f"{federation.outputs} outputs are expected ({reason})"
        ) from None
    given = outputs.shape[-1]
    is_usual = task.loss == "cross-entropy" and federation.labels == "classes"
    if is_usual and given != federation.outputs:
        raise ConfigError(
            f"the model {type(task.module).__name__} gives {given} numbers per row, but the data "
            f"needs {federation.outputs}: change its last layer, or give the federation "
            f"outputs={given}"
        )


def _majority(federation: Federation) -> float | None:
    """The accuracy of always giving the most frequent class, as a mean over clients."""
    if federation.classes is None:
        return None
    most = int(torch.bincount(federation.train.y.long()).argmax())
    rows = federation.test
    right = scores.mean_by_client((rows.y == most).double(), rows.offsets)
    return float(right[federation.scored].mean())


def undefined_clients(task: Task, federation: Federation) -> list[str]:
    """The names of the clients whose main score is undefined. Raises DataError where all are."""
    rows = federation.test
    undefined = task.undefined(rows.y, rows.offsets)
    if len(undefined) == len(federation.scored):
        raise DataError(
            f"the {task.score} of all clients is undefined, as each one's test rows have one "
            "label only: give more rows, merge clients, or choose another score"
        )
    return [federation.names[client] for client in undefined]


def _vmap_problem(task: Task, federation: Federation) -> str:
    """Return the reason why clients of this model cannot be run together; empty: they can.

    An operator without a batching rule fails, or warns that it will be slow.
    """
    index = torch.zeros(2, 2, dtype=torch.int64)
    x, y = federation.train.inputs[index], federation.train.y[index]
    weight = torch.full((2, 2), 0.5)
    w = torch.stack([task.initial, task.initial]).requires_grad_()

    def loss(w: Tensor, x: Inputs, y: Tensor, weight: Tensor) -> Tensor:
        return task.batch_loss(w, Batch(x, y, weight))[0]

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule.*")
            losses = torch.vmap(loss)(w, x, y, weight)
            torch.autograd.grad(losses.sum(), w)
    except (RuntimeError, ValueError, NotImplementedError, UserWarning) as error:
        return str(error).split("\n")[0][:200]
    return ""
