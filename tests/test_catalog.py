"""Names to things: from files and signatures, with the nearest name where one is wrong."""

import importlib
import inspect
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import commonweal
from commonweal import catalog
from commonweal.algorithm import Averaging
from commonweal.errors import CommonwealError, ConfigError
from commonweal.federation import Federation
from commonweal.local import Local
from commonweal.rules.aaggff_s import AAggFFS
from commonweal.rules.fedavg import FedAvg
from commonweal.server import SGD

FOLDER = Path(commonweal.__file__).parent
OUTSIDE = '''
"""Parts of a user's own."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Half:
    """weights_i = strength / 2"""

    strength: float = 1.0
    interval: int = 3
    floats: tuple[float, ...] = (1.0,)

    def init(self, clients):
        return {}

    def __call__(self, reports, state):
        return torch.full((len(reports.ids),), self.strength / 2), state


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


def files(kind: str) -> list[Path]:
    return [f for f in sorted((FOLDER / kind).glob("*.py")) if not f.stem.startswith("_")]


@pytest.mark.parametrize("kind", ["rules", "clients", "datasets", "models"])
def test_whatever_a_file_offers_is_listed_and_nothing_else(kind: str) -> None:
    modules = [importlib.import_module(f"commonweal.{kind}.{f.stem}") for f in files(kind)]
    offered = [getattr(module, name) for module in modules for name in module.__all__]
    assert {entry.factory for entry in catalog.entries(kind).values()} == set(offered)


@pytest.mark.parametrize("kind", ["rules", "clients", "datasets", "models"])
def test_a_file_that_offers_one_thing_gives_it_its_name(kind: str) -> None:
    for file in files(kind):
        module = importlib.import_module(f"commonweal.{kind}.{file.stem}")
        if len(module.__all__) == 1:
            name = file.stem.replace("_plus", "+").replace("_", "-")
            assert catalog.find(kind, name).factory is getattr(module, module.__all__[0])


def test_known_names_are_there() -> None:
    assert {"fedavg", "aaggff-s"} <= set(catalog.entries("rules"))
    assert "sgd" in catalog.entries("clients")
    assert "sgd" in catalog.entries("servers")
    assert "averaging" in catalog.entries("algorithms")
    assert {"vowel", "heart"} <= set(catalog.entries("datasets"))
    assert {"logistic", "mlp"} <= set(catalog.entries("models"))


def test_private_files_are_not_listed() -> None:
    assert (FOLDER / "datasets" / "_files.py").exists()
    names = {name for kind in catalog.KINDS for name in catalog.entries(kind)}
    assert not {"-files", "files", "locate", "-data", "data"} & names
    assert not [name for name in names if name.startswith(("_", "-"))]


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_entries_are_sorted_and_know_their_name_and_kind(kind: str) -> None:
    found = catalog.entries(kind)
    assert list(found) == sorted(found)
    assert all(entry.name == name and entry.kind == kind for name, entry in found.items())
    assert all(callable(entry.factory) for entry in found.values())


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_every_entry_says_what_it_is(kind: str) -> None:
    for entry in catalog.entries(kind).values():
        assert entry.about.strip(), entry.name
        assert entry.details.strip(), entry.name


@pytest.mark.parametrize("kind", ["rules", "clients", "datasets", "models"])
def test_about_is_the_docstring_of_the_entrys_own_file(kind: str) -> None:
    openings = {f.read_text(encoding="utf-8").split('"""')[1].split("\n")[0] for f in files(kind)}
    assert {entry.about.split("\n")[0] for entry in catalog.entries(kind).values()} == openings


def test_about_of_an_entry_in_a_shared_module_is_its_own_docstring() -> None:
    assert catalog.find("servers", "sgd").about == inspect.cleandoc(SGD.__doc__ or "")


def test_parameters_and_defaults_come_from_the_signature() -> None:
    parameters = catalog.find("rules", "aaggff-s").parameters
    assert {n: p.default for n, p in parameters.items()} == {"cdf": "normal", "variant": "paper", "beta": None}
    assert list(catalog.find("clients", "sgd").parameters)[:4] == ["epochs", "steps", "batch", "lr"]
    assert catalog.find("rules", "fedavg").parameters == {}


def test_what_the_experiment_supplies_is_no_parameter() -> None:
    assert list(catalog.find("models", "mlp").parameters) == ["hidden"]
    assert catalog.find("models", "logistic").parameters == {}
    assert catalog.find("algorithms", "averaging").parameters == {}


def test_complete_adds_the_defaults() -> None:
    assert catalog.complete("rules", "aaggff-s") == {
        "name": "aaggff-s",
        "cdf": "normal",
        "variant": "paper",
        "beta": None,
    }
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


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("rules", "fedagv", "no rule is called 'fedagv': did you mean 'fedavg'?"),
        ("rules", "AAGGFF-S", "no rule is called 'AAGGFF-S': did you mean 'aaggff-s'?"),
        ("clients", "sdg", "no client is called 'sdg': did you mean 'sgd'?"),
        ("datasets", "vowels", "no dataset is called 'vowels': did you mean 'vowel'?"),
        ("models", "mpl", "no model is called 'mpl': did you mean 'mlp'?"),
        ("servers", "sgdd", "no server is called 'sgdd': did you mean 'sgd'?"),
        ("algorithms", "avraging", "no algorithm is called 'avraging': did you mean 'averaging'?"),
    ],
)
def test_unknown_names_suggest_the_nearest(kind: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.find(kind, name)
    assert str(caught.value) == message


def test_a_name_like_no_other_lists_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"no server is called 'zzzz': known: .*sgd"):
        catalog.find("servers", "zzzz")


def test_an_unknown_kind_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"there are no 'rulez': did you mean 'rules'\?"):
        catalog.entries("rulez")


@pytest.mark.parametrize(
    ("kind", "part", "message"),
    [
        ("rules", {"name": "aaggff-s", "cfd": "normal"}, "rule 'aaggff-s' has no parameter 'cfd': did you mean 'cdf'?"),
        (
            "clients",
            {"name": "sgd", "momentun": 0.9},
            "client 'sgd' has no parameter 'momentun': did you mean 'momentum'?",
        ),
        ("rules", {"name": "fedavg", "q": 1}, "rule 'fedavg' has no parameter 'q': it has none"),
        ("models", {"name": "mlp", "shape": [3]}, "model 'mlp' has no parameter 'shape': known: hidden"),
    ],
)
def test_unknown_parameters_suggest_the_nearest(kind: str, part: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.complete(kind, part)
    assert str(caught.value) == message


@pytest.mark.parametrize(
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
def test_wrong_types_are_a_sentence(kind: str, part: dict[str, object], start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.complete(kind, part)
    message = str(caught.value)
    assert message.startswith(start)
    assert "\n" not in message
    assert message.removeprefix(start).startswith(("input should be ", "did you mean "))


def test_a_value_that_no_file_could_hold_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"rule 'aaggff-s': .*Tensor"):
        catalog.complete("rules", {"name": "aaggff-s", "beta": torch.tensor(1.0)})


@pytest.mark.parametrize("part", [5, None, 2.5, True, ["fedavg"], {}, {"cdf": "normal"}, {"name": 3}, {"name": None}])
def test_a_part_needs_a_name(part: object) -> None:
    with pytest.raises(ConfigError, match=r"^rule = .*: give a name, or a table with a name and parameters$"):
        catalog.complete("rules", part)  # type: ignore[arg-type]


def test_build_gives_the_thing() -> None:
    assert catalog.build("rules", "fedavg") == FedAvg()
    assert catalog.build("rules", {"name": "aaggff-s", "cdf": "frechet"}) == AAggFFS(cdf="frechet")
    assert catalog.build("clients", {"name": "sgd", "lr": 0.5}) == Local(lr=0.5)
    assert catalog.build("servers", {"name": "sgd", "momentum": 0.9}) == SGD(momentum=0.9)


def test_build_gives_a_dataset_and_a_model() -> None:
    federation = catalog.build("datasets", {"name": "vowel", "seed": 3})
    assert isinstance(federation, Federation)
    assert federation.clients == 15
    model = catalog.build("models", {"name": "mlp", "hidden": [7, 5]}, shape=(10,), outputs=11)
    assert [m.out_features for m in model if isinstance(m, nn.Linear)] == [7, 5, 11]


def test_build_gives_an_algorithm_of_given_parts() -> None:
    rule, local, step = FedAvg(), Local(), SGD()
    assert catalog.build("algorithms", "averaging", rule=rule, local=local, step=step) == Averaging(rule, local, step)


def test_what_the_thing_itself_refuses_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"server momentum = 1\.0"):
        catalog.build("servers", {"name": "sgd", "momentum": 1.0})
    with pytest.raises(ConfigError, match=r"client lr = -1\.0"):
        catalog.build("clients", {"name": "sgd", "lr": -1.0})


def test_a_callable_outside_the_package_is_named_by_module_and_name(outside: str) -> None:
    rule = catalog.build("rules", {"name": f"{outside}:Half", "strength": 2.0})
    assert (type(rule).__name__, rule.strength, rule.interval) == ("Half", 2.0, 3)
    assert catalog.complete("rules", f"{outside}:Half") == {
        "name": f"{outside}:Half",
        "strength": 1.0,
        "interval": 3,
        "floats": (1.0,),
    }


def test_our_own_can_be_named_so_too() -> None:
    assert catalog.build("rules", {"name": "commonweal.rules.aaggff_s:AAggFFS", "cdf": "gumbel"}) == AAggFFS("gumbel")


def test_an_outside_callable_without_types_or_with_a_plain_class(outside: str) -> None:
    assert catalog.build("rules", {"name": f"{outside}:untyped", "a": [1]}) == ([1], 2)
    assert catalog.build("rules", {"name": f"{outside}:Plain", "a": 4}).a == 4


def test_a_missing_parameter_is_a_sentence(outside: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.complete("rules", f"{outside}:needy")
    assert str(caught.value) == f"rule '{outside}:needy': size is missing"


@pytest.mark.parametrize(
    ("parameter", "value"), [("strength", "x"), ("interval", 2.5), ("floats", 3.0), ("interval", "3")]
)
def test_a_sentence_names_the_parameter_whatever_it_is_called(outside: str, parameter: str, value: object) -> None:
    """`strength`, `interval` and `floats` begin as the types str, int and float do."""
    with pytest.raises(ConfigError, match=rf"rule '{outside}:Half': {parameter} = {value!r}: "):
        catalog.complete("rules", {"name": f"{outside}:Half", parameter: value})


@pytest.mark.parametrize(
    "name",
    ["no_such_module:x", "commonweal.rules.fedavg:FedAv", "commonweal.rules.fedavg:", ":x", ".x:y", "..:y", "math:pi"],
)
def test_what_cannot_be_imported_or_called_is_a_sentence(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.build("rules", name)
    assert name in str(caught.value)


def test_a_callable_that_has_no_signature_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="builtins:dict"):
        catalog.build("rules", "builtins:dict")


def test_the_packages_functions_by_name() -> None:
    assert commonweal.rule("aaggff-s", cdf="gumbel") == AAggFFS(cdf="gumbel")
    assert commonweal.client("sgd", batch=5) == Local(batch=5)
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
