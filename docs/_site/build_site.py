"""Build the site: `python docs/_site/build_site.py [FOLDER]`, by default build/site.

Pages are the Markdown files of docs/, README.md and others from the project's folder, the
reference (site_reference) and the notebooks (site_notebooks). A warning is an error. Pages that
mkdocs.yml does not name are added at the end of its menu, so that every page can be reached.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import site_notebooks
import site_reference
import yaml
from site_formulas import typeset

__all__ = ["build"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Files of the project's folder that are pages, too.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
PAGES |= {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
FORMULA = re.compile(r"\| `([^`\n]+)` (?=\|)")  # in a cell of the table of rules
BAR = r"\|"
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)")


def build(folder: Path, run_notebooks: bool = True) -> None:
    """Build the site in a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder.parent / (folder.name + "-pages")
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    for path in DOCS.iterdir():
        if path.is_file() and path.suffix != ".md":
            shutil.copy(path, pages)
    for name, page in {**PAGES, **_docs_pages()}.items():
        (pages / page).parent.mkdir(exist_ok=True)
        text = _moved(name, page, pages)
        if page == "rules.md":
            text = FORMULA.sub(lambda cell: f"| {typeset(cell[1].replace(BAR, '|'))} ", text)
        (pages / page).write_text(text, encoding="utf-8")
    site_reference.write(pages / "reference")
    site_notebooks.write(pages / "notebooks", run_notebooks)
    config = pages.parent / "mkdocs.yml"
    config.write_text(_config(pages, folder), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(config)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},  # for the extension of griffe
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def _docs_pages() -> dict[str, str]:
    """The pages of docs/ and its folders."""
    paths = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    return {f"docs/{path}": path for path in paths}


def _moved(name: str, page: str, pages: Path) -> str:
    """A page of the project with the links that it has on the site."""
    text = (ROOT / name).read_text(encoding="utf-8")
    folder = (ROOT / name).parent

    def replace(match: re.Match[str]) -> str:
        address = match[2]
        if ":" not in address:
            address = _address((folder / address).resolve().relative_to(ROOT), pages)
            address = os.path.relpath(address, Path(page).parent)
        return f"{match[1]}{address}{match[3] or ''})"

    return LINK.sub(replace, text)


def _address(target: Path, pages: Path) -> str:
    """Where a file of the project is on the site; files that are not pages are copied."""
    name = target.as_posix()
    if name in PAGES:
        return PAGES[name]
    if target.parts[0] == "docs":
        return target.relative_to("docs").as_posix()
    if target.parts[:2] == ("examples", "notebooks"):
        return f"notebooks/{target.stem}.md"
    copy = pages / "files" / f"{name}.txt"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / target, copy)
    return f"files/{name}.txt"


def _config(pages: Path, folder: Path) -> str:
    """mkdocs.yml with the folders' places, and all pages in the menu."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = set(_files(config["nav"]))
    existing = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    if named - existing:
        sys.exit(f"mkdocs.yml names pages that do not exist: {', '.join(sorted(named - existing))}")
    rest = sorted(existing - named)
    if rest:
        config["nav"].append({"Further pages": rest})
    python = config["plugins"][1]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT / "src")]
    python["options"]["extensions"] = [str(DOCS / "_site" / "site_doctests.py")]
    config |= {"docs_dir": pages.name, "site_dir": folder.name}
    return str(yaml.safe_dump(config, sort_keys=False))


def _files(menu: object) -> Iterator[str]:
    """The pages that a menu names."""
    if isinstance(menu, str):
        yield menu
    elif isinstance(menu, dict):
        for entry in menu.values():
            yield from _files(entry)
    elif isinstance(menu, list):
        for entry in menu:
            yield from _files(entry)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the site.")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "site")
    parser.add_argument(
        "--dry", action="store_true", help="do not run the notebooks: show no output"
    )
    given = parser.parse_args()
    build(given.folder, run_notebooks=not given.dry)
    print(f"{given.folder / 'index.html'}; read it with: python -m http.server -d {given.folder}")
