"""Build a job and run its rounds."""

__all__: list[str] = []
