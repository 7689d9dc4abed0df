"""Classification: one model for five hospitals, and a prediction for a new patient.

python examples/python/classify.py
"""

import numpy as np
import torch
from torch import nn

import commonweal as cw

rng = np.random.default_rng(0)
hospital = np.repeat(["A", "B", "C", "D", "E"], [300, 200, 100, 60, 40])  # each row's owner
x = rng.normal(size=(700, 6)).astype(np.float32)
shift = 1.5 * (hospital == "E")  # the smallest hospital measures differently
ill = np.where(x[:, 0] + x[:, 1] > shift, "ill", "well")

federation = cw.Federation.from_arrays(x, ill, client=hospital, test=0.3)
module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
for rule in ("fedavg", "aaggff-s"):
    rounds = cw.run(cw.Task(module), federation, rule=rule, rounds=30, evaluate_every=30)
    last = list(rounds)[-1]
    mean, worst = (100 * last.metrics[key] for key in ("mean", "worst"))
    print(f"{rule:9} mean {mean:.1f} %   worst hospital {worst:.1f} %")

new = torch.tensor([[1.0, 0.5, 0.0, 0.0, 0.0, 0.0]])
print(dict(zip(federation.class_names, last.module()(new).softmax(1)[0].tolist(), strict=True)))
