"""The examples: an experiment for each dataset that ships or downloads, a script per task."""

import runpy
from pathlib import Path

import pytest

from cases import cases
from commonweal.config.catalog import build, entries
from commonweal.config.experiment import Experiment, read
from commonweal.data.sources.origins import downloads
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_experiment

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.toml"))
SHIPPED = ("vowel", "digits", "students", "synthetic")
SCRIPTS = sorted((EXAMPLES / "python").glob("*.py"))
# The shape of a row and the number of outputs, where the files are not here.
SHAPES = {
    "adult": ((100,), 2),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "cinic10": ((3, 32, 32), 10),
    "fashion-mnist": ((1, 28, 28), 3),
    "heart": ((13,), 2),
    "medmnist": ((1, 28, 28), 2),
    "mnist": ((1, 28, 28), 10),
    "mnist-writers": ((1, 28, 28), 10),
    "mqp": ((2049,), 2),
    "speech-commands": ((1, 16000), 35),
    "tiny-imagenet": ((3, 64, 64), 200),
}


FEATURES = ("private",)  # examples of something else than a dataset
PAPERS = ("cinic10", "mqp", "speech-commands", "tiny-imagenet")  # datasets of the papers' tables


def test_every_dataset_that_ships_or_downloads_has_an_example() -> None:
    downloaded = {name for name in entries("datasets") if downloads(name)}
    assert {path.stem for path in FILES} == {*SHIPPED, *downloaded, *PAPERS, *FEATURES}
    assert set(SHAPES) == {*downloaded, *PAPERS}


@cases("path", FILES)
def test_an_example_names_parts_that_exist(path: Path) -> None:
    experiment = read(path)
    assert isinstance(experiment, Experiment)
    name = experiment.dataset["name"].rpartition(":")[2].replace("_", "-")
    assert path.stem in FEATURES or name == path.stem
    for kind, part in (("rules", experiment.rule), ("clients", experiment.client)):
        assert build(kind, part) is not None
    if experiment.partition is not None:
        assert experiment.partition["name"] in entries("partitions")
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ") and len(first) > 40  # what it shows
    if path.stem not in SHIPPED and path.stem not in FEATURES:
        shape, outputs = SHAPES[path.stem]
        build("models", experiment.model, shape=shape, outputs=outputs, labels=())


@pytest.mark.parametrize("name", SHIPPED)
def test_an_example_whose_rows_ship_runs(name: str) -> None:
    job = job_from_experiment(read(EXAMPLES / f"{name}.toml", ["rounds=2", "evaluate_every=2"]))
    last = list(rounds.run(job))[-1]
    assert 0 < last.metrics["mean"] <= 1


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert PRINTED[path.stem] in capsys.readouterr().out


PRINTED = {
    "classify": "worst hospital",
    "compare_rules": "aaggff-s [",
    "own_data": "10 0.",
    "own_loop": "[0.",
    "own_rule": "worst speaker: 0.",
    "personal_models": "Sue",
    "read_run": "left behind: ['",
    "regress": "mean absolute error in days: {'north'",
    "survive": "20 concordance: mean 0.",
}


def test_every_script_is_explained() -> None:
    assert {path.stem for path in SCRIPTS} == set(PRINTED)
