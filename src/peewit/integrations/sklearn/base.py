"""What both estimators share: checks, scaling, splitting, training, and the posterior."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from ...messages.errors import ArgumentTypeError, PeewitError
from ...messages.warnings import warn
from ...network.modules import device_of
from ...runtime.device import device_named
from ...runtime.progress import Progress
from .splitting import TableSplit, split_table
from .training import (
    Factory,
    LabelledTensors,
    Loss,
    TrainingOptions,
    build_network,
    check_number,
    check_output,
    seeded,
    train_network,
)

if TYPE_CHECKING:
    from ...curvature.contracts import Structure
    from ...curvature.structures import StructureName
    from ...laplace import Laplace
    from ...predictions.prediction import Prediction
    from ...tracing.selection import Weights

NumberArray = NDArray[Any]
"""An array of numpy's."""
MOST_HELD = 0.5  # of the rows: every class keeps some to train on


class Uncertainty(NamedTuple):
    """How uncertain predictions are, and why: an array for each of the three.

    `predict_uncertainty` of both estimators returns it. A `LaplaceRegressor` gives standard deviations, whose squares
    add up; a `LaplaceClassifier` gives entropies in nats, which add up themselves.

    Attributes:
        total: All of it: the standard deviation of a new target, or the entropy of the label.
        epistemic: What comes from not knowing the weights. As a rule it is higher at rows unlike the training data, and
            falls with more of them.
        aleatoric: What would be left if the weights were known: the noise.

    Example:
        >>> regressor = pw.sklearn.LaplaceRegressor(random_state=0)
        >>> total, epistemic, aleatoric = regressor.fit(t, z).predict_uncertainty(t[:5])
        >>> total.shape
        (5, 1)
    """

    total: NumberArray
    epistemic: NumberArray
    aleatoric: NumberArray


class LaplaceEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Parameters, checks and training; subclasses say what targets are."""

    noisy = False  # whether targets have a noise that held-out rows tune

    def __init__(
        self,
        hidden: Sequence[int] = (50, 50),
        *,
        network: nn.Module | Factory | None = None,
        epochs: int = 500,
        learning_rate: float = 3e-3,
        batch_size: int = 64,
        weight_decay: float = 1e-2,
        early_stopping: bool = True,
        patience: int = 25,
        validation_fraction: float = 0.2,
        weights: Weights = "all",
        structure: StructureName | Structure = "kron",
        random_state: int | np.random.RandomState | None = None,
        device: str | torch.device | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.network = network
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.weights = weights
        self.structure = structure
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _options(self) -> TrainingOptions:
        """The parameters of the training, checked; the others too."""
        hidden: Any = self.hidden
        if isinstance(hidden, str) or not hasattr(hidden, "__iter__"):
            raise ArgumentTypeError(f"hidden={hidden!r} was given; expected a tuple of widths, such as (50, 50).")
        for width in hidden:
            check_number("hidden", width, whole=True, least=1)
        check_number("validation_fraction", self.validation_fraction, whole=False, least=0)
        if self.validation_fraction > MOST_HELD:
            raise PeewitError(
                f"validation_fraction={self.validation_fraction} was given; expected at most {MOST_HELD}, since the "
                "network is trained on the other rows."
            )
        options = TrainingOptions(
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
            patience=self.patience,
        )
        options.check()
        return options

    def _train(
        self, X: NumberArray, y: NumberArray, classes: NumberArray, outputs: int, loss: Loss, what: str
    ) -> TrainedTable:
        """Scale the inputs, hold rows out, and train a network with so many outputs; `y` is ready for the loss."""
        options, random = self._options(), check_random_state(self.random_state)
        tune = self.noisy or not self.early_stopping
        split = split_table(classes, self.validation_fraction, bool(self.early_stopping), tune, random)
        seed = int(random.randint(2**31 - 1))
        device = torch.device("cpu") if self.device is None else device_named(self.device)
        self.input_scaler_ = StandardScaler().fit(X)
        with nullcontext() if self.network is None else seeded(seed, device):
            network = build_network(self.network, self.hidden, (X.shape[1], outputs), seed).to(device)
            device_of(network)  # refuses networks that cannot be used
            self.network_ = network
            x = self._inputs(X)
            targets = torch.as_tensor(y, device=device)
            table = TrainedTable(x, targets.to(x.dtype) if targets.is_floating_point() else targets, split)
            check_output(network, x, outputs, what)
            stopping = table.rows(split.stopping) if len(split.stopping) else None
            run = train_network(
                network, table.rows(split.train), stopping, loss, options, seed, Progress(bool(self.verbose))
            )
        self.n_iter_, self.best_epoch_ = run.epochs, run.best
        if stopping is not None and not run.stopped:
            warn(
                f"The loss on the rows that stop the training was still falling after {run.epochs} epochs (its best "
                f"was in epoch {run.best}); raise epochs or learning_rate.",
                ConvergenceWarning,
            )
        return table

    def _inputs(self, X: NumberArray) -> Tensor:
        """Scaled rows as the network takes them."""
        parameter = next(iter(self.network_.parameters()))
        scaled: NumberArray = self.input_scaler_.transform(X)
        return torch.as_tensor(scaled, dtype=parameter.dtype, device=parameter.device)

    def _check_inputs(self, X: Any) -> Tensor:
        """The rows of a question, checked against those of the fit."""
        check_is_fitted(self, "posterior_")
        return self._inputs(validate_data(self, X, reset=False, dtype=np.float64))

    def _prediction(self, X: Any) -> Prediction:
        """What the posterior says of the rows, in scaled units."""
        x = self._check_inputs(X)
        posterior: Laplace = self.posterior_
        return posterior.predict(x)


class TrainedTable(NamedTuple):
    """Scaled rows with targets, and which of them were used for what."""

    x: Tensor
    y: Tensor
    split: TableSplit

    def rows(self, numbers: NumberArray) -> LabelledTensors:
        """Some of them."""
        chosen = torch.as_tensor(numbers, device=self.x.device)
        return self.x[chosen], self.y[chosen]

    @property
    def train(self) -> LabelledTensors:
        """Those that the network was trained on."""
        return self.rows(self.split.train)

    @property
    def tuning(self) -> LabelledTensors | None:
        """Those that neither trained nor stopped."""
        return self.rows(self.split.tuning) if len(self.split.tuning) else None


def as_array(values: Tensor) -> NumberArray:
    """A tensor as an array in float64, or of truth values."""
    array: NumberArray = values.detach().cpu().numpy()
    return array.astype(np.float64) if array.dtype.kind == "f" else array
