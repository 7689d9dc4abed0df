# %% [markdown]
# # Compare for a paper
#
# Compare several rules over seeds, test the differences, and write a LaTeX table and a figure. This page uses few rounds and seeds
# to run in seconds. Use ten seeds and as many rounds as your models need.

# %%
import commonweal as cw

experiment = cw.Experiment(
    dataset="digits",
    partition={"name": "dirichlet", "clients": 10, "alpha": 0.3},
    client={"name": "sgd", "lr": 0.1, "batch": 20},
    rounds=10,
    evaluate_every=5,
)
comparison = cw.compare(
    experiment, rules=["fedavg", "term", "afl", "aaggff-s"], seeds=2, out="runs", baselines=False
)

# %% [markdown]
# This is the table that `commonweal compare --format latex` prints. Gains over the first rule have 95 % intervals over test samples,
# corrected for the number of rules. Do not call a gain an improvement if its interval contains 0.

# %%
print(comparison.table("markdown"))

# %%
print(comparison.table("latex"))

# %% [markdown]
# For your own statistics, `frame` returns one line per rule, seed and client: a pandas or polars frame, or a dict of lists if neither
# is installed.

# %%
frame = comparison.frame()
print(list(frame), len(frame["score"]))

# %% [markdown]
# Choose parameters on validation samples, never on test samples. `commonweal tune` does this, and `commonweal compare --tuned` uses
# the result. `commonweal show NAME` prints the paper of each rule to cite.

# %%
cw.Record.find("runs")[0].plot.rounds()
