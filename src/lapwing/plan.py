"""What was learnt about a network, so that later passes need not ask again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .batches import Inputs, tensors
from .layers.base import BatchAxis

Signature = tuple[tuple[str, str, tuple[int, ...]], ...]  # names, dtypes and shapes of one example's tensors


@dataclass
class Plan:
    """What was learnt about a network: where examples are in each use, and which weights need the generic rule."""

    axes: dict[str, BatchAxis | None] = field(default_factory=dict)  # None: no examples in that output
    rows: dict[tuple[str, Signature], float] = field(
        default_factory=dict
    )  # rows per example along that axis, by the inputs' shapes
    generic: set[str] = field(default_factory=set)
    copied: set[str] = field(default_factory=set)  # inputs that the network later changes in place
    used: dict[str, set[str]] = field(default_factory=dict)  # rules that each weight was seen with
    costs: dict[Signature, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    batched: bool = True  # whether many cotangents can be pulled back at once
    verified: bool = False  # whether generic rows were seen to add up to the batch's gradient
    vectorised: bool = True  # whether the generic rule can map over examples
    closed: dict[Signature, bool] = field(default_factory=dict)  # whether all selected weights are outermost
    push: dict[bool, int] = field(default_factory=dict)  # by which of `pushing.WAYS` several vectors go, or one

    def copy(self) -> Plan:
        """As it is now."""
        return replace(
            self,
            axes=self.axes.copy(),
            rows=self.rows.copy(),
            generic=self.generic.copy(),
            copied=self.copied.copy(),
            used={name: rules.copy() for name, rules in self.used.items()},
            costs=self.costs.copy(),
            closed=self.closed.copy(),
            push=self.push.copy(),
        )

    def restore(self, kept: Plan) -> None:
        """Forget what was learnt since."""
        for each in fields(self):
            setattr(self, each.name, getattr(kept, each.name))

    def knows(self, inputs: Inputs) -> bool:
        """Whether examples of these shapes were looked at."""
        return signature(inputs) in self.costs

    def cost(self, inputs: Inputs) -> int:
        """Bytes of one example's layer outputs; known once `Tracer.cost` was asked."""
        return self.costs[signature(inputs)][0]

    def shape(self, inputs: Inputs) -> tuple[int, ...]:
        """The shape of one example's output; known likewise."""
        return self.costs[signature(inputs)][1]

    def is_closed(self, inputs: Inputs) -> bool:
        """Whether all selected weights are in the layer whose output is the network's; known likewise."""
        return self.closed[signature(inputs)]


def signature(inputs: Inputs) -> Signature:
    """Keyword or position, dtype and shape of one example's tensors."""
    entries: Any = [("", inputs)]
    if isinstance(inputs, Mapping | list | tuple):
        entries = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    return tuple(
        (str(where), str(each.dtype), tuple(each.shape[1:])) for where, value in entries for each in tensors(value)
    )
