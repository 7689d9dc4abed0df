"""Objectives on the client, fedbn, fine-tuning and fedbabu, and parts of epochs.

Each against plain torch on the same batches.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cases import cases
from commonweal.base import randomness
from commonweal.base.errors import ConfigError
from commonweal.clients import Blend, Client, FedBABU, FedBN, FineTune, PropFairClient, TERMClient
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import job_from_parts
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import Round, run
from commonweal.rules import SemiVRed
from commonweal.task.task import Task
from commonweal.training.batches import schedule
from commonweal.training.client import learning_rate
from helpers import batches_of, close, planned
from personal_helpers import client, federation, sent, task, trained
from rule_helpers import reports, weigh
from run_helpers import states_of

F, T = federation(), task()
HEAD = torch.arange(51) >= 30  # 4 x 6 + 6 of the body, then 6 x 3 + 3 of the head


def module_of(w: Tensor) -> nn.Module:
    m = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.utils.vector_to_parameters(w.clone(), m.parameters())
    return m


def by_torch(w: Tensor, batches: list[Tensor], objective: Any, lr: float = 0.1) -> Tensor:
    """SGD with momentum 0.5 on an objective of the rows' losses."""
    m = module_of(w)
    optimizer = torch.optim.SGD(m.parameters(), lr=lr, momentum=0.5)
    for rows in batches:
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(m(F.train.x[rows]), F.train.y[rows], reduction="none")
        objective(losses).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(m.parameters()).detach()


# Objectives


@cases(("baseline", "huber"), [(5.0, False), (1.0, False), (1.0, True)])
def test_propfair_on_the_client(baseline: float, huber: bool) -> None:
    """With M = 1 most batches are beyond M - 0.2, with M = 5 none is."""
    method = client("propfair", baseline=baseline, huber=huber)
    beyond = []

    def objective(losses: Tensor) -> Tensor:
        loss = losses.mean()
        beyond.append(baseline - float(loss.detach()) < 0.2)
        if beyond[-1]:
            return loss / (0.2 if huber else baseline)
        return -torch.log(baseline - loss)

    expected = by_torch(T.initial, batches_of(planned(method, T, F, [2])), objective)
    close(trained(method, T, F, sent(T))[0]["update"], T.initial - expected)
    assert any(beyond) == (baseline == 1.0)


def test_semi_vred_on_the_client() -> None:
    """Against plain torch, with a mean that some batches are above and others below."""
    method = client("semi-vred", beta=2.0)
    above = []

    def objective(losses: Tensor) -> Tensor:
        loss = losses.mean()
        above.append(float(loss.detach()) > 1.05)
        return loss + 2 * (loss - 1.05) ** 2 if above[-1] else loss

    expected = by_torch(T.initial, batches_of(planned(method, T, F, [2])), objective)
    message = sent(T, mean=torch.tensor(1.05))
    close(trained(method, T, F, message)[0]["update"], T.initial - expected)
    assert 0 < sum(above) < len(above)


def test_semi_vred_on_the_client_is_the_rule_but_for_a_step_along_the_mean() -> None:
    """One full gradient per client: the rule's direction plus 2 beta sum p (f - mean)_+ mean u."""
    beta = 3.0
    settings = {"batch": 0, "epochs": 1, "momentum": 0.0}
    plain = client("sgd", **settings)
    sizes, losses, updates = [], [], []
    for who in range(5):
        (rows,) = batches_of(planned(plain, T, F, [who]))
        scores = module_of(T.initial)(F.train.x[rows]).detach()
        sizes.append(len(rows))
        losses.append(nn.functional.cross_entropy(scores, F.train.y[rows]))
        updates.append(trained(plain, T, F, sent(T), who=who)[0]["update"])
    p = np.array(sizes) / sum(sizes)
    f, u = np.array(losses, dtype=float), torch.stack(updates).numpy()
    above = np.maximum(f - p @ f, 0)

    method = client("semi-vred", beta=beta, **settings)
    replies = {"size": torch.tensor(sizes), "loss": torch.tensor(losses)}
    shared = method.update_shared(method.init_shared(T), replies, 5)
    assert float(shared["mean"]) == pytest.approx(p @ f, rel=1e-6)
    got = [trained(method, T, F, sent(T) | shared, who=k)[0]["update"] for k in range(5)]
    rule = weigh(SemiVRed(beta), reports(torch.from_numpy(f), sizes=sizes)).numpy()
    expected = rule @ u + 2 * beta * (p @ above) * (p @ u)
    np.testing.assert_allclose(p @ torch.stack(got).numpy(), expected, rtol=1e-4, atol=1e-7)
    assert above.max() > 0.01


def test_semi_vred_on_the_client_begins_as_sgd() -> None:
    """Without a mean, and with the losses of the first epoch where no others are sent."""
    method = client("semi-vred")
    first = trained(method, T, F, sent(T) | method.init_shared(T))[0]["update"]
    close(first, trained(client("sgd"), T, F, sent(T))[0]["update"])
    replies = {"size": torch.tensor([1, 3]), "train_loss": torch.tensor([2.0, 4.0])}
    assert method.update_shared({}, replies, 2)["mean"].item() == 3.5


def test_propfair_with_a_far_baseline_is_sgd_with_a_rate_over_m() -> None:
    fair = trained(client("propfair", baseline=1e4, lr=1e3), T, F, sent(T))[0]["update"]
    plain = trained(client("sgd", lr=0.1), T, F, sent(T))[0]["update"]
    torch.testing.assert_close(fair, plain, rtol=2e-3, atol=1e-4)


@cases("t", [2.0, -1.5, 0.0])
def test_the_tilt_of_rows(t: float) -> None:
    method = client("term", t=t)

    def objective(losses: Tensor) -> Tensor:
        return torch.log(torch.exp(t * losses).mean()) / t if t else losses.mean()

    expected = by_torch(T.initial, batches_of(planned(method, T, F, [2])), objective)
    close(trained(method, T, F, sent(T))[0]["update"], T.initial - expected)


def test_the_tilt_lowers_the_largest_or_the_smallest_loss() -> None:
    """The property of the paper: from min (t to -inf) over mean (0) to max loss (t to inf)."""
    rows = F.train.client(2)
    reached = []
    for t in (-3.0, 0.0, 10.0):
        method = client("term", t=t, epochs=400, batch=0, lr=0.02, momentum=0.0)
        w = T.initial - trained(method, T, F, sent(T))[0]["update"]
        outputs = module_of(w)(rows.x)
        losses = nn.functional.cross_entropy(outputs, rows.y, reduction="none").detach()
        reached.append((float(losses.max()), float(losses.min())))
    assert reached[2][0] < reached[1][0] < reached[0][0]
    assert reached[0][1] < reached[1][1] < reached[2][1]


def test_losses_of_1000_are_finite_under_a_tilt() -> None:
    w = T.initial * 1e4
    reply = trained(client("term", t=5.0, lr=1e-6), T, F, sent(T) | {"w": w})[0]
    assert reply["update"].isfinite().all() and reply["update"].any()


@cases(
    ("make", "words"),
    [
        (
            lambda: PropFairClient(baseline=0.1),
            "margin = 0.2: the margin must be above 0 and below",
        ),
        (lambda: FineTune(tune_epochs=0), "tune_epochs = 0, tune_lr = None: both must be above 0"),
        (lambda: FedBABU(tune_lr=-1.0), "tune_lr = -1.0: both must be above 0"),
        (lambda: Client(epochs=0), "client epochs = 0: it must be above 0"),
        (lambda: Client(epochs=math.nan), "client epochs = nan: it must be above 0"),
        (lambda: FedBN().check(T, 3), "Sequential has none: take a model that has"),
        (lambda: FedBABU(head=("9",)).check(T, 3), "head = '9' is not a layer"),
    ],
)
def test_a_wrong_value_is_an_error(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


# FedBN


def test_fedbn_keeps_what_normalises() -> None:
    t = task(norm=True)  # names: 0.weight, 0.bias, 1.weight, 1.bias, 3.weight, 3.bias, statistics
    mask = FedBN().private(t)
    kept = [n for n, m in zip(t.names, torch.split(mask, t.sizes), strict=True) if m.all()]
    statistics = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert kept == ["1.weight", "1.bias", *statistics]
    assert int(mask.sum()) == 4 * 6 + 1
    done = last_round(FedBN(batch=5), t, rounds=3)
    assert torch.equal(done.state["w"][mask], t.initial[mask])  # nobody sent it
    assert not torch.equal(done.state["w"][~mask], t.initial[~mask])
    assert done.evaluation is not None and done.evaluation.personal is not None


def last_round(method: Client, t: Task = T, f: Federation = F, **settings: Any) -> Round:
    *_, last = run(job_from_parts(t, f, rule="fedavg", client=method, **settings))
    return last


def test_fedbn_serves_clients_whose_inputs_differ_in_scale() -> None:
    """The paper's claim, on two clients who measure in other units."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    owner = np.repeat(["metres", "feet"], 200)
    x[owner == "feet"] = 10 * x[owner == "feet"] + 30
    f = Federation.from_arrays(x, y, owner)
    settings: dict[str, Any] = {"batch": 20, "lr": 0.05}
    torch.manual_seed(0)
    t = Task(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    own = last_round(FedBN(**settings), t, f, rounds=20).evaluation
    shared = last_round(Client(**settings), t, f, rounds=20).evaluation
    assert own is not None and own.personal is not None and shared is not None
    assert own.personal.score.min() > 0.9 > shared.score.min() + 0.05


# Fine-tuning


def tuned_job(method: Client, rounds: int = 2, **more: Any) -> tuple[Round, Simulator]:
    engine = Simulator(F, vectorize=more.pop("vectorize", "auto"))
    job = job_from_parts(T, F, rule="fedavg", client=method, rounds=rounds, **more)
    object.__setattr__(job, "engine", engine)
    *_, last = run(job)
    return last, engine


def tuning_batches(method: FineTune, who: int, number: int) -> list[Tensor]:
    key = randomness.key(F.names[who])
    rng = randomness.stream(0, number, key, randomness.purpose("tune"))
    assert method.tuner is not None
    return batches_of(schedule(method.tuner, T, F.train, torch.tensor([who]), [rng]))


@cases("mode", ["loop", "vmap"])
@cases("algorithm", ["averaging", "two-phase"])
def test_fine_tuning_by_torch(algorithm: str, mode: str) -> None:
    """After the last round everyone trains the final model, whether it took part or not."""
    method = FineTune(batch=5, momentum=0.5, lr=0.1, tune_epochs=3, tune_lr=0.03)
    last, engine = tuned_job(method, 2, cohort=2, algorithm=algorithm, vectorize=mode)
    w = last.state["w"]
    assert sorted(dict(engine.states)) == [0, 1, 2, 3, 4]
    for who, state in states_of(engine).items():
        batches = tuning_batches(method, who, 2)
        per_epoch = -(-int(F.train.sizes[who]) // 5)
        assert len(batches) == 3 * per_epoch
        close(state["own"], by_torch(w, batches, torch.mean, lr=0.03))
        assert torch.equal(method.uses(T, sent(T) | {"w": w}, state).models[0], state["own"])
    assert last.evaluation is not None and last.evaluation.personal is not None
    assert last.evaluation.personal.losses.mean() < last.evaluation.losses.mean()


@cases("method", ["fine-tune", "fedbabu", "blend"])
def test_fine_tuning_has_the_rate_that_is_given_or_that_of_the_last_round(method: str) -> None:
    """Not a rate that `decay` and `schedule` have lowered over the rounds."""
    shared = {"lr": 0.1, "decay": 0.9, "schedule": "1/t"}

    def rate(**parameters: float) -> float:
        built = client(method, **shared, **parameters)
        assert isinstance(built, Blend | FineTune)
        return learning_rate(built.tuner(10) if isinstance(built, Blend) else built.tuner, 10)

    assert rate(tune_lr=0.03) == pytest.approx(0.03)
    assert rate() == pytest.approx(0.1 * 0.9**9 / 10)


def test_tuned_models_are_saved_with_the_run(tmp_path: Path) -> None:
    method = FineTune(batch=5)
    rounds = run(T, F, rule="fedavg", client=method, rounds=2, cohort=2, out=tmp_path / "run")
    last = list(rounds)[-1].evaluation
    job, state = reopen(tmp_path / "run", T, F)
    again = job.engine.evaluate(job.algorithm, state)
    assert last is not None and last.personal is not None and again.personal is not None
    assert torch.equal(again.personal.losses, last.personal.losses)
    assert not torch.equal(again.personal.losses, again.losses)


def test_before_the_end_clients_use_the_shared_model() -> None:
    method = FineTune(batch=5)
    rounds = run(job_from_parts(T, F, rule="fedavg", client=method, rounds=3))
    evaluations = [each.evaluation for each in rounds]
    for evaluation in evaluations[:2]:
        assert evaluation is not None and evaluation.personal is not None
        close(evaluation.personal.losses, evaluation.losses)


def test_the_shared_model_is_fedavgs() -> None:
    tuned, _ = tuned_job(FineTune(batch=5), 3)
    assert torch.equal(tuned.state["w"], tuned_job(Client(batch=5), 3)[0].state["w"])


@cases("tune", ["head", "all"])
def test_fedbabu_by_torch(tune: Any) -> None:
    method = FedBABU(batch=5, momentum=0.5, lr=0.1, weight_decay=0.0, tune_epochs=2, tune=tune)
    last, engine = tuned_job(method, 2)
    w = last.state["w"]
    assert torch.equal(w[HEAD], T.initial[HEAD]) and not torch.equal(w[~HEAD], T.initial[~HEAD])
    for who, state in states_of(engine).items():
        m = module_of(w)
        trainable = m[2].parameters() if tune == "head" else m.parameters()  # type: ignore[index]
        optimizer = torch.optim.SGD(trainable, lr=0.1, momentum=0.5)
        for rows in tuning_batches(method, who, 2):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(m(F.train.x[rows]), F.train.y[rows])
            torch.autograd.backward([loss])
            optimizer.step()
        close(state["own"], nn.utils.parameters_to_vector(m.parameters()).detach())


def test_fedbabus_body_is_trained_under_the_first_head() -> None:
    method = client("fedbabu", weight_decay=0.1)
    w = T.initial.clone()
    m = module_of(w)
    body = torch.optim.SGD(m[0].parameters(), lr=0.1, momentum=0.5, weight_decay=0.1)  # type: ignore[index]
    for rows in batches_of(planned(method, T, F, [2])):
        body.zero_grad()
        loss = nn.functional.cross_entropy(m(F.train.x[rows]), F.train.y[rows])
        torch.autograd.backward([loss])
        body.step()
    expected = nn.utils.parameters_to_vector(m.parameters()).detach()
    close(trained(method, T, F, sent(T))[0]["update"], T.initial - expected)


# Parts of epochs


@cases(("epochs", "batches"), [(0.25, 2), (0.2, 1), (0.01, 1), (1, 5), (2.5, 13)])
def test_a_part_of_an_epoch(epochs: float, batches: int) -> None:
    """24 rows by 5 are five batches per epoch; a part of one is rounded up."""
    part = batches_of(planned(Client(epochs=epochs, batch=5), T, F, [2]))
    whole = batches_of(planned(Client(epochs=3, batch=5), T, F, [2]))
    assert len(part) == batches
    if epochs <= 1:
        assert all(torch.equal(a, b) for a, b in zip(part, whole, strict=False))
    if epochs == 2.5:
        first_epochs = torch.cat(part[:10]).bincount(minlength=int(F.train.offsets[3]))
        assert set(first_epochs[F.train.offsets[2] :].tolist()) == {2}


def test_a_whole_number_of_epochs_stays_one() -> None:
    assert isinstance(client("sgd", epochs=2).epochs, int)
    assert client("sgd", epochs=0.25).epochs == 0.25
    assert isinstance(TERMClient().epochs, int)
