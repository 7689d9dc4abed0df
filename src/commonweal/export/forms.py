"""A run's model for others: a folder that needs no Commonweal, as torch program or ONNX."""

import inspect
import logging
import warnings
from pathlib import Path
from typing import Literal

import torch

import commonweal
from commonweal.base import text
from commonweal.base.errors import ConfigError, RunError, install
from commonweal.base.files import write_file
from commonweal.base.plain import to_json
from commonweal.data import plain_table
from commonweal.export.model_card import write_card
from commonweal.export.prediction import OUTSIDE, Models, Predictor
from commonweal.record.record import Record

__all__ = ["FORMS", "Form", "export"]

Form = Literal["torch", "onnx", "card"]
FORMS: tuple[Form, ...] = ("torch", "onnx", "card")

PREDICT = '''"""Predict the rows of a CSV file: python predict.py new.csv > predictions.csv

Needs Python, numpy and {needs}, and the files next to this one. Written by Commonweal {version}.
Where clients have personal models (clients.json), each row is predicted by its client's.
"""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
{imports}
from prepare import naming, outside, owners, prepare, read_columns, read_csv

FOLDER = Path(__file__).parent
FORMULA = re.compile({formula!r})
NUMBER = re.compile({number!r})


{quoted}

def read_json(name):
    path = FOLDER / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {{}}


def load(name):
    """What takes features (n, d), float32, and gives probabilities of classes, or values."""
{load}


def predict(table):
    """Probabilities of classes (n, classes), or values (n, 1), of a table of texts by column."""
    preprocessing = read_json("preparation.json")
    x = prepare(read_columns(preprocessing), table)
    personal = read_json("clients.json")
    names = owners(preprocessing, table) if personal else None
    files = np.array([personal.get(name, "{model}") for name in names or [""] * len(x)])
    parts = {{name: load(name)(x[files == name]) for name in np.unique(files).tolist()}}
    answers = np.empty((len(x), next(iter(parts.values())).shape[1]), np.float32)
    for name, part in parts.items():
        answers[files == name] = part
    if personal:
        known = int((files != "{model}").sum())
        print(known, "rows by personal models,", len(x) - known, "by the global", file=sys.stderr)
    return answers


def main():
    preprocessing = read_json("preparation.json")
    table = read_csv(sys.argv[1], preprocessing["encoding"])
    answers = predict(table)
    names = preprocessing["class_names"]
    columns = {{name: table[name] for name in naming(preprocessing, table)}}
    label = "predicted " + preprocessing["label"]
    if names:
        classes = answers.argmax(1)
        if preprocessing.get("threshold") is not None:
            classes = (answers[:, 1] >= preprocessing["threshold"]).astype(int)
        columns[label] = [names[i] for i in classes.tolist()]
        for i, name in enumerate(names):
            shares = answers[:, i].tolist()
            columns["probability of " + name] = [f"{{share:.6f}}" for share in shares]
    else:
        columns[label] = [f"{{value:.6g}}" for value in answers[:, 0].tolist()]
    known = read_columns(preprocessing)
    if any(column.low is not None for column in known):
        columns["{outside}"] = [", ".join(each) for each in outside(known, table)]
    writer = csv.writer(sys.stdout, lineterminator="\\n")
    for row in (list(columns), *zip(*columns.values())):
        writer.writerow(map(quoted, row))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit("predict.py: " + str(error))
'''

LOADERS = {
    "torch": (
        "torch",
        "import torch",
        "    model = torch.export.load(str(FOLDER / name)).module()\n"
        "    return lambda x: model(torch.from_numpy(x)).detach().numpy()",
    ),
    "onnx": (
        "onnxruntime",
        "import onnxruntime",
        "    session = onnxruntime.InferenceSession(str(FOLDER / name))\n"
        "    feature = session.get_inputs()[0].name\n"
        "    return lambda x: session.run(None, {feature: x})[0]",
    ),
}
MODELS = {"torch": "model.pt2", "onnx": "model.onnx"}  # the global model, or that of --client
MOST_CLIENTS = 200  # with personal models, each of which is a file


def export(
    record: Record,
    form: Form,
    to: Path | None = None,
    client: str | None = None,
    trust: bool = False,
) -> Path:
    """Write a run's model, or a client's personal one, and return where it is.

    "torch" and "onnx" are folders: the model from features to probabilities or values, how a
    table's rows become features, and a script that predicts. Of a run on a table with personal
    models all are written. "card" is a Markdown file with a badge next to it.

    Args:
        record: The run.
        form: "torch", "onnx" or "card".
        to: A folder, or the card's file; None for one in the run's folder.
        client: The client whose personal model is written; None for the global model and, of a
            table, all personal ones.
        trust: Import the programs that the run names.
    """
    if form == "card":
        return write_card(record, to)
    folder = to or record.folder / f"{form}-model"
    if folder.is_file():
        raise ConfigError(f"{str(folder)!r} is a file: name a folder for the model's files")
    models = Models(record, trust)
    model = models.of(client)
    folder.mkdir(parents=True, exist_ok=True)
    write = _write_torch if form == "torch" else _write_onnx
    write(model, record, folder / MODELS[form])
    (folder / "clients.json").unlink(missing_ok=True)
    if client is None and models.personal and record.preprocessing() is not None:
        _check_clients(models)
        files = {}
        for number, name in enumerate(models.clients):
            files[name] = f"clients/{number:04d}{Path(MODELS[form]).suffix}"
            (folder / "clients").mkdir(exist_ok=True)
            write(models.of(name), record, folder / files[name])
        write_file(folder / "clients.json", to_json(files))
    _write_script(record, form, folder)
    return folder


def _check_clients(models: Models) -> None:
    """Raise ConfigError where a run has too many personal models to write each."""
    count = len(models.clients)
    if count > MOST_CLIENTS:
        raise ConfigError(
            f"{count} clients have personal models, too many to write each: name one with --client"
        )


def _example(record: Record) -> torch.Tensor:
    return torch.zeros(2, *record.shape)


def _write_torch(model: Predictor, record: Record, path: Path) -> None:
    rows = torch.export.Dim("rows", min=1)
    program = torch.export.export(model, (_example(record),), dynamic_shapes=({0: rows},))
    torch.export.save(program, str(path))


def _write_onnx(model: Predictor, record: Record, path: Path) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise ConfigError(f"ONNX needs a package: {install('onnx')}") from None
    rows = torch.export.Dim("rows", min=1)
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
    script = PREDICT.format(
        needs=needs,
        version=commonweal.__version__,
        imports=imports,
        load=load,
        model=MODELS[form],
        outside=OUTSIDE,
        formula=text.FORMULA.pattern,
        number=text.NUMBER.pattern,
        quoted=inspect.getsource(text.quoted).replace(": str) -> str", ")"),
    )
    write_file(folder / "preparation.json", to_json(preprocessing.values()))
    write_file(folder / "prepare.py", inspect.getsource(plain_table).encode())
    write_file(folder / "predict.py", script.encode())
