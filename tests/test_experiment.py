"""One frozen value that determines a run: read, overridden, completed, written and read back."""

import tomllib
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commonweal.errors import CommonwealError, ConfigError
from commonweal.experiment import Experiment, override, read
from commonweal.run import prepare

TEXT = """
dataset = "vowel"
rounds = 7

[rule]
name = "aaggff-s"
cdf = "gumbel"

[client]
name = "sgd"
lr = 0.2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def refused(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Experiment(**({"dataset": "vowel"} | values))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_complete() -> None:
    e = Experiment(dataset="vowel")
    assert e.rule == {"name": "fedavg"}
    assert e.server == {"name": "sgd", "lr": 1.0, "momentum": 0.0, "growth": 1.0, "growth_every": 1}
    assert e.client["batch"] == 20
    assert (e.rounds, e.cohort, e.seed, e.engine, e.evaluate_every) == (100, "all", 0, "auto", 1)


def test_from_toml(file: Path) -> None:
    e = read(file)
    assert e == Experiment(
        dataset="vowel", rounds=7, rule={"name": "aaggff-s", "cdf": "gumbel"}, client={"name": "sgd", "lr": 0.2}
    )


def test_a_path_may_be_text(file: Path) -> None:
    assert read(str(file)) == read(file)


@pytest.mark.parametrize(
    ("change", "part", "expected"),
    [
        ("rule=fedavg", "rule", {"name": "fedavg"}),
        ("rule.cdf=frechet", "rule", {"name": "aaggff-s", "cdf": "frechet", "variant": "paper", "beta": None}),
        ("rule.beta=1", "rule", {"name": "aaggff-s", "cdf": "gumbel", "variant": "paper", "beta": 1.0}),
        (
            'rule={name="aaggff-s", beta=2}',
            "rule",
            {"name": "aaggff-s", "cdf": "normal", "variant": "paper", "beta": 2.0},
        ),
        ("rounds=9", "rounds", 9),
        (" rounds = 9 ", "rounds", 9),
        ("cohort=0.5", "cohort", 0.5),
        ("cohort=3", "cohort", 3),
        ('cohort="all"', "cohort", "all"),
        ("cohort=all", "cohort", "all"),
        ("seed=4", "seed", 4),
        ("engine=loop", "engine", "loop"),
        ("dataset.test=0.5", "dataset", {"name": "vowel", "test": 0.5, "seed": 0}),
        ("model=mlp", "model", {"name": "mlp", "hidden": (200, 200)}),
        ('model={name="mlp", hidden=[3]}', "model", {"name": "mlp", "hidden": (3,)}),
    ],
)
def test_one_override(file: Path, change: str, part: str, expected: object) -> None:
    assert getattr(read(file, [change]), part) == expected


def test_overrides_keep_what_they_do_not_name(file: Path) -> None:
    client = read(file, ["client.batch=5"]).client
    assert (client["batch"], client["lr"]) == (5, 0.2)


def test_a_dotted_override_on_a_part_that_the_file_leaves_out(file: Path) -> None:
    server = read(file, ["server.momentum=0.9"]).server
    assert (server["name"], server["momentum"], server["lr"]) == ("sgd", 0.9, 1.0)


def test_overrides_apply_in_order(file: Path) -> None:
    assert read(file, ["rule=fedavg", "rule=aaggff-s", "rule.cdf=logistic"]).rule["cdf"] == "logistic"
    assert read(file, ["rounds=1", "rounds=2"]).rounds == 2
    assert read(file, ["model=mlp", "model.hidden=[4, 2]"]).model["hidden"] == (4, 2)


def test_changing_the_rule_forgets_the_old_rules_parameters(file: Path) -> None:
    assert read(file, ["rule=aaggff-s"]).rule["cdf"] == "normal"


def test_changing_the_client_method_keeps_what_all_of_them_have(file: Path) -> None:
    client = read(file, ["client.momentum=0.5", "client=ditto", "client.lam=3"]).client
    assert (client["name"], client["lr"], client["momentum"], client["lam"]) == ("ditto", 0.2, 0.5, 3.0)
    assert "lam" not in read(file, ["client=ditto", "client.lam=3", "client=sgd"]).client
    with pytest.raises(ConfigError, match="no client is called 'dito': did you mean 'ditto'"):
        read(file, ["client=dito"])


def test_the_name_itself_can_be_overridden(file: Path) -> None:
    assert read(file, ["model.name=mlp"]).model["name"] == "mlp"


def test_override_leaves_its_input() -> None:
    values = {"rule": {"name": "aaggff-s"}, "dataset": "vowel"}
    override(values, ["rule.cdf=gumbel", "dataset=heart"])
    assert values == {"rule": {"name": "aaggff-s"}, "dataset": "vowel"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rounds", "'rounds' is not an override: write key=value, such as rounds=50 or rule.cdf=frechet"),
        ("=5", "'=5' is not an override: write key=value, such as rounds=50 or rule.cdf=frechet"),
        ("rouns=5", "an experiment has no key 'rouns': did you mean 'rounds'?"),
        ("rul.cdf=normal", "'rul.cdf' is not a parameter of a part: did you mean 'rule'?"),
        (
            "rounds.x=1",
            "'rounds.x' is not a parameter of a part: known: algorithm, client, dataset, model, rule, server",
        ),
        ("rule.cfd=normal", "rule 'aaggff-s' has no parameter 'cfd': did you mean 'cdf'?"),
        ("rule=fedagv", "no rule is called 'fedagv': did you mean 'fedavg'?"),
        ("client.lr=fast", "client 'sgd': lr = 'fast': input should be a valid number"),
        ("client.lr=", "client 'sgd': lr = '': input should be a valid number"),
    ],
)
def test_a_wrong_override_is_a_sentence(file: Path, change: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file, [change])
    assert str(caught.value) == message


def test_a_dotted_override_of_a_missing_dataset_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text("rounds = 3\n")
    with pytest.raises(ConfigError, match=r"^dataset = .*give a name"):
        read(path, ["dataset.test=0.5"])


def test_it_is_frozen() -> None:
    e = Experiment(dataset="vowel")
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        e.rounds = 5  # type: ignore[misc]


def test_change_gives_another_and_leaves_the_first() -> None:
    e = Experiment(dataset="vowel", rule={"name": "aaggff-s", "cdf": "gumbel"})
    other = e.change(rounds=3)
    assert (other.rounds, other.rule) == (3, e.rule)
    assert e.rounds == 100
    assert other.change(rounds=100) == e


def test_change_of_a_part_and_of_an_unknown_key() -> None:
    e = Experiment(dataset="vowel")
    assert e.change(rule="aaggff-s").rule["cdf"] == "normal"
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        e.change(rouns=3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": "ten"}, "rounds = 'ten': input should be a valid integer"),
        ({"rounds": True}, "rounds = True: input should be a valid integer"),
        ({"rounds": 2.5}, "rounds = 2.5: input should be a valid integer"),
        ({"rounds": 0}, "rounds = 0: input should be greater than or equal to 1"),
        ({"evaluate_every": 0}, "evaluate_every = 0: input should be greater than or equal to 1"),
        ({"seed": -1}, "seed = -1: input should be greater than or equal to 0"),
        ({"engine": "vmapp"}, "engine = 'vmapp': did you mean 'vmap'?"),
        ({"rule": 5}, "rule = 5: give a name, or a table with a name and parameters"),
        ({"rule": {"cdf": "normal"}}, "rule = {'cdf': 'normal'}: give a name, or a table with a name and parameters"),
        ({"dataset": 3}, "dataset = 3: give a name, or a table with a name and parameters"),
        ({"dataset": {"test": 0.1}}, "dataset = {'test': 0.1}: give a name, or a table with a name and parameters"),
        ({"dataset": "vowl"}, "no dataset is called 'vowl': did you mean 'vowel'?"),
        ({"rouns": 5}, "an experiment has no key 'rouns': did you mean 'rounds'?"),
        (
            {"learning_rate": 5},
            "an experiment has no key 'learning_rate': known: algorithm, client, cohort, dataset, "
            "engine, evaluate_every, model, rounds, rule, seed, server",
        ),
    ],
)
def test_wrong_values_are_a_sentence(values: dict[str, Any], message: str) -> None:
    assert refused(**values) == message


@pytest.mark.parametrize("cohort", [0, -3, 0.0, 1.5, -0.5, float("nan"), float("inf")])
def test_impossible_cohorts(cohort: float) -> None:
    assert refused(cohort=cohort) == (
        f"cohort = {cohort!r}: give a number of clients, a share above 0 and at most 1, or 'all'"
    )


@pytest.mark.parametrize("cohort", ["half", True, "3", [3], None])
def test_cohorts_of_another_type_are_told_all_that_would_do(cohort: object) -> None:
    message = refused(cohort=cohort)
    assert message.startswith(f"cohort = {cohort!r}: ")
    assert "number" in message and "'all'" in message


@pytest.mark.parametrize("cohort", ["all", 1, 15, 0.1, 1.0])
def test_possible_cohorts(cohort: object) -> None:
    assert Experiment(dataset="vowel", cohort=cohort).cohort == cohort


def test_a_dataset_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"^dataset is missing$"):
        Experiment()


@pytest.mark.parametrize("lr", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(lr: float) -> None:
    """TOML knows nan and inf; a learning rate of nan would train nothing, for hours."""
    with pytest.raises(ConfigError, match="lr"):
        prepare(Experiment(dataset="vowel", client={"name": "sgd", "lr": lr}))


@pytest.mark.parametrize("seed", [2**32, 2**63, 2**64 - 1])
def test_large_seeds_work(seed: int) -> None:
    job = prepare(Experiment(dataset="vowel", seed=seed, cohort=2, model={"name": "mlp", "hidden": [2]}))
    assert len(job.cohort_of(1)) == 2


def test_a_seed_too_large_for_any_generator_is_a_sentence() -> None:
    with pytest.raises(CommonwealError, match="seed"):
        prepare(Experiment(dataset="vowel", seed=2**64))


def test_the_dataset_takes_the_experiments_seed() -> None:
    assert Experiment(dataset="vowel", seed=7).dataset == {"name": "vowel", "test": 0.2, "seed": 7}
    assert Experiment(dataset={"name": "vowel", "test": 0.5}, seed=7).dataset["seed"] == 7
    assert Experiment(dataset="vowel").dataset["seed"] == 0


def test_unless_it_has_its_own() -> None:
    e = Experiment(dataset={"name": "vowel", "seed": 3}, seed=7)
    assert (e.dataset["seed"], e.seed) == (3, 7)


def test_an_overridden_seed_reaches_the_dataset(file: Path) -> None:
    assert read(file, ["seed=5"]).dataset["seed"] == 5
    assert read(file, ["seed=5", "dataset.seed=2"]).dataset["seed"] == 2


def test_a_changed_seed_reaches_the_dataset() -> None:
    assert Experiment(dataset="vowel").change(seed=5) == Experiment(dataset="vowel", seed=5)


def test_a_changed_seed_leaves_a_dataset_that_has_its_own() -> None:
    assert Experiment(dataset={"name": "vowel", "seed": 3}).change(seed=5).dataset["seed"] == 3


def test_a_wrong_seed_is_blamed_on_the_seed() -> None:
    for seed in ("x", 1.0, True):
        assert f"seed = {seed!r}: " in refused(seed=seed)


def test_the_seed_moves_the_split_and_the_start() -> None:
    a, b, again = (
        prepare(Experiment(dataset="vowel", model={"name": "mlp", "hidden": [4]}, seed=s)) for s in (0, 1, 0)
    )
    assert a.task.initial.equal(again.task.initial)
    assert a.federation.test.x.equal(again.federation.test.x)
    assert not a.task.initial.equal(b.task.initial)
    assert not a.federation.test.x.equal(b.federation.test.x)


experiments = st.fixed_dictionaries(
    {
        "dataset": st.one_of(
            st.sampled_from(["vowel", "heart"]),
            st.fixed_dictionaries({"name": st.just("vowel"), "test": st.floats(0, 0.9), "seed": st.integers(0, 2**63)}),
            st.fixed_dictionaries({"name": st.just("heart"), "dir": st.text(st.characters(codec="utf-8"))}),
        ),
        "rule": st.one_of(
            st.sampled_from(["fedavg", "aaggff-s"]),
            st.fixed_dictionaries(
                {
                    "name": st.just("aaggff-s"),
                    "cdf": st.sampled_from(["weibull", "normal"]),
                    "beta": st.none() | st.floats(1e-300, 1e300),
                }
            ),
        ),
        "client": st.fixed_dictionaries(
            {
                "name": st.just("sgd"),
                "lr": st.floats(1e-300, 1e300),
                "steps": st.none() | st.integers(1, 2**62),
                "clip": st.none() | st.floats(1e-300, 1e300),
            }
        ),
        "model": st.fixed_dictionaries({"name": st.just("mlp"), "hidden": st.lists(st.integers(1, 9))}),
        "rounds": st.integers(1, 10**9),
        "cohort": st.just("all") | st.integers(1, 10**9) | st.floats(0, 1, exclude_min=True),
        "seed": st.integers(0, 2**63),
        "evaluate_every": st.integers(1, 100),
    }
)
DELETE = {"dataset": {"name": "heart", "dir": 'a\x7fb"\\\n\t\u2028'}}


@settings(derandomize=True, deadline=None, max_examples=80)
@example(DELETE)
@given(experiments)
def test_toml_reads_back_to_an_equal_experiment(values: dict[str, Any]) -> None:
    e = Experiment(**values)
    assert Experiment(**tomllib.loads(e.toml())) == e
    assert Experiment(**tomllib.loads(e.toml())).toml() == e.toml()


def test_toml_holds_every_default_and_says_what_is_not_set() -> None:
    text = Experiment(dataset="vowel", rule="aaggff-s").toml()
    values = tomllib.loads(text)
    assert set(values) == set(Experiment.model_fields)
    assert values["server"] == {"name": "sgd", "lr": 1.0, "momentum": 0.0, "growth": 1.0, "growth_every": 1}
    assert "# beta is not set" in text
    assert text.endswith("\n")


def test_toml_through_a_file(tmp_path: Path, file: Path) -> None:
    e = read(file, ["cohort=0.3", "server.momentum=0.9"])
    (tmp_path / "again.toml").write_text(e.toml(), encoding="utf-8")
    assert read(tmp_path / "again.toml") == e


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read '.*none\.toml': No such file or directory$"):
        read(tmp_path / "none.toml")


def test_a_folder_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read '.*': Is a directory$"):
        read(tmp_path)


@pytest.mark.parametrize(
    "data", [b"rounds = ", b"[rule\n", b"rounds = 1\nrounds = 2\n", b"\xff\xfe", b"a = '\xe9'", b"\0"]
)
def test_a_file_that_is_not_toml(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"^'.*bad\.toml' is not TOML: "):
        read(path)


def test_an_empty_file_lacks_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").touch()
    with pytest.raises(ConfigError, match=r"^dataset is missing$"):
        read(tmp_path / "empty.toml")


def test_a_date_is_no_parameter(file: Path) -> None:
    with pytest.raises(ConfigError, match="client 'sgd'"):
        read(file, ["client.lr=2020-01-01"])
