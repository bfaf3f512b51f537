"""What was evaluated: the posterior in numbers, its settings, and the versions to make it again."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..figures.summary import group_numbers, layer_numbers
from ..likelihoods import Likelihood, WithNoise
from ..runtime.version import __version__

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
            "scale": row.scale,
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
    }
    if len(evidence.effective_dimensions) <= MOST_GROUPS:
        numbers |= group_numbers(la, evidence)
    return numbers


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
        "network": type(la.model).__name__,
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
    """Of what has a part in the numbers."""
    return {"peewit": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def device_name(device: torch.device) -> str:
    """What it ran on."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
