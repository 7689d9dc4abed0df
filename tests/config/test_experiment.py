"""One frozen value that determines a run: read, changed, completed, written and read back."""

import pickle
import tomllib
from pathlib import Path
from typing import Any

import pydantic
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from commonweal.base.errors import CommonwealError, ConfigError
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, change, read
from commonweal.jobs.job import build_dataset, job_from_experiment
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.samplers import Poisson, Uniform
from commonweal.training.client import Client

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

SERVER = {
    "name": "sgd",
    "lr": 1.0,
    "momentum": 0.0,
    "growth": 1.0,
    "growth_every": 1,
    "schedule": None,
}
VOWEL = {"name": "vowel", "test": 0.2, "seed": 0, "clients": None}
AAGGFF = {
    "name": "aaggff-s",
    "cdf": "normal",
    "variant": "paper",
    "beta": None,
    "alpha": None,
    "low": 0.0,
    "high": None,
    "scale": 1.0,
}


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


def test_the_error_of_a_wrong_loss_names_those_that_exist_and_the_way_to_an_own_one() -> None:
    own = "a loss of your own is written ./file.py:function"
    assert refused(loss="hubr") == f"loss = 'hubr': did you mean 'huber'?; {own}"
    assert refused(loss=3).endswith(own) and "'poisson'" in refused(loss=3)


def test_defaults_are_complete() -> None:
    e = Experiment(dataset="vowel")
    assert e.rule == {"name": "fedavg"}
    assert e.server == SERVER
    assert e.client["batch"] == 20
    assert e.sampler == {"name": "uniform"}
    unset = e.model_dump(include={"partition", "label_noise", "channels"})
    assert unset == {"partition": None, "label_noise": None, "channels": []}
    assert (e.rounds, e.cohort, e.seed, e.evaluate_every) == (100, "all", 0, 1)
    assert (e.engine, e.vectorize, e.score, e.scores) == ("simulator", "auto", None, ())


def test_from_toml(file: Path) -> None:
    rule = {"name": "aaggff-s", "cdf": "gumbel"}
    client = {"name": "sgd", "lr": 0.2}
    assert read(file) == Experiment(dataset="vowel", rounds=7, rule=rule, client=client)


def test_a_path_may_be_text(file: Path) -> None:
    assert read(str(file)) == read(file)


@pytest.mark.parametrize(
    ("text", "part", "expected"),
    [
        ("rule=fedavg", "rule", {"name": "fedavg"}),
        ("rule.cdf=frechet", "rule", AAGGFF | {"cdf": "frechet"}),
        ("rule.beta=1", "rule", AAGGFF | {"cdf": "gumbel", "beta": 1.0}),
        ('rule={name="aaggff-s", beta=2}', "rule", AAGGFF | {"beta": 2.0}),
        ("rule=aaggff-s(cdf=frechet, beta=0.5)", "rule", AAGGFF | {"cdf": "frechet", "beta": 0.5}),
        ("rounds=9", "rounds", 9),
        (" rounds = 9 ", "rounds", 9),
        ("cohort=0.5", "cohort", 0.5),
        ("cohort=3", "cohort", 3),
        ('cohort="all"', "cohort", "all"),
        ("cohort=all", "cohort", "all"),
        ("seed=4", "seed", 4),
        ("vectorize=loop", "vectorize", "loop"),
        ("engine=simulator", "engine", "simulator"),
        ("score=top-5", "scores", ("top-5",)),
        ('score=["accuracy", "top-5"]', "scores", ("accuracy", "top-5")),
        ("sampler=poisson", "sampler", {"name": "poisson"}),
        ("dataset.test=0.5", "dataset", VOWEL | {"test": 0.5}),
        ("model=mlp", "model", {"name": "mlp", "hidden": (200, 200)}),
        ('model={name="mlp", hidden=[3]}', "model", {"name": "mlp", "hidden": (3,)}),
    ],
)
def test_one_change(file: Path, text: str, part: str, expected: object) -> None:
    assert getattr(read(file, [text]), part) == expected


def test_changes_keep_what_they_do_not_name(file: Path) -> None:
    client = read(file, ["client.batch=5"]).client
    assert (client["batch"], client["lr"]) == (5, 0.2)


def test_a_dotted_change_of_a_part_that_the_file_leaves_out(file: Path) -> None:
    server = read(file, ["server.momentum=0.9"]).server
    assert (server["name"], server["momentum"], server["lr"]) == ("sgd", 0.9, 1.0)


def test_changes_apply_in_order(file: Path) -> None:
    texts = ["rule=fedavg", "rule=aaggff-s", "rule.cdf=logistic"]
    assert read(file, texts).rule["cdf"] == "logistic"
    assert read(file, ["rounds=1", "rounds=2"]).rounds == 2
    assert read(file, ["model=mlp", "model.hidden=[4, 2]"]).model["hidden"] == (4, 2)


def test_changing_the_rule_forgets_the_old_rules_parameters(file: Path) -> None:
    assert read(file, ["rule=aaggff-s"]).rule["cdf"] == "normal"


def test_changing_the_client_method_keeps_what_all_of_them_have(file: Path) -> None:
    client = read(file, ["client.momentum=0.5", "client=ditto", "client.lam=3"]).client
    values = [client[key] for key in ("name", "lr", "momentum", "lam")]
    assert values == ["ditto", 0.2, 0.5, 3.0]
    assert "lam" not in read(file, ["client=ditto", "client.lam=3", "client=sgd"]).client
    with pytest.raises(ConfigError, match="no client is called 'dito': did you mean 'ditto'"):
        read(file, ["client=dito"])


def test_the_name_itself_can_be_changed(file: Path) -> None:
    assert read(file, ["model.name=mlp"]).model["name"] == "mlp"


def test_change_leaves_its_input() -> None:
    values = {"rule": {"name": "aaggff-s"}, "dataset": "vowel"}
    change(values, ["rule.cdf=gumbel", "dataset=heart"])
    assert values == {"rule": {"name": "aaggff-s"}, "dataset": "vowel"}


NOT_A_CHANGE = "is not a change: write key=value, such as rounds=50 or rule.cdf=frechet"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds", f"'rounds' {NOT_A_CHANGE}"),
        ("=5", f"'=5' {NOT_A_CHANGE}"),
        ("rouns=5", "an experiment has no key 'rouns': did you mean 'rounds'?"),
        ("rul.cdf=normal", "'rul.cdf' is not a parameter of a part: did you mean 'rule'?"),
        (
            "rounds.x=1",
            "'rounds.x' is not a parameter of a part: known: algorithm, channels, client, dataset, "
            "label_noise, model, partition, rule, sampler, server",
        ),
        ("rule.cfd=normal", "rule 'aaggff-s' has no parameter 'cfd': did you mean 'cdf'?"),
        ("rule=fedagv", "no rule is called 'fedagv': did you mean 'fedavg'?"),
        ("rule=fedavg(", "'fedavg(': close the bracket, as in aaggff-s(cdf=frechet)"),
        ("client.lr=fast", "client 'sgd': lr = 'fast': input should be a valid number"),
        ("client.lr=", "client 'sgd': lr = '': input should be a valid number"),
    ],
)
def test_a_wrong_change_is_an_error(file: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file, [text])
    assert str(caught.value) == message


def test_a_dotted_change_of_a_missing_dataset_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text("rounds = 3\n")
    with pytest.raises(ConfigError, match=r"^dataset = .*give a name"):
        read(path, ["dataset.test=0.5"])


def test_it_is_frozen() -> None:
    e = Experiment(dataset="vowel")
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        setattr(e, "rounds", 5)  # noqa: B010


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


NAMED = "give a name, or a table with a name and parameters"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": "ten"}, "rounds = 'ten': input should be a valid integer"),
        ({"rounds": True}, "rounds = True: input should be a valid integer"),
        ({"rounds": 2.5}, "rounds = 2.5: input should be a valid integer"),
        ({"rounds": 0}, "rounds = 0: input should be greater than or equal to 1"),
        ({"evaluate_every": 0}, "evaluate_every = 0: input should be greater than or equal to 1"),
        ({"seed": -1}, "seed = -1: input should be greater than or equal to 0"),
        ({"vectorize": "vmapp"}, "vectorize = 'vmapp': did you mean 'vmap'?"),
        ({"engine": "simulater"}, "engine = 'simulater': did you mean 'simulator'?"),
        ({"score": 5}, "score = 5: give the name of a score, or a list of names"),
        (
            {"score": ["accuracy", 5]},
            "score = ['accuracy', 5]: give the name of a score, or a list of names",
        ),
        ({"rule": 5}, f"rule = 5: {NAMED}"),
        ({"rule": {"cdf": "normal"}}, f"rule = {{'cdf': 'normal'}}: {NAMED}"),
        ({"dataset": 3}, f"dataset = 3: {NAMED}"),
        ({"dataset": {"test": 0.1}}, f"dataset = {{'test': 0.1}}: {NAMED}"),
        ({"dataset": "vowl"}, "no dataset is called 'vowl': did you mean 'vowel'?"),
        ({"sampler": "poison"}, "no sampler is called 'poison': did you mean 'poisson'?"),
        ({"rouns": 5}, "an experiment has no key 'rouns': did you mean 'rounds'?"),
        (
            {"learning_rate": 5},
            "an experiment has no key 'learning_rate': known: "
            + ", ".join(sorted(Experiment.model_fields)),
        ),
    ],
)
def test_wrong_values_are_errors(values: dict[str, Any], message: str) -> None:
    assert refused(**values) == message


@pytest.mark.parametrize("cohort", [0, -3, 0.0, 1.5, -0.5, float("nan"), float("inf")])
def test_impossible_cohorts(cohort: float) -> None:
    possible = "give a number of clients, a share above 0 and at most 1, or 'all'"
    assert refused(cohort=cohort) == f"cohort = {cohort!r}: {possible}"


@pytest.mark.parametrize("cohort", ["half", True, "3", [3], None])
def test_cohorts_of_another_type_are_refused_with_all_that_would_do(cohort: object) -> None:
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
        job_from_experiment(Experiment(dataset="vowel", client={"name": "sgd", "lr": lr}))


@pytest.mark.parametrize("seed", [2**32, 2**63, 2**64 - 1])
def test_large_seeds_work(seed: int) -> None:
    model = {"name": "mlp", "hidden": [2]}
    job = job_from_experiment(Experiment(dataset="vowel", seed=seed, cohort=2, model=model))
    assert len(job.sample(1)()) == 2


def test_a_seed_too_large_for_any_generator_is_an_error() -> None:
    with pytest.raises(CommonwealError, match="seed"):
        job_from_experiment(Experiment(dataset="vowel", seed=2**64))


def test_the_dataset_takes_the_experiments_seed() -> None:
    assert Experiment(dataset="vowel", seed=7).dataset == VOWEL | {"seed": 7}
    assert Experiment(dataset={"name": "vowel", "test": 0.5}, seed=7).dataset["seed"] == 7
    assert Experiment(dataset="vowel").dataset["seed"] == 0


def test_unless_it_has_its_own() -> None:
    e = Experiment(dataset={"name": "vowel", "seed": 3}, seed=7)
    assert (e.dataset["seed"], e.seed) == (3, 7)


def test_a_changed_seed_of_a_file_reaches_the_dataset(file: Path) -> None:
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
    def built(seed: int) -> tuple[Tensor, Tensor]:
        model = {"name": "mlp", "hidden": [4]}
        job = job_from_experiment(Experiment(dataset="vowel", model=model, seed=seed))
        assert job.local is not None
        return job.task.initial, job.local.federation.test.x

    start, rows = built(0)
    assert torch.equal(built(0)[0], start) and torch.equal(built(0)[1], rows)
    assert not torch.equal(built(1)[0], start) and not torch.equal(built(1)[1], rows)


AAGGFFS = st.fixed_dictionaries(
    {
        "name": st.just("aaggff-s"),
        "cdf": st.sampled_from(["weibull", "normal"]),
        "beta": st.none() | st.floats(1e-300, 1e30),
    }
)
SPLIT_VOWEL = st.fixed_dictionaries(
    {"name": st.just("vowel"), "test": st.floats(0, 0.9), "seed": st.integers(0, 2**63)}
)
HEART = st.fixed_dictionaries(
    {"name": st.just("heart"), "dir": st.text(st.characters(codec="utf-8"))}
)
CLIP = st.fixed_dictionaries({"name": st.just("clip"), "norm": st.floats(1e-300, 1e30)})
SGD = st.fixed_dictionaries(
    {
        "name": st.just("sgd"),
        "lr": st.floats(1e-300, 1e30),
        "steps": st.none() | st.integers(1, 2**62),
        "clip": st.none() | st.floats(1e-300, 1e30),
    }
)
MLP = st.fixed_dictionaries({"name": st.just("mlp"), "hidden": st.lists(st.integers(1, 9))})
experiments = st.fixed_dictionaries(
    {
        "dataset": st.one_of(st.sampled_from(["vowel", "heart"]), SPLIT_VOWEL, HEART),
        "rule": st.one_of(st.sampled_from(["fedavg", "aaggff-s"]), AAGGFFS),
        "client": SGD,
        "model": MLP,
        "sampler": st.sampled_from(["uniform", "poisson", "size"]),
        "channels": st.lists(st.just("clip") | CLIP, max_size=3),
        "score": st.none() | st.just("top-5") | st.just(["accuracy", "auroc"]),
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


def test_toml_holds_every_default_that_is_set() -> None:
    text = Experiment(dataset="vowel", rule="aaggff-s").toml()
    values = tomllib.loads(text)
    unset = {"name", "partition", "label_noise", "score", "patience", "loss", "target"}
    unset |= {"threshold", "class_weight"}
    assert set(values) == set(Experiment.model_fields) - unset
    assert values["server"] == {key: value for key, value in SERVER.items() if value is not None}
    assert values["channels"] == []
    assert "beta" not in values["rule"]
    assert text.endswith("\n")


def test_toml_through_a_file(tmp_path: Path, file: Path) -> None:
    e = read(file, ["cohort=0.3", "server.momentum=0.9"])
    (tmp_path / "again.toml").write_text(e.toml(), encoding="utf-8")
    assert read(tmp_path / "again.toml") == e


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    sentence = r"^cannot read '.*none\.toml': No such file or directory$"
    with pytest.raises(ConfigError, match=sentence):
        read(tmp_path / "none.toml")


def test_a_folder_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read '.*': it is a folder$"):
        read(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"rounds = ", b"[rule\n", b"rounds = 1\nrounds = 2\n", b"\xff\xfe", b"a = '\xe9'", b"\0"],
)
def test_a_file_that_is_not_toml(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"^'.*bad\.toml' is not valid TOML: "):
        read(path)


def test_an_empty_file_lacks_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").touch()
    with pytest.raises(ConfigError, match=r"^dataset is missing$"):
        read(tmp_path / "empty.toml")


def test_a_date_is_no_parameter(file: Path) -> None:
    with pytest.raises(ConfigError, match="client 'sgd'"):
        read(file, ["client.lr=2020-01-01"])


# Parts within the dataset, and further scores

DIRICHLET = {"name": "dirichlet", "clients": 5, "alpha": 0.5}


def test_partition_and_noise_are_parts_of_the_experiment() -> None:
    e = Experiment(dataset="digits", partition=DIRICHLET, label_noise="symmetric(rate=0.2)")
    assert e.partition is not None and e.partition["alpha"] == 0.5
    assert e.label_noise is not None and e.label_noise["rate"] == 0.2
    assert "partition" not in e.dataset and "label_noise" not in e.dataset
    assert build_dataset(e).clients == 5


@pytest.mark.parametrize("dataset", [{"name": "digits"}, {"name": "digits", "seed": 3}])
def test_parts_inside_the_dataset_are_lifted_to_the_experiment(dataset: dict[str, Any]) -> None:
    inside = Experiment(dataset=dataset | {"partition": DIRICHLET, "label_noise": "symmetric"})
    assert inside == Experiment(dataset=dataset, partition=DIRICHLET, label_noise="symmetric")
    assert Experiment(**tomllib.loads(inside.toml())) == inside


def test_lifted_parts_can_be_named_and_changed_by_either_key() -> None:
    base = {"dataset": {"name": "digits", "partition": DIRICHLET}}
    expected = Experiment(dataset="digits", partition=DIRICHLET | {"alpha": 2.0})
    for key in ("dataset.partition.alpha", "partition.alpha"):
        assert Experiment(**change(base, [f"{key}=2.0"])) == expected
    for key in ("dataset.partition", "partition"):
        changed = Experiment(**change(base, [f"{key}=iid"]))
        assert changed.partition is not None and changed.partition.name == "iid"


def test_a_dataset_in_brackets_may_hold_its_partition() -> None:
    e = Experiment(dataset="digits(partition=iid)")
    assert e.partition is not None and (e.dataset.name, e.partition.name) == ("digits", "iid")


def test_a_parameter_that_has_the_old_name_of_a_key_is_left_alone() -> None:
    changed = change({"dataset": "digits", "algorithm": "fedevg"}, ["algorithm.noise=0.5"])
    assert changed["algorithm"] == {"name": "fedevg", "noise": 0.5}


def test_parts_are_completed_once() -> None:
    e = Experiment(dataset="vowel", rule="guarded(rule=aaggff-s)")
    assert catalog.complete("rules", e.rule) is e.rule
    assert catalog.complete("rules", e.rule["rule"]) is e.rule["rule"]
    assert e.change(rounds=3).rule is e.rule
    assert pickle.loads(pickle.dumps(e)) == e


def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text(f"dataset = {'[' * 5000}")
    with pytest.raises(ConfigError, match=r"deep.toml' is not valid TOML"):
        read(file)


def test_a_part_that_is_given_twice_is_an_error() -> None:
    with pytest.raises(ConfigError, match="partition is given twice"):
        Experiment(dataset={"name": "digits", "partition": "iid"}, partition=DIRICHLET)


def test_natural_clients_are_pooled_and_partitioned_again_by_a_partition() -> None:
    natural = build_dataset(Experiment(dataset="vowel"))
    divided = build_dataset(Experiment(dataset="vowel", partition=DIRICHLET))
    assert (natural.clients, divided.clients) == (15, 5)
    rows = [len(f.train.y) + len(f.test.y) for f in (natural, divided)]
    assert rows[1] <= rows[0] == 990


def test_the_score_of_an_experiment_is_the_tasks() -> None:
    e = Experiment(dataset="vowel", score=["top-5", "accuracy"])
    task = job_from_experiment(e).task
    assert (task.score, task.also, task.scores) == ("top-5", ("accuracy",), ("top-5", "accuracy"))
    assert job_from_experiment(Experiment(dataset="vowel")).task.scores == ("accuracy",)


@pytest.mark.parametrize("score", ["acuracy", ["accuracy", "acuracy"]])
def test_an_unknown_score_suggests_the_nearest(score: object) -> None:
    with pytest.raises(ConfigError, match="no score is called 'acuracy': did you mean 'accuracy'"):
        job_from_experiment(Experiment(dataset="vowel", score=score))


def test_a_score_that_does_not_fit_the_data_is_an_error() -> None:
    with pytest.raises(ConfigError, match="score = 'r2' does not fit data whose loss is"):
        job_from_experiment(Experiment(dataset="vowel", score="r2"))


def test_an_empty_list_of_scores_is_the_datasets_own() -> None:
    assert job_from_experiment(Experiment(dataset="vowel", score=[])).task.score == "accuracy"


# What is built


def test_a_job_has_the_parts_of_its_experiment() -> None:
    e = Experiment(
        dataset="vowel",
        rule="term",
        client={"name": "sgd", "lr": 0.3},
        sampler="poisson",
        rounds=7,
        seed=5,
        vectorize="loop",
    )
    job = job_from_experiment(e)
    assert isinstance(job.algorithm, Averaging)
    assert job.algorithm.client == Client(lr=0.3)
    assert (job.algorithm.rounds, job.algorithm.seed) == (7, 5)
    assert job.sampler == Poisson()
    assert job.engine.facts(job.algorithm).vectorize == "loop"
    assert job.text == e.toml()
    assert job_from_experiment(Experiment(dataset="vowel")).sampler == Uniform()


@pytest.mark.parametrize(
    ("rule", "algorithm", "title"),
    [
        ("fedavg", "averaging", "fedavg"),
        ("aaggff-s", "averaging", "aaggff-s"),
        ("fedavg", "drfa", "drfa"),
        ("afl", "two-phase", "two-phase-afl"),
        ("commonweal.rules.term:TERM", "averaging", "TERM"),
    ],
)
def test_the_title_of_an_experiment(rule: str, algorithm: str, title: str) -> None:
    assert Experiment(dataset="vowel", rule=rule, algorithm=algorithm).title == title


def test_an_algorithm_refuses_parts_that_it_does_not_take() -> None:
    with pytest.raises(ConfigError, match="algorithm 'drfa' does not take a rule"):
        job_from_experiment(Experiment(dataset="vowel", algorithm="drfa", rule="term"))


def test_trees_take_no_parts_of_networks() -> None:
    values = {
        "dataset": "vowel",
        "client": {"name": "ditto", "lr": 0.2},
        "model": "mlp",
        "rounds": 7,
    }
    changed = Experiment(**change(values, ["model.leaves=7", "algorithm=boosting(lr=0.3)"]))
    assert changed.model == {"name": "trees", "leaves": 7, "depth": 6}
    assert changed.client == Experiment(dataset="vowel").client
    assert (changed.algorithm["lr"], changed.rounds) == (0.3, 7)
    assert Experiment(**change(values, ["algorithm=drfa"])).client["name"] == "ditto"
