"""The content of messages: metrics and settings by name. Light enough for every client."""

from collections.abc import Mapping, Sequence

from flwr.app import MetricRecord, RecordDict

PREFIXES = ("", "eval-", "evaluate-", "val-", "valid-", "validation-", "test-")
# What apps call the loss of an evaluation, where no key is given.
LOSS_NAMES = [f"{prefix}loss" for prefix in PREFIXES]

Numbers = list[int] | list[float]
Metric = int | float | Numbers
Texts = list[str] | list[bytes] | list[bool]
Settings = dict[str, int | float | str | bytes | bool | Numbers | Texts]


def settings_of(content: RecordDict) -> Settings:
    """All settings of a message, from its ConfigRecords."""
    settings: Settings = {}
    for record in content.config_records.values():
        settings |= dict(record)
    return settings


def metrics_of(content: RecordDict) -> dict[str, Metric]:
    """All metrics of a reply, from its MetricRecords."""
    metrics: dict[str, Metric] = {}
    for record in content.metric_records.values():
        metrics |= dict(record)
    return metrics


def add_metrics(content: RecordDict, metrics: Mapping[str, Metric]) -> None:
    """Add metrics to a reply, to the record that it has or to a new one."""
    record = next(iter(content.metric_records.values()), MetricRecord())
    record.update(metrics)
    if not content.metric_records:
        content["metrics"] = record


def find_metric(
    metrics: Mapping[str, object], names: Sequence[str], part: str = ""
) -> float | None:
    """Find a metric that is a number. `_` and `-` are the same.

    Args:
        metrics: The metrics by name.
        names: Names to look for; the first that is there counts.
        part: Where none of them is there, the only name that contains this is taken.

    >>> find_metric({"eval_loss": 0.5}, ["loss", "eval-loss"])
    0.5
    >>> find_metric({"test_logloss": 0.7, "num-examples": 10}, ["loss"], part="loss")
    0.7
    """
    numbers = {plain(n): float(v) for n, v in metrics.items() if isinstance(v, int | float)}
    for key in map(plain, names):
        if key in numbers:
            return numbers[key]
    similar = [key for key in numbers if part and part in key]
    return numbers[similar[0]] if len(similar) == 1 else None


def find_loss(metrics: Mapping[str, object], key: str | None = None) -> float | None:
    """Find the loss of an evaluation: under a key, or under a name that apps use."""
    return find_metric(metrics, LOSS_NAMES, "loss") if key is None else find_metric(metrics, [key])


def plain(name: str) -> str:
    """A metric's name in lower case, with hyphens."""
    return name.replace("_", "-").lower()
