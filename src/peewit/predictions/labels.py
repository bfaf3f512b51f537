"""Predictions of classes and of yes or no."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ..messages.arguments import checked_samples
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
        """Compute the log probability of labels, ignored ones left out; the negative cross entropy of soft targets.

        Args:
            y: Targets, as the network was trained on: one per input. They are never broadcast.

        Returns:
            Log probabilities (N,) in nats, summed over labelled positions.

        Raises:
            PeewitError: The targets do not fit the outputs.
            ArgumentTypeError: `y` is no tensor.

        Example:
            >>> la.predict(x).log_prob(y).shape
            torch.Size([60])
        """
        flat, known = self._targets(y)
        if flat.dim() == 3:
            return (torch.where(flat > 0, flat * self._log_probs, 0.0) * known).sum((1, 2))
        picked = self._log_probs.gather(-1, torch.where(known[..., 0], flat, 0)[..., None])
        return torch.where(known, picked, 0.0).sum((1, 2))

    def interval(self, level: float = 0.95) -> Tensor:
        """Find the smallest set of classes whose probability reaches `level`.

        Args:
            level: A probability strictly between 0 and 1.

        Returns:
            Booleans (N, ...) on the network's class axis: whether a class is in the set.

        Raises:
            PeewitError: `level` is not between 0 and 1.

        Example:
            >>> inside = la.predict(x).interval(0.9)
            >>> inside.shape, bool(inside.any(1).all())
            (torch.Size([60, 3]), True)
        """
        ordered, order = self._log_probs.double().exp().sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        inside = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, before < checked_level(level))
        return self.belief.form.restore(inside)

    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw labels.

        With `joint=True` or `method="sampled"` each draw belongs to one function at all inputs.

        Args:
            samples: Number of draws.
            generator: Source of random numbers. None for torch's global generator.

        Returns:
            Class numbers (S, N, *positions).

        Raises:
            PeewitError: `samples` is no positive whole number.
            ArgumentTypeError: `generator` is no torch.Generator.

        Example:
            >>> la.predict(x).sample(10).shape
            torch.Size([10, 60])
        """
        if jointly(self.belief):
            below = self.belief.random(checked_samples(samples), generator).double().softmax(-1).cumsum(-1)
        else:
            below = self._log_probs.double().exp().cumsum(-1).expand(checked_samples(samples), *self._log_probs.shape)
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
    """A prediction of zero or one, at every output by itself.

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
        """Compute the log probability of labels, summed over them, each by its own probability.

        Args:
            y: Targets, as the network was trained on: one per input. They are never broadcast.

        Returns:
            Log probabilities (N,), in nats.

        Raises:
            PeewitError: The targets do not fit the outputs.
            ArgumentTypeError: `y` is no tensor.

        Example:
            >>> labels = (y == 0).float()[:, None]
            >>> pred = pw.fit(torch.nn.Linear(2, 1), (x, labels), "binary").predict(x)
            >>> pred.log_prob(labels).shape
            torch.Size([60])
        """
        flat, _ = self._targets(y)
        known = self.likelihood.known(flat)
        flat = torch.where(known, flat, 0).to(self.belief.mean.dtype)
        zero, one = self._log_probs
        each = torch.where(flat > 0, flat * one, 0.0) + torch.where(flat < 1, (1 - flat) * zero, 0.0)
        return torch.where(known, each, 0.0).sum((1, 2))

    def interval(self, level: float = 0.95) -> Tensor:
        """Find the smallest set of labels whose probability reaches `level`.

        Args:
            level: A probability strictly between 0 and 1.

        Returns:
            Booleans (N, ..., 2): whether zero is in the set, and whether one is.

        Raises:
            PeewitError: `level` is not between 0 and 1.

        Example:
            >>> labels = (y == 0).float()[:, None]
            >>> pred = pw.fit(torch.nn.Linear(2, 1), (x, labels), "binary").predict(x)
            >>> pred.interval(0.9).shape
            torch.Size([60, 1, 2])
        """
        p = self._log_probs.exp()
        likelier = torch.stack([p[0] >= p[1], p[1] > p[0]])
        both = likelier | (p.amax(0) < checked_level(level))
        return torch.stack([self._restore(both[0]), self._restore(both[1])], -1)

    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw labels.

        With `joint=True` or `method="sampled"` each draw belongs to one function at all inputs.

        Args:
            samples: Number of draws.
            generator: Source of random numbers. None for torch's global generator.

        Returns:
            Zeros and ones (S, N, ...).

        Raises:
            PeewitError: `samples` is no positive whole number.
            ArgumentTypeError: `generator` is no torch.Generator.

        Example:
            >>> labels = (y == 0).float()[:, None]
            >>> pred = pw.fit(torch.nn.Linear(2, 1), (x, labels), "binary").predict(x)
            >>> pred.sample(10).shape
            torch.Size([10, 60, 1])
        """
        if jointly(self.belief):
            p = self.belief.random(checked_samples(samples), generator).sigmoid()
        else:
            p = self._log_probs[1].exp().expand(checked_samples(samples), *self._log_probs.shape[1:])
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
