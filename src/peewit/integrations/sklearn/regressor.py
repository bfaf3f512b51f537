"""The regressor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import validate_data
from torch.nn import functional as F

from ...fitting import fit
from ...laplace import Laplace
from ...likelihoods import Gaussian
from ...messages.warnings import FitWarning, warn
from ...predictions.regression import Regression
from .base import LaplaceEstimator, NumberArray, TrainedTable, Uncertainty, as_array
from .splitting import LEAST_TUNING

LEAST_NOISE = 1e-3  # of the targets' deviation, where residuals vanish


class LaplaceRegressor(RegressorMixin, MultiOutputMixin, LaplaceEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A network for tables of numbers that says how sure it is, as a scikit-learn regressor.

    `fit` standardises columns and targets, holds some rows out (one half to stop the training, the other to tune the
    noise), trains the network, measures the posterior of its weights (`pw.fit`) and tunes its prior on the training
    data (`la.tune(train=...)`) and its noise on the second half. Everything returned is in the units of the targets.

    Args:
        hidden: Widths of the hidden layers of a perceptron with ReLU in float64; not used where `network` is given.
        network: A network of your own: a function that takes the numbers of inputs and outputs and returns a
            `torch.nn.Module`, or a module, of which a copy is trained. It returns (N, outputs), one output per target.
        epochs: The most passes over the training rows.
        learning_rate: That of AdamW.
        batch_size: Rows per step.
        weight_decay: That of AdamW.
        early_stopping: Whether rows that are held out stop the training, and choose the epoch whose weights are kept.
            Without, all rows that are held out tune the noise.
        patience: Training stops once the loss on those rows has not fallen by 0.0001 in so many epochs.
        validation_fraction: Share of the rows that is held out, at most 0.5. Below 20 such rows, all of them stop the
            training; below 5, none is held out, and the noise comes from the training data.
        weights: The uncertain weights, as in `pw.fit`.
        structure: How curvature is stored, as in `pw.fit`.
        random_state: A seed for the split, the first weights and the order of rows. The same seed gives the same
            estimator; torch's global random state is not touched.
        device: Where the network is trained, such as "cuda". None for the CPU.
        verbose: Whether to show progress bars.

    Attributes:
        posterior_: The posterior, a `pw.Laplace`, of scaled inputs and targets.
        network_: The trained network; its inputs and outputs are scaled.
        input_scaler_: The `StandardScaler` of the columns.
        target_scaler_: The `StandardScaler` of the targets.
        n_iter_: Epochs that were trained.
        best_epoch_: The epoch whose weights were kept; the last one without early stopping.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, where a data frame with names was given.

    Example:
        >>> regressor = pw.sklearn.LaplaceRegressor(random_state=0)
        >>> mean, std = regressor.fit(t, z[:, 0]).predict(t, return_std=True)
        >>> mean.shape, std.shape
        ((40,), (40,))
        >>> low, high = regressor.predict_interval(t, level=0.9)
        >>> regressor.posterior_
        Laplace(D=2,701, N=32, Kron, ggn, Gaussian)
    """

    noisy = True

    def fit(self, X: Any, y: Any) -> LaplaceRegressor:
        """Train the network and measure its posterior.

        Args:
            X: Rows of numbers (N, columns): an array, a data frame or lists.
            y: Targets (N,), or (N, outputs); predictions have the same number of axes.

        Returns:
            The estimator itself.

        Raises:
            PeewitError: A parameter or the network does not fit, or the training diverged.
            ValueError: scikit-learn refuses the data.

        Warns:
            ConvergenceWarning: The loss on the rows that stop the training was still falling in the last epochs.
            FitWarning: The network predicts rows that were held out no better than the mean of the targets does.
            TuningWarning: The outcome of tuning needs a look.

        Example:
            >>> regressor = pw.sklearn.LaplaceRegressor(random_state=0)
            >>> regressor.fit(t, z).score(t, z) > 0.5
            True
        """
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2)
        self._flat = y.ndim == 1
        columns = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        self.target_scaler_ = StandardScaler().fit(columns)
        outputs = columns.shape[1]
        table = self._train(
            X,
            self.target_scaler_.transform(columns),
            np.zeros(len(X), dtype=int),
            outputs,
            F.mse_loss,
            "one output for each target",
        )
        la = fit(
            self.network_,
            table.train,
            self._residual_noise(table),
            weights=self.weights,
            structure=self.structure,
            progress=bool(self.verbose),
        )
        self.posterior_ = self._tune(la, table)
        return self

    def _residual_noise(self, table: TrainedTable) -> Gaussian:
        """The noise of every output, from the residuals of the rows that are held out, or else of the others."""
        held = len(table.split.held)
        x, y = table.rows(table.split.held) if held else table.train
        with torch.no_grad():
            noise = (self.network_(x) - y).double().square().mean(0).sqrt()
        deviation = table.train[1].double().std(0, correction=0)
        worse = torch.nonzero(noise > deviation.clamp(min=LEAST_NOISE))[:, 0].tolist()
        if held >= LEAST_TUNING and worse:
            warn(
                f"The network predicts the {held} rows that were held out no better than the mean of the targets does"
                f"{f' (outputs {worse})' if len(noise) > 1 else ''}: the columns may not tell the targets, or training "
                "did not work. Look at the table, and try other epochs, learning_rate or hidden.",
                FitWarning,
            )
        noise = noise.minimum(deviation).clamp(min=LEAST_NOISE).cpu()
        return Gaussian(noise if len(noise) > 1 else float(noise))

    def _tune(self, la: Laplace, table: TrainedTable) -> Laplace:
        """The prior on the training data; the noise there too where nothing is held out."""
        progress, held = bool(self.verbose), table.tuning
        if not len(table.split.held):
            return la.tune(train=table.train, progress=progress)
        la = la.tune(train=table.train, parameters=["prior"], progress=progress)
        if held is None:
            return la
        return la.tune(validation=held, parameters=["noise"], at="trained_weights", progress=progress)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the targets.

        Args:
            X: Rows of numbers (N, columns).
            return_std: Whether to return standard deviations of new targets too, noise included.

        Returns:
            Means (N,), or (N, outputs) as `y` was; with `return_std=True` a pair of means and standard deviations.

        Raises:
            NotFittedError: `fit` was not called.
            ValueError: scikit-learn refuses X, such as other columns than those of the fit, words, or missing values.

        Example:
            >>> regressor = pw.sklearn.LaplaceRegressor(random_state=0).fit(t, z[:, 0])
            >>> mean, std = regressor.predict(t, return_std=True)
            >>> bool((std > 0).all())
            True
        """
        if return_std:
            prediction = self._regression(X)
            return self._values(prediction.mean), self._deviations(prediction.variance)
        x = self._check_inputs(X)
        with torch.no_grad():
            return self._values(self.network_(x))

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[NumberArray, NumberArray]:
        """Predict intervals that hold new targets with a probability.

        Args:
            X: Rows of numbers (N, columns).
            level: The probability, between 0 and 1.

        Returns:
            The lower and the upper ends, each of the shape of `predict(X)`.

        Raises:
            PeewitError: `level` is not between 0 and 1.
            NotFittedError: `fit` was not called.
            ValueError: scikit-learn refuses X, such as other columns than those of the fit, words, or missing values.

        Example:
            >>> regressor = pw.sklearn.LaplaceRegressor(random_state=0).fit(t, z[:, 0])
            >>> low, high = regressor.predict_interval(t, level=0.9)
            >>> bool((low < high).all())
            True
        """
        low, high = self._regression(X).interval(level)
        return self._values(low), self._values(high)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Compute the standard deviation of new targets, and the parts it has.

        Args:
            X: Rows of numbers (N, columns).

        Returns:
            `total`, `epistemic` and `aleatoric`, each of the shape of `predict(X)`: standard deviations, whose squares
            add up.

        Raises:
            NotFittedError: `fit` was not called.
            ValueError: scikit-learn refuses X, such as other columns than those of the fit, words, or missing values.

        Example:
            >>> regressor = pw.sklearn.LaplaceRegressor(random_state=0).fit(t, z[:, 0])
            >>> total, epistemic, aleatoric = regressor.predict_uncertainty(t)
            >>> bool((abs(total**2 - epistemic**2 - aleatoric**2) < 1e-6).all())
            True
        """
        prediction = self._regression(X)
        parts = (prediction.variance, prediction.epistemic, prediction.aleatoric)
        return Uncertainty(*map(self._deviations, parts))

    def _regression(self, X: Any) -> Regression:
        """The prediction itself, in scaled units."""
        prediction = self._prediction(X)
        assert isinstance(prediction, Regression)
        return prediction

    def _values(self, scaled: torch.Tensor) -> NumberArray:
        """Targets in their own units and shape."""
        values: NumberArray = self.target_scaler_.inverse_transform(as_array(scaled))
        return values[:, 0] if self._flat else values

    def _deviations(self, variance: torch.Tensor) -> NumberArray:
        """Square roots of scaled variances in the units of the targets."""
        values: NumberArray = as_array(variance.sqrt()) * self.target_scaler_.scale_
        return values[:, 0] if self._flat else values
