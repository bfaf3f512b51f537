"""What `tune` may be asked for, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from ..likelihoods import WithNoise
from ..messages.names import nearest

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

Method = Literal["evidence", "fixed_point", "validation", "grid"]
Mode = Literal["trained", "linear"]
MODES = ("trained", "linear")
METHODS = ("evidence", "fixed_point", "validation", "grid")
LIMITS = (1e-10, 1e10)  # of precisions
TEMPERATURES = (1e-4, 1e4)
STEPS = {"evidence": 200, "fixed_point": 1000, "validation": 60, "grid": 0}
TOLERANCES = {"evidence": 1e-6, "fixed_point": 1e-7, "validation": 1e-3, "grid": 0.0}
TURNS, TURNED = 100, 1e-2  # steps and tolerance with mode='linear': a hundredth of a precision
Grid = Sequence[float] | Tensor | Mapping[str, Sequence[float] | Tensor]


@dataclass(frozen=True)
class Passing:
    """At which weights the evidence is taken, and how the training data are passed over for it."""

    mode: Mode = "trained"
    memory: float | None = None
    progress: bool = False

    def check(self, method: str, data: Any) -> None:
        """Refuse what does not belong together."""
        mode = self.mode
        if mode not in MODES:
            near = nearest(mode, MODES) if isinstance(mode, str) else ""
            raise ValueError(f"mode={mode!r} is not known; {near}Known: {', '.join(MODES)}.")
        if mode == "trained":
            if self.memory is not None or self.progress:
                raise ValueError("memory= and progress= are for passes over the training data, with mode='linear'.")
            return
        if method not in ("evidence", "fixed_point"):
            raise ValueError(
                f"mode='linear' with method={method!r}, whose score does not depend on a mode; use method='evidence' "
                "or 'fixed_point', or leave mode= out."
            )
        if data is None:
            raise ValueError("mode='linear' passes over the training data; give it as data=(x, y) or a DataLoader.")


@dataclass(frozen=True)
class Settings:
    """What `tune` was asked for, checked."""

    method: Method
    prior: bool
    noise: bool
    temperature: bool
    data: Any
    grid: Grid | None
    steps: int
    tolerance: float
    limits: tuple[float, float]
    predict: Mapping[str, Any]
    passing: Passing


def checked_temperature(temperature: float) -> float:
    """A positive number."""
    value = positive(temperature)
    if value is None:
        raise ValueError(f"temperature={temperature!r}: expected a positive number; 1 is Bayes' rule.")
    return value


def positive(value: Any) -> float | None:
    """A positive finite number, or None for anything else."""
    try:
        made = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return made if math.isfinite(made) and made > 0 else None


def listable(values: Any) -> bool:
    """Whether there are several values to go through: a list, an array, a tensor with an axis, a mapping."""
    return isinstance(values, Iterable) and not isinstance(values, str) and getattr(values, "ndim", 1) > 0


def check_kinds(switches: Mapping[str, Any], grid: Any, steps: Any, tolerance: Any, predict: Any) -> None:
    """Refuse what is not even of the right kind."""
    for name, given in switches.items():
        if not isinstance(given, bool):
            advice = {"prior": "start= takes another prior to begin from", "noise": "la.with_noise(...) sets a noise"}
            hint = advice.get(name, "la.with_temperature(...) sets a temperature")
            raise TypeError(f"tune({name}={given!r}): expected True or False, whether to tune it; {hint}.")
    if grid is not None and not listable(grid):
        raise TypeError(f"grid={grid!r}: expected numbers, or a mapping such as {{'prior': [0.1, 1, 10]}}.")
    if isinstance(grid, Mapping) and not grid:
        raise ValueError("grid has no values; expected a mapping such as {'prior': [0.1, 1, 10]}.")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise ValueError(f"steps={steps!r}: expected a positive whole number.")
    if tolerance is not None and positive(tolerance) is None:
        raise ValueError(f"tolerance={tolerance!r}: expected a positive number.")
    if predict is not None and not isinstance(predict, Mapping):
        raise TypeError(f"predict={predict!r}: expected a mapping of options, such as {{'link': 'mc'}}.")


def checked_limits(limits: Any) -> tuple[float, float]:
    """Two positive precisions, the smaller first."""
    made = [positive(limit) for limit in limits] if listable(limits) else []
    if len(made) != 2 or made[0] is None or made[1] is None or made[0] >= made[1]:
        raise ValueError(f"limits={limits!r}: expected two positive precisions, the smaller first.")
    return made[0], made[1]


def checked(
    la: PosteriorState,
    method: Method,
    prior: bool,
    noise: bool | None,
    temperature: bool,
    data: Any,
    grid: Grid | None,
    steps: int | None,
    tolerance: float | None,
    limits: tuple[float, float],
    predict: Mapping[str, Any] | None,
    passing: Passing,
) -> Settings:
    """Check what belongs together."""
    if not isinstance(method, str):
        raise TypeError(
            f"method is a {type(method).__name__}; expected one of {', '.join(METHODS)}. Validation data are data=."
        )
    if method not in METHODS:
        raise ValueError(f"method={method!r} is not known; {nearest(method, METHODS)}Known: {', '.join(METHODS)}.")
    passing.check(method, data)
    mode = passing.mode
    switches = {"prior": prior, "temperature": temperature} | ({} if noise is None else {"noise": noise})
    check_kinds(switches, grid, steps, tolerance, predict)
    given = set(grid) if isinstance(grid, Mapping) else set() if grid is None else {"prior"}
    for name, own in (("prior", prior), ("noise", noise)):
        if own is False and name in given:
            raise ValueError(f"{name}=False was given, and the grid has values for it; leave out one of them.")
    has_noise = isinstance(la.likelihood, WithNoise)
    if noise is None:
        noise = has_noise and (method != "grid" or "noise" in given)
    if noise and not has_noise:
        raise ValueError(f"noise=True was given, but {type(la.likelihood).__name__} has no noise.")
    temperature = temperature or "temperature" in given
    if temperature and (method in ("evidence", "fixed_point") or data is None):
        raise ValueError(
            "The evidence cannot choose a temperature: it only grows as the likelihood counts less. "
            "Use method='validation' with data=, or method='grid' with data=."
        )
    if data is not None and method in ("evidence", "fixed_point") and mode == "trained":
        raise ValueError(
            f"data= was given, but method={method!r} needs none at the trained weights; use mode='linear' with the "
            "training data, or method='validation' or 'grid' with other data."
        )
    if grid is not None and method != "grid":
        raise ValueError(f"grid= was given, but method={method!r} has none; use method='grid'.")
    if not (prior or noise or temperature):
        raise ValueError("There is nothing to tune: prior=False, and neither noise nor temperature.")
    low, high = checked_limits(limits)
    steps = (TURNS if mode == "linear" else STEPS[method] * (prior + noise + temperature)) if steps is None else steps
    usual = TURNED if mode == "linear" else TOLERANCES[method]
    tolerance = usual if tolerance is None else tolerance
    options = dict(predict or {})
    if options and method in ("evidence", "fixed_point"):
        raise ValueError(f"predict= was given, but method={method!r} makes no predictions; leave it out.")
    if options.get("mean", "network") != "network":
        raise ValueError(
            f"predict={options!r}: a mode of the linear model belongs to one prior, and many are tried here; expected "
            "the network's own mean."
        )
    return Settings(method, prior, noise, temperature, data, grid, steps, tolerance, (low, high), options, passing)
