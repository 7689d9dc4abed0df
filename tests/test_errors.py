"""One tree of errors, and the sentence at the end of each."""

import pytest

from commonweal.base import errors
from commonweal.base.errors import CommonwealError, ConfigError, DataError, RunError, did_you_mean


@pytest.mark.parametrize("kind", [ConfigError, DataError, RunError])
def test_every_kind_of_error_is_a_commonweal_error(kind: type[CommonwealError]) -> None:
    assert kind.__bases__ == (CommonwealError,)
    with pytest.raises(CommonwealError, match=r"^what is wrong$"):
        raise kind("what is wrong")


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    tree = {
        c.__name__
        for c in vars(errors).values()
        if isinstance(c, type) and issubclass(c, CommonwealError)
    }
    kinds = {"ConfigError", "DataError", "DivergedError", "EncodingError", "LockedError"}
    kinds |= {"PolicyError", "RankError", "RunError", "TrustError"}
    assert tree == {"CommonwealError", *kinds}
    assert all(name in (errors.__doc__ or "") for name in tree)


def test_no_error_is_a_builtin_one_that_a_caller_may_swallow_by_accident() -> None:
    assert CommonwealError.__bases__ == (Exception,)


@pytest.mark.parametrize(
    ("name", "known", "end"),
    [
        ("fedagv", ["fedavg", "aaggff-s"], "did you mean 'fedavg'?"),
        ("AAggFF-S", ["fedavg", "aaggff-s"], "did you mean 'aaggff-s'?"),
        ("rouns", ["rounds", "rule"], "did you mean 'rounds'?"),
        ("zzz", ["fedavg", "aaggff-s"], "known: aaggff-s, fedavg"),
        ("", ["b", "a"], "known: a, b"),
    ],
)
def test_did_you_mean(name: str, known: list[str], end: str) -> None:
    assert did_you_mean(name, known) == end


def test_did_you_mean_takes_anything_that_gives_names() -> None:
    assert did_you_mean("lr", {"lr": 1.0}) == "did you mean 'lr'?"
    assert did_you_mean("x", (name for name in ("b", "a"))) == "known: a, b"
