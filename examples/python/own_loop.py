"""A rule in your own training loop: `python examples/python/own_loop.py`."""

import torch
from torch.nn.functional import cross_entropy

import commonweal as cw

clients = [(torch.randn(n, 5) + n / 50, torch.randint(2, (n,))) for n in (50, 30, 20)]
ids, sizes = torch.arange(3), torch.tensor([50, 30, 20])
w, rule = torch.zeros(5, 2, requires_grad=True), cw.rule("aaggff-s")
state = rule.init(3)
for _ in range(5):
    losses = [cross_entropy(x @ w, y) for x, y in clients]
    updates = torch.stack([0.1 * torch.autograd.grad(loss, w)[0].flatten() for loss in losses])
    values = torch.stack(losses).detach()
    decision = rule(
        cw.Reports(ids=ids, sizes=sizes, losses=values, updates=updates, clients=3), state
    )
    state, weights = decision.state, decision.weights
    w = (w - (weights.float() @ updates).view(5, 2)).detach().requires_grad_()
    print([round(weight, 3) for weight in weights.tolist()])
