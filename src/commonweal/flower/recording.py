"""The record of a Flower app's run: a folder like that of any other run."""

import itertools
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

    def open(self, experiment: str, facts: RunFacts, plans_rounds: bool) -> tuple[int, State]:
        """Start or continue a run: the last saved round (0: none), and the state after it."""
        if self.store is None:
            return 0, {}
        folder = self.store.folder
        if not self.resume and (folder / "rounds.jsonl").exists():
            raise RunError(
                f"{str(folder)!r} holds a run already: continue it with resume=True, or choose "
                "another out"
            )
        last, saved = self.store.open(experiment, facts, self.resume, plans_rounds)
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
    ) -> None:
        """Write a round, with the evaluation after it, and now and then a checkpoint.

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
        if self.store is None:
            return
        test = ClientTable(names, evaluation) if evaluated else None
        self.store.append(record, seconds, test=test)
        self.unsaved = (record.number, {"server": state, "nodes": directory.saved()})
        if self.private or time.monotonic() - self.saved_at > SAVE_EVERY:
            self.save()

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
        return folder.absolute()
    last = folder
    for k in itertools.count(2):
        if not folder.exists():
            break
        last = folder
        folder = Path(f"{RECORDS}-{k}")
    return (last if resume else folder).absolute()
