"""Commonweal in Flower: `from commonweal.flower import FairStrategy`.

Needs the extra [flower]: pip install "commonweal[flower]".
"""

from importlib import import_module
from typing import TYPE_CHECKING

from commonweal.base.errors import ConfigError, install

if TYPE_CHECKING:
    from commonweal.flower.app import make_client_app, make_server_app
    from commonweal.flower.engine import FlowerEngine
    from commonweal.flower.mods import blend, loss_before_training, name_clients
    from commonweal.flower.private import weigh_privately
    from commonweal.flower.strategy import FairStrategy

__all__ = ["FairStrategy", "FlowerEngine", "blend", "loss_before_training", "make_client_app"]
__all__ += ["make_server_app", "name_clients", "weigh_privately"]

# Imported when they are asked for: Flower is an extra, and torch takes seconds.
HOMES = {
    "FairStrategy": "strategy",
    "FlowerEngine": "engine",
    "blend": "mods",
    "loss_before_training": "mods",
    "make_client_app": "app",
    "make_server_app": "app",
    "name_clients": "mods",
    "weigh_privately": "private",
}


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module 'commonweal.flower' has no attribute {name!r}")
    try:
        return vars(import_module(f"commonweal.flower.{HOMES[name]}"))[name]
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise ConfigError(
            f"Flower is not installed (no module {error.name!r}): install it with "
            f"{install('flower')}"
        ) from None
