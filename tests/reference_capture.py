"""Records every place where a network applies one of its parameters as a matrix.

A call of a linear-like function is written as `output[t] = M a[t] + bias` for positions t, with M made of entries of a
parameter. The network runs on a batch of one, so that every position belongs to that one example.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Part:
    """A matrix applied at every position: flat places (O, I) of its entries, inputs (T, I) and its output rows."""

    index: Tensor
    inputs: Tensor
    rows: slice


@dataclass
class Call:
    """One call: its output, how a gradient of it becomes (T, O), the weight's parts and the bias's places (O,)."""

    output: Tensor
    by_position: Callable[[Tensor], Tensor]
    parts: list[Part]
    bias: Tensor | None
    carries: Tensor | None = None  # (T,) False where the weight gets no gradient (the padding index of embeddings)


def numbers(value: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return a setting of a convolution as one number for each of `count` spatial axes."""
    return (value,) * count if isinstance(value, int) else tuple(value) * (count if len(value) == 1 else 1)


def patches(x: Tensor, kernel: tuple[int, ...], stride: Any, padding: Any, dilation: Any) -> Tensor:
    """Return the patches (B, T.., I, kernel entries) of x (B, I, S..) that a convolution multiplies."""
    count = len(kernel)
    stride, dilation = numbers(stride, count), numbers(dilation, count)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
    else:
        sides = [(p, p) for p in numbers(0 if padding == "valid" else padding, count)]
    # functional.pad wants the last axis first
    x = functional.pad(x, [side for pair in reversed(sides) for side in pair])
    spans = zip(x.shape[2:], kernel, stride, dilation, strict=True)
    lengths = [(length - d * (k - 1) - 1) // s + 1 for length, k, s, d in spans]
    entries = []
    for place in product(*[range(k) for k in kernel]):
        window = [
            slice(k * d, k * d + (length - 1) * s + 1, s)
            for k, d, s, length in zip(place, dilation, stride, lengths, strict=True)
        ]
        entries.append(x[(slice(None), slice(None), *window)])
    return torch.stack(entries, -1).movedim(1, -2)


def landings(x: Tensor, kernel: tuple[int, ...], lengths: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """Return (B, T.., I, kernel entries), what a transposed convolution multiplies to make each of its T outputs."""
    count = len(kernel)
    stride, padding, dilation = numbers(stride, count), numbers(padding, count), numbers(dilation, count)
    entries = []
    for place in product(*[range(k) for k in kernel]):
        full = [length + 2 * p + s for length, p, s in zip(lengths, padding, stride, strict=True)]
        canvas = x.new_zeros(*x.shape[:2], *full)
        window = [
            slice(k * d, k * d + (length - 1) * s + 1, s)
            for k, d, s, length in zip(place, dilation, stride, x.shape[2:], strict=True)
        ]
        canvas[(slice(None), slice(None), *window)] = x
        crop = [slice(p, p + length) for p, length in zip(padding, lengths, strict=True)]
        entries.append(canvas[(slice(None), slice(None), *crop)])
    return torch.stack(entries, -1).movedim(1, -2)


class Recorder:
    """Collects the calls that involve the named parameters of a model while its patches are in place."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        """Give every weight of the named parameters its place in the flat order (D,)."""
        table = dict(model.named_parameters())
        self.calls: list[Call] = []
        self.places: dict[int, tuple[Tensor, Tensor]] = {}
        start = 0
        for name in names:
            parameter = table[name]
            index = torch.arange(start, start + parameter.numel()).reshape(parameter.shape)
            # the same memory layout as the parameter, so that any view of it can be repeated on its places
            index = torch.empty_strided(parameter.shape, parameter.stride(), dtype=torch.long).copy_(index)
            self.places[id(parameter)] = (parameter, index)
            start += parameter.numel()

    def locate(self, tensor: Tensor | None) -> Tensor | None:
        """Return the flat places of a tensor that is a named parameter or a view of whole rows of one, else None."""
        if tensor is None:
            return None
        base = tensor if id(tensor) in self.places else tensor._base
        if id(base) not in self.places:
            return None
        parameter, index = self.places[id(base)]
        offset = tensor.storage_offset() - parameter.storage_offset()
        index = torch.as_strided(index, tensor.shape, tensor.stride(), offset).clone()
        # whole rows of a matrix are a run of places without gaps or repeats
        entries = index.reshape(-1).sort().values
        return index if torch.equal(entries, torch.arange(entries[0], entries[0] + len(entries))) else None

    def record(self, call: Call) -> Tensor:
        """Keep a call and return its output (*), copied so that later in-place changes leave the original alone."""
        if not call.parts and call.bias is None:
            return call.output
        self.calls.append(call)
        return call.output.clone()

    def linear(self, original: Callable, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Record `input @ weight.T + bias` with weight (O, I)."""
        index, output = self.locate(weight), original(input, weight, bias)
        inputs = input.detach().clone().reshape(-1, input.shape[-1])
        parts = [] if index is None else [Part(index, inputs, slice(None))]
        return self.record(Call(output, lambda g: g.reshape(-1, weight.shape[0]), parts, self.locate(bias)))

    def matmul(self, original: Callable, input: Tensor, other: Tensor) -> Tensor:
        """Record `input @ other` with other (I, O)."""
        output = original(input, other)
        index = self.locate(other) if isinstance(other, Tensor) and other.dim() == 2 else None
        if index is None:
            return output
        part = Part(index.T.contiguous(), input.detach().clone().reshape(-1, input.shape[-1]), slice(None))
        return self.record(Call(output, lambda g: g.reshape(-1, other.shape[1]), [part], None))

    def bilinear(
        self, original: Callable, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Record a bilinear form with weight (O, I1, I2), whose input is the outer product of its two inputs."""
        index, output = self.locate(weight), original(input1, input2, weight, bias)
        inputs = (input1.detach()[..., :, None] * input2.detach()[..., None, :]).reshape(-1, weight[0].numel())
        parts = [] if index is None else [Part(index.flatten(1), inputs, slice(None))]
        return self.record(Call(output, lambda g: g.reshape(-1, weight.shape[0]), parts, self.locate(bias)))

    def embedding(
        self, original: Callable, input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kw: Any
    ) -> Tensor:
        """Record a lookup of rows of weight (V, E), whose input at a position is the one-hot vector of its token."""
        index, output = self.locate(weight), original(input, weight, padding_idx, *args, **kw)
        tokens = input.reshape(-1)
        carries = None if padding_idx is None else tokens != padding_idx % len(weight)
        inputs = functional.one_hot(tokens, len(weight)).double()
        parts = [] if index is None else [Part(index.T.contiguous(), inputs, slice(None))]
        return self.record(Call(output, lambda g: g.reshape(-1, weight.shape[1]), parts, None, carries))

    def convolution(
        self,
        original: Callable,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        """Record a convolution with weight (O, I / groups, kernel..), one part for each group."""
        output = original(input, weight, bias, stride, padding, dilation, groups)
        kernel = tuple(weight.shape[2:])
        batched = input.detach() if input.dim() == weight.dim() else input.detach()[None]
        taken = patches(batched, kernel, stride, padding, dilation)
        return self.spatial(output, taken, self.locate(weight), self.locate(bias), groups, weight.dim(), False)

    def transposed_convolution(
        self,
        original: Callable,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        """Record a transposed convolution with weight (I, O / groups, kernel..), one part for each group."""
        output = original(input, weight, bias, stride, padding, output_padding, groups, dilation)
        kernel = tuple(weight.shape[2:])
        batched = input.detach() if input.dim() == weight.dim() else input.detach()[None]
        taken = landings(batched, kernel, output.shape[-len(kernel) :], stride, padding, dilation)
        return self.spatial(output, taken, self.locate(weight), self.locate(bias), groups, weight.dim(), True)

    def spatial(
        self,
        output: Tensor,
        taken: Tensor,
        index: Tensor | None,
        bias: Tensor | None,
        groups: int,
        dimensions: int,
        transposed: bool,
    ) -> Tensor:
        """Record a convolution's output (B, O, T..) made from what it took (B, T.., I, kernel entries)."""
        channels = output.shape[1 - dimensions]
        parts = []
        if index is not None:
            for j, (places, inputs) in enumerate(zip(index.chunk(groups), taken.chunk(groups, dim=-2), strict=True)):
                if transposed:
                    places = places.transpose(0, 1)
                width = channels // groups
                inputs = inputs.reshape(-1, inputs.shape[-2] * inputs.shape[-1])
                parts.append(Part(places.flatten(1), inputs, slice(j * width, (j + 1) * width)))
        return self.record(Call(output, lambda g: g.movedim(1 - dimensions, -1).reshape(-1, channels), parts, bias))

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """Put the recording functions in the place of torch's own, and put torch's own back at the end."""
        handlers = {"linear": self.linear, "bilinear": self.bilinear, "embedding": self.embedding}
        for count in (1, 2, 3):
            handlers[f"conv{count}d"] = self.convolution
            handlers[f"conv_transpose{count}d"] = self.transposed_convolution
        originals = {name: getattr(functional, name) for name in handlers}
        product_of = torch.matmul
        matmul = bound(self.matmul, product_of)
        try:
            for name, handler in handlers.items():
                setattr(functional, name, bound(handler, originals[name]))
            torch.matmul = matmul
            torch.Tensor.__matmul__ = matmul
            torch.Tensor.matmul = matmul
            yield self.calls
        finally:
            for name, original in originals.items():
                setattr(functional, name, original)
            torch.matmul = product_of
            # the originals are inherited by torch.Tensor, so they return when ours are gone
            del torch.Tensor.__matmul__, torch.Tensor.matmul


def bound(handler: Callable, original: Callable) -> Callable:
    """Return a plain function that calls a recording handler with the function it replaces."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return handler(original, *args, **kwargs)

    return function
