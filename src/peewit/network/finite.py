"""NaN and Inf, and which example and batch they came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from ..messages.errors import NotFiniteError, PeewitError
from ..messages.names import first_names
from .nests import Inputs, count, tensors

ENERGY, OUTPUT, INPUT = 1, 2, 4  # what was not finite


def broken_rows(value: Any, test: Callable[[Tensor], Tensor] = torch.isfinite) -> Tensor:
    """(N,) booleans: examples for which `test` fails somewhere in the floating point tensors of a nest."""
    nest = tensors(value)
    broken = torch.zeros(len(nest[0]), dtype=torch.bool, device=nest[0].device)
    for tensor in nest:
        if tensor.is_floating_point() and tensor.numel():
            broken = broken | ~test(tensor).reshape(len(tensor), -1).all(1)
    return broken


class InExample(PeewitError):
    """An error about one example of a batch; `Watch.locate` knows where the batch is in the data."""

    def __init__(self, example: int, reason: str) -> None:
        super().__init__(f"For input number {example}: {reason}")
        self.example = example
        self.reason = reason


class NotFiniteExample(InExample, NotFiniteError):
    """NaN or Inf in one example of a batch."""


CLEAN = "clean it or leave it out"
LOOK = "look for a log, root or division in the network, or for numbers beyond its dtype"


def refuse_nan(output: Tensor, inputs: Inputs) -> None:
    """Refuse outputs that are NaN; infinite ones may be meant, as for classes that are ruled out."""
    broken = broken_rows(output.detach(), lambda tensor: ~torch.isnan(tensor))
    if bool(broken.any()):
        first = int(broken.nonzero()[0, 0])
        if bool(broken_rows(inputs)[first]):
            raise NotFiniteExample(first, f"the input holds NaN or Inf, and so does the network's output; {CLEAN}.")
        raise NotFiniteExample(first, f"the network's output is NaN, although the input is finite; {LOOK}.")


def refuse_empty(output: Tensor) -> None:
    """Refuse outputs (N, ...) without numbers."""
    if len(output) and not output.numel():
        shape = ", ".join(map(str, output.shape[1:]))
        raise PeewitError(f"The network has no outputs: its shape is (N, {shape}); expected one per example at least.")


def refuse_broken(values: Sequence[Tensor], inputs: Inputs) -> None:
    """Refuse outputs (N, ...), or then their variances, that are not finite for some inputs."""
    if bool(torch.stack([torch.isfinite(value).all() for value in values]).all()):
        return
    for value, what in zip(values, ("output", "variance"), strict=False):
        bad = broken_rows(value)
        if not bool(bad.any()):
            continue
        first = int(bad.nonzero()[0, 0])
        if bool(broken_rows(inputs)[first]):
            why = f"x holds NaN or Inf there: {CLEAN}."
        elif what == "output":
            why = f"x is finite there: {LOOK}, {value.dtype}."
        else:
            why = (
                "x and the output are finite there: use a larger prior precision, or a network in float64; a gradient "
                "that is NaN or Inf (a root or norm at zero) does the same."
            )
        raise NotFiniteError(
            f"The network's {what} is not finite for {int(bad.sum())} of {len(bad)} inputs, first for number {first}; "
            f"{why}"
        )


@dataclass
class Watch:
    """Which examples of a pass are not finite: noted without waiting for the device, and read at the end."""

    sizes: list[int] = field(default_factory=list)  # of batches, as they came
    codes: list[Tensor] = field(default_factory=list)

    def count_batches(self, batches: Iterable[tuple[Inputs, Tensor]]) -> Iterator[tuple[Inputs, Tensor]]:
        """Pass batches on, and note their sizes."""
        for inputs, targets in batches:
            self.sizes.append(count(inputs))
            yield inputs, targets

    def note(self, inputs: Inputs, output: Tensor, energy: Tensor) -> None:
        """Note which of some examples are not finite."""
        flags = ((energy, ENERGY), (output.detach(), OUTPUT), (inputs, INPUT))
        codes = [broken_rows(value).byte() * code for value, code in flags]
        self.codes.append(codes[0] | codes[1] | codes[2])

    def describe(self, example: int) -> str:
        """An example and its batch, in words."""
        ends = list(accumulate(self.sizes))
        number = next(number for number, end in enumerate(ends) if example < end)
        start = ends[number] - self.sizes[number]
        return f"example {example}, in batch {number} (examples {start} to {ends[number] - 1}, counted from 0)"

    def locate(self, error: InExample, before: int | None = None) -> PeewitError:
        """The error with its place in the data: in the batch that was read last, or after `before` examples."""
        before = sum(self.sizes[:-1]) if before is None else before
        kind = NotFiniteError if isinstance(error, NotFiniteError) else PeewitError
        return kind(f"At {self.describe(before + error.example)}: {error.reason}")

    def finish(self, dtype: torch.dtype, domain: str = "") -> str:
        """Raise where some example has no finite likelihood; else say whether inputs were not finite."""
        codes = torch.cat(self.codes).cpu()
        bad = (codes & ENERGY).nonzero()
        if not len(bad):
            fed = (codes & INPUT).nonzero()
            return f"The inputs hold NaN or Inf at {self.describe(int(fed[0, 0]))}." if len(fed) else ""
        first = int(bad[0, 0])
        if codes[first] & INPUT:
            why = "the inputs hold NaN or Inf. Clean such examples or leave them out."
        elif codes[first] & OUTPUT:
            why = (
                "the network's output holds NaN or Inf, although its inputs are finite. Look for a log, root or "
                "division in the network."
            )
        else:
            why = f"inputs and outputs are finite, but too large for {dtype}. Rescale the targets, or use float64."
            why = f"{domain}; or they are too large for {dtype}." if domain else why
        raise NotFiniteError(
            f"The likelihood is not finite for {len(bad)} of {len(codes)} examples, first at "
            f"{self.describe(first)}: {why}"
        )


class NotFiniteCurvature(NotFiniteError):
    """Curvature that is NaN or Inf, with the names of its layers."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"The curvature of {first_names([*map(repr, names)])} holds NaN or Inf: a gradient there is undefined "
            "or too large (a root or norm at zero, a division, half precision). Change that operation, convert the "
            "network by .float() or .double(), or leave the layer out by weights=."
        )


def refuse_broken_curvature(values: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse curvature with NaN or Inf by the names of its layers, waiting for the device once."""
    pairs = [(name, value) for name, value in values if value.numel()]
    if not pairs:
        return
    largest = torch.stack([torch.linalg.vector_norm(value.detach(), torch.inf).double() for _, value in pairs])
    good = torch.isfinite(largest).tolist()
    if not all(good):
        raise NotFiniteCurvature(
            list(dict.fromkeys(name for (name, _), fine in zip(pairs, good, strict=True) if not fine))
        )


class HasRemark(Protocol):
    """Has a remark on its data."""

    remark: str


@contextmanager
def add_remark(source: HasRemark) -> Iterator[None]:
    """Explain curvature that is not finite by inputs that were not."""
    try:
        yield
    except NotFiniteCurvature as error:
        if not source.remark:
            raise
        raise PeewitError(f"{error} {source.remark}") from None
