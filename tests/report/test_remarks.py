"""Remarks about rounds: each kind is reported once, and not all clients are named."""

from dataclasses import replace
from typing import Any

from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import Round, run
from commonweal.report.remarks import Remarks


def round_with(number: int, **what: Any) -> Round:
    (done,) = run(Experiment(dataset="vowel", rounds=1))
    return replace(done, number=number, **what)


def test_every_kind_of_remark_is_shown_once() -> None:
    said: list[str] = []
    remarks = Remarks(said.append)
    first = "vred: beta = 1 makes weights negative; with these losses it must stay below 0.3"
    remarks.about_round(round_with(1, warnings=(first, "adafed: the Gram matrix is singular")))
    remarks.about_round(round_with(2, warnings=(first.replace("0.3", "0.4"),)))
    assert said == [f"round 1: {first}", "round 1: adafed: the Gram matrix is singular"]


def test_dropped_and_capped_clients_are_named_once_and_not_all() -> None:
    said: list[str] = []
    remarks = Remarks(said.append)
    remarks.about_round(round_with(1, dropped={"Jo": "its loss is 200 times the median"}))
    remarks.about_round(round_with(2, dropped={"Jo": "its loss is 300 times the median"}))
    remarks.about_round(round_with(3, capped={"Jo": "its update is 300 times the median"}))
    assert said == [
        "round 1: the reply of Jo was dropped: its loss is 200 times the median",
        "round 3: the reply of Jo was capped: its update is 300 times the median",
    ]
    remarks.about_round(round_with(4, dropped={f"client {k}": "no reply" for k in range(100)}))
    assert said[-1] == "round 4: more replies were dropped: see rounds.jsonl"
    assert len(said) == 2 + 4 + 1
    Remarks(None).about_round(round_with(1, dropped={"Jo": "no reply"}))
