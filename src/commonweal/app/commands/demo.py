"""`commonweal demo`: a comparison to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.app.commands import console
from commonweal.app.commands.compare import run_unfinished
from commonweal.app.commands.options import Quiet, out

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

    from commonweal.base.files import write_file
    from commonweal.config.experiment import Experiment, change, values
    from commonweal.report import clients, formats
    from commonweal.report.overview import overview
    from commonweal.study.compare import compared
    from commonweal.study.plan import ALONE, Cell, baseline_cells, cells, run_folder

    folder = to or Path("demo")
    file = folder / "students.toml"
    write_file(file, DEMO.encode(), durable=False)
    base = values(file) | {"rounds": rounds, "evaluate_every": rounds}
    plan = [cell for cell in baseline_cells(base, seeds, folder) if cell.label == ALONE]
    plan += cells(base, ["fedavg", FAIR], seeds, [], folder)
    for seed in range(seeds):
        blend = Experiment(**change(base, BLEND) | {"seed": seed})
        plan.append(Cell("blend", blend, run_folder(folder, "blend", seed)))
    comparison = compared(plan, run_unfinished(plan, quiet))
    for suffix in ("png", "svg"):
        comparison.plot("clients", folder / f"students.{suffix}")
    if quiet:
        return
    console.print_text(comparison.verdict)
    for line in clients.text(clients.client_lines(comparison)):
        console.print_text(line)
    seen = overview(comparison)
    console.out.print(formats.terminal_tables(seen.methods))
    for named in seen.named:
        console.print_text(str(named))
    console.print_text(f"The figure is {folder / 'students.png'} (and .svg). Next steps:")
    for step in (f"report {folder}", f"run {file} {' '.join(BLEND)}", "fit your-table.csv"):
        console.print_command(f"  commonweal {step}")
