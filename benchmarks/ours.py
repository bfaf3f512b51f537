"""peewit, as the benchmark calls it."""

from __future__ import annotations

from typing import Any

from torch import nn

from benchmarks.cases import CURVATURES, Batches
from benchmarks.measure import arithmetic

NAME = "peewit"


def fit(
    model: nn.Module,
    batches: Batches,
    curvature: str = "exact",
    structure: str = "kron",
    weights: Any = "all",
    memory: float | None = None,
) -> Any:
    """The posterior with prior precision 1."""
    import peewit as pw

    return pw.fit(
        model,
        batches,
        "classification",
        weights=weights,
        structure=structure,
        curvature=CURVATURES[curvature],
        prior=1.0,
        memory=memory,
        arithmetic=arithmetic(),
    )


def try_kernels_again() -> None:
    """Forget that fused kernels failed: all calls would be slower from then on."""
    from peewit.kernels import available

    available.broken.clear()


def kernels_that_failed() -> list[str]:
    """Why measurements ran without fused kernels, if they did."""
    from peewit.kernels import available

    return list(available.broken)
