"""The model card and its badge: who is served how well, from the run's own tables."""

import csv
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from commonweal import cli
from commonweal.app.export import card
from commonweal.base.errors import CommonwealError
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.report.run_table import run_summary
from run_helpers import task


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card") / "a run"
    list(run(Experiment(dataset="vowel", rounds=3, rule="aaggff-s"), out=folder))
    return folder


def write(run: Path, *options: str) -> None:
    cli.app(["export", str(run), "--to", "card", *options], standalone_mode=False)


def rows(text: str) -> list[list[str]]:
    """The cells of the table of clients."""
    lines = re.findall(r"^\| (.*) \|$", text, re.M)
    return [line.split(" | ") for line in lines[1:]]


def test_the_card_has_every_client_with_the_score_of_the_runs_table(
    finished: Path, tmp_path: Path
) -> None:
    write(finished, "-o", str(tmp_path / "c.md"))
    text = (tmp_path / "c.md").read_text(encoding="utf-8")
    with (finished / "clients.csv").open(encoding="utf-8") as file:
        known = {row["client"]: float(row["score"]) for row in csv.DictReader(file)}
    found = rows(text)
    values = [float(value.split()[0]) for _, _, value in found]
    assert dict(zip((name for name, _, _ in found), values, strict=True)) == {
        name: pytest.approx(100 * value, abs=0.006) for name, value in known.items()
    }
    samples = int(found[0][1])
    correct = round(samples * known[found[0][0]])
    low, high = stats.binomtest(correct, samples).proportion_ci(method="wilson")
    assert found[0][2].endswith(f"% [{100 * low:.0f}, {100 * high:.0f}]")
    assert values == sorted(values)  # the worst served first
    assert "![accuracy: mean" in text and "](c.svg)" in text


def test_the_badge_shows_the_mean_and_the_worst_client(finished: Path, tmp_path: Path) -> None:
    write(finished, "-o", str(tmp_path / "c.md"))
    root = ET.fromstring((tmp_path / "c.svg").read_text(encoding="utf-8"))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    scores = [float(cells[2].split()[0]) for cells in rows(card(Record.read(finished)))]
    mean, worst = float(np.mean(scores)), min(scores)
    assert texts == ["accuracy", f"mean {mean:.1f} %", f"worst {worst:.1f} %"]
    boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    assert sum(int(box.attrib["width"]) for box in boxes) == int(root.attrib["width"])


def test_the_card_is_by_default_in_the_runs_folder(finished: Path) -> None:
    write(finished)
    assert (finished / "card.md").read_text(encoding="utf-8") == card(Record.read(finished))
    assert (finished / "card.svg").exists()


def test_a_card_of_ones_own_task_and_of_personal_models(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2)).astype(np.float32)
    federation = Federation.from_arrays(x, (x[:, 0] > 0).astype(int), np.repeat(["a<b", "c"], 40))
    list(run(task(2), federation, client="ditto", rounds=2, out=tmp_path / "own"))
    text = card(Record.read(tmp_path / "own"))
    assert "given in Python" in text and "| personal model |" in text and "| a\\<b |" in text
    last = Record.read(tmp_path / "own").evaluated[-1]
    assert f"mean {100 * last.personal['mean']:.1f} %" in text  # what the clients use


def test_a_run_without_an_evaluation_has_no_card(finished: Path, tmp_path: Path) -> None:
    experiment = Experiment(dataset="vowel", rounds=3, evaluate_every=3)
    for _ in run(experiment, out=tmp_path / "started"):
        break
    with pytest.raises(CommonwealError, match="no round has been evaluated"):
        write(tmp_path / "started")
    with pytest.raises(CommonwealError, match=r"name the card's file, as card\.md"):
        write(finished, "-o", str(tmp_path / "x.svg"))


def test_the_card_of_trees_is_about_trees(tmp_path: Path) -> None:
    experiment = Experiment(
        dataset="vowel", algorithm="boosting", rule="afl", rounds=2, model="trees(leaves=3)"
    )
    list(run(experiment, out=tmp_path / "trees"))
    record = Record.read(tmp_path / "trees")
    text = card(record)
    assert "decision trees, grown by federated boosting over" in text
    assert "the server's rule is `afl`, the seed 0" in text
    assert "sgd" not in text
    assert "only sums over rows leave a client" in text
    assert "updates leave" not in text
    summary = run_summary(record)
    importance = summary["importance"]
    assert isinstance(importance, dict)
    assert sum(importance.values()) == pytest.approx(1)
    first, share = next(iter(importance.items()))
    assert share == max(importance.values())
    expected = f"{first} {100 * share:.0f} %"
    assert f"Importance of columns, by the gain of their splits: {expected}" in text
    result = CliRunner().invoke(cli.app, ["show", str(tmp_path / "trees")])
    assert f"by a column): {expected}" in " ".join(result.output.split())


def test_columns_of_a_table_and_the_client_have_an_importance(tmp_path: Path) -> None:
    lines = ["colour,noise,site,label"]
    for k in range(240):
        colour = ("red", "green", "blue")[k % 3]
        lines.append(f"{colour},{k % 7},{k % 2},{int((colour == 'red') != (k % 2))}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    experiment = Experiment(
        dataset={
            "name": "table",
            "path": str(tmp_path / "t.csv"),
            "label": "label",
            "client": "site",
        },
        algorithm={"name": "boosting", "personal": "client"},
        rounds=3,
    )
    list(run(experiment, out=tmp_path / "run"))
    importance = run_summary(Record.read(tmp_path / "run"))["importance"]
    assert isinstance(importance, dict)
    assert set(importance) == {"(the client)", "colour"}
