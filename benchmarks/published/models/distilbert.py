"""DistilBERT with a small head, from a folder of pre-trained weights. (Sanh et al. 2019)

Needs transformers. The AAggFF authors' code overwrites the pre-trained layers with random numbers;
this does not.
"""

from pathlib import Path

from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.models.shapes import Shape, sequence

PAD = 0  # the padding token of BERT's vocabularies


def distilbert(shape: Shape, outputs: int, weights: str, frozen: bool = False) -> nn.Module:
    """The state of the first token, through a hidden layer with ReLU, to the outputs.

    weights: the folder of config.json and model.safetensors; frozen: train the head only
    """
    sequence("distilbert", shape)
    try:
        from transformers import DistilBertModel
    except ImportError:
        raise ConfigError("distilbert needs transformers: pip install transformers") from None
    if not (Path(weights) / "config.json").is_file():
        raise ConfigError(
            f"weights = {weights!r} is not a folder with config.json and model.safetensors "
            "of a DistilBERT: give its path"
        )
    body = DistilBertModel.from_pretrained(weights, local_files_only=True)
    return _Classifier(body, body.config.dim, outputs, frozen)


class _Classifier(nn.Module):
    def __init__(self, body: nn.Module, width: int, outputs: int, frozen: bool) -> None:
        super().__init__()
        self.body = body.requires_grad_(not frozen)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        mask = (x != PAD).long()
        states = self.body(input_ids=x, attention_mask=mask).last_hidden_state  # (B, L, width)
        result: Tensor = self.head(self.hidden(states[:, 0]).relu())
        return result
