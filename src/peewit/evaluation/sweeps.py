"""What the prior precision and the data weight do to calibration, without fitting again.

The posterior's precision is `(n / N) H + tau I`. `tau` is the prior precision. The data weight `n` is the number of
examples that the N examples count for: N over the temperature.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from ..laplace import Laplace
from ..messages.arguments import is_count
from ..messages.errors import ArgumentTypeError, MissingPackageError, PeewitError
from ..messages.names import check_name
from ..metrics import json
from ..metrics.bootstrap import one_set
from ..metrics.catalogue import MetricName, merit
from ..metrics.positions import Positions
from ..network.isolation import entry_point
from ..network.nests import Data
from ..predictions.shared import SharedPredictions
from ..runtime.progress import Progress
from ..runtime.random import seed_of
from ..tuning.validation import validation_batches
from .scorers import scorer_of
from .scoring import metrics_of

FORMAT = 2  # of the JSON text
SearchMethod: TypeAlias = Literal["grid", "random", "bayesian"]
"""How settings are tried; "bayesian" needs optuna."""
TRIALS = {"grid": 49, "random": 40, "bayesian": 40}
WIDE = 1e3  # factor from the posterior's own setting to both ends of a range


@dataclass(frozen=True)
class SweepPoint:
    """One setting of a sweep, with its metrics.

    `pw.sweep(...).points` are some, and `pw.sweep(...).best` is one.

    Attributes:
        data_weight: Number of examples that the data counted for.
        prior_precision: The prior precision of all weights.
        temperature: The temperature that the data weight is, for `la.with_temperature`.
        metrics: Metrics by name, such as "nll".

    Example:
        >>> best = pw.sweep(la, (x, y), trials=4).best
        >>> tuned = la.with_prior(best.prior_precision).with_temperature(best.temperature)
        >>> 0 < best.metrics["nll"] < 1
        True
    """

    data_weight: float
    prior_precision: float
    temperature: float
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """All settings that a sweep tried, in their order.

    `pw.sweep` returns it. A point has `data_weight`, `prior_precision`, `temperature` and `metrics`, which are values
    by name.

    Attributes:
        points: The settings, with their metrics.
        metric: Name of the metric that the best setting is chosen by.
        method: "grid", "random" or "bayesian".
        examples: Number of examples that the posterior was fitted to.
        data_weight: Range of the data weight.
        prior_precision: Range of the prior precision.
        best: The point with the best metric.

    Example:
        >>> tried = pw.sweep(la, (x, y), trials=4)
        >>> tried.best in tried.points, tried.metric
        (True, 'nll')
    """

    points: tuple[SweepPoint, ...]
    metric: MetricName
    method: SearchMethod
    examples: int
    data_weight: tuple[float, ...]
    prior_precision: tuple[float, ...]

    @property
    def best(self) -> SweepPoint:
        """The one with the best metric."""
        finite = [point for point in self.points if not math.isnan(point.metrics[self.metric])]
        return max(finite or self.points, key=lambda point: merit(self.metric, point.metrics[self.metric]))

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the sweep as JSON text.

        Args:
            path: A file for the text. None for the text alone.

        Returns:
            The text.

        Raises:
            FileNotFoundError: The folder of the file does not exist.
            IsADirectoryError: `path` is a folder.

        Example:
            >>> tried = pw.sweep(la, (x, y), trials=4)
            >>> pw.Sweep.from_json(tried.to_json()) == tried
            True
        """
        return json.write(json.to_text(self, FORMAT), path)

    @classmethod
    def from_json(cls, path_or_text: str | os.PathLike[str]) -> Sweep:
        """Read the sweep that `to_json` wrote.

        Args:
            path_or_text: The file, or the text itself.

        Returns:
            The sweep.

        Raises:
            PeewitError: The text is not a sweep, or of another format.
            FileNotFoundError: There is no such file.

        Example:
            >>> text = pw.sweep(la, (x, y), trials=4).to_json("sweep.json")
            >>> len(pw.Sweep.from_json("sweep.json").points)
            4
        """
        return json.from_text(cls, json.read(path_or_text), FORMAT)

    def __repr__(self) -> str:
        """A line for the best setting."""
        best = self.best
        return (
            f"Sweep({self.method}, {len(self.points)} settings; best {self.metric} {best.metrics[self.metric]:.4g} at "
            f"data_weight={best.data_weight:.4g} (temperature {best.temperature:.4g}), "
            f"prior_precision={best.prior_precision:.4g})"
        )


Try = Callable[[float, float], SweepPoint]  # of a data weight and a prior precision


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Arguments of `sweep`, checked."""

    data_weight: tuple[float, float]
    prior_precision: tuple[float, float]
    trials: int
    metric: MetricName
    seed: int


@entry_point
def sweep(
    la: Laplace,
    validation: Data,
    *,
    data_weight: tuple[float, float] | None = None,
    prior_precision: tuple[float, float] | None = None,
    method: SearchMethod = "grid",
    trials: int | None = None,
    metric: MetricName = "nll",
    generator: torch.Generator | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> Sweep:
    """Score many data weights and prior precisions on validation data, without fitting again.

    The data weight is the number of examples that the data count for: their number over the temperature. Both ranges
    are on a logarithmic axis. The default range goes a factor of 1,000 to both sides of the posterior's own setting.

    Args:
        la: The posterior.
        validation: Data that the network was not trained on, as in `pw.fit`. A one-shot iterator is refused.
        data_weight: Lowest and highest data weight. None for the default.
        prior_precision: Lowest and highest prior precision. None for the default.
        method: "grid", "random" or "bayesian" (needs optuna).
        trials: Number of settings. None for 49 on a grid and 40 else. A grid takes the largest square up to it.
        metric: Metric that the best setting is chosen by, such as "nll" or "ece"; all metrics are kept.
        generator: Source of the seed of "random" and "bayesian". None for a fixed seed.
        memory: Bytes for Jacobians that are kept and for temporary results. None for the limit that the posterior has.
        progress: Whether to show a progress bar.

    Returns:
        A `pw.Sweep`.

    Raises:
        PeewitError: A range is not two rising positive numbers, a name is unknown, `trials` is too small, or the data
            is a one-shot iterator or has no labelled examples.
        ArgumentTypeError: `la` is not a `pw.Laplace`, `metric` is not a name, or `generator` is not a torch.Generator.
        MissingPackageError: `method="bayesian"` without optuna.

    Example:
        >>> tried = pw.sweep(la, (x, y), prior_precision=(0.1, 10.0), trials=9)
        >>> len(tried.points), 0.1 <= tried.best.prior_precision <= 10.1
        (9, True)
    """
    if not isinstance(la, Laplace):
        raise ArgumentTypeError(f"sweep was given a {type(la).__name__}; expected a Laplace, which peewit.fit returns.")
    check_name(method, SEARCHES, "method")
    if not isinstance(metric, str):
        raise ArgumentTypeError(f"metric is a {type(metric).__name__}; expected the name of a metric, such as 'nll'.")
    options = SweepOptions(
        data_weight=check_range(data_weight, la.N / la.temperature, "data_weight"),
        prior_precision=check_range(
            prior_precision, float(la.prior.precision.detach().double().log().mean().exp()), "prior_precision"
        ),
        trials=check_trials(trials, method),
        metric=metric,
        seed=seed_of(generator, 32, fixed=0),
    )
    shared = SharedPredictions(
        la=la.state, batches=validation_batches(validation, la.model), options={"memory": memory}
    )
    with closing(Progress(progress)) as bars:
        tried = SEARCHES[method](lambda n, tau: score(la, shared, n, tau, metric), options)
        points = tuple(bars.track(tried, options.trials, "trying settings"))
    return Sweep(
        points=points,
        metric=metric,
        method=method,
        examples=la.N,
        data_weight=options.data_weight,
        prior_precision=options.prior_precision,
    )


def check_range(limits: Any, middle: float, what: str) -> tuple[float, float]:
    """The lowest and the highest number; None for a wide range around `middle`."""
    if limits is None:
        return middle / WIDE, middle * WIDE
    pair = isinstance(limits, tuple | list) and len(limits) == 2
    if not pair or not all(isinstance(value, int | float) and 0 < value < math.inf for value in limits):
        raise PeewitError(f"{what}={limits!r} was given; expected two positive numbers, (lowest, highest).")
    if limits[0] >= limits[1]:
        raise PeewitError(f"{what}={limits!r} was given; expected the lower number first.")
    return float(limits[0]), float(limits[1])


def check_trials(trials: int | None, method: SearchMethod) -> int:
    """How many settings are tried; on a grid a square number."""
    number = TRIALS[method] if trials is None else trials
    if not is_count(number) or (method == "grid" and number < 4):
        least = "4 or more, for a grid of two by two" if method == "grid" else "a positive whole number"
        raise PeewitError(f"trials={trials!r} was given; expected {least}.")
    return math.isqrt(number) ** 2 if method == "grid" else number


def between(share: float, limits: tuple[float, float]) -> float:
    """A point on a logarithmic axis; shares from 0 to 1 lead from end to end."""
    return math.exp(math.log(limits[0]) + share * (math.log(limits[1]) - math.log(limits[0])))


def grid(attempt: Try, options: SweepOptions) -> Iterator[SweepPoint]:
    """As many data weights as prior precisions, ends included."""
    side = math.isqrt(options.trials)
    for first in range(side):
        for second in range(side):
            shares = first / (side - 1), second / (side - 1)
            yield attempt(between(shares[0], options.data_weight), between(shares[1], options.prior_precision))


def random(attempt: Try, options: SweepOptions) -> Iterator[SweepPoint]:
    """Uniformly on logarithmic axes."""
    generator = torch.Generator("cpu").manual_seed(options.seed)
    for _ in range(options.trials):
        first, second = torch.rand(2, generator=generator, dtype=torch.float64, device="cpu").tolist()
        yield attempt(between(first, options.data_weight), between(second, options.prior_precision))


def bayesian(attempt: Try, options: SweepOptions) -> Iterator[SweepPoint]:
    """Where a model of the earlier trials promises most (optuna's tree of Parzen estimators)."""
    try:
        import optuna
    except ImportError:
        raise MissingPackageError("method='bayesian' needs optuna: pip install optuna.") from None
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=options.seed))
        for _ in range(options.trials):
            trial = study.ask()
            point = attempt(
                trial.suggest_float("data_weight", *options.data_weight, log=True),
                trial.suggest_float("prior_precision", *options.prior_precision, log=True),
            )
            value = -merit(options.metric, point.metrics[options.metric])
            study.tell(trial, value if math.isfinite(value) else 1e30)
            yield point
    finally:
        optuna.logging.set_verbosity(verbosity)


SEARCHES: dict[SearchMethod, Callable[[Try, SweepOptions], Iterator[SweepPoint]]] = {
    "grid": grid,
    "random": random,
    "bayesian": bayesian,
}


def score(
    la: Laplace, shared: SharedPredictions, data_weight: float, prior_precision: float, metric: MetricName
) -> SweepPoint:
    """The metrics of one setting."""
    temperature = la.N / data_weight
    state = la.with_prior(prior_precision).with_temperature(temperature).state
    (batches,) = shared.read([lambda: state], lambda prediction, targets: scorer_of(prediction).positions(targets))
    positions = Positions.join(batches)
    if not len(positions):
        raise PeewitError("validation has no labelled examples; expected some.")
    draws = metrics_of(positions, one_set(positions.examples))
    check_name(metric, draws, "metric")
    return SweepPoint(data_weight, prior_precision, temperature, {name: each.value for name, each in draws.items()})
