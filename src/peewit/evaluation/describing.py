"""What was evaluated: the posterior in numbers, its settings, and the versions to make it again."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..figures.summary import group_numbers, layer_numbers
from ..likelihoods import Likelihood, WithNoise
from ..network.scaling import network_name
from ..runtime.version import __version__
from ..weights.space import trainable

if TYPE_CHECKING:
    from ..laplace import Laplace

MOST_GROUPS = 500  # of a prior, beyond which they are not listed one by one
MOST_WEIGHTS = 50_000_000  # whose variances are looked at
SAMPLE = 100_000  # weights that quantiles are taken of


def coverage_of(la: Laplace) -> tuple[dict[str, str], ...]:
    """Which approximation each parameter got."""
    return tuple(
        {
            "parameter": row.name,
            "shape": " × ".join(map(str, row.shape)) or "1",
            "rule": row.rule,
            "approximation": row.approximation,
            "invariance": row.invariance,
        }
        for row in la.coverage()
    )


def posterior_of(la: Laplace) -> dict[str, Any]:
    """Numbers for figures: evidence, groups of the prior, layers, and how tuning went."""
    evidence = la.evidence()
    numbers: dict[str, Any] = {
        "weights": la.D,
        "examples": la.N,
        "log_evidence": evidence.total,
        "log_likelihood": evidence.log_likelihood,
        "complexity": evidence.complexity,
        "effective_dimensions_total": evidence.gamma,
        "note": evidence.note,
        "temperature": la.temperature,
        "noise": noise_of(la.likelihood),
        "layers": layer_numbers(la, SAMPLE) if la.D <= MOST_WEIGHTS else [],
        "trace": trace_of(la),
        "linear_mode": la.state.linear_mode is not None,
    }
    if len(evidence.effective_dimensions) <= MOST_GROUPS:
        numbers |= group_numbers(la, evidence)
    return numbers


COVARIANCES = {
    "Kron": "approximated layer by layer, by Kronecker products (KFAC)",
    "EKFAC": "approximated layer by layer, by Kronecker products with corrected variances (EKFAC)",
    "Diag": "approximated by its diagonal, one variance per weight",
    "Block": "kept in full for each layer on its own",
    "Full": "kept in full",
}
CURVATURES = {
    "ggn": "",  # the usual one
    "fisher": ", from labels drawn from the network's own predictions",
    "empirical": ", from the gradients at the training labels",
    "hessian": ", from second derivatives of the loss",
}
TUNED = {
    "evidence": "tuned by the evidence alone, la.tune()",
    "fixed_point": 'tuned by the evidence alone, la.tune("fixed_point")',
    "training": "tuned so that predictions explain the training data, la.tune(train=...)",
    "validation": "tuned on validation data, la.tune(validation=...)",
    "grid": 'tuned on validation data, la.tune("grid", validation=...)',
}


def posterior_in_words(la: Laplace) -> str:
    """Which weights are uncertain, how the covariance is approximated, and how the prior was chosen."""
    structure = type(la.structure).__name__
    covariance = COVARIANCES.get(structure, f"approximated by {structure}") + CURVATURES.get(la.curvature.name, "")
    tuned = "not tuned" if la.trace is None else TUNED.get(la.trace.method, f"tuned by {la.trace.method}")
    warm = "" if la.temperature == 1 else f" Its temperature is {la.temperature:.3g}."
    return (
        f"a Gaussian over {weights_in_words(la)}, fitted to {la.N:,} training example{'s' if la.N != 1 else ''}. Its "
        f"covariance is {covariance}. Its prior was {tuned}.{warm}"
    )


def weights_in_words(la: Laplace) -> str:
    """All weights, those of one or two layers, or how many of how many."""
    trained, space = list(trainable(la.model)), la.space
    if space.mask is None and set(space.names) == set(trained):
        return f"all {la.D:,} weights"
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in space.names))
    if space.mask is None and len(layers) <= 2:
        last = (
            "the last layer" if trained[-len(space.names) :] == list(space.names) and len(layers) == 1 else "the layer"
        )
        names = " and ".join(layers)
        return f"the {la.D:,} weights of {last} ({names})" if len(layers) == 1 else f"the {la.D:,} weights of {names}"
    total = sum(weight.numel() for weight in la.model.parameters())
    return f"{la.D:,} of {total:,} weights"


def noise_of(likelihood: Likelihood) -> Any:
    """The standard deviation, or a list of them; None for a likelihood without noise."""
    noise = likelihood.noise if isinstance(likelihood, WithNoise) else None
    return noise.tolist() if isinstance(noise, Tensor) else noise


def trace_of(la: Laplace) -> dict[str, Any] | None:
    """How tuning went, step by step."""
    trace = la.trace
    if trace is None:
        return None
    few = len(trace.groups) <= MOST_GROUPS and len(trace.precisions) == len(trace.values)
    return {
        "method": trace.method,
        "objective": trace.objective,
        "values": list(trace.values),
        "groups": list(trace.groups) if few else [],
        "precisions": trace.precisions.double().tolist() if few else [],
        "noises": list(trace.noises),
        "temperatures": list(trace.temperatures),
        "stopped": trace.stopped,
        "converged": trace.converged,
        "warnings": list(trace.warnings),
    }


def settings_of(la: Laplace) -> dict[str, Any]:
    """How the posterior was made."""
    settings: dict[str, Any] = {
        "network": network_name(la.model),
        "likelihood": type(la.likelihood).__name__,
        "structure": type(la.structure).__name__,
        "curvature": la.curvature.name,
        "uncertain weights": la.D,
        "training examples": la.N,
        "prior": la.prior.grouping.name,
        "temperature": la.temperature,
        "arithmetic": la.arithmetic,
    }
    precision = la.prior.precision.detach()
    if precision.numel() == 1:
        settings["prior precision"] = float(precision)
    noise = noise_of(la.likelihood)
    return settings if noise is None else {**settings, "noise": noise}


def versions() -> dict[str, str]:
    """Versions of the packages that the numbers depend on."""
    return {"peewit": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def device_name(device: torch.device) -> str:
    """The name of the device that it ran on."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
