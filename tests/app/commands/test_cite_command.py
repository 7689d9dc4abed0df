"""References: every method has one, and a run is cited by what it used."""

from pathlib import Path

from command_helpers import Command
from commonweal.config import catalog
from commonweal.report.citing import OWN, references


def test_every_method_has_a_reference_and_every_reference_a_method() -> None:
    cited = OWN.union(*references().values())
    for kind in ("rules", "clients"):
        named = {f"{kind}:{name}" for name in catalog.entries(kind)}
        assert named <= cited
    kinds = ("rules", "clients", "algorithms", "servers", "samplers", "datasets")
    known = {f"{kind}:{name}" for kind in kinds for name in catalog.entries(kind)}
    assert cited - OWN <= known
    keys = [entry.partition("{")[2].partition(",")[0] for entry in references()]
    assert len(set(keys)) == len(keys)
    assert all(entry.count("{") == entry.count("}") for entry in references())


def test_runs_are_cited_by_what_they_used(command: Command, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    changes = ("rule=guarded(rule=afl)", "client=ditto", "server=adam", "rounds=1")
    command("run", file, *changes, "-q", "--out", out)
    text = command("cite", out).out
    keys = {line.partition("{")[2].rstrip(",") for line in text.splitlines() if line[:1] == "@"}
    assert keys == {
        "commonweal",
        "mohri2019agnostic",
        "li2021ditto",
        "reddi2021adaptive",
        "deterding1989speaker",
    }
