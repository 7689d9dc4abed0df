"""`commonweal demo`: a comparison to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.commands import console
from commonweal.commands.compare import print_comparison, run_cells
from commonweal.commands.options import Quiet

__all__ = ["DEMO", "demo"]


# examples/vowel.toml, evaluated less often; the command must work where there is no examples/.
DEMO = """# Fifteen speakers learn to tell eleven vowels apart without sharing a recording.
dataset = { name = "vowel", test = 0.5 }
rounds = 200
evaluate_every = 10
model = { name = "mlp", hidden = [32] }
client = { name = "sgd", batch = 10, lr = 0.2 }
"""


def demo(
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 5,
    rounds: Annotated[int, typer.Option(help="How many rounds.", min=1)] = 200,
    to: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder for runs and figures; demo by default."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare local training, FedAvg and AAggFF-S on the vowels of 15 speakers.

    Takes about two minutes.
    """
    from commonweal.analysis.compare import baseline_cells, cells
    from commonweal.analysis.comparison import Comparison
    from commonweal.base.files import write_file
    from commonweal.config.experiment import values
    from commonweal.report import clients, figures
    from commonweal.report.comparison import verdict

    folder = to or Path("demo")
    file = folder / "vowel.toml"
    write_file(file, DEMO.encode(), durable=False)
    base = values(file) | {"rounds": rounds}
    plan = cells(base, ["fedavg", "aaggff-s"], seeds, [], folder)
    everything = [*plan, *baseline_cells(base, seeds, folder)]
    comparison = Comparison.of_plan(everything, run_cells(everything, quiet))
    lines = clients.client_lines(comparison.results, comparison.baselines, comparison.score)
    picture = figures.clients(lines).figure
    for suffix in ("png", "svg"):
        figures.save(picture, folder / f"vowel.{suffix}")
    if quiet:
        return
    print_comparison(comparison, "terminal")
    for line in clients.text(lines):
        console.show(line)
    fedavg, fair = comparison.results
    console.show(verdict(fedavg, fair, comparison.score))
    console.show(f"The figure: {folder / 'vowel.png'} (and .svg)")
    console.show(f"One run: commonweal show {plan[-1].folder}")
    console.show(f"Next: commonweal compare {file} --rules fedavg,term,afl,aaggff-s --seeds 5")
