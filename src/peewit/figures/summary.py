"""Numbers behind figures of a posterior, from the posterior or from a report: groups, layers and tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..laplace import Laplace
from ..messages.errors import ArgumentTypeError, PeewitError
from ..network.isolation import entry_point
from .curvature import own_sizes

if TYPE_CHECKING:
    from ..metrics.results import Results
    from ..posterior.evidence import Evidence

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
TRACED = 8  # groups whose precisions are drawn over the steps of tuning


@dataclass(frozen=True)
class Layer:
    """Posterior variances of one tensor: their 5 %, 25 %, 50 %, 75 % and 95 % quantiles, and its prior variance."""

    name: str
    size: int
    quantiles: tuple[float, ...]
    prior: float  # its mean over the tensor


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The numbers of a posterior that figures draw."""

    groups: tuple[str, ...]
    precisions: tuple[float, ...]  # the prior's, by group
    dimensions: tuple[float, ...]  # effective ones, by group
    sizes: tuple[int, ...]  # weights, by group
    layers: tuple[Layer, ...]


@entry_point
def summary(la: Laplace) -> Summary:
    """The numbers of a posterior."""
    return summary_in({**group_numbers(la, la.evidence()), "layers": layer_numbers(la)})


def group_numbers(la: Laplace, evidence: Evidence) -> dict[str, Any]:
    """Numbers of the prior's groups, by the names that reports use."""
    dimensions = evidence.effective_dimensions
    return {
        "groups": list(evidence.groups),
        "prior_precision": la.prior.precision.detach().double().cpu().reshape(-1).expand(len(dimensions)).tolist(),
        "effective_dimensions": dimensions.tolist(),
        "group_weights": [int(size) for size in la.prior.stretches(la.space).sizes.tolist()],
    }


def layer_numbers(la: Laplace, most: int | None = None) -> list[dict[str, Any]]:
    """Posterior and prior variances of each tensor, by the names that reports use; quantiles of `most` weights."""
    with torch.no_grad():
        variance = la.precision.variance().double().cpu()
        prior = la.prior.delta(la.space, la.state.weights).detach().double().reciprocal().cpu().expand_as(variance)
    sizes = own_sizes(la)
    parts = [*sizes.values()]
    return [
        {
            "name": name,
            "weights": len(posterior),
            "prior_variance": float(prior_part.mean()),
            "variance_mean": float(posterior.mean()),
            "variance_quantiles": quantiles(posterior[:: 1 if most is None else -(-len(posterior) // most)]),
        }
        for name, posterior, prior_part in zip(sizes, variance.split(parts), prior.split(parts), strict=True)
    ]


def quantiles(values: torch.Tensor) -> list[float]:
    """Quantiles at `LEVELS` of any number of values (`torch.quantile` takes at most 16 million)."""
    ordered = values.sort().values
    places = torch.tensor(LEVELS, dtype=torch.float64, device="cpu") * (len(ordered) - 1)
    between: list[float] = ordered[places.long()].lerp(ordered[places.ceil().long()], places.frac()).tolist()
    return between


def summary_of(source: Laplace | Summary | Results) -> Summary:
    """The summary of a posterior or of a report; a summary is returned as it is."""
    if isinstance(source, Summary):
        return source
    if isinstance(source, Laplace):
        return summary(source)
    posterior = getattr(source, "posterior", None)
    if not isinstance(posterior, Mapping):
        raise ArgumentTypeError(
            f"A {type(source).__name__} was given; expected a posterior of peewit.fit, or a report."
        )
    return summary_in(posterior)


def summary_in(posterior: Mapping[str, Any]) -> Summary:
    """The summary in a report; numbers that the report does not have are left empty."""
    groups = tuple(str(name) for name in posterior.get("groups") or ())

    def numbers(key: str) -> tuple[float, ...]:
        value = posterior.get(key)
        every = value if isinstance(value, list | tuple) else () if value is None else [value] * len(groups)
        return tuple(float(each) for each in every)

    sizes = tuple(int(each) for each in numbers("group_weights"))
    layers = tuple(layer_of(each) for each in posterior.get("layers") or ())
    return Summary(
        groups=groups,
        precisions=numbers("prior_precision"),
        dimensions=numbers("effective_dimensions"),
        sizes=sizes,
        layers=layers,
    )


def layer_of(layer: Mapping[str, Any]) -> Layer:
    """The numbers of one tensor, as a report holds them."""
    quantiles = tuple(float(each) for each in layer["variance_quantiles"])
    return Layer(str(layer["name"]), int(layer["weights"]), quantiles, float(layer["prior_variance"]))


def steps_of(source: Any) -> tuple[list[float], str, list[list[float]], list[str]]:
    """Scores of the steps, name of the score, precisions (steps, groups) if all were kept, and names of groups."""
    trace = source.trace if isinstance(source, Laplace) else source
    if trace is None:
        raise PeewitError("The posterior was not tuned, so there is no trace; use la.tune().")
    if hasattr(trace, "posterior"):
        saved = trace.posterior.get("trace") if isinstance(trace.posterior, Mapping) else None
        if not saved:
            raise PeewitError("The report has no trace of tuning: the posterior was not tuned.")
        more = saved if isinstance(saved, Mapping) else {"values": saved}
        table = [[float(number) for number in row] for row in more.get("precisions") or ()]
        groups = [str(name) for name in more.get("groups") or trace.posterior.get("groups") or ()]
        values = [float(number) for number in more["values"]]
        whole = len(table) == len(values) and all(len(row) == len(groups) for row in table)
        return values, str(more.get("objective", "log evidence")), table if whole else [], groups
    table = trace.precisions.detach().double().cpu().tolist() if len(trace.precisions) == len(trace.values) else []
    return (
        [float(number) for number in trace.values],
        trace.objective,
        table,
        [str(name) for name in trace.groups[:TRACED]],
    )
