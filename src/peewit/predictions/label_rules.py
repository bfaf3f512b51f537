"""Probabilities and entropies of labels by each link, as functions of the belief about the outputs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from . import links
from .outputs import Belief, GaussianOutputs


def mean_log_probs(belief: Belief) -> Tensor:
    """(N, T, C): averaged over the outputs."""
    return belief.gather(lambda f, weight, _: (f.log_softmax(-1) + weight).logsumexp(0))


def mean_entropies(belief: Belief) -> Tensor:
    """(2, N, T): averaged over the outputs."""

    def entropies(f: Tensor, weight: Tensor, _: slice) -> Tensor:
        log_p = f.log_softmax(-1)
        p = log_p.exp()
        expected = (weight[..., 0].exp() * -(p * log_p).sum(-1)).sum(0)
        return torch.stack([entropy((weight.exp() * p).sum(0)), expected], -1)

    return belief.gather(entropies).movedim(-1, 0)


def probit_log_probs(belief: Belief) -> Tensor:
    """(N, T, C): in closed form, from the variances alone."""
    return links.probit_logits(belief.mean, belief.variance).log_softmax(-1)


def log_alpha(belief: Belief, normalised: bool) -> Tensor:
    """(N, T, C) float64: the bridge's Dirichlet."""
    if isinstance(belief, GaussianOutputs) and belief.deviation is not None:
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
        log_p = torch.nn.functional.logsigmoid(torch.stack([-f, f], -1)) + weight[..., None]
        return log_p.logsumexp(0)

    return belief.gather(both, elementwise=True).movedim(-1, 0)


def pair_entropies_of_draws(f: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(...) twice: total and expected entropy of draws (S, ...) of a logit, with log weights (S, ...)."""
    log_p = torch.nn.functional.logsigmoid(torch.stack([-f, f], -1))
    p = log_p.exp()
    expected = (weight.exp() * -(p * log_p).sum(-1)).sum(0)
    return entropy((weight[..., None].exp() * p).sum(0)), expected


def entropy(p: Tensor) -> Tensor:
    """(..., C) -> (...), in nats; with a derivative also where a probability underflows."""
    return -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log()).sum(-1)
