"""Personal models taken out of rounds, runs and records, against the evaluation of the run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import commonweal
from commonweal import Federation, Task
from commonweal.base.errors import ConfigError, RunError


def samples(n: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0.3 * seed).long())


DATA = {f"c{k}": samples(12 + 6 * k, k) for k in range(3)}
FEDERATION = Federation.from_datasets(DATA, test=DATA)


def made(seed: int = 0) -> nn.Module:
    """Adapters on a frozen base, with normalisation in between."""
    torch.manual_seed(0)
    base = nn.Linear(5, 6).requires_grad_(False)
    torch.manual_seed(seed)
    if seed:
        base.reset_parameters()
    return nn.Sequential(base, nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def losses_of(module: nn.Module, name: str, loss: Any = F.cross_entropy) -> float:
    x, y = DATA[name].tensors
    with torch.no_grad():
        return float(loss(module(x), y))


@pytest.mark.parametrize(
    "method", [{"name": "ditto"}, {"name": "fedper"}, {"name": "fedbn"}, {"name": "apfl"}]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_personal_module_gives_the_losses_of_the_run(
    method: dict[str, Any], smoothing: float, tmp_path: Path
) -> None:
    loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
    run = commonweal.run(
        Task(made(), loss=loss), FEDERATION, rounds=2, client=method, cohort="all", out=tmp_path
    )
    *_, last = run
    assert last.evaluation is not None and last.evaluation.personal is not None
    record = run.result()
    everyone = dict(record.modules(made()))
    assert list(everyone) == list(DATA)
    for k, name in enumerate(DATA):
        want = float(last.evaluation.personal.losses[k])
        modules = (
            last.module(client=name),
            run.module(client=name),
            record.module(made(), client=name),
            everyone[name],
        )
        for module in modules:
            assert not module.training
            assert losses_of(module, name, loss) == pytest.approx(want, rel=1e-5)
    assert losses_of(last.module(), "c0", loss) == pytest.approx(
        float(last.evaluation.losses[0]), rel=1e-5
    )


def test_what_cannot_be_taken_out_is_an_error(tmp_path: Path) -> None:
    run = commonweal.run(
        Task(made()), FEDERATION, rounds=2, client="ditto", cohort="all", out=tmp_path
    )
    first, last = run
    with pytest.raises(RunError, match="round 1 is over"):
        first.module(client="c0")
    with pytest.raises(ConfigError, match="did you mean 'c1'"):
        last.module(client="c11")
    record = run.result()
    with pytest.raises(RunError, match="not trained"):
        record.module(made(seed=1), client="c0")
    with pytest.raises(RunError, match="not trained"):
        record.module(made(seed=1))
    with pytest.raises(RunError, match="your own module"):
        record.module(client="c0")
    plain = commonweal.run(Task(made()), FEDERATION, rounds=1).result()
    with pytest.raises(ConfigError, match="one model for all"):
        plain.module(made(), client="c0")


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, values: Tensor) -> Any:
        return self.layer(values)


def test_a_regression_is_in_the_labels_units(tmp_path: Path) -> None:
    data = {}
    for name, part in DATA.items():
        x, _ = part.tensors
        data[name] = TensorDataset(x, 100 + 7 * x[:, 1])
    federation = Federation.from_datasets(data, test=data)
    run = commonweal.run(
        Task(Named(), score="mae"), federation, rounds=2, client="ditto", cohort="all", out=tmp_path
    )
    *_, last = run
    assert last.evaluation is not None and last.evaluation.personal is not None
    for k, name in enumerate(data):
        for module in (last.module(client=name), run.result().module(Named(), client=name)):
            with torch.no_grad():
                x, y = data[name].tensors
                error = float((module(x)[:, 0] - y).abs().mean())
            assert error == pytest.approx(float(last.evaluation.personal.score[k]), rel=1e-5)
