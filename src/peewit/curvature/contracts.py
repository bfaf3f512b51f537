"""The contracts everything is built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..messages.names import names_for_users
from ..network.values import change_tensors
from ..weights.ranges import WeightRange

if TYPE_CHECKING:
    from ..jacobians.stacked import Jacobian
    from ..weights.groups import Groups
    from ..weights.space import Space
    from .blocks import Blocks
    from .stream import Source


# What the library asks of a structure: `dir` shows the rest.
ENGINE = {
    "measure", "more", "check", "curvature", "scale", "groups", "masks", "holds_hessian", "keeps_bases", "enough",
}  # fmt: skip


@dataclass(frozen=True)
class Peak:
    """The largest eigenvalue of a block of the curvature, before the noise, and the dtype of its sums."""

    parts: tuple[WeightRange, ...]
    largest: Tensor
    dtype: torch.dtype


@runtime_checkable
class Precision(Protocol):
    """All that inference needs of `P = data_weight H + diag(delta)`."""

    def mv(self, v: Tensor) -> Tensor:
        """P v for v (..., D)."""
        ...

    def solve(self, v: Tensor) -> Tensor:
        """P^-1 v."""
        ...

    def root(self, eps: Tensor) -> Tensor:
        """R eps with R R^T = P^-1."""
        ...

    def logdet(self) -> Tensor:
        """Log |P|, differentiable in delta and data_weight."""
        ...

    def variance(self) -> Tensor:
        """(D,): the diagonal of P^-1."""
        ...

    def half(self, jacobian: Jacobian, examples: slice) -> Tensor:
        """(b, K, P): `J R` for some examples, so that `half half^T = J P^-1 J^T`."""
        ...

    def quad(self, jacobian: Jacobian, variance_only: bool = False) -> Tensor:
        """(B, K, K), or (B, K): `J P^-1 J^T` per example."""
        ...


class Curvature(ABC):
    """Decomposed curvature: cheap to evaluate for many priors and noises."""

    elementwise: ClassVar[bool] = False  # whether every weight can have a prior precision of its own

    @abstractmethod
    def precision(self, delta: Tensor, data_weight: Tensor, numbers: Tensor | None = None) -> Blocks:
        """`data_weight H + diag(delta)`; delta (D,), data_weight () is `noise_precision^degree / T`.

        `numbers` (D,) says which weights share a precision, where gradients in precisions that happen to agree are
        wanted.
        """

    @abstractmethod
    def diag(self, floor: float = 0.0) -> Tensor:
        """(D,): diag(H), at least a share `floor` of its mean over the tensor."""

    @abstractmethod
    def spectrum(self, groups: Groups, base: Tensor | None = None) -> Tensor | None:
        """(D,): `l` with `log |w H + diag(p[group] base)| = sum log(w l + p[group]) + sum log base`.

        In the order of the weights, or another within a group; None where the prior has several precisions in one
        block, and so no such form.
        """

    @abstractmethod
    def approximation(self, name: str) -> str:
        """What a weight got, in words."""

    def peaks(self) -> list[Peak]:
        """The largest eigenvalues of blocks whose decomposition rounds; none where weights are independent."""
        return []


class Structure(ABC):
    """How curvature is stored: measured additively over batches, decomposed once.

    Derive a class from it to store the curvature in another way. Sums are nested mappings, tuples and frozen
    dataclasses of tensors, which files hold by the annotation of what `measure` returns.

    Attributes:
        masks: Whether single elements of a tensor can be selected. By default not.
        holds_hessian: Whether the sums are one matrix over all weights. By default not.
        keeps_bases: Whether later data are measured along eigenvectors of the earlier. By default not.
        enough: Bytes of memory beyond which a fit gains nothing. By default None: there is no such limit.

    Example:
        >>> from peewit.curvature.contracts import Structure
        >>> isinstance(pw.Kron(), Structure), pw.Diag.masks, pw.Kron.masks
        (True, True, False)
    """

    masks: ClassVar[bool] = False  # whether single elements of a tensor can be selected
    holds_hessian: ClassVar[bool] = False  # whether its sums are one matrix over all weights
    keeps_bases: ClassVar[bool] = False  # whether later data are measured along eigenvectors of the earlier
    enough: ClassVar[int | None] = None  # bytes of a budget beyond which a fit gains nothing; None: none

    @abstractmethod
    def measure(self, source: Source) -> Any:
        """Add the curvature up over all data.

        Args:
            source: Passes over the data: batches, which `probes()` takes apart into Jacobians by range of a weight.

        Returns:
            The sums.
        """

    @abstractmethod
    def more(self, source: Source, earlier: Any) -> Any:
        """Add the curvature of more data to earlier sums, for `Laplace.update`.

        Args:
            source: Passes over the further data.
            earlier: What `measure` returned, which stays as it is.

        Returns:
            The sums over all data.
        """

    @abstractmethod
    def check(self, sums: Any, space: Space) -> None:
        """Refuse sums from a file that are not of these weights.

        Args:
            sums: What the file holds.
            space: The uncertain weights.

        Raises:
            PeewitError: The sums have other names, shapes or values than `measure` returns for these weights.
        """

    @abstractmethod
    def curvature(self, sums: Any, space: Space) -> Curvature:
        """Decompose the sums, so that precisions for many priors and noises are cheap.

        Args:
            sums: What `measure` returned.
            space: The uncertain weights.

        Returns:
            A `peewit.curvature.contracts.Curvature`.
        """

    def scale(self, sums: Any, factor: float) -> Any:
        """Count the data of some sums less, or more: sums that make `factor` times the curvature.

        Override it where not all floating point tensors of the sums are added up over data.

        Args:
            sums: What `measure` returned, which stays as it is.
            factor: A positive number.

        Returns:
            Other sums.
        """
        return change_tensors(sums, lambda tensor: tensor * factor if tensor.is_floating_point() else tensor)

    def __dir__(self) -> list[str]:
        """What is for users."""
        return names_for_users(self, ENGINE)
