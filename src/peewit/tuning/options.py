"""Options of `tune`, and which of them cannot be used together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from torch import Tensor

from ..likelihoods import WithNoise
from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import check_name, nearest
from ..network.nests import Data
from ..posterior.linear_mode import At, check_at
from ..posterior.trace import TuneMethod

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

TuneParameter: TypeAlias = Literal["prior", "noise", "temperature"]
"""What `Laplace.tune` may change."""
PARAMETERS: tuple[TuneParameter, ...] = get_args(TuneParameter)
METHODS: tuple[TuneMethod, ...] = get_args(TuneMethod)
LIMITS = (1e-10, 1e10)  # of precisions
TEMPERATURES = (1e-4, 1e4)
STEPS = {"evidence": 200, "fixed_point": 1000, "training": 200, "validation": 60, "grid": 0}
TOLERANCES = {"evidence": 1e-6, "fixed_point": 1e-7, "training": 1e-6, "validation": 1e-3, "grid": 0.0}
TURNS, TURNED = 100, 1e-2  # steps and tolerance with at='linear_mode': a hundredth of a precision
Grid: TypeAlias = Sequence[float] | Tensor | Mapping[TuneParameter, Sequence[float] | Tensor]
"""Values to try: prior precisions, or values of each parameter by its name."""


@dataclass(frozen=True)
class Passing:
    """At which weights the evidence is taken, and how data are passed over."""

    at: At | None = None  # None: where the posterior has it
    memory: float | None = None
    progress: bool = False

    def check_training(self, train: Data | None, usual: bool) -> bool:
        """Whether method='training' takes the evidence at the linear mode: where `usual`, unless at= says more."""
        if self.at is not None:
            check_at(self.at)
        if train is None:
            raise PeewitError(
                "method='training' passes over the training data; give it as train=(x, y) or a DataLoader, or use "
                "method='evidence', which needs none."
            )
        return usual if self.at is None else self.at == "linear_mode"

    def check(self, method: str, train: Data | None, validated: bool, had_mode: bool) -> bool:
        """Whether the result is to be at its linear mode, as a posterior that held one; contradictions are refused."""
        if self.at is not None:
            check_at(self.at)
        if self.at == "trained_weights" or (self.at is None and not had_mode):
            if self.memory is not None and not validated:
                raise PeewitError("memory= is for passes over data; use it with at='linear_mode' or validation=.")
            if train is not None:
                raise PeewitError(
                    "train= was given, but nothing here passes over the training data; use at='linear_mode' with it, "
                    "or method='validation' with validation=."
                )
            return False
        if self.at is None:
            if train is None:
                raise PeewitError(
                    "train= is missing: the posterior is at its linear mode, which is found anew on the training data "
                    "as prior and noise change, and a posterior holds no data; use tune(train=...), or "
                    "at='trained_weights' to leave the mode."
                )
            return True
        if method not in ("evidence", "fixed_point"):
            raise PeewitError(
                f"at='linear_mode' with method={method!r}, whose score does not depend on a mode; use "
                "method='evidence' or 'fixed_point', or leave at= out."
            )
        if train is None:
            raise PeewitError(
                "at='linear_mode' passes over the training data; give it as train=(x, y) or a DataLoader."
            )
        return True


@dataclass(frozen=True, kw_only=True)
class TuningSettings:
    """Checked arguments of `tune`."""

    method: TuneMethod
    prior: bool  # whether to tune it
    noise: bool
    temperature: bool
    train: Data | None
    validation: Data | None
    grid: Grid | None
    steps: int
    tolerance: float
    limits: tuple[float, float] | None  # None: those of the method
    predict: Mapping[str, Any]
    passing: Passing
    linear: bool  # whether the result is at its linear mode

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest precision of the evidence."""
        return LIMITS if self.limits is None else self.limits

    @property
    def by_evidence(self) -> bool:
        """Whether the evidence alone is climbed."""
        return self.method in ("evidence", "fixed_point")


def as_temperature(temperature: float) -> float:
    """A positive number."""
    value = positive(temperature)
    if value is None:
        raise PeewitError(f"temperature={temperature!r}: expected a positive number; 1 is Bayes' rule.")
    return value


def positive(value: Any) -> float | None:
    """A positive finite number, or None for anything else."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) and number > 0 else None


def listable(values: Any) -> bool:
    """Whether there are several values to go through: a list, an array, a tensor with an axis, a mapping."""
    return isinstance(values, Iterable) and not isinstance(values, str) and getattr(values, "ndim", 1) > 0


def select_parameters(parameters: Any, grid: set[str], noisy: bool, method: str) -> dict[str, bool]:
    """Which of the parameters are tuned: those that were listed, else what the likelihood and the grid have."""
    if parameters is None:
        noise = noisy and (method != "grid" or "noise" in grid)
        return {"prior": True, "noise": noise, "temperature": "temperature" in grid}
    if isinstance(parameters, str) or not isinstance(parameters, Iterable):
        raise ArgumentTypeError(f"parameters={parameters!r}: expected a list, such as ['prior', 'noise'].")
    listed = list(parameters)
    for name in listed:
        if name not in PARAMETERS:
            near = nearest(name, PARAMETERS) if isinstance(name, str) else ""
            raise PeewitError(f"parameters has {name!r}; {near}Known: {', '.join(PARAMETERS)}.")
    if not listed:
        raise PeewitError(
            "parameters is empty: there is nothing to tune; expected some of " + ", ".join(PARAMETERS) + "."
        )
    for name in sorted(grid - {*listed}):
        raise PeewitError(f"The grid has values for {name}, which parameters={listed!r} leaves out; add it there.")
    return {name: name in listed for name in PARAMETERS}


def check_kinds(grid: Any, steps: Any, tolerance: Any, predict: Any) -> None:
    """Refuse arguments of the wrong type."""
    if grid is not None and not listable(grid):
        raise ArgumentTypeError(f"grid={grid!r}: expected numbers, or a mapping such as {{'prior': [0.1, 1, 10]}}.")
    if isinstance(grid, Mapping) and not grid:
        raise PeewitError("grid has no values; expected a mapping such as {'prior': [0.1, 1, 10]}.")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise PeewitError(f"steps={steps!r}: expected a positive whole number.")
    if tolerance is not None and positive(tolerance) is None:
        raise PeewitError(f"tolerance={tolerance!r}: expected a positive number.")
    if predict is not None and not isinstance(predict, Mapping):
        raise ArgumentTypeError(f"predict={predict!r}: expected a mapping of options, such as {{'link': 'mc'}}.")


def as_limits(limits: Any) -> tuple[float, float]:
    """Two positive precisions, the smaller first."""
    ends = [positive(limit) for limit in limits] if listable(limits) else []
    if len(ends) != 2 or ends[0] is None or ends[1] is None or ends[0] >= ends[1]:
        raise PeewitError(f"limits={limits!r}: expected two positive precisions, the smaller first.")
    return ends[0], ends[1]


def method_for(train: Data | None, validation: Data | None, grid: Grid | None, at: At | None) -> TuneMethod:
    """The method where none was named: what the data that were given allow."""
    if grid is not None:
        return "grid"
    if validation is not None:
        return "validation"
    return "training" if train is not None and at is None else "evidence"


def check_settings(
    la: PosteriorState,
    method: TuneMethod | None,
    parameters: Sequence[TuneParameter] | None,
    train: Data | None,
    validation: Data | None,
    grid: Grid | None,
    steps: int | None,
    tolerance: float | None,
    limits: tuple[float, float] | None,
    predict: Mapping[str, Any] | None,
    passing: Passing,
) -> TuningSettings:
    """Check what belongs together."""
    if method is None:
        method = method_for(train, validation, grid, passing.at)
    if not isinstance(method, str):
        raise ArgumentTypeError(
            f"method is a {type(method).__name__}; expected one of {', '.join(METHODS)}. Validation data are "
            "validation=."
        )
    check_name(method, METHODS, "method")
    noisy = isinstance(la.likelihood, WithNoise)
    # Nobody asked for the mode that "training" took the evidence at: validation data alone leave it.
    leaves_mode = validation is not None and train is None and la.trace is not None and la.trace.method == "training"
    had_mode = la.linear_mode is not None and not leaves_mode
    if method == "training":
        linear = passing.check_training(train, had_mode or noisy)
    else:
        linear = passing.check(method, train, validation is not None, had_mode)
    check_kinds(grid, steps, tolerance, predict)
    named: set[str] = {*grid} if isinstance(grid, Mapping) else set() if grid is None else {"prior"}
    tuned = select_parameters(parameters, named & {*PARAMETERS}, noisy, method)
    if tuned["noise"] and not noisy:
        raise PeewitError(f"parameters has 'noise', but {type(la.likelihood).__name__} has none.")
    by_evidence = method in ("evidence", "fixed_point", "training")
    if tuned["temperature"] and (by_evidence or validation is None):
        raise PeewitError(
            "The evidence cannot choose a temperature: it only grows as the likelihood counts less. "
            "Use method='validation' or 'grid' with validation=."
        )
    if validation is not None and by_evidence:
        raise PeewitError(
            f"validation= was given, but method={method!r} needs none; use method='validation' or 'grid' with it."
        )
    if grid is not None and method != "grid":
        raise PeewitError(f"grid= was given, but method={method!r} has none; use method='grid'.")
    turns = linear and by_evidence
    default_steps = TURNS if turns else STEPS[method] * sum(tuned.values())
    return TuningSettings(
        method=method,
        **tuned,
        train=train,
        validation=validation,
        grid=grid,
        steps=default_steps if steps is None else steps,
        tolerance=(TURNED if turns else TOLERANCES[method]) if tolerance is None else tolerance,
        limits=None if limits is None else as_limits(limits),
        predict=predict_options(predict, method),
        passing=passing,
        linear=linear,
    )


def predict_options(predict: Mapping[str, Any] | None, method: str) -> dict[str, Any]:
    """Options of the predictions that are scored."""
    options = dict(predict or {})
    if options and method in ("evidence", "fixed_point"):
        raise PeewitError(f"predict= was given, but method={method!r} makes no predictions; leave it out.")
    for name in ("memory", "progress"):
        if name in options:
            raise PeewitError(f"predict={options!r}: {name}= is an option of tune itself; give it there.")
    if options.get("at", "trained_weights") != "trained_weights":
        raise PeewitError(
            f"predict={options!r}: a mode of the linear model belongs to one prior, and many are tried here; leave at= "
            "out."
        )
    return options
