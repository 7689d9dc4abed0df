"""Will a loan be repaid? Seven regions of a Czech bank, 621 loans, of which 75 were not.

PKDD'99 Discovery Challenge (Berka); `account`, `district`, `loan`, `order` and `trans` .asc in `berka`, where
`loan_trans_aggregates.csv` (one line a loan) may stand in for `trans`. A client is a region. North Bohemia, with one
default in 61 loans, is left out, as in AAggFF (Hahn et al. 2024).
"""

import csv
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Literal

import numpy as np

from commonweal.datasets._files import decoded, find, locate
from commonweal.datasets._shared import standardised
from commonweal.errors import DataError
from commonweal.federation import Federation

__all__ = ["berka"]

TABLES = ("account.asc", "district.asc", "loan.asc", "order.asc")
Record = dict[str, str]


def berka(
    features: Literal["leaky", "pre-loan"] = "leaky", test: float = 0.2, seed: int = 0, dir: str | None = None
) -> Federation:
    """621 rows of 15 features, 7 regions, default or not; score: AUROC

    features: "leaky" counts transactions after the loan too and takes one year's unemployment and crime, as the
    published code does; "pre-loan" counts only what the bank knew, and both years' means, as the paper says
    test: the share of each region's rows that is held out, stratified; seed: which rows these are; dir: the folder
    """
    from sklearn.model_selection import train_test_split  # slow to import, and the published splits are its

    x, y, region = _loans(dir, features == "leaky")
    regions = sorted(set(region) - {"north Bohemia"}, key=lambda name: (-region.count(name), name))
    owner = np.array([regions.index(name) if name in regions else -1 for name in region])
    x, y, owner = x[owner >= 0], y[owner >= 0], owner[owner >= 0]
    held = np.zeros(len(y), dtype=bool)
    for k in range(len(regions)):
        rows = np.flatnonzero(owner == k)
        _, chosen = train_test_split(rows, test_size=test, random_state=seed, stratify=y[rows])
        held[chosen] = True
        x[rows, :13] = standardised(x[rows, :13], ~held[rows])
    return Federation.from_arrays(x, y, owner, held, names=regions, outputs=1, loss="binary", score="auroc")


def _loans(dir: str | None, leaky: bool) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """13 numbers and 2 dummies of the account's frequency, the label, and the region, for every loan."""
    account, district, loan, order = (_table(path) for path in locate("berka", "berka", TABLES, dir))
    accounts = {a["account_id"]: a for a in account}
    districts = {d["A1"]: d for d in district}
    orders: dict[str, list[float]] = {}
    for o in order:
        orders.setdefault(o["account_id"], []).append(float(o["amount"]))
    moves = _transactions(dir, {v["account_id"]: v["date"] for v in loan}, leaky)
    levels = sorted({a["frequency"] for a in account})[1:]
    rows, region = [], []
    for v in loan:
        a = accounts[v["account_id"]]
        d = districts[a["district_id"]]
        rows.append(
            [float(v["amount"]), float(v["duration"]), float(v["payments"]), (_day(v["date"]) - _day(a["date"])).days]
            + [float(d[c]) for c in ("A4", "A11", "A14")]
            + [_mean(d, "A13" if leaky else "A12", "A13"), _mean(d, "A16" if leaky else "A15", "A16")]
            + [float(np.mean(orders.get(v["account_id"], [0.0])))]
            + [*moves[v["account_id"]], *(float(a["frequency"] == level) for level in levels)]
        )
        region.append(d["A3"])
    return np.array(rows), np.array([v["status"] in "BD" for v in loan]).astype(np.int64), region


def _transactions(dir: str | None, loans: dict[str, str], leaky: bool) -> dict[str, tuple[float, float, float]]:
    """How many transactions each account has, their mean amount (withdrawals too) and the mean balance after them."""
    path = find("berka", "trans.asc", dir)
    if path is not None:
        return _summed(_table(path), lambda t: leaky or t["date"] <= loans[t["account_id"]], loans)
    lines = _table(locate("berka", "berka", ["loan_trans_aggregates.csv"], dir)[0], ",")
    number, amount = (
        ("all_trans_num", "all_trans_amount_mean") if leaky else ("pre_trans_num", "pre_signed_amount_mean")
    )
    # The balance over the whole history could not be had: before the loan stands for it.
    return {r["account_id"]: (float(r[number]), float(r[amount]), float(r["pre_balance_mean"])) for r in lines}


def _summed(
    moves: list[Record], counts: Callable[[Record], bool], loans: dict[str, str]
) -> dict[str, tuple[float, float, float]]:
    total = {account: np.zeros(3) for account in loans}
    for t in moves:
        if t["account_id"] in loans and counts(t):
            total[t["account_id"]] += (1, float(t["amount"]), float(t["balance"]))
    return {a: (t[0], *(t[1:] / max(t[0], 1)).tolist()) for a, t in total.items()}


def _mean(district: Record, *names: str) -> float:
    """The mean of a district's figures; one district lacks the earlier year's ("?")."""
    known = [float(district[name]) for name in names if district[name] != "?"]
    return float(np.mean(known))


def _day(text: str) -> date:
    return date(1900 + int(text[:2]), int(text[2:4]), int(text[4:6]))


def _table(path: Path, separator: str = ";") -> list[Record]:
    rows = list(csv.DictReader(decoded(path).splitlines(), delimiter=separator))
    if not rows or any(None in row or None in row.values() for row in rows):
        raise DataError(
            f"{str(path)!r} is not a table of {separator!r}-separated values with a header, or is cut short"
        )
    return rows
