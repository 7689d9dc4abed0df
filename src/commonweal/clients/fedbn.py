"""fedbn: the normalisation layers stay with the client, everything else is shared.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021:
for clients whose inputs differ in scale or style. The global model keeps the initial
normalisation, which only clients that never took part use.
"""

from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.task.masks import layer_mask
from commonweal.task.task import Task
from commonweal.training.client import Client

NORMALISATION = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class FedBN(Client):
    """loss(shared, own), both trained at once; updates of normalisation layers are not sent

    layers: the names of the layers that stay with the client (none: all normalisation layers, with
        their running statistics)
    The others are those of sgd
    """

    personalizes = True

    layers: tuple[str, ...] = ()

    def check(self, task: Task, rounds: int) -> None:
        self.private(task)

    def private(self, task: Task) -> Tensor:
        return layer_mask(task, self.layers or _normalisation(task), "layers")


@lru_cache(maxsize=16)
def _normalisation(task: Task) -> tuple[str, ...]:
    """The names of the normalisation layers that have parameters or statistics."""
    owners = {name.rpartition(".")[0] for name in task.names}
    modules = task.module.named_modules()
    layers = [name for name, module in modules if isinstance(module, NORMALISATION)]
    if not owners.intersection(layers):
        raise ConfigError(
            f"fedbn keeps normalisation layers, but {type(task.module).__name__} has none: take a "
            "model that has, such as 'resnet18-gn', name other layers, or use client 'sgd'"
        )
    return tuple(name for name in layers if name in owners)


ENTRIES = {"fedbn": FedBN}
