"""Estimators of scikit-learn's kind: its own checks, numbers by hand, quality on its tables, and life in its tools."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import peewit as pw

pytest.importorskip("sklearn")  # machines with a GPU may do without

import joblib
from sklearn import datasets
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from peewit.integrations.sklearn.splitting import split_table
from peewit.integrations.sklearn.training import batches, perceptron

Classifier, Regressor = pw.sklearn.LaplaceClassifier, pw.sklearn.LaplaceRegressor


def numbers_table(rows: int = 120, columns: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows in very different units, and a target in units of its own that is not linear in them."""
    random = np.random.RandomState(seed)
    X = random.randn(rows, columns)
    y = 500 + 40 * (np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * random.randn(rows))
    return X * 10.0 ** np.arange(columns), y


def classes_table(rows: int = 120, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Clouds that overlap, with names."""
    random = np.random.RandomState(seed)
    labels = np.arange(rows) % classes
    centres = 2 * np.stack([np.cos(2 * np.pi * labels / classes), np.sin(2 * np.pi * labels / classes)], 1)
    return centres + random.randn(rows, 2), np.array(["red", "green", "blue", "grey"])[labels]


@pytest.fixture(scope="module")
def regressor() -> Any:
    """Fitted to `numbers_table()`."""
    return Regressor((20,), random_state=0, learning_rate=1e-2).fit(*numbers_table())


@pytest.fixture(scope="module")
def classifier() -> Any:
    """Fitted to `classes_table()`."""
    return Classifier((20,), random_state=0, learning_rate=1e-2).fit(*classes_table())


# What scikit-learn demands


@pytest.mark.parametrize("name", ["LaplaceClassifier", "LaplaceRegressor"])
def test_all_checks_of_scikit_learn_pass(name: str) -> None:
    """None fails and none is skipped; the variable is read when scipy is imported."""
    code = f"""
        import warnings
        import peewit as pw
        from sklearn.utils.estimator_checks import check_estimator
        warnings.simplefilter("ignore")  # toy tables, and training that is cut short
        results = check_estimator(pw.sklearn.{name}(epochs=12, learning_rate=1e-2), on_fail=None, on_skip=None)
        other = [(each["check_name"], each["status"], str(each["exception"])) for each in results
                 if each["status"] != "passed"]
        assert not other, other
        assert len(results) > 40
    """
    pytest.importorskip("pandas")  # some of the checks need it
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]


def test_parameters_and_clones() -> None:
    network = nn.Linear(2, 1)
    estimator = Regressor((7,), network=network, random_state=3)
    assert clone(estimator).get_params()["hidden"] == (7,)
    assert estimator.get_params()["network"] is network
    assert estimator.set_params(hidden=(8, 8), structure="diag").hidden == (8, 8)
    assert repr(Regressor((7,), random_state=3)) == "LaplaceRegressor(hidden=(7,), random_state=3)"


@pytest.mark.parametrize("estimator", [Regressor(), Classifier()])
@pytest.mark.parametrize("question", ["predict", "predict_interval", "predict_set", "predict_uncertainty"])
def test_questions_before_the_fit(estimator: Any, question: str) -> None:
    if hasattr(estimator, question):
        with pytest.raises(NotFittedError):
            getattr(estimator, question)(np.zeros((2, 2)))


# Numbers


def test_predictions_are_those_of_the_posterior(regressor: Any) -> None:
    """Scaled by hand, with the moments of the table itself."""
    X, y = numbers_table()
    x = torch.tensor((X - X.mean(0)) / X.std(0))
    by_hand = regressor.posterior_.predict(x)
    mean, std = regressor.predict(X, return_std=True)
    assert np.allclose(mean, by_hand.mean[:, 0].numpy() * y.std() + y.mean(), rtol=1e-12)
    assert np.allclose(std, by_hand.variance[:, 0].sqrt().numpy() * y.std(), rtol=1e-12)
    assert np.allclose(regressor.predict(X), mean, rtol=1e-12)
    low, high = regressor.predict_interval(X, level=0.8)
    width = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(0.9, dtype=torch.float64)).item()
    assert np.allclose((low, high), (mean - width * std, mean + width * std), rtol=1e-9)
    parts = regressor.predict_uncertainty(X)
    assert np.allclose(parts.total, std) and np.allclose(parts.total**2, parts.epistemic**2 + parts.aleatoric**2)
    noise = float(regressor.posterior_.likelihood.noise) * y.std()
    assert np.allclose(parts.aleatoric, noise) and parts.epistemic.min() > 0
    far = regressor.predict_uncertainty(X * 10)
    assert far.epistemic.mean() > 3 * parts.epistemic.mean()


def test_probabilities_are_those_of_the_posterior(classifier: Any) -> None:
    X, y = classes_table()
    by_hand = classifier.posterior_.predict(torch.tensor((X - X.mean(0)) / X.std(0)))
    assert classifier.classes_.tolist() == ["blue", "green", "red"]
    assert np.allclose(classifier.predict_proba(X), by_hand.probs.numpy(), rtol=1e-12)
    assert (classifier.predict(X) == classifier.classes_[by_hand.argmax.numpy()]).all()
    assert classifier.score(X, y) == np.mean(classifier.predict(X) == y) > 0.75
    total, epistemic, aleatoric = classifier.predict_uncertainty(X)
    assert np.allclose(total, by_hand.entropy.numpy()) and np.allclose(total, epistemic + aleatoric)
    sets = classifier.predict_set(X, level=0.9)
    assert sets.dtype == bool and (sets == by_hand.interval(0.9).numpy()).all()
    assert ((sets * classifier.predict_proba(X)).sum(1) >= 0.9).all() and sets.sum() < sets.size


def test_multiple_targets() -> None:
    """Each has its own units and its own noise."""
    X, y = numbers_table(300)
    noisy = 1e-3 * (X[:, 0] + np.random.RandomState(1).randn(300))
    regressor = Regressor(random_state=0).fit(X, np.stack([y, noisy], 1))
    mean, std = regressor.predict(X, return_std=True)
    assert mean.shape == std.shape == (300, 2)
    parts = regressor.predict_uncertainty(X)
    assert parts.aleatoric[0, 0] < 0.7 * y.std() and 0.7e-3 < parts.aleatoric[0, 1] < 1.5e-3
    low, high = regressor.predict_interval(X)
    assert low.shape == (300, 2) and (low < mean).all() and (mean < high).all()
    column = Regressor(epochs=3, early_stopping=False).fit(X, y[:, None])
    assert column.predict(X).shape == column.predict_uncertainty(X).epistemic.shape == (300, 1)


@pytest.mark.parametrize("classes", [2, 4])
def test_two_and_many_classes(classes: int) -> None:
    X, y = classes_table(160, classes)
    classifier = Classifier(random_state=0, learning_rate=1e-2).fit(X, y)
    assert classifier.predict_proba(X).shape == (160, classes)
    assert classifier.score(X, y) > 0.7 and set(classifier.predict(X)) <= set(y)


def test_a_row_is_predicted_the_same_among_others(regressor: Any, classifier: Any) -> None:
    for estimator, X, ask in (
        (regressor, numbers_table()[0], "predict"),
        (classifier, classes_table()[0], "predict_proba"),
    ):
        whole, order = getattr(estimator, ask)(X), np.random.RandomState(0).permutation(len(X))
        assert np.allclose(getattr(estimator, ask)(X[order]), whole[order], rtol=1e-9)
        assert np.allclose(np.concatenate([getattr(estimator, ask)(row[None]) for row in X[:9]]), whole[:9], rtol=1e-9)


def test_random_state(classifier: Any) -> None:
    """The same seed gives the same estimator, another one another; nobody else's random numbers are touched."""
    X, y = classes_table()
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    options = {"hidden": (20,), "learning_rate": 1e-2}
    again = Classifier(random_state=0, **options).fit(X, y)
    other = Classifier(random_state=1, **options).fit(X, y)
    own = Classifier(network=stochastic, random_state=1, epochs=30, patience=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        twice = [clone(own).fit(X, y).predict_proba(X) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before) and (np.random.get_state()[1] == numpy_before).all()
    assert (again.predict_proba(X) == classifier.predict_proba(X)).all()
    assert not np.allclose(other.predict_proba(X), classifier.predict_proba(X))
    assert (twice[0] == twice[1]).all()


def stochastic(inputs: int, outputs: int) -> nn.Module:
    """A network whose weights and passes draw from torch's own generator."""
    return nn.Sequential(nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, outputs))


# Quality on real tables


def nll_of_normal(y: np.ndarray, mean: np.ndarray, std: Any) -> float:
    """Mean over the rows."""
    return float((0.5 * ((y - mean) / std) ** 2 + np.log(std) + 0.5 * np.log(2 * np.pi)).mean())


def test_diabetes() -> None:
    """Intervals hold about what they say, and the NLL is that of the network with held-out residuals, or better."""
    X, y = datasets.load_diabetes(return_X_y=True)
    held: dict[float, list[float]] = {0.5: [], 0.9: []}
    differences, scores = [], []
    for seed in range(6):
        X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=seed)
        regressor = Regressor(random_state=seed).fit(X_train, y_train)
        for level, shares in held.items():
            low, high = regressor.predict_interval(X_test, level=level)
            shares.append(float(((low <= y_test) & (y_test <= high)).mean()))
        mean, std = regressor.predict(X_test, return_std=True)
        residuals = y_train - regressor.predict(X_train)
        plain = nll_of_normal(y_test, mean, np.sqrt((residuals**2).mean()))
        differences.append(nll_of_normal(y_test, mean, std) - plain)
        scores.append(regressor.score(X_test, y_test))
    assert 0.85 < np.mean(held[0.9]) < 0.96 and 0.42 < np.mean(held[0.5]) < 0.62, held
    assert np.mean(differences) < 0.02 and max(differences) < 0.1, differences
    assert np.mean(scores) > 0.38, scores


@pytest.mark.parametrize("name", ["breast_cancer", "wine"])
def test_classes_of_real_tables(name: str) -> None:
    """The NLL is that of the plain network, or better."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    ours, plain, scores = [], [], []
    for seed in range(4):
        X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=seed, stratify=y)
        classifier = Classifier(random_state=seed).fit(X_train, y_train)
        ours.append(log_loss(y_test, classifier.predict_proba(X_test)))
        with torch.no_grad():
            logits = classifier.network_(torch.tensor(classifier.input_scaler_.transform(X_test)))
        plain.append(log_loss(y_test, logits.softmax(1).numpy()))
        scores.append(classifier.score(X_test, y_test))
    assert np.mean(ours) < np.mean(plain) + 0.02 and np.mean(ours) < 0.2, (ours, plain)
    assert np.mean(scores) > 0.93, scores


# Splits and training


@pytest.fixture
def random() -> Iterator[np.random.RandomState]:
    """A source of random numbers."""
    yield np.random.RandomState(0)


def test_rows_are_used_once(random: np.random.RandomState) -> None:
    """Every class is held out in its share, and no row is in two parts."""
    classes = np.array([0] * 100 + [1] * 50 + [2] * 3 + [3] * 2 + [4])
    split = split_table(classes, 0.2, True, True, random)
    assert sorted([*split.train, *split.held]) == list(range(len(classes)))
    held = np.bincount(classes[split.held], minlength=5)
    assert held.tolist() == [20, 10, 1, 0, 0]
    for part in (split.stopping, split.tuning):
        assert np.bincount(classes[part])[:2].tolist() == [10, 5]


@pytest.mark.parametrize(
    ("rows", "stop", "tune", "sizes"),
    [
        (100, True, True, (80, 10, 10)),
        (90, True, True, (72, 18, 0)),
        (20, True, True, (20, 0, 0)),
        (25, True, False, (20, 5, 0)),
        (50, False, True, (40, 0, 10)),
        (40, False, True, (40, 0, 0)),
        (100, False, False, (100, 0, 0)),
    ],
)
def test_few_rows(rows: int, stop: bool, tune: bool, sizes: tuple[int, ...], random: np.random.RandomState) -> None:
    """Nothing is chosen on a handful of rows."""
    split = split_table(np.zeros(rows, dtype=int), 0.2, stop, tune, random)
    assert (len(split.train), len(split.stopping), len(split.tuning)) == sizes


def test_early_stopping_keeps_the_best_epoch() -> None:
    """The weights are those of the run that is cut there."""
    X, y = classes_table()
    stopped = Classifier(random_state=0, learning_rate=3e-2, patience=5).fit(X, y)
    best = stopped.best_epoch_
    assert best < stopped.n_iter_ < 500
    with pytest.warns(ConvergenceWarning, match=rf"its best was in epoch {best}\)"):
        cut = Classifier(random_state=0, learning_rate=3e-2, patience=5, epochs=best).fit(X, y)
    assert cut.n_iter_ == cut.best_epoch_ == best
    for ours, theirs in zip(stopped.network_.parameters(), cut.network_.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_without_early_stopping_held_rows_tune() -> None:
    X, y = classes_table()
    options = {"epochs": 40, "learning_rate": 3e-2, "random_state": 0}
    classifier = Classifier((50, 50), early_stopping=False, **options).fit(X, y)
    assert classifier.n_iter_ == classifier.best_epoch_ == 40 and classifier.posterior_.trace.method == "validation"
    assert classifier.posterior_.N == 96
    whole = Classifier((20,), validation_fraction=0, **options).fit(X, y)
    assert whole.posterior_.trace.method == "training" and whole.posterior_.N == 120
    X, y = numbers_table()
    regressor = Regressor((20,), validation_fraction=0, **options).fit(X, y)
    assert regressor.posterior_.trace.method == "training" and regressor.posterior_.N == 120


def test_batches_leave_no_single_row() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = list(batches(65, 64, generator))
    assert [len(part) for part in parts] == [65] and sorted(parts[0].tolist()) == list(range(65))
    assert [len(part) for part in batches(129, 64, generator)] == [64, 65]
    assert [len(part) for part in batches(130, 64, generator)] == [64, 64, 2]
    assert [len(part) for part in batches(1, 64, generator)] == [1]


def test_weights_begin_as_those_of_torch() -> None:
    """Uniform, up to one over the root of the inputs."""
    linear = perceptron([400, 300], torch.Generator().manual_seed(0))[0]
    assert linear.weight.dtype == torch.float64
    assert 0.99 / 20 < linear.weight.abs().max() <= 1 / 20
    assert linear.weight.var().item() == pytest.approx(1 / 1200, rel=0.02)


# Networks of one's own


def test_a_module_of_ones_own() -> None:
    """It is copied, keeps its dtype, and learns beside layers that count rows."""
    X, y = numbers_table()
    network = stochastic(3, 1)
    before = copy.deepcopy(network.state_dict())
    regressor = Regressor(network=network, random_state=0, batch_size=17, learning_rate=1e-2).fit(X, y)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert regressor.network_[0].weight.dtype == torch.float32 and not regressor.network_.training
    assert regressor.score(X, y) > 0.5 and regressor.predict(X).dtype == np.float64
    frozen = stochastic(3, 1)
    frozen[0].requires_grad_(False)
    trained = Regressor(network=frozen, random_state=0, epochs=40, learning_rate=1e-2).fit(X, y).network_
    assert torch.equal(trained[0].weight, frozen[0].weight)


def test_a_factory_of_ones_own() -> None:
    X, y = classes_table()
    seen = []

    def factory(inputs: int, outputs: int) -> nn.Module:
        seen.append((inputs, outputs))
        return nn.Sequential(nn.Linear(inputs, 9), nn.Tanh(), nn.Linear(9, outputs))

    classifier = Classifier(network=factory, random_state=0, learning_rate=3e-2, weights="last_layer").fit(X, y)
    assert seen == [(2, 3)] and classifier.score(X, y) > 0.75 and classifier.posterior_.D == 30


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden": 5}, "hidden=5 was given; expected a tuple of widths"),
        ({"hidden": (0,)}, "hidden=0 was given; expected a whole number of at least 1"),
        ({"epochs": 0}, "epochs=0 was given"),
        ({"epochs": "many"}, "epochs='many' was given"),
        ({"batch_size": 2.5}, "batch_size=2.5 was given"),
        ({"patience": True}, "patience=True was given"),
        ({"learning_rate": 0}, "learning_rate=0 was given; expected a number above 0"),
        ({"learning_rate": 1e200}, "Training diverged in epoch 1"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0 was given; expected a number of at least 0"),
        ({"validation_fraction": 0.7}, "expected at most 0.5"),
        ({"device": "somewhere"}, "device='somewhere' was given"),
        ({"structure": "kro"}, "did you mean 'kron'"),
        ({"network": 3}, "network is a int"),
        ({"network": lambda inputs, outputs: 3}, "returned a int; expected a torch.nn.Module"),
        ({"network": nn.Linear(7, 1)}, "does not take rows of 3 columns"),
        ({"network": nn.Linear(3, 2)}, r"returns \(2, 2\) for 2 rows; expected \(2, 1\): one output for each target"),
        ({"network": nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))}, r"returns \(2,\) for 2 rows"),
        ({"network": nn.Identity()}, "no parameters"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(pw.PeewitError, match=words):
        Regressor(**options).fit(*numbers_table(40))


def test_one_class_and_weights_of_rows_are_refused() -> None:
    X, y = numbers_table(40)
    with pytest.raises(pw.PeewitError, match="y has one class"):
        Classifier().fit(X, ["a"] * 40)
    with pytest.raises(TypeError, match="sample_weight"):
        Regressor().fit(X, y, sample_weight=np.ones(40))
    with pytest.raises(pw.PeewitError, match="level=90"):
        Regressor(epochs=2, early_stopping=False).fit(X, y).predict_interval(X, level=90)


def test_our_warnings_stay() -> None:
    """A network that is worse than the mean of the targets is named, and so is a noise beyond them."""
    random = np.random.RandomState(0)
    X, y = random.randn(100, 30), random.randn(100)
    with pytest.warns(UserWarning, match="rows that were held out no better than the mean of the targets"):
        Regressor(early_stopping=False, epochs=50, random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match=r"20 rows .* \(outputs \[1\]\)"):
        Regressor(early_stopping=False, epochs=50, random_state=0).fit(X, np.stack([X[:, 0], y], 1))
    with pytest.warns(pw.TuningWarning, match="exceeds the deviation of the training targets"):
        Regressor(validation_fraction=0, epochs=200, random_state=0).fit(X[:20], y[:20])


# In scikit-learn's tools


@pytest.mark.parametrize("way", ["pickle", "joblib", "copy"])
def test_kept_estimators_answer_the_same(way: str, regressor: Any, classifier: Any, tmp_path: Path) -> None:
    for estimator, X in ((regressor, numbers_table()[0]), (classifier, classes_table()[0])):
        if way == "pickle":
            again = pickle.loads(pickle.dumps(estimator))
        elif way == "copy":
            again = copy.deepcopy(estimator)
        else:
            joblib.dump(estimator, tmp_path / "estimator")
            again = joblib.load(tmp_path / "estimator")
        assert (again.predict(X) == estimator.predict(X)).all()
        for ours, theirs in zip(again.predict_uncertainty(X), estimator.predict_uncertainty(X), strict=True):
            assert (ours == theirs).all()


def test_pipelines_and_searches() -> None:
    X, y = numbers_table(60)
    quick = Regressor((8,), epochs=30, early_stopping=False, learning_rate=2e-2, random_state=0)
    pipeline = make_pipeline(PolynomialFeatures(2), quick)
    search = GridSearchCV(pipeline, {"laplaceregressor__hidden": [(4,), (16,)]}, cv=2).fit(X, y)
    assert search.best_params_["laplaceregressor__hidden"] in [(4,), (16,)] and search.predict(X).shape == (60,)
    mean, std = search.best_estimator_.predict(X, return_std=True)
    assert mean.shape == std.shape == (60,)
    assert cross_val_score(quick, X, y, cv=2).shape == (2,)
    assert MultiOutputRegressor(quick).fit(X, np.stack([y, -y], 1)).predict(X).shape == (60, 2)
    assert TransformedTargetRegressor(quick, func=np.log, inverse_func=np.exp).fit(X, y).predict(X).min() > 0
    X, names = classes_table(60)
    probabilities = Classifier((8,), epochs=30, early_stopping=False, random_state=0)
    assert cross_val_score(probabilities, X, names, cv=2, scoring="neg_log_loss").max() < 0


def test_inspection(regressor: Any) -> None:
    """The column that does nothing is found."""
    X, y = numbers_table()
    importances = permutation_importance(regressor, X, y, n_repeats=3, random_state=0).importances_mean
    assert importances.argmin() == 2 and importances[1] > 0.3
    curve = partial_dependence(regressor, X, [1], grid_resolution=5)["average"][0]
    assert (np.diff(curve) > 0).all()


def test_data_frames(regressor: Any) -> None:
    """Names of columns are kept, and other names are refused."""
    pandas = pytest.importorskip("pandas")
    X, y = numbers_table(40)
    frame = pandas.DataFrame(X, columns=["age", "height", "weight"])
    quick = Regressor((8,), epochs=5, early_stopping=False, random_state=0)
    fitted = clone(quick).fit(frame, pandas.Series(y))
    assert fitted.feature_names_in_.tolist() == ["age", "height", "weight"] and fitted.n_features_in_ == 3
    assert (fitted.predict(frame) == clone(quick).fit(X, y).predict(X)).all()
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame.rename(columns={"age": "years"}))
    labels = pandas.Series(classes_table(40)[1], dtype="category")
    assert set(Classifier(epochs=5, early_stopping=False).fit(frame, labels).predict(frame)) <= set(labels)


def test_bars_are_shown_on_request(bars: list[int]) -> None:
    X, y = numbers_table(40)
    Regressor(epochs=2, early_stopping=False).fit(X, y)
    assert bars[0] == 0
    Regressor(epochs=2, early_stopping=False, verbose=True).fit(X, y)
    assert bars[0] >= 3 and bars[1] == 0


def test_scikit_learn_is_loaded_late() -> None:
    """The name alone imports neither scikit-learn nor torch; without scikit-learn, the error says what to type."""
    code = """
        import sys
        import peewit as pw
        assert "LaplaceRegressor" in dir(pw.sklearn) and not {"sklearn", "torch"} & set(sys.modules)
        sys.modules["sklearn"] = None
        try:
            pw.sklearn.LaplaceRegressor
        except pw.MissingPackageError as error:
            assert "pip install scikit-learn" in str(error)
        else:
            raise AssertionError
        try:
            pw.sklearn.LaplaceRegresser
        except AttributeError as error:
            assert "LaplaceRegressor" in str(error)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
