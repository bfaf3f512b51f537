"""From a Gaussian over outputs to labels: the approximations with a closed form, and the points of those without.

Pure functions on tensors; classes or outputs are on the last axis: mean and variance (..., C), cov (..., C, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

HALF_WIDTH = 8.0  # of the line rule, in standard deviations
NODES = 257  # of the line rule: steps of 1/16
SMALLEST = 1e-12  # a variance that stands for none
POINT = 1e-20  # likewise, where the rule follows the width of the integrand
DEPTH = 40.0  # nats by which it has fallen at the ends of that rule's line
HALVINGS = 50  # of the bracket of its centre
LARGEST = 200.0  # the logarithm of a concentration that stands for any larger one


def probit_logits(mean: Tensor, variance: Tensor) -> Tensor:
    """`mu / sqrt(1 + pi/8 s2)`: outputs pulled towards zero where they are uncertain."""
    return mean / torch.sqrt(1 + math.pi / 8 * variance)


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    """(..., C) class probabilities: the softmax of the pulled logits, one factor per class."""
    return probit_logits(mean, variance).softmax(-1)


def bridge(mean: Tensor, cov: Tensor, normalised: bool = False) -> Tensor:
    """(..., C) float64: concentrations of the Dirichlet that the Laplace bridge puts in place of the Gaussian.

    `normalised`: the projected Gaussian is rescaled to a mean variance of sqrt(C/2), where the bridge is good.
    """
    return log_bridge(mean, cov, normalised).exp()


def log_bridge(mean: Tensor, cov: Tensor, normalised: bool = False) -> Tensor:
    """(..., C) float64: their logarithms, for concentrations overflow where logits are far apart."""
    cov = cov.double()
    return log_bridge_of(mean, cov.diagonal(dim1=-2, dim2=-1), cov.sum(-1), normalised)


def log_bridge_of(mean: Tensor, variance: Tensor, rows: Tensor, normalised: bool = False) -> Tensor:
    """The same from what it needs of the covariance: variances and sums of rows, all (..., C)."""
    mean, variance, rows = mean.double(), variance.double(), rows.double()
    number = mean.shape[-1]
    # Logits matter up to a constant: the Gaussian is projected onto those that sum to zero.
    total = rows.sum(-1, keepdim=True).clamp(min=SMALLEST)
    mean = mean - rows * mean.sum(-1, keepdim=True) / total
    variance = variance - rows.square() / total
    variance = variance.clamp(min=SMALLEST)
    if normalised:
        factor = variance.mean(-1, keepdim=True) / math.sqrt(number / 2)
        mean, variance = mean / factor.sqrt(), variance / factor
    grown = mean + (-mean).logsumexp(-1, keepdim=True) - 2 * math.log(number)
    if number > 2:  # with two classes the other term is zero
        grown = torch.logaddexp(grown, grown.new_tensor(math.log(1 - 2 / number)))
    return grown - variance.log()


def dirichlet_entropies(
    log_alpha: Tensor, digamma: Callable[[Tensor], Tensor] = torch.digamma
) -> tuple[Tensor, Tensor]:
    """(...) twice, in nats: the entropy of the mean class probabilities, and their mean entropy."""
    # Beyond LARGEST the Dirichlet is a point, and more of it changes nothing.
    alpha = (log_alpha - (log_alpha.logsumexp(-1, keepdim=True) - LARGEST).clamp(min=0)).exp()
    total = alpha.sum(-1, keepdim=True)
    p = alpha / total
    expected = digamma(total[..., 0] + 1) - (p * digamma(alpha + 1)).sum(-1)
    return torch.special.entr(p).sum(-1), expected


def lognormal(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of `exp f` for Gaussian f, elementwise."""
    first = torch.exp(mean + variance / 2)
    return first, first.square() * torch.expm1(variance)


def poisson_log_density(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """(...) float64: the log probability of counts y whose log rate is Gaussian, also far out in the tails.

    The trapezoidal rule around the mode of the integrand, which may be far from the Gaussian's own.
    """
    mean, y = mean.double(), y.double()
    variance = variance.double().clamp(min=POINT)
    with torch.no_grad():
        centre = _shifted_mode(mean, variance, y)
        left, right = _reach((mean + centre).exp(), variance)
        part = torch.linspace(0, 1, NODES, dtype=torch.float64, device=mean.device).reshape(-1, *[1] * mean.dim())
        shift = centre - left + (left + right) * part
        log_step = torch.log((left + right) / (NODES - 1))
    f = mean + shift
    log_joint = y * f - f.exp() - shift.square() / (2 * variance)
    rest = torch.lgamma(y + 1) + 0.5 * torch.log(2 * math.pi * variance)
    log_density: Tensor = log_joint.logsumexp(0) + log_step - rest
    return log_density


def _reach(rate: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """(...) twice: how far the integrand reaches to both sides of its mode, until it has fallen by e^-DEPTH.

    It falls by `rate (exp(u) - 1 - u) + u^2 / (2 variance)` at u; far from zero by less to the left than to the right.
    """
    gaussian = torch.sqrt(2 * DEPTH * variance)
    left = torch.where(rate > 3 * DEPTH, torch.sqrt(3 * DEPTH / rate), 1 + DEPTH / rate)
    right = torch.minimum(torch.sqrt(2 * DEPTH / rate), torch.log1p(DEPTH / rate) + 2)
    return torch.minimum(gaussian, left), torch.minimum(gaussian, right)


def _shifted_mode(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """(...): d that solves `y - exp(mean + d) = d / variance`, which falls in d, by halving a bracket."""
    low = -(mean.clamp(min=0) + variance.log().clamp(min=0) + 1)
    high = (y.clamp(min=POINT).log() - mean).clamp(min=0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rising = y - (mean + middle).exp() > middle / variance
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return (low + high) / 2


def along_second(
    head: Callable[[Tensor], tuple[Tensor, Tensor]], mean: Tensor, cov: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(S, m) three times: means, variances and log weights of the Gaussians that a head with two outputs mixes.

    `head` gives mean and variance of y at outputs (..., m, 2). That mean is linear in the first output, which is
    Gaussian where the second is known: it is integrated out, for mean (m, 2) and cov (m, 2, 2).
    """
    spread = cov[:, 1, 1].clamp(min=0)
    some = spread > 0
    slope = torch.where(some, cov[:, 0, 1] / torch.where(some, spread, 1.0), 0.0)
    rest = (cov[:, 0, 0] - slope * cov[:, 0, 1]).clamp(min=0)
    # Twice as far as the usual line: outliers have their density from the tails.
    nodes = torch.linspace(-2 * HALF_WIDTH, 2 * HALF_WIDTH, 2 * NODES - 1, dtype=mean.dtype, device=mean.device)
    nodes = nodes[:, None]
    log_weights = (-0.5 * nodes.square()).log_softmax(0)
    shift = torch.where(some, spread, 1.0).sqrt() * some * nodes
    second = mean[:, 1] + shift
    at_zero, noise = head(torch.stack([torch.zeros_like(second), second], -1))
    factor = head(torch.stack([torch.ones_like(second), second], -1))[0] - at_zero
    centre = at_zero + factor * (mean[:, 0] + slope * shift)
    variance = noise + factor.square() * rest
    valid = torch.isfinite(centre) & (variance > 0)
    weights = log_weights.expand_as(centre).masked_fill(~valid, -torch.inf).log_softmax(0)
    return torch.where(valid, centre, 0.0), torch.where(valid, variance, 1.0), weights


def delta_rule(
    natural: Callable[[Tensor], tuple[Tensor, Tensor]], mean: Tensor, cov: Tensor, of: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (..., K), its covariance (..., K, K) and the noise variance (..., K) of a head with two parameters.

    `natural` gives (eta1, eta2) (..., K) from outputs (..., C). `of="natural"`: the mean is `s2 eta1` with s2 held
    fixed; `of="mean"`: the derivative of `-eta1 / (2 eta2)` in both.
    """
    graph = mean.requires_grad
    with torch.enable_grad():
        f = mean if graph else mean.detach().requires_grad_()
        eta1, eta2 = natural(f)
        noise = -0.5 / eta2
        target_mean = noise * eta1
        target = eta1 if of == "natural" else target_mean
        rows = [
            torch.autograd.grad(target[..., k].sum(), f, retain_graph=True, create_graph=graph, allow_unused=True)[0]
            for k in range(target.shape[-1])
        ]
        jacobian = torch.stack([torch.zeros_like(f) if row is None else row for row in rows], -2)  # (..., K, C)
        if of == "natural":
            jacobian = noise[..., None] * jacobian
    if not graph:
        target_mean, noise, jacobian = target_mean.detach(), noise.detach(), jacobian.detach()
    return target_mean, jacobian @ cov @ jacobian.mT, noise


def root(cov: Tensor) -> Tensor:
    """(..., C, C): L with `L L^T = cov`, also for a covariance that is only semidefinite, up to rounding."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(cov)
    if not bool(failed.any()):
        return factor
    if cov.requires_grad:  # eigenvectors have no derivative where eigenvalues are equal
        size = cov.diagonal(dim1=-2, dim2=-1).amax(-1).detach()
        jitter = (64 * torch.finfo(cov.dtype).eps * size).clamp(min=SMALLEST)
        cholesky: Tensor = torch.linalg.cholesky(cov + torch.diag_embed(jitter[..., None].expand(cov.shape[:-1])))
        return cholesky
    values, vectors = torch.linalg.eigh(cov[failed > 0])
    factor = factor.clone()
    factor[failed > 0] = vectors * values.clamp(min=0).sqrt()[..., None, :]
    return factor


@lru_cache(maxsize=32)
def normal_points(number: int, dimensions: int, seed: int) -> Tensor:
    """(S, C) float64 on the CPU: a scrambled Sobol set, as standard normal numbers with equal weights."""
    with torch.inference_mode(False):  # kept for later calls, which may need a graph
        engine = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=seed)
        uniform = engine.draw(number, dtype=torch.float64).clamp(2.0**-32, 1 - 2.0**-32)
        points: Tensor = torch.special.ndtri(uniform)
    return points


@lru_cache(maxsize=1)
def line_points() -> tuple[Tensor, Tensor]:
    """(S,) nodes and (S,) log weights, float64 on the CPU: the trapezoidal rule against the normal density.

    It converges faster than any power of the step for smooth functions, however steep a sigmoid may be.
    """
    with torch.inference_mode(False):
        nodes = torch.linspace(-HALF_WIDTH, HALF_WIDTH, NODES, dtype=torch.float64, device="cpu")
        return nodes, (-0.5 * nodes.square()).log_softmax(0)
