"""The original files of datasets: where they come from, and how they are found, read and cached."""
