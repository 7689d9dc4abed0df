"""`commonweal run`: run an experiment and write it to a folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import Changes, DataDir, ExperimentFile, Json, Quiet, out
from commonweal.app.commands.show import show_run

if TYPE_CHECKING:
    from torch import Tensor

    from commonweal.jobs.job import Job

    Samples = tuple[Tensor, Tensor]  # synthetic samples and their labels


def run(
    file: ExperimentFile,
    changes: Changes = None,
    to: Annotated[
        Path | None, out("The run's folder; by default runs/FILE-RULE-CHANGES-SEED.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete the run that is in the folder, and start again.")
    ] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an experiment, write it to a folder, and print the result.

    For example: commonweal run examples/vowel.toml rule=term client.lr=0.1 rounds=50

    Every finished round is saved. Continue a stopped run with --resume.
    """
    from commonweal.config.experiment import Experiment, named

    base, stem, suffix = named(file, changes or [])
    experiment = Experiment(**base)
    folder = to or Path("runs") / (f"{stem}-{experiment.title}{suffix}-{experiment.seed}")

    from commonweal.jobs import rounds
    from commonweal.jobs.job import job_from_experiment
    from commonweal.record.record import Record

    silent = quiet or as_json
    job = job_from_experiment(experiment)
    if not job.engine.leads:  # answer the process that runs the rounds, until it ends
        list(rounds.run(job))
        return
    last = run_job(job, experiment.title, folder, resume, force, silent)
    if not silent:
        console.say(f"saved in {folder}" if last else f"{folder} was finished already")
    record = Record.read(folder)
    if record.is_public_part and not silent:
        console.print_text(f"private: {record.where_scores_are}")  # the promise stands above
        return
    show_run(record, quiet, as_json)


def run_job(job: "Job", title: str, folder: Path, resume: bool, force: bool, silent: bool) -> int:
    """Run all rounds. Returns the last one; 0: the run was finished before."""
    from commonweal.jobs import rounds
    from commonweal.report.progress import run_bar
    from commonweal.report.remarks import Remarks

    remarks = Remarks(None if silent else console.say)
    remarks.about_job(job)
    missing = _missing_picture(folder) if resume else None
    last = 0
    try:
        with run_bar(console.err, job.rounds, title, silent) as advance:
            for done in rounds.run(job, out=folder, resume=resume, force=force):
                advance(done)
                last = done.number
                remarks.about_round(done)
                if done.evaluation is not None:
                    _write_picture(folder, last, job.algorithm.samples(done.state))
    except KeyboardInterrupt:
        saved = last or _saved_rounds(folder)
        console.say(
            f"stopped after round {saved}; all rounds are saved in {folder}: continue with the "
            "same command and --resume"
        )
        raise typer.Exit(console.STOPPED) from None
    if missing is not None:
        _write_picture(folder, *missing)
    return last


def _saved_rounds(folder: Path) -> int:
    from commonweal.record.record import Record

    started = (folder / "experiment.toml").exists()
    return len(Record.read(folder).rounds) if started else 0


def _missing_picture(folder: Path) -> "tuple[int, Samples | None] | None":
    """The last evaluated round and its synthetic rows, if its picture was not written."""
    from commonweal.record.record import Record

    if not (folder / "synthetic.npz").exists():
        return None
    record = Record.read(folder)
    if not record.evaluated:
        return None
    number = record.evaluated[-1].number
    return None if _picture_path(folder, number).exists() else (number, record.samples())


def _picture_path(folder: Path, number: int) -> Path:
    return folder / "pictures" / f"{number:06d}.png"


def _write_picture(folder: Path, number: int, samples: "Samples | None") -> None:
    from commonweal.base.files import write_file
    from commonweal.report.pictures import picture

    image = b"" if samples is None else picture(*samples)
    if image:  # rows that are not images have none
        write_file(_picture_path(folder, number), image, durable=False)
