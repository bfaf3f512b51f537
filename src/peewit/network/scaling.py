"""Networks of standardised columns with the scaling inside, so that they take and give the units of the table."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..messages.errors import PeewitError


@dataclass(frozen=True)
class Scaling:
    """Means and deviations of the columns of a training table: of its inputs, and of its targets or ()."""

    input_means: tuple[float, ...]
    input_deviations: tuple[float, ...]
    target_means: tuple[float, ...] = ()
    target_deviations: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for means, deviations in (
            (self.input_means, self.input_deviations),
            (self.target_means, self.target_deviations),
        ):
            finite = all(map(math.isfinite, (*means, *deviations)))
            if len(means) != len(deviations) or not finite or not all(each > 0 for each in deviations):
                raise PeewitError("a scaling needs as many means as deviations, finite, with deviations above zero")

    @staticmethod
    def of(x: Tensor, y: Tensor | None) -> Scaling:
        """By the columns of x (N, D) and of y (N,) or (N, C); a column of one value is only shifted."""
        return Scaling(*moments(x), *(((), ()) if y is None else moments(y)))

    @property
    def parts(self) -> tuple[str, ...]:
        """What is standardised."""
        return ("inputs", "targets") if self.target_means else ("inputs",)


def moments(columns: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means and deviations, with one for columns of one value."""
    table = columns.detach().double().reshape(len(columns), -1)
    constant = (table == table[:1]).all(0)
    means = torch.where(constant, table[0], table.mean(0))
    deviations = torch.where(constant, 1.0, (table - means).square().mean(0).sqrt())
    return tuple(means.tolist()), tuple(deviations.tolist())


class Standardised(nn.Module):
    """A network of standardised columns that takes raw inputs (N, D), and returns outputs in the targets' units."""

    input_means: Tensor
    input_deviations: Tensor
    target_means: Tensor
    target_deviations: Tensor

    def __init__(self, network: nn.Module, scaling: Scaling) -> None:
        super().__init__()
        self.network = network
        like = next((each for each in network.parameters() if each.is_floating_point()), torch.zeros(()))
        for name in ("input_means", "input_deviations", "target_means", "target_deviations"):
            self.register_buffer(name, torch.tensor(getattr(scaling, name), dtype=like.dtype, device=like.device))
        self.training = network.training

    def forward(self, x: Tensor) -> Tensor:
        """The network's outputs, scaled back where targets are standardised."""
        if x.dim() != 2 or x.shape[1] != len(self.input_means):
            raise PeewitError(
                f"inputs have shape {tuple(x.shape)}; expected (N, {len(self.input_means)}), as in the table that the "
                "network's scaling is from."
            )
        outputs: Tensor = self.network((x - self.input_means) / self.input_deviations)
        return self._in_units(outputs) if len(self.target_means) else outputs

    def _in_units(self, outputs: Tensor) -> Tensor:
        """Outputs (N, C), or (N,) for one target, in the units of the C targets."""
        count = len(self.target_means)
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else ()
        if len(shape) < 1 or not (shape[1:] == (count,) or (len(shape) == count == 1)):
            what = f"of shape {shape}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
            raise PeewitError(
                f"the network's outputs are {what}; expected (N, {count}), one for each of the {count} targets that "
                "its scaling is from."
            )
        return self.target_means + self.target_deviations * outputs


def unscale(model: nn.Module) -> nn.Module:
    """The network as it was made, without a scaling around it."""
    return model.network if isinstance(model, Standardised) else model


def network_name(model: nn.Module) -> str:
    """The class of a network, without a scaling around it."""
    return type(unscale(model)).__name__
