"""Whether a network still is the one that was fitted."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from .modules import parameters_and_buffers

CHUNK = 1 << 22  # numbers at a time: sums are in float64
WHOLE, SPREAD = 4096, 1024  # tensors of so many numbers are compared whole by every question, larger ones at so many


def _sums(tensors: list[Tensor]) -> Tensor:
    """(chunks, 2): sums of all values, and sums weighted by position, which change with signs and order too."""
    sums = []
    for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors if (tensor.dtype, tensor.device) == kind])
        for piece in flat.split(CHUNK):
            wide = piece.double()
            positions = torch.arange(1, len(wide) + 1, dtype=wide.dtype, device=wide.device)
            sums.append(torch.stack([wide.sum(), wide @ positions]).cpu())
    return torch.stack(sums)


def _norm(tensors: list[Tensor]) -> float:
    """One norm of everything, in a few calls: changes through `.data` leave no trace in versions."""
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
    with torch.no_grad():
        if len(kinds) != 1 or tensors[0].device.type not in ("cpu", "cuda"):
            return float(get_total_norm(tensors))
        return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors))))


def as_real(tensor: Tensor) -> Tensor:
    """Real and imaginary parts (..., 2) of a complex tensor."""
    return torch.view_as_real(tensor.detach().resolve_conj())


Versions = tuple[tuple[int, int, torch.dtype], ...]  # of every tensor: its place in memory, writes to it, and its dtype


def versions_of(tensors: list[Tensor]) -> Versions:
    """What changes where tensors are replaced, or written to other than through `.data`."""
    return tuple((tensor.data_ptr(), tensor._version, tensor.dtype) for tensor in tensors)


def spread_view(tensor: Tensor) -> Tensor:
    """Numbers of a tensor that lie evenly apart in memory, as a view (n,): later writes show in it."""
    flat = tensor.detach()
    number = flat.numel()
    if flat.layout != torch.strided:
        return flat
    order = sorted(range(flat.dim()), key=flat.stride, reverse=True)
    if not flat.permute(order).is_contiguous():  # with gaps between its numbers
        return flat
    step = 1 if number <= WHOLE else number // SPREAD | 1  # odd: an even step would meet few of a matrix's columns
    return flat.as_strided((-(-number // step),), (step,), flat.storage_offset())


@dataclass(frozen=True)
class NumberSample:
    """Some numbers of every weight and buffer, to compare at every question: writes through `.data` leave no trace."""

    views: list[list[Tensor]]  # by dtype and device
    values: list[Tensor]

    @staticmethod
    def of(tensors: list[Tensor]) -> NumberSample:
        """The numbers as they are now."""
        kinds: dict[Any, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(spread_view(tensor))
        views = [*kinds.values()]
        return NumberSample(views, [_numbers(some) for some in views])

    def is_same(self) -> bool:
        """Whether they still are the same numbers."""
        return all(torch.equal(_numbers(some), value) for some, value in zip(self.views, self.values, strict=True))


def _numbers(views: list[Tensor]) -> Tensor:
    """(n,): the numbers of some views, side by side."""
    return torch.cat([view if view.dim() == 1 else view.flatten() for view in views])


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What tells a changed network: dtypes, devices, a norm and versions; where versions differ, sums."""

    types: tuple[tuple[torch.dtype, torch.device], ...]
    norm: float
    versions: Versions
    sums: Tensor | None
    # Versions and a sample of the network when it was last seen to be this one: at most one pair.
    known: list[tuple[Versions, NumberSample]] = field(default_factory=list, repr=False, compare=False)

    @staticmethod
    def of(model: nn.Module, sums: bool = True) -> Identity:
        """The identity of a network as it is now."""
        tensors = parameters_and_buffers(model)
        numbers = [as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
        return Identity(
            types=tuple((tensor.dtype, tensor.device) for tensor in tensors),
            norm=_norm([tensor for tensor in numbers if tensor.is_floating_point()]),
            versions=versions_of(tensors),
            sums=_sums(numbers) if sums else None,
            known=[(versions_of(tensors), NumberSample.of(tensors))] if sums else [],
        )

    def is_close(self, model: nn.Module) -> bool:
        """Whether a network on any device has the same values, up to the rounding of sums."""
        current = Identity.of(model)
        if [dtype for dtype, _ in current.types] != [dtype for dtype, _ in self.types] or current.sums is None:
            return False
        if self.sums is None or current.sums.shape != self.sums.shape:
            return False
        # Devices add in another order: a chunk of n numbers x sums to within n eps |x|, the other sum n times that.
        size = min(CHUNK, sum(tensor.numel() for tensor in parameters_and_buffers(model)))
        bound = 1e-13 * size**0.5 * max(self.norm, 1.0) * torch.tensor([1.0, size], dtype=torch.float64, device="cpu")
        bound = bound + 1e-12 * self.sums.abs()  # whole numbers in buffers, which the norm leaves out
        return math.isclose(current.norm, self.norm, rel_tol=1e-3) and bool(
            ((current.sums - self.sums).abs() <= bound).all()
        )

    def is_same(self, model: nn.Module) -> bool:
        """Whether the network still has the same weights and buffers."""
        now = Identity.of(model, sums=False)
        if (now.types, now.norm) != (self.types, self.norm):
            return False
        if self._knows(now.versions):
            return self.known[0][1].is_same()
        again = Identity.of(model)
        if self.sums is None or again.sums is None or not torch.equal(again.sums, self.sums):
            return False
        self.known[:] = again.known
        return True

    def seems_same(self, model: nn.Module) -> bool:
        """The same from versions and a sample, where the network was looked at whole before: no pass over all weights.

        It sees new tensors, and writes by torch's functions. A write through `.data` it sees where it meets a sampled
        number: all numbers of small tensors, and some evenly apart of large ones.
        """
        if self._knows(versions_of(parameters_and_buffers(model))):
            return self.known[0][1].is_same()
        return self.is_same(model)

    def _knows(self, versions: Versions) -> bool:
        return bool(self.known) and self.known[0][0] == versions


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer once, by its first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def digest(tensor: Tensor) -> str:
    """A hash of a tensor's dtype, shape and bytes, the same on every device."""
    hashed = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    hashed.update(byte_view(tensor))
    return hashed.hexdigest()


def byte_view(tensor: Tensor) -> Any:
    """The bytes of a tensor's values, to hash or to write."""
    value = tensor.detach()
    value = (value if value.layout == torch.strided else value.to_dense()).resolve_conj().resolve_neg()
    return value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def fingerprint(model: nn.Module) -> dict[str, str]:
    """The digest of every parameter and buffer by its name."""
    return {name: digest(tensor) for name, tensor in named_tensors(model).items()}
