"""test-scores.safetensors: the main score of every test sample, by the models that a run ends with.

A score that is no mean over samples (AUROC, for example) has a jackknife pseudo-value per sample,
so that the mean over a client's samples is the client's score, whatever the score.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from commonweal.base.errors import RunError
from commonweal.base.files import read_plain, reading, write_file
from commonweal.record.checksums import from_bytes, to_bytes

NAME = "test-scores.safetensors"


@dataclass(frozen=True, eq=False)
class TestScores:
    """One value of the main score per test sample. Client k has offsets[k]:offsets[k + 1]."""

    __test__ = False  # for pytest

    names: tuple[str, ...]  # of the clients
    offsets: Tensor  # (K + 1,) int64
    values: Tensor  # (N,) float32, of the global model; NaN: not defined
    personal: Tensor | None = None  # (N,) float32, of what clients use, where that is another
    rows: Tensor | None = None  # (N,) int64: row numbers before the split, where they are known

    @property
    def used(self) -> Tensor:
        """The scores of what clients use."""
        return self.values if self.personal is None else self.personal


def write_test_scores(folder: Path, scores: TestScores) -> None:
    tensors = {"offsets": scores.offsets, "values": scores.values}
    if scores.personal is not None:
        tensors["personal"] = scores.personal
    if scores.rows is not None:
        tensors["rows"] = scores.rows
    names = json.dumps(scores.names, ensure_ascii=False)
    write_file(folder / NAME, to_bytes(tensors, names=names))


def read_test_scores(folder: Path) -> TestScores | None:
    """Read the scores of a run's test samples, where it has any.

    Raises:
        RunError: They are not those that were written.
    """
    path = folder / NAME
    if not path.exists():
        return None
    with reading(path):
        data = read_plain(path)
    tensors, facts = from_bytes(data, repr(str(path)))
    try:
        names = tuple(json.loads(facts["names"]))
        return TestScores(names, **tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{str(path)!r} is damaged ({error}): run again") from None
