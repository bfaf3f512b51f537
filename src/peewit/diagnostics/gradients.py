"""One pass over training data for a diagnosis: gradients, residuals, and what a constant would have predicted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal, Poisson

from ..curvature.pieces import labelled_outputs
from ..likelihoods import Labelled, Likelihood
from ..network.batches import Batches
from ..network.finite import Watch
from ..network.isolation import isolated
from ..network.nests import Inputs, count, take
from ..posterior.network import Network
from ..runtime.progress import QUIET, Progress
from ..weights.groups import Groups
from ..weights.vectors import flatten_gradients

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

PIECES = 16  # gradients at least, to tell how much they vary
ROWS, NUMBERS = 1 << 16, 1 << 26  # positions, and outputs of them, for which the best constant is sought
COST = 6.0  # of a pass there and back, in those of a pass forward


@dataclass(kw_only=True)
class GradientSums:
    """Sums over the data, in float64; gradients are those of the energy."""

    gradient: Tensor  # (D,)
    weighted: Tensor  # (D,): each piece's gradient times its examples
    squares: Tensor  # (groups,): of each piece's gradient, summed over the pieces and the group
    pieces: int = 0
    examples: int = 0
    examples_squared: float = 0.0
    energy: float = 0.0
    residuals: Residuals = field(default_factory=lambda: Residuals())
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # some outputs and targets, for a constant

    def noise(self, groups: Groups) -> Tensor:
        """(groups,): the variance of the total gradient over other data of this size, summed over each group."""
        if self.pieces < 2:
            return torch.full_like(self.squares, math.nan)
        mean = self.gradient / self.examples
        cross = groups.sums(mean * self.weighted)
        spread = self.squares - 2 * cross + self.examples_squared * groups.sums(mean.square())
        return spread.clamp_min(0.0) * self.pieces / (self.pieces - 1)


@dataclass(kw_only=True)
class Residuals:
    """How far targets are from predictions: standardised residuals, or surprises less what was expected of them."""

    kind: str = ""  # "squares", "counts" (squares of what varies as its mean says) or "surprises"
    count: float = 0.0
    first: float = 0.0  # sums of r^2, or of -log p
    second: float = 0.0  # of r^4, or of the entropy
    spread: float = 0.0  # of (-log p - entropy)^2
    largest: float = 0.0
    by_output: Tensor | None = None  # (2, C): sums of r^2 and of r^4, of numbers (N, T, C)

    def add(self, likelihood: Likelihood, f: Tensor, y: Tensor) -> None:
        """A batch in the likelihood's form, (N, T, C)."""
        distribution = likelihood.distribution(f.double())
        if isinstance(distribution, Normal | Poisson):
            self.kind = "counts" if isinstance(distribution, Poisson) else "squares"
            mean = distribution.mean
            if mean.numel() != y.numel():
                return  # a distribution of something else than the targets
            r = (y.reshape(mean.shape) - mean) / distribution.variance.sqrt()
            r = r.flatten(0, 1) if r.dim() == 3 else r.reshape(-1, 1)
            powers = torch.stack([r.square().sum(0), r.pow(4).sum(0)]).cpu()
            self.by_output = powers if self.by_output is None else self.by_output + powers
            self.count += r.numel()
            self.first, self.second = self.by_output.sum(1).tolist()
            self.largest = max(self.largest, float(r.abs().max()))
        elif isinstance(distribution, Categorical | Bernoulli):
            self.kind = "surprises"
            surprise, known = surprises(likelihood, distribution, y)
            entropy = distribution.entropy()[known]  # type: ignore[no-untyped-call]  # torch's own
            self.count += float(known.sum())
            self.first += float(surprise[known].sum())
            self.second += float(entropy.sum())
            self.spread += float((surprise[known] - entropy).square().sum())


def surprises(likelihood: Likelihood, distribution: Categorical | Bernoulli, y: Tensor) -> tuple[Tensor, Tensor]:
    """`-log p(y)` of each label, and which are known."""
    if isinstance(distribution, Categorical):
        known = likelihood.labelled(y)
        logs = distribution.logits
        if y.is_floating_point():
            return -(y * logs).sum(-1), known
        return -logs.gather(-1, torch.where(known, y, 0)[..., None])[..., 0], known
    known = likelihood.known(y)
    wanted = torch.where(known, y, 0.0).double()
    yes, no = (torch.nn.functional.logsigmoid(sign * distribution.logits) for sign in (1, -1))
    return -(wanted * yes + (1 - wanted) * no), known


def examine(la: PosteriorState, data: Any, network: Network | None = None, progress: Progress = QUIET) -> GradientSums:
    """Pass over the data once; gradients are summed, and their squares by the groups of the prior.

    With a network, batches are cut into pieces that fit its budget.
    """
    space, groups = la.space, la.prior.stretches(la.space)
    parameters = [la.model.get_parameter(name) for name in space.names]
    zeros = torch.zeros(la.D, dtype=torch.promote_types(la.weights.dtype, torch.float32), device=la.weights.device)
    squares = torch.zeros(groups.count, dtype=torch.float64, device="cpu")
    sums = GradientSums(gradient=zeros, weighted=zeros.clone(), squares=squares)
    batches, watch = Batches(data, la.model), Watch()
    shown = progress.track(batches, len(batches), "gradients")
    with closing(progress), isolated(la.model, parameters):
        pieces = cut_batches(watch.count_batches(shown), len(batches), network)
        for inputs, output, labels in labelled_outputs(la.model, pieces, la.likelihood, la.totals.form, watch):
            stride = -(-la.N * labels.form.positions // max(1, min(ROWS, NUMBERS // labels.form.outputs)))
            gradients = gradients_of(labels, output, parameters, sums, slice(-sums.examples % stride, None, stride))
            gradient, number = flatten_gradients(gradients, la.model, space).to(zeros), count(inputs)
            sums.gradient += gradient
            sums.weighted += number * gradient
            sums.squares += groups.sums(gradient.square())
            sums.pieces += 1
            sums.examples += number
            sums.examples_squared += number**2
    return sums


def fitting(network: Network, x: Inputs) -> int:
    """How many of the examples one gradient may be taken of."""
    network.outputs(x)  # so that its cost is known
    return network.budget.count(COST * network.knowledge.cost(x), count(x))


def cut_batches(
    batches: Iterable[tuple[Inputs, Tensor]], number: int, network: Network | None
) -> Iterator[tuple[Inputs, Tensor]]:
    """Batches, in pieces where they are too few to tell how much gradients vary, or too large for the memory."""
    pieces = -(-PIECES // number) if 0 < number < PIECES else 1
    for inputs, targets in batches:
        examples = count(inputs)
        step = max(1, -(-examples // pieces))
        step = step if network is None else min(step, fitting(network, inputs))
        for start in range(0, examples, step):
            chosen = slice(start, start + step)
            yield take(inputs, chosen), targets[chosen]


def gradients_of(
    labels: Labelled, output: Tensor, parameters: Sequence[Tensor], sums: GradientSums, chosen: slice
) -> tuple[Tensor | None, ...]:
    """Gradients of the energy of some examples; residuals are added up, and some of the examples kept."""
    f = labels.flat(output)
    energy = labels.energy(f).sum()
    sums.energy += float(energy.detach())
    sums.residuals.add(labels.likelihood, f.detach(), labels.y)
    if chosen.start < len(f):
        sums.kept.append((f.detach()[chosen].clone(), labels.y[chosen].clone()))
    return torch.autograd.grad(energy, parameters, allow_unused=True)
