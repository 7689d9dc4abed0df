"""The losses that clients reach by local training, for rules that compare with them."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.rule import Rule
from commonweal.rules.slots import extend


@dataclass(frozen=True)
class LocalLosses(Rule):
    """A rule that knows every client's local loss: given, or read from a run of local models."""

    alone: tuple[float, ...] = ()
    path: str | None = None

    @property
    def local_run(self) -> str | None:
        return super().local_run if self.path is None else self.path

    def with_local_losses(self, losses: tuple[float, ...]) -> Self:
        changed = super().with_local_losses(losses)
        return changed if self.path is None else replace(changed, alone=losses)

    @property
    def known(self) -> Tensor:
        """The local losses (K,), or a single 0."""
        return torch.tensor(self.alone or (0.0,), dtype=torch.float64)

    def init(self, setting: Setting | int) -> State:
        setting = Setting.of(setting)
        rule = type(self).__name__.lower()
        if self.path is not None and not self.alone:
            raise ConfigError(
                f"{rule} path = {self.path!r} is read where a run is built: outside of a run give "
                "alone = [...]"
            )
        losses = self.known
        if self.alone and setting.members is not None and len(losses) == setting.members.shape[1]:
            losses = setting.members @ losses  # a group's loss is the mean of its members'
        if self.alone and len(losses) != setting.clients:
            raise ConfigError(
                f"{rule} alone has {len(self.alone)} losses for {setting.clients} clients; give "
                "every client's"
            )
        return {**super().init(setting), "alone": losses}

    def above_local(self, losses: Tensor, ids: Tensor, alone: Tensor) -> Tensor:
        """Return the distances of losses (S,) above the local ones of the clients 0, 1, ... (K,).

        Late clients have the mean of the others' local losses.
        """
        known = extend(alone, int(ids.max()) + 1, alone.mean())
        return losses.double() - known[ids]
