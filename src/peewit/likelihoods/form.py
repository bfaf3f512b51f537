"""Where the classes or outputs are in the output of a network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..messages.errors import PeewitError

ALL = slice(None)


@dataclass(frozen=True)
class Form:
    """Where the classes or outputs are in a network's output (N, ...)."""

    axis: int | None  # None: the network returns (N,), one output without an axis
    shape: tuple[int, ...]  # of one example's output
    whole: bool = False  # all numbers of an example are one position: nothing is known about what is in them

    def flatten(self, f: Tensor) -> Tensor:
        """(..., *shape) with any leading axes -> (..., T, C)."""
        lead = f.dim() - len(self.shape)
        if self.axis is None or self.whole:
            return f.reshape(*f.shape[:lead], 1, self.outputs)
        moved = f.movedim(lead + self.axis, -1)
        return moved.reshape(*moved.shape[:lead], -1, moved.shape[-1])

    def restore(self, flat: Tensor) -> Tensor:
        """(..., T, C) -> (..., *shape)."""
        lead = flat.shape[:-2]
        if self.axis is None or self.whole:
            return flat.reshape(*lead, *self.shape)
        positions = self.shape[: self.axis] + self.shape[self.axis + 1 :]
        return flat.reshape(*lead, *positions, flat.shape[-1]).movedim(-1, len(lead) + self.axis)

    @property
    def positions(self) -> int:
        """T."""
        return math.prod(self.shape) // self.outputs

    @property
    def outputs(self) -> int:
        """C."""
        if self.whole:
            return math.prod(self.shape)
        return 1 if self.axis is None else self.shape[self.axis]


def usual_axis(dims: int) -> int | None:
    """Where the outputs are in one example of a (N, ...) output: last of 2-D and 3-D, first from 4-D on."""
    if dims == 1:
        return None
    return dims - 2 if dims <= 3 else 0


def is_whole(y: Tensor) -> bool:
    """Whether targets have a dtype of whole numbers."""
    return not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)


def as_floating(y: Tensor) -> Tensor:
    """Whole numbers in floating point, which holds all up to 2**53; all else as it is."""
    return y.to(torch.float32 if y.device.type == "mps" else torch.float64) if is_whole(y) else y


def hold_one_each(f: Tensor, y: Tensor) -> bool:
    """Whether every example has one output and one target, as in (N, 1) and (N,): no doubt which belongs to which."""
    return bool(f.dim() and y.dim()) and len(f) == len(y) == f.numel() == y.numel()


def equal_form(f: Tensor, y: Tensor, what: str) -> Form:
    """The form of outputs whose targets have their shape, or are one for each example: nothing is broadcast."""
    if f.shape != y.shape and not hold_one_each(f, y):
        turned = y.dim() == 2 and y.mT.shape == f.shape
        todo = (
            "Give y.T."
            if turned
            else f"Give y.reshape{tuple(f.shape)}."
            if y.numel() == f.numel()
            else advice_for_one_target(f, y, what) or "The network needs one output for each target of an example."
        )
        raise PeewitError(
            f"{what}: outputs {tuple(f.shape)} and targets {tuple(y.shape)} differ; expected equal shapes "
            f"(nothing is broadcast). {todo}"
        )
    return Form(usual_axis(f.dim()), tuple(f.shape[1:]))


def advice_for_one_target(f: Tensor, y: Tensor, what: str) -> str:
    """What to type where several outputs meet one target for each example; "" elsewhere."""
    one_each = f.dim() == 2 and f.shape[1] > 1 and y.shape in ((len(f),), (len(f), 1))
    if not one_each or what not in ("regression", "binary"):
        return ""
    words = []
    if is_whole(y):
        words.append("Class numbers, with one output per class, go with pw.fit(model, (x, y), 'classification').")
    if what == "regression" and f.shape[1] == 2:
        words.append("A mean and a variance for each target go with pw.fit(model, (x, y), 'heteroscedastic').")
    shape = tuple(f.shape)
    words.append(f"{'Otherwise give' if words else 'Give'} y of shape {shape}, or end the network in Linear(..., 1).")
    return " ".join(words)
