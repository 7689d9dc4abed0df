"""Several methods on the same data: what they give to every client, and what may be said of it.

Runs are paired by seed, samples by client and row. Whatever is called better, worse or significant
comes from `judge` and `contrasts`, whose replicates are test samples. The spread over seeds says
how much training varies, and nothing about new samples.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal import metrics
from commonweal.base.arguments import expect, expect_int
from commonweal.base.errors import ConfigError, RunError, did_you_mean
from commonweal.base.frames import frame
from commonweal.metrics import Against
from commonweal.record.record import Record
from commonweal.study import samples
from commonweal.study.curves import CURVES
from commonweal.study.given import GIVEN, Given, read_given
from commonweal.study.judging import ClientGain, Contrast, Judgement, Metric, contrasts, judge
from commonweal.study.labels import by_label, check_same_data, common_seeds, runs_in, seed_of
from commonweal.study.plan import ALONE, POOLED
from commonweal.study.results import GLOBAL, Result, gather
from commonweal.study.units import sign_of, unit
from commonweal.study.verdict import verdict, worth_having

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array: TypeAlias = NDArray[np.float64]

BASELINES = (ALONE, POOLED)
MANY = 20  # with this many clients, tails are compared instead of single clients


@dataclass(frozen=True, eq=False)
class Comparison:
    """The results of several methods for every client, next to local and pooled training."""

    score: str
    results: list[Result]  # of what clients use, one per method
    global_models: list[Result]  # of the methods whose clients use other models
    baselines: list[Result]  # local models and pooled data, where they were run
    failures: list[str]  # a line for everything that was left out
    records: dict[str, list[Record]]  # by label
    judgement: Judgement | None  # over local training; None: that, or samples' scores, are missing
    contrasts: dict[str, dict[str, Contrast]]  # by metric and label, over the first method
    samples: dict[str, int]  # by client, of the test
    best: dict[str, str]  # by metric, the method that is significantly better than all others
    varied: str = ""  # what differs between seeds, where the parts are not from an experiment
    given: Given | None = None  # which of the methods' models each client was given
    worth: float | None = None  # a gain worth having, in points or in % of an error, as asked for

    @classmethod
    def of(
        cls,
        records: Mapping[str, Sequence[Record]],
        failures: Sequence[str] = (),
        varied: str = "",
        picked: str | None = None,
        worth: float | None = None,
    ) -> "Comparison":
        """Compare evaluated runs by label, over equal seeds.

        Args:
            records: By label, runs that differ in their seeds.
            failures: Why there are no other runs.
            varied: What differs between seeds, if that is not from an experiment.
            picked: The method that was chosen without test scores, which the verdict is about.
            worth: A gain worth having, in points, or in % of an error (1, or 2).

        Raises:
            RunError: There are no runs, no common seeds, or different scores.
        """
        if not records:
            raise RunError("; ".join(failures) or "there are no runs to compare")
        seeds = {label: list(map(seed_of, runs)) for label, runs in records.items()}
        labels, common = common_seeds(seeds, ALONE if ALONE in records else "")
        if not common:
            raise RunError("these runs have no seed in common: choose runs of equal seeds")
        left_out = []
        compared = {}
        for label, runs in records.items():
            used = [run for run in runs if label in labels and seed_of(run) in common]
            if used:
                compared[label] = sorted(used, key=seed_of)
            rest = sorted(set(seeds[label]) - set(map(seed_of, used)))
            if rest:
                numbers = ", ".join(map(str, rest))
                left_out.append(f"{label}: left out with seeds that others lack: {numbers}.")
        scores = {run.facts.score for runs in compared.values() for run in runs}
        if len(scores) > 1:
            raise RunError(
                f"these runs have different scores ({', '.join(sorted(scores))}): name the folders "
                "of one federation"
            )
        check_same_data([run for runs in compared.values() for run in runs])
        score = scores.pop()
        used_results, global_models = gather(compared)
        if not set.intersection(*(set(result.clients) for result in used_results)):
            raise RunError("these runs have no client in common: compare runs on the same data")
        results = [result for result in used_results if result.label not in BASELINES]
        baselines = [result for result in used_results if result.label in BASELINES]
        if not results:
            results, baselines = baselines, []
        methods = {result.label: compared[result.label] for result in results}
        aligned = samples.aligned(methods)
        return cls(
            score=score,
            results=results,
            global_models=global_models,
            baselines=baselines,
            failures=[*failures, *left_out],
            records={label: runs for label, runs in compared.items() if label != GIVEN},
            judgement=judged(compared, picked or picked_by_validation(methods, score), worth),
            contrasts=_contrasts(aligned, results),
            best=_best(aligned, results),
            samples=_tested(aligned, results[0]),
            varied=varied,
            worth=worth,
        )

    @classmethod
    def of_given(cls, given: Given, failures: Sequence[str] = ()) -> "Comparison":
        """Compare what clients are given with local training, and the methods that it is from.

        The verdict is about what clients are given, since that was chosen on validation samples.
        """
        records = given.records()
        labels = sorted(records, key=lambda label: (label != "fedavg", label == GIVEN))
        picked = None if given.method == ALONE else given.method
        ordered = {label: records[label] for label in labels}
        comparison = cls.of(ordered, failures, picked=picked, worth=given.worth)
        return replace(comparison, given=given)

    @classmethod
    def in_folders(cls, folders: Sequence[str | Path], worth: float | None = None) -> "Comparison":
        """Compare the runs in some folders: each is a run's, or has runs below it.

        Where models were chosen for the clients of one folder, they are compared.

        Args:
            folders: Their paths.
            worth: A gain worth having, in points, or in % of an error (1, or 2).
        """
        given = read_given(Path(folders[0])) if len(folders) == 1 else None
        if given is None:
            return cls.of_records(runs_in(folders), worth)
        return cls.of_given(given if worth is None else given._replace(worth=worth))

    @classmethod
    def of_records(cls, records: Iterable[Record], worth: float | None = None) -> "Comparison":
        """Compare runs by what they are, whatever their folders are called: FedAvg first.

        Runs without an evaluated round are left out and listed in `failures`.
        """
        left_out = []
        evaluated = []
        for record in records:
            if record.is_public_part:
                left_out.append(f"{record.folder} is left out: {record.where_scores_are}.")
            elif not record.evaluated:
                left_out.append(f"{record.folder} is left out: no round has been evaluated yet.")
            else:
                evaluated.append(record)
        if not evaluated:
            raise RunError(" ".join(left_out) or "there are no runs to compare")
        labelled = by_label(evaluated)
        labels = sorted(labelled, key=lambda label: label.split(" ")[0] != "fedavg")
        return cls.of({label: labelled[label] for label in labels}, left_out, worth=worth)

    def __repr__(self) -> str:
        labels = ", ".join(result.label for result in self.results)
        varied = f"; {self.varied}" if self.varied else ""
        return f"<Comparison of {labels}: {self.seeds} seeds, {self.score}{varied}>"

    # Numbers

    @property
    def first(self) -> Record:
        """The first run of the first method."""
        return self.records[self.results[0].label][0]

    @property
    def seeds(self) -> int:
        return self.results[0].seeds

    @property
    def methods(self) -> dict[str, list[Record]]:
        """The runs without local and pooled training, unless there are no others."""
        return {r.label: self.records[r.label] for r in self.results if r.label != GIVEN}

    @property
    def local(self) -> Result | None:
        """Local training, where it was run."""
        return next((result for result in self.baselines if result.label == ALONE), None)

    @property
    def tail(self) -> Metric:
        """The metric of the clients that are served worst."""
        return tail_of(len(self.results[0].clients))

    @property
    def verdict(self) -> str:
        """The verdict on joining, in a sentence or two; empty without local training."""
        if self.local is None:
            return ""
        if self.given is None:
            return verdict(self.judgement, self.score, worth=self.worth)
        kept = "" if self.given.words else "All clients keep local training. "
        return kept + verdict(self.judgement, self.score, self.given.words, self.worth)

    @property
    def headline(self) -> str:
        """The method that the verdict is about; without one, the last."""
        return self.results[-1].label if self.judgement is None else self.judgement.method

    @property
    def differences(self) -> dict[str, dict[str, Contrast]]:
        """The gains over the first method, by method and metric, corrected for all of them."""
        table: dict[str, dict[str, Contrast]] = {}
        for metric, gains in self.contrasts.items():
            for label, contrast in gains.items():
                table.setdefault(label, {})[metric] = contrast
        return table

    def gain(self, label: str, client: str) -> ClientGain | None:
        """Return a client's gain over local training; None where that is not known."""
        if self.judgement is None:
            return None
        return self.judgement.clients.get(label, {}).get(client)

    def share_of_pooled(self, label: str) -> float | None:
        """The part of the way from local to pooled training, by the means over clients.

        None where one of them was not run, pooled training is no better than local training, or
        the method is worse.
        """
        named = {result.label: result for result in (*self.results, *self.baselines)}
        if not {label, ALONE, POOLED} <= named.keys():
            return None
        local, pooled, own = (named[key].metric("mean") for key in (ALONE, POOLED, label))
        way, gone = sign_of(self.score) * np.array([pooled - local, own - local])
        return None if way <= 0 or gone < 0 else float(gone / way)

    @cached_property
    def against(self) -> dict[str, Against]:
        """The changes for suffering and thriving clients against FedAvg, where it was run."""
        named = {result.label: result.by_client for result in self.results}
        base = named.pop("fedavg", None)
        changes: dict[str, Against] = {}
        if base is None:
            return changes
        for label, own in named.items():
            names = [name for name in base if name in own]
            before, after = [base[name] for name in names], [own[name] for name in names]
            lower = self.results[0].lower_is_better
            changes[label] = metrics.against(before, after, lower_is_better=lower)
        return changes

    def with_curves(self, names: Collection[str]) -> "Comparison":
        """Add the metrics of whole runs among these (`CURVES`), which take reading all rounds."""
        drawn = [name for name in CURVES if name in names]
        if not drawn:
            return self
        undefined = dict.fromkeys(drawn, math.nan)

        def extended(result: Result) -> Result:
            if result.label == GIVEN:
                return replace(result, metrics=[own | undefined for own in result.metrics])
            records = self.records[result.label.removesuffix(GLOBAL)]
            rows = []
            for known, record in zip(result.metrics, records, strict=True):
                rows.append(known | {name: CURVES[name](record.rounds) for name in drawn})
            return replace(result, metrics=rows)

        return replace(
            self,
            results=list(map(extended, self.results)),
            global_models=list(map(extended, self.global_models)),
            baselines=list(map(extended, self.baselines)),
        )

    def frame(self) -> Any:
        """A line per method, seed and client: method, seed, client, score.

        A pandas DataFrame, or a polars one; where neither is installed, a dict of lists.
        """
        columns: dict[str, list[object]] = {"method": [], "seed": [], "client": [], "score": []}
        seeds = list(map(seed_of, next(iter(self.records.values()))))
        for result in (*self.results, *self.baselines):
            for seed, scores in zip(seeds, result.scores.tolist(), strict=True):
                columns["method"] += [result.label] * len(scores)
                columns["seed"] += [seed] * len(scores)
                columns["client"] += result.clients
                columns["score"] += scores
        return frame(columns)

    def plain(self, columns: Sequence[str] | None = None) -> dict[str, object]:
        """The verdict, its judgement and all numbers, as JSON can hold them."""
        judgement = None
        if self.judgement is not None:
            judgement = asdict(self.judgement)
            for key in ("methods", "clients"):
                judgement[key] = _named(vars(self.judgement)[key])
        return {
            "verdict": self.verdict,
            "given": None if self.given is None else self.given.plain(),
            "judgement": judgement,
            "methods": self.lines(columns),
            "left_out": self.failures,
        }

    def lines(self, columns: Sequence[str] | None = None) -> list[dict[str, object]]:
        """The numbers of every method, a line for each.

        Scores are in their own unit, and what is shown in per cent is a fraction, the Gini index
        too.
        """
        keys = self.columns(columns)
        rows = []
        for result in (*self.results, *self.global_models, *self.baselines):
            row: dict[str, object] = {"rule": result.label, "score": self.score}
            row["seeds"] = self.seeds
            for key in keys:
                factor = 0.01 if key == "gini" else 1.0
                row[key] = factor * result.metric(key)
                row[f"{key}_std"] = factor * result.spread(key) if self.seeds > 1 else None
            for key, gains in self.contrasts.items():
                contrast = gains.get(result.label)
                for name in Contrast._fields:
                    row[f"{key}_{name}"] = None if contrast is None else getattr(contrast, name)
            change = self.against.get(result.label)
            row |= dict.fromkeys(Against._fields) if change is None else change._asdict()
            rows.append(row | self._over_local(result.label))
        return rows

    def _over_local(self, label: str) -> dict[str, object]:
        """Return a method's numbers compared with local training, by the name of a column."""
        judgement = self.judgement
        if judgement is None:
            return {}
        names = ("mean_against_alone", "mean_against_alone_low", "mean_against_alone_high")
        if label not in judgement.methods:
            empty = (*names, "says", "clients_better", "clients_worse", "better_off", "excess_max")
            return dict.fromkeys((*empty, "share_of_pooled"))
        mean = judgement.methods[label]
        gains = [client.gain for client in judgement.clients[label].values()]
        return {
            **dict(zip(names, mean, strict=False)),
            "says": mean.says,
            "clients_better": len(judgement.better[label]),
            "clients_worse": len(judgement.worse[label]),
            "better_off": float(np.mean(np.array(gains) >= 0)) if gains else math.nan,
            "excess_max": max(0.0, -min(gains, default=0.0)),
            "share_of_pooled": self.share_of_pooled(label),
        }

    def columns(self, columns: Sequence[str] | None = None) -> list[str]:
        """The metrics to show. Without columns: mean, worst, best and how scores spread."""
        tail = "_10" if self.tail == "worst_10" else ""
        if columns is None:
            return [
                "mean",
                "weighted_mean",
                f"worst{tail}",
                f"best{tail}",
                "std",
                "gini",
                f"gap{tail}",
            ]
        return list(dict.fromkeys(k + tail if k in ("worst", "best") else k for k in columns))

    # Text and figures, which are written in report/

    def table(
        self, form: str = "terminal", columns: str | None = None, decimals: int | None = None
    ) -> str:
        """The text that `commonweal compare` prints.

        Args:
            form: "terminal", "markdown", "latex", "csv" or "json".
            columns: Metrics such as "mean,worst_10", or those of a paper: "aaggff", "adafed".
            decimals: Digits after the point; None for one of per cent.
        """
        expect("form", form, str, "the name of a format")
        if columns is not None:
            expect("columns", columns, str, "metrics, as in 'mean,worst_10'")
        if decimals is not None:
            expect_int("decimals", decimals, most=20)
        report = import_module("commonweal.report.text")
        text: str = report.write_comparison(self, form, columns, decimals)
        return text

    def plot(self, what: str = "clients", path: str | Path | None = None) -> "Figure":
        """Draw the comparison.

        Args:
            what: "clients" for every client's scores next to local training, or "rounds" for the
                mean and the worst 10 % over rounds.
            path: A PNG, SVG or PDF file to write.

        Returns:
            The matplotlib figure.
        """
        expect("what", what, str, "the name of a picture")
        if path is not None:
            expect("path", path, str | Path, "the path of a file")
        if what not in ("clients", "rounds"):
            raise ConfigError(f"plot({what!r}): {did_you_mean(what, ('clients', 'rounds'))}")
        figures = import_module("commonweal.report.figures")
        figure: Figure = figures.of_comparison(self, what).figure
        if path is not None:
            figures.save(figure, Path(path))
        return figure

    def _repr_html_(self) -> str:
        """Return the verdict and the table of methods, for a notebook."""
        text: str = import_module("commonweal.report.document").summary_html(self)
        return text


def _named(table: Mapping[str, Any]) -> dict[str, Any]:
    """Named tuples in nested tables as tables."""
    plain = {}
    for key, value in table.items():
        plain[key] = _named(value) if isinstance(value, Mapping) else value._asdict()
    return plain


def tail_of(clients: int) -> Metric:
    """The metric of the clients that are served worst: of single ones, where there are few."""
    return "worst_10" if clients >= MANY else "worst"


# What may be said


def judged(
    records: Mapping[str, Sequence[Record]],
    picked: str | None = None,
    worth: float | None = None,
) -> Judgement | None:
    """Judge the methods of some runs against local training, on the same test samples.

    None where local training was not run, or where the runs have no scores of single samples.

    Args:
        records: The runs by label.
        picked: The method that was chosen without test scores.
        worth: A gain worth having, in points, or in % of an error.
    """
    if ALONE not in records:
        return None
    methods = {label: runs for label, runs in records.items() if label not in BASELINES}
    differences = samples.differences(records[ALONE], methods)
    known = {label: by_client for label, by_client in differences.items() if by_client}
    if not known:
        return None
    local, _ = gather({ALONE: records[ALONE]})
    score = records[ALONE][0].facts.score
    least = worth_having(score, local[0].metric("mean"), worth)
    return judge(
        known,
        picked=picked if picked in known else None,
        worth=least,
        inflation=samples.inflation(records[ALONE], methods),
        bound=1.0 if unit(score) else math.inf,
    )


def picked_by_validation(records: Mapping[str, Sequence[Record]], score: str) -> str | None:
    """The method with the best mean score on validation samples; None unless all runs have some."""
    means = {}
    for label, runs in records.items():
        values = []
        for run in runs:
            validated = [done.validation["mean"] for done in run.evaluated if done.validation]
            if not validated:
                return None
            values.append(validated[-1])
        means[label] = sign_of(score) * float(np.mean(values))
    return max(sorted(means), key=lambda label: means[label])


Samples: TypeAlias = Mapping[str, Mapping[str, Array]]  # by label and client: a score per sample


def _tested(aligned: Samples, first: Result) -> dict[str, int]:
    """The test samples of every client, in all seeds."""
    sizes = dict(zip(first.clients, first.sizes.max(0).astype(int).tolist(), strict=True))
    known = {name: len(values) for name, values in aligned.get(first.label, {}).items()}
    return sizes | known


def _contrasts(aligned: Samples, results: Sequence[Result]) -> dict[str, dict[str, Contrast]]:
    """The gains of all methods but the first over it, in the mean and for the worst clients."""
    first, *others = results
    if first.label not in aligned or not others:
        return {}
    compared = {r.label: aligned[r.label] for r in others if r.label in aligned}
    table: dict[str, dict[str, Contrast]] = {}
    for metric in ("mean", tail_of(len(first.clients))):
        table[metric] = _gains(compared, aligned[first.label], metric, first.lower_is_better)
    return table


def _gains(
    compared: Samples, base: Mapping[str, Array], metric: Metric, lower_is_better: bool
) -> dict[str, Contrast]:
    """Differences as gains: above 0 is better, also for errors."""
    found = contrasts(compared, base, metric, lower_is_better=lower_is_better)
    if not lower_is_better:
        return found
    gains = {}
    for label, (difference, low, high, significant) in found.items():
        gains[label] = Contrast(-difference, -high, -low, significant)
    return gains


def _best(aligned: Samples, results: Sequence[Result]) -> dict[str, str]:
    """By metric, the method that is significantly better than all others, if there is one."""
    best: dict[str, str] = {}
    if len(results) < 2 or len(aligned) < len(results):
        return best
    lower = results[0].lower_is_better
    sign = -1 if lower else 1
    for metric in ("mean", tail_of(len(results[0].clients))):
        first = max(results, key=lambda result: sign * result.metric(metric)).label
        others = {label: own for label, own in aligned.items() if label != first}
        gains = _gains(others, aligned[first], metric, lower).values()
        if gains and all(gain.significant and gain.difference < 0 for gain in gains):
            best[metric] = first
    return best
