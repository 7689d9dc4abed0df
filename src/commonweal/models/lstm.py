"""LEAF's stacked LSTM for the next character or the next word. (McMahan et al. 2017; Caldas et al. 2018)"""

from torch import Tensor, nn

from commonweal.models._shapes import sequence

__all__ = ["lstm"]


def lstm(
    shape: tuple[int, ...],
    outputs: int,
    labels: tuple[int, ...] = (),
    embedding: int = 0,
    hidden: int = 256,
    layers: int = 2,
    vocabulary: int = 0,
) -> nn.Module:
    """Tokens are embedded, read by stacked LSTMs, and judged by a linear layer: after the last token where a row has
    one label, after each where each token has one.

    embedding: numbers a token (0: 8 for characters, 200 for words); hidden, layers: of the LSTM
    vocabulary: how many different tokens there are (0: as many as outputs)
    """
    sequence("lstm", shape)
    tokens = vocabulary or outputs
    return _Stacked(tokens, embedding or (8 if tokens <= 256 else 200), hidden, layers, outputs, each=bool(labels))


class _Stacked(nn.Module):
    def __init__(self, tokens: int, embedding: int, hidden: int, layers: int, outputs: int, each: bool) -> None:
        super().__init__()
        self.each = each
        self.embedding = nn.Embedding(tokens, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states = self.lstm(self.embedding(x))[0]  # (B, L, hidden)
        result: Tensor = self.head(states if self.each else states[:, -1])
        return result
