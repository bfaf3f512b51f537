"""The classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch.nn import functional as F

from ...fitting import fit
from ...messages.errors import PeewitError
from ...predictions.classes import Classes
from .base import LaplaceEstimator, NumberArray, Uncertainty, as_array


class LaplaceClassifier(ClassifierMixin, LaplaceEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A network for tables of classes that says how sure it is, as a scikit-learn classifier.

    `fit` standardises the columns, holds a share of every class out to stop the training, trains the network, measures
    the posterior of its weights (`pw.fit`) and tunes its prior on the training data (`la.tune(train=...)`). Without
    early stopping the rows that were held out tune the prior (`la.tune(validation=...)`).

    Args:
        hidden: Widths of the hidden layers of a perceptron with ReLU in float64; not used where `network` is given.
        network: A network of your own: a function that takes the numbers of inputs and outputs and returns a
            `torch.nn.Module`, or a module, of which a copy is trained. It returns one logit per class, (N, classes).
        epochs: The most passes over the training rows.
        learning_rate: That of AdamW.
        batch_size: Rows per step.
        weight_decay: That of AdamW.
        early_stopping: Whether rows that are held out stop the training, and choose the epoch whose weights are kept.
        patience: Training stops once the loss on those rows has not fallen by 0.0001 in so many epochs.
        validation_fraction: Share of the rows that is held out, at most 0.5. Fewer than 5 rows are not held out (10
            without early stopping).
        weights: The uncertain weights, as in `pw.fit`.
        structure: How curvature is stored, as in `pw.fit`.
        random_state: A seed for the split, the first weights and the order of rows. The same seed gives the same
            estimator; torch's global random state is not touched.
        device: Where the network is trained, such as "cuda". None for the CPU.
        verbose: Whether to show progress bars.

    Attributes:
        posterior_: The posterior, a `pw.Laplace`, of scaled inputs.
        network_: The trained network; its inputs are scaled.
        input_scaler_: The `StandardScaler` of the columns.
        classes_: The classes, in the order of the columns of `predict_proba`.
        n_iter_: Epochs that were trained.
        best_epoch_: The epoch whose weights were kept; the last one without early stopping.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, where a data frame with names was given.

    Example:
        >>> classifier = pw.sklearn.LaplaceClassifier(random_state=0).fit(x, y)
        >>> classifier.predict_proba(x[:5]).shape
        (5, 3)
        >>> classifier.posterior_
        Laplace(D=2,853, N=48, Kron, ggn, Categorical)
    """

    def fit(self, X: Any, y: Any) -> LaplaceClassifier:
        """Train the network and measure its posterior.

        Args:
            X: Rows of numbers (N, columns): an array, a data frame or lists.
            y: Labels (N,), of any type that can be sorted.

        Returns:
            The estimator itself.

        Raises:
            PeewitError: A parameter or the network does not fit, there is one class alone, or the training diverged.
            ValueError: scikit-learn refuses the data.

        Warns:
            ConvergenceWarning: The loss on the rows that stop the training was still falling in the last epochs.

        Example:
            >>> pw.sklearn.LaplaceClassifier(random_state=0).fit(x, y).score(x, y) > 0.5
            True
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        number = len(self.classes_)
        if number < 2:
            raise PeewitError(f"y has one class, {str(self.classes_[0])!r}; expected at least two classes.")
        table = self._train(X, labels, labels, number, F.cross_entropy, f"one logit for each of {number} classes")
        la = fit(
            self.network_,
            table.train,
            "classification",
            weights=self.weights,
            structure=self.structure,
            progress=bool(self.verbose),
        )
        held = table.tuning
        if held is None:
            self.posterior_ = la.tune(train=table.train, progress=bool(self.verbose))
        else:
            self.posterior_ = la.tune(validation=held, progress=bool(self.verbose))
        return self

    def predict_proba(self, X: Any) -> NumberArray:
        """Predict the probability of every class.

        Args:
            X: Rows of numbers (N, columns).

        Returns:
            Probabilities (N, classes), in the order of `classes_`.

        Raises:
            NotFittedError: `fit` was not called.
            ValueError: scikit-learn refuses X, such as other columns than those of the fit, words, or missing values.

        Example:
            >>> classifier = pw.sklearn.LaplaceClassifier(random_state=0).fit(x, y)
            >>> bool((abs(classifier.predict_proba(x).sum(1) - 1) < 1e-6).all())
            True
        """
        return as_array(self._classes(X).probs)

    def predict(self, X: Any) -> NumberArray:
        """Predict the likeliest class.

        Args:
            X: Rows of numbers (N, columns).

        Returns:
            Labels (N,), of the type that `fit` was given.

        Raises:
            NotFittedError: `fit` was not called.
            ValueError: scikit-learn refuses X, such as other columns than those of the fit, words, or missing values.

        Example:
            >>> names = [("red", "green", "blue")[number] for number in y]
            >>> classifier = pw.sklearn.LaplaceClassifier(random_state=0).fit(x, names)
            >>> set(classifier.predict(x)) <= {"red", "green", "blue"}
            True
        """
        check_is_fitted(self, "posterior_")
        labels: NumberArray = self.classes_[self.predict_proba(X).argmax(1)]
        return labels

    def predict_set(self, X: Any, level: float = 0.9) -> NumberArray:
        """Predict the fewest classes that together have at least a probability.

        Args:
            X: Rows of numbers (N, columns).
            level: The probability, between 0 and 1.

        Returns:
            Truth values (N, classes), in the order of `classes_`.

        Raises:
            PeewitError: `level` is not between 0 and 1.
            NotFittedError: `fit` was not called.
            ValueError: scikit-learn refuses X, such as other columns than those of the fit, words, or missing values.

        Example:
            >>> classifier = pw.sklearn.LaplaceClassifier(random_state=0).fit(x, y)
            >>> classifier.predict_set(x[:5], level=0.9).any(1).tolist()
            [True, True, True, True, True]
        """
        return as_array(self._classes(X).interval(level))

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Compute how uncertain the labels are, in nats, and why.

        Args:
            X: Rows of numbers (N, columns).

        Returns:
            `total`, `epistemic` and `aleatoric`, (N,) each: entropies, of which the first is the sum of the others.

        Raises:
            NotFittedError: `fit` was not called.
            ValueError: scikit-learn refuses X, such as other columns than those of the fit, words, or missing values.

        Example:
            >>> classifier = pw.sklearn.LaplaceClassifier(random_state=0).fit(x, y)
            >>> classifier.predict_uncertainty(x[:5]).epistemic.shape
            (5,)
        """
        prediction = self._classes(X)
        return Uncertainty(*map(as_array, (prediction.entropy, prediction.epistemic, prediction.aleatoric)))

    def _classes(self, X: Any) -> Classes:
        """The prediction itself."""
        prediction = self._prediction(X)
        assert isinstance(prediction, Classes)
        return prediction
