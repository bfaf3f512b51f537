"""Families of likelihoods: the links from their outputs to labels, and the prediction that each link makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..likelihoods import Form, Likelihood, WithNatural
from ..messages.errors import PeewitError
from . import label_rules, links
from .bare_outputs import Outputs
from .binary import Binary
from .classes import Classes
from .mixture import Mixture, along_counts, along_second
from .numbers import Moments
from .outputs import Belief, GaussianOutputs, Samples
from .prediction import LinkName, Prediction, target_form
from .regression import Regression

BeliefRule = Callable[[Belief], Tensor]
Maker = Callable[[Belief, Likelihood, LinkName], Prediction]


class Link(NamedTuple):
    """One way from outputs to labels."""

    make: Maker
    joint: bool = True  # whether outputs may be correlated between inputs
    by_variance: float = 0  # up to how many outputs labels need variances alone, so that covariances can wait


class Family(NamedTuple):
    """Links by name, the default first; all families have "mc", which takes samples of the weights too."""

    links: dict[LinkName, Link]
    classes: Callable[[Form], int] | None = None  # how many there are, where targets are classes
    mean: Callable[[Tensor], Tensor] | None = None  # of a target at outputs (..., C), one per output where it is known


def family_of(likelihood: Likelihood) -> Family:
    """The row of a likelihood."""
    if likelihood.link_family not in FAMILIES:
        raise PeewitError(
            f"{type(likelihood).__name__} has link_family={likelihood.link_family!r}; expected one of "
            f"{', '.join(FAMILIES)}."
        )
    return FAMILIES[likelihood.link_family]


def make_prediction(belief: Belief, likelihood: Likelihood, link: LinkName) -> Prediction:
    """The prediction that a link makes."""
    return family_of(likelihood).links[link].make(belief, likelihood, link)


def classes(log_probs: BeliefRule, entropies: BeliefRule = label_rules.mean_entropies) -> Maker:
    """Classes by two functions of a belief."""
    return partial(Classes, _rule=(log_probs, entropies))


def exact(belief: Belief, likelihood: Likelihood, link: LinkName) -> Prediction:
    """Numbers with noise that does not depend on the outputs."""
    distribution = likelihood.distribution(belief.mean)
    assert distribution is not None and isinstance(belief, GaussianOutputs)
    return Regression(belief, likelihood, link, source=belief, noise=distribution.variance)


def delta(belief: Belief, likelihood: Likelihood, link: LinkName) -> Prediction:
    """Numbers with a variance of their own, by the delta rule in natural parameters or in the mean."""
    assert isinstance(likelihood, WithNatural) and isinstance(belief, GaussianOutputs)
    mean, cov, noise = links.delta_rule(likelihood.natural, belief.mean, belief.covariance, link)
    form = target_form(belief.form, mean.shape[-1])
    source = GaussianOutputs(form, belief.budget, centre=mean, blocks=cov, points=belief.points, seed=belief.seed)
    return Regression(belief, likelihood, link, source=source, noise=noise)


def mixture(belief: Belief, likelihood: Likelihood, link: LinkName) -> Prediction:
    """Numbers with a variance of their own, averaged; the density of one target is an integral along a line."""
    line = along_second if isinstance(belief, GaussianOutputs) and belief.mean.shape[-1] == 2 else None
    return Mixture(belief, likelihood, link, elementwise=False, _line=line)


def counts(belief: Belief, likelihood: Likelihood, link: LinkName, closed: bool = False) -> Prediction:
    """Counts, each on its own, whose log density is a difference of large numbers; `closed`: moments of the rate."""
    moments, line = None, along_counts if isinstance(belief, GaussianOutputs) else None
    if closed:
        rate, variance = links.lognormal(belief.mean, belief.variance)
        moments = Moments(rate, variance, rate)
    return Mixture(belief, likelihood, link, elementwise=True, exact=moments, _line=line, _wide=torch.float64)


def all_positions(belief: Belief, likelihood: Likelihood, link: LinkName) -> Prediction:
    """Of a likelihood that takes all outputs of an example together."""
    first = belief.form.restore(belief.mean[:1])
    if likelihood.distribution(first.reshape(1, 1, -1)) is None:
        return Outputs(belief, likelihood, link)
    form = replace(belief.form, whole=True)
    if isinstance(belief, Samples):
        values = belief.form.restore(belief.values)
        together = replace(belief, form=form, values=values.reshape(*values.shape[:2], 1, -1))
        return Mixture(together, likelihood, link, elementwise=False)
    if belief.form.positions > 1:
        raise PeewitError(
            f"{type(likelihood).__name__} takes all {belief.form.positions} positions of an example together, and "
            "their covariance is not kept; use method='sampled'."
        )
    return Mixture(replace(belief, form=form), likelihood, link, elementwise=False)


FAMILIES = {
    "categorical": Family(
        {
            "probit": Link(classes(label_rules.probit_log_probs), by_variance=math.inf),
            "bridge": Link(classes(label_rules.bridge_log_probs, label_rules.bridge_entropies)),
            "bridge_normalised": Link(classes(label_rules.normalised_log_probs, label_rules.normalised_entropies)),
            "mc": Link(classes(label_rules.mean_log_probs)),
        },
        classes=lambda form: form.outputs,
        mean=partial(torch.softmax, dim=-1),
    ),
    "bernoulli": Family(
        {
            "probit": Link(partial(Binary, _rule=label_rules.probit_pairs), by_variance=math.inf),
            "mc": Link(partial(Binary, _rule=label_rules.mean_pairs)),
        },
        classes=lambda form: 2,
        mean=torch.sigmoid,
    ),
    "gaussian": Family(
        {"exact": Link(exact, by_variance=1), "mc": Link(partial(Mixture, elementwise=False))}, mean=lambda f: f
    ),
    "heteroscedastic": Family({"mc": Link(mixture), "natural": Link(delta, False), "mean": Link(delta, False)}),
    "poisson": Family({"exact": Link(partial(counts, closed=True), by_variance=1), "mc": Link(counts)}),
    "other": Family({"mc": Link(all_positions)}),
}
