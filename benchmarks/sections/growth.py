"""Cost against the size of one thing at a time: weights, outputs, examples, batch, positions, memory allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks import ours, peer
from benchmarks.cases import Batches, Bench, Settings, batched, synthetic
from benchmarks.measure import Measurement, attempt, measured, tidy
from benchmarks.networks import Pooled, lenet, perceptron

FEATURES = 64  # inputs of the perceptrons
CHANNELS = 16  # of the transformer
PLAIN_WIDTH = 256


@dataclass(frozen=True, kw_only=True)
class Point:
    """A network and its data at one size."""

    axis: str
    size: int
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    examples: int
    batch: int
    inputs: int  # to predict at, together


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What grows, over which sizes, and what is measured."""

    name: str
    sizes: tuple[int, ...]
    point: Callable[[int], Point]
    fits: tuple[str, ...] = ("exact",)
    predicts: bool = True

    def points(self, settings: Settings) -> Iterator[Point]:
        sizes = self.sizes[:2] if settings.quick else self.sizes
        return (self.point(size) for size in sizes)


def of_width(size: int) -> Point:
    return Point(
        axis="weights",
        size=size,
        build=partial(perceptron, FEATURES, size, 10),
        shape=(FEATURES,),
        classes=10,
        examples=512,
        batch=128,
        inputs=8,
    )


def of_outputs(size: int) -> Point:
    return Point(
        axis="outputs",
        size=size,
        build=partial(perceptron, FEATURES, PLAIN_WIDTH, size),
        shape=(FEATURES,),
        classes=size,
        examples=512,
        batch=128,
        inputs=8,
    )


def of_examples(size: int) -> Point:
    return Point(
        axis="examples",
        size=size,
        build=partial(perceptron, FEATURES, PLAIN_WIDTH, 10),
        shape=(FEATURES,),
        classes=10,
        examples=size,
        batch=128,
        inputs=8,
    )


def of_batch(size: int) -> Point:
    return Point(
        axis="batch",
        size=size,
        build=partial(perceptron, FEATURES, PLAIN_WIDTH, 10),
        shape=(FEATURES,),
        classes=10,
        examples=1024,
        batch=size,
        inputs=size,
    )


def of_positions(size: int) -> Point:
    return Point(
        axis="positions",
        size=size,
        build=partial(Pooled, CHANNELS, 64, 2, 4, 10),
        shape=(size, CHANNELS),
        classes=10,
        examples=64,
        batch=32,
        inputs=8,
    )


AXES = (
    Axis(name="weights", sizes=(32, 64, 128, 256, 512, 1024, 2048), point=of_width),
    Axis(name="outputs", sizes=(2, 4, 8, 16, 32, 64, 128, 256), point=of_outputs, fits=("exact", "MC(1)")),
    Axis(name="examples", sizes=(512, 1024, 2048, 4096, 8192, 16384), point=of_examples, predicts=False),
    # A fit costs most in small batches and a predictive in large ones: each begins where it is cheap.
    Axis(name="batch", sizes=(1024, 256, 64, 16, 4), point=of_batch, predicts=False),
    Axis(name="batch", sizes=(1, 4, 16, 64, 256, 1024), point=of_batch, fits=()),
    Axis(name="positions", sizes=(4, 8, 16, 32, 64, 128, 256), point=of_positions, fits=("exact", "MC(1)")),
)
NAMES = ("weights", "outputs", "examples", "batch", "positions", "memory")
LIMITS = (1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30)  # bytes, as `memory=`


def measure(bench: Bench) -> None:
    """Records by axis, size, library, task and curvature; a curve ends where it takes too long."""
    chosen = bench.settings.axes or NAMES
    for axis in (each for each in AXES if each.name in chosen):
        ended: set[tuple[str, str, str]] = set()
        for point in axis.points(bench.settings):
            measure_point(bench, axis, point, ended)
    limits = LIMITS[:2] if bench.settings.quick else LIMITS
    for limit in limits if "memory" in chosen else ():
        note(bench, "memory", limit, ours.NAME, "predictive", "exact", partial(bounded, bench.settings, limit))


def measure_point(bench: Bench, axis: Axis, point: Point, ended: set[tuple[str, str, str]]) -> None:
    """Fits and predictions of both libraries at one size, except those whose curve has ended."""
    torch.manual_seed(0)
    settings = bench.settings
    model = point.build().to(settings.device).eval()
    batches = batched(synthetic(point.shape, point.classes, point.examples, settings.device), point.batch)
    weights = sum(parameter.numel() for parameter in model.parameters())
    for curve, function in questions(axis, point, model, batches, settings):
        if curve in ended:
            continue
        library, task, curvature = curve
        size = weights if axis.name == "weights" else point.size
        record = note(bench, axis.name, size, library, task, curvature, function)
        if "failure" in record or record["time"]["median"] > patience(settings):
            ended.add(curve)


def patience(settings: Settings) -> float:
    """Seconds of one call after which a curve is not followed further."""
    return 1.0 if settings.cuda else 2.0


def questions(
    axis: Axis, point: Point, model: nn.Module, batches: Batches, settings: Settings
) -> Iterator[tuple[tuple[str, str, str], Callable[[], Any]]]:
    """(library, task, curvature) and how to measure it."""
    frozen = peer.freeze_unsupported(model) if settings.peer else model
    x = synthetic(point.shape, point.classes, point.inputs, settings.device)[0]
    for curvature in axis.fits:
        fit = partial(ours.fit, model, curvature=curvature)
        yield (ours.NAME, "fit", curvature), partial(fit_measured, settings, batches, fit)
    if axis.name in ("outputs", "examples"):
        yield (ours.NAME, "bounded fit", "exact"), partial(bounded_fit, settings, batches, model)
    if axis.predicts:
        yield (
            (ours.NAME, "predictive", "exact"),
            lambda: predicted(settings, ours.fit(model, batches[:2]).functional, x),
        )
    if not settings.peer:
        return
    if axis.fits:
        yield (peer.NAME, "fit", "exact"), partial(fit_measured, settings, batches, partial(peer.fit, frozen))
    if axis.predicts:
        yield (peer.NAME, "predictive", "exact"), partial(theirs_predicted, settings, frozen, batches, point, x)


def theirs_predicted(settings: Settings, model: nn.Module, batches: Batches, point: Point, x: Any) -> Any:
    """laplace-torch's predictive, unless it cannot fit."""
    refused = peer.too_large(model, point.inputs, point.classes, settings.device)
    if refused:
        return refused
    posterior = peer.fit(model, batches[:2])
    return predicted(settings, lambda inputs: peer.functional(posterior, inputs), x)


def note(
    bench: Bench, axis: str, size: int, library: str, task: str, curvature: str, function: Callable[[], Any]
) -> dict[str, Any]:
    """Measure and write."""
    tidy()
    bench.settings.say(f"growth in {axis}, {size:,}: {task}, {library}, {curvature}")
    return bench.journal.add(
        attempt(function), section="growth", axis=axis, size=size, library=library, task=task, curvature=curvature
    )


def fit_measured(settings: Settings, batches: Batches, fit: Callable[[Batches], Any]) -> Measurement:
    """A fit, warmed up on one batch."""
    fit(batches[:1])
    return timed_briefly(settings, lambda: fit(batches))


def predicted(settings: Settings, functional: Callable[[Any], Any], x: Any) -> Measurement:
    """A predictive, warmed up."""
    functional(x)
    return timed_briefly(settings, lambda: functional(x))


def timed_briefly(settings: Settings, function: Callable[[], Any]) -> Measurement:
    """Few repeats, and one of slow calls: a slope needs many sizes, not many repeats."""
    return measured(function, settings.device, settings.repeats, patience(settings) / 2)


def bounded_fit(settings: Settings, batches: Batches, model: nn.Module) -> dict[str, Any]:
    """A fit under `memory=`, small enough to bind."""
    found = fit_measured(settings, batches, lambda data: ours.fit(model, data, memory=LIMITS[0]))
    return {**found.as_dict(), "limit_bytes": LIMITS[0]}


def bounded(settings: Settings, limit: int) -> dict[str, Any]:
    """A predictive under `memory=`: bytes beyond the model, inputs and returned tensors."""
    torch.manual_seed(0)
    model = lenet().to(settings.device).eval()
    count = 16 if settings.quick else 4096 if settings.cuda else 512
    data = synthetic((1, 28, 28), 10, 128, settings.device)
    posterior = ours.fit(model, batched(data, 128))
    x = synthetic((1, 28, 28), 10, count, settings.device)[0]
    found = predicted(settings, partial(posterior.functional, memory=limit), x)
    returned = sum(tensor.nbytes for tensor in posterior.functional(x, memory=limit))
    return {**found.as_dict(), "limit_bytes": limit, "beyond_bytes": found.extra - returned, "inputs": count}
