"""`commonweal predict`: a run's model on new rows of a table."""

from pathlib import Path
from typing import Annotated

from commonweal.app.commands import console
from commonweal.app.commands.options import (
    Chosen,
    Client,
    Quiet,
    RunFolder,
    Trust,
    argument,
    out,
)


def predict(
    run: RunFolder,
    path: Annotated[Path, argument("TABLE", "New rows: CSV or Parquet.")],
    to: Annotated[Path | None, out("The CSV file; by default it is printed.")] = None,
    client: Client = None,
    choice: Chosen = False,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Predict the rows of a table with a run's model.

    For example: commonweal predict runs/patients-fedavg-0 new.csv -o predictions.csv

    New rows are preprocessed like the training rows. With --choice, each row is predicted by the
    model that its client (or the one in --client) chose.
    """
    from commonweal.app.export.prediction import predict_chosen, predict_table
    from commonweal.base.files import write_file
    from commonweal.record.record import Record

    if choice:
        predictions = predict_chosen(run, path, client, trust)
    else:
        predictions = predict_table(Record.read(run), path, client, trust)
    if not quiet:
        for remark in predictions.remarks:
            console.say(remark)
    if to is None:
        print(predictions.csv().decode(), end="")
        return
    write_file(to, predictions.csv(), durable=False)
    if not quiet:
        console.say(f"{len(predictions.rows)} rows: {to}")
