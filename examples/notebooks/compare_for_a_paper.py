# %% [markdown]
# # Compare for a paper
#
# Several rules and seeds, differences that are paired by seed, a table in LaTeX and a figure. Rounds and seeds are few here, so that
# the page is built in seconds; take ten seeds and the rounds that your models need.

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
# The table, as `commonweal compare --format latex` prints it. A difference whose interval contains 0 is marked n.s. (not
# significant): do not call it an improvement.

# %%
print(comparison.table("markdown"))

# %%
print(comparison.table("latex"))

# %% [markdown]
# All scores, one line per rule, seed and client, for your own statistics: a pandas or polars frame, or a dict of lists where neither
# is installed.

# %%
frame = comparison.frame()
print(list(frame), len(frame["score"]))

# %% [markdown]
# Choose parameters on validation samples, never on test samples: `commonweal tune` does it, and `commonweal compare --tuned` takes what it
# chose. Cite the paper of each rule: `commonweal show NAME` prints it.

# %%
cw.Record.find("runs")[0].plot.rounds()
