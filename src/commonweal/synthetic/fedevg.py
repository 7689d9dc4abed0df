"""FedEvg: the server refines labelled noise into data by the energy gradients that clients send back for it.

Hahn, dissertation 2024, chapter IV, Algorithms 4.1 and 4.2. No weights travel: down go M synthetic rows with labels, up
come their energies and energy gradients under each client's own classifier, and the server takes a Langevin step on the
mixture of all clients' densities. The contrastive term has the sign of eq. 4.4 (Algorithm 4.2 prints the opposite).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from commonweal.algorithm import Server, Setting, Told, finite, sound
from commonweal.errors import ConfigError, did_you_mean
from commonweal.federation import Rows
from commonweal.local import Lift, Tensors
from commonweal.randomness import BEGIN, CLASSIFY, LANGEVIN, stream
from commonweal.synthetic._energy import SCHEDULES, ascent, langevin, mixture, train
from commonweal.synthetic._fit import check, fit, normal, unit
from commonweal.task import Task

__all__ = ["FedEvg"]

# Where the thesis and its authors' code differ.
PRESETS: dict[str, dict[str, Any]] = {
    "thesis": {"last": 0.01, "noise": 0.01, "schedule": "cosine", "anchor": "chain", "classifier_epochs": 100},
    "reference": {"last": 1.0, "noise": 1e-4, "schedule": "betas", "anchor": "received", "classifier_epochs": 1},
}


@dataclass(frozen=True)
class FedEvg:
    """x <- clip(x - step grad E(x; all clients) + noise epsilon), E the energy of the mixture (eqs. 4.13, 4.14)

    preset: where the thesis and its code differ, whose values the parameters that are not set take
    spc: synthetic rows a class; lam: what cross-entropy on synthetic rows counts; clip: of every energy gradient
    epochs, steps, batch, lr, decay, decay_every: of a client's training, as for other clients, but by Adam
    restart: clients begin every round with a fresh classifier (Algorithm 4.2, line 3); else they keep theirs
    chain_steps, chain_step, chain_noise: of the clients' Langevin chains, which go on from batch to batch
    first, last: the server's step size in the first and the last round (last: 0.01, reference 1)
    noise: of the server's step (0.01, reference 0.0001); schedule: between (cosine, reference betas)
    anchor: cross-entropy counts on the chain's rows as they are (chain) or as they came (reference: received)
    classifier_epochs: passes over the synthetic rows when the server trains its classifier (100, reference 1)
    """

    setting: Setting
    preset: Literal["thesis", "reference"] = "thesis"
    spc: int = 10
    lam: float = 0.1
    clip: float = 3.0
    epochs: int = 1
    steps: int | None = None
    batch: int = 64
    lr: float = 1e-3
    decay: float = 0.9
    decay_every: int = 50
    restart: bool = True
    chain_steps: int = 1
    chain_step: float = 1.0
    chain_noise: float = 0.01
    first: float = 10.0
    last: float | None = None
    noise: float | None = None
    schedule: Literal["cosine", "betas"] | None = None
    anchor: Literal["chain", "received"] | None = None
    classifier_epochs: int | None = None

    def __post_init__(self) -> None:
        check(self, whole=("spc", "epochs", "batch", "decay_every", "chain_steps", "classifier_epochs"))
        check(self, above=("lr", "decay", "clip", "chain_step", "first", "last", "steps"))
        check(self, least=("lam", "chain_noise", "noise"))
        if self.preset not in PRESETS:
            raise ConfigError(f"fedevg preset = {self.preset!r}: {did_you_mean(self.preset, PRESETS)}")
        if self.setting.loss != "cross-entropy":
            raise ConfigError(f"fedevg needs classes, but the data's loss is {self.setting.loss!r}")

    @property
    def chosen(self) -> dict[str, Any]:
        """The parameters that a preset has, with its values where none was given."""
        return {name: v if (own := getattr(self, name)) is None else own for name, v in PRESETS[self.preset].items()}

    def init(self, task: Task, clients: int) -> Server:
        if task.size > task.trained or task.random:
            raise ConfigError("fedevg needs one energy for a row: take a model without BatchNorm and dropout")
        y = torch.arange(self.setting.outputs).repeat_interleave(self.spc)
        x = normal((len(y), *self.setting.shape), stream(self.setting.seed, 0, 0, BEGIN))  # eq. 4.12
        return {"round": torch.tensor(1), "x": x, "y": y}

    def ask(self, server: Server) -> Tensors:
        return dict(server)

    def keep(self, task: Task, seed: int) -> Tensors:
        return {} if self.restart else {"w": task.fresh(seed)}

    def work(
        self,
        task: Task,
        seen: Tensors,
        kept: Tensors,
        rows: Rows,
        ids: Tensor,
        streams: Sequence[np.random.Generator],
        lift: Lift,
    ) -> tuple[Tensors, Tensors]:
        """Each client trains its classifier and says what energy the received rows have, and how it would fall."""
        replies, vectors = [], []
        for k, (i, rng) in enumerate(zip(ids.tolist(), streams, strict=True)):
            own = rows.of(i)
            w = task.fresh(int(rng.integers(1 << 62))) if self.restart else kept["w"][k]
            w, said = train(self, task, w, seen, unit(own.x), own.y, rng)
            energy, slope = ascent(task, w, seen["x"], seen["y"], self.clip)
            # exp(sign(-E)) for exp(-E): unbounded energies would let one client rule the mixture (section 3.3).
            replies.append(said | {"boltzmann": torch.exp(torch.sign(-energy)), "slope": slope})
            vectors.append(w)
        told = {name: torch.stack([r[name] for r in replies]) for name in replies[0]}
        after = {} if self.restart else {"w": torch.stack(vectors)}
        return told | {"size": rows.sizes[ids]}, sound(kept, after, told["slope"])

    def tell(self, task: Task, server: Server, ids: Tensor, replies: Tensors, clients: int) -> Told:
        """One Langevin step on the mixture of the clients' densities; what is not finite is dropped."""
        following, number = server | {"round": server["round"] + 1}, int(server["round"])
        good = finite(replies["slope"]) & finite(replies["boltzmann"])
        dropped = dict.fromkeys(ids[~good].tolist(), "its energies are not finite: local training diverged")
        if not good.any():
            return Told(following, ids[good], torch.empty(0, dtype=torch.float64), dropped, [])
        sizes, boltzmann, slopes = (replies[name][good] for name in ("size", "boltzmann", "slope"))
        slope, share = mixture(sizes / sizes.sum(), boltzmann, slopes)
        epsilon = normal(slope.shape, stream(self.setting.seed, number, 0, LANGEVIN))
        x = langevin(server["x"], slope, self.step(number), self.chosen["noise"], epsilon)
        return Told(following | {"x": x}, ids[good], share.double().mean(1), dropped, [])

    def step(self, number: int) -> float:
        """The server's step size in round 1, 2, ..., T."""
        last, way = self.chosen["last"], SCHEDULES[self.chosen["schedule"]]
        return float(self.first + (last - self.first) * way(number, self.setting.rounds))

    def samples(self, server: Server) -> tuple[Tensor, Tensor]:
        """The synthetic rows and their labels."""
        return server["x"], server["y"]

    def model(self, task: Task, server: Server) -> Tensor:
        """The server's classifier: trained on the synthetic rows alone."""
        rng = stream(self.setting.seed, int(server["round"]), 0, CLASSIFY)
        return fit(task, server["x"], server["y"], self.chosen["classifier_epochs"], self.batch, self.lr, rng)
