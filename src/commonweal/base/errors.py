"""Every error that a user can cause.

CommonwealError
├── ConfigError    an experiment, a name or a parameter that cannot be right
│   └── TrustError     a run names a program that it may not import
├── PolicyError    a request that a site's policy does not let it answer
├── DataError      rows, files or client values that cannot be used
│   └── EncodingError  a file with bytes that its encoding does not have
└── RunError       a run folder that cannot be written, resumed or read
    ├── DivergedError  training that gave numbers that are not finite
    ├── LockedError    a folder that another process writes to
    └── RankError      a process of torchrun that ended during a run

Each message says what is wrong, what was got, and what to do.
"""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "CommonwealError",
    "CommonwealWarning",
    "ConfigError",
    "DataError",
    "DivergedError",
    "EncodingError",
    "LockedError",
    "PolicyError",
    "RankError",
    "ResumeWarning",
    "RunError",
    "TrustError",
    "UnusedRunWarning",
    "did_you_mean",
    "install",
]


class CommonwealError(Exception):
    """The base of all errors that a user can fix; the command shows its message."""


class ConfigError(CommonwealError):
    """An experiment, a name or a parameter that cannot be right."""


class TrustError(ConfigError):
    """A run names a program, which is imported only where the user trusts its author."""


class PolicyError(CommonwealError):
    """A request that a site's policy does not let it answer."""


class DataError(CommonwealError):
    """Rows, files or client values that cannot be used."""


class EncodingError(DataError):
    """A file has bytes that its encoding does not have."""


class RunError(CommonwealError):
    """A run folder that cannot be written, resumed or read."""


class DivergedError(RunError):
    """Training gave numbers that are not finite, or no longer mean anything."""


class LockedError(RunError):
    """Another process writes to a folder."""


class RankError(RunError):
    """A process of torchrun ended during a run."""


class CommonwealWarning(UserWarning):
    """The base of warnings about what a user may not have meant."""


class ResumeWarning(CommonwealWarning):
    """A resumed run continues with another version or on another processor than it began with."""


class UnusedRunWarning(CommonwealWarning):
    """A run was prepared, but never started."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest of the known names, or all of them.

    >>> did_you_mean("fedagv", ["fedavg", "aaggff-s"])
    "did you mean 'fedavg'?"
    """
    known = sorted(known)
    close = get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known)


def install(extra: str) -> str:
    """The command that installs an extra. Double quotes work in every shell, cmd.exe included."""
    return f'pip install "commonweal[{extra}]"'
