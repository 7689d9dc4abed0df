"""Build a job and run its rounds."""
