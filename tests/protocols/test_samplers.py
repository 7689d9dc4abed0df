"""Samplers: each one's distribution, by counts or exactly; the same draws from the same seed."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from commonweal.base.errors import CommonwealError, ConfigError, DataError
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, read
from commonweal.data.population import Population
from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.rounds import run
from commonweal.protocols.algorithm import Sample
from commonweal.protocols.samplers import BySize, ByWeight, Only, Poisson, Sampler, Trace, Uniform
from commonweal.protocols.samplers.sampler import Draw
from commonweal.task.task import Task
from run_helpers import Growing, federation, job, task

SIZES = [10, 20, 30, 40, 100]
WEIGHTS = torch.tensor([0.1, 0.2, 0.0, 0.4, 0.3], dtype=torch.float64)
DRAWS = 4000
ALPHA = 1e-4  # of tests with a fixed seed: they fail by chance never or always


def population(sizes: list[int] = SIZES, names: tuple[str, ...] | None = None) -> Population:
    known = tuple(f"c{k}" for k in range(len(sizes))) if names is None else names
    return Population(names=known, sizes=torch.tensor(sizes), shape=(2,), outputs=3)


def draw(
    sampler: Sampler,
    size: int = 2,
    round: int = 1,
    seed: int = 0,
    weights: Tensor | None = None,
    among: Population | None = None,
) -> list[int]:
    rng = np.random.default_rng([seed, round])
    return sampler.choose(Draw(round, among or population(), size, weights, rng)).tolist()


def counts(sampler: Sampler, **how: Any) -> Counter[tuple[int, ...]]:
    """How often each cohort is drawn."""
    return Counter(tuple(draw(sampler, seed=seed, **how)) for seed in range(DRAWS))


def agrees(found: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> None:
    """The counts are those of a sample of this distribution over cohorts, by a chi-square test."""
    assert set(found) <= set(expected)
    assert sum(expected.values()) == pytest.approx(1)
    observed = [found[cohort] for cohort in expected]
    wanted = [DRAWS * p for p in expected.values()]
    assert stats.chisquare(observed, wanted).pvalue > ALPHA


def one_after_the_other(p: list[float], size: int) -> dict[tuple[int, ...], float]:
    """The distribution of a cohort whose clients are drawn in turn from those that are left."""
    expected: dict[tuple[int, ...], float] = {}
    for order in permutations([k for k, share in enumerate(p) if share > 0], size):
        chance, left = 1.0, sum(p)
        for client in order:
            chance *= p[client] / left
            left -= p[client]
        cohort = tuple(sorted(order))
        expected[cohort] = expected.get(cohort, 0.0) + chance
    return expected


# Distributions


def test_uniform_draws_every_cohort_equally_often() -> None:
    cohorts = list(combinations(range(5), 2))
    agrees(counts(Uniform()), dict.fromkeys(cohorts, 1 / len(cohorts)))


def test_uniform_asks_everyone_where_the_cohort_is_all() -> None:
    for size in (5, 6, 100):
        assert draw(Uniform(), size) == [0, 1, 2, 3, 4]


def test_poisson_tosses_a_coin_for_each_client() -> None:
    expected = {}
    for size in range(6):
        for cohort in combinations(range(5), size):
            expected[cohort] = 0.4**size * 0.6 ** (5 - size)
    found = counts(Poisson(), size=2)
    agrees(found, expected)
    assert found[()] > 0  # a round may ask nobody


def test_poisson_asks_everyone_where_the_cohort_is_all() -> None:
    assert all(draw(Poisson(), 5, seed=seed) == [0, 1, 2, 3, 4] for seed in range(100))


def test_by_size_draws_in_proportion_to_the_rows() -> None:
    agrees(counts(BySize(), size=1), {(k,): size / 200 for k, size in enumerate(SIZES)})
    agrees(counts(BySize(), size=2), one_after_the_other([float(n) for n in SIZES], 2))


def test_by_weight_without_replacement_draws_one_after_the_other() -> None:
    found = counts(ByWeight(), size=2, weights=WEIGHTS)
    agrees(found, one_after_the_other(WEIGHTS.tolist(), 2))


def test_by_weight_with_replacement_draws_each_time_from_all() -> None:
    p = WEIGHTS.tolist()
    expected: dict[tuple[int, ...], float] = {}
    for first in range(5):
        for second in range(5):
            cohort = (min(first, second), max(first, second))
            if p[first] * p[second]:
                expected[cohort] = expected.get(cohort, 0.0) + p[first] * p[second]
    agrees(counts(ByWeight(replacement=True), size=2, weights=WEIGHTS), expected)


def test_by_weight_never_asks_a_client_of_weight_0() -> None:
    for size in (4, 5, 9):
        assert draw(ByWeight(), size, weights=WEIGHTS) == [0, 1, 3, 4]
    negative = torch.tensor([0.5, -0.2, 0.7, 0.0, 0.0])
    assert draw(ByWeight(), 3, weights=negative) == [0, 2]


def test_only_asks_the_named_clients() -> None:
    assert draw(Only(("c3", "c1")), size=5) == [1, 3]
    pairs: dict[tuple[int, ...], float] = {(0, 1): 1 / 3, (0, 4): 1 / 3, (1, 4): 1 / 3}
    agrees(counts(Only(("c0", "c1", "c4")), size=2), pairs)


def test_only_knows_groups() -> None:
    grouped = replace(population(), groups=("x", "y", "x", "y", "z"))
    assert draw(Only(("x", "c4")), size=5, among=grouped) == [0, 2, 4]


def test_only_refuses_names_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match="at least one client"):
        Only(())
    with pytest.raises(DataError, match="'c9', which is not in the data"):
        Only(("c9",)).check(population())


def test_a_model_trained_on_one_client_is_evaluated_on_all() -> None:
    names = federation().population.names
    last = list(run(task(), federation(), sampler=Only((names[0],)), rounds=2))[-1]
    assert last.clients == (names[0],)
    assert last.evaluation is not None
    assert len(last.evaluation.scored) == len(names)


def test_by_weight_needs_a_rule_with_a_mixture() -> None:
    with pytest.raises(ConfigError, match="needs a rule with a mixture over all clients"):
        draw(ByWeight(), weights=None)
    with pytest.raises(ConfigError, match="needs a rule with a mixture over all clients"):
        next(run(task(), federation(), sampler="weight", rule="fedavg", cohort=2))


@pytest.mark.parametrize("seed", range(6))
def test_by_weight_takes_the_mixture_of_the_rule(seed: int) -> None:
    """The loss of c2 is the largest and stays so: AFL's mixture, and so the sampler, chooses it.

    A cohort of one would not do: absent clients count with its mean, so that the mixture stays.
    """
    wild = federation(6, scale={2: 20.0})
    rule = {"name": "afl", "lr": 1.0}
    how: dict[str, Any] = {"client": {"name": "sgd", "lr": 1e-5}, "sampler": "weight", "cohort": 2}
    asked: Counter[str] = Counter()
    for done in run(task(), wild, rule=rule, rounds=30, seed=seed, **how):
        asked.update(done.clients)
    assert asked["c2"] > 20


@pytest.mark.parametrize("algorithm", ["averaging", "two-phase"])
def test_a_client_that_is_drawn_twice_is_asked_once(algorithm: str) -> None:
    """So that each weight is that of one client."""
    sampler = ByWeight(replacement=True)
    sizes = set()
    for done in run(
        task(), federation(), algorithm=algorithm, rule="afl", sampler=sampler, rounds=9
    ):
        assert len(set(done.clients)) == len(done.clients) == len(done.weights)
        assert sum(done.weights.values()) == pytest.approx(1)
        sizes.add(len(done.clients))
    assert len(sizes) > 1


# All of them


@pytest.fixture
def everywhere(tmp_path: Path) -> str:
    """A trace in which all clients are available in each of 3 rounds."""
    path = tmp_path / "all.csv"
    lines = [f"{round},c{k}" for round in (1, 2, 3) for k in range(5)]
    path.write_text("\n".join(["round,client", *lines]))
    return str(path)


def sampler(name: str, trace: str) -> Sampler:
    more: dict[str, Any] = {
        "trace": {"path": trace},
        "only": {"names": ["c0", "c1", "c2", "c3", "c4"]},
    }
    built: Sampler = catalog.build("samplers", {"name": name, **more.get(name, {})})
    return built


NAMES = ["only", "poisson", "size", "trace", "uniform", "weight"]


def test_all_samplers_are_listed() -> None:
    assert list(catalog.entries("samplers")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_sorted_distinct_whole_numbers_of_clients(name: str, everywhere: str) -> None:
    drawing = sampler(name, everywhere)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        ids = drawing.choose(Draw(1, population(), 3, WEIGHTS, rng))
        assert ids.dtype == torch.int64 and ids.ndim == 1
        assert ids.tolist() == sorted(set(ids.tolist()))
        assert all(0 <= client < 5 for client in ids.tolist())
        assert name == "poisson" or len(ids) == 3


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_draws_the_same_and_rounds_differ(name: str, everywhere: str) -> None:
    drawing = sampler(name, everywhere)

    def rounds(seed: int) -> list[list[int]]:
        return [draw(drawing, 2, round, seed, WEIGHTS) for round in range(1, 31)]

    assert rounds(0) == rounds(0)
    assert rounds(0) != rounds(1)
    assert len({tuple(cohort) for cohort in rounds(0)}) > 3


@pytest.mark.parametrize("name", [name for name in NAMES if name != "only"])
def test_a_population_that_grew_is_drawn_from_as_a_whole(name: str, tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    path.write_text("round,client\n1,c0\n1,c1\n1,late\n")
    small = population([10, 20], ("c0", "c1"))
    grown = population([10, 20, 30], ("c0", "c1", "late"))
    drawing = sampler(name, str(path))
    weights = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    if name != "trace":  # a trace that names a client who is not there is an error, below
        assert draw(drawing, 2, weights=weights[:2], among=small) == [0, 1]
    drawn = [draw(drawing, 1, seed=seed, weights=weights, among=grown) for seed in range(40)]
    assert [2] in drawn


@pytest.mark.parametrize("name", ["uniform", "poisson", "size"])
def test_a_run_asks_clients_that_join_late(name: str) -> None:
    f = federation(5)
    asked = []
    engine = Growing(f, joined=(3, 3, 5))
    for done in run(job(task(), f, engine, sampler=name, cohort=2, rounds=12, seed=1)):
        asked.append(set(done.clients))
    assert not {"c3", "c4"} & (asked[0] | asked[1])
    assert {"c3", "c4"} <= set.union(*asked[2:])


def test_draws_of_one_round_continue_one_stream() -> None:
    """An algorithm may draw two cohorts in a round, by other samplers and weights."""
    rng = np.random.default_rng(4)
    sample = Sample(population(), 2, 1, Uniform(), rng)
    first = sample()
    second = sample(lambda: WEIGHTS, ByWeight())
    again = np.random.default_rng(4)
    assert torch.equal(first, Uniform().choose(Draw(1, population(), 2, None, again)))
    assert torch.equal(second, ByWeight().choose(Draw(1, population(), 2, WEIGHTS, again)))


def test_a_distribution_is_computed_for_samplers_that_use_it_only() -> None:
    """It has as many entries as there are clients, which may be a million."""
    sample = Sample(population(), 2, 1, Uniform(), np.random.default_rng(4))
    sample(lambda: pytest.fail("not needed"))
    using = [name for name in NAMES if sampler(name, "t.csv").uses_weights]
    assert using == ["weight"]


# Traces


def trace(tmp_path: Path, text: str) -> Trace:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return Trace(str(path))


LINES = "round,client\n1,c4\n1,c0\n1,c2\n3,c1\n3,c1\n"


def test_a_trace_sets_who_is_available_when(tmp_path: Path) -> None:
    available = trace(tmp_path, LINES)
    assert draw(available, 5, round=1) == [0, 2, 4]
    assert draw(available, 5, round=2) == []
    assert draw(available, 5, round=3) == [1]  # a client that is named twice is asked once


def test_a_trace_starts_again_after_its_last_round(tmp_path: Path) -> None:
    available = trace(tmp_path, LINES)
    assert [draw(available, 5, round=round) for round in range(1, 8)] == [
        [0, 2, 4],
        [],
        [1],
        [0, 2, 4],
        [],
        [1],
        [0, 2, 4],
    ]


def test_a_trace_that_was_changed_is_read_again(tmp_path: Path) -> None:
    assert draw(trace(tmp_path, "round,client\n1,c0\n")) == [0]
    assert draw(trace(tmp_path, "round,client\n1,c1\n")) == [1]


def test_a_trace_chooses_equally_among_those_available(tmp_path: Path) -> None:
    found = counts(trace(tmp_path, LINES), size=2)
    agrees(found, {(0, 2): 1 / 3, (0, 4): 1 / 3, (2, 4): 1 / 3})


@pytest.mark.parametrize(
    "text",
    ["client,round\nc3,1\n", "round,client,reason\n1,c3,charging\n", "\ufeffround,client\n1,c3\n"],
    ids=["another order", "further columns", "a byte order mark"],
)
def test_a_trace_is_read_by_its_columns(tmp_path: Path, text: str) -> None:
    assert draw(trace(tmp_path, text), 2) == [3]


def test_names_of_clients_may_be_any_text(tmp_path: Path) -> None:
    names = ("a,b", "Zürich", "3")
    among = population([10, 20, 30], names)
    text = 'round,client\n1,"a,b"\n1,Zürich\n1,3\n'
    assert draw(trace(tmp_path, text), 3, among=among) == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rounds"),
        ("round,client\n", "has no rounds"),
        ("round,client\n0,c1\n", "rounds are numbered 1, 2"),
        ("round,client\none,c1\n", "is not a trace of clients: write a CSV file with the columns"),
        ("round,client\n1.5,c1\n", "is not a trace of clients"),
        ("round,name\n1,c1\n", "is not a trace of clients"),
        ("1,c1\n2,c1\n", "is not a trace of clients"),
        ("round,client\n1\n", "is not a trace of clients"),
        ("round,client\n1,c99\n", "names the client 'c99', which is not in the data: known: c0"),
        ("round,client\n1,c00\n", "names the client 'c00', .*: did you mean 'c0'"),
    ],
)
def test_a_wrong_trace_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        draw(trace(tmp_path, text))
    assert "trace.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trace_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv' is not a trace.*No such file"):
        draw(Trace(str(tmp_path / "none.csv")))
    (tmp_path / "bytes.csv").write_bytes(b"round,client\n1,\xff\n")
    with pytest.raises(DataError, match=r"bytes\.csv' is not a trace"):
        draw(Trace(str(tmp_path / "bytes.csv")))


def test_a_wrong_trace_is_found_before_the_first_round(tmp_path: Path) -> None:
    """Not in the round in which the wrong client is available."""
    path = tmp_path / "trace.csv"
    path.write_text("round,client\n1,c0\n50,c9\n")
    with pytest.raises(CommonwealError, match="'c9'"):
        next(run(task(), federation(), sampler={"name": "trace", "path": str(path)}, rounds=60))


def test_a_trace_may_name_clients_before_they_join(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("round,client\n1,c0\n2,c1\n3,c2\n")
    f = federation(3)
    everyone = job(task(), f, sampler={"name": "trace", "path": str(path)}, rounds=3)
    done = list(run(replace(everyone, engine=Growing(f, joined=(2, 2, 3)))))
    assert [each.clients for each in done] == [("c0",), ("c1",), ("c2",)]


def test_a_run_by_a_trace_asks_those_who_are_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("round,client\n1,c0\n1,c3\n3,c2\n")
    t = task()
    sampler = {"name": "trace", "path": str(path)}
    done = list(run(t, federation(), sampler=sampler, rounds=4))
    assert [each.clients for each in done] == [("c0", "c3"), (), ("c2",), ("c0", "c3")]
    assert torch.equal(done[1].state["w"], done[0].state["w"])
    assert done[1].weights == {} and done[1].metrics == done[0].metrics


def test_the_trace_of_an_experiment_is_found_beside_its_file(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("round,client\n1,Andrew\n")
    file = tmp_path / "e.toml"
    file.write_text(
        'dataset = "vowel"\nrounds = 1\nsampler = {name = "trace", path = "trace.csv"}\n'
    )
    (done,) = run(read(file))
    assert done.clients == ("Andrew",)


# In an experiment


@pytest.mark.parametrize("name", ["uniform", "poisson", "size"])
def test_cohorts_of_an_experiment_depend_on_seed_and_round_only(name: str) -> None:
    def cohorts(seed: int) -> list[list[int]]:
        drawn = job_from_experiment(
            Experiment(dataset="vowel", cohort=5, seed=seed, sampler=name, rounds=3)
        )
        return [drawn.sample(number)().tolist() for number in range(1, 40)]

    assert cohorts(0) == cohorts(0)
    assert cohorts(0) != cohorts(1)
    assert {k for cohort in cohorts(0) for k in cohort} == set(range(15))


@pytest.mark.parametrize(
    "parts",
    [
        {"rule": "aaggff-s"},
        {"rule": "aaggff-s", "algorithm": "two-phase"},
        {"client": "fedper"},
        {"client": "fedper", "algorithm": "two-phase"},
        {"client": "scaffold(steps=3)", "channels": ["clip"]},
    ],
    ids=lambda parts: "-".join(parts.values() if "channels" not in parts else ["scaffold"]),
)
def test_a_round_that_asks_nobody_moves_nothing(parts: dict[str, Any]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        t = Task(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)))
    w = t.initial
    empty = 0
    for done in run(t, federation(), sampler="poisson", cohort=1, rounds=12, **parts):
        if done.clients:
            assert not torch.equal(done.state["w"], w)
        else:
            empty += 1
            assert torch.equal(done.state["w"], w)
            assert (done.losses, done.scores, done.weights) == ((), (), {})
            assert done.bytes["up"] == done.bytes["down"] == 0
            assert done.metrics  # it is evaluated all the same
        w = done.state["w"]
        assert int(done.state["round"]) == done.number + 1
    assert 0 < empty < 12
