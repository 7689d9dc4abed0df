"""Datasets and models that only the papers' tables use, by name."""

from published.table import TABLES

# Without distilbert, which needs its weights.
MODELS = ("convnet", "efficientnet-b0", "energy-resnet", "m5")


def paper(name: str) -> str:
    """What names a dataset or a model of the tables: its file and function."""
    function = name.replace("-", "_")
    for folder in ("datasets", "models"):
        for file in sorted((TABLES.parent / folder).glob("*.py")):
            if f"\ndef {function}(" in file.read_text("utf-8"):
                return f"{file}:{function}"
    raise LookupError(name)
