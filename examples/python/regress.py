"""Regression: the length of stay in days, with errors in days for every clinic.

python examples/python/regress.py
"""

import numpy as np
from torch import nn

import commonweal as cw

rng = np.random.default_rng(0)
clinic = np.repeat(["north", "south", "west"], 150)
x = rng.normal(size=(450, 4)).astype(np.float32)
days = 8 + 2 * x[:, 0] + 1.5 * (clinic == "west") * x[:, 1] + rng.normal(0, 0.5, 450)

federation = cw.Federation.from_arrays(x, days, client=clinic, test=0.3)
task = cw.Task(nn.Linear(4, 1), loss="squared", score="mae")
client = {"name": "sgd", "lr": 0.05, "batch": 20}
for rule in ("fedavg", "term"):
    out = f"runs/{rule}"
    run = cw.run(task, federation, rule=rule, client=client, rounds=20, out=out)
    table = run.result().clients()
    errors = dict(zip(table.names, table.evaluation.score.tolist(), strict=True))
    print(rule, "mean absolute error in days:", {name: round(e, 2) for name, e in errors.items()})
