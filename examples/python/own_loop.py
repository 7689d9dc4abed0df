"""A rule alone, in a training loop of your own: nothing else of Commonweal is needed.

python examples/python/own_loop.py
"""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import commonweal as cw

torch.manual_seed(0)
clients = [(torch.randn(n, 5) + k, torch.randint(2, (n,))) for k, n in enumerate((50, 30, 20))]
model = nn.Linear(5, 2)

rule = cw.rule("aaggff-s")
state = rule.init(len(clients))
for _ in range(5):
    received = parameters_to_vector(model.parameters()).detach()
    losses, updates = [], []
    for x, y in clients:
        vector_to_parameters(received.clone(), model.parameters())
        loss = nn.functional.cross_entropy(model(x), y)
        losses.append(loss.item())  # of the received model, before local training
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        updates.append(received - parameters_to_vector(model.parameters()).detach())
    stacked = torch.stack(updates)  # (S, d)
    reports = cw.Reports(
        ids=torch.arange(len(clients)),
        sizes=torch.tensor([len(y) for _, y in clients]),
        losses=torch.tensor(losses),
        updates=stacked,
        clients=len(clients),
    )
    decision = rule(reports, state)
    state = decision.state
    direction = decision.weights.float() @ stacked
    vector_to_parameters(received - direction, model.parameters())
    print([round(weight, 3) for weight in decision.weights.tolist()])
