"""Whether a network is still the one that was fitted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


@dataclass(frozen=True)
class Identity:
    """Kinds and norm of all weights and buffers: cheap enough to compare at every question."""

    kinds: tuple[tuple[torch.dtype, torch.device], ...]
    norm: float

    @staticmethod
    def of(model: nn.Module) -> Identity:
        """Of a network as it is now."""
        tensors = _tensors(model)
        # One norm of everything, in a few calls: changes through `.data` leave no other trace.
        norm = get_total_norm([tensor.detach() for tensor in tensors if tensor.is_floating_point()])
        return Identity(tuple((tensor.dtype, tensor.device) for tensor in tensors), float(norm))

    def still(self, model: nn.Module) -> bool:
        """Whether weights and buffers have the values they had."""
        return Identity.of(model) == self
