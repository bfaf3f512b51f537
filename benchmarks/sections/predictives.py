"""The closed-form predictive, `kron` over all weights: inputs per second at the best batch size, and memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from benchmarks import ours, peer
from benchmarks.cases import Bench, Case
from benchmarks.measure import Failure, attempt, tidy
from benchmarks.networks import NETWORKS

SIZES = (1, 4, 16, 32, 64, 128, 256, 1024, 4096, 16384)
PEER_SIZES = (1, 4, 8, 16, 32, 64, 128, 256, 512)
QUICK_SIZES = (1, 8)


def measure(bench: Bench) -> None:
    """A record per network and library."""
    quick = bench.settings.quick
    for case in bench.cases(NETWORKS):
        bench.note(
            case,
            "predictives",
            partial(ours_measured, case, QUICK_SIZES if quick else SIZES),
            library=ours.NAME,
            structure="kron",
            task="predictive",
        )
        if bench.settings.peer:
            bench.note(
                case,
                "predictives",
                partial(theirs_measured, case, QUICK_SIZES if quick else PEER_SIZES),
                library=peer.NAME,
                structure="kron",
                task="predictive",
            )


def curvature_of(case: Case) -> str:
    """The curvature of the fit, on which the cost of predictions does not depend: the cheaper one for many outputs."""
    return "exact" if case.classes <= 10 else "MC(1)"


def ours_measured(case: Case, sizes: tuple[int, ...]) -> dict[str, Any]:
    """All covariances between outputs; only variances for a network with outputs at every position."""
    posterior = ours.fit(case.model, case.batches[:2], curvature_of(case))
    if not case.network.tokens:
        return curve(case, posterior.functional, sizes)
    return {
        **curve(case, lambda x: posterior.functional(x, variance_only=True), sizes),
        "note": "variances only, from 64 samples",
    }


def theirs_measured(case: Case, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The same of laplace-torch."""
    model = peer.freeze_unsupported(case.model)
    posterior = peer.fit(model, case.batches[:2], curvature_of(case))

    def refuse(size: int) -> Failure | None:
        return peer.too_large(model, size, case.classes, case.settings.device)

    return curve(case, lambda x: peer.functional(posterior, x), sizes, refuse)


def curve(
    case: Case,
    functional: Callable[[Tensor], Any],
    sizes: tuple[int, ...],
    refuse: Callable[[int], Failure | None] = lambda size: None,
) -> dict[str, Any]:
    """Inputs per second at several batch sizes, until larger ones fail, slow down or take too long; and the best."""
    points: list[dict[str, Any]] = []
    for size in sizes:
        found = refuse(size) or attempt(partial(point, case, functional, size))
        points.append({"batch": size, **(found.as_dict() if isinstance(found, Failure) else found)})
        if isinstance(found, Failure):
            break
        median = found["time"]["median"]
        best = max((each["per_second"] for each in points[:-2]), default=0.0)
        idle = len(points) > 2 and all(each["per_second"] < 1.03 * best for each in points[-2:])
        if median > case.settings.patience / 3 or (median > 0.3 and idle):
            break  # a larger batch would be no faster, as two have shown
    tidy()
    worked = [each for each in points if "per_second" in each]
    if not worked:
        return {"points": points, "failure": points[0]["failure"]}
    return {"points": points, "best": max(worked, key=lambda each: each["per_second"])}


def point(case: Case, functional: Callable[[Tensor], Any], size: int) -> dict[str, Any]:
    """One batch size."""
    inputs = case.inputs(size)
    functional(inputs)  # warm up
    found = case.settings.measured(lambda: functional(inputs), 2 + case.settings.repeats)
    return {"per_second": size / found.timing.median, **found.as_dict()}
