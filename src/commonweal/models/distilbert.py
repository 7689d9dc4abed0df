"""DistilBERT from a folder of weights, with a small head; the weights are taken as they are. (Sanh et al. 2019)

Needs transformers. The AAggFF authors' code overwrites the pre-trained layers with random numbers; this does not.
"""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from commonweal.errors import ConfigError
from commonweal.models._shapes import sequence

__all__ = ["distilbert"]

PAD = 0  # the number of the padding token in BERT's vocabularies


def distilbert(shape: tuple[int, ...], outputs: int, weights: str, frozen: bool = False) -> nn.Module:
    """The state of the first token through a hidden layer with ReLU to the outputs.

    weights: the folder of config.json and model.safetensors; frozen: train the head only
    """
    sequence("distilbert", shape)
    try:
        from transformers import DistilBertModel
    except ImportError:
        raise ConfigError("model 'distilbert' needs transformers: pip install 'commonweal[text]'") from None
    if not (Path(weights) / "config.json").is_file():
        raise ConfigError(f"weights = {weights!r}: no folder with config.json and model.safetensors of a DistilBERT")
    return _Classifier(DistilBertModel.from_pretrained(weights, local_files_only=True), outputs, frozen)


class _Classifier(nn.Module):
    def __init__(self, body: Any, outputs: int, frozen: bool) -> None:
        super().__init__()
        self.body = body.requires_grad_(not frozen)
        self.hidden = nn.Linear(body.config.dim, body.config.dim)
        self.head = nn.Linear(body.config.dim, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states = self.body(input_ids=x, attention_mask=(x != PAD).long()).last_hidden_state  # (B, L, dim)
        result: Tensor = self.head(self.hidden(states[:, 0]).relu())
        return result
