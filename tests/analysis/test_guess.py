"""`commonweal init` says what looks wrong with a column."""

from pathlib import Path

import numpy as np

from commonweal.analysis.guess import guess


def lines(path: Path, ages: list[str]) -> dict[str, str]:
    rng = np.random.default_rng(0)
    rows = ["hospital,age,ward,died"]
    for age in ages:
        ward = ("eyes", "heart", "3")[int(rng.integers(3))]
        rows.append(f"{'AB'[int(rng.integers(2))]},{age},{ward},{int(rng.integers(2))}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return dict(guess(path, None, None, path.with_suffix(".toml")).lines)


def test_numbers_among_which_are_a_few_texts_are_pointed_out(tmp_path: Path) -> None:
    ages = [str(20 + k % 60) for k in range(190)] + ["unknown"] * 8 + ["<18"] * 2
    said = lines(tmp_path / "a.csv", ages)
    assert "most of them are numbers" in said["age"] and "'unknown'" in said["age"]
    assert "numbers" not in said["ward"]  # a text that is a number once


def test_numbers_with_gaps_are_numbers(tmp_path: Path) -> None:
    ages = [str(20 + k % 60) for k in range(190)] + ["", "NA", "-", "?"]
    assert lines(tmp_path / "a.csv", ages)["age"].startswith("number; 4 missing")
