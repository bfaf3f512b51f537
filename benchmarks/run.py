"""Measure fits and predictions: `python -m benchmarks.run --device cuda --precision tf32 --json bench/tf32.json`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from benchmarks import peer
from benchmarks.measure import (
    Failure,
    PeakMemory,
    Timing,
    attempt,
    device_name,
    elapsed,
    set_precision,
    synchronise,
    tidy,
    timed,
)
from benchmarks.networks import NETWORKS, Network
from benchmarks.report import show, write_markdown

Batches = list[tuple[Tensor, Tensor]]
OURS = {"lapwing, exact": "ggn", "lapwing, MC(1)": "fisher"}
PEER = "laplace-torch"


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    device: torch.device
    classes: int
    batch_size: int
    repeats: int
    patience: float
    quick: bool
    peer: bool
    say: Callable[[str], None]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes to predict at."""
        return (16, 64) if self.quick else (16, 32, 64, 128, 256, 512, 1024, 2048)

    @property
    def peer_sizes(self) -> tuple[int, ...]:
        """Batch sizes for laplace-torch, which needs a Jacobian per input."""
        return (2, 8) if self.quick else (4, 16, 32, 64, 128)


def synthetic(network: Network, count: int, settings: Settings) -> tuple[Tensor, Tensor]:
    """Inputs and labels on the device, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, *network.shape, generator=generator)
    targets = torch.randint(settings.classes, (count,), generator=generator)
    return inputs.to(settings.device), targets.to(settings.device)


def forward_backward(model: nn.Module, batches: Batches) -> None:
    """One plain pass over the data, gradients of all weights included."""
    for inputs, targets in batches:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs), targets, reduction="sum").backward()
    model.zero_grad(set_to_none=True)


def fit_ours(model: nn.Module, batches: Batches, curvature: str, weights: Any = "all") -> Any:
    """The posterior over the weights with Kronecker factors and prior precision 1."""
    import lapwing as lw

    return lw.fit(model, batches, "classification", weights=weights, structure="kron", curvature=curvature, prior=1.0)


def measure_fit(fit: Callable[[Batches], Any], batches: Batches, settings: Settings) -> dict[str, Any]:
    """Times of the whole fit, and of its decompositions where they are known, with the peak memory of one fit."""
    decompositions: list[float] = []

    def once() -> None:
        timings = getattr(fit(batches), "timings", None)
        if isinstance(timings, dict) and "decompose" in timings:
            decompositions.append(float(timings["decompose"]))

    fit(batches[:1])  # warm up: kernels are chosen and libraries loaded
    tidy()
    with PeakMemory(settings.device) as memory:
        first = elapsed(once, settings.device)
    if first < settings.patience:
        decompositions.clear()
        timing = timed(once, settings.device, settings.repeats, settings.patience)
    else:
        timing = Timing((first,))
    result: dict[str, Any] = {"time": timing.as_dict(), "peak_bytes": memory.bytes, "extra_bytes": memory.extra}
    if decompositions:
        result["decompositions"] = Timing(tuple(decompositions)).as_dict()
    return result


def measure_peer_fit(model: nn.Module, batches: Batches, settings: Settings) -> dict[str, Any]:
    """The same for laplace-torch, whose decompositions are timed from outside."""
    peer.fit(model, batches[:1])
    with peer.decomposition_seconds(settings.device) as seconds:
        result = measure_fit(lambda data: peer.fit(model, data), batches, settings)
    repeats = result["time"]["repeats"]
    result["decompositions"] = Timing(tuple(seconds[-repeats:])).as_dict()
    return result


def measure_functional(
    functional: Callable[[Tensor], Any],
    network: Network,
    sizes: tuple[int, ...],
    settings: Settings,
    refuse: Callable[[int], Failure | None] = lambda size: None,
) -> dict[str, Any]:
    """Inputs per second of the functional covariance at several batch sizes, and the best of them."""
    points: list[dict[str, Any]] = []
    for size in sizes:
        inputs, _ = synthetic(network, size, settings)

        def once(inputs: Tensor = inputs) -> None:
            functional(inputs)

        def point(once: Callable[[], None] = once) -> dict[str, Any]:
            once()
            with PeakMemory(settings.device) as memory:
                once()
            timing = timed(once, settings.device, settings.repeats, settings.patience)
            return {"time": timing.as_dict(), "peak_bytes": memory.bytes, "extra_bytes": memory.extra}

        result = refuse(size) or attempt(point)
        if isinstance(result, Failure):
            points.append({"batch": size, **result.as_dict()})
            break
        points.append({"batch": size, "per_second": size / result["time"]["median"], **result})
        best = max(point["per_second"] for point in points)
        slow = result["time"]["median"] > 0.5 and points[-1]["per_second"] < best
        if slow or result["time"]["median"] > settings.patience:
            break  # larger batches no longer help
    tidy()
    worked = [point for point in points if "per_second" in point]
    if not worked:
        return {"points": points, "failure": points[0]["failure"]}
    return {"points": points, "best": max(worked, key=lambda point: point["per_second"])}


def agreement(model: nn.Module, network: Network, settings: Settings) -> dict[str, Any]:
    """Relative difference of the functional covariances of both libraries, fitted to the same weights and few data."""
    batches = [synthetic(network, 32, settings)]
    inputs, _ = synthetic(network, 2, settings)
    frozen = peer.freeze_unsupported(model)
    refused = peer.too_large(frozen, len(inputs), settings.classes, settings.device)
    if refused:
        return refused.as_dict()
    theirs = peer.functional(peer.fit(frozen, batches), inputs)[1]
    ours = fit_ours(model, batches, "ggn", peer.supported_names(model)).functional(inputs)[1]
    return {"relative_difference": ((ours - theirs).norm() / theirs.norm()).item()}


def as_result(value: Any) -> dict[str, Any]:
    """A measurement or a failure, in the form that is written."""
    result: dict[str, Any] = value.as_dict() if isinstance(value, Failure) else value
    return result


def benchmark(name: str, settings: Settings) -> dict[str, Any]:
    """All measurements of one network."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    model = network.build(settings.classes).to(settings.device).eval()
    count = network.quick_examples if settings.quick else network.examples
    inputs, targets = synthetic(network, count, settings)
    batches = list(zip(inputs.split(settings.batch_size), targets.split(settings.batch_size), strict=True))
    synchronise(settings.device)

    settings.say(f"{network.title}: forward and backward")
    forward_backward(model, batches[:2])
    baseline = timed(lambda: forward_backward(model, batches), settings.device, settings.repeats, settings.patience)

    fits: dict[str, Any] = {}
    predictions: dict[str, Any] = {}
    for title, curvature in OURS.items():
        settings.say(f"{network.title}: fit, {title}")
        fits[title] = as_result(
            attempt(lambda kind=curvature: measure_fit(lambda data: fit_ours(model, data, kind), batches, settings))
        )

    settings.say(f"{network.title}: predict, lapwing")
    posterior = attempt(lambda: fit_ours(model, batches[:2], "ggn"))
    if isinstance(posterior, Failure):
        predictions["lapwing"] = posterior.as_dict()
    else:
        predictions["lapwing"] = measure_functional(posterior.functional, network, settings.sizes, settings)
    del posterior
    tidy()

    difference: Any = {"failure": "not asked for"}
    if settings.peer:
        frozen = peer.freeze_unsupported(model)
        settings.say(f"{network.title}: fit, {PEER}")
        fits[PEER] = as_result(attempt(lambda: measure_peer_fit(frozen, batches, settings)))
        settings.say(f"{network.title}: predict, {PEER}")
        posterior = attempt(lambda: peer.fit(frozen, batches[:2]))
        if isinstance(posterior, Failure):
            predictions[PEER] = posterior.as_dict()
        else:
            predictions[PEER] = measure_functional(
                lambda x: peer.functional(posterior, x),
                network,
                settings.peer_sizes,
                settings,
                lambda size: peer.too_large(frozen, size, settings.classes, settings.device),
            )
        del posterior
        tidy()
        settings.say(f"{network.title}: agreement")
        difference = as_result(attempt(lambda: agreement(model, network, settings)))
    return {
        "network": name,
        "title": network.title,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "examples": count,
        "forward_backward": baseline.as_dict(),
        "fits": fits,
        "predictions": predictions,
        "agreement": difference,
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--precision", choices=["fp32", "tf32"], default="fp32", help="of float32 products on a GPU")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds after which a call is not repeated")
    parser.add_argument("--quick", action="store_true", help="few examples and small batches: does it run?")
    parser.add_argument("--skip-peer", action="store_true", help="leave laplace-torch out")
    parser.add_argument("--json", type=Path, help="write all measurements here")
    parser.add_argument("--markdown", type=Path, help="write the tables here as a page")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measure, show and write."""
    options = parse(arguments)
    # A width of its own, since a table that is piped into a file should not be folded to 80 columns.
    console = Console(width=None if Console().is_terminal else 140)
    device = torch.device(options.device)
    set_precision(options.precision)
    settings = Settings(
        device,
        options.classes,
        options.batch_size,
        options.repeats,
        options.patience,
        options.quick,
        not options.skip_peer,
        lambda line: console.print(line, style="dim", highlight=False),
    )
    report: dict[str, Any] = {
        "machine": device_name(device),
        "device": device.type,
        "torch": torch.__version__,
        "precision": options.precision,
        "classes": options.classes,
        "batch_size": options.batch_size,
        "quick": options.quick,
        "results": [],
    }
    for name in options.networks:
        report["results"].append(benchmark(name, settings))
        if options.json:
            # After every network, so that a run that is cut short leaves what it has.
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=2) + "\n")
    show(report, console)
    if options.markdown:
        write_markdown(report, options.markdown)


if __name__ == "__main__":
    main()
