"""Checks of the shape of rows."""

from commonweal.base.errors import ConfigError

Shape = tuple[int, ...]  # of a row


def image(model: str, shape: Shape, least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of images that are large enough."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ConfigError(
            f"model {model!r} takes images (C, H, W) of {least} pixels or more, "
            f"not rows of shape {shape}: take 'mlp'"
        )
    return shape[0], shape[1], shape[2]


def sequence(model: str, shape: Shape) -> int:
    """The length of rows that are sequences of tokens."""
    if len(shape) != 1:
        raise ConfigError(
            f"model {model!r} takes sequences of tokens (L,), not rows of shape {shape}"
        )
    return shape[0]
