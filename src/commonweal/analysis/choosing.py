"""`commonweal.choose`: each client's best model among finished runs, by its validation samples.

Test samples have no part in choosing. Their scores, which the runs recorded, only show what the
choice is worth. After the choice all models are trained again, on all samples.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from commonweal.analysis.compare import OWN, Result, gather, result_of
from commonweal.analysis.gains import Gains, gains
from commonweal.analysis.labels import baseline_of, by_label, find_runs, seed_of
from commonweal.analysis.plan import POOLED
from commonweal.analysis.refitting import Train, train
from commonweal.analysis.refitting import refit as train_again
from commonweal.base.arguments import expect
from commonweal.base.errors import ConfigError, RunError, did_you_mean
from commonweal.base.files import read_plain, write_file
from commonweal.base.frames import frame
from commonweal.base.plain import to_json
from commonweal.config import catalog
from commonweal.config.catalog import trusting
from commonweal.jobs.reopening import reopen
from commonweal.record.record import Record
from commonweal.training import choice
from commonweal.training.choice import ALONE, RIGHT_OR_WRONG, Evidence, How
from commonweal.training.evaluation import evaluate_rows, evaluate_rows_by_models
from commonweal.training.vectorize import single

Array: TypeAlias = NDArray[np.float64]

HOWS: tuple[How, ...] = get_args(How)
FILE = "choice.json"


class Candidate(NamedTuple):
    """A method whose models clients can choose."""

    personal: bool  # every client has a model of its own
    runs: dict[int, Record]  # by seed


class ClientChoice(NamedTuple):
    """What a client takes in one seed, and why."""

    client: str
    seed: int
    taken: str
    compared: str  # the candidate that the evidence is about: the one taken, or the best other
    samples: int  # for validation
    better: int  # samples on which its loss is below local training's
    worse: int
    improvement: float  # of the mean loss; NaN without validation samples
    error: float  # the standard error of the improvement


class ChosenModel(NamedTuple):
    """Where the model that a client chose is."""

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
    results: dict[str, Result]  # on test samples, by candidate
    by_how: dict[How, Result]  # on test samples, of each way to choose
    taken: dict[How, Counter[str]]  # how many clients take a candidate, over all seeds
    notes: list[str]

    def __repr__(self) -> str:
        names = ", ".join(self.candidates)
        return f"<Choice ({self.how}) among {names}: {len(self.seeds)} seeds>"

    @property
    def names(self) -> tuple[str, ...]:
        """The clients."""
        return tuple(dict.fromkeys(line.client for line in self.clients))

    @property
    def worth(self) -> Gains:
        """The gains of the choice over local training, on test samples."""
        return gains(self.results[ALONE], self.by_how[self.how])

    def votes(self, client: str) -> Counter[str]:
        """How many seeds a client takes each candidate in."""
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

    def frame(self) -> Any:
        """A line per seed and client: what it takes and why.

        A pandas DataFrame, or a polars one; where neither is installed, a dict of lists.
        """
        columns = zip(*self.clients, strict=True)
        named = zip(ClientChoice._fields, columns, strict=True)
        return frame({name: list(values) for name, values in named})

    def write(self, folder: Path) -> Path:
        """Write choice.json, which `predict --choice` and `export --choice` read."""
        models: dict[str, dict[str, str | bool]] = {}
        for name in self.names:
            chosen = self.model_of(name)
            run = os.path.relpath(chosen.folder.resolve(), folder.resolve())
            models[name] = {
                "candidate": chosen.candidate,
                "run": Path(run).as_posix(),
                "personal": chosen.personal,
            }
        keys = ("how", "margin", "level", "refit", "seeds")
        saved = {key: vars(self)[key] for key in keys} | {
            "candidates": list(self.candidates),
            "models": models,
            "clients": [line._asdict() for line in self.clients],
            "notes": self.notes,
        }
        path = folder / FILE
        write_file(path, to_json(saved), durable=False)
        return path


# Choosing


def choose(
    folder: str | Path | Sequence[str | Path],
    how: How = "safe",
    margin: float = 0.0,
    level: float = 0.95,
    trust: bool = False,
    pool: Executor | None = None,
    refit: bool = True,
    train: Train = train,
) -> Choice:
    """Choose a model for each client among the finished runs of a folder.

    The runs have the same data and validation samples, seed by seed, as `commonweal compare`
    writes them with `validation=0.2`. A run of client method "alone" must be among them.

    Args:
        folder: A folder with runs below it, or several.
        how: How much evidence a client needs before it leaves local training: "safe" (the
            expected loss is lower with 95 % confidence by Student's t), "likely" (the mean loss is
            lower) or "proved".
        margin: How much worse than local training a "proved" candidate may be in expectation.
        level: The confidence level of "proved".
        trust: Import the programs that the runs name.
        pool: Processes that evaluate the runs. None: this one.
        refit: After choosing, train all methods once more, on validation samples, too: clients use
            these models, and their scores are of these. What is finished is not repeated.
        train: Runs what is not finished of these, and returns why some have no result.

    Raises:
        RunError: The runs cannot be compared, or training on all samples has no result.
    """
    expect("how", how, str, f"one of {', '.join(HOWS)}")
    expect("margin", margin, int | float, "a number")
    expect("level", level, float, "a number between 0 and 1")
    choice.choose([], how, margin, level)  # raises where they are wrong
    expect("trust", trust, bool, "True or False")
    expect("refit", refit, bool, "True or False")
    expect("folder", folder, str | Path | list | tuple, "the path of a folder, or several")
    folders = [folder] if isinstance(folder, str | Path) else list(folder)
    for path in folders:
        expect("folder", path, str | Path, "paths of folders")
    records = [record for record in find_runs(folders) if baseline_of(record) != POOLED]
    notes = [f"{run.folder} is left out: not finished" for run in records if not run.finished]
    candidates = _candidates([record for record in records if record.finished])
    local_runs = candidates[ALONE].runs
    score = local_runs[min(local_runs)].facts.score
    taken: dict[How, dict[tuple[int, str], str]] = {way: {} for way in HOWS}
    lines = []
    for seed in local_runs:
        runs = {name: candidate.runs[seed] for name, candidate in candidates.items()}
        _check_alike(list(runs.values()))
        evidence = _all_evidence(runs, trust, pool)
        local = evidence[ALONE]
        names = local["names"]
        by_client = [_evidence(evidence, k) for k in range(len(names))]
        improvements = [choice.improvements(own) for own in by_client]
        proofs = [choice.improvements(own, True, local["bound"]) for own in by_client]
        bound = local["bound"] if local["right"] is None else 1.0
        for way in HOWS:
            compared = proofs if way == "proved" else improvements
            for client, name in zip(
                names, choice.choose(compared, way, margin, level, bound), strict=True
            ):
                taken[way][seed, client] = name
        for k, client in enumerate(names):
            samples = len(local["losses"][k])
            lines.append(_line(client, seed, taken[how][seed, client], samples, improvements[k]))
    if not local["by_sample"]:
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
        results=results,
        by_how={way: _chosen_result(way, results, seeds, taken[way]) for way in HOWS},
        taken={way: Counter(taken[way].values()) for way in HOWS},
        notes=notes,
    )


def _candidates(records: Sequence[Record]) -> dict[str, Candidate]:
    """The methods of some runs by label, local training first, with their common seeds."""
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
    seeds = sorted(set.intersection(*map(set, by_seed.values())))
    if not seeds:
        raise RunError("these runs have no seed in common: choose among runs of equal seeds")
    candidates = {}
    for label in sorted(groups, key=lambda label: label != ALONE):
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


def _all_evidence(
    runs: Mapping[str, Record], trust: bool, pool: Executor | None
) -> dict[str, dict[str, Any]]:
    """What `run_evidence` says of each candidate's run."""
    if pool is None:
        return {name: run_evidence(trust, run.folder) for name, run in runs.items()}
    futures = {n: pool.submit(run_evidence, trust, run.folder) for n, run in runs.items()}
    return {name: future.result() for name, future in futures.items()}


def _evidence(evidence: Mapping[str, Mapping[str, Any]], client: int) -> dict[str, Evidence]:
    """What a client's validation samples say about each candidate."""
    own = {}
    for name, run in evidence.items():
        right = None if run["right"] is None else np.array(run["right"][client], dtype=float)
        own[name] = Evidence(np.array(run["losses"][client], dtype=float), right)
    return own


def run_evidence(trust: bool, folder: Path) -> dict[str, Any]:
    """What each client's validation samples say about a run, as JSON can hold it.

    `losses` by client and sample, or one mean per client unless `by_sample`; `right`: 0 or 1 for
    each sample, where the score is; `bound`: what losses are clipped at as proof.
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
    by_sample = task.loss != "cox"
    if not by_sample:
        values = [task.mean_losses(own, torch.tensor([0, len(own)])) for own in values]
    right = [own[:, 0].tolist() for own in scores] if task.score in RIGHT_OR_WRONG else None
    classes = engine.federation.classes
    return {
        "names": list(job.population.names),
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
    """What the candidates give to every client on its test samples, as the runs recorded it."""
    gathered = gather({name: list(own.runs.values()) for name, own in candidates.items()})
    by_label = {result.label: result for result in gathered}
    return {name: by_label.get(name + OWN, by_label[name]) for name in candidates}


def _chosen_result(
    how: How,
    results: Mapping[str, Result],
    seeds: Sequence[int],
    taken: Mapping[tuple[int, str], str],
) -> Result:
    """What clients get on test samples from the models that they chose."""
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


def chosen_clients(folder: Path) -> dict[str, ChosenModel]:
    """The models that clients chose, as `commonweal choose` has written them."""
    path = folder / FILE
    try:
        models = {}
        for name, own in json.loads(read_plain(path))["models"].items():
            run = folder / own["run"]
            models[name] = ChosenModel(own["candidate"], run, own["personal"], name)
        return models
    except FileNotFoundError:
        raise RunError(
            f"{str(folder)!r} has no {FILE}: commonweal choose {folder} writes it"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{str(path)!r} is damaged ({error}): run commonweal choose again") from None


def chosen_model(folder: Path, client: str) -> ChosenModel:
    """The model that a client chose."""
    models = chosen_clients(folder)
    if client not in models:
        raise ConfigError(
            f"client {client!r} has chosen no model: {did_you_mean(client, list(models))}"
        )
    return models[client]
