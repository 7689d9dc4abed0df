"""Published tables: their files are whole, their experiments valid, and verdicts can fail."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind_from_stats, ttest_rel
from torch import Tensor
from typer.testing import CliRunner

from commonweal.base.errors import ConfigError, DataError, RunError
from commonweal.record.record import Record
from commonweal.record.rounds import RoundRecord
from commonweal.study import curves
from papers import paper
from published import ledger, pictures, reproduction, verdicts
from published.command import app, restricted
from published.reproduction import Measured
from published.table import Claim, Gain, PublishedTable, Row, Setting, find, names

NAMES = names()


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
        settings=(
            Setting(
                (0, 1),
                ("mean", "gini", "client:Andrew"),
                experiment,
                tune=5,
                without=("not run",),
            ),
        ),
    )


def test_every_paper_has_tables() -> None:
    papers = {name.partition("/")[0] for name in NAMES}
    assert papers == {"aaggff", "adafed", "afl", "semi-vred", "thesis"}


def test_tables_are_complete() -> None:
    for name in NAMES:
        table = find(name)
        assert len({row.name for row in table.rows}) == len(table.rows), name
        for row in table.rows:
            for cells in (row.published, row.spreads, row.code, row.columns):
                assert len(cells) in (0, len(table.columns)), (name, row.name)
        assert (table.spread == "clients") == (table.clients > 0), name
        assert "cannot" not in table.status, name


def test_measured_figures_belong_to_their_tables() -> None:
    for name in NAMES:
        table = find(name)
        measured = reproduction.measured_by_us(name)
        if measured is None:
            continue
        assert set(measured.figures) <= {row.name for row in table.rows}
        for seeds in measured.figures.values():
            assert 1 <= len(seeds) <= len(measured.seeds), name
            assert all(len(cells) == len(table.columns) for cells in seeds), name
            assert np.isfinite(seeds).any(), name


def test_published_heart_is_as_printed() -> None:
    rows = {row.name: row for row in find("aaggff/heart").rows}
    assert rows["FedAdam + AAggFF"].published == (84.84, 67.0)
    assert rows["FedAdam + AAggFF"].spreads == (2.85, 10.61)
    assert rows["FedAvg"].code == (84.38, 65.0)


def test_unknown_table_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="aaggff/heart"):
        find("aaggff/hart")


def test_missing_files_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMONWEAL_DATA", str(tmp_path))
    result = CliRunner().invoke(app, ["run", "aaggff/isic", "--out", str(tmp_path / "runs")])
    assert isinstance(result.exception, DataError)
    message = str(result.exception)
    assert "train_test_split.csv" in message and str(tmp_path) in message
    assert "docs/data.md" in message and "cannot" not in message


def test_settings_whose_files_are_here_run_without_the_others(tmp_path: Path) -> None:
    table = small()
    here = table.settings[0]
    there = replace(here, experiment=here.experiment | {"dataset": paper("reddit")})
    said: list[str] = []
    assert reproduction.with_files(table, [there, here], said.append) == [here]
    assert "reddit" in said[0]


def test_runs_give_figures(tmp_path: Path) -> None:
    from commonweal.study.compare import run_cells

    table = small()
    setting = table.settings[0]
    chosen = reproduction.choose(table, setting, tmp_path)
    assert chosen["TERM"]["rule.t"] in (0.1, 1.0)
    assert reproduction.choose(table, setting, tmp_path) == chosen  # read back
    planned = reproduction.plan(table, setting, chosen, tmp_path)
    cells = [run.cell for run in planned]
    assert [cell.label for cell in cells] == ["FedAvg"] * 2 + ["TERM"] * 2
    assert cells[2].experiment.rule["t"] == chosen["TERM"]["rule.t"]
    assert not reproduction.measure(table, planned, chosen).figures  # nothing has run yet
    for _ in run_cells([*cells[:2], cells[2]]):
        pass
    measured = reproduction.measure(table, planned, chosen)
    assert len(measured.figures["TERM"]) == 1  # of two seeds
    mean, gini, andrew = measured.figures["FedAvg"][1]
    record = Record.read(cells[1].folder)
    scores = dict(
        zip(record.clients().names, record.clients().evaluation.score.tolist(), strict=True)
    )
    assert mean == pytest.approx(100 * np.mean(list(scores.values())))
    assert gini == record.evaluated[-1].metrics["gini"]
    assert andrew == pytest.approx(100 * scores["Andrew"])


def test_own_models_and_columns_of_a_row(tmp_path: Path) -> None:
    from commonweal.jobs.reopening import reopen
    from commonweal.study import interpolation
    from commonweal.study.compare import run_cells

    changes = ("client=superfed-mm", "client.begin=0")
    rows = (
        Row("own", set=changes),
        Row("shared", set=changes, columns=("mean", "validated", "own:ece"), runs_of="own"),
    )
    columns = ("own", "own:loss", "own:accuracy")
    setting = replace(small().settings[0], seeds=(0,), columns=columns)
    table = replace(small(), rows=rows, spread="clients", clients=15)
    planned = reproduction.plan(table, setting, {}, tmp_path)
    cells = [run.cell for run in planned]
    for _ in run_cells(cells):
        pass
    drawn = {}
    for kind in ("curves", "landscape", "reliability"):
        drawn[kind] = pictures.draw(
            table, None, planned, kind, tmp_path / f"{kind}.svg"
        ).read_text()
    measured = reproduction.measure(table, planned, {})
    assert "personal model" in drawn["curves"]
    assert "Andrew's model" in drawn["landscape"]
    assert "personal models" in drawn["reliability"]
    figures = measured.figures
    job, state = reopen(cells[0].folder)
    line = interpolation.curve(job, state)
    best = [scores.index(max(scores)) for scores in line.scores.tolist()]
    own, loss, accuracy = figures["own"][0]
    assert own == pytest.approx(100 * line.scores.amax(1).mean())
    spread = measured.spreads["own"][0]
    assert spread == pytest.approx(100 * float(line.scores.amax(1).std(correction=0)))
    losses = [min(_of_best(s, v)) for s, v in zip(line.scores, line.losses, strict=True)]
    assert loss == pytest.approx(np.mean(losses))
    assert accuracy == pytest.approx(own)
    assert cells[1].folder == cells[0].folder
    shared, validated, ece = figures["shared"][0]
    assert shared == pytest.approx(100 * line.scores[:, 0].mean())
    assert validated == pytest.approx(100 * float(line.validated.mean()))
    assert validated < own
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


def cell(
    ours: tuple[float, ...],
    spreads: tuple[float, ...] = (),
    theirs: float = 50.0,
    metric: str = "mean",
    swing: float = math.nan,
    clients: int = 0,
) -> str:
    """The verdict on one cell; the published figure is over four runs, or over clients of one."""
    row = Row("FedAvg", (theirs,), spreads)
    setting = replace(small().settings[0], columns=(metric,))
    table = replace(small(), rows=(row,), columns=("mean",), runs=4, settings=(setting,))
    table = replace(table, spread="seeds")
    if clients:
        table = replace(table, spread="clients", clients=clients, runs=0)
    figures = {"FedAvg": tuple((value,) for value in ours)}
    measured = Measured(tuple(range(len(ours))), {}, figures, "0", {"FedAvg": (swing,)})
    return verdicts.verdict(table, row, 0, measured)


def shifted(mean: float, deviation: float, runs: int) -> tuple[float, ...]:
    """Runs with this mean and this standard deviation."""
    values = np.arange(runs) - (runs - 1) / 2
    return tuple(mean + deviation * values / np.std(values, ddof=1))


def test_verdicts_are_welchs() -> None:
    for runs, deviation in ((5, 0.5), (5, 3.0), (8, 1.0)):
        kinds = set()
        for mean in np.arange(50.0, 56.0, 0.1):
            given = ttest_ind_from_stats(mean, deviation, runs, 50.0, 2.0, 4, equal_var=False)
            p = float(given.pvalue)
            kind = cell(shifted(mean, deviation, runs), (2.0,)).partition(" (")[0]
            kinds.add(kind)
            if abs(p - 0.05) > 0.002:
                assert (kind == "differs") == (p < 0.05), mean
            if kind != "differs":
                assert (kind == "reproduced") == (mean < 51.01)
        assert kinds == {"reproduced", "within noise", "differs"}
    assert cell((52.0,)) == "+2.00"  # no spread is known
    assert cell((52.0,), (2.0,)) == "within noise (+2.00)"  # theirs stands for ours
    assert cell(()) == ""


def test_few_seeds_share_their_spread_with_the_rows_of_a_table() -> None:
    rows = tuple(Row(name, (50.0,)) for name in "abc")
    setting = replace(small().settings[0], columns=("mean",))
    table = replace(small(), rows=rows, columns=("mean",), runs=2, settings=(setting,))
    figures = {"a": ((51.0,), (51.0,)), "b": ((50.0,), (54.0,)), "c": ((60.0,), (62.0,))}
    measured = Measured((0, 1), {}, figures, "0")
    found = [verdicts.verdict(table, row, 0, measured) for row in rows]
    # Pooled: sqrt((0 + 8 + 2) / 3) = 1.83 with 3 degrees of freedom; a has no spread of its own.
    assert found == ["reproduced", "within noise (+2.00)", "differs (+11.00)"]


def test_near_depends_on_the_size_of_the_figure() -> None:
    assert cell(shifted(0.3, 0.2, 5), (0.3,), theirs=0.1).startswith("within noise")
    assert cell(shifted(0.105, 0.2, 5), (0.3,), theirs=0.1) == "reproduced"


def test_roots_are_compared_as_squares() -> None:
    # 11.56 and 8.41 are three points apart, their roots half a point.
    assert cell(shifted(2.9, 0.05, 5), (), theirs=3.4, metric="root:std") == "differs (-3.15)"
    assert cell(shifted(3.4, 0.05, 5), (), theirs=3.4, metric="root:std") == "reproduced"


def test_one_run_is_as_uncertain_as_its_late_evaluations_differ() -> None:
    assert cell((56.0,), swing=3.0) == "within noise (+6.00)"
    assert cell((62.0,), swing=3.0) == "differs (+12.00)"


def test_late_evaluations_of_global_and_personal_models(tmp_path: Path) -> None:
    from commonweal.study.compare import run_cells

    columns = ("mean", "root:std", "personal:mean", "root:personal:std", "gini@20")
    changes = {"rounds": 20, "evaluate_every": 1}
    experiment = small().settings[0].experiment | changes
    setting = replace(
        small().settings[0], seeds=(0,), columns=columns, experiment=experiment, without=()
    )
    table = replace(small(), rows=(Row("Ditto", set=("client=ditto",)),), columns=columns)
    planned = reproduction.plan(table, setting, {}, tmp_path)
    for _ in run_cells([run.cell for run in planned]):
        pass
    swings = reproduction.measure(table, planned, {}).swings["Ditto"]
    late = Record.read(planned[0].cell.folder).evaluated[15:]
    assert [line.number for line in late] == [16, 17, 18, 19, 20]
    means = [100 * line.metrics["mean"] for line in late]
    own_means = [100 * line.personal["mean"] for line in late]
    own_roots = [math.sqrt(100 * line.personal["std"]) for line in late]
    assert swings[0] == pytest.approx(np.std(means, ddof=1))
    assert swings[2] == pytest.approx(np.std(own_means, ddof=1))
    assert swings[3] == pytest.approx(np.std(own_roots, ddof=1))
    assert swings[1] > 0 and means != own_means and math.isnan(swings[4])


def test_a_spread_over_clients_is_divided_by_their_number() -> None:
    # Theirs: 10 / sqrt(100) = 1 and our 0.1; ours: 0.1 / sqrt(5). The margin is about 2.8.
    assert cell(shifted(52.0, 0.1, 5), (10.0,), clients=100) == "within noise (+2.00)"
    assert cell(shifted(53.0, 0.1, 5), (10.0,), clients=100) == "differs (+3.00)"
    assert cell((52.0,), (10.0,), clients=100) == "+2.00"  # one run: no verdict


def test_cells_are_counted_once() -> None:
    table = replace(small(), status="not run: time")
    measured = Measured((0,), {}, {"FedAvg": ((50.0, 10.0, 40.0),)}, "0")
    counts = ledger.kinds_of(table, measured)
    assert counts == {"no verdict": 3, "not run: time": 6}
    assert counts.total() == table.cells


def test_repeated_cells_are_shown_but_not_counted() -> None:
    name = "aaggff/mqp-minilm"
    table = find(name)
    source = {row.name: row for row in find(table.repeats).rows}
    for row in table.rows:
        if row.name in source:
            assert row.published == source[row.name].published
    assert any(row.published for row in table.rows)
    assert table.cells == 0
    assert ledger.kinds_of(table, reproduction.measured_by_us(name)).total() == 0


def test_claims_stand_beside_what_we_got() -> None:
    table = replace(small(), claims=(Claim("TERM is better.", "it is not."),))
    assert "- Claim: TERM is better. Ours: it is not." in ledger._table(table)


def test_claims_are_decided_by_paired_seeds() -> None:
    """Nadeau and Bengio's factor widens the interval where seeds split one table again."""
    a, b = np.array([52.13, 50.07, 53.29, 51.41]), np.array([50.0, 49.0, 50.1, 50.0])
    figures = {
        "TERM": tuple((value, 1.0, 1.0) for value in a),
        "FedAvg": tuple((value, 1.0, 1.0) for value in b),
    }
    measured = Measured((0, 1, 2, 3), {}, figures, "0")
    claim = Claim("TERM is better.", gains=(Gain("TERM", "FedAvg", "mean"),))
    result = ttest_rel(a, b).confidence_interval()
    half, difference = (result.high - result.low) / 2, float((a - b).mean())
    for share in (0.0, 0.2, 0.5):
        table = replace(small(), test_share=share)
        wide = half * math.sqrt((1 / 4 + share / (1 - share)) / (1 / 4))
        word = "significant" if wide < difference else "not significant"
        expected = (
            f"TERM minus FedAvg, mean: {difference:+.2f} ± {wide:.2f}, {word} with 4 paired seeds."
        )
        assert verdicts.finding(table, claim, measured) == expected
    one = replace(measured, figures={row: seeds[:1] for row, seeds in figures.items()})
    assert "fewer than two seeds" in verdicts.finding(small(), claim, one)


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
    from commonweal.study.compare import run_cells

    table = small()
    setting = replace(
        table.settings[0],
        seeds=(0,),
        columns=("mean@1", "mean", "improved", "root:std"),
        experiment=table.settings[0].experiment | {"evaluate_every": 1},
    )
    table = replace(table, rows=table.rows[:1], columns=("a", "b", "c", "d"))
    planned = reproduction.plan(table, setting, {}, tmp_path)
    for _ in run_cells([run.cell for run in planned]):
        pass
    record = Record.read(planned[0].cell.folder)
    figures = reproduction.measure(table, planned, {}).figures["FedAvg"][0]
    means = [each.metrics["mean"] for each in record.evaluated]
    assert figures[:2] == pytest.approx([100 * mean for mean in means])
    fell = [b <= a for a, b in zip(record.rounds[0].losses, record.rounds[1].losses, strict=True)]
    assert figures[2] == pytest.approx(100 * np.mean(fell))
    assert figures[3] ** 2 == pytest.approx(100 * record.evaluated[-1].metrics["std"])


def test_the_pages_are_up_to_date() -> None:
    for name, text in ledger.pages().items():
        assert (ledger.DOCS / name).read_text(encoding="utf-8") == text, name


def test_command_lists_and_shows() -> None:
    listed = CliRunner().invoke(app, ["list"])
    assert listed.exit_code == 0 and "aaggff/heart" in listed.output
    shown = CliRunner().invoke(app, ["show", "aaggff/heart"])
    assert shown.exit_code == 0 and "84.42 (2.45)" in shown.output


def test_other_rows_and_seeds(tmp_path: Path) -> None:
    unknown = CliRunner().invoke(app, ["run", "aaggff/heart", "--rows", "FedAvh"])
    assert isinstance(unknown.exception, ConfigError) and "FedAvg" in str(unknown.exception)


def test_a_row_whose_name_has_a_comma() -> None:
    table = restricted(find("semi-vred/cifar10"), "", "FedAvg, Ditto")
    assert [row.name for row in table.rows] == ["FedAvg, Ditto"]


def test_pictures_are_drawn_from_records_and_runs(tmp_path: Path) -> None:
    from commonweal.study.compare import run_cells

    table = small()
    planned = reproduction.plan(table, replace(table.settings[0], seeds=(0,)), {}, tmp_path)
    with pytest.raises(RunError, match="run it first"):
        pictures.draw(table, None, planned, "losses", tmp_path / "losses.png")
    for _ in run_cells([run.cell for run in planned]):
        pass
    for kind in ("histogram", "losses", "lengths"):
        file = pictures.draw(table, None, planned, kind, tmp_path / f"{kind}.svg")
        text = file.read_text()
        assert "FedAvg" in text and "TERM" in text, kind
    with pytest.raises(RunError, match="what the picture shows"):
        pictures.draw(table, None, planned, "curves", tmp_path / "x.png")
    with pytest.raises(ConfigError, match="histogram"):
        pictures.draw(table, None, planned, "histogramm", tmp_path / "x.png")
    arguments = ["picture", "semi-vred/fashion-mnist", str(tmp_path / "t.svg")]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "none")])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "t.svg").read_text()
    assert "Semi-VRed" in text and "worst 20 %" in text
    assert "not shown" in text and "AFL" in text
