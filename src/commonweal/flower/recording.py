"""The record of a Flower app's run: a folder like that of any other run."""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import ArrayRecord

from commonweal import metrics
from commonweal.base.errors import RunError
from commonweal.base.tensors import State
from commonweal.flower.directory import Directory
from commonweal.flower.reports import Evaluated, column, listed
from commonweal.record.facts import RunFacts
from commonweal.record.publication import private_folder, publish
from commonweal.record.rounds import ClientTable, RoundRecord
from commonweal.record.store import Store
from commonweal.training.evaluation import Evaluation

RECORDS = "runs/flower"  # where records are written by default
SAVE_EVERY = 2.0  # seconds between checkpoints; what is lost in between is computed again


class Recorder:
    """Collects the rounds of a run, and writes them where it has a folder.

    Args:
        out: The run's folder, by default a free one; None: nothing is written.
        resume: Continue the run in it, by default the last one.
        score: The name of the score.
        higher_is_better: Whether higher scores are better.
        private: The values of clients are written apart, and every round is saved at once: a
            round that is run again would be a second release.
    """

    def __init__(
        self,
        out: str | Path | None,
        resume: bool,
        score: str,
        higher_is_better: bool,
        private: bool,
    ) -> None:
        self.resume = resume
        self.score = score
        self.higher_is_better = higher_is_better
        self.private = private
        self.history: list[RoundRecord] = []
        self.unsaved: tuple[int, State] | None = None  # what the next checkpoint will hold
        self.saved_at = time.monotonic()
        self.store: Store | None = None
        if out is not None:
            folder = _folder(Path(out), resume)
            self.store = Store(private_folder(folder) if private else folder)

    def open(
        self, experiment: str, facts: RunFacts, plans_rounds: bool, again: bool = False
    ) -> tuple[int, State]:
        """Start or continue a run: the last saved round (0: none), and the state after it.

        Args:
            experiment: The run as an experiment.
            facts: About the run.
            plans_rounds: Whether its number of rounds must stay.
            again: Whether it was opened before, and gets more rounds.
        """
        if self.store is None:
            return 0, {}
        folder = self.store.folder
        resume = self.resume or again
        if not resume and (folder / "rounds.jsonl").exists():
            raise RunError(
                f"{str(folder)!r} holds a run already: continue it with resume=True (num_rounds "
                "then counts all rounds of the run), or choose another out"
            )
        last, saved = self.store.open(experiment, facts, resume, plans_rounds)
        if last:
            self.store.remove_results(last)
        return last, saved

    def write(
        self,
        record: RoundRecord,
        evaluated: Mapping[int, Evaluated],
        directory: Directory,
        state: State,
        seconds: Mapping[str, float],
    ) -> tuple[dict[str, float], str]:
        """Write a round, with the evaluation after it, and now and then a checkpoint.

        Returns:
            The round's numbers by name, and a line about it for the log.

        Args:
            record: The round, without its evaluation.
            evaluated: What nodes reported of the model after it; empty: it was not evaluated.
            directory: The clients' names.
            state: Of the server, for the checkpoint.
            seconds: By what they were spent on.
        """
        nodes = directory.by_name
        names = [directory[node].name for node in nodes]
        evaluation = self._evaluation([evaluated.get(node, Evaluated()) for node in nodes])
        missing = [directory[node].name for node in nodes if node not in evaluated]
        if evaluated and missing:
            warnings = (*record.warnings, f"not evaluated: {listed(missing)}")
            record = replace(record, warnings=warnings)
        record = replace(record, metrics=self._summary(evaluation, names))
        self.history.append(record)
        scores = {directory[node].name: each.score for node, each in evaluated.items()}
        summary = self._numbers(record, scores), self._line(record, scores)
        if self.store is None:
            return summary
        test = ClientTable(names, evaluation) if evaluated else None
        self.store.append(record, seconds, test=test)
        self.unsaved = (record.number, {"server": state, "nodes": directory.saved()})
        if self.private or time.monotonic() - self.saved_at > SAVE_EVERY:
            self.save()
        return summary

    def save(self) -> None:
        """Write a checkpoint of the last round, if there is none yet."""
        if self.store is not None and self.unsaved is not None:
            self.store.checkpoint(*self.unsaved)
            self.unsaved = None
            self.saved_at = time.monotonic()
            if self.private:
                publish(self.store.folder)

    def _evaluation(self, results: Sequence[Evaluated]) -> Evaluation:
        score = column(results, "score")
        sizes = column(results, "size")
        if (sizes == sizes.round()).all():
            sizes = sizes.long()
        return Evaluation(column(results, "loss"), {self.score: score}, sizes, ~score.isfinite())

    def _summary(self, evaluation: Evaluation, names: Sequence[str]) -> dict[str, float]:
        scored = evaluation.scored.tolist()
        if not scored:
            return {}
        called = [names[k] for k in scored]
        lower = not self.higher_is_better
        return metrics.summary(evaluation.score[scored], evaluation.sizes[scored], called, lower)

    def _numbers(self, record: RoundRecord, scores: Mapping[str, float]) -> dict[str, float]:
        """The finite numbers of a round, under the names that trackers get them by."""
        if self.private:  # those of clients have no noise
            return {"round": record.number, **record.public}
        losses = dict(zip(record.clients, record.losses, strict=True))
        numbers: dict[str, float] = {
            "round": record.number,
            "cohort/clients": len(record.clients),
            "cohort/replies_used": len(record.weights),
            "cohort/replies_dropped": len(record.dropped),
            "cohort/replies_capped": len(record.capped),
            "cohort/fallback": float(bool(record.fallback)),
        }
        if record.weights:
            numbers["cohort/weight_min"] = min(record.weights.values())
            numbers["cohort/weight_max"] = max(record.weights.values())
        groups = {"test": record.metrics, "weight": record.weights, "loss": losses, "score": scores}
        for group, values in groups.items():
            numbers |= {f"{group}/{name}": float(value) for name, value in values.items()}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}

    def _line(self, record: RoundRecord, scores: Mapping[str, float]) -> str:
        """A round in a line: the range of weights, the worst client, and what was not used."""
        if self.private:
            return f"round {record.number}: released with noise"
        parts = ["no weights"]
        if record.weights:
            least, most = min(record.weights.values()), max(record.weights.values())
            parts = [f"weights {least:.3g} to {most:.3g}" + " (FedAvg)" * bool(record.fallback)]
        known = {name: score for name, score in scores.items() if math.isfinite(score)}
        losses = dict(zip(record.clients, record.losses, strict=True))
        losses = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
        if known:
            worst = (min if self.higher_is_better else max)(known, key=lambda name: known[name])
            score = self.score.rpartition(":")[2]
            parts.append(f"worst client {worst} ({score} {known[worst]:.3g})")
        elif losses:
            worst = max(losses, key=lambda name: losses[name])
            parts.append(f"worst client {worst} (loss {losses[worst]:.3g})")
        parts += [f"{len(record.dropped)} dropped", f"{len(record.capped)} capped"]
        return f"round {record.number}: " + ", ".join(parts)

    def check_anything_trained(self) -> None:
        """Raise RunError where no reply of any round could be used."""
        for line in self.history:
            if not line.clients or set(line.clients) - line.dropped.keys():
                return
        if self.history:
            client, reason = next(iter(self.history[-1].dropped.items()))
            raise RunError(
                f"nothing was trained: all clients were dropped in all {len(self.history)} rounds; "
                f"in the last one client {client}: {reason}"
            )

    def write_model(self, arrays: ArrayRecord) -> None:
        """Write the final model."""
        if self.store is not None:
            tensors = {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}
            self.store.write_model(tensors)
            if self.private:
                publish(self.store.folder)


def _folder(folder: Path, resume: bool) -> Path:
    """The folder of a run: the one that is named, or by default a free one, or the last one."""
    if folder != Path(RECORDS):
        return folder.expanduser().absolute()
    last = folder
    for k in itertools.count(2):
        if not folder.exists():
            break
        last = folder
        folder = Path(f"{RECORDS}-{k}")
    return (last if resume else folder).absolute()
