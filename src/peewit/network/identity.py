"""Whether a network still is the one that was fitted."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

CHUNK = 1 << 22  # numbers at a time: sums are in float64


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


@dataclass(frozen=True)
class Identity:
    """What every call compares (dtypes, devices, one norm, versions), and sums to compare where versions differ."""

    types: tuple[tuple[torch.dtype, torch.device], ...]
    norm: float
    versions: tuple[tuple[int, int], ...]
    sums: Tensor | None

    @staticmethod
    def of(model: nn.Module, sums: bool = True) -> Identity:
        """The identity of a network as it is now."""
        tensors = [*model.parameters(), *model.buffers()]
        numbers = [as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
        return Identity(
            tuple((tensor.dtype, tensor.device) for tensor in tensors),
            _norm([tensor for tensor in numbers if tensor.is_floating_point()]),
            tuple((tensor.data_ptr(), tensor._version) for tensor in tensors),
            _sums(numbers) if sums else None,
        )

    def is_close(self, model: nn.Module) -> bool:
        """Whether a network on any device has the same values, up to the rounding of sums."""
        now = Identity.of(model)
        if [dtype for dtype, _ in now.types] != [dtype for dtype, _ in self.types] or now.sums is None:
            return False
        if self.sums is None or now.sums.shape != self.sums.shape:
            return False
        # Devices add in another order: a chunk of n numbers x sums to within n eps |x|, the other sum n times that.
        size = min(CHUNK, sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()]))
        bound = 1e-13 * size**0.5 * max(self.norm, 1.0) * torch.tensor([1.0, size], dtype=torch.float64, device="cpu")
        bound = bound + 1e-12 * self.sums.abs()  # whole numbers in buffers, which the norm leaves out
        return math.isclose(now.norm, self.norm, rel_tol=1e-3) and bool(((now.sums - self.sums).abs() <= bound).all())

    def is_same(self, model: nn.Module) -> bool:
        """Whether the network still has the same weights and buffers."""
        now = Identity.of(model, sums=False)
        if (now.types, now.norm) != (self.types, self.norm):
            return False
        if now.versions == self.versions:
            return True
        again = Identity.of(model).sums
        return self.sums is not None and again is not None and torch.equal(again, self.sums)


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
