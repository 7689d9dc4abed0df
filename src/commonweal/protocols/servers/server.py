"""The interface of server optimizers: how the model moves along the aggregated direction."""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.tensors import State


class ServerOptimizer:
    """An optimizer step on the server's model, with the cohort's direction as the gradient.

    Pure: hyper-parameters are fields, memory is a value.
    """

    def init(self, w: Tensor) -> State:
        """The state before the first round."""
        return {}

    def check(self, rounds: int) -> None:
        """Raise ConfigError where the optimizer cannot take so many steps."""

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        """The model after a step, and the next state."""
        raise NotImplementedError

    def output(self, w: Tensor, state: State) -> Tensor:
        """The model to evaluate and to publish: the last one, or an average."""
        return w


@dataclass(frozen=True)
class Wrapper(ServerOptimizer):
    """A server optimizer around another one. What a subclass does not define is the inner one's.

    The inner optimizer's state is the entry "inner" of the state.

    Args:
        step: the server optimizer that takes the steps.
    """

    step: ServerOptimizer

    def init(self, w: Tensor) -> State:
        return {"inner": self.step.init(w)}

    def check(self, rounds: int) -> None:
        self.step.check(rounds)

    def inner(self, state: State) -> State:
        """The inner optimizer's state. An empty one is not in a checkpoint."""
        inner: State = state.get("inner", {})
        return inner

    def output(self, w: Tensor, state: State) -> Tensor:
        return self.step.output(w, self.inner(state))
