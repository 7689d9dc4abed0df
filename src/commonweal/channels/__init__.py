"""Channels: what happens to a reply on its way from the client to the server."""

from commonweal.channels.channel import Channel
from commonweal.channels.clip import Clip
from commonweal.channels.private import PrivateMask

__all__ = ["Channel", "Clip", "PrivateMask"]
