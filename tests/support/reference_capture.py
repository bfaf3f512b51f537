"""Records every place where a network applies one of its parameters as a matrix.

A call of a linear-like function is written as `output[t] = M a[t] + bias` for positions t, with M made of entries of a
parameter. The network runs on a batch of one, so that every position belongs to that one example.
"""

from __future__ import annotations

import contextlib
import math
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


@dataclass(kw_only=True)
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
        return self.record(
            Call(
                output=output, by_position=lambda g: g.reshape(-1, weight.shape[0]), parts=parts, bias=self.locate(bias)
            )
        )

    def matmul(self, original: Callable, left: Tensor, right: Tensor) -> Tensor:
        """Record `left @ right`, with a matrix or a stack of them on either side."""
        output = original(left, right)
        if not isinstance(right, Tensor) or min(left.dim(), right.dim()) < 1:
            return output
        ends = ("ti", "io", "to") if right.dim() > 1 else ("ti", "i", "t")
        lead = "uvwxyz"[: output.dim() - len(ends[2])]
        letters, operands = [], []
        for operand, end in zip((left, right), ends, strict=False):
            own = lead[len(lead) - (operand.dim() - len(end)) :]
            # axes that the other operand stretches are left out
            stretched = [n for n, letter in enumerate(own) if operand.shape[n] < output.shape[lead.index(letter)]]
            letters.append("".join(letter for n, letter in enumerate(own) if n not in stretched) + end)
            operands.append(operand.squeeze(stretched))
        return self.contraction(output, f"{letters[0]},{letters[1]}->{lead}{ends[2]}", *operands)

    def addmm(self, original: Callable, input: Tensor, mat1: Tensor, mat2: Tensor, **scaling: float) -> Tensor:
        """Record `input + mat1 @ mat2` with mat2 (I, O) and a bias (O,)."""
        output = original(input, mat1, mat2, **scaling)
        row = input.dim() > 0 and input.numel() == input.shape[-1] == mat2.shape[1]
        return output if scaling else self.contraction(output, "ti,io->to", mat1, mat2, input if row else None)

    def baddbmm(self, original: Callable, input: Tensor, batch1: Tensor, batch2: Tensor, **scaling: float) -> Tensor:
        """Record `input + batch1 @ batch2` with batch2 (G, I, O) and a bias (G, 1, O)."""
        output = original(input, batch1, batch2, **scaling)
        row = input.shape == (len(batch2), 1, batch2.shape[2])
        return output if scaling else self.contraction(output, "gti,gio->gto", batch1, batch2, input if row else None)

    def einsum(self, original: Callable, equation: str, *operands: Any) -> Tensor:
        """Record a product of two operands by its equation."""
        operands = tuple(operands[0]) if isinstance(operands[0], (list, tuple)) else operands
        output = original(equation, *operands)
        if len(operands) != 2:
            return output
        given, arrow, result = equation.replace(" ", "").partition("->")
        if not arrow:
            once = [letter for letter in sorted(set(given) - set(",.")) if given.count(letter) == 1]
            result = ("..." if "..." in given else "") + "".join(once)
        counts = [o.dim() - len(word.replace("...", "")) for word, o in zip(given.split(","), operands, strict=True)]
        words = [word.replace("...", "UVWXYZ"[6 - n :]) for word, n in zip(given.split(","), counts, strict=True)]
        result = result.replace("...", "UVWXYZ"[6 - max(counts) :])
        return self.contraction(output, f"{words[0]},{words[1]}->{result}", *operands)

    def contraction(
        self, output: Tensor, equation: str, first: Tensor, second: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Record a product in the letters of einsum, with one part for each group that both operands and it have."""
        words, result = equation.split("->")
        pairs = list(zip(words.split(","), (first, second), strict=True))
        indices = [self.locate(operand) for _, operand in pairs]
        shift = None if bias is None else self.locate(bias)
        shift = None if shift is None else shift.flatten()
        if (indices[0] is None) == (indices[1] is None) and (shift is None or indices[0] is not None):
            return output
        number = 1 if indices[0] is None else 0
        (theirs, weight), (own, input), index = pairs[number], pairs[1 - number], indices[number]
        alone = (set(own) ^ set(theirs)) - set(result)  # summed over in one operand alone
        if alone or any(len(set(word)) < len(word) for word in (own, theirs)):
            return output
        group = [letter for letter in theirs if letter in own and letter in result]
        rows = [letter for letter in theirs if letter not in own]
        inside = [letter for letter in theirs if letter not in result]
        places = [letter for letter in result if letter not in theirs]
        sizes = {**dict(zip(own, input.shape, strict=True)), **dict(zip(theirs, weight.shape, strict=True))}
        count, tall, wide = (math.prod(sizes[letter] for letter in letters) for letters in (group, rows, inside))
        order = [result.index(letter) for letter in (*places, *group, *rows)]
        parts = []
        if index is not None:
            seen = index.permute([theirs.index(letter) for letter in (*group, *rows, *inside)])
            taken = input.detach().clone().permute([own.index(letter) for letter in (*group, *places, *inside)])
            seen, taken = seen.reshape(count, tall, wide), taken.reshape(count, -1, wide)
            parts = [Part(seen[n], taken[n], slice(n * tall, (n + 1) * tall)) for n in range(count)]
        return self.record(
            Call(
                output=output, by_position=lambda g: g.permute(order).reshape(-1, count * tall), parts=parts, bias=shift
            )
        )

    def bilinear(
        self, original: Callable, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Record a bilinear form with weight (O, I1, I2), whose input is the outer product of its two inputs."""
        index, output = self.locate(weight), original(input1, input2, weight, bias)
        inputs = (input1.detach()[..., :, None] * input2.detach()[..., None, :]).reshape(-1, weight[0].numel())
        parts = [] if index is None else [Part(index.flatten(1), inputs, slice(None))]
        return self.record(
            Call(
                output=output, by_position=lambda g: g.reshape(-1, weight.shape[0]), parts=parts, bias=self.locate(bias)
            )
        )

    def embedding(
        self, original: Callable, input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kw: Any
    ) -> Tensor:
        """Record a lookup of rows of weight (V, E), whose input at a position is the one-hot vector of its token."""
        index, output = self.locate(weight), original(input, weight, padding_idx, *args, **kw)
        tokens = input.reshape(-1)
        carries = None if padding_idx is None else tokens != padding_idx % len(weight)
        inputs = functional.one_hot(tokens, len(weight)).double()
        parts = [] if index is None else [Part(index.T.contiguous(), inputs, slice(None))]
        return self.record(
            Call(
                output=output,
                by_position=lambda g: g.reshape(-1, weight.shape[1]),
                parts=parts,
                bias=None,
                carries=carries,
            )
        )

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
        return self.record(
            Call(
                output=output,
                by_position=lambda g: g.movedim(1 - dimensions, -1).reshape(-1, channels),
                parts=parts,
                bias=bias,
            )
        )

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """Put the recording functions in the place of torch's own, and put torch's own back at the end."""
        handlers = {"linear": self.linear, "bilinear": self.bilinear, "embedding": self.embedding}
        for count in (1, 2, 3):
            handlers[f"conv{count}d"] = self.convolution
            handlers[f"conv_transpose{count}d"] = self.transposed_convolution
        originals = {name: getattr(functional, name) for name in handlers}
        products = {"matmul": self.matmul, "mm": self.matmul, "bmm": self.matmul}
        products |= {"addmm": self.addmm, "baddbmm": self.baddbmm}
        torchs_own = {name: getattr(torch, name) for name in (*products, "einsum")}
        methods = {**products, "__matmul__": self.matmul}
        try:
            for name, handler in handlers.items():
                setattr(functional, name, bound(handler, originals[name]))
            torch.einsum = bound(self.einsum, torchs_own["einsum"])
            for name, handler in products.items():
                setattr(torch, name, bound(handler, torchs_own[name]))
            for name, handler in methods.items():
                setattr(torch.Tensor, name, bound(handler, torchs_own[name.strip("_")]))
            yield self.calls
        finally:
            for name, original in originals.items():
                setattr(functional, name, original)
            for name, original in torchs_own.items():
                setattr(torch, name, original)
            # the originals are inherited by torch.Tensor, so they return when ours are gone
            for name in methods:
                delattr(torch.Tensor, name)


def bound(handler: Callable, original: Callable) -> Callable:
    """Return a plain function that calls a recording handler with the function it replaces."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return handler(original, *args, **kwargs)

    return function
