"""Whether a network is still the one that was fitted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _versions(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Where each tensor is stored and how often it was changed in place."""
    return tuple((tensor.data_ptr(), tensor._version) for tensor in _tensors(model))


def _kinds(model: nn.Module) -> tuple[tuple[torch.dtype, torch.device], ...]:
    return tuple((tensor.dtype, tensor.device) for tensor in _tensors(model))


def _sums(model: nn.Module) -> Tensor:
    """(tensors, 2): sum and sum of squares of each, in float64."""
    wide = [tensor.detach().double() for tensor in _tensors(model)]
    return torch.stack([torch.stack([each.sum(), each.square().sum()]) for each in wide]).cpu()


def _norm(model: nn.Module) -> float:
    """The norm of everything at once: changes through `.data` leave no trace in versions."""
    return float(get_total_norm([tensor.detach() for tensor in _tensors(model) if tensor.is_floating_point()]))


@dataclass(frozen=True)
class Identity:
    """Versions and a norm, which are cheap to compare, and sums, which are compared where the versions differ."""

    versions: tuple[tuple[int, int], ...]
    norm: float
    kinds: tuple[tuple[torch.dtype, torch.device], ...]
    sums: Tensor

    @staticmethod
    def of(model: nn.Module) -> Identity:
        """Of a network as it is now."""
        return Identity(_versions(model), _norm(model), _kinds(model), _sums(model))

    def still(self, model: nn.Module) -> bool:
        """Whether weights and buffers have the values they had."""
        if _versions(model) == self.versions and _norm(model) == self.norm:
            return True
        if _kinds(model) != self.kinds:
            return False
        now = _sums(model)
        return now.shape == self.sums.shape and torch.equal(now, self.sums)
