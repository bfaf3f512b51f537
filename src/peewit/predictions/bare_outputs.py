"""Predictions of outputs only, under a likelihood without a distribution of targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from ..messages.errors import PeewitError
from .lazy_values import isolate
from .prediction import Prediction, format_values


@isolate
@dataclass(frozen=True, eq=False, repr=False)
class Outputs(Prediction):
    """Outputs of a likelihood that does not say how y is distributed: their mean and variance, and no more.

    `la.predict(x)` returns it for `pw.Custom` without `predictive`. `log_prob`, `interval` and `sample` raise a
    `PeewitError`.

    Attributes:
        belief: Distribution of the network's outputs, from which all else is computed.
        likelihood: The likelihood of the posterior.
        link: How outputs became labels, such as "mc".
        mean: Mean of the outputs (N, ...), the same as `output_mean`.
        epistemic: Variance of the outputs (N, ...) from not knowing the weights, the same as `output_variance`.
        output_mean: Mean of the network's outputs (N, ...).
        output_variance: Variance of the network's outputs (N, ...), from not knowing the weights.
        covariance: Covariance of the network's outputs (N, *positions, C, C); (N, F, N, F) over all inputs and their F
            flattened outputs with `joint=True`.

    Example:
        >>> squared = pw.Custom(lambda f, y: (f - y).square().sum(-1) / 2)
        >>> pred = pw.fit(line_model, (t, z), squared).predict(t[:5])
        >>> type(pred).__name__, pred.mean.shape, pred.epistemic.shape
        ('Outputs', torch.Size([5, 1]), torch.Size([5, 1]))
    """

    @property
    def mean(self) -> Tensor:
        """(N, ...): of the outputs."""
        return self.output_mean

    @property
    def epistemic(self) -> Tensor:
        """(N, ...): the variance of the outputs."""
        return self.output_variance

    def _refuse(self, what: str) -> NoReturn:
        raise PeewitError(
            f"{what} needs the distribution of y given the outputs, which {type(self.likelihood).__name__} does not "
            "give; use mean, epistemic and covariance, which are those of the outputs."
        )

    def log_prob(self, y: Tensor) -> Tensor:
        """Raise a PeewitError: the distribution of y is unknown; use `mean`, `epistemic` and `covariance`.

        Args:
            y: Targets.

        Returns:
            Nothing.

        Raises:
            PeewitError: Always.

        Example:
            >>> squared = pw.Custom(lambda f, y: (f - y).square().sum(-1) / 2)
            >>> pred = pw.fit(line_model, (t, z), squared).predict(t)
            >>> try:
            ...     pred.log_prob(z)
            ... except pw.PeewitError as error:
            ...     print(str(error).partition(",")[0])
            log_prob needs the distribution of y given the outputs
        """
        self._refuse("log_prob")

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Raise a PeewitError: the distribution of y is unknown; use `mean`, `epistemic` and `covariance`.

        Args:
            level: A probability strictly between 0 and 1.

        Returns:
            Nothing.

        Raises:
            PeewitError: Always.

        Example:
            >>> squared = pw.Custom(lambda f, y: (f - y).square().sum(-1) / 2)
            >>> pred = pw.fit(line_model, (t, z), squared).predict(t)
            >>> try:
            ...     pred.interval()
            ... except pw.PeewitError as error:
            ...     print(str(error).partition(",")[0])
            interval needs the distribution of y given the outputs
        """
        self._refuse("interval")

    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Raise a PeewitError: the distribution of y is unknown; use `mean`, `epistemic` and `covariance`.

        Args:
            samples: Number of draws.
            generator: Source of random numbers.

        Returns:
            Nothing.

        Raises:
            PeewitError: Always.

        Example:
            >>> squared = pw.Custom(lambda f, y: (f - y).square().sum(-1) / 2)
            >>> pred = pw.fit(line_model, (t, z), squared).predict(t)
            >>> try:
            ...     pred.sample(3)
            ... except pw.PeewitError as error:
            ...     print(str(error).partition(",")[0])
            sample needs the distribution of y given the outputs
        """
        self._refuse("sample")

    def _columns(self, level: float) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.epistemic.sqrt(), "epistemic": self.epistemic}

    def _lines(self) -> list[str]:
        return [
            f"mean of the outputs {format_values(self.belief.mean)}",
            f"their variance {float(self.belief.variance.mean()):.3g} on average",
        ]
