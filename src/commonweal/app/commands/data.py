"""`commonweal data`: describe datasets and download their files."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from commonweal.app.commands import console
from commonweal.app.commands.options import DataDir, Json, Quiet, argument, out
from commonweal.base.text import shown

data = typer.Typer(
    help="Describe a dataset, or download its files.", no_args_is_help=True, suggest_commands=False
)


Dataset = Annotated[str, typer.Argument(help="A dataset, such as vowel.", show_default=False)]


@data.command(name="show")
def data_show(
    name: Dataset,
    changes: Annotated[
        list[str] | None,
        argument(
            "[key=value ...]",
            "Parameters, such as partition=dirichlet partition.alpha=0.1 seed=1.",
        ),
    ] = None,
    to: Annotated[Path | None, out("The figure; by default DATASET.png.")] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Describe how many samples of each class every client has, and draw it.

    For example: commonweal data show digits partition=dirichlet partition.alpha=0.1 test=0.5
    """
    from commonweal.config.experiment import Experiment, change

    values = change({"dataset": name}, [_of_dataset(text) for text in changes or []])
    experiment = Experiment(**values)

    from commonweal.data import describe
    from commonweal.data.sources.download import differing
    from commonweal.jobs.job import build_dataset
    from commonweal.report import figures

    federation = build_dataset(experiment)
    path = to or Path(f"{name.replace(':', '-').replace('/', '-')}.png")
    file = experiment.dataset.get("path") if name == "table" else None
    figures.save(figures.federation(federation, Path(file).name if file else name), path)
    facts = describe.federation_facts(federation)
    remarks = describe.remarks(federation)
    for file in differing(name):
        remarks.append(f"{file} is not the published file: its checksum differs")
    if as_json:
        described = {"dataset": experiment.dataset, **facts}
        console.show_json({**described, "remarks": remarks, "picture": str(path)})
    elif not quiet:
        table = console.name_table()
        for key, value in facts.items():
            table.add_row(f"[bold]{escape(key)}[/bold]", shown(str(value), "markup"))
        console.out.print(table)
        for sentence in (*remarks, f"drawn to {path}"):
            console.print_text(sentence)


def _of_dataset(change: str) -> str:
    """A change of a dataset's parameter as one of an experiment's key."""
    head = change.partition("=")[0].partition(".")[0].strip()
    if head in ("dataset", "partition", "label_noise", "noise", "seed", "score"):
        return change
    return f"dataset.{change}"


@data.command(name="get")
def data_get(name: Dataset, data_dir: DataDir = None, quiet: Quiet = False) -> None:
    """Download a dataset's original files to the data directory and verify their checksums.

    For example: commonweal data get mnist; commonweal list datasets names the datasets.
    """
    from commonweal.data.sources.download import fetch, sources

    files = sources(name)

    from commonweal.report.progress import Download, download_bar

    with download_bar(console.err, quiet) as bar:
        paths = [fetch(file, Download(bar, Path(file).name)) for file in files]
    folders = ", ".join(sorted({str(path.parent) for path in paths}))
    if not quiet:
        console.print_text(f"{len(paths)} files in {folders}; their checksums are right")
