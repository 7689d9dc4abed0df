"""Personal models: one global model, and a personal model for every client.

python examples/python/personal_models.py
"""

import commonweal as cw

experiment = cw.Experiment(
    dataset={"name": "vowel", "test": 0.5},
    model={"name": "mlp", "hidden": [32]},
    client={"name": "apfl", "lr": 0.2, "batch": 10},
    rounds=30,
    evaluate_every=30,
)
for last in cw.run(experiment, out="runs/personal"):  # noqa: B007
    pass
record = cw.Record.read("runs/personal")
table = record.clients()
own = table.evaluation.personal
assert own is not None
print("speaker    shared model    own model")
for k, name in enumerate(table.names):
    shared, personal = float(table.evaluation.score[k]), float(own.score[k])
    print(f"{name:10} {100 * shared:10.1f} % {100 * personal:10.1f} %")
