"""What the prior's precision and the weight of the data do to calibration, without fitting again.

The posterior's precision is `(n / N) H + tau I`: `tau` is the precision of the prior, and `n` how many examples the N
that were seen count for, the data count over the temperature.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..messages.arguments import is_count
from ..messages.errors import ArgumentTypeError, MissingPackageError, PeewitError
from ..messages.names import nearest
from ..metrics import json
from ..metrics.bootstrap import Resampling
from ..metrics.kinds import merit
from ..network.batches import Batches
from ..network.isolation import plainly
from ..posterior.network import TooManyOutputs
from ..predictions import covariance as engine
from ..predictions import options, predict
from ..predictions.families import made_of
from ..runtime.progress import Progress
from ..runtime.random import DEFAULT_SEED
from ..tuning.scores import Scores as Shared
from ..tuning.scores import Slice
from ..tuning.validation import repeated
from .answers import Part, answer, joined
from .scoring import metrics_of

if TYPE_CHECKING:
    from ..laplace import Laplace

FORMAT = 1
METHODS = ("grid", "random", "bayesian")
TRIALS = {"grid": 49, "random": 40, "bayesian": 40}
WIDE = 1e3  # how far the ranges go from what the posterior has, to both sides


@dataclass(frozen=True)
class Point:
    """One setting that was tried."""

    scale: float  # data count over temperature
    precision: float
    temperature: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Sweep:
    """All settings that a sweep tried, in their order.

    `pw.sweep` returns it. A point has `scale`, `precision`, `temperature` and `metrics`, which are values by name.

    Attributes:
        points: The settings that were tried, with their metrics.
        metric: Name of the metric that the best is chosen by.
        method: "grid", "random" or "bayesian".
        examples: Number of examples that the posterior was fitted to.
        scale: Range of the data count over the temperature.
        precision: Range of the prior precision.
        seed: Seed of the search.
        best: The point with the best metric.

    Example:
        >>> found = pw.sweep(la, (x, y), trials=4)
        >>> found.best in found.points, found.metric
        (True, 'nll')
    """

    points: tuple[Point, ...]
    metric: str
    method: str
    examples: int  # that the posterior was fitted to
    scale: tuple[float, ...]  # the range
    precision: tuple[float, ...]
    seed: int

    @property
    def best(self) -> Point:
        """The one with the best metric."""
        finite = [point for point in self.points if not math.isnan(point.metrics[self.metric])]
        return max(finite or self.points, key=lambda point: merit(self.metric, point.metrics[self.metric]))

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """As JSON text, also into a file."""
        return json.written(json.to_text(self, FORMAT), path)

    @classmethod
    def from_json(cls, path_or_text: str | os.PathLike[str]) -> Sweep:
        """The sweep that `to_json` wrote."""
        return json.from_text(cls, json.read(path_or_text), FORMAT)

    def __repr__(self) -> str:
        """A line for the best setting."""
        best = self.best
        return (
            f"Sweep({self.method}, {len(self.points)} settings; best {self.metric} {best.metrics[self.metric]:.4g} at "
            f"scale={best.scale:.4g} (temperature {best.temperature:.4g}), precision={best.precision:.4g})"
        )


Try = Callable[[float, float], Point]
Search = Callable[[Try, "Question"], Iterator[Point]]


@dataclass(frozen=True)
class Question:
    """What was asked for, checked."""

    scale: tuple[float, float]
    precision: tuple[float, float]
    method: str
    trials: int
    metric: str
    seed: int


@plainly
def sweep(
    la: Laplace,
    validation: Any,
    *,
    scale: tuple[float, float] | None = None,
    precision: tuple[float, float] | None = None,
    method: str = "grid",
    trials: int | None = None,
    metric: str = "nll",
    seed: int = 0,
    progress: bool = False,
) -> Sweep:
    """Score many weights of the data and precisions of the prior on validation data, without fitting again.

    Both ranges are on a logarithmic axis. By default they go a factor of 1,000 to both sides of what the posterior has.

    Args:
        la: The posterior.
        validation: Data that the network was not trained on, as in `pw.fit`. A one-shot iterator is refused.
        scale: Lowest and highest data count over the temperature. None for the default.
        precision: Lowest and highest prior precision. None for the default.
        method: "grid", "random" or "bayesian" (needs optuna).
        trials: Number of settings. None for 49 on a grid and 40 else. A grid takes the largest square up to it.
        metric: What the best is chosen by, such as "nll" or "ece"; all metrics are kept.
        seed: Seed of "random" and "bayesian".
        progress: Whether to show a progress bar.

    Returns:
        A `pw.Sweep`.

    Raises:
        PeewitError: A range is none, a name is unknown, `trials` is too small, or the data is a one-shot iterator or
            has no labelled examples.
        ArgumentTypeError: `la` is no `pw.Laplace`, or `metric` is no name.
        ImportError: `method="bayesian"` without optuna.

    Example:
        >>> found = pw.sweep(la, (x, y), precision=(0.1, 10.0), trials=9)
        >>> len(found.points), 0.1 <= found.best.precision <= 10.1
        (9, True)
    """
    from ..laplace import Laplace

    if not isinstance(la, Laplace):
        raise ArgumentTypeError(f"sweep was given a {type(la).__name__}; expected a Laplace, which peewit.fit returns.")
    middle = float(la.prior.precision.detach().double().log().mean().exp())
    own = la.N / la.temperature
    question = checked(
        scale or (own / WIDE, own * WIDE), precision or (middle / WIDE, middle * WIDE), method, trials, metric, seed
    )
    batches = repeated(validation, la.weights.device)
    scorer = Scorer(la, batches)
    search: dict[str, Search] = {"grid": grid, "random": random, "bayesian": bayesian}
    shown = Progress(progress)
    try:
        tried = search[method](lambda n, tau: scorer.point(n, tau, metric), question)
        points = tuple(shown.track(tried, question.trials, "trying settings"))
    finally:
        shown.close()
    return Sweep(points, metric, method, la.N, question.scale, question.precision, seed)


def checked(scale: Any, precision: Any, method: Any, trials: Any, metric: Any, seed: Any) -> Question:
    """Refuse ranges that are none, unknown names and counts that are none."""
    for name, given in (("scale", scale), ("precision", precision)):
        good = isinstance(given, tuple | list) and len(given) == 2
        if not good or not all(isinstance(each, int | float) and 0 < each < math.inf for each in given):
            raise PeewitError(f"{name}={given!r} was given; expected two positive numbers, (lowest, highest).")
        if given[0] >= given[1]:
            raise PeewitError(f"{name}={given!r} was given; expected the lower number first.")
    if method not in METHODS:
        near = nearest(method, METHODS) if isinstance(method, str) else ""
        raise PeewitError(f"method={method!r} is not known; {near}Known: {', '.join(METHODS)}.")
    number = TRIALS[method] if trials is None else trials
    if not is_count(number) or (method == "grid" and number < 4):
        least = "4 or more, for a grid of two by two" if method == "grid" else "a positive whole number"
        raise PeewitError(f"trials={trials!r} was given; expected {least}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 32:
        raise PeewitError(f"seed={seed!r} was given; expected a whole number from 0.")
    if not isinstance(metric, str):
        raise ArgumentTypeError(f"metric is a {type(metric).__name__}; expected the name of a metric, such as 'nll'.")
    ranges = [(float(given[0]), float(given[1])) for given in (scale, precision)]
    side = math.isqrt(number)
    return Question(ranges[0], ranges[1], method, side * side if method == "grid" else number, metric, seed)


def between(share: float, limits: tuple[float, float]) -> float:
    """On a logarithmic axis, 0 to 1."""
    return math.exp(math.log(limits[0]) + share * (math.log(limits[1]) - math.log(limits[0])))


def grid(attempt: Try, question: Question) -> Iterator[Point]:
    """As many scales as precisions, ends included."""
    side = math.isqrt(question.trials)
    for first in range(side):
        for second in range(side):
            shares = first / (side - 1), second / (side - 1)
            yield attempt(between(shares[0], question.scale), between(shares[1], question.precision))


def random(attempt: Try, question: Question) -> Iterator[Point]:
    """Evenly on logarithmic axes."""
    generator = torch.Generator("cpu").manual_seed(question.seed)
    for _ in range(question.trials):
        first, second = torch.rand(2, generator=generator, dtype=torch.float64, device="cpu").tolist()
        yield attempt(between(first, question.scale), between(second, question.precision))


def bayesian(attempt: Try, question: Question) -> Iterator[Point]:
    """Where a model of the earlier trials promises most (optuna's tree of Parzen estimators)."""
    try:
        import optuna
    except ImportError:
        raise MissingPackageError("method='bayesian' needs optuna: pip install optuna.") from None
    told = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        sampler = optuna.samplers.TPESampler(seed=question.seed)
        study = optuna.create_study(direction="minimize", sampler=sampler)
        for _ in range(question.trials):
            trial = study.ask()
            point = attempt(
                trial.suggest_float("scale", *question.scale, log=True),
                trial.suggest_float("precision", *question.precision, log=True),
            )
            value = -merit(question.metric, point.metrics[question.metric])
            study.tell(trial, value if math.isfinite(value) else 1e30)
            yield point
    finally:
        optuna.logging.set_verbosity(told)


@dataclass(eq=False)
class Scorer:
    """Metrics of settings of one posterior; Jacobians, which depend on none of them, are kept where they fit."""

    la: Laplace
    batches: Batches
    shared: Shared | None = None
    simple: bool = True

    def point(self, scale: float, precision: float, metric: str) -> Point:
        """At one scale and precision."""
        temperature = self.la.N / scale
        there = self.la.with_prior(precision).with_temperature(temperature)
        columns = joined(self._parts(there))
        found = {name: each.value for name, each in metrics_of(columns, Resampling(columns.examples, 0, 0)).items()}
        if metric not in found:
            raise PeewitError(
                f"metric={metric!r} is not known; {nearest(metric, found)}Known here: {', '.join(found)}."
            )
        return Point(scale, precision, temperature, found)

    def _parts(self, la: Laplace) -> list[Part]:
        made: list[Part] = []
        if self.simple:
            self.shared = self.shared or Shared(self.la.state, self.batches, {})
            question = options.Question.of(la.likelihood, "linearised", None, None, False, False)

            def visit(each: Slice) -> None:
                with torch.no_grad():
                    cov = engine.given(each.network, la.precision, each.mean, each.found, each.inputs)
                    belief = predict.normal(each.network, cov, question, DEFAULT_SEED)
                    made.append(answer(made_of(belief, la.likelihood, question.link)).part(each.targets))

            try:
                examples = self.shared._visit(visit, None)
            except TooManyOutputs:  # their covariances are made of samples
                self.simple, made = False, []
            else:
                return self._filled(made, examples)
        with torch.random.fork_rng(devices=[]):  # a shuffled loader draws from the global generator
            for inputs, targets in self.batches:
                made.append(answer(la.predict(inputs)).part(targets))
        return self._filled(made, sum(part.examples for part in made))

    @staticmethod
    def _filled(made: list[Part], examples: int) -> list[Part]:
        if not examples or not sum(len(part.owner) for part in made):
            raise PeewitError("validation has no labelled examples; expected some.")
        return made
