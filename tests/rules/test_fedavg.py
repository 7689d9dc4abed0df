"""FedAvg: the weighted average of the clients' models, which one centralised step shows."""

import pytest
import torch
from torch import nn

import commonweal
from commonweal.rules import FedAvg, Reports
from rule_helpers import weigh


def reports(sizes: torch.Tensor, losses: torch.Tensor | None = None) -> Reports:
    s = len(sizes)
    losses = torch.ones(s) if losses is None else losses
    return Reports(ids=torch.arange(s), sizes=sizes, losses=losses, clients=s)


@pytest.mark.parametrize(
    ("sizes", "weights"),
    [
        ([1, 3], [0.25, 0.75]),
        ([5], [1.0]),
        ([2, 2, 2, 2], [0.25] * 4),
        ([10, 30, 60], [0.1, 0.3, 0.6]),
    ],
)
def test_weights_are_shares_of_rows(sizes: list[int], weights: list[float]) -> None:
    got = weigh(FedAvg(), reports(torch.tensor(sizes)))
    assert got.tolist() == pytest.approx(weights, rel=1e-15)


def test_weights_are_float64_also_for_a_billion_rows_beside_one() -> None:
    weights = weigh(FedAvg(), reports(torch.tensor([10**9, 1])))
    assert weights.dtype == torch.float64
    assert weights.tolist() == [10**9 / (10**9 + 1), 1 / (10**9 + 1)]


def test_sizes_whose_sum_overflows_int32_and_float32() -> None:
    weights = weigh(FedAvg(), reports(torch.tensor([2**62, 2**62])))
    assert weights.tolist() == [0.5, 0.5]


def test_losses_do_not_matter() -> None:
    sizes = torch.tensor([1, 2, 3])
    a = weigh(FedAvg(), reports(sizes, torch.tensor([1.0, 2.0, 3.0])))
    b = weigh(FedAvg(), reports(sizes, torch.tensor([30.0, 0.0, 1.0])))
    assert torch.equal(a, b)


def test_it_remembers_nothing() -> None:
    assert FedAvg().init(7) == {}
    assert FedAvg()(reports(torch.tensor([1, 2])), {}).state == {}


def test_it_takes_no_parameters() -> None:
    with pytest.raises(
        commonweal.CommonwealError, match="rule 'fedavg' has no parameter 'q': it has no"
    ):
        commonweal.rule("fedavg", q=1.0)


def test_one_full_batch_step_per_client_is_one_step_on_the_pooled_rows() -> None:
    """With one step per client, FedAvg is gradient descent on the rows of all clients."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 4, generator=generator)
    y = torch.randint(0, 3, (60,), generator=generator)
    owner = ["a"] * 7 + ["b"] * 20 + ["c"] * 33
    federation = commonweal.Federation.from_arrays(x, y, owner, test=0.2, seed=1)
    module = nn.Linear(4, 3)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    task = commonweal.Task(module)
    client = {"name": "sgd", "batch": 0, "lr": 0.5}
    (done,) = commonweal.run(task, federation, rule="fedavg", client=client, rounds=1)
    loss = nn.functional.cross_entropy(module(federation.train.x), federation.train.y)
    gradient = torch.autograd.grad(loss, list(module.parameters()))
    expected = task.initial - 0.5 * torch.cat([g.flatten() for g in gradient])
    torch.testing.assert_close(done.state["w"], expected, rtol=1e-5, atol=1e-6)
