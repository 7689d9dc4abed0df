"""Your own rule: equal weights for the worse half. `python examples/python/own_rule.py`."""

from dataclasses import dataclass

from torch import Tensor

import commonweal as cw


@dataclass(frozen=True)
class WorseHalf(cw.Stateless):
    def weigh(self, reports: cw.Reports) -> Tensor:
        chosen = (reports.losses >= reports.losses.median()).double()
        return chosen / chosen.sum()


*_, last = cw.run(cw.Experiment(dataset="vowel", rounds=5, rule=WorseHalf()))
print("worst speaker:", last.metrics["worst"])
