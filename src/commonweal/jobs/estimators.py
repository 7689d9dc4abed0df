"""Estimators with scikit-learn's conventions, which also take the client of each sample.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> X, site = rng.normal(size=(120, 3)), np.repeat(["north", "south"], 60)
>>> y = np.where(X[:, 0] > 0, "ill", "well")
>>> model = FederatedClassifier(rounds=5).fit(X, y, client=site)
>>> model.predict(X[:3], client=site[:3]).tolist() == y[:3].tolist()
True
"""

from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from commonweal.base.arguments import expect, expect_int
from commonweal.base.errors import DataError
from commonweal.config import catalog
from commonweal.data.arrays import as_array
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.data.split import number_clients
from commonweal.engines.engine import LocalEngine
from commonweal.jobs.rounds import run
from commonweal.task.task import Task
from commonweal.task.uses import mixed_module, one_model

EVERYONE = "everyone"  # the client of samples whose client is not given


class _Federated(BaseEstimator):  # type: ignore[misc]
    """The common part of both estimators. Parameters are documented at the classes."""

    def __init__(
        self,
        method: str = "blend",
        rule: str = "fedavg",
        hidden: tuple[int, ...] = (32,),
        rounds: int = 60,
        epochs: float = 1,
        batch: int = 10,
        lr: float = 0.1,
        validation: float = 0.2,
        random_state: int | None = 0,
    ) -> None:
        self.method = method
        self.rule = rule
        self.hidden = hidden
        self.rounds = rounds
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.validation = validation
        self.random_state = random_state

    def _fit(
        self,
        X: NDArray[np.float64],
        y: torch.Tensor,
        client: ArrayLike | None,
        loss: str,
        outputs: int,
    ) -> None:
        """Train on all samples, and keep what each client uses."""
        self.mean_ = X.mean(0)
        deviation = X.std(0)
        self.scale_ = np.where(deviation > 0, deviation, 1.0)
        names, owner = number_clients(self._clients(X, client))
        order = np.argsort(owner, kind="stable")
        offsets = torch.from_numpy(np.bincount(owner, minlength=len(names))).cumsum(0)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), offsets])
        rows = Rows(self._features(X)[order], y[torch.from_numpy(order)], offsets)
        score = "accuracy" if loss == "cross-entropy" else "mae"
        # A run evaluates its models: here on the training samples, as there are no others.
        federation = Federation(rows, rows, tuple(names), outputs, loss, score)
        seed = 0
        if self.random_state is not None:
            expect_int("random_state", self.random_state, most=2**63)
            seed = int(self.random_state)
        expect("hidden", self.hidden, list | tuple, "the units of each hidden layer")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module: nn.Module = catalog.build(
                "models",
                {"name": "mlp", "hidden": list(self.hidden)},
                shape=(X.shape[1],),
                outputs=outputs,
                labels=(),
            )
        settings = {"epochs": self.epochs, "batch": self.batch, "lr": self.lr, "clip": 1.0}
        *_, last = run(
            Task(module, loss=loss, score=score),
            federation,
            rule=self.rule,
            client={"name": self.method, **settings},
            rounds=self.rounds,
            seed=seed,
            validation=self.validation if len(X) > len(names) else 0.0,
            evaluate_every=self.rounds,
        )
        job = last.job
        task, engine = job.task, job.engine
        assert isinstance(engine, LocalEngine)
        message = job.algorithm.message(last.state)
        self.task_ = task
        self.global_ = one_model(job.algorithm.model(last.state))
        self.uses_ = dict.fromkeys(names, self.global_)
        for k, name in enumerate(names):
            state = engine.states.get(k)
            if state is not None:
                self.uses_[name] = job.algorithm.uses(message, state)
        self.clients_ = np.array(names)
        self.n_iter_ = self.rounds

    def _clients(self, X: NDArray[np.float64], client: ArrayLike | None) -> NDArray[np.str_]:
        """The client of each sample, as text."""
        if client is None:
            return np.full(len(X), EVERYONE)
        names = as_array(client, "client")
        if names.ndim != 1 or len(names) != len(X):
            raise DataError(
                f"client has shape {names.shape}, but X has {len(X)} samples: give the client of "
                "each sample"
            )
        return names.astype(str)

    def _features(self, X: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy(((X - self.mean_) / self.scale_).astype(np.float32))

    def _outputs(self, X: ArrayLike, client: ArrayLike | None) -> torch.Tensor:
        """The outputs of each sample's client's models; of the global model for unknown clients."""
        check_is_fitted(self)
        values = validate_data(self, X, reset=False, dtype=np.float64)
        names = self._clients(values, client)
        x = self._features(values)
        parts = torch.empty(len(x), self.task_.outputs(self.global_.models[0], x[:1]).shape[-1])
        with torch.no_grad():
            for name in np.unique(names).tolist():
                where = torch.from_numpy(names == name)
                uses = self.uses_.get(name, self.global_)
                module = mixed_module(self.task_, self.task_.module, uses).double()
                outputs = self.task_.in_units(module(x[where].double()))
                parts[where] = outputs.to(parts.dtype)
        return parts

    def __sklearn_is_fitted__(self) -> bool:
        return "uses_" in vars(self)


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier for samples of several clients, with models for each of them.

    Features are standardised. Each client's predictions come from its own models; those for clients
    that were not in the training samples come from the global model.

    Args:
        method: The client method, one of `commonweal list clients`: "blend" mixes local, global and
            fine-tuned predictions, "sgd" gives everyone the global model, "alone" trains local
            models.
        rule: The aggregation rule, such as "fedavg" or "aaggff-s".
        hidden: The widths of the hidden layers; empty for a linear model.
        rounds: Rounds of federated training.
        epochs: Passes over a client's samples per round.
        batch: Samples per step.
        lr: The learning rate.
        validation: The share of each client's samples on which "blend" learns its weights.
        random_state: The seed.
    """

    def fit(self, X: ArrayLike, y: ArrayLike, client: ArrayLike | None = None) -> Self:
        """Train.

        Args:
            X: Features (N, d).
            y: Labels (N,), of any type.
            client: The client of each sample (N,). None: all belong to one client.
        """
        features, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only, {self.classes_[0]!r}: a classifier needs two or more"
            )
        self._fit(features, torch.from_numpy(labels), client, "cross-entropy", len(self.classes_))
        return self

    def predict_proba(self, X: ArrayLike, client: ArrayLike | None = None) -> NDArray[np.float64]:
        """The probabilities (N, classes) of the classes, in the order of `classes_`."""
        outputs = self._outputs(X, client)
        return outputs.double().softmax(-1).numpy()

    def predict(self, X: ArrayLike, client: ArrayLike | None = None) -> NDArray[np.generic]:
        """The most probable class of each sample."""
        chosen = self.predict_proba(X, client).argmax(1)
        labels: NDArray[np.generic] = self.classes_[chosen]
        return labels

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        client: ArrayLike | None = None,
    ) -> float:
        """The accuracy."""
        return float(accuracy_score(y, self.predict(X, client), sample_weight=sample_weight))


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor for samples of several clients, with models for each of them.

    Its parameters and attributes are those of `FederatedClassifier`.
    """

    def fit(self, X: ArrayLike, y: ArrayLike, client: ArrayLike | None = None) -> Self:
        """Train.

        Args:
            X: Features (N, d).
            y: Targets (N,).
            client: The client of each sample (N,). None: all belong to one client.
        """
        features, y = validate_data(
            self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2
        )
        targets = np.asarray(y, dtype=np.float32)
        self._fit(features, torch.from_numpy(targets), client, "squared", 1)
        return self

    def predict(self, X: ArrayLike, client: ArrayLike | None = None) -> NDArray[np.float64]:
        """The predicted value of each sample."""
        return self._outputs(X, client)[:, 0].double().numpy()

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        client: ArrayLike | None = None,
    ) -> float:
        """The coefficient of determination R^2."""
        return float(r2_score(y, self.predict(X, client), sample_weight=sample_weight))
