"""The device on which clients compute: the CPU, or another that torch finds here."""

import torch

from commonweal.base.errors import ConfigError


def find_device(name: str) -> torch.device:
    """A device by name. Raises ConfigError where this machine does not have it."""
    kind, _, number = name.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= count:
            raise ConfigError(
                f"device = {name!r}: torch {torch.__version__} finds {count} CUDA devices here; "
                "set device = 'cpu', or install a build of torch for your GPU"
            )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            f"device = {name!r}: torch {torch.__version__} finds no Apple GPU here; set "
            "device = 'cpu'"
        )
    return torch.device(name)
