"""How tuning went, step by step: a value to print and to plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

TuneMethod: TypeAlias = Literal["evidence", "fixed_point", "training", "validation", "grid"]
"""How `Laplace.tune` chooses a setting."""

KEPT = 1_000_000  # numbers of precisions kept for all steps; of more groups the first and last step alone


@dataclass(frozen=True, kw_only=True)
class TuningStep:
    """One setting that was tried, and its score."""

    value: float
    precision: Tensor  # (groups,)
    noise: float | None  # None where the likelihood has none
    temperature: float
    gamma: Tensor | None  # (groups,), where the evidence was asked
    decrement: float | None = None  # of the linear model's loss, where its mode was looked for
    gradient: float | None = None  # |g| of it
    products: float | None = None  # taken until then


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """The steps of tuning: score and settings of each, and why it stopped.

    `la.tune().trace` is one. `len(trace)` is the number of steps, and `trace.best` the number of the best.

    Attributes:
        method: Method of tuning, such as "evidence".
        objective: The score: "log evidence" (higher is better) or "validation NLL" (lower is better).
        groups: Names of the prior's groups.
        values: Scores (steps,).
        precisions: Prior precisions (steps, groups); of the first and last step alone where all would be more than a
            million numbers.
        noises: Noise standard deviations (steps,); empty where the likelihood has none.
        temperatures: Temperatures (steps,).
        effective_dimensions: Effective dimensions (steps, groups), of the same steps as `precisions`; None where the
            evidence was not evaluated.
        stopped: In words, why tuning stopped.
        converged: Whether it stopped because it was done.
        warnings: Texts of the warnings about the outcome.
        decrements: `1/2 g^T P^-1 g` of the linear model's loss (steps,); empty unless its mode was sought.
        gradients: Lengths `|g|` of its gradient (steps,); empty unless its mode was sought.
        products: Products over all data taken so far (steps,); empty unless its mode was sought.
        raised: Factor by which the best prior precision was then raised so that predictions explain the training data;
            1 unless `method` is "training".
        best: Number of the best step.

    Example:
        >>> trace = la.tune().trace
        >>> trace.objective, trace.converged, trace.precisions.shape == (len(trace), 1)
        ('log evidence', True, True)
    """

    method: TuneMethod
    objective: str
    groups: Sequence[str]
    values: tuple[float, ...]
    precisions: Tensor
    noises: tuple[float, ...]
    temperatures: tuple[float, ...]
    effective_dimensions: Tensor | None
    stopped: str
    converged: bool
    warnings: tuple[str, ...]
    decrements: tuple[float, ...] = ()
    gradients: tuple[float, ...] = ()
    products: tuple[float, ...] = ()
    raised: float = 1.0

    @staticmethod
    def of(
        method: TuneMethod,
        objective: str,
        groups: Sequence[str],
        steps: Sequence[TuningStep],
        stopped: str,
        converged: bool,
        warnings: Sequence[str],
    ) -> Trace:
        """Make a trace from single steps."""
        kept = list(steps)
        if len(steps) * len(groups) > KEPT:
            kept = [steps[0], steps[-1]]
        gammas = [step.gamma for step in kept if step.gamma is not None]
        return Trace(
            method=method,
            objective=objective,
            groups=groups,
            values=tuple(step.value for step in steps),
            precisions=torch.stack([step.precision.expand(len(groups)) for step in kept]),
            noises=tuple(step.noise for step in steps if step.noise is not None),
            temperatures=tuple(step.temperature for step in steps),
            effective_dimensions=torch.stack(gammas) if gammas else None,
            stopped=stopped,
            converged=converged,
            warnings=tuple(warnings),
            decrements=tuple(step.decrement for step in steps if step.decrement is not None),
            gradients=tuple(step.gradient for step in steps if step.gradient is not None),
            products=tuple(step.products for step in steps if step.products is not None),
        )

    def with_warning(self, text: str) -> Trace:
        """Return the trace with one more warning text."""
        return replace(self, warnings=(*self.warnings, text))

    @property
    def best(self) -> int:
        """The number of the step with the best score."""
        pick = max if self.objective == "log evidence" else min
        finite = [number for number, value in enumerate(self.values) if value == value]
        return pick(finite, key=lambda number: self.values[number])

    def __len__(self) -> int:
        """Steps."""
        return len(self.values)

    def __repr__(self) -> str:
        """A few lines: how it went and where it ended."""
        first, best = self.values[0], self.values[self.best]
        state = "converged" if self.converged else "not converged"
        lines = [
            f"Trace({self.method}: {len(self)} steps, {state}: {self.stopped})",
            f"  {self.objective} {first:.6g} -> {best:.6g}",
        ]
        if len(self.precisions) == len(self.values) and len(self.groups) <= 8:
            precisions = self.precisions[self.best].tolist()
            words = ", ".join(f"{name} {value:.4g}" for name, value in zip(self.groups, precisions, strict=True))
            lines.append(f"  precision: {words}")
        if self.raised != 1:
            lines.append(f"  precision then raised {self.raised:.3g}-fold to explain the training data")
        if self.products:
            lines.append(f"  {self.products[-1]:g} products over the data")
        if self.noises:
            lines.append(f"  noise {self.noises[self.best]:.4g}")
        if self.temperatures[self.best] != 1:
            lines.append(f"  temperature {self.temperatures[self.best]:.4g}")
        return "\n".join([*lines, *(f"  warning: {text}" for text in self.warnings)])
