"""LEAF's stacked LSTM for the next character or word. (McMahan et al. 2017; Caldas et al. 2018)"""

from torch import Tensor, nn

from commonweal.models._shapes import Shape, sequence

__all__ = ["lstm"]

CHARACTERS = 256  # tokens up to which they are characters rather than words


def lstm(
    shape: Shape,
    outputs: int,
    labels: tuple[int, ...] = (),
    embedding: int = 0,
    hidden: int = 256,
    layers: int = 2,
    vocabulary: int = 0,
) -> nn.Module:
    """Embedded tokens, stacked LSTMs, and a linear layer on the last state, or on every state

    Rows with one label have one output, after the last token; rows with a label per token have one
    after each.
    embedding: numbers per token (0: 8 for characters, 200 for words); hidden, layers: of the LSTM
    vocabulary: the number of different tokens (0: as many as outputs)
    """
    sequence("lstm", shape)
    tokens = vocabulary or outputs
    default_embedding = 8 if tokens <= CHARACTERS else 200
    width = embedding or default_embedding
    return _LSTM(tokens, width, hidden, layers, outputs, every_token=bool(labels))


class _LSTM(nn.Module):
    def __init__(
        self,
        tokens: int,
        embedding: int,
        hidden: int,
        layers: int,
        outputs: int,
        every_token: bool,
    ) -> None:
        super().__init__()
        self.every_token = every_token
        self.embedding = nn.Embedding(tokens, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))  # (B, L, hidden)
        result: Tensor = self.head(states if self.every_token else states[:, -1])
        return result


ENTRIES = {"lstm": lstm}
