"""Linear maps in other words than `F.linear`: products of matrices, one or one per group, and `torch.einsum`."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .contract import Handler, Recorder
from .linear import LINEAR, Axes, apply_linear, matrix_layout, usable_matrix, usable_range, usable_views
from .weight_views import WeightView


class Letters(NamedTuple):
    """A letter for each axis of two operands and of their product."""

    first: str
    second: str
    product: str

    def swap(self) -> Letters:
        """The contraction with its operands in the other order."""
        return Letters(self.second, self.first, self.product)


class Contraction(NamedTuple):
    """A product seen as a linear map: its weight (groups..., rows..., columns...), and the input as `Axes` has it."""

    weight: WeightView
    inputs: Tensor
    axes: Axes


def find_contraction(recorder: Recorder, letters: Letters, inputs: Tensor, weight: Tensor) -> Contraction | None:
    """The product of an input and a selected weight as a linear map; None where it is not one.

    Axes of the weight that the input lacks are rows, those that the product lacks are columns, and those that all three
    have are groups. Axes of the input that the weight lacks are positions.
    """
    view = recorder.resolve(weight)
    if view is None or recorder.resolve(inputs) is not None or not are_valid(letters, inputs, weight):
        return None
    # Groups, rows and columns in the parameter's order, whatever that of the product: so uses of one weight agree.
    steps = dict(zip(letters.second, view.steps, strict=True))
    ordered = sorted(letters.second, key=lambda letter: -steps[letter])
    groups = [letter for letter in ordered if letter in letters.first and letter in letters.product]
    rows = [letter for letter in ordered if letter not in letters.first]
    columns = [letter for letter in ordered if letter not in letters.product]
    view = view.permute(tuple(letters.second.index(letter) for letter in (*groups, *rows, *columns)))
    if not columns or matrix_layout(view, len(groups), len(rows)) is None:
        return None
    axes = Axes(tuple(map(letters.product.index, groups)), tuple(map(letters.product.index, rows)))
    order = [letter for letter in (*letters.product, *columns) if letter in letters.first]
    aligned = inputs.permute([letters.first.index(letter) for letter in order])
    for axis in sorted(axes.rows):
        aligned = aligned.unsqueeze(axis)
    return Contraction(view, aligned, axes)


def are_valid(letters: Letters, inputs: Tensor, weight: Tensor) -> bool:
    """Whether letters fit the operands, none occurs twice in one, and none is summed over in one operand alone."""
    first, second, product = map(set, letters)
    if any(len(set(each)) < len(each) for each in letters) or first - second - product or second - first - product:
        return False
    if (len(first), len(second)) != (inputs.dim(), weight.dim()) or product - first - second:
        return False
    sizes = dict(zip(letters.first, inputs.shape, strict=True))
    return all(sizes.get(letter, size) == size for letter, size in zip(letters.second, weight.shape, strict=True))


def record_contraction(
    recorder: Recorder,
    contraction: Contraction,
    weight: Tensor,
    apply: Callable[[Tensor], Tensor],
    bias: WeightView | None = None,
) -> Tensor:
    """Record `apply(weight)`."""
    output = apply(recorder.alias(weight))
    axes = {*contraction.axes.groups, *contraction.axes.rows}
    views = {"weight": contraction.weight} | ({} if bias is None else {"bias": bias})
    free = tuple(axis for axis in range(output.dim()) if axis not in axes)
    return recorder.record(LINEAR, output, views, (contraction.inputs,), free, contraction.axes)


def record_either_side(
    recorder: Recorder,
    letters: Letters,
    aligned: tuple[Tensor, Tensor],
    operands: tuple[Tensor, Tensor],
    apply: Callable[[Tensor, Tensor], Any],
) -> Any:
    """Record `apply(*operands)` where one of them is a weight; `aligned` are the operands as the letters have them."""
    (first, second), (left, right) = aligned, operands
    if (contraction := find_contraction(recorder, letters, first, second)) is not None:
        return record_contraction(recorder, contraction, right, lambda weight: apply(left, weight))
    if (contraction := find_contraction(recorder, letters.swap(), second, first)) is not None:
        return record_contraction(recorder, contraction, left, lambda weight: apply(weight, right))
    return apply(left, right)


def matmul_letters(left: Tensor, right: Tensor) -> tuple[Letters, tuple[Tensor, Tensor]]:
    """The letters of `left @ right`, and both without axes of one that the product expands."""
    tails = "ti", "io" if right.dim() > 1 else "i"
    sizes = [each.shape[: each.dim() - len(tail)] for each, tail in zip((left, right), tails, strict=True)]
    most = max(map(len, sizes))
    names = [letter for letter in string.ascii_letters if letter not in "tio"][:most]
    full = [(1,) * (most - len(each)) + tuple(each) for each in sizes]
    words, squeezed = [], []
    for tensor, tail, size, other, short in zip((left, right), tails, full, full[::-1], sizes, strict=True):
        missing = most - len(short)
        expanded = [axis for axis in range(missing, most) if size[axis] == 1 and other[axis] > 1]
        words.append("".join(names[axis] for axis in range(missing, most) if axis not in expanded) + tail)
        squeezed.append(tensor.squeeze([axis - missing for axis in expanded]))
    product = "".join(names) + ("to" if right.dim() > 1 else "t")
    return Letters(words[0], words[1], product), (squeezed[0], squeezed[1])


def matmul(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`left @ right`, `torch.mm` and `torch.bmm` with a parameter on either side, one matrix or one for each group."""
    if len(args) != 2 or kwargs or not all(isinstance(each, Tensor) for each in args):
        return func(*args, **kwargs)
    left, right = args
    view = usable_matrix(recorder.resolve(right))
    if view is not None and left.dim() >= 2:  # F.linear with the transpose
        views = {"weight": view.permute((1, 0))}
        return apply_linear(recorder, views, left, right.mT, None, lambda inputs, weight, _: func(inputs, weight.mT))
    if left.dim() < 2 or not (recorder.resolve(left) or recorder.resolve(right)):
        return func(*args)
    letters, aligned = matmul_letters(left, right)
    return record_either_side(recorder, letters, aligned, (left, right), func)


def bind_operands(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor] | None:
    """The three operands of `addmm` and its like; None where there are more arguments, such as factors."""
    values = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > 3 or set(values) != set(names) or not all(isinstance(each, Tensor) for each in values.values()):
        return None
    return [values[name] for name in names]


def addmm(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.addmm(bias, input, weight)`: F.linear with the transpose."""
    operands = bind_operands(("input", "mat1", "mat2"), args, kwargs)
    if operands is None:
        return func(*args, **kwargs)
    bias, inputs, weight = operands
    whole = bias.dim() and bias.numel() == bias.shape[-1] == weight.shape[-1]
    views = usable_views(recorder, {"weight": weight, "bias": bias if whole else None}, usable_matrix)
    if not views:
        return func(*args, **kwargs)
    if "weight" in views:
        views["weight"] = views["weight"].permute((1, 0))

    def apply(inputs: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return func(bias, inputs, weight.mT)

    return apply_linear(recorder, views, inputs, weight.mT, bias, apply)


def baddbmm(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.baddbmm(bias, input, weight)`: a linear map for each group, with a bias (G, 1, O)."""
    operands = bind_operands(("input", "batch1", "batch2"), args, kwargs)
    if operands is None:
        return func(*args, **kwargs)
    bias, inputs, weight = operands
    contraction = find_contraction(recorder, Letters("gti", "gio", "gto"), inputs, weight)
    if contraction is None:
        return func(*args, **kwargs)
    view = usable_range(recorder.resolve(bias)) if bias.shape == (len(weight), 1, weight.shape[-1]) else None
    bias = bias if view is None else recorder.alias(bias)
    return record_contraction(recorder, contraction, weight, lambda weight: func(bias, inputs, weight), view)


def parse_equation(equation: str, first: Tensor, second: Tensor) -> Letters | None:
    """The letters of `torch.einsum`, with letters in place of `...`; None where there are not two operands."""
    terms, arrow, product = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) != 2:
        return None
    hidden = [
        tensor.dim() - len(words.replace("...", "")) if "..." in words else 0
        for words, tensor in zip(operands, (first, second), strict=True)
    ]
    most = max(hidden)
    dots = "".join(letter for letter in string.ascii_letters if letter not in equation)[:most]
    if min(hidden) < 0 or len(dots) < most:
        return None
    words = [words.replace("...", dots[most - count :]) for words, count in zip(operands, hidden, strict=True)]
    if not arrow:
        once = [letter for letter in sorted(set(terms) - set(",.")) if terms.count(letter) == 1]
        product = "".join(("..." if "..." in terms else "", *once))
    return Letters(words[0], words[1], product.replace("...", dots))


def einsum(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.einsum(equation, first, second)` with a parameter for one of the two."""
    equation, *operands = args or ("",)
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if kwargs or not isinstance(equation, str) or len(operands) != 2:
        return func(*args, **kwargs)
    if not all(isinstance(each, Tensor) for each in operands):
        return func(*args)
    first, second = operands
    letters = parse_equation(equation, first, second)
    if letters is None:
        return func(*args)
    return record_either_side(
        recorder, letters, (first, second), (first, second), lambda left, right: func(equation, left, right)
    )


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.linalg.matmul), matmul),
    **dict.fromkeys((torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm), matmul),
    **dict.fromkeys((torch.addmm, torch.Tensor.addmm), addmm),
    **dict.fromkeys((torch.baddbmm, torch.Tensor.baddbmm), baddbmm),
    torch.einsum: einsum,
}
