"""Three rules on your own data, over seeds: `python examples/python/compare_rules.py`."""

import torch
from torch import nn

import commonweal as cw

torch.manual_seed(0)
x, client = torch.randn(300, 5), torch.arange(300) % 6
y = (x[:, 0] + 0.3 * client > 1).long()
federation = cw.Federation.from_arrays(x, y, client)
task = cw.Task(nn.Linear(5, 2))
comparison = cw.compare(task, federation, rules=["fedavg", "aaggff-s", "term"], seeds=2, rounds=5)
for result in comparison.results:
    print(result.label, [seed["worst"] for seed in result.metrics])
