"""Fit and ask many architectures: `python -m benchmarks.architectures.run --device cuda --json FILE`.

A second process does the work, so that an architecture that crashes or takes too long ends nothing but itself. What the
file has already is not measured again.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.architectures.networks import ARCHITECTURES, Architecture, Batch, forward, named, settled
from benchmarks.journal import Journal, Record, read
from benchmarks.measure import Failure, PeakMemory, attempt, device_name, elapsed, tidy

WEIGHTS = ("all", "last_layer")
ASKED = 16  # inputs of a prediction
IGNORED = "Covariances of .* outputs per example are estimated"  # the table says which predictions are by samples

Say = Callable[[Record], None]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    known = [each.name for each in ARCHITECTURES]
    parser = argparse.ArgumentParser(prog="benchmarks.architectures.run", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--networks", nargs="+", choices=known, default=known)
    parser.add_argument("--examples", type=int, default=256, help="to fit to")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--small", action="store_true", help="a few narrow layers of each, which suit a CPU")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that one architecture may take")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no further one is begun")
    parser.add_argument("--json", type=Path, required=True, help="the file, which is added to")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Journal:
    """Measure every architecture that the file does not have."""
    began = time.monotonic()
    journal = begin(options)
    there = {record["network"] for record in journal.records}
    wanted = [name for name in options.networks if name not in there]
    wanted = [name for name in wanted if not options.small or named(name).small is not None]
    for library in {named(name).library for name in wanted}:
        if importlib.util.find_spec(library) is None:
            print(f"{library} is not installed: its networks are left out", flush=True)
            wanted = [name for name in wanted if named(name).library != library]
    worker = Worker(options)
    for index, name in enumerate(wanted):
        if time.monotonic() - began + options.limit > options.budget:
            print(f"out of time: {len(wanted) - index} not measured", flush=True)
            break
        record = worker.measured(name)
        which = named(name)
        built = which.built(options.small)
        journal.add(record, network=name, built=built, library=which.library, what=which.what)
        print(f"{time.monotonic() - began:6.1f} s  {line(journal.records[-1])}", flush=True)
    worker.end()
    return journal


def begin(options: argparse.Namespace) -> Journal:
    """The file as it is, or a new one."""
    device = torch.device(options.device)
    header = {
        "machine": device_name(device),
        "device": device.type,
        "torch": torch.__version__,
        "libraries": {name: version(name) for name in ("timm", "transformers")},
        "examples": options.examples,
        "batch_size": options.batch_size,
        "small": options.small,
        "date": time.strftime("%Y-%m-%d"),
    }
    if not options.json.exists():
        return Journal(header, options.json)
    return Journal(header, options.json, read(options.json)["records"])


def version(library: str) -> str | None:
    """The version of a library; None where it is not installed."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def line(record: Record) -> str:
    """A record in one line, for those who wait."""
    parts = [f"{record['network']}: {record.get('parameters', 0):,} weights"]
    for weights in WEIGHTS:
        own = record.get(weights, {})
        if "fit_seconds" in own:
            generic = sum(size for rule, size in own["rules"].items() if "generic" in rule)
            parts.append(f"{weights} {own['fit_seconds']:.2f} s, {generic:,} generic")
    failures = [record.get("failure"), *(record.get(weights, {}).get("failure") for weights in WEIGHTS)]
    return "; ".join([*parts, *(failure for failure in failures if failure)])


class Worker:
    """A process that measures, begun again after a crash or a time limit."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.context = multiprocessing.get_context("spawn")
        self.begin()

    def begin(self) -> None:
        """Start the process, and wait until its libraries are loaded: that counts for no architecture."""
        self.connection, other = self.context.Pipe()
        self.process = self.context.Process(target=work, args=(other, self.options), daemon=True)
        self.process.start()
        other.close()
        if self.connection.poll(300):
            self.connection.recv()

    def end(self) -> None:
        """Stop the process."""
        self.process.kill()
        self.process.join()

    def measured(self, name: str) -> Record:
        """What is known of an architecture when it is done, its time is over, or its process has ended."""
        known: Record = {}
        until = time.monotonic() + self.options.limit
        reason = f"stopped after {self.options.limit:.0f} seconds"
        try:
            self.connection.send(name)
            while self.connection.poll(max(0.0, until - time.monotonic())):
                said = self.connection.recv()
                if said is None:
                    return known
                known |= said
        except (EOFError, OSError):
            reason = "the process ended"
        self.end()
        self.begin()
        return {**known, "failure": reason}


def work(connection: Connection, options: argparse.Namespace) -> None:
    """Measure the networks whose names arrive; answer with each part, and None at the end of each network."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    device = torch.device(options.device)
    torch.zeros(1, device=device)
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())
    for library in ("timm", "transformers", "peewit"):
        if importlib.util.find_spec(library) is not None:
            importlib.import_module(library)
    connection.send({})
    while True:
        name = connection.recv()
        failed = attempt(partial(measure, named(name), options, connection.send))
        if isinstance(failed, Failure):
            connection.send(failed.as_dict())
        connection.send(None)


def measure(architecture: Architecture, options: argparse.Namespace, say: Say) -> None:
    """A plain pass, and for each choice of weights a fit and two predictions."""
    device = torch.device(options.device)
    tidy()
    model = architecture.build(options.small)
    batches = [
        moved(architecture.batch(options.batch_size, options.small, seed), device)
        for seed in range(max(1, options.examples // options.batch_size))
    ]
    model.to(device)
    settled(model, batches[0])
    shape = {
        name: tuple(value.shape[1:]) for name, value in batches[0].items() if name not in ("labels", "attention_mask")
    }
    say({"parameters": sum(weight.numel() for weight in model.parameters()), "input": shape})
    passes = partial(plain_pass, model, batches)
    passes()
    say({"pass_seconds": min(seconds(passes, device) for _ in range(3))})
    for weights in WEIGHTS:
        found = attempt(partial(asked, model, batches, weights, device))
        say({weights: found.as_dict() if isinstance(found, Failure) else found})


def seconds(function: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a call; on a CPU those of the processor, on one thread, whatever else the machine does."""
    if device.type == "cuda":
        return elapsed(function, device)
    began = time.process_time()
    function()
    return time.process_time() - began


def moved(batch: Batch, device: torch.device) -> Batch:
    """A batch on the device."""
    return {name: value.to(device) for name, value in batch.items()}


def plain_pass(model: nn.Module, batches: list[Batch]) -> None:
    """Forward and backward over all batches: the unit of the table."""
    for batch in batches:
        model.zero_grad(set_to_none=True)
        output = forward(model, batch)
        classes = output.movedim(1, -1) if output.dim() == 4 else output
        F.cross_entropy(classes.flatten(0, -2), batch["labels"].flatten(), reduction="sum").backward()
    model.zero_grad(set_to_none=True)


def asked(model: nn.Module, batches: list[Batch], weights: Any, device: torch.device) -> Record:
    """Fit with Kronecker factors of one drawn label per output, and predict twice for some inputs."""
    import peewit as pw

    data = [as_data(batch) for batch in batches]
    x = as_data({name: value[:ASKED] for name, value in batches[0].items()})
    x = x[0] if isinstance(x, tuple) else x
    made: list[Any] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message=IGNORED)
        with PeakMemory(device) as memory:
            fit = partial(pw.fit, model, likelihood="classification", weights=weights, curvature=pw.MonteCarlo(1))
            fit([as_data({name: value[:2] for name, value in batches[0].items()})], structure="diag")  # warm up
            took = seconds(lambda: made.append(fit(data, structure="kron")), device)
        la = made[0]
        found = {
            "D": la.D,
            "fit_seconds": took,
            "decompose_seconds": took * la.timings["decompose"] / sum(la.timings.values()),
            "fit_bytes": memory.total or memory.extra,
            **counted(la),
        }
        with PeakMemory(device) as memory:
            first = attempt(lambda: seconds(lambda: made.append(la.predict(x)), device))
        if isinstance(first, Failure):
            return {**found, "prediction": first.as_dict()["failure"]}
        again = seconds(lambda: la.predict(x), device)
    finite = bool(torch.isfinite(made[1].probs).all())
    found |= {"predict_seconds": again, "first_predict_seconds": first, "predict_bytes": memory.total or memory.extra}
    return {**found, "finite": finite, "warnings": sorted({" ".join(str(each.message).split()) for each in said})}


def as_data(batch: Batch) -> Any:
    """Inputs and labels as a pair for timm, and as they are for transformers."""
    return (batch["x"], batch["labels"]) if "x" in batch else batch


def counted(la: Any) -> Record:
    """How many weights each rule and each approximation has, and the names of those without a rule."""
    rules: dict[str, int] = {}
    kept: dict[str, int] = {}
    for row in la.coverage():
        size = math.prod(row.shape)
        rules[row.rule] = rules.get(row.rule, 0) + size
        kept[row.approximation] = kept.get(row.approximation, 0) + size
    generic = [row.name for row in la.coverage() if "generic" in row.rule]
    return {"rules": rules, "approximations": kept, "generic": generic}


if __name__ == "__main__":
    run(parse(None))
