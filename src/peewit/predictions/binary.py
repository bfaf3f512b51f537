"""Predictions of zero or one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..messages.arguments import check_samples
from .label_rules import pair_entropies_of_draws
from .labels import Labels
from .lazy_values import isolate
from .outputs import Belief
from .prediction import SHOWN, check_level, format_values, jointly, uniforms


@isolate
@dataclass(frozen=True, eq=False, repr=False)
class Binary(Labels):
    """A prediction of zero or one, at every output on its own.

    `la.predict(x)` returns it for `pw.Bernoulli`, which is "binary". Uncertainties are entropies in nats. With
    `link="probit"` they are averages over outputs, as with `link="mc"`, and not those of the probit's `probs`.

    Attributes:
        belief: Distribution of the network's outputs, from which all else is computed.
        likelihood: The likelihood of the posterior.
        link: How outputs became labels, such as "probit".
        probs: Probability of one (N, ...).
        mode: The likelier label (N, ...), 0 or 1.
        entropy: Entropy of each label (N, ...): the whole uncertainty, `aleatoric + epistemic`.
        aleatoric: Entropy of each label (N, ...) that would be left if the weights were known, on average.
        epistemic: Mutual information of each label and the weights (N, ...): what the label would tell about the
            weights. As a rule it is higher at inputs unlike the training data.
        output_mean: Mean of the network's outputs (N, ...).
        output_variance: Variance of the network's outputs (N, ...), from not knowing the weights.
        covariance: Covariance of the network's outputs (N, *positions, C, C); (N, F, N, F) over all inputs and their F
            flattened outputs with `joint=True`.

    Example:
        >>> labels = (y == 0).float()[:, None]
        >>> pred = pw.fit(torch.nn.Linear(2, 1), (x, labels), "binary").predict(x[:5])
        >>> pred.probs.shape, pred.epistemic.shape
        (torch.Size([5, 1]), torch.Size([5, 1]))
    """

    _rule: Callable[[Belief], Tensor]  # log probabilities of the link

    @cached_property
    def _log_probs(self) -> Tensor:
        """(2, N, T, C): of zero and of one."""
        return self._rule(self.belief)

    @cached_property
    def _entropies(self) -> Tensor:
        """(2, N, T, C): total and expected entropy."""

        def entropies(f: Tensor, weight: Tensor, _: slice) -> Tensor:
            return torch.stack(pair_entropies_of_draws(f, weight), -1)

        return self.belief.gather(entropies, elementwise=True).movedim(-1, 0)

    def _restore(self, flat: Tensor) -> Tensor:
        return self.belief.form.restore(flat)

    @property
    def probs(self) -> Tensor:
        """(N, ...): the probability of one."""
        return self._restore(self._log_probs[1].exp())

    @property
    def mode(self) -> Tensor:
        """(N, ...): the likelier label, 0 or 1."""
        return self._restore((self._log_probs[1] > self._log_probs[0]).long())

    def log_prob(self, y: Tensor) -> Tensor:
        flat, _ = self._targets(y)
        known = self.likelihood.known(flat)
        flat = torch.where(known, flat, 0).to(self.belief.mean.dtype)
        zero, one = self._log_probs
        densities = torch.where(flat > 0, flat * one, 0.0) + torch.where(flat < 1, (1 - flat) * zero, 0.0)
        return torch.where(known, densities, 0.0).sum((1, 2))

    def interval(self, level: float = 0.9) -> Tensor:
        p = self._log_probs.exp()
        likelier = torch.stack([p[0] >= p[1], p[1] > p[0]])
        both = likelier | (p.amax(0) < check_level(level))
        return torch.stack([self._restore(both[0]), self._restore(both[1])], -1)

    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        if jointly(self.belief):
            p = self.belief.random(check_samples(samples), generator).sigmoid()
        else:
            p = self._log_probs[1].exp().expand(check_samples(samples), *self._log_probs.shape[1:])
        return self._restore((uniforms(p.shape, p, generator) < p).long())

    def _lines(self) -> list[str]:
        sure = self._log_probs.amax(0).exp().mean()
        return [
            f"probability of one {format_values(self._log_probs[1].exp()[:SHOWN])}",
            f"that of the likelier label {float(sure):.3f} on average",
        ]
