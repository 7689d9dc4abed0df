"""Who carries the messages between a server and its clients."""
