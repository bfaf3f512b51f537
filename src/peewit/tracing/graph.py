"""What the autograd graph of a forward pass tells: weights past recorded uses, examples that are reordered."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ctypes import c_int64
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .recording import Recording, walk

# What steps keep that cut a tensor; and how many ways to do so are remembered.
CUT = tuple(f"_saved_{name}" for name in ("start", "end", "step", "index", "split_size", "split_sizes"))


def owners(nodes: Iterable[Any], names: dict[int, str]) -> set[str]:
    """Selected weights whose gradients are gathered at some of the nodes."""
    variables = (getattr(node, "variable", None) for node in nodes)
    return {names[id(variable)] for variable in variables if variable is not None and id(variable) in names}


def find_unrecorded(output: Tensor, recording: Recording) -> tuple[set[str], dict[Any, None]]:
    """Selected weights that the output depends on past the recorded uses, and all nodes passed on the way, in order.

    Ways into a recorded use end at its weights' aliases; the search goes on below what was broadcast to the examples.
    An alias that is reached around its use's output was applied twice: by the use, and in a gradient that the network
    took itself.
    """
    above = dict.fromkeys(walk([output.grad_fn], recording.aliases.__contains__))
    below = walk([lift.source.node for lift in recording.lifts], recording.aliases.__contains__)
    names = owners(above, recording.names) | owners(below, recording.names)
    roots = [output.grad_fn, *(lift.source.node for lift in recording.lifts)]
    roots += [node for use in recording.uses for node in use.below]
    # At its own output a use is left, and entered again through its inputs.
    around = walk(roots, recording.outputs.__contains__)
    names |= {name for node in around for name in recording.aliases.get(node, ())}
    return names, above


@cache
def _may_reorder(kind: str) -> bool:
    return kind.startswith(
        ("Flip", "Roll", "IndexSelect", "Gather", "Sort", "Topk", "Scatter", "IndexAdd", "IndexCopy", "IndexBackward")
        + ("IndexPut",)
    )


def saved_axis(node: Any, axis: int) -> int:
    """An axis that a node has kept, counted from the front: torch keeps -1 as the largest number of 64 bits."""
    return c_int64(axis).value % max(1, len(node._input_metadata[0].shape))


def reorders(node: Any, examples: int) -> bool:
    """Whether a step of the forward pass may change the order of examples.

    A network that reorders its examples has to put its outputs back in order: that step is seen from the output.
    """
    kind = node.name()
    if not _may_reorder(kind):
        return False
    if kind.startswith(("Flip", "Roll")):
        dims = getattr(node, "_saved_dims", ())
        return not dims or 0 in [saved_axis(node, dim) for dim in dims]
    if kind.startswith(("IndexSelect", "Gather", "Sort", "Topk", "Scatter", "IndexAdd", "IndexCopy")):
        return saved_axis(node, getattr(node, "_saved_dim", 0)) == 0
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    for axis, index in enumerate(getattr(node, "_saved_indices", ())):
        if index is None or (sizes is not None and sizes[axis] % examples):
            continue
        order = torch.arange(index.numel(), device=index.device)
        if index.dtype == torch.bool or not torch.equal(index.flatten(), order):
            return True
        if axis == 0 and index.numel() == examples:  # each example picks among its own positions: h[arange(B), last]
            return False
    return False


@cache
def _may_cut(kind: str) -> bool:
    return kind.startswith(("Slice", "Select", "Split", "UnsafeSplit", "Unbind", "Cat", "Stack"))


def cut_of(nodes: Collection[Any], examples: int) -> tuple[Any, ...]:
    """How a forward pass cuts tensors along their first axis, where that may hold the examples, and joins the pieces.

    With other numbers here, in the order of the graph, the examples may be in another order than they were; empty where
    nothing is cut.
    """
    cuts: list[Any] = []
    for node in nodes:
        kind = node.name()
        if not _may_cut(kind):
            continue
        shape = tuple(node._input_metadata[0].shape)  # of the result
        whole = shape  # of what is cut, or of what comes of the pieces
        if not kind.startswith(("Cat", "Stack")):
            whole = getattr(node, "_saved_self_sym_sizes", (len(node._input_metadata), *shape))
        axis = getattr(node, "_saved_dim", getattr(node, "axis", None))  # our own `Unbind` has an axis
        if not whole or not isinstance(axis, int) or c_int64(axis).value % len(whole):
            continue
        if kind.startswith("Slice") and shape == tuple(whole):
            continue  # all of it: up to torch 2.8 the first step of x[:, 1:]
        if whole[0] % examples == 0:
            cuts.append((kind, whole[0], *(getattr(node, name, None) for name in CUT)))
    if cuts:  # which pieces are taken, and where, of steps that make several
        pieces = ([number for _, number in node.next_functions] for node in nodes)
        cuts += [(position, *numbers) for position, numbers in enumerate(pieces) if any(numbers)]
    return tuple(cuts)
