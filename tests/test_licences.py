"""THIRD_PARTY.md lists what is installed with the package and what it ships, with licences."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import commonweal

ROOT = Path(__file__).parents[1]
PACKAGE = Path(commonweal.__file__).parent
LISTED = dict(re.findall(r"^\| `(\S+?)` \| (.+?) \|", (ROOT / "THIRD_PARTY.md").read_text(), re.M))
# Licences that allow use, change and distribution in any program; MPL-2.0 binds its own files only.
ALLOWED = r"MIT|BSD|Apache|PSF|Python Software Foundation|ISC|MPL|Mozilla Public|Zlib|CC0|BSL"
REFUSED = r"\b(A?GPL|LGPL|SSPL|BUSL|CC-BY-NC|Proprietary)"


def licence(name: str) -> str:
    """The licence of an installed distribution by its own metadata."""
    about = metadata.metadata(name)
    if "License-Expression" in about:
        return str(about["License-Expression"])
    classifiers = [text for text in about.get_all("Classifier", []) if text.startswith("License")]
    if classifiers:
        return "; ".join(text.split(" :: ")[-1] for text in classifiers)
    return str(about["License"]).split("\n")[0]


def declared() -> set[str]:
    """The direct dependencies of the package and of its extras for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"]]
    for extra in extras.keys() - {"dev", "docs"}:
        texts += extras[extra]
    return {canonicalize_name(Requirement(text).name) for text in texts}


def installed() -> dict[str, str]:
    """All that is installed with the package, directly or not, with licences."""
    licences: dict[str, str] = {}
    pending = sorted(declared())
    while pending:
        name = pending.pop()
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # an extra that is not installed here
            continue
        licences[name] = licence(name)
        for text in required:
            requirement = Requirement(text)
            other = canonicalize_name(requirement.name)
            if "extra" not in str(requirement.marker) and other not in licences:
                pending.append(other)
    return licences


def test_every_direct_dependency_is_listed() -> None:
    files = {name for name in LISTED if "." in name}
    assert set(LISTED) - files == declared()


def test_the_licences_of_all_dependencies_are_permissive() -> None:
    licences = installed()
    assert len(licences) > 30
    wrong = {
        name: text
        for name, text in licences.items()
        if re.search(REFUSED, text) or not re.search(ALLOWED, text)
    }
    assert wrong == {}


def test_a_listed_licence_is_that_of_the_installed_version() -> None:
    licences = installed()
    direct = sorted(declared() & licences.keys())
    assert {name: LISTED[name] for name in direct} == {name: licences[name] for name in direct}


def test_shipped_data_and_programs_of_others_are_listed() -> None:
    data = {p.name for p in (PACKAGE / "datasets" / "_data").iterdir() if p.name != "README.md"}
    vendored = {p.name for p in (PACKAGE / "app" / "ui" / "static").glob("uPlot*.[jc]*s")}
    assert {name for name in LISTED if "." in name} == data | vendored
