"""What predictions of numbers have in common: a mean, and a variance in two parts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from .lazy_values import isolate
from .prediction import SHOWN, Prediction, target_form


class Moments(NamedTuple):
    """Of a new observation, (N, T, K): its mean, the variance of that mean, and the mean variance of the noise."""

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor


@isolate
@dataclass(frozen=True, eq=False, repr=False)
class Numbers(Prediction):
    """Predictions with a mean, and a variance in two parts by the law of total variance; abstract."""

    @property
    @abstractmethod
    def _moments(self) -> Moments:
        """Mean and variances in flat form."""

    def _restore(self, flat: Tensor) -> Tensor:
        """(..., N, T, K) -> (..., N, ...)."""
        form = self.belief.form
        if form.whole and flat.shape[-1] != form.outputs:  # targets that are not shaped like the outputs
            return flat[..., 0, :]
        return target_form(form, flat.shape[-1]).restore(flat)

    @property
    def mean(self) -> Tensor:
        """(N, ...): of a new observation."""
        return self._restore(self._moments.mean)

    @property
    def epistemic(self) -> Tensor:
        """(N, ...): the variance of the mean, from not knowing the weights."""
        return self._restore(self._moments.epistemic)

    @property
    def aleatoric(self) -> Tensor:
        """(N, ...): the variance of the noise."""
        return self._restore(self._moments.aleatoric)

    @property
    def variance(self) -> Tensor:
        """(N, ...): of a new observation, `epistemic + aleatoric`."""
        return self._restore(self._moments.epistemic + self._moments.aleatoric)

    @property
    def std(self) -> Tensor:
        """(N, ...): the standard deviation of a new observation, the root of `variance`."""
        return self.variance.sqrt()

    def _columns(self, level: float) -> dict[str, Tensor]:
        low, high = self.interval(level)
        ends = {"lower": low, "upper": high}
        return {"mean": self.mean, "std": self.std, **ends, "epistemic": self.epistemic, "aleatoric": self.aleatoric}

    def _lines(self) -> list[str]:
        mean, epistemic, aleatoric = self._moments
        deviation = (epistemic + aleatoric).sqrt()
        first = zip(mean.flatten()[:SHOWN].tolist(), deviation.flatten()[:SHOWN].tolist(), strict=True)
        more = " ..." if mean.numel() > SHOWN else ""
        return [
            "mean ± deviation " + ", ".join(f"{m:.3g} ± {d:.2g}" for m, d in first) + more,
            f"mean variance {float((epistemic + aleatoric).mean()):.3g}: "
            f"epistemic {float(epistemic.mean()):.3g}, aleatoric {float(aleatoric.mean()):.3g}",
        ]
