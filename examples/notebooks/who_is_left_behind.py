# %% [markdown]
# # Who is left behind?
#
# Fifteen speakers train one model that tells eleven vowels apart. This notebook shows which speakers FedAvg's model fails,
# what a fair rule changes, and whether a local model would serve each speaker better. The data is part of the package.

# %%
import commonweal as cw

experiment = cw.Experiment(
    dataset={"name": "vowel", "test": 0.5},
    model={"name": "mlp", "hidden": [32]},
    client={"name": "sgd", "batch": 10, "lr": 0.2},
    rounds=60,
    evaluate_every=10,
)
comparison = cw.compare(experiment, rules=["fedavg", "aaggff-s"], seeds=2, out="runs")
print(comparison)

# %% [markdown]
# Every speaker's accuracy in per cent. The two seeds test one half of the samples each. "alone" is a local model trained on 33 samples, and "pooled" a
# model trained on all samples in one place.

# %%
results = [*comparison.baselines, *comparison.results]
scores = {each.label: 100 * each.means for each in results}
print("speaker".ljust(10), *(label.rjust(9) for label in scores))
for k, name in enumerate(comparison.results[0].clients):
    print(name.ljust(10), *(f"{values[k]:9.1f}" for values in scores.values()))

# %% [markdown]
# The mean and the worst speaker of each column:

# %%
for label, values in scores.items():
    print(f"{label:10} mean {values.mean():5.1f}   worst {values.min():5.1f}")

# %% [markdown]
# Does joining help, and whom? The verdict is about the mean gain of these speakers on new samples. Speakers are named if their gain
# is significant, corrected for all speakers and methods. Here local models win, because a speaker's vowels are so similar that
# the samples of others teach less. With such data, train local or personal models.

# %%
print(comparison.verdict)
for method, better in comparison.judgement.better.items():
    print(f"{method}: significantly better off: {', '.join(better) or 'nobody'}")

# %% [markdown]
# Which speakers did the rule favour? Each line of the picture is a speaker, and 1 is an equal share of the update.

# %%
fair = [record for record in cw.Record.find("runs") if record.title == "aaggff-s"]
fair[0].plot.weights()
