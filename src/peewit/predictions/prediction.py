"""Predictions as values: what is known of new labels, with the uncertainty in its parts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..complaints import checked_count, checked_generator
from ..likelihoods import Form, Likelihood
from . import links
from .beliefs import Belief, Normal
from .steady import steady

SHOWN = 3  # inputs that a repr shows


def checked_level(level: float) -> float:
    """A probability strictly between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(f"level={level!r} was given; expected a number between 0 and 1, such as 0.95.")
    return float(level)


def uniforms(shape: torch.Size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in [0, 1) in float64 on the device of `like`, from a generator on any device."""
    checked_generator(generator)
    device = like.device if generator is None else generator.device
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=device).to(like.device)


def shown(values: Tensor) -> str:
    """A few numbers in brackets."""
    flat = values.detach().flatten().tolist()
    words = [f"{value:.3g}" for value in flat[:4]] + (["..."] if len(flat) > 4 else [])
    return f"[{', '.join(words)}]" if values.dim() else words[0]


@steady
@dataclass(frozen=True, eq=False, repr=False)
class Prediction(ABC):
    """What is predicted for N inputs; all tensors are shaped like the network's outputs (N, ...)."""

    belief: Belief
    likelihood: Likelihood
    link: str

    # Labels

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """(N,): the log probability (density) of targets, summed over labelled positions; they are never broadcast."""

    @abstractmethod
    def interval(self, level: float = 0.95) -> Any:
        """What holds a new observation with probability `level`."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, ...): new observations at all inputs."""

    # Outputs of the network

    @property
    def output_mean(self) -> Tensor:
        """(N, ...): the mean of the network's outputs."""
        return self.belief.form.restore(self.belief.mean)

    @property
    def output_variance(self) -> Tensor:
        """(N, ...): the variance of the network's outputs, from not knowing the weights."""
        return self.belief.form.restore(self.belief.variance)

    @property
    def covariance(self) -> Tensor:
        """Of the network's outputs: (N, *positions, C, C), or (N, F, N, F) over all inputs with `joint=True`."""
        if isinstance(self.belief, Normal) and self.belief.joint is not None:
            return self.belief.joint
        form, made = self.belief.form, self.belief.covariance
        positions = () if form.axis is None else form.shape[: form.axis] + form.shape[form.axis + 1 :]
        return made.reshape(made.shape[0], *positions, *made.shape[-2:])

    def __len__(self) -> int:
        """N."""
        return int(self.belief.mean.shape[0])

    def __getattr__(self, name: str) -> Any:
        """Say what there is: regression has moments, classification has probabilities."""
        if not name.startswith("_"):
            known = [each for each in dir(type(self)) if not each.startswith("_")]
            raise AttributeError(f"A {type(self).__name__} has no {name!r}; it has {', '.join(known)}.")
        raise AttributeError(name)

    def _targets(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Targets in flat form, (N, T) or (N, T, C), and which positions count, (N, T, 1)."""
        if not isinstance(y, Tensor):
            raise TypeError(f"y is a {type(y).__name__}; expected a tensor of targets.")
        if y.dim() == 0 or y.shape[0] != len(self):
            raise ValueError(f"y has shape {tuple(y.shape)} for predictions at {len(self)} inputs; expected one each.")
        y = y.clone() if y.is_inference() else y
        y = y.to(self.belief.mean.device)
        form = self.likelihood.form(self.output_mean.detach(), y, self.belief.form)
        flat = self.likelihood.targets(y, form)
        if not bool(self.likelihood.valid(flat, form)):
            raise ValueError(self.likelihood.complaint(flat, form))
        known = self.likelihood.labelled(flat)
        return flat, known.reshape(*known.shape[:2], -1)

    @abstractmethod
    def _lines(self) -> list[str]:
        """What a repr says of the values."""

    def __repr__(self) -> str:
        """A few lines: how many inputs, the first values, the mean uncertainty."""
        examples = "1 input" if len(self) == 1 else f"{len(self):,} inputs"
        way = self.link if isinstance(self.belief, Normal) else f"{self.belief.number} draws of the weights"
        head = f"{type(self).__name__} for {examples} ({way})"
        return "\n  ".join([head, *self._lines()])


@steady
@dataclass(frozen=True, eq=False, repr=False)
class Classes(Prediction):
    """One of C classes at every position."""

    @cached_property
    def _log_alpha(self) -> Tensor:
        """(N, T, C) float64: the bridge's Dirichlet."""
        normalised = self.link == "bridge_normalised"
        if isinstance(self.belief, Normal) and self.belief.deviation is not None:
            return links.log_bridge_of(self.belief.mean, self.belief.variance, self.belief.row_sums, normalised)
        return links.log_bridge(self.belief.mean, self.belief.covariance, normalised)

    @property
    def _bridged(self) -> bool:
        return self.link.startswith("bridge")

    @cached_property
    def _log_probs(self) -> Tensor:
        """(N, T, C)."""
        if self._bridged:
            return self._log_alpha.log_softmax(-1).to(self.belief.mean.dtype)
        if self.link == "probit":
            return links.probit_logits(self.belief.mean, self.belief.variance).log_softmax(-1)
        return self.belief.gathered(lambda f, weight, _: (f.log_softmax(-1) + weight).logsumexp(0))

    @cached_property
    def _entropies(self) -> Tensor:
        """(2, N, T): total and expected entropy."""
        if self._bridged:
            return torch.stack(links.dirichlet_entropies(self._log_alpha)).to(self.belief.mean.dtype)

        def entropies(f: Tensor, weight: Tensor, _: slice) -> Tensor:
            each = f.log_softmax(-1)
            p = each.exp()
            expected = (weight[..., 0].exp() * -(p * each).sum(-1)).sum(0)
            return torch.stack([entropy((weight.exp() * p).sum(0)), expected], -1)

        return self.belief.gathered(entropies).movedim(-1, 0)

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

    @cached_property
    def _log_probs(self) -> Tensor:
        """(2, N, T, C): of zero and of one."""
        if self.link == "probit":
            logits = links.probit_logits(self.belief.mean, self.belief.variance)
            return torch.nn.functional.logsigmoid(torch.stack([-logits, logits]))

        def both(f: Tensor, weight: Tensor, _: slice) -> Tensor:
            each = torch.nn.functional.logsigmoid(torch.stack([-f, f], -1)) + weight[..., None]
            return each.logsumexp(0)

        return self.belief.gathered(both, elementwise=True).movedim(-1, 0)

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
        flat, known = self._targets(y)
        missing = getattr(self.likelihood, "ignore_index", None)  # each label by itself
        known = known if missing is None else known & (flat != missing)
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


def jointly(belief: Belief) -> bool:
    """Whether draws of the outputs belong together over inputs."""
    return not isinstance(belief, Normal) or belief.joint is not None


def target_form(form: Form, outputs: int) -> Form:
    """The form of targets with another number of outputs: a head with two parameters has half as many."""
    if form.axis is None or form.outputs == outputs:
        return form
    shape = (*form.shape[: form.axis], outputs, *form.shape[form.axis + 1 :])
    return Form(form.axis, shape)


def normal_quantile(level: float) -> float:
    """`z` with probability `level` between -z and z."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64, device="cpu")))
