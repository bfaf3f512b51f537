"""One way on one case: its figures, and what it costs."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import Failure, attempt
from benchmarks.quality.answers import BATCH, Way, answer
from benchmarks.quality.baselines import Plain
from benchmarks.quality.cases import Case
from benchmarks.quality.scores import Answer, detection, figures, nlls, paired_error
from benchmarks.quality.training import losses
from benchmarks.revision import revision

Record = dict[str, Any]
LONGEST = 300  # letters of a warning that are kept
REPEATS, PATIENCE = 5, 1.0  # plain passes are the fastest of so many, or as many as so many seconds allow


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Seconds of plain passes, the unit of all costs."""

    forward: float  # over the test data
    both: float  # forward and backward, over the training data


def measure(way: Way, case: Case, passes: Passes) -> Record | None:
    """All figures of a way on a case; the reason where it fails; None where the case has no such networks."""
    outcome = attempt(lambda: measured(way, case, passes))
    network = fingerprint(case.networks.plain)
    about = {"network": network, "revision": revision()}
    if isinstance(outcome, Failure):
        return {**about, "failure": outcome.reason}
    return outcome and {**about, **outcome}


def measured(way: Way, case: Case, passes: Passes) -> Record | None:
    """The same, failures raised."""
    torch.manual_seed(case.split)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        began = now(case)
        prepared = way.fit(case)
        if prepared is None:
            return None
        fitted = now(case)
        known = answer(prepared.ask, case.parts.test[0])
        asked = now(case)
        strange = {name: answer(prepared.ask, inputs) for name, inputs in case.parts.unknown.items()}
        shifted = {name: (answer(prepared.ask, x), y) for name, (x, y) in case.parts.shifted.items()}
    record: Record = {
        "figures": figures(known, case.parts.test[1]),
        "unknown": {name: detections(known, found) for name, found in strange.items()},
        "shifted": {name: figures(found, targets) for name, (found, targets) in shifted.items()},
        "settings": dict(prepared.settings()),
        "cost": {
            "fit": (fitted - began + prepared.earlier) / passes.both,
            "predict": (asked - fitted) / passes.forward,
            "seconds": asked - began + prepared.earlier,
        },
    }
    if warned := worth_hearing(caught):
        record["warned"] = warned
    if not isinstance(way, Plain):
        record["error"] = error_against_plain(known, case)
    check_finite(record["figures"])
    return record


def error_against_plain(known: Answer, case: Case) -> float:
    """The standard error, over the test examples, of the NLL less the plain network's."""
    inputs, targets = case.parts.test
    return paired_error(nlls(known, targets), nlls(answer(Plain().fit(case).ask, inputs), targets))


def worth_hearing(caught: list[warnings.WarningMessage]) -> list[str]:
    """Class and text of the warnings that are meant for users."""
    meant = [each for each in caught if issubclass(each.category, UserWarning)]
    return list(dict.fromkeys(f"{each.category.__name__}: {each.message}"[:LONGEST] for each in meant))


def check_finite(values: dict[str, float]) -> None:
    """A figure that is not a number is a failure."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}")


def detections(known: Answer, strange: Answer) -> dict[str, float]:
    """Areas under the ROC curve by score."""
    return {score: detection(known.scores[score], values) for score, values in strange.scores.items()}


def fingerprint(model: nn.Module) -> str:
    """What tells networks apart: records are compared only if they are of the same network."""
    values = [value.detach().float().cpu().contiguous() for value in model.state_dict().values()]
    content = hashlib.sha256()
    for value in values:
        content.update(value.numpy().tobytes())
    return content.hexdigest()[:8]


def now(case: Case) -> float:
    """Seconds, once the device has done what it was given."""
    device = case.parts.train[0].device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def plain_passes(case: Case) -> Passes:
    """The unit of costs on this case."""
    forward, both = [], []
    stop = time.perf_counter() + PATIENCE
    while len(forward) < 2 or (len(forward) < REPEATS and time.perf_counter() < stop):  # the first one warms up
        begun = now(case)
        with torch.no_grad():
            for piece in case.parts.test[0].split(BATCH):
                case.networks.plain(piece)
        middle = now(case)
        for inputs, targets in zip(*(part.split(BATCH) for part in case.parts.train), strict=True):
            backward(case, inputs, targets)
        forward.append(middle - begun)
        both.append(now(case) - middle)
    return Passes(forward=min(forward), both=min(both))


def backward(case: Case, inputs: Tensor, targets: Tensor) -> None:
    """One batch there and back."""
    model = case.networks.plain
    loss = losses(model(inputs)[None], targets[None], case.likelihood).mean()
    torch.autograd.grad([loss], list(model.parameters()), allow_unused=True)
