"""The recording of a forward pass: a torch function mode that sees the calls that apply weights, whoever makes them.

So tied weights, layers called twice, `F.linear` on another module's weight and the projections inside attention are all
the same thing, a use. What it cannot recognise still leaves a path from the output to the parameter in the autograd
graph; such parameters take the generic rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .layers import HANDLERS
from .layers.base import Lift, Ref, Rule, Use, batch_axes, output_edge
from .layers.elementwise import align
from .plan import Plan


class Recording(TorchFunctionMode):
    """Notes every recognised use of the selected weights during a forward pass."""

    def __init__(
        self,
        names: dict[int, str],
        plan: Plan,
        examples: int,
        watch: bool = False,
        second: bool = False,
        exact: bool = False,
        columns: bool = False,
        room: float = math.inf,
    ) -> None:
        super().__init__()
        self.watch = watch
        self._second = second
        self.exact = exact  # whether gradients are to be as exact as in float32
        self.room = room  # bytes of the budget
        self.columns = columns  # whether several gradients will be pulled back at once
        self.seen: dict[str, tuple[Tensor, ...]] = {}  # inputs of each use, or its output, where they are watched
        self.names = names
        self.plan = plan
        self.examples = examples
        self.uses: list[Use] = []
        self.stops: set[Any] = set()
        self.calls: Counter[tuple[str, ...]] = Counter()
        self.open: dict[int, Use] = {}  # outputs without examples, by identity; held so that it is not reused
        self.held: list[Tensor] = []

    @property
    def second(self) -> bool:
        """Whether gradients will be differentiated again: asked for, or inside the network's own `torch.func`."""
        return self._second or torch._C._functorch.peek_interpreter_stack() is not None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Hand recognised calls to their layer's handler."""
        handler = HANDLERS.get(func)
        # Without gradients nothing can be recorded: such a region is no function of the weights.
        if handler is None or not torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        return handler(self, func, args, kwargs or {})

    def resolve(self, tensor: Any) -> Ref | None:
        """The selected parameter that a tensor is, or is a view of."""
        if not isinstance(tensor, Tensor) or not tensor.requires_grad:
            return None
        for parameter in (tensor, tensor._base):
            name = self.names.get(id(parameter))
            if parameter is not None and name is not None and name not in self.plan.generic:
                return Ref.of(name, tensor, parameter)
        return None

    def alias(self, tensor: Tensor) -> Tensor:
        """The same values, behind a node at which the search for unrecorded uses stops."""
        made = tensor.view_as(tensor)
        self.stops.add(made.grad_fn)
        return made

    def _key(self, rule: Rule, refs: dict[str, Ref]) -> str:
        what = (rule.name, *(ref.name for ref in refs.values()))
        self.calls[what] += 1
        return "/".join((*what, str(self.calls[what])))

    def record(
        self,
        rule: Rule,
        output: Tensor,
        refs: dict[str, Ref],
        inputs: tuple[Tensor, ...],
        axes: tuple[int, ...],
        options: Any = None,
    ) -> Tensor:
        """Note a call and return its output."""
        key = self._key(rule, refs)
        if key in self.plan.copied:
            inputs = tuple(each.clone() for each in inputs)
        node = output.grad_fn
        use = Use(
            key=key,
            rule=rule,
            refs=refs,
            inputs=inputs,
            options=options,
            edge=output_edge(output),
            shape=tuple(output.shape),
            axes=axes,
            node=node,
            versions=tuple(each._version for each in inputs),
        )
        self.uses.append(use)
        if self.watch:
            self.seen[key] = tuple(each.detach().clone() for each in inputs or (output,))
        if self._without_examples(key, use.shape, axes):
            self.open[id(output)] = use
            self.held.append(output)
        return output

    def _without_examples(self, key: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
        if self.examples == 1:
            return False
        if key in self.plan.axes:
            return self.plan.axes[key] is None
        return not batch_axes(shape, axes, self.examples)

    def pending(self, tensor: Any) -> Use | None:
        """The earlier use whose output this tensor is, if that output has no examples of its own."""
        if not self.open or not isinstance(tensor, Tensor):
            return None
        use = self.open.get(id(tensor))
        if use is None and tensor._base is not None and tensor.numel() == tensor._base.numel():
            use = self.open.get(id(tensor._base))
        return use

    def lift(self, use: Use, tensor: Tensor, output: Tensor) -> Tensor:
        """Note that an output without examples was broadcast into one that has them."""
        key = f"{use.key}/lift{len(use.lifts) + 1}"
        aligned = align(tuple(tensor.shape), output.dim())
        axes = tuple(axis for axis, size in enumerate(aligned) if size == 1)
        use.lifts.append(Lift(key, output_edge(output), tuple(output.shape), axes))
        if self.watch:
            self.seen[key] = (output.detach().clone(),)
        return output
