"""Published tables: their files are whole, their experiments valid, and verdicts can fail."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor
from typer.testing import CliRunner

from commonweal.analysis import curves
from commonweal.base.errors import ConfigError, RunError
from commonweal.cli import app
from commonweal.config.experiment import Experiment, change
from commonweal.record.record import Record
from commonweal.record.rounds import RoundRecord
from published import ledger, reproduction
from published.command import restricted
from published.reproduction import Claim, Measured, Ours, PublishedTable, Row

NAMES = reproduction.names()


def small() -> PublishedTable:
    """A table that runs in seconds."""
    experiment = {
        "dataset": "vowel",
        "model": "logistic",
        "rounds": 2,
        "evaluate_every": 2,
        "client": {"name": "sgd", "lr": 0.1},
    }
    return PublishedTable(
        name="test/vowel",
        paper="Test",
        table="Table 1",
        data="vowels",
        unit="accuracy in %",
        columns=("mean", "Gini", "Ann"),
        status="as published",
        rows=(
            Row("FedAvg", (50.0, 10.0, 40.0), set=("rule=fedavg",)),
            Row("TERM", (50.0, 10.0, 40.0), set=("rule=term",), grid={"rule.t": (0.1, 1.0)}),
            Row("not run", (1.0, 2.0, 3.0)),
        ),
        runs=3,
        ours=Ours((0, 1), ("mean", "gini", "client:Andrew"), experiment, tune=5),
    )


def test_every_paper_has_tables() -> None:
    papers = {name.partition("/")[0] for name in NAMES}
    assert papers == {"aaggff", "adafed", "afl", "semi-vred", "thesis"}


def test_tables_are_complete_and_their_experiments_valid() -> None:
    for name in NAMES:
        table = reproduction.find(name)
        assert len({row.name for row in table.rows}) == len(table.rows), name
        for row in table.rows:
            for cells in (row.published, row.spreads, row.code, row.columns):
                assert len(cells) in (0, len(table.columns)), (name, row.name)
        if table.ours is None:
            assert all(row.set is None for row in table.rows), name
            continue
        assert len(table.ours.columns) == len(table.columns), name
        assert table.ours.seeds, name
        for row in table.rows:
            if row.set is not None:
                Experiment(**change(table.ours.experiment, row.set))
            for key, values in (row.grid or {}).items():
                for value in values:
                    changes = [*(row.set or ()), f"{key}={value}"]
                    Experiment(**change(table.ours.experiment, changes))


def test_measured_figures_belong_to_their_tables() -> None:
    for name in NAMES:
        table = reproduction.find(name)
        measured = reproduction.measured_by_us(name)
        if measured is None:
            continue
        assert set(measured.figures) <= {row.name for row in table.rows if row.set is not None}
        for seeds in measured.figures.values():
            assert np.shape(seeds) == (len(measured.seeds), len(table.columns)), name
            assert np.isfinite(seeds).all(), name


def test_published_heart_is_as_printed() -> None:
    rows = {row.name: row for row in reproduction.find("aaggff/heart").rows}
    assert rows["FedAdam + AAggFF"].published == (84.84, 67.0)
    assert rows["FedAdam + AAggFF"].spreads == (2.85, 10.61)
    assert rows["FedAvg"].code == (84.38, 65.0)


def test_unknown_table_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="aaggff/heart"):
        reproduction.find("aaggff/hart")


def test_a_table_that_cannot_be_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the images are not here"):
        reproduction.plan(reproduction.find("aaggff/isic"), {}, tmp_path)


def test_runs_give_figures(tmp_path: Path) -> None:
    from commonweal.analysis.compare import run_cells

    table = small()
    chosen = reproduction.choose(table, tmp_path)
    assert chosen["TERM"]["rule.t"] in (0.1, 1.0)
    assert reproduction.choose(table, tmp_path) == chosen  # read back
    cells = reproduction.plan(table, chosen, tmp_path)
    assert [cell.label for cell in cells] == ["FedAvg"] * 2 + ["TERM"] * 2
    assert cells[2].experiment.rule["t"] == chosen["TERM"]["rule.t"]
    assert not reproduction.measure(table, cells, chosen).figures  # nothing has run yet
    for _ in run_cells(cells):
        pass
    measured = reproduction.measure(table, cells, chosen)
    mean, gini, andrew = measured.figures["FedAvg"][1]
    record = Record.read(cells[1].folder)
    scores = dict(
        zip(record.clients().names, record.clients().evaluation.score.tolist(), strict=True)
    )
    assert mean == pytest.approx(100 * np.mean(list(scores.values())))
    assert gini == record.evaluated[-1].metrics["gini"]
    assert andrew == pytest.approx(100 * scores["Andrew"])


def test_own_models_and_columns_of_a_row(tmp_path: Path) -> None:
    from commonweal.analysis import interpolation
    from commonweal.analysis.compare import run_cells
    from commonweal.jobs.reopening import reopen

    changes = ("client=superfed-mm", "client.begin=0")
    rows = (
        Row("own", set=changes),
        Row("shared", set=changes, columns=("mean", "gini", "own:ece")),
    )
    table = replace(small(), rows=rows)
    assert table.ours is not None
    columns = ("own", "own:loss", "own:accuracy")
    table = replace(table, ours=replace(table.ours, seeds=(0,), columns=columns))
    cells = reproduction.plan(table, {}, tmp_path)
    for _ in run_cells(cells):
        pass
    figures = reproduction.measure(table, cells, {}).figures
    job, state = reopen(cells[0].folder)
    line = interpolation.curve(job, state)
    best = [scores.index(max(scores)) for scores in line.scores.tolist()]
    own, loss, middle = figures["own"][0]
    assert own == pytest.approx(100 * line.scores.amax(1).mean())
    losses = [min(_of_best(s, v)) for s, v in zip(line.scores, line.losses, strict=True)]
    assert loss == pytest.approx(np.mean(losses))
    assert middle == pytest.approx(line.scores[:, 5].mean())
    shared, _, ece = figures["shared"][0]
    assert shared == pytest.approx(100 * line.scores[:, 0].mean())
    assert 0 < ece < 1 and max(best) > 0


def _of_best(scores: Tensor, losses: Tensor) -> list[float]:
    highest = float(scores.max())
    return [v for s, v in zip(scores.tolist(), losses.tolist(), strict=True) if s == highest]


def test_a_table_can_be_recorded_row_by_row(tmp_path: Path) -> None:
    table = replace(small(), name="aaggff/heart")

    def record(row: str, value: float, seeds: tuple[int, ...] = (0,), version: str = "1") -> None:
        measured = Measured(seeds, {row: {"rule.t": value}}, {row: ((value,),)}, version)
        reproduction.save(table, measured, tmp_path)

    def recorded() -> dict[str, list[list[float]]]:
        read = json.loads((tmp_path / "aaggff" / "heart.json").read_text())
        assert list(read["chosen"]) == list(read["figures"])
        figures: dict[str, list[list[float]]] = read["figures"]
        return figures

    record("FedAvg", 1.0)
    record("TERM", 2.0)
    assert recorded() == {"FedAvg": [[1.0]], "TERM": [[2.0]]}
    record("FedAvg", 3.0)
    assert recorded() == {"FedAvg": [[3.0]], "TERM": [[2.0]]}
    record("FedAvg", 4.0, seeds=(1,))  # other seeds: the rows do not belong together
    assert recorded() == {"FedAvg": [[4.0]]}
    record("TERM", 5.0, seeds=(1,), version="2")
    assert recorded() == {"TERM": [[5.0]]}


def cell(ours: tuple[float, ...], spreads: tuple[float, ...] = (), runs: int = 4) -> str:
    row = Row("FedAvg", (50.0,), spreads)
    table = replace(small(), rows=(row,), columns=("mean",), runs=runs, spread="seeds")
    return reproduction.verdict(table, row, 0, ours)


def test_verdicts() -> None:
    # Both spreads known: the standard error is sqrt(2^2 / 4 + 2^2 / 2), twice it is 3.46.
    assert cell((50.0 - math.sqrt(2), 50.0 + math.sqrt(2)), (2.0,)) == "reproduced"
    assert cell((53.4 - math.sqrt(2), 53.4 + math.sqrt(2)), (2.0,)) == "within noise (+3.40)"
    assert cell((53.5 - math.sqrt(2), 53.5 + math.sqrt(2)), (2.0,)) == "differs (+3.50)"
    assert cell((52.0,)) == "+2.00"  # no spread is known
    assert (
        cell((52.0,), (2.0,)) == "within noise (+2.00)"
    )  # theirs stands for ours: 2 sqrt(1 + 4) = 4.47
    assert cell(()) == ""


def test_cells_are_counted_once() -> None:
    table = small()
    measured = Measured((0,), {}, {"FedAvg": ((50.0, 10.0, 40.0),)}, "0")
    counts = ledger.kinds_of(table, measured)
    assert counts == {"no verdict": 3, "not run": 6}
    assert counts.total() == table.cells


def test_repeated_cells_are_shown_but_not_counted() -> None:
    name = "aaggff/mqp-minilm"
    table = reproduction.find(name)
    source = {row.name: row for row in reproduction.find(table.repeats).rows}
    for row in table.rows:
        if row.name in source:
            assert row.published == source[row.name].published
    assert any(row.published for row in table.rows)
    assert table.cells == 0
    assert ledger.kinds_of(table, reproduction.measured_by_us(name)).total() == 0


def test_claims_stand_beside_what_we_got() -> None:
    table = replace(small(), claims=(Claim("TERM is better.", "it is not."),))
    assert "- Claim: TERM is better. Ours: it is not." in ledger._table(table)


def rounds(*losses: dict[str, float]) -> list[RoundRecord]:
    """Rounds of two clients, weighted 1/4 and 3/4."""
    found = []
    for number, each in enumerate(losses, 1):
        found.append(
            RoundRecord(
                number=number,
                clients=tuple(each),
                losses=tuple(each.values()),
                scores=(0.0, 0.0),
                weights=dict(zip(each, (0.25, 0.75), strict=True)),
            )
        )
    return found


def test_curves_by_hand() -> None:
    # b falls, then c rises; a and b report only once before.
    run = rounds({"a": 4.0, "b": 8.0}, {"b": 6.0, "c": 2.0}, {"c": 3.0, "d": 1.0})
    assert curves.improved(run) == 0.5
    assert curves.cumulative_objective(run) == 7.0 + 3.0 + 1.5
    with pytest.raises(RunError, match="no client reports in two rounds in a row"):
        curves.improved(run[:1])


def test_metrics_after_a_round(tmp_path: Path) -> None:
    from commonweal.analysis.compare import run_cells

    table = small()
    assert table.ours is not None
    ours = replace(
        table.ours,
        seeds=(0,),
        columns=("mean@1", "mean", "improved", "root:std"),
        experiment=table.ours.experiment | {"evaluate_every": 1},
    )
    table = replace(table, ours=ours, rows=table.rows[:1])
    cells = reproduction.plan(table, {}, tmp_path)
    for _ in run_cells(cells):
        pass
    record = Record.read(cells[0].folder)
    figures = reproduction.measure(table, cells, {}).figures["FedAvg"][0]
    means = [each.metrics["mean"] for each in record.evaluated]
    assert figures[:2] == pytest.approx([100 * mean for mean in means])
    fell = [b <= a for a, b in zip(record.rounds[0].losses, record.rounds[1].losses, strict=True)]
    assert figures[2] == pytest.approx(100 * np.mean(fell))
    assert figures[3] ** 2 == pytest.approx(100 * record.evaluated[-1].metrics["std"])


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "results" / "ledger.md"
    assert page.read_text(encoding="utf-8") == ledger.page()


def test_command_lists_and_shows() -> None:
    listed = CliRunner().invoke(app, ["reproduce"])
    assert listed.exit_code == 0 and "aaggff/heart" in listed.output
    shown = CliRunner().invoke(app, ["reproduce", "aaggff/heart", "--recorded"])
    assert shown.exit_code == 0 and "84.42 (2.45)" in shown.output


def test_other_rows_and_seeds(tmp_path: Path) -> None:
    unknown = CliRunner().invoke(app, ["reproduce", "aaggff/heart", "--rows", "FedAvh"])
    assert isinstance(unknown.exception, ConfigError) and "FedAvg" in str(unknown.exception)


def test_a_row_whose_name_has_a_comma() -> None:
    table = restricted(reproduction.find("semi-vred/cifar10"), "", "FedAvg, Ditto")
    assert [row.name for row in table.rows] == ["FedAvg, Ditto"]


def test_outside_of_a_checkout_the_command_says_where_tables_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commonweal.commands.reproduce.CHECKOUT", tmp_path)
    result = CliRunner().invoke(app, ["reproduce"])
    assert isinstance(result.exception, ConfigError)
    assert "clone the repository" in str(result.exception)
