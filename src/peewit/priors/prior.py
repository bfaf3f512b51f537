"""Gaussian priors over the weights: `delta = precision[group]`, whatever the grouping."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import names_for_users, nearest, spelled, spelled_class
from ..network.nests import Data
from ..weights.groups import Groups
from ..weights.space import Space
from . import groupings
from .groupings import NAMES, Grouping, positions_among
from .invariance import invariant_sets

Number = int | float | Tensor
"""A number, or a tensor with one or several."""
# What the library asks of a prior: `dir` shows the rest.
ENGINE = {
    "group", "stretches", "refuse_unknown", "count", "names", "straddling", "bind", "least", "delta", "parts",
    "only", "carry_over", "centre",
}  # fmt: skip
FLOOR = 1e-4  # a g-prior's least precision, as a share of the mean over the tensor


def _tensor(value: object, what: str) -> Tensor:
    """Numbers as a tensor in floating point."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
        return tensor if tensor.is_floating_point() else tensor.double()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(f"{what} is a {type(value).__name__}, {value!r}; expected numbers.") from None


def _as_precisions(value: Number | list[float], what: str) -> Tensor:
    # A Python number is exact in float64 alone: 0.7 in float32 is off by 2e-8.
    precisions = _tensor(value, f"{what}: prior precision")
    if precisions.numel() == 0 or not bool(torch.isfinite(precisions).all()) or not bool((precisions > 0).all()):
        raise PeewitError(f"{what}: prior precision {value!r} was given; expected positive finite numbers.")
    return precisions


class WithDiagonal(Protocol):
    """What a g-prior needs of a curvature."""

    def diag(self, floor: float = 0.0) -> Tensor:
        """(D,): its diagonal, at least a share `floor` of the mean over each tensor."""
        ...


@spelled_class
@dataclass(frozen=True)
class Prior:
    """Independent Gaussians over the weights, with one precision for each group of weights, and a mean.

    A precision is one over a variance. Make a prior with `Prior.scalar` or another of its constructors; a number given
    as `prior=` is `Prior.scalar`. Where there is one precision and several groups, all groups start with it, and
    `la.tune` gives each its own.

    Attributes:
        grouping: Which weights share a precision: a grouping, or its name, such as "layerwise".
        precision: The precisions, (groups,), or (1,) for all groups.
        mean: The prior's mean: one number, or a tensor (D,) with one per selected weight.
        base: Fixed ratios (D,) which the precision multiplies; of a g-prior alone, once it knows the curvature.
        sets: Sets of parameter names whose common scale changes no output; of `Prior.scale_invariant` alone.

    Raises:
        PeewitError: The grouping is not known, or the mean is not finite. By `pw.fit` and `la.with_prior`, where the
            precisions are neither one nor as many as the groups of the selected weights.

    Example:
        >>> la.with_prior(pw.Prior.layerwise([1.0, 1.0, 5.0, 5.0])).prior.precision
        tensor([1., 1., 5., 5.], dtype=torch.float64)
    """

    grouping: Grouping  # or its name
    precision: Tensor
    mean: Number = 0.0
    base: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.grouping, Grouping):
            if self.grouping not in [*NAMES]:
                near = nearest(self.grouping, NAMES)
                raise PeewitError(f"Prior(grouping={self.grouping!r}) is not known; {near}See Prior.scalar.")
            object.__setattr__(self, "grouping", NAMES[self.grouping]())
        if not bool(torch.isfinite(_tensor(self.mean, "The prior's mean").detach()).all()):
            raise PeewitError(f"The prior's mean {self.mean!r} was given; expected finite numbers.")
        for name in ("precision", "mean", "base"):  # a value: later changes by the caller stay outside
            if isinstance(getattr(self, name), Tensor):
                object.__setattr__(self, name, getattr(self, name).clone())

    def _changed(self, **fields: Any) -> Prior:
        """Another prior with some fields changed, which shares all tensors: nothing is copied."""
        changed = copy.copy(self)
        vars(changed).update(fields)
        return changed

    @staticmethod
    @spelled
    def scalar(precision: Number = 1.0, mean: Number = 0.0) -> Prior:
        """One precision for all weights.

        Args:
            precision: The precision, one over the variance of each weight.
            mean: The mean of all weights, or a tensor (D,) with one per weight.

        Returns:
            A prior with one group.

        Raises:
            PeewitError: A precision is not a positive finite number, or there are several.

        Example:
            >>> pw.fit(model, (x, y), "classification", prior=pw.Prior.scalar(10.0)).prior.precision
            tensor([10.], dtype=torch.float64)
        """
        precisions = _as_precisions(precision, "Prior.scalar")
        if precisions.numel() != 1:
            raise PeewitError(
                f"Prior.scalar: {precisions.numel()} precisions were given; expected one. See Prior.layerwise."
            )
        return Prior(groupings.Scalar(), precisions.reshape(1), mean)

    @staticmethod
    @spelled
    def layerwise(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per parameter tensor.

        The groups are in the order of `model.named_parameters()`, those without selected weights left out.

        Args:
            precision: One precision for all groups to start with, or one per parameter tensor.
            mean: The mean of all weights, or a tensor (D,) with one per weight.

        Returns:
            A prior with a group for each parameter tensor.

        Raises:
            PeewitError: A precision is not a positive finite number.

        Example:
            >>> la.with_prior(pw.Prior.layerwise()).tune().prior.precision.shape  # two weights, two biases
            torch.Size([4])
        """
        return Prior(groupings.Layerwise(), _as_precisions(precision, "Prior.layerwise").reshape(-1), mean)

    @staticmethod
    @spelled
    def diagonal(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per weight, as in automatic relevance determination.

        Args:
            precision: One precision for all weights to start with, or one per selected weight, (D,).
            mean: The mean of all weights, or a tensor (D,) with one per weight.

        Returns:
            A prior with a group for each weight.

        Raises:
            PeewitError: A precision is not a positive finite number.

        Example:
            >>> pw.fit(model, (x, y), "classification", structure="diag", prior=pw.Prior.diagonal()).prior.grouping.name
            'diagonal'
        """
        return Prior(groupings.Diagonal(), _as_precisions(precision, "Prior.diagonal").reshape(-1), mean)

    @staticmethod
    @spelled
    def unitwise(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per index along the first axis of each tensor: per output unit, and per element of a bias.

        Args:
            precision: One precision for all groups to start with, or one per group.
            mean: The mean of all weights, or a tensor (D,) with one per weight.

        Returns:
            A prior with a group for each unit.

        Raises:
            PeewitError: A precision is not a positive finite number.

        Example:
            >>> la.with_prior(pw.Prior.unitwise()).tune().prior.precision.shape  # 8 units and 3, weights and biases
            torch.Size([22])
        """
        return Prior(groupings.Unitwise(), _as_precisions(precision, "Prior.unitwise").reshape(-1), mean)

    @staticmethod
    @spelled
    def inputwise(
        precision: Number | list[float] = 1.0, mean: Number = 0.0, *, weights: str | Iterable[str] = "*"
    ) -> Prior:
        """One precision per input of a layer, which tells relevant inputs from irrelevant ones.

        A group is an index along the second axis of a tensor: an input of a linear layer, a channel that a convolution
        takes. Each tensor with a single axis, such as a bias, and each that `weights` leaves out, is one group.

        Args:
            precision: One precision for all groups to start with, or one per group.
            mean: The mean of all weights, or a tensor (D,) with one per weight.
            weights: Which tensors have one precision per input: their names, those of modules, or patterns with `*`.
                The name of the first layer's weight gives one to each feature of the data.

        Returns:
            A prior with a group for each input.

        Raises:
            ArgumentTypeError: `weights` is neither a text nor several.
            PeewitError: A precision is not a positive finite number.

        Example:
            >>> prior = pw.Prior.inputwise(weights="0.weight")  # 2 features; the other three tensors have one each
            >>> la.with_prior(prior).tune().prior.precision.shape
            torch.Size([5])
        """
        patterns = (weights,) if isinstance(weights, str) else tuple(weights) if isinstance(weights, Iterable) else ()
        if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
            raise ArgumentTypeError(
                f"Prior.inputwise: weights={weights!r} was given; expected the name of a parameter, or several."
            )
        return Prior(groupings.Inputwise(patterns), _as_precisions(precision, "Prior.inputwise").reshape(-1), mean)

    @staticmethod
    @spelled
    def g_prior(precision: Number = 1.0, mean: Number = 0.0) -> Prior:
        """A g-prior: precisions in proportion to the diagonal of the curvature, `delta_i = precision * diag(H)_i / N`.

        The curvature H is that at noise 1, and N counts the examples. `pw.fit` and `la.with_prior` fix the ratios;
        tuning learns the one factor.

        Args:
            precision: The factor g; 1 says as much about a weight as one average example does.
            mean: The mean of all weights, or a tensor (D,) with one per weight.

        Returns:
            A prior with one group, whose ratios are not fixed yet.

        Raises:
            PeewitError: A precision is not a positive finite number, or there are several.

        Example:
            >>> la.with_prior(pw.Prior.g_prior(0.5)).prior.base.shape
            torch.Size([51])
        """
        precisions = _as_precisions(precision, "Prior.g_prior")
        if precisions.numel() != 1:
            raise PeewitError(f"Prior.g_prior: {precisions.numel()} precisions were given; expected one factor.")
        return Prior(groupings.GPrior(), precisions.reshape(1), mean)

    @staticmethod
    @spelled
    def groups(precisions: Mapping[str, float], mean: Number = 0.0) -> Prior:
        """One precision per group of parameter tensors, which patterns of their names choose.

        Args:
            precisions: From patterns, with `*` for any text, to the precision of the group. The first pattern that fits
                a name has it, and every name needs one.
            mean: The mean of all weights, or a tensor (D,) with one per weight.

        Returns:
            A prior with a group for each pattern.

        Raises:
            ArgumentTypeError: `precisions` is not a mapping from texts to numbers.
            PeewitError: A precision is not a positive finite number.

        Example:
            >>> la.with_prior(pw.Prior.groups({"0.*": 1.0, "*": 5.0})).prior.precision
            tensor([1., 5.], dtype=torch.float64)
        """
        named = isinstance(precisions, Mapping) and all(isinstance(pattern, str) for pattern in precisions)
        if not named or not precisions:
            raise ArgumentTypeError(
                f"Prior.groups: {precisions!r} was given; expected a mapping from patterns of parameter names to "
                "precisions, such as {'head': 1.0, '*': 10.0}."
            )
        return Prior(
            groupings.NamedGroups(tuple(precisions)), _as_precisions([*precisions.values()], "Prior.groups"), mean
        )

    @staticmethod
    @spelled
    def scale_invariant(
        model: nn.Module,
        data: Data,
        *,
        merge: bool = False,
        precision: Number | list[float] = 1.0,
        mean: Number = 0.0,
        memory: float | None = None,
        progress: bool = False,
    ) -> Prior:
        """One precision per parameter tensor, with the sets of tensors whose common scale changes no output.

        A weight before a batch norm is such a set. The search evaluates the network a few times per tensor, on up to 64
        examples of the first batch of `data`. The sets stand in `prior.sets` and in `la.coverage()`.

        Args:
            model: The network.
            data: The data that it will be fitted to, in any form that `pw.fit` takes.
            merge: One precision for each set, and one for each other tensor.
            precision: One precision for all groups to start with, or one per group.
            mean: The mean of all weights, or a tensor (D,) with one per weight.
            memory: Bytes for what the layers return: with few, fewer examples are used, at least 8. None for 64.
            progress: Whether to show progress bars.

        Returns:
            A prior with a group for each parameter tensor or, merged, for each set and each other tensor.

        Raises:
            PeewitError: A precision is not a positive finite number, the first batch has 1 example, or `memory` is not
                positive.
            ArgumentTypeError: The data has the wrong type.
            NotFiniteError: The network's outputs hold NaN or Inf.

        Example:
            >>> normed = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
            >>> pw.Prior.scale_invariant(normed, (x, y)).sets
            (('0.weight', '0.bias'),)
        """
        precisions = _as_precisions(precision, "Prior.scale_invariant").reshape(-1)
        sets = invariant_sets(model, data, memory, progress)
        return Prior(groupings.ScaleInvariant(sets) if merge else groupings.Layerwise(sets), precisions, mean)

    def __dir__(self) -> list[str]:
        """What is for users."""
        return names_for_users(self, ENGINE)

    @property
    def sets(self) -> groupings.Sets:
        """Names of weights whose common scale does not matter, where the grouping has them."""
        return self.grouping.sets

    def group(self, space: Space) -> Tensor:
        """(D,): the number of each weight's group."""
        return self.stretches(space).vector()

    def stretches(self, space: Space) -> Groups:
        """The group of each weight, without a number for each weight."""
        self.count(space)
        return self.grouping.stretches(space)

    def refuse_unknown(self, names: Iterable[str]) -> None:
        """Refuse a pattern that fits none of a network's parameters, most likely misspelt, and sets of another's."""
        parameters = list(names)
        strange = [name for invariant_set in self.sets for name in invariant_set if name not in parameters]
        if strange:
            raise PeewitError(
                f"Prior.scale_invariant has sets with {', '.join(strange[:4])}, which the network does not have; find "
                "them on this network: Prior.scale_invariant(model, data)."
            )
        self.grouping.refuse_unknown(parameters)

    def count(self, space: Space) -> int:
        """How many groups the selected weights fall into; refuses precisions and means that do not fit them."""
        self.grouping.tensors(space)  # refuses a tensor that is in no group
        groups = len(self.grouping.names(space))
        if self.precision.numel() not in (1, groups):
            raise PeewitError(
                f"Prior.{self.grouping.name}: {self.precision.numel()} precisions were given; expected "
                f"{'1' if groups == 1 else f'1 or {groups}'} for the selected weights."
            )
        if isinstance(self.mean, Tensor) and self.mean.numel() not in (1, space.size):
            raise PeewitError(f"The prior's mean has {self.mean.numel()} numbers; expected 1 or {space.size}.")
        if self.base is not None and self.base.numel() != space.size:
            raise PeewitError(
                f"Prior.{self.grouping.name} was bound to the curvature of {self.base.numel()} weights, and "
                f"{space.size} are selected; give an unbound Prior.{self.grouping.name}(...)."
            )
        return groups

    def names(self, space: Space) -> Sequence[str]:
        """What each group is called."""
        return self.grouping.names(space)

    def straddling(self, space: Space, sets: Iterable[tuple[str, ...]] | None = None) -> list[tuple[str, ...]]:
        """Sets (its own, or others) whose precision some weights outside of the set share, not all by their curvature.

        Their scale then decides how large the precision of the others is.
        """
        numbers = {} if self.grouping.by_curvature else self.grouping.tensors(space)
        straddling = []
        for names in self.sets if sets is None else sets:
            inside = {numbers[name] for name in names if name in numbers}
            if any(number in inside for name, number in numbers.items() if name not in names):
                straddling.append(names)
        return straddling

    def bind(self, curvature: WithDiagonal, examples: int) -> Prior:
        """A g-prior with the ratios of a curvature; any other prior, or one already bound, is itself."""
        if not self.grouping.by_curvature or self.base is not None:
            return self
        return self._changed(base=(curvature.diag(FLOOR) / examples).detach())

    @property
    def least(self) -> float:
        """The precision beside which rounding must not show: the smallest, and at most one, for it may be tuned."""
        return min(1.0, float(self.precision.detach().min()))

    def delta(self, space: Space, like: Tensor) -> Tensor:
        """(D,): the precision of each weight, differentiable in `precision`."""
        groups = self.count(space)
        narrow = self.precision.to(like.dtype)
        if not bool(torch.isfinite(narrow.detach()).all()) or not bool((narrow.detach() > 0).all()):
            raise PeewitError(
                f"Prior.{self.grouping.name}: precisions from {float(self.precision.min()):.3g} to "
                f"{float(self.precision.max()):.3g} are outside the range of {like.dtype}; use others, or a network in "
                "float64."
            )
        precision = narrow.to(like.device)
        if self.grouping.by_curvature:
            if self.base is None:
                raise PeewitError("Prior.g_prior takes its ratios from a curvature; use la.with_prior, or prior.bind.")
            return precision * self.base.to(device=like.device, dtype=like.dtype)
        if precision.numel() == 1:
            return precision.expand(space.size)
        numbers = self.stretches(space)
        if not precision.requires_grad:
            return numbers.spread(precision.expand(groups))
        return precision.expand(groups)[numbers.vector().to(like.device)]  # whose gradient is the same every time

    def parts(self, space: Space, like: Tensor) -> Callable[[slice], Tensor]:
        """What `delta` has of some weights, without making all of it."""
        if self.grouping.by_curvature and self.base is not None:
            precision, base = self.precision.detach().to(like), self.base.to(like)
            return lambda chosen: precision * base[chosen]
        if self.precision.numel() == 1:
            return self.delta(space, like).detach().__getitem__  # one number, expanded
        numbers, values = self.stretches(space), self.precision.detach().to(like)
        return lambda chosen: numbers.part(values, chosen)

    def only(self, space: Space, remaining: Space) -> Prior:
        """The prior of the weights that are left after unused ones were taken out."""
        if remaining.names == space.names:
            return self
        positions = positions_among(space, remaining)
        precision, mean, base = self.precision, self.mean, self.base
        if precision.numel() > 1:
            precision = precision[self.grouping.find_numbers(space, remaining).to(precision.device)]
        if base is not None:
            base = base[positions.to(base.device)]
        if isinstance(mean, Tensor) and mean.numel() > 1:
            mean = mean.reshape(-1)[positions.to(mean.device)]
        return self._changed(precision=precision, mean=mean, base=base)

    def carry_over(self, space: Space, more: Space) -> Prior:
        """The prior of more weights: groups are numbered as weights come, so numbers go along with their names."""
        numbers = None if self.precision.numel() == 1 else self.grouping.carry_over(space, more)
        return self if numbers is None else self._changed(precision=self.precision[numbers])

    def centre(self, space: Space, like: Tensor) -> Tensor:
        """(D,): the prior's mean."""
        self.count(space)
        mean = torch.as_tensor(self.mean, dtype=None if isinstance(self.mean, Tensor) else torch.float64)
        return mean.to(device=like.device, dtype=like.dtype).reshape(-1).expand(space.size)

    @spelled
    def with_precision(self, precision: Number) -> Prior:
        """The same groups and mean with other precisions.

        Args:
            precision: One precision for all groups, or one per group; a tensor may require gradients.

        Returns:
            Another prior; this one stays as it is.

        Raises:
            PeewitError: A precision is not a positive finite number.

        Example:
            >>> pw.Prior.layerwise().with_precision(3.0).precision
            tensor([3.], dtype=torch.float64)
        """
        return self._changed(precision=_as_precisions(precision, f"Prior.{self.grouping.name}").reshape(-1).clone())


def as_prior(value: Prior | Number, like: Prior | None = None) -> Prior:
    """A number is one precision for all weights; several take the groups of `like`, and both its mean."""
    if isinstance(value, Prior):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise ArgumentTypeError(f"prior is a {type(value).__name__}; expected a positive number or a Prior.")
    if like is None:
        return Prior.scalar(value)
    if isinstance(value, Tensor) and value.numel() > 1:
        return like.with_precision(value)
    return Prior.scalar(value, like.mean)
