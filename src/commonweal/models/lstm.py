"""LEAF's stacked LSTM for the next character or word. (McMahan et al. 2017; Caldas et al. 2018)"""

import warnings

from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.models.shapes import Shape, sequence

CHARACTERS = 256  # tokens up to which they are characters rather than words


def lstm(
    shape: Shape,
    outputs: int,
    labels: tuple[int, ...] = (),
    embedding: int = 0,
    hidden: int = 256,
    layers: int = 2,
    vocabulary: int = 0,
    projection: int = 0,
    dense: int = 0,
    context: int = 0,
) -> nn.Module:
    """Embedded tokens, stacked LSTMs, and a linear layer on the last state, or on every state

    Rows with one label have one output, after the last token; rows with a label per token have one
    after each.
    embedding: numbers per token (0: 8 for characters, 200 for words); hidden, layers: of the LSTM
    vocabulary: the number of different tokens (0: as many as outputs)
    projection: numbers to which each LSTM's state is projected (Sak et al. 2014; 0: none)
    dense: units of a dense layer with ReLU before the last linear one (0: there is none)
    context: how many tokens of a row are read, the last ones (0: all)
    """
    sequence("lstm", shape)
    tokens = vocabulary or outputs
    default_embedding = 8 if tokens <= CHARACTERS else 200
    width = embedding or default_embedding
    if not 0 <= projection < hidden:
        raise ConfigError(
            f"lstm projection = {projection}: it must be below hidden = {hidden} (0: none)"
        )
    if context < 0 or (context and labels):
        raise ConfigError(
            f"lstm context = {context}: at least 0, and 0 for rows with a label per token"
        )
    if projection:  # a hint that torch gives once per process
        warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
    recurrent = nn.LSTM(width, hidden, layers, batch_first=True, proj_size=projection)
    states = projection or hidden
    head: nn.Module
    if dense:
        head = nn.Sequential(nn.Linear(states, dense), nn.ReLU(), nn.Linear(dense, outputs))
    else:
        head = nn.Linear(states, outputs)
    embedded = nn.Embedding(tokens, width)
    return _LSTM(embedded, recurrent, head, every_token=bool(labels), context=context)


class _LSTM(nn.Module):
    def __init__(
        self,
        embedding: nn.Embedding,
        lstm: nn.LSTM,
        head: nn.Module,
        every_token: bool,
        context: int,
    ) -> None:
        super().__init__()
        self.every_token = every_token
        self.context = context
        self.embedding = embedding
        self.lstm = lstm
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        read = x[:, -self.context :]  # all tokens if context is 0
        states, _ = self.lstm(self.embedding(read))  # (B, L, hidden)
        result: Tensor = self.head(states if self.every_token else states[:, -1])
        return result


ENTRIES = {"lstm": lstm}
