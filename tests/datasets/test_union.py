"""Sites with different columns: what a site lacks is a missing value there."""

from pathlib import Path

import numpy as np
import pytest

import commonweal
from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.data.tables import plain_table

SITES = {"Aachen": ("age", "crp", "ward"), "Bonn": ("age", "ward"), "Ulm": ("age", "crp")}
ROWS = 40


def write(root: Path) -> dict[str, dict[str, list[str]]]:
    """A folder per site, whose file has the columns of that site only."""
    rng = np.random.default_rng(0)
    tables = {}
    for site, names in SITES.items():
        cells = {
            "age": [f"{value:.2f}" for value in rng.normal(60, 9, ROWS)],
            "crp": [f"{value:.2f}" for value in rng.gamma(2, 5, ROWS)],
            "ward": list(rng.choice(["eyes", "heart"], ROWS)),
        }
        columns = {name: cells[name] for name in names}
        columns["died"] = list(rng.choice(["no", "yes"], ROWS))
        tables[site] = columns
        (root / site).mkdir(parents=True)
        lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
        (root / site / "own.csv").write_text("\n".join(lines), encoding="utf-8")
    return tables


def one_table(path: Path, tables: dict[str, dict[str, list[str]]]) -> Path:
    """The same rows as one table, with empty cells."""
    lines = ["age,crp,ward,died,site"]
    for site, columns in tables.items():
        for i in range(ROWS):
            cells = [columns[n][i] if n in columns else "" for n in ("age", "crp", "ward", "died")]
            lines.append(",".join([*cells, site]))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_column_that_a_site_lacks_is_missing_there(tmp_path: Path) -> None:
    tables = write(tmp_path / "sites")
    options = {"path": str(tmp_path / "sites"), "label": "died"}
    with pytest.raises(DataError, match=r"not all have \['crp'\]; columns = 'union'"):
        commonweal.dataset("folder", **options)
    union = commonweal.dataset("folder", columns="union", **options)
    path = one_table(tmp_path / "all.csv", tables)
    whole = commonweal.dataset(
        "table", path=str(path), label="died", client="site", columns="union"
    )
    for federation in (union, whole):
        assert isinstance(federation, Federation) and federation.preprocessing is not None
        note = "columns without any value at a client: 'crp' at 'Bonn'; 'ward' at 'Ulm'"
        assert note in federation.notes
        optional = {c.name for c in federation.preprocessing.columns if c.optional}
        assert optional == {"crp", "ward"}
    assert union.names == whole.names
    ours, theirs = union.preprocessing, whole.preprocessing
    assert ours is not None and theirs is not None
    assert sorted(ours.features) == sorted(theirs.features)
    order = [theirs.features.index(name) for name in ours.features]
    np.testing.assert_allclose(union.train.x, whole.train.x[:, order], rtol=1e-6)
    flag = union.train.x[:, ours.features.index("crp is missing")]
    owner = np.repeat(union.names, union.train.sizes.numpy())
    np.testing.assert_array_equal(flag, owner == "Bonn")
    # New tables may lack it, too, and others still may not.
    known = tables["Aachen"]
    without = {"age": known["age"], "ward": known["ward"]}
    empty = without | {"crp": [""] * ROWS}
    np.testing.assert_array_equal(ours.rows(without), ours.rows(empty))
    again = plain_table.read_columns(ours.values())
    np.testing.assert_array_equal(plain_table.prepare(again, without), ours.rows(empty))
    with pytest.raises(DataError, match="no column 'age'"):
        ours.rows({"crp": known["crp"], "ward": known["ward"]})


def test_clients_that_lack_values_are_reported_in_any_table(tmp_path: Path) -> None:
    path = one_table(tmp_path / "all.csv", write(tmp_path / "sites"))
    federation = commonweal.dataset("table", path=str(path), label="died", client="site")
    assert federation.preprocessing is not None
    assert any("'crp' at 'Bonn'" in note for note in federation.notes)
    assert not any(column.optional for column in federation.preprocessing.columns)
