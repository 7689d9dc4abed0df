"""Models whose logits are energies: a last layer of norm 1, and each row by itself."""

import pytest
import torch
from torch import nn

import commonweal
from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.models.energy_cnn import Spectral
from papers import paper

every = cases("name", ["energy-cnn", "energy-resnet"])


def build(name: str, shape: tuple[int, ...] = (3, 9, 12), width: int = 4) -> nn.Module:
    named = paper(name) if name == "energy-resnet" else name
    return commonweal.model(named, width=width, shape=shape, outputs=5)


def test_the_last_layers_weights_have_norm_one() -> None:
    layer = Spectral(7, 4)
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    W = layer.weight / torch.linalg.matrix_norm(layer.weight, 2)
    torch.testing.assert_close(layer(x), x @ W.T + layer.bias)
    with torch.no_grad():
        scaled = Spectral(7, 4)
        scaled.weight.copy_(50 * layer.weight)
        scaled.bias.copy_(layer.bias)
        torch.testing.assert_close(scaled(x), layer(x))


def test_its_gradient_is_that_of_the_formula() -> None:
    layer = Spectral(5, 3).double()
    x = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def outputs(weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(layer, {"weight": weight}, (x,))
        return result

    assert torch.autograd.gradcheck(outputs, layer.weight)


@every
def test_they_take_images_of_any_size_and_each_row_by_itself(name: str) -> None:
    module = build(name)
    x = torch.rand(6, 3, 9, 12, generator=torch.Generator().manual_seed(0))
    outputs = module(x)
    assert outputs.shape == (6, 5)
    torch.testing.assert_close(module(x[2:3]), outputs[2:3], rtol=1e-4, atol=1e-5)
    kinds = {type(m) for m in module.modules()}
    assert nn.SiLU in kinds and nn.ReLU not in kinds and not list(module.buffers())
    assert sum(isinstance(m, nn.Linear) for m in module.modules()) == 1


def test_the_cnns_energies_are_bounded_however_large_its_filters_grow() -> None:
    small = build("energy-cnn")
    large = build("energy-cnn")
    state = small.state_dict()
    for name, value in state.items():
        state[name] = 100 * value if value.ndim == 4 else value
    large.load_state_dict(state)
    x = torch.rand(6, 3, 9, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(large(x), small(x), rtol=1e-2, atol=1e-3)


def test_the_resnet_has_the_thesis_size_at_width_64() -> None:
    """About 5 million parameters (section 4.2) for 32 x 32 images of one channel."""
    module = commonweal.model(paper("energy-resnet"), shape=(1, 32, 32), outputs=10)
    assert 4.8e6 < sum(p.numel() for p in module.parameters()) < 5.2e6


@every
def test_rows_that_are_not_images_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' takes images .* shape \(10,\): take 'mlp'"):
        build(name, (10,))
