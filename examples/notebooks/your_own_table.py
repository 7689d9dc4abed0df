# %% [markdown]
# # Your own table
#
# Go from a table with a column of clients to a model, a comparison and predictions. The table is made up, with typical missing values,
# dates and decimal commas. [The page of the same name](../own.md) does the same without Python.

# %%
import csv
import random
from pathlib import Path

import commonweal as cw

random.seed(0)
with Path("patients.csv").open("w", newline="", encoding="utf-8") as file:
    table = csv.writer(file, delimiter=";")
    table.writerow(["patient", "hospital", "age", "creatinine", "admitted", "died"])
    for i in range(400):
        hospital = random.choice(["Aachen", "Bonn", "Ulm"])
        age = random.uniform(20, 90)
        creatinine = random.gauss(1.0, 0.2) * (2 if age > 60 else 1)
        died = age / 100 + creatinine + random.gauss(0, 0.3) > 2.2
        shown = "" if random.random() < 0.1 else f"{age:.1f}".replace(".", ",")
        numbers = [shown, f"{creatinine:.2f}".replace(".", ",")]
        day = f"{1 + i % 28:02d}.{1 + i % 12:02d}.2024"
        table.writerow([f"P{i:04d}", hospital, *numbers, day, "yes" if died else "no"])
print(Path("patients.csv").read_text(encoding="utf-8")[:200])

# %% [markdown]
# An experiment names the file, the label and the column of clients. The run's preprocessing contains how each column is used.

# %%
experiment = cw.Experiment(
    dataset={"name": "table", "path": "patients.csv", "label": "died", "client": "hospital"},
    rule="aaggff-s",
    client={"name": "sgd", "lr": 0.2, "batch": 20},
    rounds=20,
)
for round in cw.run(experiment, out="runs/patients"):
    last = round
print({name: f"{last.metrics[name]:.3f}" for name in ("mean", "worst")})

# %%
record = cw.load_run("runs/patients")
for column in record.preprocessing().columns:
    print(f"{column.name:12} {column.becomes}")

# %% [markdown]
# Predict a new patient with the model. New rows are preprocessed like the training rows.

# %%
import torch

new = {"age": ["71,5"], "creatinine": ["2,4"], "admitted": ["03.02.2025"], "patient": ["P9"]}
x = torch.from_numpy(record.preprocessing().rows(new))
probabilities = record.module()(x).softmax(1)[0].tolist()
for name, probability in zip(record.facts.class_names, probabilities, strict=True):
    print(f"{name}: {probability:.2f}")

# %% [markdown]
# Write a model card for those who get the model. It lists how well each client is served.

# %%
from commonweal.app.export import card

print(card(record))
