"""Trees as arrays: they predict what scikit-learn does, and are models like any other."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.models.tree_ensemble import TreeEnsemble, Trees, from_sklearn, own_trees
from commonweal.task.task import Task

LIMIT = 1e-6


def table(rows: int, seed: int, missing: float = 0.1) -> np.ndarray:
    """Numbers with gaps, whole numbers, a category as columns of 0 and 1, and as a number."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    x[rng.random(x.shape) < missing] = np.nan
    level = rng.integers(0, 3 + seed % 2, rows)  # some seeds have a level that others do not
    one_hot = level[:, None] == np.arange(3)
    return np.column_stack([x, rng.integers(0, 5, rows), one_hot, level]).astype(np.float32)


def target(x: np.ndarray) -> np.ndarray:
    known = np.nan_to_num(x)
    return np.asarray(known[:, 0] + known[:, 1] ** 2 + known[:, 5] * known[:, 4])


TRAIN, NEW = table(500, 0), table(300, 1, missing=0.3)
CLASSIFIERS = [
    RandomForestClassifier(12, random_state=0),
    RandomForestClassifier(5, max_leaf_nodes=8, random_state=0),
    ExtraTreesClassifier(9, max_depth=4, random_state=0),
    HistGradientBoostingClassifier(max_iter=15),
    HistGradientBoostingClassifier(max_iter=4, max_leaf_nodes=None, min_samples_leaf=1),
]


@cases("model", CLASSIFIERS)
@cases("classes", [2, 4])
def test_classes(model: Any, classes: int) -> None:
    y = np.digitize(target(TRAIN), np.quantile(target(TRAIN), np.arange(1, classes) / classes))
    model.fit(TRAIN, y)
    outputs = from_sklearn(model, classes)(torch.from_numpy(NEW))
    assert outputs.shape == (300, classes)
    found = outputs.double().softmax(-1).detach().numpy()
    np.testing.assert_allclose(found, model.predict_proba(NEW), atol=LIMIT)
    if classes == 2:
        single = from_sklearn(model, 1)(torch.from_numpy(NEW)).double().sigmoid().detach()
        np.testing.assert_allclose(single[:, 0], model.predict_proba(NEW)[:, 1], atol=LIMIT)


@cases(
    "model",
    [
        RandomForestRegressor(12, random_state=0),
        HistGradientBoostingRegressor(max_iter=30),
        HistGradientBoostingRegressor(loss="absolute_error", max_iter=10),
    ],
)
def test_values(model: Any) -> None:
    model.fit(TRAIN, target(TRAIN))
    found = from_sklearn(model, 1)(torch.from_numpy(NEW)).detach().numpy()
    np.testing.assert_allclose(found[:, 0], model.predict(NEW), atol=LIMIT, rtol=LIMIT)


def test_counts_are_logarithms_of_rates() -> None:
    counts = np.random.default_rng(0).poisson(np.exp(target(TRAIN) / 4))
    model = HistGradientBoostingRegressor(loss="poisson", max_iter=20).fit(TRAIN, counts)
    found = from_sklearn(model, 1)(torch.from_numpy(NEW)).exp().detach().numpy()
    np.testing.assert_allclose(found[:, 0], model.predict(NEW), rtol=LIMIT)


@cases("model", CLASSIFIERS)
@cases("present", [[1, 3], [0, 2, 4]])
def test_classes_that_a_client_does_not_have(model: Any, present: list[int]) -> None:
    y = np.array(present)[np.arange(500) % len(present)]
    model.fit(TRAIN, y)
    found = from_sklearn(model, 5)(torch.from_numpy(NEW)).double().softmax(-1).detach().numpy()
    np.testing.assert_allclose(found[:, present], model.predict_proba(NEW), atol=LIMIT)
    np.testing.assert_allclose(found.sum(1) - found[:, present].sum(1), 0, atol=LIMIT)


@cases("outputs", [1, 2, 5])
@cases("model", [RandomForestClassifier(3), HistGradientBoostingClassifier(max_iter=3)])
def test_a_single_class(model: Any, outputs: int) -> None:
    model.fit(TRAIN, np.ones(500, int))
    found = from_sklearn(model, outputs)(torch.from_numpy(NEW))
    likely = found.sigmoid() if outputs == 1 else found.softmax(-1)[:, 1:2]
    assert bool((likely > 1 - LIMIT).all())


def test_thresholds_that_float32_does_not_have() -> None:
    """Half way between neighbouring numbers: rounded up, it would send the upper one left."""
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2))
    x = np.array([[low], [high]] * 30, np.float32)
    model = HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=5)
    model.fit(x, np.array([0, 1] * 30))
    found = from_sklearn(model, 1)(torch.from_numpy(x[:2]))
    assert found[0] < -0.1 < 0.1 < found[1]


def test_refused() -> None:
    model = GradientBoostingClassifier(n_estimators=2).fit(np.nan_to_num(TRAIN), TRAIN[:, 4] > 2)
    with pytest.raises(ConfigError, match="GradientBoostingClassifier cannot be written"):
        from_sklearn(model, 2)
    by_category = HistGradientBoostingClassifier(max_iter=3, categorical_features=[8])
    by_category.fit(TRAIN, TRAIN[:, 8] == 1)
    with pytest.raises(ConfigError, match="columns of 0 and 1"):
        from_sklearn(by_category, 2)


def ensemble() -> TreeEnsemble:
    y = np.digitize(target(TRAIN), [0.5, 1.5])
    return from_sklearn(HistGradientBoostingClassifier(max_iter=8).fit(TRAIN, y), 3).eval()


def test_an_ensemble_is_a_vector() -> None:
    task = Task(ensemble())
    x = torch.from_numpy(NEW)
    again = task.module_of(task.vector(task.tensors(task.initial)))
    assert torch.equal(again(x), task.module(x))
    w = torch.stack([task.initial, task.initial])
    at_once = torch.vmap(task.raw_outputs)(w, x.view(2, 150, -1))
    assert torch.equal(at_once.flatten(0, 1), task.module(x))


def test_rows_in_parts_are_predicted_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = ensemble(), torch.from_numpy(NEW)
    whole = module(x)
    monkeypatch.setattr("commonweal.models.tree_ensemble.AT_ONCE", 100)
    assert torch.equal(module(x), whole)
    assert torch.equal(torch.cat([module(row[None]) for row in x]), whole)
    assert module(x[:0]).shape == (0, 3)


def test_export() -> None:
    module, x = ensemble(), torch.from_numpy(NEW)
    rows = torch.export.Dim("rows", min=1)
    program = torch.export.export(module, (x[:2],), dynamic_shapes=({0: rows},))
    assert torch.equal(program.module()(x), module(x))


def test_export_to_onnx(tmp_path: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    module, x = ensemble(), torch.from_numpy(NEW)
    rows = torch.export.Dim("rows", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (x[:2],),
            dynamic_shapes=({0: rows},),
            input_names=["x"],
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.save(str(tmp_path / "trees.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "trees.onnx"))
    found = session.run(None, {"x": NEW})[0]
    np.testing.assert_allclose(found, module(x).detach(), atol=1e-6)


def test_trees_of_one_client() -> None:
    """Of two features, number 2 + k asks for client k: the leaves say which way rows went."""
    trees = Trees.empty(2, 3)
    for t, client in enumerate((4, 7)):
        trees.feature[t, 0] = 2 + client
        trees.threshold[t, 0] = 0.5
        trees.left[t, 0], trees.right[t, 0] = 1, 2
        trees.value[t, 1:, 0] = torch.tensor([0.0, 10.0 ** (t + 1)])
    x = torch.tensor([[0.0, 1.0], [torch.nan, -1.0]])
    sums = {}
    for client in (4, 7, 3, -1):
        module = TreeEnsemble(own_trees(trees, 2, client), torch.zeros(1), 1)
        first, second = module(x).flatten().tolist()
        assert first == second  # whatever the features are
        sums[client] = first
    assert sums == {4: 10.0, 7: 100.0, 3: 0.0, -1: 0.0}


def test_some_trees_replaced() -> None:
    trees = Trees.empty(5, 4)
    new = Trees.unpacked(torch.rand(2, 3, 6))
    after = trees.replaced(1, new)
    assert torch.equal(after.packed[1:3, :3], new.packed)
    assert torch.equal(after.packed[[0, 3, 4]], trees.packed[[0, 3, 4]])
    assert after.left[1, 3] == after.right[1, 3] == 3  # a node that does not occur leads to itself
