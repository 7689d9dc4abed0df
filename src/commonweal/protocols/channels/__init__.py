"""Channels: what happens to a reply on its way from the client to the server."""

from commonweal.protocols.channels.channel import Channel
from commonweal.protocols.channels.clip import Clip
from commonweal.protocols.channels.private import PrivateMask

__all__ = ["Channel", "Clip", "PrivateMask"]
