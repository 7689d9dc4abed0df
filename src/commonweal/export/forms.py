"""A run's model for others: a folder that needs no Commonweal, as torch program or ONNX."""

import inspect
import logging
import warnings
from pathlib import Path
from typing import Literal

import torch

import commonweal
from commonweal.base.errors import ConfigError, RunError, install
from commonweal.base.files import write_file
from commonweal.base.plain import to_json
from commonweal.data import plain_table
from commonweal.export.model_card import write_card
from commonweal.export.prediction import Predictor, predictor
from commonweal.record.record import Record

__all__ = ["FORMS", "Form", "export"]

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

    Args:
        record: The run.
        form: "torch", "onnx" or "card".
        to: A folder, or the card's file; None for one in the run's folder.
        client: The client whose personal model is written; None for the global model.
        trust: Import the programs that the run names.
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
        raise ConfigError(f"ONNX needs a package: {install('onnx')}") from None
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
