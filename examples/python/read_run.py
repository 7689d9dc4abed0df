"""Read a run, see who is left behind, plot it: `python examples/python/read_run.py`."""

import torch

import commonweal as cw

record = cw.run(cw.Experiment(dataset="vowel", rounds=5), out="runs/vowel").result()
table = record.clients()
worst = table.evaluation.score.argsort()[:3].tolist()
print("left behind:", [table.names[k] for k in worst])
record.plot.clients().savefig("clients.png")
print(record.module()(torch.zeros(1, 10)))
