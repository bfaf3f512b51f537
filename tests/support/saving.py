"""What tests of files and updates share: structures, all the answers of a posterior, and the content of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

import peewit as pw
from environment import DEVICE
from peewit.curvature import structures

STRUCTURES: dict[str, Any] = {
    **{name: structure() for name, structure in structures.NAMES.items()},
    "reduce": pw.Kron(approx="reduce"),
    "joint": pw.Kron(bias="joint"),
    "ekfac joint": pw.EKFAC(approx="auto", bias="joint"),
}


def answers(la: pw.Laplace, x: Any) -> list[Any]:
    """All that can be asked, in numbers and words."""
    made = la.functional(x)
    predicted = la.predict(x)
    generator = torch.Generator(DEVICE).manual_seed(3)
    numbers = [made.mean, made.cov, la.log_evidence(), la.sample(2, generator), la.functional_samples(x, 2, generator)]
    numbers += [getattr(predicted, name, None) for name in ("mean", "epistemic", "probs", "aleatoric")]
    numbers += [la.precision.variance(), la.weights]
    return [*numbers, str(la.coverage()), repr(la), la.N, la.D, la.prior.grouping, la.state.measurement.reason]


def assert_same(first: pw.Laplace, second: pw.Laplace, x: Any) -> None:
    """Bit for bit; on a GPU up to rounding, since some of its own sums are in no fixed order."""
    for one, other in zip(answers(first, x), answers(second, x), strict=True):
        assert type(one) is type(other)
        assert equal(one, other) if isinstance(one, Tensor) else one == other


def equal(one: Tensor, other: Tensor) -> bool:
    """Of one dtype and the same numbers."""
    if DEVICE == "cpu" or one.dtype != other.dtype:
        return torch.equal(one, other)
    bound = 1e-9 if one.dtype == torch.float64 else 1e-3
    return torch.allclose(one, other, rtol=bound, atol=bound * float(one.abs().max()))


def content_of(source: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Texts and tensors of a file."""
    with safe_open(source, "pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
