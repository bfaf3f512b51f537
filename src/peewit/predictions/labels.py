"""Predictions of classes and of yes or no."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ..messages.arguments import checked_count
from . import links
from .outputs import Belief, Normal
from .prediction import SHOWN, Prediction, checked_level, jointly, shown, uniforms
from .steady import steady


def mean_log_probs(belief: Belief) -> Tensor:
    """(N, T, C): averaged over the outputs."""
    return belief.gathered(lambda f, weight, _: (f.log_softmax(-1) + weight).logsumexp(0))


def mean_entropies(belief: Belief) -> Tensor:
    """(2, N, T): averaged over the outputs."""

    def entropies(f: Tensor, weight: Tensor, _: slice) -> Tensor:
        each = f.log_softmax(-1)
        p = each.exp()
        expected = (weight[..., 0].exp() * -(p * each).sum(-1)).sum(0)
        return torch.stack([entropy((weight.exp() * p).sum(0)), expected], -1)

    return belief.gathered(entropies).movedim(-1, 0)


def probit_log_probs(belief: Belief) -> Tensor:
    """(N, T, C): in closed form, from the variances alone."""
    return links.probit_logits(belief.mean, belief.variance).log_softmax(-1)


def log_alpha(belief: Belief, normalised: bool) -> Tensor:
    """(N, T, C) float64: the bridge's Dirichlet."""
    if isinstance(belief, Normal) and belief.deviation is not None:
        return links.log_bridge_of(belief.mean, belief.variance, belief.row_sums, normalised)
    return links.log_bridge(belief.mean, belief.covariance, normalised)


def bridge_log_probs(belief: Belief, normalised: bool = False) -> Tensor:
    """(N, T, C): the mean of the Dirichlet."""
    return log_alpha(belief, normalised).log_softmax(-1).to(belief.mean.dtype)


def bridge_entropies(belief: Belief, normalised: bool = False) -> Tensor:
    """(2, N, T): the Dirichlet's own."""
    return torch.stack(links.dirichlet_entropies(log_alpha(belief, normalised))).to(belief.mean.dtype)


normalised_log_probs = partial(bridge_log_probs, normalised=True)
normalised_entropies = partial(bridge_entropies, normalised=True)


def probit_pairs(belief: Belief) -> Tensor:
    """(2, N, T, C): log probabilities of zero and of one."""
    logits = links.probit_logits(belief.mean, belief.variance)
    return torch.nn.functional.logsigmoid(torch.stack([-logits, logits]))


def mean_pairs(belief: Belief) -> Tensor:
    """(2, N, T, C): the same, averaged over the outputs."""

    def both(f: Tensor, weight: Tensor, _: slice) -> Tensor:
        each = torch.nn.functional.logsigmoid(torch.stack([-f, f], -1)) + weight[..., None]
        return each.logsumexp(0)

    return belief.gathered(both, elementwise=True).movedim(-1, 0)


@steady
@dataclass(frozen=True, eq=False, repr=False)
class Classes(Prediction):
    """One of C classes at every position."""

    _rule: tuple[Callable[[Belief], Tensor], Callable[[Belief], Tensor]]  # log probabilities and entropies of the link

    @cached_property
    def _log_probs(self) -> Tensor:
        """(N, T, C)."""
        return self._rule[0](self.belief)

    @cached_property
    def _entropies(self) -> Tensor:
        """(2, N, T): total and expected entropy."""
        return self._rule[1](self.belief)

    def _positions(self, flat: Tensor) -> Tensor:
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
        return self._positions(self._log_probs.argmax(-1))

    @property
    def mode(self) -> Tensor:
        """The same as `argmax`."""
        return self.argmax

    @property
    def entropy(self) -> Tensor:
        """(N, *positions): of the label, in nats; `aleatoric + epistemic`."""
        return self._positions(self._entropies[0])

    @property
    def aleatoric(self) -> Tensor:
        """(N, *positions): the entropy of the label that would be left if the weights were known, on average."""
        return self._positions(self._entropies[1])

    @property
    def epistemic(self) -> Tensor:
        """(N, *positions): what the label would tell about the weights, their mutual information."""
        return self._positions((self._entropies[0] - self._entropies[1]).clamp(min=0))

    def log_prob(self, y: Tensor) -> Tensor:
        """(N,): the log probability of labels, ignored ones left out; the cross entropy where targets are soft."""
        flat, known = self._targets(y)
        if flat.dim() == 3:
            return (torch.where(flat > 0, flat * self._log_probs, 0.0) * known).sum((1, 2))
        picked = self._log_probs.gather(-1, torch.where(known[..., 0], flat, 0)[..., None])
        return torch.where(known, picked, 0.0).sum((1, 2))

    def interval(self, level: float = 0.95) -> Tensor:
        """(N, ...) booleans: the smallest set of classes whose probability reaches `level`."""
        ordered, order = self._log_probs.double().exp().sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        inside = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, before < checked_level(level))
        return self.belief.form.restore(inside)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, N, *positions) labels; with joint outputs, at one function for all inputs each."""
        if jointly(self.belief):
            below = self.belief.random(checked_count(n), generator).double().softmax(-1).cumsum(-1)
        else:
            below = self._log_probs.double().exp().cumsum(-1).expand(checked_count(n), *self._log_probs.shape)
        drawn = uniforms(below.shape[:-1], below, generator)
        return self._positions((below[..., :-1] <= drawn[..., None]).sum(-1))

    def _lines(self) -> list[str]:
        first = self._log_probs[:SHOWN].exp().flatten(0, 1)[:SHOWN]
        sure = self._log_probs.amax(-1).exp().mean()
        return [
            f"probs {' '.join(map(shown, first))}{' ...' if self.argmax.numel() > SHOWN else ''}",
            f"likeliest class {shown(self.argmax)}, its probability {float(sure):.3f} on average",
        ]


@steady
@dataclass(frozen=True, eq=False, repr=False)
class Binary(Prediction):
    """Zero or one, at every output by itself."""

    _rule: Callable[[Belief], Tensor]  # log probabilities of the link

    @cached_property
    def _log_probs(self) -> Tensor:
        """(2, N, T, C): of zero and of one."""
        return self._rule(self.belief)

    @cached_property
    def _entropies(self) -> Tensor:
        """(2, N, T, C): total and expected entropy."""

        def entropies(f: Tensor, weight: Tensor, _: slice) -> Tensor:
            each = torch.nn.functional.logsigmoid(torch.stack([-f, f], -1))
            p = each.exp()
            expected = (weight.exp() * -(p * each).sum(-1)).sum(0)
            return torch.stack([entropy((weight[..., None].exp() * p).sum(0)), expected], -1)

        return self.belief.gathered(entropies, elementwise=True).movedim(-1, 0)

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

    @property
    def entropy(self) -> Tensor:
        """(N, ...): of each label, in nats; `aleatoric + epistemic`."""
        return self._restore(self._entropies[0])

    @property
    def aleatoric(self) -> Tensor:
        """(N, ...): the entropy that would be left if the weights were known, on average."""
        return self._restore(self._entropies[1])

    @property
    def epistemic(self) -> Tensor:
        """(N, ...): what each label would tell about the weights, their mutual information."""
        return self._restore((self._entropies[0] - self._entropies[1]).clamp(min=0))

    def log_prob(self, y: Tensor) -> Tensor:
        """(N,): summed over labels, each by its own probability."""
        flat, _ = self._targets(y)
        known = self.likelihood.known(flat)
        flat = torch.where(known, flat, 0).to(self.belief.mean.dtype)
        zero, one = self._log_probs
        each = torch.where(flat > 0, flat * one, 0.0) + torch.where(flat < 1, (1 - flat) * zero, 0.0)
        return torch.where(known, each, 0.0).sum((1, 2))

    def interval(self, level: float = 0.95) -> Tensor:
        """(N, ..., 2) booleans: the smallest set of labels (zero, one) whose probability reaches `level`."""
        p = self._log_probs.exp()
        likelier = torch.stack([p[0] >= p[1], p[1] > p[0]])
        both = likelier | (p.amax(0) < checked_level(level))
        return torch.stack([self._restore(both[0]), self._restore(both[1])], -1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, N, ...) labels; with joint outputs, at one function for all inputs each."""
        if jointly(self.belief):
            p = self.belief.random(checked_count(n), generator).sigmoid()
        else:
            p = self._log_probs[1].exp().expand(checked_count(n), *self._log_probs.shape[1:])
        return self._restore((uniforms(p.shape, p, generator) < p).long())

    def _lines(self) -> list[str]:
        sure = self._log_probs.amax(0).exp().mean()
        return [
            f"probability of one {shown(self._log_probs[1].exp()[:SHOWN])}",
            f"that of the likelier label {float(sure):.3f} on average",
        ]


def entropy(p: Tensor) -> Tensor:
    """(..., C) -> (...), in nats; with a derivative also where a probability underflows."""
    return -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log()).sum(-1)
