"""Commonweal in Flower: `from commonweal.flower import FairStrategy`.

Needs the extra [flower]: pip install 'commonweal[flower]'.
"""

from typing import TYPE_CHECKING, Any

from commonweal.errors import ConfigError

__all__ = ["FairStrategy", "loss_before_training"]

if TYPE_CHECKING:
    from commonweal.engines.flower import FairStrategy, loss_before_training


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'commonweal.flower' has no attribute {name!r}")
    try:
        from commonweal.engines import flower
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise ConfigError(
            "Flower is not installed: install it with pip install 'commonweal[flower]'"
        ) from None
    return vars(flower)[name]
