"""Your own model, datasets and loss: `python examples/python/own_data.py`."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import commonweal as cw

torch.manual_seed(0)
data = {}
for k, clinic in enumerate(("north", "south", "west")):
    x = torch.randn(60, 5) + k
    data[clinic] = TensorDataset(x, (x.sum(1) > 5 * k).long())
federation = cw.Federation.from_datasets(data, test=0.25)
task = cw.Task(nn.Linear(5, 2), loss=nn.CrossEntropyLoss(label_smoothing=0.1), score="accuracy")
for done in cw.run(task, federation, rule="aaggff-s", rounds=10, out="runs/own"):
    print(done.number, done.metrics["mean"], done.metrics["worst"])
