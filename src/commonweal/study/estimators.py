"""Estimators with scikit-learn's conventions, which also take the client of each sample.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> X, site = rng.normal(size=(120, 3)), np.repeat(["north", "south"], 60)
>>> y = np.where(X[:, 0] > 0, "ill", "well")
>>> model = FederatedClassifier(rounds=5).fit(X, y, client=site)
>>> model.predict(X[:3], client=site[:3]).tolist() == y[:3].tolist()
True
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_classifier
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags, _safe_indexing, check_array, check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from commonweal.base.arguments import expect, expect_int
from commonweal.base.errors import DataError
from commonweal.config import catalog
from commonweal.data.arrays import as_array
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows, labels_of
from commonweal.data.split import number_clients, split_rows
from commonweal.data.tables import plain_table
from commonweal.data.tables.columns import profile_strings
from commonweal.data.tables.plain_table import PlainColumn
from commonweal.data.tables.preprocessing import fit_numbers, fit_text
from commonweal.engines.engine import LocalEngine
from commonweal.jobs.rounds import run
from commonweal.study.judging import ClientGain, judge
from commonweal.study.plan import ALONE
from commonweal.study.verdict import verdict, worth_having
from commonweal.task.task import Task
from commonweal.task.uses import mixed_module, one_model

EVERYONE = "everyone"  # the client of samples whose client is not given
FOLDS = 5  # of the cross-validation that says who gains
TESTED = 0.2  # of each client's samples, in a fold
LEVELS = 50  # categories of a column, the most frequent ones


class WhoGains(NamedTuple):
    """Whether clients gain by joining: the method compared with local training.

    Every sample is tested once, in a cross-validation of five folds within clients. Gains are in
    accuracy, or in the mean absolute error.
    """

    verdict: str  # in a sentence
    says: str  # "helps", "does not help" or "cannot be decided"
    better: tuple[str, ...]  # the clients that gain significantly, corrected for their number
    worse: tuple[str, ...]  # and those that lose
    clients: Mapping[str, ClientGain]  # each client's gain with its interval


# Columns


def _names(X: Any) -> list[Any] | None:
    """The names of a DataFrame's columns, of pandas, polars or pyarrow; None: it is an array."""
    if isinstance(X, np.ndarray | list | tuple):
        return None
    names = getattr(X, "column_names", getattr(X, "columns", None))
    return None if names is None else list(names)


def _is_frame(X: Any) -> bool:
    """Return whether X is a DataFrame with columns that are no numbers."""
    names = _names(X)
    return names is not None and any(_own_column(X, n).dtype.kind not in "iuf" for n in names)


def _own_column(X: Any, name: object) -> NDArray[Any]:
    """A column of a DataFrame; without a value: NaN."""
    values: NDArray[Any] = np.asarray(X[name])
    known = [value for value in values.tolist() if value is not None] if values.dtype == "O" else []
    if known and all(type(value) in (int, float) or str(value) == "<NA>" for value in known):
        texts = [text or "nan" for text in _strings(values)]
        return np.array(texts).astype(np.float64)  # of pandas, with pandas.NA
    return values


def _strings(values: NDArray[Any]) -> list[str]:
    """Values as a file has them: empty where there is none."""
    texts = []
    for value in values.tolist():
        is_missing = value is None or str(value) in ("<NA>", "NaT", "nan")
        texts.append("" if is_missing else str(value))
    return texts


def _table(X: Any) -> dict[str, NDArray[Any]]:
    """The columns of a DataFrame, or of an array (N, d), by name."""
    names = _names(X)
    if names is None:
        return {str(k): X[:, k] for k in range(X.shape[1])}
    return {str(name): _own_column(X, name) for name in names}


def _fitted(name: str, values: NDArray[Any]) -> PlainColumn:
    """A column as the command `fit` would have it. Numbers stay, also those that look like ids."""
    if values.dtype.kind in "iuf":
        column = PlainColumn(name, "number")
        numbers = values.astype(np.float64)
        fitted = fit_numbers(column, [numbers], True)
        known = numbers[~np.isnan(numbers)]
        constant = replace(column, mean=float(known[0]) if len(known) else 0.0)
        return constant if fitted.becomes == "nothing" else fitted
    texts = _strings(values)
    profile = profile_strings(name, texts)
    if profile.why_left_out:
        return PlainColumn(name, "nothing", profile.why_left_out)
    if profile.column.becomes != "text":
        numbers = np.array([plain_table.parse_number(profile.column, text) for text in texts])
        return fit_numbers(profile.column, [numbers], True)
    times = Counter(map(plain_table.stripped, texts))
    present = sorted(text for text in times if not plain_table.is_missing(text))
    counts = [*map(times.__getitem__, present)]
    counts.append(len(texts) - sum(counts))  # the last ones are missing
    return fit_text(profile.column, np.array(counts), present, LEVELS)


class _Federated(BaseEstimator):  # type: ignore[misc]
    """The common part of both estimators. Parameters are documented at the classes."""

    _gains: WhoGains | None
    _given: tuple[Any, NDArray[Any], NDArray[np.str_]] | None  # samples, labels and their clients

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
        X: Any,
        y: torch.Tensor,
        client: ArrayLike | None,
        loss: str,
        outputs: int,
    ) -> None:
        """Train on all samples, and keep what each client uses."""
        self.columns_ = [_fitted(name, values) for name, values in _table(X).items()]
        if not any(column.becomes != "nothing" for column in self.columns_):
            reasons = [f"{column.name!r}: {column.why}" for column in self.columns_[:5]]
            raise DataError(f"no column is left to learn from ({'; '.join(reasons)})")
        names, owner = number_clients(self._clients(X, client))
        order = np.argsort(owner, kind="stable")
        offsets = torch.from_numpy(np.bincount(owner, minlength=len(names))).cumsum(0)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), offsets])
        features = self._features(X)
        rows = Rows(features[order], y[torch.from_numpy(order)], offsets)
        score = "accuracy" if loss == "cross-entropy" else "mae"
        # A run evaluates its models: here on the training samples, as there are no others.
        federation = Federation(rows, rows, tuple(names), outputs, labels_of(loss), score)
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
                shape=(features.shape[1],),
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

    def _checked(self, X: Any, y: ArrayLike, **options: Any) -> tuple[Any, NDArray[Any]]:
        """The samples and labels of a fit: a DataFrame as it is, else an array of numbers."""
        if not _is_frame(X):
            checked: tuple[Any, NDArray[Any]] = validate_data(
                self, X, y, dtype=np.float64, ensure_all_finite="allow-nan", **options
            )
            return checked
        validate_data(self, X, skip_check_array=True)
        labels = check_array(y, ensure_2d=False, dtype=None, input_name="y")
        check_consistent_length(X, labels)
        return X, labels

    @property
    def who_gains_(self) -> WhoGains:
        """Who gains by joining. It is computed when it is asked for first: ten fits."""
        check_is_fitted(self)
        if len(self.clients_) < 2:
            raise AttributeError("who_gains_ needs two clients: give fit the client of each sample")
        if self._gains is None:
            if self._given is None:
                raise AttributeError(
                    "a copy from a pickle has no samples: ask for who_gains_ before you store it"
                )
            self._gains = self._who_gains(*self._given)
        return self._gains

    def _who_gains(self, X: Any, y: NDArray[Any], names: NDArray[np.str_]) -> WhoGains:
        """Compare the method with local training on test samples."""
        gains: dict[str, list[float]] = {}
        local: dict[str, list[float]] = {}
        number, owner = number_clients(names)
        strata = np.unique(y, return_inverse=True)[1] if is_classifier(self) else y
        for fold in range(FOLDS):
            split = split_rows(owner, strata, TESTED, fold, number)
            train, test = np.sort(split.train.rows), np.sort(split.test.rows)
            scores = []
            for method in (self.method, ALONE):
                model = clone(self).set_params(method=method)
                model.fit(_safe_indexing(X, train), y[train], client=names[train])
                answers = model.predict(_safe_indexing(X, test), client=names[test])
                scores.append(self._score_of(answers, y[test]))
            for name, joined, alone in zip(names[test].tolist(), *scores, strict=True):
                gains.setdefault(name, []).append(float(joined - alone))
                local.setdefault(name, []).append(abs(float(alone)))
        score = "accuracy" if is_classifier(self) else "mae"
        base = float(np.mean([np.mean(own) for own in local.values()])) if local else 0.0
        table = {self.method: {name: np.array(own) for name, own in gains.items()}}
        judged = judge(table, picked=self.method, worth=worth_having(score, base))
        return WhoGains(
            verdict(judged, score),
            judged.says,
            judged.better[self.method],
            judged.worse[self.method],
            judged.clients[self.method],
        )

    def _score_of(self, answers: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """The score of each sample, higher is better."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """The state without the training samples: what is stored shows none of them."""
        state: dict[str, Any] = super().__getstate__()
        return state | {"_given": None} if "_given" in state else state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _clients(self, X: Any, client: ArrayLike | None) -> NDArray[np.str_]:
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

    def _features(self, X: Any) -> torch.Tensor:
        """The features (N, width) of samples, by the columns of the training samples."""
        table = _table(X)
        parts = []
        for column, values in zip(self.columns_, table.values(), strict=True):
            if column.becomes == "nothing":
                continue
            if column.becomes == "number" and values.dtype.kind in "iuf":
                part = plain_table.column_features(column, values.astype(np.float64))
                parts.append(part.astype(np.float32))
                continue
            try:
                parts.append(plain_table.prepare([column], {column.name: _strings(values)}))
            except ValueError as error:
                raise DataError(str(error)) from None
        return torch.from_numpy(np.concatenate(parts, 1))

    def _outputs(self, X: ArrayLike, client: ArrayLike | None) -> torch.Tensor:
        """The outputs of each sample's client's models; of the global model for unknown clients."""
        check_is_fitted(self)
        values: Any = X
        if any(column.becomes != "number" for column in self.columns_) or _is_frame(X):
            validate_data(self, X, reset=False, skip_check_array=True)
        else:
            values = validate_data(
                self, X, reset=False, dtype=np.float64, ensure_all_finite="allow-nan"
            )
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

    Numbers are standardised; missing ones become the median, and a feature marks them. Columns of a
    DataFrame become features as those of a file do: categories, dates, yes and no. Each client's
    predictions come from its own models; those for clients
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
        features, y = self._checked(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only, {self.classes_[0]!r}: a classifier needs two or more"
            )
        self._fit(features, torch.from_numpy(labels), client, "cross-entropy", len(self.classes_))
        self._gains = None
        self._given = features, y, self._clients(features, client)
        return self

    def _score_of(self, answers: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(answers == y, np.float64)

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
        features, y = self._checked(X, y, y_numeric=True, ensure_min_samples=2)
        targets = np.asarray(y, dtype=np.float32)
        self._fit(features, torch.from_numpy(targets), client, "squared", 1)
        self._gains = None
        self._given = features, y, self._clients(features, client)
        return self

    def _score_of(self, answers: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        errors: NDArray[np.float64] = np.abs(np.asarray(answers, np.float64) - y)
        return -errors

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
