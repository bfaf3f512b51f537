"""Predictions of one of several classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..messages.arguments import check_samples
from .labels import Labels
from .lazy_values import isolate
from .outputs import Belief
from .prediction import SHOWN, check_level, format_values, jointly, uniforms


@isolate
@dataclass(frozen=True, eq=False, repr=False)
class Classes(Labels):
    """A prediction of one of C classes at every position.

    `la.predict(x)` returns it for `pw.Categorical`, which is "classification". Uncertainties are entropies in nats.
    With `link="probit"` they are averages over outputs, as with `link="mc"`, and not those of the probit's `probs`.

    Attributes:
        belief: Distribution of the network's outputs, from which all else is computed.
        likelihood: The likelihood of the posterior.
        link: How outputs became labels, such as "probit".
        probs: Class probabilities (N, ...), on the network's class axis; (N, C) without positions.
        argmax: The likeliest class (N, *positions).
        mode: The same as `argmax`.
        entropy: Entropy of the label (N, *positions): the whole uncertainty, `aleatoric + epistemic`.
        aleatoric: Entropy of the label (N, *positions) that would be left if the weights were known, on average.
        epistemic: Mutual information of the label and the weights (N, *positions): what the label would tell about the
            weights. As a rule it is higher at inputs unlike the training data.
        output_mean: Mean of the network's outputs (N, ...).
        output_variance: Variance of the network's outputs (N, ...), from not knowing the weights.
        covariance: Covariance of the network's outputs (N, *positions, C, C); (N, F, N, F) over all inputs and their F
            flattened outputs with `joint=True`.

    Example:
        >>> pred = la.predict(x[:5])
        >>> pred.probs.shape, pred.argmax.shape, pred.epistemic.shape
        (torch.Size([5, 3]), torch.Size([5]), torch.Size([5]))
        >>> torch.allclose(pred.entropy, pred.aleatoric + pred.epistemic, atol=1e-4)
        True
    """

    _rule: tuple[Callable[[Belief], Tensor], Callable[[Belief], Tensor]]  # log probabilities and entropies of the link

    @cached_property
    def _log_probs(self) -> Tensor:
        """(N, T, C)."""
        return self._rule[0](self.belief)

    @cached_property
    def _entropies(self) -> Tensor:
        """(2, N, T): total and expected entropy."""
        return self._rule[1](self.belief)

    def _restore(self, flat: Tensor) -> Tensor:
        """(..., N, T) -> (..., N, *positions)."""
        form = self.belief.form
        axis = form.axis or 0
        return flat.reshape(*flat.shape[:-1], *form.shape[:axis], *form.shape[axis + 1 :])

    @property
    def probs(self) -> Tensor:
        """(N, ...): class probabilities, on the network's class axis."""
        return self.belief.form.restore(self._log_probs.exp())

    @property
    def argmax(self) -> Tensor:
        """(N, *positions): the likeliest class."""
        return self._restore(self._log_probs.argmax(-1))

    @property
    def mode(self) -> Tensor:
        """The same as `argmax`."""
        return self.argmax

    def log_prob(self, y: Tensor) -> Tensor:
        flat, known = self._targets(y)
        if flat.dim() == 3:
            return (torch.where(flat > 0, flat * self._log_probs, 0.0) * known).sum((1, 2))
        picked = self._log_probs.gather(-1, torch.where(known[..., 0], flat, 0)[..., None])
        return torch.where(known, picked, 0.0).sum((1, 2))

    def interval(self, level: float = 0.9) -> Tensor:
        ordered, order = self._log_probs.double().exp().sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        inside = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, before < check_level(level))
        return self.belief.form.restore(inside)

    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        if jointly(self.belief):
            below = self.belief.random(check_samples(samples), generator).double().softmax(-1).cumsum(-1)
        else:
            below = self._log_probs.double().exp().cumsum(-1).expand(check_samples(samples), *self._log_probs.shape)
        drawn = uniforms(below.shape[:-1], below, generator)
        return self._restore((below[..., :-1] <= drawn[..., None]).sum(-1))

    def _lines(self) -> list[str]:
        first = self._log_probs[:SHOWN].exp().flatten(0, 1)[:SHOWN]
        sure = self._log_probs.amax(-1).exp().mean()
        return [
            f"probs {' '.join(map(format_values, first))}{' ...' if self.argmax.numel() > SHOWN else ''}",
            f"likeliest class {format_values(self.argmax)}, its probability {float(sure):.3f} on average",
        ]
