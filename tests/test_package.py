"""The distribution: what is in the wheel and the source archive, and that they install and run."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import commonweal

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "commonweal"
LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "demo", "*.pyc"
)

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="these tests need the project's own folder"
)


def run(*command: object, folder: Path, **environment: str) -> str:
    """What a command prints; the environment does not lead to this checkout."""
    known = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=known | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the source archive, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, folder / "source", ignore=LEFT_OUT)
    call = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist"]
    run(*call, folder / "source", folder=folder)
    yield folder / "dist"
    shutil.rmtree(folder / "source")


def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(wheel(built)) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = {path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    guides = {f"commonweal/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    guides |= {"commonweal/docs/slurm.sbatch", "commonweal/docs/torchrun.sbatch"}
    package = {path.relative_to(SOURCE.parent).as_posix() for path in files}
    assert inside == package | guides
    for needed in ("py.typed", "datasets/_data/vowel.dat", "app/ui/static/page.js"):
        assert f"commonweal/{needed}" in inside


def test_the_metadata_name_authors_versions_and_licence(built: Path) -> None:
    with zipfile.ZipFile(wheel(built)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(name).decode()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
        (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "commonweal = commonweal.__main__:main" in archive.read(entry).decode()
    head = text.partition("\n\n")[0]
    assert f"Version: {commonweal.__version__}\n" in head
    assert "Author: Commonweal contributors\n" in head
    assert "License-Expression: Apache-2.0\n" in head and "Requires-Python: >=3.11\n" in head
    for minor in (11, 12, 13):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}\n" in head
    assert "Keywords: federated learning" in head


def test_the_source_archive_has_what_is_needed_to_test_and_document_it(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("src/commonweal", "tests", "examples", "docs", "benchmarks"):
        wanted = {file for file in (ROOT / folder).rglob("*") if file.is_file()}
        for file in wanted:
            name = file.relative_to(ROOT).as_posix()
            hidden = re.search(r"(^|/)(\.|__pycache__|runs/|build/)|\.pyc$", name)
            assert hidden or name in inside, name
    for name in ("LICENSE", "CHANGELOG.md", "CITATION.cff", "constraints.txt", "Makefile"):
        assert name in inside


def test_the_version_is_the_same_everywhere() -> None:
    version = commonweal.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {version}" in changes


def test_files_for_a_code_host_can_be_read() -> None:
    yaml = pytest.importorskip("yaml")
    found = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in sorted(_host_files())}
    assert found["test.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"] == [
        "3.11",
        "3.12",
        "3.13",
    ]
    assert found["bug.yml"]["body"] and found["wish.yml"]["body"]
    hooks = found[".pre-commit-config.yaml"]["repos"][0]["hooks"]
    lint = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2]
    for hook in hooks:  # the same programs as `make lint`
        assert Path(hook["entry"].split()[0]).name in lint.partition("\n\n")[0]
    assert found["CITATION.cff"]["cff-version"] == "1.2.0" and found["CITATION.cff"]["authors"]


def _host_files() -> Iterator[Path]:
    yield from (ROOT / ".github").rglob("*.yml")
    yield ROOT / ".pre-commit-config.yaml"
    yield ROOT / "CITATION.cff"


def test_constraints_name_every_requirement_of_developers() -> None:
    """Nothing that `make setup` installs by name is left to chance."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {plain(line.partition("==")[0]) for line in lines if "==" in line}
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["docs"]]
    names = {plain(re.split(r"[\[<>=~! ]", need)[0]) for need in wanted} - {"commonweal"}
    assert names <= pinned
    locked = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    entries = re.findall(
        r"^(\S+==\S+)[^\n]*((?:\n    --hash=sha256:[0-9a-f]{64}[ \\]*)+)", locked, re.M
    )
    assert len(entries) == locked.count("==") - locked.count(" == ")  # each has a hash
    versions = {plain(name): version for name, version in (e[0].split("==") for e in entries)}
    assert names <= versions.keys()
    for line in lines:
        name, _, version = line.partition("==")
        assert versions.get(plain(name), version) == version


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment_and_another_folder(
    built: Path, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "venv", "empty", folder=tmp_path)
    bin = tmp_path / "empty" / ("Scripts" if os.name == "nt" else "bin")
    pip = [bin / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run(*pip, "-c", ROOT / "constraints.txt", wheel(built), folder=tmp_path)
    place = tmp_path / "elsewhere"
    place.mkdir()
    printed = run(bin / "commonweal", "demo", "--seeds", "1", "--rounds", "2", folder=place)
    assert "Nursing" in printed and (place / "demo" / "students.png").exists()
    said = run(bin / "python", "-m", "commonweal", "doctor", folder=place, COMMONWEAL_DATA="")
    assert "PROBLEM" not in said and 'pip install "commonweal[flower]"' in said
    run(bin / "python", "-m", "pip", "check", folder=place)


@pytest.mark.slow
def test_all_extras_resolve_together(built: Path, tmp_path: Path) -> None:
    """With flwr 1.41, which bounds typer, rich, packaging, starlette and others from above."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # Trackio 0.43 wants pillow < 13, and constraints.txt has 13: docs/reading.md.
    extras = ",".join(set(project["optional-dependencies"]) - {"trackio"})
    report = tmp_path / "report.json"
    call = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    asked = f"{wheel(built)}[{extras}]"
    run(*call, "--report", report, "-c", ROOT / "constraints.txt", asked, folder=tmp_path)
    installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    versions = {plain(each["metadata"]["name"]): each["metadata"]["version"] for each in installed}
    assert versions["flwr"].startswith("1.41.") and "ray" in versions and "zensical" in versions
