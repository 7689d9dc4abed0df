"""The interface of server optimizers: how the model moves along the aggregated direction."""

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
