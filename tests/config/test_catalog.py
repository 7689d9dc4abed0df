"""Names to things: from files and signatures, with the nearest name where one is wrong."""

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import commonweal
from cases import cases
from commonweal.base.errors import CommonwealError, ConfigError
from commonweal.clients.ditto import Ditto
from commonweal.config import catalog
from commonweal.config.catalog import parse_part, split_list
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.jobs.job import job_from_experiment
from commonweal.protocols import DRFA, Averaging, TwoPhase
from commonweal.protocols.channels import Clip
from commonweal.protocols.samplers import Poisson, Trace
from commonweal.protocols.servers.sgd import SGD
from commonweal.rules import AAggFFS, FedAvg, Grouped, Guarded, Rule
from commonweal.task.task import Task
from commonweal.training.client import Client

FOLDER = Path(commonweal.__file__).parent
AAGGFFS = {
    "cdf": "normal",
    "variant": "paper",
    "beta": None,
    "alpha": None,
    "low": 0.0,
    "high": None,
    "scale": 1.0,
}
OUTSIDE = '''
"""Parts of a user's own."""

from dataclasses import dataclass

import torch

from commonweal import Decision, Rule


@dataclass(frozen=True)
class Half(Rule):
    """weights_i = strength / 2"""

    strength: float = 1.0
    interval: int = 3
    floats: tuple[float, ...] = (1.0,)

    def __call__(self, reports, state):
        return Decision(torch.full((len(reports.ids),), self.strength / 2), state)


def needy(size: int, name_of_it: str = "x"):
    return (size, name_of_it)


def untyped(a, b=2):
    return (a, b)


class Plain:
    def __init__(self, a: int = 1):
        self.a = a

    def init(self, clients):
        return {}


constant = 3
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module outside the package."""
    (tmp_path / "outside_parts.py").write_text(OUTSIDE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "outside_parts", raising=False)
    return "outside_parts"


PACKAGES = [kind for kind, facts in catalog.KINDS.items() if (FOLDER / kind).is_dir()]


def modules(kind: str) -> list[str]:
    """The modules in which a kind's entries may be."""
    names = []
    for home in catalog.KINDS[kind].homes:
        path = FOLDER.joinpath(*home.split(".")[1:])
        if path.is_dir():
            names += [f"{home}.{file.stem}" for file in sorted(path.glob("[a-z]*.py"))]
        else:
            names.append(home)
    return names


@cases("kind", catalog.KINDS)
def test_whatever_a_file_registers_is_listed_and_nothing_else(kind: str) -> None:
    """The catalog reads the source; here the modules are imported."""
    others = {
        home for other, facts in catalog.KINDS.items() if other != kind for home in facts.homes
    }
    registered: dict[str, Callable[..., object]] = {}
    for name in modules(kind):
        if name not in others:
            registered |= vars(importlib.import_module(name)).get("ENTRIES", {})
    listed = {name: entry.factory for name, entry in catalog.entries(kind).items()}
    assert listed == registered != {}


@cases("kind", PACKAGES)
def test_a_file_that_registers_one_thing_gives_it_its_name(kind: str) -> None:
    for name in modules(kind):
        registered = vars(importlib.import_module(name)).get("ENTRIES", {})
        stem = name.rpartition(".")[2].replace("_plus", "+").replace("_", "-")
        if len(registered) == 1 and kind != "samplers":
            assert list(registered) == [stem]


@cases("kind", catalog.KINDS)
def test_what_is_registered_is_public_in_its_module(kind: str) -> None:
    for entry in catalog.entries(kind).values():
        assert not entry.attribute.startswith("_")
        assert hasattr(importlib.import_module(entry.module), entry.attribute)


def test_listing_imports_nothing_that_is_listed() -> None:
    code = (
        "import sys; from commonweal.config import catalog\n"
        "names = [name for kind in catalog.KINDS for name in catalog.entries(kind)]\n"
        "print(len(names), 'torch' in sys.modules, 'commonweal.rules.term' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, *imported = done.stdout.split()
    assert int(count) > 80 and imported == ["False", "False"]


def test_known_names_are_there() -> None:
    assert {"fedavg", "aaggff-s"} <= set(catalog.entries("rules"))
    assert "sgd" in catalog.entries("clients")
    assert "sgd" in catalog.entries("servers")
    assert {"averaging", "drfa", "two-phase", "fedevg"} <= set(catalog.entries("algorithms"))
    assert {"dirichlet", "iid"} <= set(catalog.entries("partitions"))
    assert "clip" in catalog.entries("channels")
    samplers = {"only", "uniform", "poisson", "size", "weight", "trace"}
    assert samplers == set(catalog.entries("samplers"))
    assert {"vowel", "heart"} <= set(catalog.entries("datasets"))
    assert {"logistic", "mlp"} <= set(catalog.entries("models"))


def test_private_files_are_not_listed() -> None:
    assert (FOLDER / "datasets" / "pools.py").exists()
    names = {name for kind in catalog.KINDS for name in catalog.entries(kind)}
    assert not {"-files", "files", "locate", "-data", "data"} & names
    assert not [name for name in names if name.startswith(("_", "-"))]


@cases("kind", catalog.KINDS)
def test_entries_are_sorted_and_know_their_name_and_kind(kind: str) -> None:
    found = catalog.entries(kind)
    assert list(found) == sorted(found)
    assert all(entry.name == name and entry.kind == kind for name, entry in found.items())
    assert all(callable(entry.factory) for entry in found.values())


@cases("kind", catalog.KINDS)
def test_every_entry_has_a_description(kind: str) -> None:
    for entry in catalog.entries(kind).values():
        assert entry.about.strip(), entry.name
        assert entry.details.strip(), entry.name


@cases("kind", catalog.KINDS)
def test_about_is_the_docstring_of_the_file_or_of_the_thing(kind: str) -> None:
    """Of the file where it registers one thing, else of each thing."""
    for entry in catalog.entries(kind).values():
        module = importlib.import_module(entry.module)
        own = inspect.cleandoc(entry.factory.__doc__ or "")
        alone = len(vars(module)["ENTRIES"]) == 1
        assert entry.about == (inspect.cleandoc(module.__doc__ or "") if alone else own)
        assert entry.details == own


def test_the_paper_of_an_entry() -> None:
    paper = catalog.find_entry("rules", "afl").paper
    assert paper.startswith("Mohri, Sivek, Suresh") and paper.endswith("2019")
    assert catalog.find_entry("samplers", "uniform").paper == ""


def test_parameters_and_defaults_come_from_the_signature() -> None:
    parameters = catalog.find_entry("rules", "aaggff-s").parameters
    defaults = {n: p.default for n, p in parameters.items()}
    assert defaults == AAGGFFS
    assert list(catalog.find_entry("clients", "sgd").parameters)[:4] == [
        "epochs",
        "steps",
        "batch",
        "lr",
    ]
    assert catalog.find_entry("rules", "fedavg").parameters == {}


def test_what_the_experiment_supplies_is_no_parameter() -> None:
    assert list(catalog.find_entry("models", "mlp").parameters) == ["hidden"]
    assert catalog.find_entry("models", "logistic").parameters == {}
    assert list(catalog.find_entry("algorithms", "averaging").parameters) == ["loss"]
    assert list(catalog.find_entry("algorithms", "drfa").parameters) == ["ascent", "steps"]


def test_complete_adds_the_defaults() -> None:
    assert catalog.complete("rules", "aaggff-s") == {"name": "aaggff-s"} | AAGGFFS
    assert catalog.complete("servers", {"name": "sgd", "lr": 0.5})["lr"] == 0.5
    assert catalog.complete("servers", {"name": "sgd", "lr": 0.5})["momentum"] == 0.0


def test_complete_is_idempotent_and_leaves_its_input() -> None:
    part = {"name": "mlp", "hidden": [8]}
    done = catalog.complete("models", part)
    assert part == {"name": "mlp", "hidden": [8]}
    assert catalog.complete("models", done) == done == {"name": "mlp", "hidden": (8,)}


def test_whole_numbers_may_stand_for_floats() -> None:
    lr = catalog.complete("clients", {"name": "sgd", "lr": 1})["lr"]
    assert (lr, type(lr)) == (1.0, float)


@cases(
    ("kind", "name", "message"),
    [
        ("rules", "fedagv", "no rule is called 'fedagv': did you mean 'fedavg'?"),
        ("rules", "AAGGFF-S", "no rule is called 'AAGGFF-S': did you mean 'aaggff-s'?"),
        ("clients", "sdg", "no client is called 'sdg': did you mean 'sgd'?"),
        ("datasets", "vowels", "no dataset is called 'vowels': did you mean 'vowel'?"),
        ("models", "mpl", "no model is called 'mpl': did you mean 'mlp'?"),
        ("servers", "sgdd", "no server is called 'sgdd': did you mean 'sgd'?"),
        ("algorithms", "avraging", "no algorithm is called 'avraging': did you mean 'averaging'?"),
        ("samplers", "unifrom", "no sampler is called 'unifrom': did you mean 'uniform'?"),
        ("channels", "clp", "no channel is called 'clp': did you mean 'clip'?"),
        ("partitions", "idd", "no partition is called 'idd': did you mean 'iid'?"),
    ],
)
def test_unknown_names_suggest_the_nearest(kind: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.find_entry(kind, name)
    assert str(caught.value) == message


def test_a_name_like_no_other_lists_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"no server is called 'zzzz': known: .*sgd"):
        catalog.find_entry("servers", "zzzz")


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"there are no 'rulez': did you mean 'rules'\?"):
        catalog.entries("rulez")


@cases(
    ("kind", "part", "message"),
    [
        (
            "rules",
            {"name": "aaggff-s", "cfd": "normal"},
            "rule 'aaggff-s' has no parameter 'cfd': did you mean 'cdf'?",
        ),
        (
            "clients",
            {"name": "sgd", "momentun": 0.9},
            "client 'sgd' has no parameter 'momentun': did you mean 'momentum'?",
        ),
        (
            "rules",
            {"name": "fedavg", "q": 1},
            "rule 'fedavg' has no parameter 'q': it has no parameters",
        ),
        (
            "models",
            {"name": "mlp", "shape": [3]},
            "model 'mlp' has no parameter 'shape': known: hidden",
        ),
    ],
)
def test_unknown_parameters_suggest_the_nearest(
    kind: str, part: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.complete(kind, part)
    assert str(caught.value) == message


@cases(
    ("kind", "part", "start"),
    [
        ("clients", {"name": "sgd", "lr": "0.1"}, "client 'sgd': lr = '0.1': "),
        ("clients", {"name": "sgd", "lr": True}, "client 'sgd': lr = True: "),
        ("clients", {"name": "sgd", "lr": None}, "client 'sgd': lr = None: "),
        ("clients", {"name": "sgd", "batch": 2.5}, "client 'sgd': batch = 2.5: "),
        ("clients", {"name": "sgd", "steps": "3"}, "client 'sgd': steps = '3': "),
        ("rules", {"name": "aaggff-s", "cdf": "norml"}, "rule 'aaggff-s': cdf = 'norml': "),
        ("rules", {"name": "aaggff-s", "beta": [1]}, "rule 'aaggff-s': beta = [1]: "),
        ("models", {"name": "mlp", "hidden": 4}, "model 'mlp': hidden = 4: "),
        ("models", {"name": "mlp", "hidden": [4, "a"]}, "model 'mlp': hidden.1 = 'a': "),
        ("datasets", {"name": "heart", "dir": 3}, "dataset 'heart': dir = 3: "),
    ],
)
def test_wrong_types_are_errors(kind: str, part: dict[str, object], start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.complete(kind, part)
    message = str(caught.value)
    assert message.startswith(start)
    assert "\n" not in message
    assert message.removeprefix(start).startswith(("input should be ", "did you mean "))


def test_a_value_that_no_file_could_hold_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"rule 'aaggff-s': beta = tensor"):
        catalog.complete("rules", {"name": "aaggff-s", "beta": torch.tensor(1.0)})


@cases("part", [5, None, 2.5, True, ["fedavg"], {}, {"cdf": "normal"}, {"name": 3}, {"name": None}])
def test_a_part_needs_a_name(part: object) -> None:
    sentence = r"^rule = .*: give a name, or a table with a name and parameters$"
    with pytest.raises(ConfigError, match=sentence):
        catalog.complete("rules", part)


def test_build_gives_the_thing() -> None:
    assert catalog.build("rules", "fedavg") == FedAvg()
    assert catalog.build("rules", {"name": "aaggff-s", "cdf": "frechet"}) == AAggFFS(cdf="frechet")
    assert catalog.build("clients", {"name": "sgd", "lr": 0.5}) == Client(lr=0.5)
    assert catalog.build("servers", {"name": "sgd", "momentum": 0.9}) == SGD(momentum=0.9)


def test_build_gives_a_dataset_and_a_model() -> None:
    federation = catalog.build("datasets", {"name": "vowel", "seed": 3})
    assert isinstance(federation, Federation)
    assert federation.clients == 15
    model = catalog.build("models", {"name": "mlp", "hidden": [7, 5]}, shape=(10,), outputs=11)
    assert isinstance(model, nn.Sequential)
    assert [m.out_features for m in model if isinstance(m, nn.Linear)] == [7, 5, 11]


@cases(("name", "kind"), [("averaging", Averaging), ("two-phase", TwoPhase), ("drfa", DRFA)])
def test_build_gives_an_algorithm_of_given_parts(name: str, kind: type) -> None:
    task = Task(nn.Linear(2, 3))
    parts = {"rule": AAggFFS(), "client": Client(lr=0.3), "server": SGD(), "channels": (Clip(),)}
    built = catalog.build("algorithms", name, task=task, rounds=7, seed=3, **parts)
    assert isinstance(built, Averaging)
    assert type(built) is kind and built.task is task
    assert (built.client, built.server) == (Client(lr=0.3), SGD())
    assert (built.rounds, built.seed) == (7, 3)
    if not isinstance(built, DRFA):
        assert (built.rule, built.channels) == (AAggFFS(), (Clip(),))


def test_build_gives_a_sampler_and_a_channel() -> None:
    assert catalog.build("samplers", "poisson") == Poisson()
    assert catalog.build("samplers", {"name": "trace", "path": "t.csv"}) == Trace("t.csv")
    assert catalog.build("channels", "clip(norm=2)") == Clip(2.0)


# Parts within parts


def test_a_part_within_a_part_is_completed_and_built() -> None:
    done = catalog.complete("rules", {"name": "guarded", "rule": "aaggff-s"})
    assert done["rule"] == {"name": "aaggff-s"} | AAGGFFS
    assert catalog.complete("rules", done) == done
    built = catalog.build("rules", {"name": "grouped", "rule": done, "domains": ["a", "b"]})
    assert isinstance(built, Grouped) and built.domains == ("a", "b")
    assert isinstance(built.rule, Guarded) and built.rule.rule == AAggFFS()


def test_a_wrong_part_within_a_part_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no rule is called 'fedagv': did you mean 'fedavg'"):
        catalog.complete("rules", {"name": "guarded", "rule": "fedagv"})
    with pytest.raises(ConfigError, match="rule 'aaggff-s' has no parameter 'cfd'"):
        catalog.complete("rules", {"name": "guarded", "rule": {"name": "aaggff-s", "cfd": 1}})


def test_a_part_may_be_given_as_the_thing_itself_within_a_part() -> None:
    done = catalog.complete("rules", {"name": "guarded", "rule": AAggFFS(cdf="gumbel")})
    assert done["rule"]["cdf"] == "gumbel"


# Names with parameters in brackets


@cases(
    ("text", "part"),
    [
        ("fedavg", {"name": "fedavg"}),
        (" fedavg ", {"name": "fedavg"}),
        ("fedavg()", {"name": "fedavg"}),
        ("clip(norm=1)", {"name": "clip", "norm": 1}),
        ("a(b=[1, 2], c=x y, d=true)", {"name": "a", "b": [1, 2], "c": "x y", "d": True}),
        ("a(b={c=1, d=2})", {"name": "a", "b": {"c": 1, "d": 2}}),
        ("./my rules.py:MaxMin(k=2)", {"name": "./my rules.py:MaxMin", "k": 2}),
    ],
)
def test_a_part_from_text(text: str, part: dict[str, object]) -> None:
    assert parse_part(text) == part


@cases("text", ["a(b=1", "a(b=1)c", "a(b)", "a(1)"])
def test_a_wrong_text_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"close the bracket|write parameters as key=value"):
        parse_part(text)


def test_a_list_is_split_outside_of_brackets() -> None:
    assert split_list("a, b(c=1, d=[2, 3]),, e") == ["a", "b(c=1, d=[2, 3])", "e"]
    assert split_list("") == []


# Things by their tables


@cases(
    ("kind", "part"),
    [
        ("rules", "fedavg"),
        ("rules", "aaggff-s(cdf=frechet)"),
        ("rules", {"name": "guarded", "rule": {"name": "afl", "lr": 0.2}}),
        ("clients", "sgd(lr=0.3)"),
        ("clients", "ditto(lam=2)"),
        ("servers", "sgd(momentum=0.5)"),
        ("samplers", "poisson"),
        ("channels", "clip(norm=3)"),
        ("partitions", "dirichlet(clients=3)"),
    ],
)
def test_a_thing_describes_itself_by_the_table_that_builds_it(kind: str, part: object) -> None:
    built = catalog.build(kind, part)
    assert catalog.named_part(built) == catalog.complete(kind, part)
    assert catalog.build(kind, catalog.named_part(built)) == built


def test_a_thing_from_outside_is_described_by_its_module_and_class() -> None:
    class Mine(Rule):
        """Not a dataclass."""

    name = (
        "test_catalog:test_a_thing_from_outside_is_described_by_its_module_and_class.<locals>.Mine"
    )
    assert catalog.named_part(Mine()) == {"name": name}
    assert catalog.named_part(Ditto(lam=3.0))["name"] == "ditto"


def test_what_the_thing_itself_refuses_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"server momentum = 1\.0"):
        catalog.build("servers", {"name": "sgd", "momentum": 1.0})
    with pytest.raises(ConfigError, match=r"client lr = -1\.0"):
        catalog.build("clients", {"name": "sgd", "lr": -1.0})


def test_a_callable_outside_the_package_is_named_by_module_and_name(outside: str) -> None:
    rule: Any = catalog.build("rules", {"name": f"{outside}:Half", "strength": 2.0})
    assert (type(rule).__name__, rule.strength, rule.interval) == ("Half", 2.0, 3)
    assert catalog.complete("rules", f"{outside}:Half") == {
        "name": f"{outside}:Half",
        "strength": 1.0,
        "interval": 3,
        "floats": (1.0,),
    }


def test_our_own_can_be_named_so_too() -> None:
    name = "commonweal.rules.aaggff_s:AAggFFS"
    assert catalog.build("rules", {"name": name, "cdf": "gumbel"}) == AAggFFS("gumbel")


def test_a_callable_in_a_file_is_named_by_path_and_name(tmp_path: Path) -> None:
    path = tmp_path / "my rules.py"
    path.write_text(OUTSIDE, encoding="utf-8")
    built: Any = catalog.build("rules", {"name": f"{path}:Half", "strength": 2.0})
    assert (type(built).__name__, built.strength) == ("Half", 2.0)
    assert isinstance(built, Rule)
    assert type(catalog.build("rules", f"{path}:Half")) is type(built)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "cannot be used"),
        ("import nothing_like_it\n", "nothing_like_it"),
        (None, "no file"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        catalog.build("rules", f"{path}:Half")


def test_an_outside_callable_without_types_or_with_a_plain_class(outside: str) -> None:
    untyped: Any = catalog.build("rules", {"name": f"{outside}:untyped", "a": [1]})
    plain: Any = catalog.build("rules", {"name": f"{outside}:Plain", "a": 4})
    assert untyped == ([1], 2) and plain.a == 4


def test_a_missing_parameter_is_an_error(outside: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.complete("rules", f"{outside}:needy")
    assert str(caught.value) == f"rule '{outside}:needy': size is missing"


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("strength", "x"), ("interval", 2.5), ("floats", 3.0), ("interval", "3")],
)
def test_an_error_names_the_parameter_whatever_it_is_called(
    outside: str, parameter: str, value: object
) -> None:
    """`strength`, `interval` and `floats` begin as the types str, int and float do."""
    with pytest.raises(ConfigError, match=rf"rule '{outside}:Half': {parameter} = {value!r}: "):
        catalog.complete("rules", {"name": f"{outside}:Half", parameter: value})


@cases(
    "name",
    [
        "no_such_module:x",
        "commonweal.rules.fedavg:FedAv",
        "commonweal.rules.fedavg:",
        ":x",
        ".x:y",
        "..:y",
        "math:pi",
    ],
)
def test_what_cannot_be_imported_or_called_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.build("rules", name)
    assert name in str(caught.value)


def test_a_callable_that_has_no_signature_is_an_error() -> None:
    with pytest.raises(ConfigError, match="builtins:dict"):
        catalog.build("rules", "builtins:dict")


def test_the_packages_functions_by_name() -> None:
    assert commonweal.rule("aaggff-s", cdf="gumbel") == AAggFFS(cdf="gumbel")
    assert commonweal.client("sgd", batch=5) == Client(batch=5)
    assert commonweal.server("sgd", lr=0.1) == SGD(lr=0.1)
    assert commonweal.dataset("vowel", test=0.5).test.sizes.tolist() == [33] * 15
    assert isinstance(commonweal.model("logistic", shape=(2, 3), outputs=4), nn.Sequential)


def test_a_models_width_follows_shape_and_outputs() -> None:
    model = commonweal.model("logistic", shape=(2, 3), outputs=4)
    assert model(torch.zeros(5, 2, 3)).shape == (5, 4)


def test_a_name_may_be_wrong_in_every_function() -> None:
    for make in (commonweal.rule, commonweal.client, commonweal.server, commonweal.dataset):
        with pytest.raises(CommonwealError, match="'nothing-like-it'"):
            make("nothing-like-it")


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("import sys\nsys.exit(0)\ndef make(): ...\n", r"importing it ends the program"),
        ("def make(): return None\n", r"returns = None: give a torch\.nn\.Module"),
        ("def make(): return 'mlp'\n", r"returns = 'mlp': give a torch\.nn\.Module"),
    ],
)
def test_a_model_of_ones_own_that_makes_no_module(
    tmp_path: Path, model: str, sentence: str
) -> None:
    (tmp_path / "mine.py").write_text(model)
    with pytest.raises(ConfigError, match=sentence):
        job_from_experiment(Experiment(dataset="vowel", model=f"{tmp_path}/mine.py:make"))


def test_a_dataset_of_ones_own_that_gives_no_samples(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def load(): return None\n")
    with pytest.raises(ConfigError, match="returns = None: give a Federation or Pool"):
        job_from_experiment(Experiment(dataset=f"{tmp_path}/mine.py:load"))
