"""M5: convolutions straight on the waveform. (Dai et al., ICASSP 2017)"""

from torch import nn

from commonweal.errors import ConfigError

__all__ = ["m5"]


def m5(shape: tuple[int, ...], outputs: int, stride: int = 4) -> nn.Module:
    """[1-D convolution, BatchNorm, ReLU, max pooling by 4] with 64, 64, 128, 256 channels, then the mean over time.

    stride: of the first convolution, whose filters span 80 samples
    """
    layers: list[nn.Module] = []
    if len(shape) != 2:
        raise ConfigError(f"model 'm5' takes waveforms (channels, samples), not rows of shape {shape}")
    wide, length = shape
    for channels, width, step in ((64, 80, stride), (64, 3, 1), (128, 3, 1), (256, 3, 1)):
        length = ((length - width) // step + 1) // 4
        layers += [nn.Conv1d(wide, channels, width, step), nn.BatchNorm1d(channels), nn.ReLU(), nn.MaxPool1d(4)]
        wide = channels
    if length < 1:
        raise ConfigError(f"model 'm5' needs longer waveforms than {shape[1]} samples")
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(wide, outputs))
