"""Numbers that are not finite, by the example and the batch that they came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from ..messages.errors import NotFiniteError, PeewitError
from .nests import Inputs, count, tensors

ENERGY, OUTPUT, INPUT = 1, 2, 4  # what was not finite


def broken_rows(value: Any, test: Callable[[Tensor], Tensor] = torch.isfinite) -> Tensor:
    """(N,) booleans: examples with a number that is not finite in any floating point tensor of a nest."""
    every = tensors(value)
    made = torch.zeros(len(every[0]), dtype=torch.bool, device=every[0].device)
    for tensor in every:
        if tensor.is_floating_point() and tensor.numel():
            made = made | ~test(tensor).reshape(len(tensor), -1).all(1)
    return made


class InExample(PeewitError):
    """Something wrong with one example of a batch, whose place in the data is known to others."""

    def __init__(self, example: int, reason: str) -> None:
        super().__init__(f"For input number {example}: {reason}")
        self.example = example
        self.reason = reason


class NotFiniteExample(InExample, NotFiniteError):
    """NaN or Inf in one example of a batch."""


CLEAN = "clean it or leave it out"
LOOK = "look for a log, root or division in the network, or for numbers beyond its dtype"


def refuse_nan(output: Tensor, inputs: Inputs) -> None:
    """Outputs that are NaN; infinite ones may be meant, as for classes that are ruled out."""
    broken = broken_rows(output.detach(), lambda tensor: ~torch.isnan(tensor))
    if bool(broken.any()):
        first = int(broken.nonzero()[0, 0])
        if bool(broken_rows(inputs)[first]):
            raise NotFiniteExample(first, f"the input holds NaN or Inf, and so does the network's output; {CLEAN}.")
        raise NotFiniteExample(first, f"the network's output is NaN, although the input is finite; {LOOK}.")


def refuse_empty(output: Tensor) -> None:
    """Outputs (N, ...) without numbers."""
    if len(output) and not output.numel():
        shape = ", ".join(map(str, output.shape[1:]))
        raise PeewitError(f"The network has no outputs: its shape is (N, {shape}); expected one per example at least.")


def refuse_broken(values: Sequence[Tensor], inputs: Inputs) -> None:
    """Outputs (N, ...), and then their variances, that are not finite for some inputs."""
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
    """Which examples of a pass are not finite, asked without waiting for the device and read in the end."""

    sizes: list[int] = field(default_factory=list)  # of batches, as they came
    codes: list[Tensor] = field(default_factory=list)

    def counted(self, batches: Iterable[tuple[Inputs, Tensor]]) -> Iterator[tuple[Inputs, Tensor]]:
        """Pass batches on, and keep their sizes."""
        for inputs, targets in batches:
            self.sizes.append(count(inputs))
            yield inputs, targets

    def note(self, inputs: Inputs, output: Tensor, energy: Tensor) -> None:
        """Look at some examples."""
        flags = ((energy, ENERGY), (output.detach(), OUTPUT), (inputs, INPUT))
        codes = [broken_rows(value).byte() * code for value, code in flags]
        self.codes.append(codes[0] | codes[1] | codes[2])

    def place(self, example: int) -> str:
        """In words: an example by its batch."""
        ends = list(accumulate(self.sizes))
        number = next(number for number, end in enumerate(ends) if example < end)
        start = ends[number] - self.sizes[number]
        return f"example {example}, in batch {number} (examples {start} to {ends[number] - 1}, counted from 0)"

    def located(self, error: InExample, before: int | None = None) -> PeewitError:
        """A failure by its place in the data: in the batch that was read last, or with some examples before."""
        before = sum(self.sizes[:-1]) if before is None else before
        kind = NotFiniteError if isinstance(error, NotFiniteError) else PeewitError
        return kind(f"At {self.place(before + error.example)}: {error.reason}")

    def finish(self, dtype: torch.dtype, domain: str = "") -> str:
        """Raise where some example has no finite likelihood; else say whether inputs were not finite."""
        codes = torch.cat(self.codes).cpu()
        bad = (codes & ENERGY).nonzero()
        if not len(bad):
            fed = (codes & INPUT).nonzero()
            return f"The inputs hold NaN or Inf at {self.place(int(fed[0, 0]))}." if len(fed) else ""
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
            f"The likelihood is not finite for {len(bad)} of {len(codes)} examples, first at {self.place(first)}: {why}"
        )


class NotFiniteCurvature(NotFiniteError):
    """Curvature that is NaN or Inf, with the layers that it belongs to."""

    def __init__(self, names: Sequence[str]) -> None:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        super().__init__(
            f"The curvature of {', '.join(map(repr, names[:3]))}{more} holds NaN or Inf: a gradient there is undefined "
            "or too large (a root or norm at zero, a division, half precision). Change that operation, convert the "
            "network by .float() or .double(), or leave the layer out by weights=."
        )


def finite_curvature(values: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse curvature with NaN or Inf by the names of its layers, in one question to the device."""
    pairs = [(name, value) for name, value in values if value.numel()]
    if not pairs:
        return
    largest = torch.stack([torch.linalg.vector_norm(value.detach(), torch.inf).double() for _, value in pairs])
    good = torch.isfinite(largest).tolist()
    if not all(good):
        raise NotFiniteCurvature(
            list(dict.fromkeys(name for (name, _), fine in zip(pairs, good, strict=True) if not fine))
        )


class Remarked(Protocol):
    """Something that has a remark on its data."""

    remark: str


@contextmanager
def remarks(source: Remarked) -> Iterator[None]:
    """Curvature that is not finite is explained by inputs that were not."""
    try:
        yield
    except NotFiniteCurvature as error:
        if not source.remark:
            raise
        raise PeewitError(f"{error} {source.remark}") from None
