"""Dense curvature: one matrix over all weights, or one per module with its bias."""

from __future__ import annotations

from dataclasses import dataclass

from ...messages.names import spelled_class
from ...weights.ranges import WeightRange
from ...weights.space import Space
from ..contracts import Structure
from ..stream import Source
from .dense_curvature import DenseCurvature
from .dense_sums import DenseSums, Group, measure_groups


@spelled_class
@dataclass(frozen=True)
class Block(Structure):
    """One dense matrix per module, over its weight and bias together.

    A module with P weights takes P x P numbers. `structure="block"` means `Block()`. It takes neither masks nor a
    `Subnetwork`, and has no arguments.

    Example:
        >>> pw.fit(model, (x, y), "classification", structure=pw.Block()).coverage()["0.weight"].approximation
        'dense block of its module'
    """

    def groups(self, space: Space) -> list[Group]:
        """Weights by the module that owns them."""
        parts_by_module: dict[str, list[WeightRange]] = {}
        for part in space.parts():
            parts_by_module.setdefault(part.name.rpartition(".")[0], []).append(part)
        return [tuple(parts) for parts in parts_by_module.values()]

    def measure(self, source: Source) -> DenseSums:
        # (P, P) per module.
        return measure_groups(source, self.groups(source.task.space))

    def more(self, source: Source, earlier: DenseSums) -> DenseSums:
        return measure_groups(source, self.groups(source.task.space), None, earlier).after(earlier)

    def check(self, sums: DenseSums, space: Space) -> None:
        sums.check(self.groups(space), space)

    def curvature(self, sums: DenseSums, space: Space) -> DenseCurvature:
        # The sums are the matrices.
        return DenseCurvature(sums.of_used(space), space, "dense block of its module")


@spelled_class
@dataclass(frozen=True)
class Full(Structure):
    """One dense matrix over all D weights.

    It takes D x D numbers. `structure="full"` means `Full()`. It takes masks and a `Subnetwork`, and has no arguments.

    Example:
        >>> pw.fit(model, (x, y), "classification", structure=pw.Full()).coverage()["0.weight"].approximation
        'full matrix'
    """

    masks = True
    holds_hessian = True

    def measure(self, source: Source) -> DenseSums:
        return self._measure(source)

    def more(self, source: Source, earlier: DenseSums) -> DenseSums:
        return self._measure(source, earlier).after(earlier)

    def _measure(self, source: Source, earlier: DenseSums | None = None) -> DenseSums:
        space = source.task.space
        return measure_groups(source, [tuple(space.parts())], space.mask, earlier)

    def check(self, sums: DenseSums, space: Space) -> None:
        sums.check([tuple(space.parts())], space)

    def curvature(self, sums: DenseSums, space: Space) -> DenseCurvature:
        # The sum is the matrix.
        return DenseCurvature(sums.of_used(space), space, "full matrix")
