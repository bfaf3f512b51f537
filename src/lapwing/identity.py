"""Whether a network is still the one that was fitted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _kinds(model: nn.Module) -> tuple[tuple[torch.dtype, torch.device], ...]:
    return tuple((tensor.dtype, tensor.device) for tensor in _tensors(model))


def _norm(model: nn.Module) -> float:
    """The norm of everything at once, in a few calls: changes through `.data` leave no other trace."""
    return float(get_total_norm([tensor.detach() for tensor in _tensors(model) if tensor.is_floating_point()]))


@dataclass(frozen=True)
class Identity:
    """Kinds and norm of all weights and buffers: cheap enough to compare at every question."""

    kinds: tuple[tuple[torch.dtype, torch.device], ...]
    norm: float

    @staticmethod
    def of(model: nn.Module) -> Identity:
        """Of a network as it is now."""
        return Identity(_kinds(model), _norm(model))

    def still(self, model: nn.Module) -> bool:
        """Whether weights and buffers have the values they had."""
        return _kinds(model) == self.kinds and _norm(model) == self.norm
