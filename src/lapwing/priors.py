"""Gaussian priors over the weights: `delta = exp(log_precision)[group]`, whatever the grouping is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from .complaints import nearest
from .space import Space

Number = int | float | Tensor


def _tensor(value: object, what: str) -> Tensor:
    """Numbers as a tensor in floating point."""
    try:
        made = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
        return made if made.is_floating_point() else made.double()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what} is a {type(value).__name__}, {value!r}; expected numbers.") from None


def _checked(value: Number | list[float], what: str) -> Tensor:
    # A Python number is exact in float64 alone: 0.7 in float32 is off by 2e-8.
    made = _tensor(value, f"{what}: prior precision")
    if made.numel() == 0 or not bool(torch.isfinite(made).all()) or not bool((made > 0).all()):
        raise ValueError(f"{what}: prior precision {value!r} was given; expected positive finite numbers.")
    return made


@dataclass(frozen=True)
class Prior:
    """Independent Gaussians with precisions by group, and a mean."""

    kind: str
    precision: Tensor
    patterns: tuple[str, ...] = ()
    mean: Number = 0.0

    def __post_init__(self) -> None:
        known = [name for name, each in vars(Prior).items() if isinstance(each, staticmethod)]
        if self.kind not in known:
            raise ValueError(f"Prior(kind={self.kind!r}) is not known; {nearest(self.kind, known)}See Prior.scalar.")
        if not bool(torch.isfinite(_tensor(self.mean, "The prior's mean").detach()).all()):
            raise ValueError(f"The prior's mean {self.mean!r} was given; expected finite numbers.")

    @staticmethod
    def scalar(precision: Number = 1.0, mean: Number = 0.0) -> Prior:
        """One precision for all weights."""
        made = _checked(precision, "Prior.scalar")
        if made.numel() != 1:
            raise ValueError(f"Prior.scalar: {made.numel()} precisions were given; expected one. See Prior.layerwise.")
        return Prior("scalar", made.reshape(1), mean=mean)

    @staticmethod
    def layerwise(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per parameter tensor."""
        return Prior("layerwise", _checked(precision, "Prior.layerwise").reshape(-1), mean=mean)

    @staticmethod
    def diagonal(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per weight."""
        return Prior("diagonal", _checked(precision, "Prior.diagonal").reshape(-1), mean=mean)

    @staticmethod
    def groups(precisions: Mapping[str, float], mean: Number = 0.0) -> Prior:
        """One precision per group of parameter tensors, named by patterns; the first that fits holds."""
        if not isinstance(precisions, Mapping) or not precisions:
            raise TypeError(
                f"Prior.groups: {precisions!r} was given; expected a mapping from patterns of parameter names to "
                "precisions, such as {'head': 1.0, '*': 10.0}."
            )
        return Prior("groups", _checked([*precisions.values()], "Prior.groups"), tuple(precisions), mean)

    def group(self, space: Space) -> Tensor:
        """(D,): the number of each weight's group."""
        sizes = [shape.numel() for shape in space.shapes]
        if self.kind == "scalar":
            numbers = torch.zeros(space.total, dtype=torch.long, device="cpu")
        elif self.kind == "diagonal":
            return torch.arange(space.size, device="cpu")
        else:
            own = list(range(len(sizes))) if self.kind == "layerwise" else [self._fitting(name) for name in space.names]
            numbers = torch.tensor(own, device="cpu").repeat_interleave(torch.tensor(sizes, device="cpu"))
        return numbers if space.mask is None else numbers[space.mask.cpu()]

    def _fitting(self, name: str) -> int:
        for number, pattern in enumerate(self.patterns):
            if fnmatchcase(name, pattern) or name.startswith(f"{pattern}."):
                return number
        raise ValueError(f"Prior.groups: no pattern of {list(self.patterns)} fits {name!r}; add '*' for the rest.")

    def known(self, names: Iterable[str]) -> None:
        """Refuse a pattern that fits none of a network's parameters: most likely it is misspelt."""
        every = list(names)
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for name in every):
                raise ValueError(
                    f"Prior.groups: {pattern!r} fits no parameter of the network; {nearest(pattern, every)}"
                    f"Its parameters are {', '.join(every[:4])}{', ...' if len(every) > 4 else ''}."
                )

    def count(self, space: Space) -> int:
        """How many groups the selected weights fall into; refuses precisions and means that do not fit them."""
        groups = {"scalar": 1, "layerwise": len(space.names), "diagonal": space.size}.get(self.kind, len(self.patterns))
        if self.kind == "groups":
            for name in space.names:
                self._fitting(name)
        if self.precision.numel() not in (1, groups):
            raise ValueError(
                f"Prior.{self.kind}: {self.precision.numel()} precisions were given; expected "
                f"{'1' if groups == 1 else f'1 or {groups}'} for the selected weights."
            )
        if isinstance(self.mean, Tensor) and self.mean.numel() not in (1, space.size):
            raise ValueError(f"The prior's mean has {self.mean.numel()} numbers; expected 1 or {space.size}.")
        return groups

    def delta(self, space: Space, like: Tensor) -> Tensor:
        """(D,): the precision of each weight, differentiable in `precision`."""
        groups = self.count(space)
        narrow = self.precision.to(like.dtype)
        if not bool(torch.isfinite(narrow.detach()).all()) or not bool((narrow.detach() > 0).all()):
            raise ValueError(
                f"Prior.{self.kind}: precisions from {float(self.precision.min()):.3g} to "
                f"{float(self.precision.max()):.3g} are outside the range of {like.dtype}; use others, or a network in "
                "float64."
            )
        precision = narrow.to(like.device)
        if precision.numel() == 1:
            return precision.expand(space.size)
        return precision.expand(groups)[self.group(space).to(like.device)]

    def only(self, space: Space, kept: Space) -> Prior:
        """The prior of the weights that are left after unused ones were taken out."""
        if kept.names == space.names:
            return self
        places = [torch.arange(piece.start, piece.stop, device="cpu") for piece in _selected_slices(space, kept.names)]
        left = torch.cat(places)
        precision, mean = self.precision, self.mean
        if self.kind in ("layerwise", "diagonal") and precision.numel() > 1:
            precision = precision[self.group(space)[left].unique().to(precision.device)]
        if isinstance(mean, Tensor) and mean.numel() > 1:
            mean = mean.reshape(-1)[left.to(mean.device)]
        return replace(self, precision=precision, mean=mean)

    def centre(self, space: Space, like: Tensor) -> Tensor:
        """(D,): the prior's mean."""
        self.count(space)
        mean = (
            torch.as_tensor(self.mean, dtype=None if isinstance(self.mean, Tensor) else torch.float64)
            .to(device=like.device, dtype=like.dtype)
            .reshape(-1)
        )
        return mean.expand(space.size)

    def with_precision(self, precision: Number) -> Prior:
        """The same groups and mean with other precisions, which may require gradients."""
        return replace(self, precision=_checked(precision, f"Prior.{self.kind}").reshape(-1))


def _selected_slices(space: Space, names: tuple[str, ...]) -> list[slice]:
    """Where the selected elements of some tensors are in the vector of D weights."""
    made, start = [], 0
    for name, place in space.slices().items():
        size = place.stop - place.start if space.mask is None else int(space.mask[place].sum())
        if name in names:
            made.append(slice(start, start + size))
        start += size
    return made


def as_prior(value: Prior | Number, like: Prior | None = None) -> Prior:
    """A number is one precision for all weights; several take the groups of `like`, and both its mean."""
    if isinstance(value, Prior):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise TypeError(f"prior is a {type(value).__name__}; expected a positive number or a Prior.")
    if like is None:
        return Prior.scalar(value)
    if isinstance(value, Tensor) and value.numel() > 1:
        return like.with_precision(value)
    return Prior.scalar(value, like.mean)
