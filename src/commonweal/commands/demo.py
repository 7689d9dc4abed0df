"""`commonweal demo`: a comparison to begin with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commonweal.commands import console
from commonweal.commands.compare import run_cells
from commonweal.commands.options import Quiet, out

if TYPE_CHECKING:
    from rich.table import Table

    from commonweal.analysis.compare import Result


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

    from commonweal.analysis.compare import OWN
    from commonweal.analysis.plan import ALONE, Cell, baseline_cells, cells, run_folder
    from commonweal.base.files import write_file
    from commonweal.config.experiment import Experiment, change, values
    from commonweal.report import clients, figures
    from commonweal.report.compare import Comparison
    from commonweal.report.comparison import answer, summarize

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
    # Of blend, what counts is what clients use: the mixed predictions.
    results = [result for result in comparison.results if result.label != "blend"]
    results = [replace(r, label=r.label.removesuffix(OWN)) for r in results]
    lines = clients.client_lines(results, comparison.baselines, comparison.score)
    picture = figures.clients(lines).figure
    for suffix in ("png", "svg"):
        figures.save(picture, folder / f"students.{suffix}")
    if quiet:
        return
    summary = summarize(results, comparison.score, None, comparison.baselines)
    console.show(answer(summary))
    for line in clients.text(lines):
        console.show(line)
    console.out.print(_table(results, comparison.baselines[0], comparison.score))
    console.show(f"The picture: {folder / 'students.png'} (and .svg). To go on:")
    console.show(f"  commonweal report {folder}")
    console.show(f"  commonweal run {file} {' '.join(BLEND)}")
    console.show("  commonweal fit your-table.csv")


def _table(results: Sequence["Result"], local: "Result", score: str) -> "Table":
    """A line per method: its scores, its gains, and how many gain or lose significantly."""
    from rich.table import Table

    from commonweal.analysis.gains import ClientGain, gains
    from commonweal.report.clients import gain_cell
    from commonweal.report.formats import points, show_score

    table = Table(box=None, pad_edge=False)
    header = ("method", "mean", "worst", "gain over local", "better", "worse", "largest loss")
    for name in header:
        table.add_column(name, justify="left" if name == "method" else "right")
    for result in (local, *results):
        means = result.scores.mean(0)
        label = "local training" if result is local else result.label
        row = [label, show_score(float(means.mean()), score), show_score(float(means.min()), score)]
        if result is not local:
            gained = gains(local, result)
            smallest = min(client.gain for client in gained.clients)
            row.append(gain_cell(ClientGain("", *gained.mean), score))
            row += [str(len(gained.better)), str(len(gained.worse))]
            row.append(points(min(smallest, 0.0), score))
        table.add_row(*row)
    return table
