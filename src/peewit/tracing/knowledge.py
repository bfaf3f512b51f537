"""What was learnt about a network, so that later passes need not ask again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from ..jacobians.explicit import Explicit
from ..jacobians.factored import Matrix
from ..network.calling import with_weights
from ..network.nests import Inputs, tensors
from ..weights.ranges import WeightRange
from .layers.examples import BatchAxis

DEPENDENT = (
    "the network's output for one example depends on the other examples of its batch, as with batch statistics in "
    "evaluation mode; expected examples to be independent."
)
Signature = tuple[tuple[str, str, tuple[int, ...]], ...]  # names, dtypes and shapes of one example's tensors


@dataclass
class Plan:
    """What was learnt about a network: where examples are in each use, and which weights need the generic rule."""

    axes: dict[tuple[str, Signature], BatchAxis | None] = field(default_factory=dict)  # None: it has no examples
    latest: dict[str, BatchAxis | None] = field(default_factory=dict)  # the same, for the last inputs of new shapes
    rows: dict[tuple[str, Signature], float] = field(
        default_factory=dict
    )  # rows per example along that axis, by the inputs' shapes
    forms: dict[str, dict[tuple[int, int], str]] = field(default_factory=dict)  # of Jacobians, by range of a weight
    generic: set[str] = field(default_factory=set)
    copied: set[str] = field(default_factory=set)  # inputs that the network later changes in place
    used: dict[str, set[str]] = field(default_factory=dict)  # rules that each weight was seen with
    costs: dict[Signature, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    looked: set[Signature] = field(default_factory=set)  # of whole batches whose rows were seen to be where they should
    second: bool = False  # whether the network differentiates its own gradients
    batched: bool = True  # whether many probes can be pulled back at once
    vectorised: bool = True  # whether the generic rule can map over examples
    verified: dict[Signature, str] = field(default_factory=dict)  # what was compared with plain derivatives, in words
    corrections: tuple[str, ...] = ()  # what was not as the plain ones were, and goes otherwise now
    direct: dict[Signature, set[str]] = field(default_factory=dict)  # weights that no saved reference leads to
    closed: dict[Signature, bool] = field(default_factory=dict)  # whether all selected weights are outermost
    push: dict[bool, int] = field(default_factory=dict)  # by which of `forward_mode.WAYS` several vectors go, or one

    def __post_init__(self) -> None:
        """Ways in which batches were cut along their examples, and looked at; no file holds them."""
        self.cuts: set[int] = set()

    @cached_property
    def later(self) -> Plan:
        """A copy for questions, which add what they learn: the plan of a posterior stays as the fit left it."""
        return self.copy()

    def copy(self) -> Plan:
        """As it is now."""
        made = Plan(**{each.name: copied(getattr(self, each.name)) for each in fields(self)})
        made.cuts = self.cuts.copy()
        return made

    def restore(self, kept: Plan) -> None:
        """Forget what was learnt since."""
        for each in fields(self):
            setattr(self, each.name, getattr(kept, each.name))
        self.cuts = kept.cuts

    def reformed(self, found: Mapping[WeightRange, Matrix | Explicit]) -> list[str]:
        """Weights whose Jacobian has another form than in an earlier batch: they have no common block.

        They take the generic rule from now on.
        """
        changed = []
        for part, jacobian in found.items():
            own, form = self.forms.setdefault(part.name, {}), f"{type(jacobian).__name__} {jacobian.layout.matrix}"
            others = [place for place in own if place[0] < part.stop and part.start < place[1]]
            if all(place == part[1:] and own[place] == form for place in others):
                own[part.start, part.stop] = form
            elif part.name not in changed:
                changed.append(part.name)
        for name in changed:
            del self.forms[name]
        self.generic.update(changed)
        return changed

    def words(self) -> str:
        """What was verified, for the coverage table."""
        return "; ".join([next(iter(self.verified.values()), ""), *self.corrections])

    def with_weights(self, model: nn.Module, weights: dict[str, Tensor], inputs: Inputs) -> Callable[..., Any]:
        """The network with other weights, for these inputs: the first pass looks for saved references to its own."""
        return with_weights(model, weights, self.direct.setdefault(signature(inputs), set()))

    def located(self, key: str, shapes: Signature) -> bool:
        """Whether it is known where the examples are in a use, for inputs of these shapes."""
        return (key, shapes) in self.axes

    def axis(self, key: str, shapes: Signature) -> BatchAxis | None:
        """Where they are; layouts may depend on lengths."""
        return self.axes[key, shapes]

    def locate(self, key: str, shapes: Signature, place: BatchAxis | None) -> None:
        """Note where the examples are in a use, for inputs of these shapes."""
        self.axes[key, shapes] = self.latest[key] = place

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


def copied(value: Any) -> Any:
    """Dictionaries and sets anew, however deep: predictions copy a plan, and `copy.deepcopy` takes milliseconds."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return value.copy() if isinstance(value, set) else value
