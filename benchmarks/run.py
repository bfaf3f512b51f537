"""Measure fits and predictions: `python -m benchmarks.run --device cuda` for all, in every precision."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import ours, peer
from benchmarks.cases import Bench, Settings
from benchmarks.journal import Journal, merge
from benchmarks.measure import PRECISIONS, Failure, attempt, device_name, set_precision, within_memory
from benchmarks.networks import LAST, NETWORKS
from benchmarks.revision import commit
from benchmarks.sections import SECTIONS
from benchmarks.sections.growth import NAMES
from benchmarks.tables import show


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    known = [*NETWORKS, *LAST]
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), help="all where none is named")
    parser.add_argument("--networks", nargs="+", choices=known, default=known)
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, help="of float32 products on a GPU; all where none is named"
    )
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--patience", type=float, default=6.0, help="seconds that the repeats of one call may take")
    parser.add_argument("--quick", action="store_true", help="small networks and few data: does it run?")
    parser.add_argument("--structures", nargs="+", choices=["kron", "ekfac"], help="of fits; both where none is named")
    parser.add_argument("--axes", nargs="+", choices=NAMES, default=[], help="of growth; all where none is named")
    parser.add_argument("--skip-peer", action="store_true", help="leave laplace-torch out")
    parser.add_argument(
        "--json", type=Path, help="write all measurements here; bench/DEVICE-PRECISION.json if not given"
    )
    options = parser.parse_args(arguments)
    options.precision = options.precision or (["fp32"] if options.device == "cpu" else list(PRECISIONS))
    if options.json is not None and len(options.precision) > 1:
        parser.error("--json is one file, and every precision has its own; name one --precision, or leave --json out")
    known = {name for precision in options.precision for name in scope(options, precision).sections}
    missing = [name for name in options.sections or () if name not in known]
    if missing:
        parser.error(
            f"of {', '.join(missing)} nothing depends on these precisions; name one --precision to measure all"
        )
    return options


@dataclass(frozen=True)
class Scope:
    """The measurements that depend on the precision, if several precisions are measured."""

    sections: tuple[str, ...]
    structures: tuple[str, ...] = ("kron",)
    peer: bool = True


SCOPES = {
    "fp32": Scope(tuple(name for name in SECTIONS if name not in ("linear", "single")), ("kron", "ekfac")),
    "tf32": Scope(("fits", "predictives", "linear", "agreement")),
    "bf16": Scope(("fits", "predictives"), peer=False),  # laplace-torch has none
    "default": Scope(("predictives", "single", "agreement")),
}


def scope(options: argparse.Namespace, precision: str) -> Scope:
    """The wanted measurements; of each of several precisions, those that depend on it."""
    whole = Scope(tuple(SECTIONS), ("kron", "ekfac"))
    own = SCOPES[precision] if len(options.precision) > 1 else whole
    return Scope(
        tuple(name for name in own.sections if name in (options.sections or SECTIONS)),
        tuple(options.structures or own.structures),
        own.peer and not options.skip_peer,
    )


def header(options: argparse.Namespace, device: torch.device, precision: str) -> dict[str, Any]:
    """The machine and the versions behind the numbers."""
    return {
        "machine": device_name(device),
        "device": device.type,
        "torch": torch.__version__,
        "processor": device_name(torch.device("cpu")),
        "commit": commit(),
        "peer": peer.version(),
        "precision": precision,
        "batch_size": options.batch_size,
        "quick": options.quick,
        "date": time.strftime("%Y-%m-%d"),
    }


def run(options: argparse.Namespace, console: Console) -> list[Journal]:
    """Measure every wanted precision, one after the other."""
    if not options.skip_peer:
        attempt(peer.load)  # where it is missing, its measurements say so
    device = torch.device(options.device)
    with fast_collection(), within_memory(device):
        asked = [precision for precision in options.precision if scope(options, precision).sections]
        return [measured(options, precision, device, console) for precision in asked]


def measured(options: argparse.Namespace, precision: str, device: torch.device, console: Console) -> Journal:
    """Measure all wanted sections; note one that fails, and start the next."""
    set_precision(precision)
    path = options.json or Path("bench") / f"{device.type}-{precision}{'-quick' if options.quick else ''}.json"
    own = scope(options, precision)
    settings = Settings(
        device=device,
        batch_size=options.batch_size,
        repeats=options.repeats,
        patience=options.patience,
        quick=options.quick,
        peer=own.peer,
        structures=own.structures,
        axes=tuple(options.axes),
        say=lambda line: console.print(line, style="dim", highlight=False, markup=False),
    )
    journal = Journal(header(options, device, precision), path)
    ours.try_kernels_again()  # what failed in another precision need not fail in this one
    bench = Bench(settings, journal, tuple(options.networks))
    for name in own.sections:
        began = time.perf_counter()
        outcome = attempt(partial(SECTIONS[name], bench))
        if isinstance(outcome, Failure):
            journal.add(outcome, section=name)
        settings.say(f"{precision}, {name}: {time.perf_counter() - began:.0f} s")
    journal.header["slower"] = ours.kernels_that_failed()
    journal.write()
    return journal


@contextmanager
def fast_collection() -> Iterator[None]:
    """Exclude loaded modules from garbage collections, which run before every measurement."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def main(arguments: list[str] | None = None) -> None:
    """Measure, write and show."""
    options = parse(arguments)
    # A width of its own, since a table that is piped into a file should not be folded to 80 columns.
    console = Console(width=None if Console().is_terminal else 150)
    journals = run(options, console)
    for made in merge([journal.as_dict() for journal in journals]):
        show(made, console)
    for journal in journals:
        console.print(f"written to {journal.path}", highlight=False)


if __name__ == "__main__":
    main()
