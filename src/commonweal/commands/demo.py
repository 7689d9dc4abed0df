"""`commonweal demo`: a comparison to begin with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commonweal.commands import console
from commonweal.commands.compare import run_cells
from commonweal.commands.options import Quiet, out

if TYPE_CHECKING:
    from rich.table import Table

    from commonweal.report.compare import Comparison

# The command must work where there is no examples/. Settings were chosen on seeds 100 to 103.
DEMO = """# Students of 17 degree courses: who will graduate, drop out or still be enrolled?
dataset = "students"
rounds = 40
evaluate_every = 40
model = { name = "mlp", hidden = [32] }
client = { name = "sgd", batch = 10, lr = 0.1 }
"""
FAIR = "adafed"
BLEND = ["client=blend", "validation=0.2"]


def demo(
    seeds: Annotated[int, typer.Option(help="The number of seeds.", min=1)] = 10,
    rounds: Annotated[int, typer.Option(help="The number of rounds.", min=1)] = 40,
    to: Annotated[Path | None, out("The folder for runs and figures; demo by default.")] = None,
    quiet: Quiet = False,
) -> None:
    """Compare local training, FedAvg, a fair rule and blend on students of 17 courses.

    Takes less than a minute.
    """

    from commonweal.analysis.plan import ALONE, Cell, baseline_cells, cells, run_folder
    from commonweal.base.files import write_file
    from commonweal.config.experiment import Experiment, change, values
    from commonweal.report import clients
    from commonweal.report.compare import Comparison
    from commonweal.report.comparison import answer

    folder = to or Path("demo")
    file = folder / "students.toml"
    write_file(file, DEMO.encode(), durable=False)
    base = values(file) | {"rounds": rounds, "evaluate_every": rounds}
    plan = [cell for cell in baseline_cells(base, seeds, folder) if cell.label == ALONE]
    plan += cells(base, ["fedavg", FAIR], seeds, [], folder)
    for seed in range(seeds):
        blend = Experiment(**change(base, BLEND) | {"seed": seed})
        plan.append(Cell("blend", blend, run_folder(folder, "blend", seed)))
    comparison = Comparison.of_plan(plan, run_cells(plan, quiet))
    for suffix in ("png", "svg"):
        comparison.plot("clients", folder / f"students.{suffix}")
    if quiet:
        return
    console.show(answer(comparison.summary))
    for line in clients.text(comparison.client_lines):
        console.show(line)
    console.out.print(_table(comparison))
    console.show(f"The figure is {folder / 'students.png'} (and .svg). Next steps:")
    console.show(f"  commonweal report {folder}")
    console.show(f"  commonweal run {file} {' '.join(BLEND)}")
    console.show("  commonweal fit your-table.csv")


def _table(comparison: "Comparison") -> "Table":
    """A line per method: its scores, its gains, and how many gain or lose significantly."""
    from rich.table import Table

    from commonweal.analysis.gains import ClientGain
    from commonweal.report.clients import NAMES, gain_cell
    from commonweal.report.formats import add_columns, points, show_score

    score = comparison.score
    table = Table(box=None, pad_edge=False)
    add_columns(table, "method")
    add_columns(table, "mean", "worst", "gain over local", right=True)
    add_columns(table, "better", "worse", "largest loss", right=True)
    for result in (*comparison.baselines, *comparison.used):
        means = result.scores.mean(0)
        row = [show_score(float(value), score) for value in (means.mean(), means.min())]
        for gained in comparison.summary.gains:
            if gained.label == result.label:
                row.append(gain_cell(ClientGain("", *gained.mean), score))
                row += [str(len(gained.better)), str(len(gained.worse))]
                row.append(points(-gained.excess_max, score))
        table.add_row(NAMES.get(result.label, result.label), *row)
    return table
