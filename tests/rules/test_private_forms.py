"""Without noise and with steady losses, private forms give their rules' own weights."""

import pytest
import torch

from commonweal.rules import CVaR, Rule, SemiVRed
from commonweal.rules.private_form import Federated
from commonweal.rules.rule import Reports
from commonweal.rules.term import TERM


@pytest.mark.parametrize(
    ("rule", "atol"), [(TERM(1.0), 1e-6), (SemiVRed(0.5), 1e-6), (CVaR(0.8, share=False), 0.3)]
)
def test_the_form_follows_its_rule(rule: Rule, atol: float) -> None:
    losses = torch.linspace(0.2, 2.0, 101, dtype=torch.float64)
    form = rule.private
    assert form is not None
    public = form.init(Federated(1000, 0.1, 2.3))
    for _ in range(400):
        weighed = form.weigh(losses, {}, public)
        public = form.learn(public, weighed.statistics.mean(0))
    count = len(losses)
    reports = Reports(ids=torch.arange(count), sizes=torch.ones(count), losses=losses, clients=1000)
    exact = count * rule(reports, rule.init(1000)).weights
    torch.testing.assert_close(form.weigh(losses, {}, public).weights, exact, rtol=0, atol=atol)
