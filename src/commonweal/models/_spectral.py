"""The last layer of energy models: weights of spectral norm 1."""

import torch
from torch import Tensor, nn


class Spectral(nn.Linear):
    """x (W / |W|)' + b, with the exact spectral norm |W|.

    Miyato et al., ICLR 2018, estimate |W| by a power iteration, whose vectors would be buffers to
    send. For a few classes the exact norm is faster, and needs none.
    """

    def forward(self, x: Tensor) -> Tensor:
        # Weights that diverged have no eigenvalues. The output is NaN in any case.
        gram = (self.weight @ self.weight.mT).nan_to_num(0.0, 0.0, 0.0)
        largest = torch.linalg.eigvalsh(gram)[..., -1]  # (outputs, outputs) -> ()
        return nn.functional.linear(x, self.weight / largest.sqrt(), self.bias)
