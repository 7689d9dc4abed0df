"""Do two medical questions ask the same? Eleven doctors wrote the pairs, each in their own style.

McCreery et al., KDD 2020 (Medical Question Pairs); `mqp.csv` in `mqp`. A client is a doctor.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from commonweal.datasets._files import locate, read_text
from commonweal.datasets._shared import natural_federation
from commonweal.errors import ConfigError, DataError
from commonweal.federation import Federation

__all__ = ["mqp"]

SOURCES = """
mqp https://raw.githubusercontent.com/curai/medical-question-pair-dataset/master/
94ecd609a9ca9350e1cff2438aa55a034762f01c1a68732aaae3e4be7b03cf57 mqp.csv
"""


def mqp(
    features: Literal["hashed", "tokens"] = "hashed",
    width: int = 1024,
    tokenizer: str | None = None,
    length: int = 200,
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """3,048 pairs, 11 doctors, same or not; score: AUROC

    features: "hashed" n-grams of words (products, differences and the cosine: 2 * width + 1
    numbers), or "tokens" of both questions for model 'distilbert', by the `tokenizer` in a folder,
    cut to `length`
    clients: how many of the doctors to use; test: the share of each doctor's rows that is held out
    seed: which rows and clients; dir: the folder of mqp.csv
    """
    rows = _read(locate("mqp", "mqp", ["mqp.csv"], dir)[0])
    first = [row[1] for row in rows]
    second = [row[2] for row in rows]
    if features == "hashed":
        x = _hash(first, second, width)
    else:
        x = _tokenize(first, second, tokenizer, length)
    doctors, owner = np.unique([int(row[0]) for row in rows], return_inverse=True)
    return natural_federation(
        x,
        np.array([int(row[3]) for row in rows]),
        owner,
        test,
        seed,
        clients,
        [f"doctor {number}" for number in doctors],
        outputs=1,
        loss="binary",
        score="auroc",
    )


ENTRIES = {"mqp": mqp}


def _read(path: Path) -> list[list[str]]:
    rows = list(csv.reader(read_text(path).splitlines(keepends=True)))
    if not rows or any(len(row) != 4 or row[3] not in "01" for row in rows):
        raise DataError(f"{str(path)!r} is not the table of doctor, question, question, 0 or 1")
    return rows


def _hash(first: Sequence[str], second: Sequence[str], width: int) -> np.ndarray:
    from sklearn.feature_extraction.text import HashingVectorizer  # slow to import

    vectorizer = HashingVectorizer(
        n_features=width, ngram_range=(1, 2), alternate_sign=False, stop_words="english"
    )
    a = vectorizer.transform(first).toarray()  # unit rows (N, width)
    b = vectorizer.transform(second).toarray()
    products = a * b
    cosine = products.sum(1, keepdims=True)
    features = np.hstack([products, np.abs(a - b), cosine])
    return features.astype(np.float32)


def _tokenize(
    first: Sequence[str], second: Sequence[str], folder: str | None, length: int
) -> np.ndarray:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError(
            "features = 'tokens' needs transformers: pip install 'commonweal[text]'"
        ) from None
    if folder is None:
        raise ConfigError(
            "features = 'tokens' needs tokenizer = the folder of a saved tokenizer, such as "
            "DistilBERT's"
        )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    encoded = tokenizer(
        list(first), list(second), max_length=length, padding="max_length", truncation=True
    )
    return np.array(encoded["input_ids"], dtype=np.int32)
