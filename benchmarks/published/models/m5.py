"""M5: convolutions directly on the waveform. (Dai et al., ICASSP 2017)"""

from torch import nn

from commonweal.base.errors import ConfigError
from commonweal.models.shapes import Shape


def m5(shape: Shape, outputs: int, stride: int = 4) -> nn.Module:
    """[1-D convolution, BatchNorm, ReLU, 4x max pooling] with 64, 64, 128, 256 channels, time mean.

    stride: of the first convolution, whose filters span 80 samples
    """
    if len(shape) != 2:
        raise ConfigError(
            f"model 'm5' takes waveforms (channels, samples), not rows of shape {shape}"
        )
    inputs, length = shape
    layers: list[nn.Module] = []
    for channels, size, step in ((64, 80, stride), (64, 3, 1), (128, 3, 1), (256, 3, 1)):
        layers += [
            nn.Conv1d(inputs, channels, size, step),
            nn.BatchNorm1d(channels),
            nn.ReLU(),
            nn.MaxPool1d(4),
        ]
        inputs = channels
        length = ((length - size) // step + 1) // 4
    if length < 1:
        raise ConfigError(f"model 'm5' needs longer waveforms than {shape[1]} samples")
    head = nn.Linear(inputs, outputs)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), head)
