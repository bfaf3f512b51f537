"""Whether a network is still the one that was fitted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

CHUNK = 1 << 22  # numbers at a time: the sums are made in float64


def _sums(tensors: list[Tensor]) -> Tensor:
    """(chunks, 2): sums of all values, and sums weighted by place: signs and order count too."""
    made = []
    for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
        flat = torch.cat([each.detach().flatten() for each in tensors if (each.dtype, each.device) == kind])
        for piece in flat.split(CHUNK):
            wide = piece.double()
            place = torch.arange(1, len(wide) + 1, dtype=wide.dtype, device=wide.device)
            made.append(torch.stack([wide.sum(), wide @ place]).cpu())
    return torch.stack(made)


@dataclass(frozen=True)
class Identity:
    """What is compared at every question (dtypes, devices, one norm, versions), and sums for where versions differ."""

    kinds: tuple[tuple[torch.dtype, torch.device], ...]
    norm: float
    versions: tuple[tuple[int, int], ...]
    sums: Tensor | None

    @staticmethod
    def of(model: nn.Module, sums: bool = True) -> Identity:
        """Of a network as it is now."""
        tensors = [*model.parameters(), *model.buffers()]
        # One norm of everything, in a few calls: changes through `.data` leave no trace in versions.
        norm = get_total_norm([tensor.detach() for tensor in tensors if tensor.is_floating_point()])
        return Identity(
            tuple((tensor.dtype, tensor.device) for tensor in tensors),
            float(norm),
            tuple((tensor.data_ptr(), tensor._version) for tensor in tensors),
            _sums(tensors) if sums else None,
        )

    def still(self, model: nn.Module) -> bool:
        """Whether weights and buffers have the values they had."""
        now = Identity.of(model, sums=False)
        if (now.kinds, now.norm) != (self.kinds, self.norm):
            return False
        if now.versions == self.versions:
            return True
        again = Identity.of(model).sums
        return self.sums is not None and again is not None and torch.equal(again, self.sums)
