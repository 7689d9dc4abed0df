"""Files of a run besides its rounds: models, synthetic samples and a table's preprocessing."""

import io
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import RunError
from commonweal.base.files import digest, read_plain, reading, write_file
from commonweal.base.plain import to_json
from commonweal.base.tensors import Tensors
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.record.checksums import from_bytes, to_bytes
from commonweal.record.facts import sealed

MODEL = "model.safetensors"
BEST = "best.safetensors"
SAMPLES = "synthetic.npz"
PREPARATION = "preparation.json"


def write_model(folder: Path, tensors: Tensors, name: str = MODEL) -> None:
    write_file(folder / name, to_bytes(tensors))


def read_model(folder: Path, name: str = MODEL) -> Tensors:
    """A model's tensors, by the module's own names."""
    path = folder / name
    if not path.exists():
        raise RunError(
            f"{str(folder)!r} is not finished: its model is written after the last round"
        )
    with reading(path):
        data = read_plain(path)
    tensors, _ = from_bytes(data, repr(str(path)), sealed=name != MODEL)
    return {name: value.clone() for name, value in tensors.items()}


def write_samples(folder: Path, x: Tensor, y: Tensor) -> None:
    """Write synthetic samples. The entries have no date: equal samples give equal bytes."""
    data = io.BytesIO()
    np.savez(data, images=x.numpy(), labels=y.numpy())
    write_file(folder / SAMPLES, data.getvalue())


def read_samples(folder: Path) -> tuple[Tensor, Tensor] | None:
    """Synthetic samples and their labels, where the algorithm makes some."""
    path = folder / SAMPLES
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    except Exception as error:  # of the file system, zip, zlib or numpy
        raise RunError(f"{str(path)!r} is damaged ({error})") from None


def write_preprocessing(folder: Path, preprocessing: Preprocessing) -> None:
    write_file(folder / PREPARATION, sealed(preprocessing.values()))


def read_preprocessing(folder: Path) -> Preprocessing | None:
    """Return the preprocessing of a table's rows, where the run was trained on a table."""
    path = folder / PREPARATION
    if not path.exists():
        return None
    try:
        values = json.loads(read_plain(path))
        seal = values.pop("digest")
        preprocessing = Preprocessing.parse(values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{str(path)!r} cannot be read ({error}): run again") from None
    if seal != digest(to_json(values)):
        raise RunError(f"{str(path)!r} was changed after it was written: run again")
    return preprocessing
