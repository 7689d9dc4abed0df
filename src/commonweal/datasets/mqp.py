"""Do two medical questions ask the same? Eleven doctors wrote the pairs, each in a style of their own.

McCreery et al., KDD 2020 (Medical Question Pairs); `mqp.csv` in `mqp`. A client is a doctor.
"""

import csv
from typing import Any, Literal

import numpy as np

from commonweal.datasets._files import decoded, locate
from commonweal.datasets._shared import noisy
from commonweal.errors import ConfigError, DataError
from commonweal.federation import Federation
from commonweal.noise import Noise

__all__ = ["mqp"]


def mqp(
    features: Literal["hashed", "tokens"] = "hashed",
    width: int = 1024,
    tokenizer: str | None = None,
    length: int = 200,
    noise: Noise | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """3,048 pairs, 11 doctors, same or not; score: AUROC

    features: "hashed" n-grams of words (their products, their differences and the cosine: 2 * width + 1 numbers), or
    "tokens" of both questions for model 'distilbert', cut by the `tokenizer` in a folder to `length`
    noise: wrong labels in training rows; test: the share of each doctor's rows that is held out
    seed: which rows these are; dir: the folder of mqp.csv
    """
    path = locate("mqp", "mqp", ["mqp.csv"], dir)[0]
    rows = list(csv.reader(decoded(path).splitlines(keepends=True)))
    if not rows or any(len(row) != 4 or row[3] not in "01" for row in rows):
        raise DataError(f"{str(path)!r} is not the table of doctor, question, question, 0 or 1")
    doctor, first, second, label = zip(*rows, strict=True)
    x = _hashed(first, second, width) if features == "hashed" else _tokens(first, second, tokenizer, length)
    names = [f"doctor {number}" for number in sorted(set(map(int, doctor)))]
    owner = np.unique(np.array(doctor, dtype=int), return_inverse=True)[1]
    y = np.array(label, dtype=np.int64)
    what: dict[str, Any] = {"outputs": 1, "loss": "binary", "score": "auroc"}
    return noisy(Federation.from_arrays(x, y, owner, test, seed, names, **what), noise, seed)


def _hashed(first: tuple[str, ...], second: tuple[str, ...], width: int) -> np.ndarray:
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(n_features=width, ngram_range=(1, 2), alternate_sign=False, stop_words="english")
    a, b = (vectorizer.transform(texts).toarray() for texts in (first, second))  # unit rows (N, width)
    return np.hstack([a * b, np.abs(a - b), (a * b).sum(1, keepdims=True)]).astype(np.float32)


def _tokens(first: tuple[str, ...], second: tuple[str, ...], folder: str | None, length: int) -> np.ndarray:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError("features = 'tokens' needs transformers: pip install 'commonweal[text]'") from None
    if folder is None:
        raise ConfigError("features = 'tokens' needs tokenizer = the folder of a saved tokenizer, such as DistilBERT's")
    cut = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = cut(list(first), list(second), max_length=length, padding="max_length", truncation=True)["input_ids"]
    return np.array(ids, dtype=np.int32)
