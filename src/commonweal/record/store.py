"""A run is a folder of plain files that any tool reads, and that a kill never leaves damaged.

    experiment.toml         what determines the run, defaults included
    run.json                what it ran on: format, versions, clients, parameters, engine
    data.json               what data it is of, and the clients by name in the order of their ids
    rounds.jsonl            one line per round: metrics, who was dropped and why, bytes, warnings
    clients.chunks          the values of clients by round: cohort, losses, weights, test scores
    clients.csv             every client's samples, loss and scores at the end of the run
    final.json              their confidence intervals, and the threshold that was chosen
    test-scores.safetensors the main score of every test sample at the end of the run
    synthetic.npz           synthetic samples (images, labels), where the algorithm makes some
    preparation.json        how a table's columns became features, where the data is a table
    model.safetensors       the final model, by the module's own names
    best.safetensors        that of the best round by validation samples, where there are any
    unseen.csv              the same of clients that were held out, where there are any
    checkpoint.safetensors  the server's state after some round: where a resumed run continues
    client_states/          clients' states, where they are too large for the checkpoint
    timings.jsonl           seconds per round; the only file that differs between two equal runs
    lock                    there while a process writes to the folder

Files are replaced as a whole, or appended to with a single write; a resumed run first cuts them
back to its checkpoint. The tensor files hold digests of themselves, the checkpoint one of the
rounds that it stands for, a round's line one of its clients' values, and run.json one of itself.
"""

import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from commonweal.base.errors import RunError
from commonweal.base.files import LOCK, append, digest, locked, read_plain, write_file, writing
from commonweal.base.plain import flat, to_json
from commonweal.base.tensors import State, Tensors
from commonweal.config.experiment import RunSettings
from commonweal.data.identity import OTHER_DATA
from commonweal.record import artifacts, final
from commonweal.record.checkpoint import (
    CHECKPOINT,
    START_AGAIN,
    read_checkpoint,
    write_checkpoint,
)
from commonweal.record.columns import Chunks
from commonweal.record.facts import RunFacts, checked_facts, read_facts, write_facts
from commonweal.record.identity import StoredData, check_data, write_data
from commonweal.record.record import final_tables
from commonweal.record.rounds import (
    NAMING,
    ROUNDS,
    VALUES,
    ClientTable,
    RoundRecord,
    parse_line,
    round_columns,
)
from commonweal.record.test_scores import NAME as TEST_SCORES
from commonweal.record.verify import checked_lines, first_lines

TIMINGS = "timings.jsonl"
EXPERIMENT = "experiment.toml"
# What is written when a run ends. The model is the last to go: with it, a run is finished.
AT_THE_END = (final.NAME, TEST_SCORES, "clients.csv", "unseen.csv", artifacts.MODEL)
STARTED = ("run.json", "data.json", LOCK)  # left by a kill at the very start
# The temporary names of files that are replaced as a whole, with the id of the process.
WHOLE = r"run|experiment|rounds|timings|model|best|checkpoint|synthetic|preparation|clients|unseen"
TEMPORARY = rf"(({WHOLE}|final|data|test-scores)\.[a-z]+|PRIVATE\.txt|\d{{6,}}\.png)(\.\d+)?\.part"
DIGESTS = ("dataset.digest", "model.digest")  # in an experiment of what was given in Python
Changes: TypeAlias = dict[str, tuple[object, object]]  # by key, the values before and after


class Store:
    """The folder of a run that is being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.values = Chunks(folder / VALUES)  # of clients by round
        self._experiment = ""  # its digest
        self._lines = hashlib.blake2b(digest_size=16)  # of rounds.jsonl
        self._digests: dict[int, str] = {}  # of the lines up to a round
        self._numbers: dict[str, int] = {}  # of clients, by name

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from writing to the folder."""
        return locked(self.folder)

    def open(
        self,
        experiment: str,
        facts: RunFacts,
        resume: bool,
        plans_rounds: bool = True,
        data: StoredData | None = None,
        others: bool = False,
    ) -> tuple[int, State]:
        """Start or continue a run: the last saved round (0: none), and the state after it.

        Args:
            experiment: The text of the experiment.
            facts: About the run.
            resume: Whether to continue what is there, also with more rounds.
            plans_rounds: Whether rounds depend on how many there are: then none can be added.
            data: What data the run is of, where it is known.
            others: Whether files that belong to no run may be in the folder.
        """
        self._check_format()
        known = self.folder / EXPERIMENT
        changed = changed_keys(known, experiment) if known.exists() else {}
        if data is not None:
            self._check_identity(data, changed)
        if not (resume and _adds_rounds(changed)):
            self._check(known, changed, resume, others)
        elif plans_rounds and self._has_rounds:
            raise RunError(
                f"{str(self.folder)!r} was planned for {changed['rounds'][0]} rounds, and its "
                "method, rule or algorithm depends on that: more rounds need a run of their own "
                "(--out, or out=)"
            )
        last, saved = self._resumed(facts)
        self._cut(last)
        if last == 0 and data is not None:
            write_data(self.folder, data)
        if changed or last == 0:  # what a run that was killed began with may be out of date
            write_facts(self.folder, facts)
        if changed or not known.exists():
            write_file(known, experiment.encode())
        self._experiment = digest(read_plain(known))  # an earlier version may have written it
        return last, saved

    def _check_format(self) -> None:
        """Raise RunError where the folder is of another format."""
        try:
            read_facts(self.folder)
        except (OSError, ValueError, RecursionError):
            return  # there is none yet, or a resumed run reports it

    def _check_identity(self, data: StoredData, changed: Changes) -> None:
        """Raise RunError where the folder holds the same experiment on other data."""
        is_same = not set(changed) - {*DIGESTS, "rounds"}
        if is_same and (self.folder / CHECKPOINT).exists():
            check_data(self.folder, data.identity)

    def _check(self, known: Path, changed: Changes, resume: bool, others: bool) -> None:
        """Raise RunError where the folder holds something else."""
        folder = repr(str(self.folder))
        # A run that failed before its first round, by a mistake in the experiment, is replaced.
        if changed and self._has_rounds:
            raise RunError(
                f"{folder} holds another experiment ({_difference(changed)}): choose another "
                "folder (--out, or out=), or start again with --force (force=True)"
            )
        if known.exists() and not changed and not resume:
            raise RunError(
                f"{folder} holds this run already: continue it with --resume (resume=True), choose "
                "another folder (--out, or out=), or start again with --force (force=True)"
            )
        if known.exists() or others or not self.folder.exists():
            return
        if self.folder.is_file() or any(not _starts(p.name) for p in self.folder.iterdir()):
            raise RunError(f"{folder} is not empty and holds no run: choose another folder")

    @property
    def _has_rounds(self) -> bool:
        written = self.folder / ROUNDS
        has_lines = written.exists() and written.stat().st_size > 0
        return has_lines or (self.folder / CHECKPOINT).exists()

    @property
    def client_states(self) -> Path:
        return self.folder / "client_states"

    def _resumed(self, facts: RunFacts) -> tuple[int, State]:
        """The last checkpoint, if everything that it stands for is as it was written."""
        checkpoint = read_checkpoint(self.folder)
        self._lines = hashlib.blake2b(digest_size=16)
        self._numbers.clear()
        if checkpoint is None:
            return 0, {}
        try:
            lines = checked_lines(self.folder, checkpoint)
            before = checked_facts(self.folder)
        except RunError as error:
            raise RunError(f"{error}: {START_AGAIN}") from None
        for line in lines:
            self._lines.update(line)
            if NAMING in line:
                self._number(parse_line(line).new)
        self._check_data(before, facts)
        return checkpoint.last, checkpoint.state

    def _number(self, names: Iterable[str]) -> None:
        """Number the clients that have no number yet, in the order in which they are named."""
        for name in names:
            self._numbers.setdefault(name, len(self._numbers))

    def _check_data(self, before: RunFacts, now: RunFacts) -> None:
        """Raise RunError where the data is not that with which the run began."""
        if before.data == now.data:
            return
        changed = []
        for key in ("clients", "train_rows", "test_rows"):
            old, new = vars(before)[key], vars(now)[key]
            if old != new:
                changed.append(f"{key} was {old} and is {new}")
        what = ", ".join(changed) or "the numbers of clients and rows are the same, some value not"
        raise RunError(
            f"the data changed since the run in {str(self.folder)!r} began ({what}): {OTHER_DATA}"
        )

    def _cut(self, last: int) -> None:
        """Remove what was written after the checkpoint; the same will be written again."""
        for name in (ROUNDS, TIMINGS):
            path = self.folder / name
            lines = b"".join(first_lines(path, last))
            if path.exists() and path.stat().st_size > len(lines):
                write_file(path, lines)
        places = [parse_line(line).chunk for line in first_lines(self.folder / ROUNDS, last)[-1:]]
        with writing(self.values.path):
            self.values.cut(places[0].end if places and places[0] else 0)
        remove_leftovers(self.folder)

    def remove_results(self, last: int) -> None:
        """Delete what a run wrote at its end: it would be taken for that of the rounds to come.

        Args:
            last: The round after which the run continues. 0: what it wrote meanwhile goes too.
        """
        names = AT_THE_END if last else (*AT_THE_END, artifacts.BEST, artifacts.SAMPLES)
        for name in names:
            path = self.folder / name
            with writing(path):
                path.unlink(missing_ok=True)

    def append(
        self,
        record: RoundRecord,
        seconds: Mapping[str, float],
        *,
        test: ClientTable | None = None,
        unseen: ClientTable | None = None,
    ) -> None:
        """Write a round.

        Args:
            record: The round.
            seconds: By what they were spent on.
            test: The evaluation on test samples.
            unseen: The evaluation of clients that take no part.
        """
        evaluated = {"test": test, "unseen": unseen}
        tables = {part: table for part, table in evaluated.items() if table is not None}
        before = len(self._numbers)
        self._number([*record.clients, *record.weights, *record.mixture])
        for table in tables.values():
            self._number(table.names)
        new = list(self._numbers)[before:]
        columns = round_columns(record, tables, self._numbers)
        place = self.values.append(columns)  # before its line
        line = {"round": record.number, "chunk": place, "new": new, **record.line()}
        self._lines.update(self._append(ROUNDS, line))
        self._digests[record.number] = self._lines.hexdigest()
        self._append(TIMINGS, {"round": record.number, **seconds})

    def _append(self, name: str, line: Mapping[str, object]) -> bytes:
        data = to_json(line, indent=None)
        append(self.folder / name, data)
        return data

    def checkpoint(self, last: int, state: Mapping[str, State | Tensor]) -> None:
        """Write the state after a round. It never outlives the rounds that it stands for."""
        for path in (self.values.path, self.folder / ROUNDS):
            with writing(path), open(path, "ab") as file:
                os.fsync(file.fileno())
        write_checkpoint(self.folder, last, state, self._experiment, self._digests[last])
        # The last one stays: where something fails from here on, the same is written again.
        self._digests = {last: self._digests[last]}

    def write_model(self, tensors: Tensors) -> None:
        """Write the final model, and the last evaluation as CSV."""
        for name, data in final_tables(self.folder).items():
            write_file(self.folder / name, data)
        artifacts.write_model(self.folder, tensors)


def _starts(name: str) -> bool:
    """Return whether a kill before the first round can have left a file of that name."""
    return name in STARTED or re.fullmatch(TEMPORARY, name) is not None


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that a process which was killed left behind."""
    for path in (*folder.glob("*.part"), *(folder / "pictures").glob("*.part")):
        if re.fullmatch(TEMPORARY, path.name) and path.is_file():
            path.unlink()


def changed_keys(known: Path, experiment: str) -> Changes:
    """Return the keys that a new experiment changes; None stands for a key that is not there."""
    try:
        old = read_plain(known).decode()
        if old == experiment:
            return {}
        before = flat(tomllib.loads(old))
        after = flat(tomllib.loads(experiment))
    except (OSError, ValueError, RecursionError):
        return {EXPERIMENT: ("text that cannot be read", "")}
    for key, field in RunSettings.model_fields.items():
        if key in after and not field.is_required():
            before.setdefault(key, field.default)  # a key that an earlier version did not have
    pairs = {key: (before.get(key), after.get(key)) for key in [*after, *sorted(before)]}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _adds_rounds(changed: Changes) -> bool:
    """Return whether an experiment has more rounds, and is the same otherwise."""
    if list(changed) != ["rounds"]:
        return False
    before, after = changed["rounds"]
    return isinstance(before, int) and isinstance(after, int) and after > before


def _difference(changed: Changes) -> str:
    """The first change in words."""
    key, (before, after) = next(iter(changed.items()))
    if key == "dataset.digest":
        return "the same samples in another order, split or scale"
    if key == EXPERIMENT:
        return f"its {EXPERIMENT} cannot be read"
    if _adds_rounds(changed):
        return f"{before} rounds, not {after}; --resume adds rounds"
    return f"it has {key} = {before!r}" if after is None else f"not {key} = {after!r}"
