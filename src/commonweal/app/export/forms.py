"""A run's model for others: a folder that needs no Commonweal, as torch program or ONNX."""

import inspect
import logging
import warnings
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

import torch

import commonweal
from commonweal.app.export.model_card import write_card
from commonweal.app.export.prediction import OUTSIDE, ClientModels, Predictor
from commonweal.base import text
from commonweal.base.errors import ConfigError, RunError, install
from commonweal.base.files import write_file
from commonweal.base.plain import to_json
from commonweal.data.tables import plain_table
from commonweal.record.record import Record

Form = Literal["torch", "onnx", "card"]
FORMS: tuple[Form, ...] = ("torch", "onnx", "card")

PREDICT = Template(
    files("commonweal.app.export").joinpath("predict.py.template").read_text(encoding="utf-8")
)
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
    models = ClientModels(record, trust)
    model = models.of(client)
    folder.mkdir(parents=True, exist_ok=True)
    write = _write_torch if form == "torch" else _write_onnx
    write(model, record, folder / MODELS[form])
    (folder / "clients.json").unlink(missing_ok=True)
    if client is None and models.personal and record.preprocessing() is not None:
        count = len(models.clients)
        if count > MOST_CLIENTS:
            raise ConfigError(
                f"{count} clients have personal models, too many to write each: name one with "
                "--client"
            )
        (folder / "clients").mkdir(exist_ok=True)
        names = {}
        for number, name in enumerate(models.clients):
            names[name] = f"clients/{number:04d}{Path(MODELS[form]).suffix}"
            write(models.of(name), record, folder / names[name])
        write_file(folder / "clients.json", to_json(names))
    _write_script(record, form, folder)
    return folder


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
    script = PREDICT.substitute(
        needs=needs,
        version=commonweal.__version__,
        imports=imports,
        load=load,
        model=MODELS[form],
        outside=OUTSIDE,
        formula=repr(text.FORMULA.pattern),
        number=repr(text.NUMBER.pattern),
        quoted=inspect.getsource(text.quoted).replace(": str) -> str", ")"),
    )
    write_file(folder / "preparation.json", to_json(preprocessing.values()))
    write_file(folder / "prepare.py", inspect.getsource(plain_table).encode())
    write_file(folder / "predict.py", script.encode())
