"""Which weights are uncertain, in which order, and where each is in the flat vector of D weights."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from ..messages.elsewhere import VALUES
from ..messages.errors import PeewitError
from ..messages.names import names_for_users
from .ranges import WeightRange

WeightsName: TypeAlias = Literal["all", "last_layer", "lora"]
"""A choice of weights: all that are trainable, those of the last layer, or those of LoRA adapters."""

ENGINE = {"describe_selection", "slice_of", "parts", "only"}  # what the library asks: `dir` shows the rest


@dataclass(frozen=True)
class Space:
    """Which weights are uncertain, and where each of them is in vectors of D weights.

    `la.space` is one. Vectors hold the named tensors one after the other, each flattened.

    Attributes:
        names: Names of the parameters, in the order of the network.
        shapes: Their shapes.
        mask: Which of their elements are uncertain, booleans (total,). None for all of them.
        total: Number of all elements of the named parameters.
        size: Number D of uncertain weights.

    Example:
        >>> la.space.names, la.space.size
        (('0.weight', '0.bias', '2.weight', '2.bias'), 51)
        >>> la.weights[la.space.slices()["2.bias"]].shape  # where no mask is set
        torch.Size([3])
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    mask: Tensor | None = None

    def __dir__(self) -> list[str]:
        """What is for users."""
        return names_for_users(self, ENGINE)

    @property
    def total(self) -> int:
        """Elements of all named tensors."""
        return sum(shape.numel() for shape in self.shapes)

    @property
    def size(self) -> int:
        """D."""
        return self.total if self.mask is None else int(self.mask.sum())

    def slices(self) -> dict[str, slice]:
        """Find where each named parameter is in the vector of all their elements.

        Returns:
            A slice by name, of vectors (total,); without a mask these are vectors (D,).

        Example:
            >>> la.space.slices()["0.bias"]
            slice(16, 24, None)
        """
        slices, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            slices[name] = slice(start, start + shape.numel())
            start += shape.numel()
        return slices

    def counts(self) -> dict[str, int]:
        """Count the uncertain elements of each named parameter.

        Returns:
            Numbers by name, which add up to D.

        Example:
            >>> la.space.counts()["0.weight"]
            16
        """
        if self.mask is None:
            return {name: shape.numel() for name, shape in zip(self.names, self.shapes, strict=True)}
        return {name: int(self.mask[elements].sum()) for name, elements in self.slices().items()}

    def describe_selection(self, name: str) -> str:
        """In words: how many elements of a tensor are selected, where not all are."""
        if self.mask is None:
            return ""
        elements = self.mask[self.slices()[name]]
        return f", {int(elements.sum())} of {elements.numel()} elements"

    @cached_property
    def _starts(self) -> dict[str, int]:
        """Where each named tensor begins: asked for every block of every question."""
        return {name: elements.start for name, elements in self.slices().items()}

    def slice_of(self, part: WeightRange) -> slice:
        """Where a range of a tensor is."""
        start = self._starts[part.name]
        return slice(start + part.start, start + part.stop)

    def parts(self) -> Iterator[WeightRange]:
        """Every named tensor as one range."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            yield WeightRange(name, 0, shape.numel())

    def vector(self, model: nn.Module) -> Tensor:
        """Read the uncertain weights of a network.

        Args:
            model: The network, or another with the same parameters.

        Returns:
            A copy (D,) of its weights.

        Raises:
            AttributeError: The network has no parameter of a name in `names`.

        Example:
            >>> torch.equal(la.space.vector(model), la.weights)
            True
        """
        flat = torch.cat([model.get_parameter(name).detach().flatten() for name in self.names])
        return flat if self.mask is None else flat[self.mask.to(flat.device)]

    def only(self, used: Iterable[str]) -> Space:
        """Without the weights that the network never used."""
        kept = set(used)
        slices = self.slices()
        names = tuple(name for name in self.names if name in kept)
        shapes = tuple(shape for name, shape in zip(self.names, self.shapes, strict=True) if name in kept)
        mask = None
        if self.mask is not None:
            mask = torch.cat([self.mask[slices[name]] for name in names]) if names else self.mask[:0]
        return Space(names, shapes, mask)


def make_space(model: nn.Module, names: Iterable[str], mask: Tensor | None = None) -> Space:
    """A space over named parameters, in the network's own order."""
    chosen = set(names)
    ordered = tuple(name for name, _ in model.named_parameters() if name in chosen)
    if not ordered:
        raise PeewitError("No weights are selected; expected at least one trainable parameter.")
    for name in ordered:
        if model.get_parameter(name).is_complex():
            raise PeewitError(
                f"{name!r} is {model.get_parameter(name).dtype}; expected real weights. Hold its real and imaginary "
                "parts as one real parameter (..., 2), of which the network takes torch.view_as_complex, or leave it "
                "out by weights=."
            )
    return Space(ordered, tuple(model.get_parameter(name).shape for name in ordered), mask)


def trainable(model: nn.Module) -> tuple[str, ...]:
    """Names of parameters with `requires_grad`, and with elements."""
    parameters = model.named_parameters()
    names = tuple(name for name, parameter in parameters if parameter.requires_grad and parameter.numel())
    if not names:
        raise PeewitError("The network has no trainable weights; expected some parameter with requires_grad=True.")
    return names


def matching(model: nn.Module, patterns: Iterable[str]) -> tuple[str, ...]:
    """Parameters whose name, or whose module's name, fits one of the patterns."""
    all_names = [name for name, _ in model.named_parameters()]
    names: set[str] = set()
    for pattern in patterns:
        hits = {name for name in all_names if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")}
        if not hits:
            near = difflib.get_close_matches(pattern, [*get_args(WeightsName), *all_names], n=3, cutoff=0.3)
            advice = VALUES.get(pattern, f"the nearest names are {near or all_names[:3]}")
            raise PeewitError(f"weights={pattern!r} fits no parameter; {advice}.")
        names |= hits
    return tuple(name for name in all_names if name in names)


def padding_rows(model: nn.Module, space: Space) -> Tensor | None:
    """(D,) booleans: rows that all modules with a table have for its `padding_idx`; None where there are none."""
    rows_of_weight: dict[int, set[int | None]] = {}
    for module in model.modules():
        padding = module.padding_idx if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
        for name, parameter in module._parameters.items():
            rows_of_weight.setdefault(id(parameter), set()).add(padding if name == "weight" else None)
    mask = torch.zeros(space.total, dtype=torch.bool, device="cpu")
    for name, span in space.slices().items():
        rows = rows_of_weight.get(id(model.get_parameter(name)), {None})
        for row in rows if len(rows) == 1 else ():
            if row is not None:
                mask[span].view(space.shapes[space.names.index(name)])[row] = True
    mask = mask if space.mask is None else mask[space.mask]
    return mask if bool(mask.any()) else None


def low_rank_pairs(model: nn.Module) -> tuple[str, ...]:
    """LoRA weights, by the naming that adapters share."""
    names = tuple(name for name, _ in model.named_parameters() if "lora_" in name.lower())
    if not names:
        raise PeewitError("weights='lora' was given, but no parameter's name contains 'lora_'.")
    return names


def masked_space(model: nn.Module, masks: Mapping[str, Tensor] | Tensor) -> Space:
    """A space of single elements: one mask per tensor, or one over all trainable weights."""
    if isinstance(masks, Tensor):
        names = trainable(model)
        space = make_space(model, names)
        if masks.dtype != torch.bool or masks.shape != (space.total,):
            raise PeewitError(
                f"weights is a mask of shape {tuple(masks.shape)} and dtype {masks.dtype}; expected "
                f"({space.total},) booleans, one per trainable weight."
            )
        pieces = {name: masks[piece] for name, piece in space.slices().items()}
    else:
        pieces = dict(masks)
        known = dict(model.named_parameters())
        for name, mask in pieces.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
                raise PeewitError(f"weights has a mask for {name!r}, which is not a parameter; the nearest are {near}.")
            if mask.dtype != torch.bool or mask.shape != known[name].shape:
                raise PeewitError(
                    f"The mask for {name!r} has shape {tuple(mask.shape)} and dtype {mask.dtype}; expected "
                    f"{tuple(known[name].shape)} booleans."
                )
    kept = {name: mask.flatten().cpu() for name, mask in pieces.items() if bool(mask.any())}
    space = make_space(model, kept)
    return Space(space.names, space.shapes, torch.cat([kept[name] for name in space.names]))
