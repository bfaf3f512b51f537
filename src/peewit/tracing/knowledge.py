"""What was learnt about a network, so that later passes need not ask again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from ..jacobians.explicit import Explicit
from ..jacobians.factored import Matrix
from ..network.calling import with_weights
from ..network.nests import Inputs, Pair, tensors
from ..weights.ranges import WeightRange
from .layers.contract import Lift, Use
from .layers.examples import BatchAxis

DEPENDENT = (
    "the network's output for one example depends on the other examples of its batch, as with batch statistics in "
    "evaluation mode; expected examples to be independent."
)
Signature = tuple[tuple[str, str, tuple[int, ...]], ...]  # names, dtypes and shapes of one example's tensors


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What was learnt about a network: where examples are in each use, and which weights need the generic rule."""

    axes: Mapping[tuple[str, Signature], BatchAxis | None] = field(default_factory=dict)  # None: it has no examples
    latest: Mapping[str, BatchAxis | None] = field(default_factory=dict)  # the same, for the last inputs of new shapes
    rows: Mapping[tuple[str, Signature], float] = field(default_factory=dict)  # per example along that axis
    forms: Mapping[str, Mapping[tuple[int, int], str]] = field(default_factory=dict)  # of Jacobians, by range
    generic: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()  # inputs that the network later changes in place
    used: Mapping[str, frozenset[str]] = field(default_factory=dict)  # rules that each weight was seen with
    costs: Mapping[Signature, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    looked: frozenset[Signature] = frozenset()  # of whole batches whose rows were seen to be where they should
    cuts: frozenset[int] = frozenset()  # ways in which batches were cut along their examples, and looked at
    second: bool = False  # whether the network differentiates its own gradients
    batched: bool = True  # whether many probes can be pulled back at once
    vectorised: bool = True  # whether the generic rule can map over examples
    verified: Mapping[Signature, str] = field(default_factory=dict)  # what was compared with plain derivatives
    corrections: tuple[str, ...] = ()  # what was not as the plain ones were, and goes otherwise now
    direct: Mapping[Signature, frozenset[str]] = field(default_factory=dict)  # weights that no saved reference leads to
    closed: Mapping[Signature, bool] = field(default_factory=dict)  # whether all selected weights are outermost
    push: Mapping[bool, int] = field(default_factory=dict)  # by which of `forward_mode.WAYS` several vectors go, or one

    @cached_property
    def questions(self) -> KnowledgeLearner:
        """What questions learn beyond this value, which stays as the fit left it and as files hold it.

        It saves time alone: posteriors that differ in prior or noise share it and ask nothing twice.
        """
        return KnowledgeLearner(self)

    def words(self) -> str:
        """What was verified, for the coverage table."""
        return "; ".join([next(iter(self.verified.values()), ""), *self.corrections])

    def is_located(self, key: str, shapes: Signature) -> bool:
        """Whether it is known where the examples are in a use, for inputs of these shapes."""
        return (key, shapes) in self.axes

    def axis(self, key: str, shapes: Signature) -> BatchAxis | None:
        """Where they are; layouts may depend on lengths."""
        return self.axes[key, shapes]

    def fits(self, use: Use | Lift, shapes: Signature, examples: int) -> bool:
        """Whether it is known where the examples are in a use or lift, and its shape agrees."""
        if not self.is_located(use.key, shapes):
            return False
        axis = self.axis(use.key, shapes)
        return axis is None or axis.fits(use.shape, examples)

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


@dataclass
class KnowledgeLearner:
    """What a pass or a question learns in: it begins with what is known, and puts a new value in its place."""

    knowledge: Knowledge = field(default_factory=Knowledge)

    def learn(self, **changes: Any) -> None:
        """Replace fields of what is known."""
        self.knowledge = replace(self.knowledge, **changes)

    def locate(self, places: Mapping[str, BatchAxis | None], shapes: Signature) -> None:
        """Note where the examples are in some uses, for inputs of these shapes."""
        known = self.knowledge
        axes = {(key, shapes): axis for key, axis in places.items()}
        self.learn(axes={**known.axes, **axes}, latest={**known.latest, **places})

    def expect_owned(self, use: Use, shapes: Signature) -> None:
        """Note that no axis holds the examples of a use: each batch tells whose each row is."""
        if use.axes:
            self.locate({use.key: BatchAxis(use.axes[0], "owned")}, shapes)
        else:
            self.make_generic(use.names)

    def make_generic(self, names: Iterable[str]) -> None:
        """Note that some weights need the generic rule."""
        self.learn(generic=self.knowledge.generic.union(names))

    def note_rules(self, rules: Mapping[str, set[str]]) -> None:
        """Note rules that weights were seen with."""
        used = self.knowledge.used
        more = {name: used.get(name, frozenset()) | rule_names for name, rule_names in rules.items()}
        if any(rule_names != used.get(name) for name, rule_names in more.items()):
            self.learn(used={**used, **more})

    def note_generic_rules(self, names: Iterable[str]) -> None:
        """Note that some weights took the generic rule for all of their uses."""
        self.learn(used={**self.knowledge.used, **dict.fromkeys(names, frozenset({"generic"}))})

    def note_forms(self, jacobians: Mapping[WeightRange, Matrix | Explicit]) -> list[str]:
        """Weights whose Jacobian has another form than in an earlier batch: they have no common block.

        They take the generic rule from now on.
        """
        forms = dict(self.knowledge.forms)
        changed = []
        for part, jacobian in jacobians.items():
            known, form = forms.get(part.name, {}), f"{type(jacobian).__name__} {jacobian.layout.matrix}"
            others = [bounds for bounds in known if bounds[0] < part.stop and part.start < bounds[1]]
            if all(bounds == part[1:] and known[bounds] == form for bounds in others):
                forms[part.name] = {**known, (part.start, part.stop): form}
            elif part.name not in changed:
                changed.append(part.name)
        for name in changed:
            del forms[name]
        if forms != self.knowledge.forms:
            self.learn(forms=forms)
        if changed:
            self.make_generic(changed)
        return changed

    def with_weights(self, model: nn.Module, weights: dict[str, Tensor], inputs: Inputs) -> Callable[..., Any]:
        """The network with other weights, for these inputs: the first pass looks for saved references to its own."""
        shapes = signature(inputs)
        direct = set(self.knowledge.direct.get(shapes, ()))
        network = with_weights(model, weights, direct)

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = network(*args, **kwargs)
            if not direct <= self.knowledge.direct.get(shapes, frozenset()):
                self.learn(direct={**self.knowledge.direct, shapes: frozenset(direct)})
            return output

        return forward


def signature(inputs: Inputs) -> Signature:
    """Keyword or position, dtype and shape of one example's tensors."""
    entries: Any = [("", inputs)]
    if isinstance(inputs, Pair):
        inputs = {f"{place} of a pair": each for place, each in inputs._asdict().items()}
    if isinstance(inputs, Mapping | list | tuple):
        entries = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    return tuple(
        (str(where), str(each.dtype), tuple(each.shape[1:])) for where, value in entries for each in tensors(value)
    )
