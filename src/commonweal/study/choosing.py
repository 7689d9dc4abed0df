"""`commonweal.choose`: each client's best model among finished runs, by its validation samples.

Test samples have no part in choosing. Their scores, which the runs recorded, only show what the
choice is worth. After the choice all models are trained again, on all samples.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from commonweal.base.arguments import check_bounds, expect
from commonweal.base.errors import ConfigError, RunError, did_you_mean
from commonweal.base.files import read_plain, write_file
from commonweal.base.frames import frame
from commonweal.base.plain import to_json
from commonweal.clients import evidence as choice
from commonweal.clients.evidence import ALONE, RIGHT_OR_WRONG, Evidence
from commonweal.config import catalog
from commonweal.config.catalog import trusting
from commonweal.jobs.reopening import reopen
from commonweal.record.record import Outline, Record
from commonweal.study.comparison import Comparison
from commonweal.study.given import FILE, Given
from commonweal.study.labels import baseline_of, by_label, common_seeds, runs_in, seed_of
from commonweal.study.plan import POOLED
from commonweal.study.refitting import Train, train
from commonweal.study.refitting import refit as train_again
from commonweal.study.results import Result, gather, result_of
from commonweal.task.vectorize import single
from commonweal.training.evaluation import evaluate_rows, evaluate_rows_by_models

Array: TypeAlias = NDArray[np.float64]

How: TypeAlias = Literal["pooled", "safe", "likely", "proved"]

HOWS: tuple[How, ...] = get_args(How)
BLEND = "blend"  # the client method that `pooled` takes without evidence for another


class Candidate(NamedTuple):
    """A method whose models clients can choose."""

    personal: bool  # every client has a model of its own
    runs: dict[int, Record]  # by seed


class ClientChoice(NamedTuple):
    """A client's choice in one seed, and its reason."""

    client: str
    seed: int
    taken: str
    compared: str  # the candidate that the evidence is about: the one taken, or the best other
    samples: int  # for validation
    better: int  # samples on which its loss is below local training's
    worse: int
    improvement: float  # of the mean loss; NaN without validation samples
    error: float  # the standard error of the improvement


class PooledEvidence(NamedTuple):
    """The evidence of the validation samples of all clients on a candidate in one seed."""

    seed: int
    candidate: str
    base: str  # what it is compared with
    improvement: float  # of the mean loss, averaged over clients
    limit: float  # the lower limit of the improvement; above 0 it is significant


class ChosenModel(NamedTuple):
    """The place of the model that a client chose."""

    candidate: str
    folder: Path  # of the run
    personal: bool  # the client has a model of its own in that run
    client: str


@dataclass(frozen=True, eq=False)
class Choice:
    """Each client's model, with its evidence and what it is worth on test samples."""

    how: How
    margin: float
    level: float
    score: str
    candidates: dict[str, Candidate]  # local training first, with the runs on all samples if refit
    refit: bool  # whether the models were trained again, on all samples
    seeds: tuple[int, ...]
    clients: list[ClientChoice]  # by seed and client
    pooled: list[PooledEvidence]  # by seed and candidate
    results: dict[str, Result]  # on test samples, by candidate
    by_how: dict[How, Result]  # on test samples, of each way to choose
    taken: dict[How, Counter[str]]  # how many clients take a candidate, over all seeds
    notes: list[str]
    worth: float | None  # a gain worth having, in points or in % of an error, as asked for

    def __repr__(self) -> str:
        names = ", ".join(self.candidates)
        return f"<Choice ({self.how}) among {names}: {len(self.seeds)} seeds>"

    @property
    def names(self) -> tuple[str, ...]:
        """The clients."""
        return tuple(dict.fromkeys(line.client for line in self.clients))

    def votes(self, client: str) -> Counter[str]:
        """Return in how many seeds a client takes each candidate."""
        return Counter(line.taken for line in self.clients if line.client == client)

    def model_of(self, client: str) -> ChosenModel:
        """The model that a client takes: what it took in most seeds, from the first of them.

        Of candidates taken equally often, local training comes first, then the first by name.
        """
        if client not in self.names:
            raise ConfigError(f"there is no client {client!r}: {did_you_mean(client, self.names)}")
        votes = self.votes(client)
        name = min(votes, key=lambda name: (-votes[name], name != ALONE, name))
        seeds = (line.seed for line in self.clients if (line.client, line.taken) == (client, name))
        candidate = self.candidates[name]
        return ChosenModel(name, candidate.runs[next(seeds)].folder, candidate.personal, client)

    @property
    def for_newcomers(self) -> ChosenModel:
        """The model for whoever took no part: the global one of the first method that has one."""
        others = [name for name in self.candidates if name != ALONE]
        name = min(others, key=lambda name: self.candidates[name].personal)
        return ChosenModel(name, self.candidates[name].runs[self.seeds[0]].folder, False, "")

    def frame(self) -> Any:
        """A line per seed and client: what it takes and why.

        A pandas DataFrame, or a polars one; where neither is installed, a dict of lists.
        """
        columns = zip(*self.clients, strict=True)
        named = zip(ClientChoice._fields, columns, strict=True)
        return frame({name: list(values) for name, values in named})

    @cached_property
    def comparison(self) -> Comparison:
        """The comparison of the given models with local training and the candidates."""
        return Comparison.of_given(self.given)

    @property
    def verdict(self) -> str:
        """The verdict on the given models, in a sentence or two."""
        return self.comparison.verdict

    @property
    def given(self) -> Given:
        """The given models, for a comparison with local training."""
        runs = {name: candidate.runs for name, candidate in self.candidates.items()}
        taken: dict[int, dict[str, str]] = {}
        for line in self.clients:
            taken.setdefault(line.seed, {})[line.client] = line.taken
        return Given(self.how, self.refit, runs, taken, tuple(self.notes), self.worth)

    def _folders(self, folder: Path) -> dict[str, dict[str, str]]:
        """The folders of the candidates' runs, by seed."""
        return {
            name: {str(seed): _relative(run.folder, folder) for seed, run in own.runs.items()}
            for name, own in self.candidates.items()
        }

    def write(self, folder: Path) -> Path:
        """Write choice.json, which `predict --choice` and `export --choice` read."""
        models = {name: _saved(self.model_of(name), folder) for name in self.names}
        keys = ("how", "margin", "level", "refit", "seeds", "worth")
        saved = {key: vars(self)[key] for key in keys} | {
            "candidates": list(self.candidates),
            "models": models,
            "newcomers": _saved(self.for_newcomers, folder),
            "clients": [line._asdict() for line in self.clients],
            "runs": self._folders(folder),
            "notes": self.notes,
        }
        path = folder / FILE
        write_file(path, to_json(saved), durable=False)
        return path


# Choosing


def choose(
    folder: str | Path | Sequence[str | Path],
    how: How = "pooled",
    margin: float = 0.0,
    level: float = 0.95,
    trust: bool = False,
    refit: bool = True,
    train: Train = train,
    evidence: Mapping[Path, dict[str, Any]] | None = None,
    worth: float | None = None,
) -> Choice:
    """Choose a model for each client among the finished runs of a folder.

    The runs have the same data and validation samples, seed by seed, as `commonweal compare`
    writes them with `validation=0.2`. A run of client method "alone" must be among them.

    Args:
        folder: A folder with runs below it, or several.
        how: By what evidence. "pooled": all clients get blend, unless the validation samples of
            all clients together show that another method is better for them (blend: or local
            training, where no run is of blend). The others decide for each client by its own
            samples whether it leaves local training: "safe" (the expected loss is lower with 95 %
            confidence by Student's t), "likely" (the mean loss is lower) or "proved".
        margin: How much worse than local training a "proved" candidate may be in expectation.
        level: The confidence level of "proved".
        trust: Import the programs that the runs name.
        refit: After choosing, train all methods once more, on validation samples, too: clients use
            these models, and their scores are of these. What is finished is not repeated.
        train: Runs what is not finished of these, and returns why some have no result.
        evidence: What `run_evidence` gives for some of the runs' folders, if it is known already.
        worth: A gain worth having, in points, or in % of an error (1, or 2): joining does not help
            where so much is excluded.

    Raises:
        RunError: The runs cannot be compared, or training on all samples has no result.
    """
    _check_arguments(folder, how, margin, level, trust, refit)
    expect("worth", worth, int | float | None, "a number")
    check_bounds("worth", worth, above=0)
    folders = [folder] if isinstance(folder, str | Path) else list(folder)
    records = [record for record in runs_in(folders) if baseline_of(record) != POOLED]
    notes = [f"{run.folder} is left out: not finished" for run in records if not run.finished]
    candidates = _candidates([record for record in records if record.finished], notes)
    local_runs = candidates[ALONE].runs
    known = evidence or {}
    score = local_runs[min(local_runs)].facts.score
    taken: dict[How, dict[tuple[int, str], str]] = {way: {} for way in HOWS}
    lines, pooled = [], []
    for seed in local_runs:
        runs = {name: candidate.runs[seed] for name, candidate in candidates.items()}
        _check_alike(list(runs.values()))
        by_method = {}
        for name, run in runs.items():
            by_method[name] = known.get(run.folder) or run_evidence(trust, run.folder)
        local = by_method[ALONE]
        names = local["names"]
        by_client = [_evidence(by_method, k) for k in range(len(names))]
        base = _base(runs, by_client)
        together = [choice.improvements(own, base=base) for own in by_client]
        pooled += _pooled_evidence(seed, base, together)
        for way in HOWS:
            if way == "pooled":
                own_names = [choice.choose_together(together, base)] * len(names)
            else:
                own_names = _by_client_choice(way, by_client, local, margin, level)
            for client, name in zip(names, own_names, strict=True):
                taken[way][seed, client] = name
        for k, client in enumerate(names):
            improvements = choice.improvements(by_client[k])
            lines.append(
                _line(client, seed, taken[how][seed, client], local["samples"][k], improvements)
            )
    if not local["by_sample"] and how in ("safe", "proved"):
        notes.append(
            "Cox's loss has no value per sample: safe and proved keep every client's local model; "
            "likely compares mean losses"
        )
    elif how == "proved" and local["right"] is None:
        notes.append(f"{score} has no value per sample: losses are the evidence instead")
    if refit:
        with trusting(trust):
            again = train_again({n: own.runs for n, own in candidates.items()}, train, notes)
        refit = again is not None
        for name, runs_again in (again or {}).items():
            candidates[name] = candidates[name]._replace(runs=runs_again)
    seeds = tuple(local_runs)
    if how == "pooled":
        notes.append(_why(pooled, taken[how], seeds))
    notes.append(_trained_on(candidates[ALONE].runs[seeds[0]], seeds))
    results = _results(candidates)
    return Choice(
        how=how,
        margin=margin,
        level=level,
        score=score,
        candidates=candidates,
        refit=refit,
        seeds=seeds,
        clients=lines,
        pooled=pooled,
        results=results,
        by_how={way: _chosen_result(way, results, seeds, taken[way]) for way in HOWS},
        taken={way: Counter(taken[way].values()) for way in HOWS},
        notes=notes,
        worth=worth,
    )


def _check_arguments(
    folder: str | Path | Sequence[str | Path],
    how: str,
    margin: float,
    level: float,
    trust: bool,
    refit: bool,
) -> None:
    expect("how", how, str, f"one of {', '.join(HOWS)}")
    expect("margin", margin, int | float, "a number")
    expect("level", level, float, "a number between 0 and 1")
    if how not in HOWS:
        raise ConfigError(f"how = {how!r}: {did_you_mean(how, HOWS)}")
    choice.choose_by_client([], "proved", margin, level)  # raises where they are wrong
    expect("trust", trust, bool, "True or False")
    expect("refit", refit, bool, "True or False")
    expect("folder", folder, str | Path | list | tuple, "the path of a folder, or several")
    for path in [folder] if isinstance(folder, str | Path) else folder:
        expect("folder", path, str | Path, "paths of folders")


def _candidates(records: Sequence[Record], notes: list[str]) -> dict[str, Candidate]:
    """The methods of some runs by label, local training first, with their common seeds.

    notes: get a line for every method that is left out
    """
    groups = by_label(records)
    if ALONE not in groups:
        raise RunError(
            "no run of client = 'alone' is among them, so that there is nothing to compare with: "
            "`commonweal compare` adds it unless you say --no-baselines"
        )
    if len(groups) < 2:
        raise RunError(
            f"all {len(records)} runs are of client = 'alone': run other methods, too, to choose"
        )
    by_seed = {label: {seed_of(run): run for run in runs} for label, runs in groups.items()}
    labels, seeds = common_seeds(by_seed, ALONE)
    if not seeds:
        raise RunError("these runs have no seed in common: choose among runs of equal seeds")
    for label in by_seed.keys() - set(labels):
        notes.append(f"{label} is left out: it has no result with seeds that others have")
    candidates = {}
    for label in sorted(labels, key=lambda label: label != ALONE):
        personal = groups[label][0].clients().evaluation.personal is not None
        candidates[label] = Candidate(personal, {seed: by_seed[label][seed] for seed in seeds})
    return candidates


def _check_alike(records: Sequence[Record]) -> None:
    """Raise RunError unless runs of one seed have the same data and unused validation samples."""
    first = records[0]
    for record in records:
        where = str(record.folder)
        if not record.facts.validation_rows:
            raise RunError(
                f"{where!r} has no validation samples, and nothing may be chosen on test samples: "
                "run it with validation=0.2"
            )
        if record.facts.data != first.facts.data or not record.facts.data:
            raise RunError(
                f"{str(first.folder)!r} and {where!r} have different samples (digests "
                f"{first.facts.data!r} and {record.facts.data!r}): choose among runs of the same "
                "data, seed and validation share"
            )
        if record.facts.score != first.facts.score:
            raise RunError(
                f"{str(first.folder)!r} and {where!r} have different scores "
                f"({first.facts.score} and {record.facts.score}): choose among runs of one score"
            )
        if record.part("client") == "choice":
            raise RunError(
                f"{where!r} has chosen on its validation samples already: leave it out, since "
                "`choose` compares the same models"
            )
        client = record.experiment.get("client")
        if client is not None and catalog.complete("clients", client).get("rejoin") is True:
            raise RunError(
                f"{where!r} trained on its validation samples after its weights were learned: run "
                "it with client.rejoin=false to choose on them"
            )


# Evidence


def _evidence(evidence: Mapping[str, Mapping[str, Any]], client: int) -> dict[str, Evidence]:
    """Return the evidence of a client's validation samples on each candidate."""
    own = {}
    for name, run in evidence.items():
        right = None if run["right"] is None else np.array(run["right"][client], dtype=float)
        own[name] = Evidence(np.array(run["losses"][client], dtype=float), right)
    return own


def _base(runs: Mapping[str, Record], by_client: Sequence[Mapping[str, Evidence]]) -> str:
    """Return the base of `pooled`: blend where its losses are finite, or local training."""
    for name in sorted(runs):
        losses = np.concatenate([own[name].losses for own in by_client])
        if runs[name].part("client") == BLEND and np.isfinite(losses).all():
            return name
    return ALONE


def _pooled_evidence(
    seed: int, base: str, by_client: Sequence[Mapping[str, Array]]
) -> list[PooledEvidence]:
    """Return the improvement of each candidate on the base, by all validation samples."""
    means: dict[str, list[float]] = {}
    for improvements in by_client:
        for name, values in improvements.items():
            if len(values):
                means.setdefault(name, []).append(float(values.mean()))
    evidence = []
    for name, by_mean in means.items():
        array = np.array(by_mean)
        limit = choice.lower_limit(array, choice.TOGETHER)
        evidence.append(PooledEvidence(seed, name, base, float(array.mean()), limit))
    return evidence


def _why(
    evidence: Sequence[PooledEvidence], taken: Mapping[tuple[int, str], str], seeds: Sequence[int]
) -> str:
    """Return the reason why all clients get a method, in a sentence."""
    by_seed = {seed: name for (seed, _), name in taken.items()}
    bases = {own.seed: own.base for own in evidence}
    base = Counter(bases.values()).most_common(1)[0][0] if bases else ALONE
    words = "local training" if base == ALONE else base
    others = Counter(name for seed, name in by_seed.items() if name != bases.get(seed, ALONE))
    if not others:
        return (
            f"all clients get {words}: their validation samples do not show with 95 % confidence "
            "that another method is better for them"
        )
    named = ", ".join(
        f"{'local training' if name == ALONE else name} in {count} of {len(seeds)} seeds"
        for name, count in others.most_common()
    )
    return (
        f"instead of {words} all clients get {named}: its mean validation loss, averaged over "
        "clients, is lower with 95 % confidence"
    )


def _trained_on(run: Record, seeds: Sequence[int]) -> str:
    """Describe which of the models clients use, and on how many samples they were trained."""
    facts = run.facts
    used = (facts.train_rows or 0) + (facts.validation_rows or 0)
    share = 100 * used / max(1, used + (facts.test_rows or 0))
    which = f"of seed {seeds[0]}" if len(seeds) == 1 else "of the first seed that chose it"
    return (
        f"the model that a client uses is that {which}, trained on {share:.0f} % of the samples: "
        "the others tested it"
    )


def _by_client_choice(
    how: choice.How,
    by_client: Sequence[Mapping[str, Evidence]],
    local: Mapping[str, Any],
    margin: float,
    level: float,
) -> list[str]:
    """Return each client's choice by its own validation samples."""
    is_proof = how == "proved"
    compared = [choice.improvements(own, is_proof, local["bound"]) for own in by_client]
    bound = local["bound"] if local["right"] is None else 1.0
    return choice.choose_by_client(compared, how, margin, level, bound)


def run_evidence(trust: bool, folder: Path) -> dict[str, Any]:
    """Return the evidence of clients' validation samples on a run, as JSON can hold it.

    `samples` of each client; `losses` by client and sample, or one mean per client unless
    `by_sample`; `right`: 0 or 1 for each sample, where the score is; `bound`: what losses are
    clipped at as proof.
    """
    job, state = reopen(folder, trust=trust)
    algorithm, engine = job.algorithm, job.local
    rows = None if engine is None else engine.federation.validation
    if engine is None or rows is None:
        raise RunError(f"{str(folder)!r}: the validation samples are not on this machine")
    task = algorithm.task
    losses, stats = evaluate_rows(task, algorithm.model(state), rows)
    values = _by_client(losses, rows.offsets)
    scores = _by_client(stats[task.score], rows.offsets)
    if algorithm.personalizes:
        message = algorithm.message(state)
        used = engine.models(algorithm, lambda own: algorithm.uses(message, own), "validation")
        for ids, uses in used:
            losses, stats = evaluate_rows_by_models(task, uses, rows, ids, single)
            offsets = rows.offsets_of(ids)
            own_values = _by_client(losses, offsets)
            own_scores = _by_client(stats[task.score], offsets)
            for k, client in enumerate(ids.tolist()):
                values[client], scores[client] = own_values[k], own_scores[k]
    by_sample = losses.ndim == 1
    samples = list(map(len, values))
    if not by_sample:
        values = [
            task.mean_losses(own, torch.tensor([0, len(own)])) if len(own) else own[:0].flatten()
            for own in values
        ]
    right = [own[:, 0].tolist() for own in scores] if task.score in RIGHT_OR_WRONG else None
    classes = engine.federation.classes
    return {
        "names": list(job.population.names),
        "samples": samples,
        "losses": [own.tolist() for own in values],
        "right": right,
        "by_sample": by_sample,
        "bound": None if classes is None else choice.largest_loss(classes),
    }


def _by_client(values: Tensor, offsets: Tensor) -> list[Tensor]:
    return list(torch.split(values, offsets.diff().tolist()))


def _line(
    client: str, seed: int, taken: str, samples: int, improvements: Mapping[str, Array]
) -> ClientChoice:
    """A client's choice with the evidence for it, or against the best other candidate."""
    if samples == 0 or not improvements:
        return ClientChoice(client, seed, taken, taken, samples, 0, 0, math.nan, math.nan)
    compared = taken
    if taken == ALONE:
        compared = max(improvements, key=lambda name: float(improvements[name].mean()))
    own = improvements[compared]
    error = float(own.std(ddof=1) / math.sqrt(len(own))) if len(own) > 1 else math.nan
    better, worse = int((own > 0).sum()), int((own < 0).sum())
    return ClientChoice(
        client, seed, taken, compared, samples, better, worse, float(own.mean()), error
    )


# Test samples


def _results(candidates: Mapping[str, Candidate]) -> dict[str, Result]:
    """Return the candidates' scores on every client's test samples, as the runs recorded them."""
    used, _ = gather({name: list(own.runs.values()) for name, own in candidates.items()})
    return {result.label: result for result in used}


def _chosen_result(
    how: How,
    results: Mapping[str, Result],
    seeds: Sequence[int],
    taken: Mapping[tuple[int, str], str],
) -> Result:
    """Return the test scores of clients with the models that they chose."""
    local = results[ALONE]
    tables = []
    for k, seed in enumerate(seeds):
        own = {}
        for client in local.clients:
            chosen = results[taken[seed, client]]
            own[client] = float(chosen.scores[k, chosen.clients.index(client)])
        tables.append(own)
    rows = [dict.fromkeys(local.clients, 1.0)] * len(tables)
    return result_of(f"choice, {how}", tables, rows, local.lower_is_better)


# What was chosen


def _relative(run: Path, folder: Path) -> str:
    """The folder of a run as seen from another."""
    return Path(os.path.relpath(run.resolve(), folder.resolve())).as_posix()


def _saved(chosen: ChosenModel, folder: Path) -> dict[str, str | bool | None]:
    """A model as choice.json names it, with a hash of the data that its run is of."""
    return {
        "candidate": chosen.candidate,
        "run": _relative(chosen.folder, folder),
        "personal": chosen.personal,
        "data": Record.read(chosen.folder).facts.data,
    }


class Chosen(NamedTuple):
    """The contents of choice.json."""

    models: dict[str, ChosenModel]  # by client
    newcomers: ChosenModel  # for whoever took no part


def read_choice(folder: Path) -> Chosen:
    """The models that clients chose, as `commonweal choose` has written them.

    Raises:
        RunError: There is no choice, or its runs were trained again on other data since.
    """
    path = folder / FILE
    data: dict[Path, str | None] = {}

    def model(name: str, own: dict[str, Any]) -> ChosenModel:
        run = folder / own["run"]
        data[run] = own["data"]
        return ChosenModel(own["candidate"], run, own["personal"], name)

    try:
        saved = json.loads(read_plain(path))
        models = {name: model(name, own) for name, own in saved["models"].items()}
        chosen = Chosen(models, model("", saved["newcomers"]))
    except FileNotFoundError:
        raise RunError(
            f"{str(folder)!r} has no {FILE}: commonweal choose {folder} writes it"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{str(path)!r} is damaged ({error}): run commonweal choose again") from None
    for run, expected in data.items():
        if not (run / "run.json").exists() or Outline.open(run).facts.data != expected:
            raise RunError(
                f"{str(run)!r} was deleted, or trained again on other data, since clients chose: "
                "run commonweal choose again"
            )
    return chosen


def chosen_clients(folder: Path) -> dict[str, ChosenModel]:
    """The models that clients chose, by name."""
    return read_choice(folder).models


def chosen_model(folder: Path, client: str) -> ChosenModel:
    """The model that a client chose."""
    models = chosen_clients(folder)
    if client not in models:
        raise ConfigError(
            f"client {client!r} has chosen no model: {did_you_mean(client, list(models))}"
        )
    return models[client]
