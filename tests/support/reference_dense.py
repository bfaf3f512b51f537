"""Dense float64 definitions of every curvature, one example and one output scalar at a time.

Letters: N examples, F flattened outputs of one example, C classes, D weights, T positions, K probes of the output
curvature, O outputs and I inputs of one matrix. The flat order of weights is that of `names`, each tensor row-major.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

IGNORED = -100
DENSE_LIMIT = 1024  # weights of one tensor beyond which an exact block keeps only its diagonal


# Networks and examples


def example(x: Any, n: int) -> Any:
    """Return example n of a tensor, tuple or mapping of tensors as a batch of one, floating tensors in float64."""
    if isinstance(x, Mapping):
        return {key: example(value, n) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return tuple(example(value, n) for value in x)
    return x[n : n + 1].double() if x.is_floating_point() else x[n : n + 1]


def size(x: Any) -> int:
    """Return N, the length of the leading axis of the inputs."""
    if isinstance(x, Mapping):
        return size(next(iter(x.values())))
    return size(x[0]) if isinstance(x, (tuple, list)) else len(x)


def apply(model: nn.Module, x: Any) -> Tensor:
    """Return the outputs (N, *rest) of a model for a tensor, a tuple `model(*x)` or a mapping `model(**x)`."""
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, (tuple, list)) else model(x)


def prepared(model: nn.Module) -> nn.Module:
    """Return a float64 copy in evaluation mode whose parameters all require gradients."""
    model = copy.deepcopy(model).double().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = False  # the same function, with gradients that add to dense ones
    return model


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Run checkpointed blocks directly and fused functions by their formulas, so that gradients may be taken twice."""
    original, fused = torch.utils.checkpoint.checkpoint, torch._weight_norm
    group_norm, instance_norm = F.group_norm, F.instance_norm
    settings = {"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}

    def direct(function: Callable, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **{key: value for key, value in kwargs.items() if key not in settings})

    def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
        # the second derivatives of torch's fused function take the norm for a constant
        return v * (g / torch.norm_except_dim(v, 2, dim))

    def in_plain_layout(norm: Callable) -> Callable:
        # torch crashes on a CPU where a group norm's input in channels_last needs no gradient, and misreads gradients
        # of a single example behind an instance norm
        def function(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            made = norm(x.contiguous(), *args, **kwargs)
            return made.reshape(-1).view(made.shape)

        return function

    torch.utils.checkpoint.checkpoint, torch._weight_norm = direct, weight_norm
    F.group_norm, F.instance_norm = in_plain_layout(group_norm), in_plain_layout(instance_norm)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.utils.checkpoint.checkpoint, torch._weight_norm = original, fused
        F.group_norm, F.instance_norm = group_norm, instance_norm


def selected(model: nn.Module, names: list[str]) -> list[Tensor]:
    """Return the named parameters in the order of `names`."""
    table = dict(model.named_parameters())
    return [table[name] for name in names]


def flat_gradient(scalar: Tensor, tensors: list[Tensor]) -> Tensor:
    """Return the gradient (D,) of a scalar, zero for tensors it does not depend on."""
    gradients: Any = [None] * len(tensors)
    if scalar.requires_grad:
        gradients = torch.autograd.grad(scalar, tensors, retain_graph=True, allow_unused=True)
    pairs = zip(gradients, tensors, strict=True)
    return torch.cat([(torch.zeros_like(t) if g is None else g).detach().reshape(-1) for g, t in pairs])


def outputs(model: nn.Module, x: Any) -> Tensor:
    """Return the float64 outputs (N, *rest), one example at a time."""
    model = prepared(model)
    with plain(), torch.no_grad():
        return torch.cat([apply(model, example(x, n)) for n in range(size(x))])


def jacobian(model: nn.Module, x: Any, names: list[str]) -> Tensor:
    """Return the derivatives (N, F, D) of the flattened outputs with respect to the named weights."""
    model = prepared(model)
    parameters = selected(model, names)
    rows = []
    with plain():
        for n in range(size(x)):
            output = apply(model, example(x, n)).reshape(-1)
            rows.append(torch.stack([flat_gradient(scalar, parameters) for scalar in output]))
    return torch.stack(rows)


# Likelihoods


def class_positions(rest: torch.Size, axis: int) -> Tensor:
    """Return for outputs (N, *rest) with classes along `axis` the flat places (P, C) of each position's classes."""
    places = torch.arange(math.prod(rest)).reshape(1, *rest)
    return places.movedim(axis, -1).reshape(-1, places.shape[axis])


def energy_of(likelihood: str, f: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """Return the total energy of outputs (N, *rest): half squared error, or cross entropy of the labelled positions."""
    if likelihood == "regression":
        return 0.5 * ((f - y.to(f).reshape(f.shape)) ** 2).sum()
    logits = f.movedim(axis, -1).reshape(-1, f.shape[axis])
    labels = y.reshape(-1)
    labelled = (labels != IGNORED).nonzero().squeeze(-1)
    return -torch.log_softmax(logits, -1)[labelled, labels[labelled]].sum()


def output_hessian(likelihood: str, f: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """Return the Hessian (N, F, F) of each example's energy in its outputs (N, *rest), zero at ignored labels."""
    flat = f.double().reshape(len(f), -1)
    if likelihood == "regression":
        return torch.eye(flat.shape[1], dtype=torch.float64).repeat(len(f), 1, 1)
    result = torch.zeros(len(f), flat.shape[1], flat.shape[1], dtype=torch.float64)
    for n in range(len(f)):
        for places, label in zip(class_positions(f.shape[1:], axis), y[n].reshape(-1), strict=True):
            if label != IGNORED:
                p = torch.softmax(flat[n, places], 0)
                result[n, places[:, None], places] = torch.diag(p) - torch.outer(p, p)
    return result


def output_root(likelihood: str, f: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """Return S (N, F, F) with S S^T the output Hessian and rows exactly zero at ignored labels."""
    result = output_hessian(likelihood, f, y, axis)
    if likelihood == "regression":
        return result
    for n in range(len(f)):
        for places, label in zip(class_positions(f.shape[1:], axis), y[n].reshape(-1), strict=True):
            if label != IGNORED:
                # (diag(s) - p s^T)(diag(s) - s p^T) = diag(p) - p p^T for s = sqrt(p), as s^T s = 1
                p = torch.softmax(f[n].double().reshape(-1)[places], 0)
                result[n, places[:, None], places] = torch.diag(p.sqrt()) - torch.outer(p, p.sqrt())
    return result


def residual(likelihood: str, f: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """Return the gradient (N, F) of each example's energy in its outputs (N, *rest)."""
    f = f.detach().double().requires_grad_(True)
    return torch.autograd.grad(energy_of(likelihood, f, y, axis), f)[0].reshape(len(f), -1)


def probes(likelihood: str, f: Tensor, y: Any, curvature: str = "ggn", axis: int = -1) -> Tensor:
    """Return probes (N, F, K) whose outer products sum to the output curvature; "fisher" takes a list of labels y."""
    if curvature == "ggn":
        return output_root(likelihood, f, y, axis)
    if curvature == "empirical":
        return residual(likelihood, f, y, axis)[:, :, None]
    draws = torch.stack([residual(likelihood, f, labels, axis) for labels in y], -1)
    return draws / math.sqrt(len(y))


# Whole curvatures


def energy(model: nn.Module, x: Any, y: Tensor, likelihood: str, axis: int = -1) -> Tensor:
    """Return the total energy of all examples as a scalar."""
    return energy_of(likelihood, outputs(model, x), y, axis)


def ggn(model: nn.Module, x: Any, y: Tensor, likelihood: str, names: list[str], axis: int = -1) -> Tensor:
    """Return the generalised Gauss-Newton matrix (D, D), the sum over examples of J^T H J."""
    curvature = output_hessian(likelihood, outputs(model, x), y, axis)
    return sum(j.T @ h @ j for j, h in zip(jacobian(model, x, names), curvature, strict=True))


def gradients(model: nn.Module, x: Any, y: Tensor, likelihood: str, names: list[str], axis: int = -1) -> Tensor:
    """Return the gradient (N, D) of each example's energy."""
    model = prepared(model)
    parameters = selected(model, names)
    rows = []
    with plain():
        for n in range(size(x)):
            value = energy_of(likelihood, apply(model, example(x, n)), y[n : n + 1], axis)
            rows.append(flat_gradient(value, parameters))
    return torch.stack(rows)


def empirical(model: nn.Module, x: Any, y: Tensor, likelihood: str, names: list[str], axis: int = -1) -> Tensor:
    """Return the empirical Fisher matrix (D, D), the sum over examples of g g^T."""
    return sum(torch.outer(g, g) for g in gradients(model, x, y, likelihood, names, axis))


def fisher(
    model: nn.Module, x: Any, sampled: list[Tensor], likelihood: str, names: list[str], axis: int = -1
) -> Tensor:
    """Return the mean over sampled label sets of the empirical Fisher matrix (D, D) with those labels."""
    return sum(empirical(model, x, labels, likelihood, names, axis) for labels in sampled) / len(sampled)


def hessian(model: nn.Module, x: Any, y: Tensor, likelihood: str, names: list[str], axis: int = -1) -> Tensor:
    """Return the Hessian (D, D) of the total energy, by a second backward pass for each weight."""
    model = prepared(model)
    parameters = selected(model, names)
    with plain():
        values = [energy_of(likelihood, apply(model, example(x, n)), y[n : n + 1], axis) for n in range(size(x))]
        first = torch.autograd.grad(sum(values), parameters, create_graph=True, allow_unused=True)
        first = [torch.zeros_like(p) if g is None else g for g, p in zip(first, parameters, strict=True)]
        rows = [flat_gradient(entry, parameters) for gradient in first for entry in gradient.reshape(-1)]
    return torch.stack(rows)


# Posterior quantities


def posterior(curvature: Tensor, delta: Tensor, scale: float = 1.0) -> Tensor:
    """Return the covariance (D, D), the inverse of scale * curvature + diag(delta) with delta (D,)."""
    return torch.linalg.inv(scale * curvature + torch.diag(delta))


def log_likelihood(likelihood: str, total: Tensor, scalars: int = 0, sigma: float = 1.0) -> Tensor:
    """Return log p(data | theta) from the total energy and, for regression, the count of target scalars and noise."""
    if likelihood == "classification":
        return -total
    return -total / sigma**2 - 0.5 * scalars * math.log(2 * math.pi * sigma**2)


def log_evidence(
    log_likelihood: Tensor, curvature: Tensor, theta: Tensor, mean: Tensor, delta: Tensor, scale: float = 1.0
) -> Tensor:
    """Return the Laplace log evidence for weights theta (D,), prior mean (D,) and prior precision delta (D,)."""
    precision = torch.diag(delta)
    fit = log_likelihood - 0.5 * (theta - mean) @ precision @ (theta - mean)
    return fit + 0.5 * torch.logdet(precision) - 0.5 * torch.logdet(scale * curvature + precision)


def functional_covariance(jacobian: Tensor, covariance: Tensor) -> Tensor:
    """Return the covariance (N, F, F) of each example's linearised outputs from J (N, F, D) and (D, D)."""
    return torch.stack([j @ covariance @ j.T for j in jacobian])


def joint_functional_covariance(jacobian: Tensor, covariance: Tensor) -> Tensor:
    """Return the covariance (N F, N F) of all examples' linearised outputs together."""
    flat = jacobian.reshape(-1, jacobian.shape[-1])
    return flat @ covariance @ flat.T
