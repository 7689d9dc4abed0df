"""A run's model for others: a folder that needs no Commonweal, ONNX, or a model card."""

import inspect
import logging
import warnings
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import torch

import commonweal
from commonweal.base.errors import ConfigError, RunError
from commonweal.base.files import write_file
from commonweal.base.plain import to_json
from commonweal.base.text import shown
from commonweal.base.values import Values
from commonweal.data import plain_table
from commonweal.export.badge import badge, sentence
from commonweal.export.prediction import Predictor, class_names, predictor
from commonweal.record.record import Record
from commonweal.training.scores import find

__all__ = ["FORMS", "Form", "card", "export", "write_card"]

Form = Literal["torch", "onnx", "card"]
FORMS: tuple[Form, ...] = ("torch", "onnx", "card")

PREDICT = '''"""Predict the rows of a CSV file: python predict.py new.csv > predictions.csv

Needs Python, numpy and {needs}, and the files beside this one. Written by Commonweal {version}.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
{imports}
from prepare import prepare, read_columns, read_csv

FOLDER = Path(__file__).parent


def load():
    """What takes features (n, d), float32, and gives probabilities of classes, or values."""
{load}


def predict(table):
    """Probabilities of classes (n, classes), or values (n, 1), of a table of texts by column."""
    preprocessing = json.loads((FOLDER / "preparation.json").read_text(encoding="utf-8"))
    return load()(prepare(read_columns(preprocessing), table))


def main():
    preprocessing = json.loads((FOLDER / "preparation.json").read_text(encoding="utf-8"))
    answers = predict(read_csv(sys.argv[1]))
    names = preprocessing["class_names"]
    label = "predicted " + preprocessing["label"]
    writer = csv.writer(sys.stdout, lineterminator="\\n")
    if not names:
        writer.writerow([label])
        writer.writerows([[f"{{value:.6g}}"] for value in answers[:, 0].tolist()])
        return
    writer.writerow([label, *("probability of " + name for name in names)])
    for row in answers.tolist():
        writer.writerow([names[int(np.argmax(row))], *(f"{{value:.6f}}" for value in row)])


if __name__ == "__main__":
    main()
'''

LOADERS = {
    "torch": (
        "torch",
        "import torch",
        '    model = torch.export.load(str(FOLDER / "model.pt2")).module()\n'
        "    return lambda x: model(torch.from_numpy(x)).detach().numpy()",
    ),
    "onnx": (
        "onnxruntime",
        "import onnxruntime",
        '    session = onnxruntime.InferenceSession(str(FOLDER / "model.onnx"))\n'
        "    name = session.get_inputs()[0].name\n"
        "    return lambda x: session.run(None, {name: x})[0]",
    ),
}


def export(
    record: Record,
    form: Form,
    to: Path | None = None,
    client: str | None = None,
    trust: bool = False,
) -> Path:
    """Write a run's model, or a client's personal one, and return where it is.

    "torch" and "onnx" are folders: the model from features to probabilities or values, how a
    table's rows become features, and a script that predicts. "card" is a Markdown file with a
    badge beside it.

    trust: import the programs that the run names
    """
    if form == "card":
        return write_card(record, to)
    folder = to or record.folder / f"{form}-model"
    if folder.is_file():
        raise ConfigError(f"{str(folder)!r} is a file: name a folder for the model's files")
    model = predictor(record, client, trust)
    folder.mkdir(parents=True, exist_ok=True)
    write = _write_torch if form == "torch" else _write_onnx
    write(model, record, folder)
    _write_script(record, form, folder)
    return folder


def _example(record: Record) -> torch.Tensor:
    return torch.zeros(2, *record.shape)


def _write_torch(model: Predictor, record: Record, folder: Path) -> None:
    rows = torch.export.Dim("rows", min=1)
    program = torch.export.export(model, (_example(record),), dynamic_shapes=({0: rows},))
    torch.export.save(program, str(folder / "model.pt2"))


def _write_onnx(model: Predictor, record: Record, folder: Path) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError("ONNX needs a package: pip install 'commonweal[onnx]'") from None
    rows = torch.export.Dim("rows", min=1)
    path = folder / "model.onnx"
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, aloud
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about torch's own future
            program = torch.onnx.export(
                model,
                (_example(record),),
                dynamic_shapes=({0: rows},),
                input_names=["features"],
                output_names=["answers"],
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        program.save(str(path))
        onnx.checker.check_model(str(path))
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error).split("\n")[0]
        raise RunError(f"torch cannot write this model as ONNX ({reason}): use torch") from None


def _write_script(record: Record, form: str, folder: Path) -> None:
    """Write how a table's rows become features, and the script; a run of no table has none."""
    preprocessing = record.preprocessing()
    if preprocessing is None:
        return
    needs, imports, load = LOADERS[form]
    script = PREDICT.format(needs=needs, version=commonweal.__version__, imports=imports, load=load)
    write_file(folder / "preparation.json", to_json(preprocessing.values()))
    write_file(folder / "prepare.py", inspect.getsource(plain_table).encode())
    write_file(folder / "predict.py", script.encode())


# The model card


def write_card(record: Record, to: Path | None = None) -> Path:
    """Write a run's model card and, beside it and of the same name, its badge (.svg)."""
    if not record.evaluated:
        raise RunError(f"{record.folder}: no round has been evaluated yet: finish the run first")
    path = to or record.folder / "card.md"
    picture = path.with_suffix(".svg")
    if picture == path:
        raise ConfigError(f"{str(path)!r} is the badge's name: name the card's file, as card.md")
    write_file(picture, badge(record).encode())
    write_file(path, card(record, picture.name).encode())
    return path


def card(record: Record, picture: str = "card.svg") -> str:
    """A model card in Markdown: what it is, its data, and who is served how well.

    picture: the badge's file, beside the card
    """
    parts = [_about(record, picture), _data(record), _served(record), _limits(record)]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _about(record: Record, picture: str) -> list[str]:
    e = record.experiment
    facts = record.facts
    clients = len(record.clients().names)
    torch_version = f", torch {facts.torch}" if facts.torch else ""
    return [
        f"# Model card: {_name(record.folder.resolve().name)}",
        "",
        f"![{_name(sentence(record))}]({quote(picture)})",
        "",
        f"A model ({_part(e, 'model')}) of {facts.parameters} parameters, trained by federated "
        f"learning over {clients} clients in {len(record.rounds)} rounds: the server's "
        f"rule is `{record.title}`, the clients' method {_part(e, 'client')}, the seed "
        f"{e.get('seed', 0)}. Commonweal {facts.commonweal}{torch_version}. "
        "`experiment.toml` says everything that determines it.",
    ]


def _part(experiment: Values, key: str) -> str:
    """The name of a part; that of a run of one's own task or Flower app has none."""
    name = str((experiment.get(key) or {}).get("name", "given"))
    return "its author's own" if name == "given" else f"`{_name(name)}`"


def _count(rows: int | None) -> str:
    return "unknown" if rows is None else str(rows)


def _data(record: Record) -> list[str]:
    facts = record.facts
    lines = [
        "## Data",
        "",
        f"- Dataset: {_part(record.experiment, 'dataset')}, {_count(facts.train_rows)} "
        f"training rows and {_count(facts.test_rows)} test rows.",
    ]
    preprocessing = record.preprocessing()
    if preprocessing is not None:
        used = [column for column in preprocessing.columns if column.becomes != "nothing"]
        lines.append(f"- It predicts {_name(preprocessing.label)} from {len(used)} columns:")
        lines += [f"  - {_name(column.name)} ({column.becomes})" for column in used]
    names = class_names(record, 0)
    if names:
        lines.append(f"- Classes: {', '.join(map(_name, names))}.")
    return lines + [f"- {_name(note[0].upper() + note[1:])}." for note in facts.notes or ()]


def _name(text: str) -> str:
    """A name of the data, as text and not as markup."""
    return shown(text, "markdown")


def _served(record: Record) -> list[str]:
    """A table of clients, the worst served first."""
    score = record.facts.score
    table = record.clients()
    evaluation = table.evaluation
    own = evaluation.personal
    header = f"| client | test rows | {score} |"
    lines = [
        "## Who is served how well",
        "",
        f"`{score}` on each client's test rows, after round {record.evaluated[-1].number}.",
        "",
        header if own is None else f"{header} own model |",
        "|---|--:|--:|" if own is None else "|---|--:|--:|--:|",
    ]
    sign = -1 if find(score).lower_is_better else 1
    for k in (sign * evaluation.score).nan_to_num(nan=torch.inf).argsort().tolist():
        rows = int(evaluation.sizes[k])
        cells = [_name(table.names[k]), str(rows), _figure(evaluation.score[k])]
        if own is not None:
            cells.append(_figure(own.score[k]))
        lines.append(f"| {' | '.join(cells)} |")
    unscored = record.facts.unscored or ()
    if unscored:
        lines += ["", f"Without a score: {', '.join(map(_name, unscored))}."]
    return lines


def _figure(value: torch.Tensor) -> str:
    return "-" if value.isnan() else f"{float(value):.3f}"


def _limits(record: Record) -> list[str]:
    sizes = record.clients().evaluation.sizes
    small = int(((sizes > 0) & (sizes < 30)).sum())
    lines = [
        "## Limits",
        "",
        "- The scores are those of the clients above. Nothing here says how a client that took no "
        "part would be served.",
    ]
    if small:
        lines.append(
            f"- {small} clients have fewer than 30 test rows: their scores move by more than 3 "
            "points with each row."
        )
    simulated = record.facts.engine == "simulator"
    where = "simulated in one process" if simulated else "processes or machines of their own"
    return [
        *lines,
        f"- The clients were {where}. In the protocol only updates leave a client; without a "
        "private channel this gives no formal guarantee of privacy.",
    ]
