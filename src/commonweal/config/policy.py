"""A site's policy: what may leave it. Read from a TOML file in which every key must be given."""

import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import ConfigDict, Field

from commonweal.base.errors import ConfigError, PolicyError
from commonweal.base.files import read_plain
from commonweal.config.catalog import explain

Words = Annotated[tuple[str, ...], Field(strict=False)]


class Policy(pydantic.BaseModel):
    """The least numbers that values must rest on, and what a site takes part in.

    Attributes:
        min_rows: The least number of samples that a loss, a score or an update rests on.
        min_count: The least number of samples in a category or bin that is counted or named.
        purposes: The requests that are answered: train, evaluate, describe, ...
        metrics: The scores that are computed, or "all".
        rounds_per_day: The number of rounds that are answered in a day (UTC), or "all".
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    min_rows: int = Field(ge=1)
    min_count: int = Field(ge=1)
    purposes: Words
    metrics: Words | Literal["all"]
    rounds_per_day: Annotated[int, Field(ge=1)] | Literal["all"]

    def check_request(self, purpose: str, metrics: Sequence[str], rounds: int) -> None:
        """Raise PolicyError for a request that may not be answered, whatever the samples are.

        Args:
            purpose: Of the request.
            metrics: The scores of the run.
            rounds: The rounds that are answered today with this one.
        """
        if purpose not in self.purposes:
            raise PolicyError(f"purpose {purpose!r} is not permitted, only {_some(self.purposes)}")
        forbidden = [name for name in metrics if self.metrics != "all" and name not in self.metrics]
        if forbidden:
            raise PolicyError(
                f"metric {forbidden[0]!r} is not permitted, only {_some(self.metrics)}"
            )
        if self.rounds_per_day != "all" and rounds > self.rounds_per_day:
            raise PolicyError(f"{self.rounds_per_day} rounds a day are permitted (rounds_per_day)")

    def check_reply(self, rows: int, counts: Collection[int]) -> None:
        """Raise PolicyError for a reply that rests on too few samples.

        Args:
            rows: The fewest samples on which one of its values rests.
            counts: The samples in the categories and bins that it counts; 0 says nothing.
        """
        if rows < self.min_rows:  # how many there are does not leave either
            raise PolicyError(f"a value rests on fewer than {self.min_rows} samples (min_rows)")
        if any(0 < count < self.min_count for count in counts):
            raise PolicyError(
                f"a category or bin holds fewer than {self.min_count} samples (min_count)"
            )


def read_policy(path: str | Path) -> Policy:
    """Read a policy. Raises ConfigError unless the file is complete and every key is known."""
    try:
        text = read_plain(Path(path).expanduser()).decode()
        values = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"policy {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"policy {str(path)!r} is not valid TOML: {error}") from None
    if not text.endswith("\n"):
        raise ConfigError(
            f"policy {str(path)!r} may be half-written: end its last line with a line break"
        )
    try:
        return Policy(**values)
    except pydantic.ValidationError as error:
        raise ConfigError(f"policy {str(path)!r}: {explain(error)}; give all of {_KEYS}") from None


_KEYS = ", ".join(Policy.model_fields)


def _some(names: Collection[str]) -> str:
    return ", ".join(names) or "none"
