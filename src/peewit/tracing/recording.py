"""The recording of a forward pass: a torch function mode that sees the calls that apply weights, whoever makes them.

So tied weights, layers called twice, `F.linear` on another module's weight and the projections inside attention are all
the same thing, a use. What it cannot recognise still leaves a path from the output to the parameter in the autograd
graph; such parameters take the generic rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from .knowledge import KnowledgeLearner, Signature
from .layers import HANDLERS
from .layers.contract import Lift, Rule, Tensors, Use, Views, copy_if_fragile, output_edge
from .layers.elementwise import broadcast_axes
from .layers.examples import batch_axes
from .layers.weight_views import Sizes, WeightView

Shown = dict[str, tuple[Tensor, ...]]  # what a watched pass shows of every use, by key: its inputs, or its output


def walk(roots: Iterable[Any], stop: Callable[[Any], bool]) -> Iterator[Any]:
    """Every node of the autograd graph that the roots lead to, each once; not beyond those at which to stop."""
    seen: set[Any] = set()
    stack = [node for node in roots if node is not None]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if not stop(node):
            stack.extend(each for each, _ in node.next_functions if each is not None)


class Again(BaseException):
    """A forward pass is to be recorded again, now that more is known; no network catches it."""


class Recording(TorchFunctionMode):
    """Notes every recognised use of the selected weights during a forward pass."""

    def __init__(
        self,
        names: dict[int, str],
        learner: KnowledgeLearner,
        examples: int,
        signature: Signature,
        *,
        watch: bool,
        probes: bool,
        second: bool = False,
        exact: bool = False,
        room: float = math.inf,
    ) -> None:
        super().__init__()
        self.watch = watch
        self.second = second or learner.knowledge.second  # whether gradients will be differentiated again
        self.exact = exact  # whether gradients are to be as exact as in float32
        self.room = room  # bytes of the budget
        self.probes = probes  # whether several gradients will be pulled back at once
        self.shown: Shown = {}  # where it is watched
        self.names = names
        self.learner = learner
        self.examples = examples
        self.signature = signature
        self.uses: list[Use] = []
        self.lifts: list[Lift] = []
        self.aliases: dict[Any, tuple[str, ...]] = {}  # by node: the weights behind it
        self.outputs: dict[Any, Use | None] = {}  # by node: the use that it is the output of; None: a lift's
        self.calls: Counter[tuple[str, ...]] = Counter()
        self.open = False  # whether some output has no examples
        self.fresh: list[str] = []  # keys of what was broadcast for the operation at hand

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Hand recognised calls to their layer's handler."""
        handler = HANDLERS.get(func)
        # Without gradients nothing can be recorded: such a region is not a function of the weights. Inside transforms
        # of the network itself, tensors are not in the graph; the generic rule handles what happens there.
        if handler is None or not torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
            if func is torch.autograd.grad and torch.is_grad_enabled():
                self._begin_again()
            return func(*args, **(kwargs or {}))
        return handler(self, func, args, kwargs or {})

    def _begin_again(self) -> None:
        """Begin again where the network differentiates its own gradients: ours are to have derivatives then."""
        if not self.second:
            self.learner.learn(second=True)
            raise Again

    def refuse_mapping(self) -> None:
        """Note that `torch.vmap` is wrong for what the network calls here: the generic rule does without."""
        self.learner.learn(vectorised=False)

    def resolve(self, tensor: Any) -> WeightView | None:
        """The selected parameter that a tensor is, or is a view of."""
        if not isinstance(tensor, Tensor) or not tensor.requires_grad:
            return None
        for parameter in (tensor, tensor._base):
            name = self.names.get(id(parameter))
            if parameter is not None and name is not None and name not in self.learner.knowledge.generic:
                return WeightView.of(name, tensor, parameter)
        return None

    def alias(self, tensor: Tensor) -> Tensor:
        """The same values, behind a node at which the search for unrecorded uses stops."""
        view = self.resolve(tensor)
        return self._alias(tensor, () if view is None else (view.name,))

    def _alias(self, tensor: Tensor, names: tuple[str, ...]) -> Tensor:
        alias = tensor.view_as(tensor)
        self.aliases[alias.grad_fn] = names
        return alias

    def _number(self, *what: str) -> str:
        self.calls[what] += 1
        return "/".join((*what, str(self.calls[what])))

    def record(
        self, rule: Rule, output: Tensor, views: Views, inputs: Tensors, axes: Sizes, options: Any = None
    ) -> Tensor:
        """Note a call and return its output."""
        key = self._number(rule.name, *(view.name for view in views.values()))
        if key in self.learner.knowledge.copied:
            inputs = tuple(each.clone() for each in inputs)
        output = copy_if_fragile(output)
        use = Use(
            key=key,
            rule=rule,
            views=views,
            inputs=inputs,
            options=options,
            edge=output_edge(output),
            shape=tuple(output.shape),
            axes=axes,
            dtype=output.dtype,
            below=tuple(each.grad_fn for each in inputs if each.grad_fn is not None),
            versions=tuple(each._version for each in inputs),
            lifted=self._without_examples(key, tuple(output.shape), axes),
        )
        self.uses.append(use)
        self.outputs[use.edge.node] = use
        self.open |= use.lifted
        if self.watch:
            self.shown[key] = tuple(each.detach().clone() for each in inputs or (output,))
        return output

    def _without_examples(self, key: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
        if self.examples == 1:
            return False
        known = self.learner.knowledge
        if known.is_located(key, self.signature):
            return known.axis(key, self.signature) is None
        return not batch_axes(shape, axes, self.examples)

    def lift(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        """A tensor without examples, broadcast to a shape and noted; None where it is not such a tensor.

        It may be the output of a use, or be computed from such outputs.
        """
        if not self.open or tensor.grad_fn is None or tensor.is_complex():
            return None
        axes = broadcast_axes(tuple(tensor.shape), shape)
        uses = self._uses_below(tensor) if batch_axes(shape, axes, self.examples) else ()
        if not uses:
            return None
        lifted = self._alias(tensor, tuple({name for use in uses for name in use.names})).expand(shape)
        key = self._number("lift", *(use.key for use in uses))
        lift = Lift(
            key=key,
            source=get_gradient_edge(tensor),
            small=tuple(tensor.shape),
            dtype=tensor.dtype,
            edge=get_gradient_edge(lifted),
            shape=tuple(shape),
            axes=axes,
            uses=uses,
        )
        self.lifts.append(lift)
        self.outputs[lift.edge.node] = None
        self.fresh.append(key)
        return lifted

    def broadcast(self, rule: Rule, view: WeightView, shape: tuple[int, ...]) -> Tensor:
        """A parameter broadcast to a shape, noted there."""
        axes = broadcast_axes(tuple(view.tensor.shape), tuple(shape))
        output = self.record(rule, self.alias(view.tensor).expand(shape), {"weight": view}, (), axes)
        self.fresh.append(self.uses[-1].key)
        return output

    def show_result(self, output: Tensor) -> None:
        """Keep the result of an operation whose operands were just broadcast, where the recording is watched."""
        if self.watch:
            self.shown.update({key: (output.detach().clone(),) for key in self.fresh})
        self.fresh.clear()

    def _uses_below(self, tensor: Tensor) -> tuple[Use, ...]:
        """The recorded uses that a tensor depends on, if none of them has examples."""
        uses = []
        for node in walk([tensor.grad_fn], lambda node: False):
            if node not in self.outputs:
                continue
            use = self.outputs[node]
            if use is None or not use.lifted:
                return ()
            uses.append(use)
        return tuple(uses)
