"""Times until an event: a Cox model over three registries, scored by concordance.

python examples/python/survive.py
"""

import numpy as np
from torch import nn

import commonweal as cw

rng = np.random.default_rng(0)
registry = np.repeat(["east", "west", "south"], 120)
x = rng.normal(size=(360, 3)).astype(np.float32)
time = rng.exponential(np.exp(-x[:, 0]))  # a higher first value means an earlier event
censored = rng.exponential(2.0, 360)
y = np.stack([np.minimum(time, censored), time <= censored], axis=1).astype(np.float32)

federation = cw.Federation.from_arrays(x, y, client=registry, test=0.3, loss="cox")
task = cw.Task(nn.Linear(3, 1), loss="cox", score="concordance")
client = {"name": "sgd", "lr": 0.5, "batch": 0}  # all rows of a client: risk sets are whole
for round in cw.run(task, federation, client=client, rounds=40, evaluate_every=20):
    if round.metrics:
        print(round.number, f"concordance: mean {round.metrics['mean']:.3f}")
