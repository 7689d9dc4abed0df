"""Every published table has its settings: they build, and run on made-up samples of their shape."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from commonweal.config import catalog
from commonweal.config.experiment import Experiment, change, read
from commonweal.data.federation import Federation
from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from published.reproduction import figure_of
from published.table import PublishedTable, Row, Setting, find, names

CLIENTS = 3
TRAIN = 12
TEST = 14


class Made(NamedTuple):
    """The shape of a dataset's samples, as its publisher describes it."""

    shape: tuple[int, ...]
    outputs: int
    score: str = "accuracy"
    tokens: int = 0  # in the vocabulary; 0: numbers
    per_token: bool = False  # whether every token has a label
    clients: tuple[str, ...] = ("0", "1", "2")


DATA = {
    "adult": Made((99,), 2, clients=("doctorate", "rest")),
    "berka": Made((15,), 2, "auroc"),
    "celeba": Made((3, 84, 84), 2),
    "cifar10": Made((3, 32, 32), 10),
    "cifar100": Made((3, 32, 32), 100),
    "cinic10": Made((3, 32, 32), 10),
    "clothing1m": Made((3, 64, 64), 14),
    "emnist": Made((1, 28, 28), 10),
    "fashion-mnist": Made((1, 28, 28), 10),
    "femnist": Made((1, 28, 28), 62),
    "heart": Made((15,), 2, "auroc"),
    "isic": Made((3, 200, 200), 8, "top-5"),
    "medmnist": Made((3, 64, 64), 7),
    "mnist": Made((1, 28, 28), 10),
    "mnist-writers": Made((1, 28, 28), 10),
    "mqp": Made((2049,), 2, "auroc"),
    "ptb-cornell": Made((35,), 10_000, "likelihood", 10_000, True, ("document", "conversation")),
    "reddit": Made((10,), 10_000, "token-accuracy", 10_000, True),
    "shakespeare": Made((80,), 96, tokens=96),
    "speech-commands": Made((1, 16_000), 35),
    "stackoverflow": Made((20,), 10_000, "token-accuracy", 10_000, True),
    "tiny-imagenet": Made((3, 64, 64), 200),
}
# Parameters of the networks that the papers name, counted by hand or by their authors.
PARAMETERS = {
    ("mlp", (1, 28, 28), 10): 199_210,  # McMahan et al., AISTATS 2017: TwoNN
    ("femnist-cnn", (1, 28, 28), 62): 6_603_710,  # LEAF
    ("logistic", (15,), 2): 16,
    ("m5", (1, 16_000), 35): 5184 + 12_352 + 24_704 + 98_560 + 2 * 512 + 8995,
}
LARGE = ("resnet", "mobilenet", "efficientnet", "vgg", "convnet", "cnn", "femnist-cnn", "m5", "mlp")


def short(part: Mapping[str, object]) -> str:
    """The name of a dataset or model, of a file too."""
    return str(part["name"]).rpartition(":")[2].replace("_", "-")


def made(experiment: Experiment) -> Made:
    about = DATA[short(experiment.dataset)]
    size = experiment.dataset.get("size")
    if size is not None and len(about.shape) == 3:
        about = about._replace(shape=(about.shape[0], size, size))
    if experiment.dataset.get("classes"):
        about = about._replace(outputs=len(experiment.dataset["classes"]))
    if experiment.dataset.get("features") == "tokens":
        about = about._replace(shape=(200,), tokens=30_522)
    return about


def federation(experiment: Experiment) -> Federation:
    """A few random samples in the place of a dataset's."""
    about = made(experiment)
    rng = np.random.default_rng(experiment.seed)
    rows = (TRAIN + TEST) * len(about.clients)
    shape = (rows, *about.shape)
    x: np.ndarray = rng.random(shape).astype(np.float32)
    if about.tokens:
        x = rng.integers(0, about.tokens, shape)
    y = rng.integers(0, about.outputs, shape if about.per_token else rows)
    if not about.per_token:
        y[: about.outputs] = np.arange(about.outputs)[:rows]
    owner = np.tile(np.arange(len(about.clients)), TRAIN + TEST)
    return Federation.from_arrays(
        x,
        y,
        owner,
        test=np.repeat([False, True], [TRAIN * len(about.clients), TEST * len(about.clients)]),
        names=about.clients,
        outputs=about.outputs,
        loss="tokens" if about.per_token else None,
        score=about.score,
    )


def shortened(experiment: Experiment) -> Experiment:
    """Two rounds of a network that is small where the published one is large."""
    name = short(experiment.model)
    model: dict[str, object] = dict(experiment.model)
    if name.startswith(LARGE):
        model = {"name": "mlp", "hidden": [4, 4]}
    if name in ("lstm", "distilbert"):
        model = {"name": "lstm", "hidden": 4, "embedding": 4, "layers": 1}
        if name == "distilbert":
            model["vocabulary"] = 30_522
    if name == "energy-resnet":
        model = {"name": "energy-cnn"}
    client = dict(experiment.client)
    for key in ("epochs", "head_epochs"):
        if client.get(key):
            client[key] = 1
    algorithm = dict(experiment.algorithm)
    rounds = 2
    if algorithm["name"] == "fedcorr":
        algorithm |= {"tuning": 1, "iterations": 1}
        rounds = 4
    if "classifier_epochs" in algorithm:
        algorithm |= {"classifier_epochs": 1, "spc": 6}
    if "width" in algorithm:
        algorithm["width"] = 4
    return experiment.change(
        rounds=rounds,
        cohort=2 if experiment.cohort != "all" else "all",
        evaluate_every=1,
        model=model,
        client=client,
        algorithm=algorithm,
        partition=None,
        label_noise=None,
    )


def published(table: PublishedTable) -> list[tuple[Setting, Row, Experiment]]:
    """Every experiment of a table."""
    found = []
    for setting in (*table.settings, *(() if table.ours is None else (table.ours,))):
        for row in table.rows:
            if row.name not in setting.without:
                experiment = Experiment(**change(setting.experiment, setting.changes(row)))
                found.append((setting, row, experiment))
    return found


def test_every_table_has_settings_with_a_source_for_all_its_columns() -> None:
    assert len(names()) >= 55
    for name in names():
        table = find(name)
        covered: list[int] = []
        for setting in table.settings:
            assert setting.source and setting.seeds, name
            assert set(setting.rows) <= {row.name for row in table.rows}, name
            covered += range(setting.first, setting.first + len(setting.columns))
        assert covered == list(range(len(table.columns))), name
        if len(table.settings) > 1:
            assert len({setting.name for setting in table.settings}) == len(table.settings)
        for _, row, experiment in published(table):
            for key, values in (row.grid or {}).items():
                for value in values:
                    Experiment(**change(experiment.model_dump(), [f"{key}={value}"]))


def test_published_networks_build_for_the_shapes_of_their_samples() -> None:
    built: dict[tuple[str, ...], int] = {}
    for name in names():
        for _, _, experiment in published(find(name)):
            model = experiment.model
            about = made(experiment)
            key = (str(model), str(about.shape), str(about.outputs))
            if key in built or short(model) == "distilbert":  # needs its weights
                continue
            labels = about.shape if about.per_token else ()
            with torch.device("meta"):
                module = catalog.build(
                    "models",
                    model,
                    shape=about.shape,
                    outputs=about.outputs if about.outputs > 2 else 1,
                    labels=labels,
                )
            built[key] = sum(parameter.numel() for parameter in module.parameters())
            known = PARAMETERS.get((short(model), about.shape, about.outputs))
            if known is not None and model.get("hidden", (200, 200)) == (200, 200):
                assert built[key] == known, (name, model)
    assert max(built.values()) > 11_000_000  # ResNet-18


@pytest.mark.parametrize("name", names())
def test_a_shortened_round_of_each_setting(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commonweal.jobs.job.build_dataset", federation)
    table = find(name)
    for setting in table.settings[:2]:
        rows = [table.rows[0], table.rows[-1]]
        for row in rows:
            experiment = Experiment(**change(setting.experiment, setting.changes(row)))
            folder = tmp_path / setting.name / row.name / "0"
            for _ in run(job_from_experiment(shortened(experiment)), out=folder):
                pass
        record = Record.read(folder)
        for column, metric in enumerate(setting.columns, setting.first):
            own = row.columns[column] if row.columns else metric
            figure = figure_of(record, own.partition("@")[0])
            assert math.isfinite(figure), (name, own)


def test_examples_that_claim_a_papers_setting_have_it() -> None:
    examples = Path(__file__).parents[2] / "examples"
    for file, name, rule in (
        ("heart.toml", "aaggff/heart", "rule=fedavg"),
        ("speech-commands.toml", "aaggff/speech-commands", "rule=aaggff-d"),
        ("tiny-imagenet.toml", "aaggff/tiny-imagenet", "rule=aaggff-d"),
    ):
        table = find(name)
        row = next(row for row in table.rows if rule in row.set)
        setting = table.settings[0]
        theirs = Experiment(**change(setting.experiment, setting.changes(row)))
        ours = read(examples / file)
        for key in ("dataset", "partition", "model", "rounds", "cohort", "client", "rule"):
            expected = getattr(theirs, key)
            if key in ("dataset", "model"):
                assert short(getattr(ours, key)) == short(expected), (file, key)
                expected = {**expected, "name": getattr(ours, key)["name"]}
            assert getattr(ours, key) == expected, (file, key)
        assert ours.scores[:1] == theirs.scores[:1]
