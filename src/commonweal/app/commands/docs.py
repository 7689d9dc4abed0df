"""`commonweal docs`: the guides, without a network."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import out
from commonweal.base.errors import ConfigError, did_you_mean

PACKAGE = Path(__file__).parents[2]
FOLDERS = (PACKAGE / "docs", PACKAGE.parents[1] / "docs")  # in a wheel, and in a checkout


def docs(
    page: Annotated[
        str | None,
        typer.Argument(help="A page, such as own, or slurm.sbatch.", show_default=False),
    ] = None,
    to: Annotated[Path | None, out("Write the page to this file.")] = None,
) -> None:
    """List the guides, or print one of them.

    For example: commonweal docs own; commonweal docs slurm.sbatch -o slurm.sbatch
    """
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        raise ConfigError("this installation has no guides: install commonweal from its wheel")
    pages = {path.name.removesuffix(".md"): path for path in folder.glob("*.md")}
    pages |= {path.name: path for path in folder.glob("*.sbatch")}
    if page is None:
        for name, path in sorted(pages.items()):
            lines = path.read_text(encoding="utf-8").splitlines()
            title = next(line for line in lines if not line.startswith("#!"))
            typer.echo(f"{name:16}  {title.lstrip('# ')}")
        return
    name = page.removesuffix(".md")
    if name not in pages:
        raise ConfigError(f"there is no page {page!r}: {did_you_mean(name, pages)}")
    text = pages[name].read_text(encoding="utf-8")
    if to is None:
        typer.echo(text, nl=False)
        return
    from commonweal.base.files import write_file

    write_file(to, text.encode(), durable=False)
    console.say(f"written to {to}")
