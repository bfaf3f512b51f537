"""Linear maps in other words than `F.linear`: products of matrices, one or one per group, and `torch.einsum`."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .contract import Handler, Recorder
from .linear import LINEAR, Axes, applied, matrices, usable_matrix, usable_range
from .references import Ref


class Letters(NamedTuple):
    """A letter for each axis of two operands and of their product."""

    first: str
    second: str
    product: str

    def swapped(self) -> Letters:
        """With the operands in the other order."""
        return Letters(self.second, self.first, self.product)


class Contraction(NamedTuple):
    """A product seen as a linear map: its weight (groups..., rows..., columns...), and the input as `Axes` has it."""

    weight: Ref
    given: Tensor
    axes: Axes


def contraction(recorder: Recorder, letters: Letters, given: Tensor, weight: Tensor) -> Contraction | None:
    """A product of an input and a selected weight; None where it is no linear map of that input.

    Axes of the weight that the input lacks are rows, those that the product lacks are columns, and those that all three
    have are groups. Axes of the input that the weight lacks are positions.
    """
    own, theirs, product = letters
    ref = recorder.resolve(weight)
    if ref is None or recorder.resolve(given) is not None or not fits(letters, given, weight):
        return None
    # Groups, rows and columns in the parameter's order, whatever that of the product: so uses of one weight agree.
    steps = dict(zip(theirs, ref.steps, strict=True))
    inside = sorted(theirs, key=lambda letter: -steps[letter])
    groups = [letter for letter in inside if letter in own and letter in product]
    rows = [letter for letter in inside if letter not in own]
    columns = [letter for letter in inside if letter not in product]
    ref = ref.permuted(tuple(theirs.index(letter) for letter in (*groups, *rows, *columns)))
    if not columns or matrices(ref, len(groups), len(rows)) is None:
        return None
    axes = Axes(tuple(map(product.index, groups)), tuple(map(product.index, rows)))
    aligned = given.permute([own.index(letter) for letter in (*product, *columns) if letter in own])
    for axis in sorted(axes.rows):
        aligned = aligned.unsqueeze(axis)
    return Contraction(ref, aligned, axes)


def fits(letters: Letters, given: Tensor, weight: Tensor) -> bool:
    """Whether letters are right for the operands, none is there twice in one, and none is summed over in one alone."""
    own, theirs, product = map(set, letters)
    if any(len(set(each)) < len(each) for each in letters) or own - theirs - product or theirs - own - product:
        return False
    if (len(own), len(theirs)) != (given.dim(), weight.dim()) or product - own - theirs:
        return False
    sizes = dict(zip(letters.first, given.shape, strict=True))
    return all(sizes.get(letter, size) == size for letter, size in zip(letters.second, weight.shape, strict=True))


def record(
    recorder: Recorder, use: Contraction, weight: Tensor, apply: Callable[[Tensor], Tensor], bias: Ref | None = None
) -> Tensor:
    """`apply(weight)`, recorded."""
    output = apply(recorder.alias(weight))
    taken = {*use.axes.groups, *use.axes.rows}
    found = {"weight": use.weight} if bias is None else {"weight": use.weight, "bias": bias}
    free = tuple(axis for axis in range(output.dim()) if axis not in taken)
    return recorder.record(LINEAR, output, found, (use.given,), free, use.axes)


def of_matrices(left: Tensor, right: Tensor) -> tuple[Letters, Tensor, Tensor]:
    """The letters of `left @ right`, and both without axes of one that the product stretches."""
    tails = "ti", "io" if right.dim() > 1 else "i"
    sizes = [each.shape[: each.dim() - len(tail)] for each, tail in zip((left, right), tails, strict=True)]
    most = max(map(len, sizes))
    names = [letter for letter in string.ascii_letters if letter not in "tio"][:most]
    full = [(1,) * (most - len(each)) + tuple(each) for each in sizes]
    words, made = [], []
    for tensor, tail, own, other, size in zip((left, right), tails, full, full[::-1], sizes, strict=True):
        missing = most - len(size)
        stretched = [axis for axis in range(missing, most) if own[axis] == 1 and other[axis] > 1]
        words.append("".join(names[axis] for axis in range(missing, most) if axis not in stretched) + tail)
        made.append(tensor.squeeze([axis - missing for axis in stretched]))
    product = "".join(names) + ("to" if right.dim() > 1 else "t")
    return Letters(words[0], words[1], product), made[0], made[1]


def matmul(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`left @ right`, `torch.mm` and `torch.bmm` with a parameter on either side, one matrix or one for each group."""
    if len(args) != 2 or kwargs or not all(isinstance(each, Tensor) for each in args):
        return func(*args, **kwargs)
    left, right = args
    ref = usable_matrix(recorder.resolve(right))
    if ref is not None and left.dim() >= 2:  # F.linear with the transpose
        turned = {"weight": ref.permuted((1, 0))}
        return applied(recorder, turned, left, right.mT, None, lambda given, weight, _: func(given, weight.mT))
    if left.dim() < 2 or not (recorder.resolve(left) or recorder.resolve(right)):
        return func(*args)
    letters, first, second = of_matrices(left, right)
    if (use := contraction(recorder, letters, first, second)) is not None:
        return record(recorder, use, right, lambda weight: func(left, weight))
    if (use := contraction(recorder, letters.swapped(), second, first)) is not None:
        return record(recorder, use, left, lambda weight: func(weight, right))
    return func(*args)


def three(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor] | None:
    """The three operands of `addmm`; None where there is more to it, such as scaling."""
    values = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > 3 or set(values) != set(names) or not all(isinstance(each, Tensor) for each in values.values()):
        return None
    return [values[name] for name in names]


def addmm(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.addmm(bias, input, weight)`: F.linear with the transpose."""
    operands = three(("input", "mat1", "mat2"), args, kwargs)
    if operands is None:
        return func(*args, **kwargs)
    bias, given, weight = operands
    refs = {"weight": usable_matrix(recorder.resolve(weight))}
    if bias.dim() and bias.numel() == bias.shape[-1] == weight.shape[-1]:
        refs["bias"] = usable_range(recorder.resolve(bias))
    found = {role: ref.permuted((1, 0)) if role == "weight" else ref for role, ref in refs.items() if ref is not None}
    if not found:
        return func(*args, **kwargs)
    return applied(recorder, found, given, weight.mT, bias, lambda given, weight, bias: func(bias, given, weight.mT))


def baddbmm(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.baddbmm(bias, input, weight)`: a linear map for each group, with a bias (G, 1, O)."""
    operands = three(("input", "batch1", "batch2"), args, kwargs)
    if operands is None:
        return func(*args, **kwargs)
    bias, given, weight = operands
    use = contraction(recorder, Letters("gti", "gio", "gto"), given, weight)
    if use is None:
        return func(*args, **kwargs)
    own = usable_range(recorder.resolve(bias)) if bias.shape == (len(weight), 1, weight.shape[-1]) else None
    bias = bias if own is None else recorder.alias(bias)
    return record(recorder, use, weight, lambda weight: func(bias, given, weight), own)


def written(equation: str, first: Tensor, second: Tensor) -> Letters | None:
    """The letters of `torch.einsum`, with some in place of `...`; None where there are not two operands."""
    given, arrow, product = equation.replace(" ", "").partition("->")
    operands = given.split(",")
    if len(operands) != 2:
        return None
    hidden = [
        each.dim() - len(words.replace("...", "")) if "..." in words else 0
        for words, each in zip(operands, (first, second), strict=True)
    ]
    most = max(hidden)
    dots = "".join(letter for letter in string.ascii_letters if letter not in equation)[:most]
    if min(hidden) < 0 or len(dots) < most:
        return None
    named = [words.replace("...", dots[most - count :]) for words, count in zip(operands, hidden, strict=True)]
    if not arrow:
        once = [letter for letter in sorted(set(given) - set(",.")) if given.count(letter) == 1]
        product = "".join(("..." if "..." in given else "", *once))
    return Letters(named[0], named[1], product.replace("...", dots))


def einsum(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.einsum(equation, first, second)` with a parameter for one of the two."""
    equation, *operands = args or ("",)
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if kwargs or not isinstance(equation, str) or len(operands) != 2:
        return func(*args, **kwargs)
    first, second = operands
    letters = written(equation, first, second) if all(isinstance(each, Tensor) for each in operands) else None
    if letters is None:
        return func(*args)
    if (use := contraction(recorder, letters, first, second)) is not None:
        return record(recorder, use, second, lambda weight: func(equation, first, weight))
    if (use := contraction(recorder, letters.swapped(), second, first)) is not None:
        return record(recorder, use, first, lambda weight: func(equation, weight, second))
    return func(*args)


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.linalg.matmul), matmul),
    **dict.fromkeys((torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm), matmul),
    **dict.fromkeys((torch.addmm, torch.Tensor.addmm), addmm),
    **dict.fromkeys((torch.baddbmm, torch.Tensor.baddbmm), baddbmm),
    torch.einsum: einsum,
}
