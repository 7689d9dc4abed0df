"""A campaign against runs: kills at file operations, flips, full and read-only disks, attacks.

    make campaign                 half an hour
    python benchmarks/campaign.py --short
    python benchmarks/campaign.py --only "two ranks"

Prints a Markdown table of what was tried and what survived. A case survives if it ends with the
bytes of a run that was left alone, or with a sentence and exit code 2. A guarded rule survives
an attack if it loses at most 10 points of the honest clients' mean accuracy.
"""

import argparse
import builtins
import errno
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from attacks import ATTACKS, MALICIOUS, Cell, Results, honest_mean
from commonweal import cli
from commonweal.config.experiment import read
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_experiment
from commonweal.record.client_states import ClientStates
from commonweal.record.record import Record
from commonweal.record.verify import problems

EXPERIMENT = "rounds = 3\ncohort = 3\n"
VOWELS = 'dataset = "vowel"\n'
# Written to the folder of a kind of runs: a table, and samples that stay in their file.
FILES = {
    "table.csv": "clinic,age,dose,ill\n"
    + "".join(f"c{k % 4},{40 + 7 * k % 31},{k % 5},{k * k % 3 % 2}\n" for k in range(80)),
    "mapped.py": """
import numpy as np
from commonweal import Federation

def make():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4)).astype(np.float32)
    try:
        np.save(open("x.npy", "xb"), x)
    except FileExistsError:
        pass
    y = (x[:, 0] > 0).astype(np.int64)
    return Federation.from_arrays(np.load("x.npy", mmap_mode="r"), y, np.arange(80) % 4)
""",
}
KINDS = {
    "plain": VOWELS + 'rule = "aaggff-s"\nserver = { name = "sgd", momentum = 0.9 }\n',
    "personal models in files": VOWELS + 'client = "ditto"\nrule = "aaggff-s"\n',
    "client and server states": VOWELS + 'client = "scaffold"\nserver = "adam"\n',
    "a guarded rule, validation, clients held out": (
        VOWELS + 'rule = "guarded(rule=term)"\nvalidation = 0.3\nholdout_clients = 0.2\n'
    ),
    "blend, which keeps several models": VOWELS + 'client = "blend"\n',
    "a private run with seeded noise": (
        VOWELS
        + 'algorithm = { name = "private", noise = 1.0, entropy = "seed" }\nsampler = "poisson"\n'
    ),
    "a table with a threshold": (
        'dataset = { name = "table", path = "table.csv", label = "ill", client = "clinic" }\n'
        'validation = 0.3\nthreshold = "f1"\n'
    ),
    "samples read from a file when needed": 'dataset = "./mapped.py:make"\n',
    "two ranks": VOWELS + 'rule = "aaggff-s"\nclient = "ditto"\ndeterministic = true\n',
}
GUARDED = "a guarded rule, validation, clients held out"
DRAW = random.Random(0)
LOST = 10.0  # points that an attack may cost

Step = Callable[[str], None]  # called with a name before a file operation


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.name != "timings.jsonl"}


def command(file: Path, folder: Path, *changes: str) -> None:
    """The command, in this process and in the folder of its file."""
    rounds.SAVE_EVERY = -1.0
    os.chdir(file.parent)
    call = ["run", str(file), *changes, "--out", str(folder), "--resume", "--quiet"]
    sys.argv = ["commonweal", *call]
    cli.main()


def rank(number: int, port: int, file: Path, folder: Path) -> None:
    """One of two processes of the command, as torchrun starts them."""
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "campaign"}
    command(file, folder, "engine=torchrun")


def forked(work: Callable[[], None], log: Path) -> int:
    """The id of a child process that does this, with its standard error in a file."""
    child = os.fork()
    if child:
        return child
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 2)
    try:
        work()
    except SystemExit as done:
        os._exit(int(done.code or 0))
    except BaseException as error:
        os.write(2, f"Traceback: {type(error).__name__}: {error}\n".encode())
        os._exit(70)
    os._exit(0)


def ended(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def at_steps(step: Step) -> None:
    """Call `step` before every write, rename, deletion and fsync of this process."""
    plain_open = builtins.open

    def opening(path: object, mode: str = "r", *args: object, **more: object) -> object:
        if mode in ("wb", "ab"):
            step(f"open {Path(str(path)).name}")
        return plain_open(path, mode, *args, **more)  # type: ignore[call-overload]

    def before(name: str) -> None:
        plain = getattr(os, name)

        def called(*args: object, **more: object) -> object:
            step(name)
            return plain(*args, **more)

        setattr(os, name, called)

    builtins.open = opening  # type: ignore[assignment]
    for name in ("replace", "fsync", "unlink", "mkdir"):
        before(name)


def at_number(number: int, act: Callable[[], None]) -> Step:
    """Act at the operation of that number, and at all later ones."""
    count = 0

    def step(what: str) -> None:
        nonlocal count
        count += 1
        if count >= number:
            act()

    return step


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def read_only() -> None:
    raise OSError(errno.EROFS, "Read-only file system")


class Campaign:
    """Cases of one kind of run, each in a folder of its own."""

    def __init__(self, work: Path, kind: str, seed: int) -> None:
        self.work = work
        self.kind = kind
        self.file = work / "e.toml"
        self.file.write_text(EXPERIMENT + KINDS[kind])
        for name, text in FILES.items():
            (work / name).write_text(text)
        self.draw = random.Random(seed)
        self.log = work / "log"
        assert ended(forked(lambda: command(self.file, work / "whole"), self.log)) == 0
        self.whole = contents(work / "whole")

    def resumed(self, folder: Path) -> bool:
        """Whether resuming ends with the bytes of a run that was left alone."""
        code = ended(forked(lambda: command(self.file, folder), self.log))
        return code == 0 and self.is_whole(folder)

    def is_whole(self, folder: Path) -> bool:
        """Whether a folder has the bytes of a run that was left alone."""
        files = contents(folder)
        if self.kind == "two ranks":  # run.json says on how many it ran
            files["run.json"] = self.whole["run.json"]
        return files == self.whole

    def interrupted(self, number: int, act: Callable[[], None], folder: Path) -> int:
        def work() -> None:
            at_steps(at_number(number, act))
            command(self.file, folder)

        return ended(forked(work, self.log))

    def ranks(self, act: Callable[[], None], every: int) -> tuple[int, int]:
        """Interrupt rank 0 of two at every `every`-th operation: the other must end by itself."""
        tried = survived = 0
        number = 1
        while True:
            folder = self.work / f"rank-{number}"
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]

            def first() -> None:
                at_steps(at_number(number, act))  # noqa: B023
                rank(0, port, self.file, folder)  # noqa: B023

            log = self.work / "second"
            other = forked(lambda: rank(1, port, self.file, folder), log)  # noqa: B023
            code = ended(forked(first, self.log))
            other_code = ended(other)
            if code == 0:
                return tried, survived
            tried += 1
            other_ended = other_code in (0, 2) and "Traceback" not in log.read_text(
                errors="replace"
            )
            survived += other_ended and self.resumed(folder)
            shutil.rmtree(folder, ignore_errors=True)
            number += every

    def clocks(self, count: int) -> tuple[int, int]:
        """Let the clocks jump to and fro during a run: how often it ends with the same bytes."""
        good = 0
        for k in range(count):
            draw = random.Random(k)

            def jumping() -> None:
                for name in ("time", "monotonic", "perf_counter"):
                    setattr(time, name, lambda: draw.uniform(-1e9, 1e9))  # noqa: B023
                command(self.file, self.work / f"clock-{k}")  # noqa: B023

            code = ended(forked(jumping, self.log))
            good += code == 0 and self.is_whole(self.work / f"clock-{k}")
        return count, good

    def operations(self, act: Callable[[], None], every: int) -> tuple[int, int]:
        """Interrupt runs at every `every`-th operation: how many were tried, how many survived."""
        tried = survived = 0
        number = 1
        while True:
            folder = self.work / f"at-{number}"
            code = self.interrupted(number, act, folder)
            if code == 0:
                return tried, survived
            tried += 1
            explained = code == 2 and "Traceback" not in self.log.read_text(errors="replace")
            survived += (code == -signal.SIGKILL or explained) and self.resumed(folder)
            shutil.rmtree(folder, ignore_errors=True)
            number += every

    def flips(self, name: str, count: int) -> tuple[int, int]:
        """Flip single bits of a file of a stopped or finished run: how many were noticed."""
        half = self.work / ("whole" if name in FINISHED else "half")
        if not half.exists():
            job = job_from_experiment(read(self.file))
            going = rounds.run(job, out=half)
            next(going)
            next(going)
            going.close()
        paths = sorted(half.rglob(name))
        noticed = 0
        for _ in range(count):
            path = self.draw.choice(paths)
            data = path.read_bytes()
            changed = bytearray(data)
            changed[self.draw.randrange(len(data))] ^= 1 << self.draw.randrange(8)
            path.write_bytes(bytes(changed))
            noticed += bool(problems(half))
            path.write_bytes(data)
        return count, noticed

    def doubles(self, count: int) -> tuple[int, int]:
        """Start two processes on one folder: how often the run is whole, and the second refused."""
        good = 0
        for k in range(count):
            folder = self.work / f"double-{k}"
            logs = [self.work / "one", self.work / "two"]
            both = [forked(lambda: command(self.file, folder), log) for log in logs]  # noqa: B023
            codes = [ended(child) for child in both]
            refused = [log.read_text() for log, code in zip(logs, codes, strict=True) if code]
            explained = all("is being written by another process" in text for text in refused)
            numbers = [stored.number for stored in Record.read(folder).rounds]
            whole = numbers == [1, 2, 3] and self.is_whole(folder)
            good += 0 in codes and explained and whole
        return count, good


def comparison(folder: Path) -> None:
    """A comparison with two workers, in this process."""
    rounds.SAVE_EVERY = -1.0
    given = ["vowel", "rounds=20", "--rules", "fedavg,afl", "--seeds", "2", "--jobs", "2"]
    sys.argv = ["commonweal", "compare", *given, "--out", str(folder), "--quiet"]
    cli.main()


def alone(work: Callable[[], None]) -> Callable[[], None]:
    """The work in a process group of its own: a kill reaches the workers, too."""

    def begin() -> None:
        os.setpgid(0, 0)
        work()

    return begin


def comparisons(work: Path, count: int, draw: random.Random) -> tuple[int, int]:
    """Kill comparisons and their workers at random instants; each is continued three times."""
    log = work / "log"
    start = time.monotonic()
    assert ended(forked(lambda: comparison(work / "whole"), log)) == 0, log.read_text()
    longest = time.monotonic() - start
    whole = contents(work / "whole")
    survived = 0
    for k in range(count):
        folder = work / f"compare-{k}"
        for _ in range(2):
            child = forked(alone(lambda: comparison(folder)), log)  # noqa: B023
            time.sleep(draw.uniform(0.2, 0.8) * longest)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            ended(child)
        code = ended(forked(lambda: comparison(folder), log))  # noqa: B023
        survived += code == 0 and contents(folder) == whole
    return count, survived


def malicious(rules: list[str], attacks: Sequence[str], count: int) -> tuple[int, int]:
    """Guarded rules with so many malicious clients of 20: how often little is lost."""
    who = MALICIOUS[count]
    plain = {rule: Cell("synthetic", rule, "", who) for rule in rules}
    guarded = {
        Cell("synthetic", f"guarded(rule={rule})", attack, who): plain[rule]
        for rule in rules
        for attack in attacks
    }
    played = Results(None).of([*plain.values(), *guarded], rounds=20)
    scores = {cell: honest_mean(result, who) for cell, result in played.items()}
    good = sum(scores[before] - scores[cell] <= LOST for cell, before in guarded.items())
    return len(guarded), good


FLIPPED = (
    "checkpoint.safetensors",
    "rounds.jsonl",
    "run.json",
    "experiment.toml",
    "clients.chunks",
    "0*.safetensors",
)
FINISHED = ("clients.csv", "unseen.csv", "model.safetensors", "best.safetensors")


Trial = Callable[[], tuple[int, int]]  # how many were tried, and how many survived


def trials_of_kind(
    campaign: Callable[[], Campaign], kind: str, short: bool
) -> Iterator[tuple[str, Trial]]:
    """The trials of a kind of runs, by name."""
    every = 1 if kind == "plain" and not short else 5

    def operations(act: Callable[[], None], step: int) -> tuple[int, int]:
        if kind == "two ranks":
            return campaign().ranks(act, 2 * step)
        return campaign().operations(act, step)

    yield f"killed at a file operation: {kind}", lambda: operations(kill, every)
    yield f"disk full from an operation on: {kind}", lambda: operations(full, 2 * every)
    yield f"read-only from an operation on: {kind}", lambda: operations(read_only, 4 * every)
    if kind == "plain":
        yield "two processes on one folder", lambda: campaign().doubles(5 if short else 10)
        yield "clocks that jump", lambda: campaign().clocks(3)


def trials(folder: Path, short: bool) -> Iterator[tuple[str, Trial]]:
    """All trials, by name."""
    for number, kind in enumerate(list(KINDS)[: 1 if short else None]):
        campaign = cache(partial(Campaign, _new(folder / str(number)), kind, 0))
        yield from trials_of_kind(campaign, kind, short)
    compared = _new(folder / "compare")
    yield (
        "comparison with workers, killed twice",
        lambda: comparisons(compared, 1 if short else 3, DRAW),
    )
    for kind, names in (("personal models in files", FLIPPED), (GUARDED, FINISHED)):
        campaign = cache(partial(Campaign, _new(folder / names[0]), kind, 1))
        for name in names:
            yield f"a bit of {name} flipped", partial(flips, campaign, name, 20 if short else 100)
    rules = ["aaggff-s"] if short else ["fedavg", "afl", "aaggff-s", "term"]
    for number in MALICIOUS:
        attacked = partial(malicious, rules, list(ATTACKS), number)
        yield f"{number} of 20 clients malicious, guarded rules", attacked


def flips(campaign: Callable[[], Campaign], name: str, count: int) -> tuple[int, int]:
    return campaign().flips(name, count)


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a part of the cases")
    parser.add_argument("--only", default="", help="the rows whose name contains this")
    given = parser.parse_args()
    ClientStates.__init__.__defaults__ = (0, 0)  # states in files
    rows: list[tuple[str, int, int]] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for what, trial in trials(Path(folder), given.short):
            if given.only in what:
                rows.append((what, *trial()))
                seconds = time.monotonic() - start
                print(f"{seconds:.0f} s: {rows[-1]}", file=sys.stderr, flush=True)
    print("| what | tried | survived or noticed |\n|---|--:|--:|")
    for what, tried, good in rows:
        print(f"| {what} | {tried} | {good} |")
    print(f"\n{(time.monotonic() - start) / 60:.0f} minutes.")
    sys.exit(0 if all(tried == good for _, tried, good in rows) else 1)


if __name__ == "__main__":
    main()
