"""Kronecker-factored curvature: `A (x) G` per weight, and its eigenvalue-corrected form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from ...messages.errors import PeewitError
from ...messages.names import spelled_class
from ...weights.space import Space
from ..contracts import Structure
from ..stream import Source
from .factors import KronSums
from .kron_curvature import KronCurvature, decompose
from .passes import measure_corrections, measure_factors
from .sides import eigenvectors_of
from .sums import check_sums, join_sums


@spelled_class
@dataclass(frozen=True)
class Kron(Structure):
    """KFAC: the curvature of each weight as a Kronecker product of two small factors.

    A weight with O outputs and I inputs has factors (O, O), from the gradients of its outputs, and (I, I), from its
    inputs. As `structure="kron"` it is the default of `pw.fit`. It cannot hold single elements of a tensor, so it takes
    neither masks nor a `Subnetwork`.

    Args:
        approx: How a layer that applies its weight at several positions is treated, such as a convolution. "expand"
            treats positions as independent; "reduce" sums over them first; "auto" is "reduce" where the likelihood has
            one position per example, and "expand" otherwise.
        bias: "separate" gives weight and bias a block each; "joint" puts both into one block, with the bias as another
            input.

    Raises:
        PeewitError: `approx` or `bias` is none of the above.

    Example:
        >>> pw.fit(model, (x, y), "classification", structure=pw.Kron(approx="reduce")).structure
        Kron(approx='reduce', bias='separate')
    """

    approx: Literal["expand", "reduce", "auto"] = "expand"
    bias: Literal["separate", "joint"] = "separate"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("approx", self.approx, ("expand", "reduce", "auto")),
            ("bias", self.bias, ("separate", "joint")),
        ):
            if value not in known:
                raise PeewitError(f"{type(self).__name__}({name}={value!r}): expected one of {known}.")

    def measure(self, source: Source) -> KronSums:
        # One pass over the data.
        return measure_factors(self.approx, self.bias, source)

    def more(self, source: Source, earlier: KronSums) -> KronSums:
        return join_sums(earlier, measure_factors(self.approx, self.bias, source, earlier), source.task.space)

    def check(self, sums: KronSums, space: Space) -> None:
        check_sums(sums, space, corrected=False)

    def scale(self, sums: KronSums, factor: float) -> KronSums:
        return sums.scale(factor)

    def curvature(self, sums: KronSums, space: Space) -> KronCurvature:
        # Eigenvectors and eigenvalues of every factor.
        return decompose(sums, space, self._words())

    def _words(self) -> str:
        joint = ", joint bias" if self.bias == "joint" else ""
        return f"Kronecker ({self.approx}{joint})"


@spelled_class
@dataclass(frozen=True)
class EKFAC(Structure):
    """KFAC's eigenvectors with the exact second moments along them (eigenvalue-corrected Kronecker factors).

    It passes over the data twice, so it refuses one-shot iterators. `structure="ekfac"` means `EKFAC()`. It cannot hold
    single elements of a tensor, so it takes neither masks nor a `Subnetwork`.

    Args:
        approx: How a layer that applies its weight at several positions is treated, such as a convolution. "expand"
            treats positions as independent; "reduce" sums over them first; "auto" is "reduce" where the likelihood has
            one position per example, and "expand" otherwise.
        bias: "separate" gives weight and bias a block each; "joint" puts both into one block, with the bias as another
            input.

    Raises:
        PeewitError: `approx` or `bias` is none of the above.

    Example:
        >>> pw.fit(model, (x, y), "classification", structure=pw.EKFAC()).coverage()["0.weight"].approximation
        'eigenvalue-corrected Kronecker (expand)'
    """

    approx: Literal["expand", "reduce", "auto"] = "expand"
    bias: Literal["separate", "joint"] = "separate"
    keeps_bases = True

    def __post_init__(self) -> None:
        Kron(self.approx, self.bias)

    def measure(self, source: Source) -> KronSums:
        # Factors first, then the second moments in their eigenbases.
        return self._measure(source, KronSums())

    def more(self, source: Source, earlier: KronSums) -> KronSums:
        # Sums over earlier data and this, in the eigenbases of the earlier.
        return join_sums(earlier, self._measure(source, earlier), source.task.space)

    def check(self, sums: KronSums, space: Space) -> None:
        check_sums(sums, space, corrected=True)

    def scale(self, sums: KronSums, factor: float) -> KronSums:
        return sums.scale(factor)

    def _measure(self, source: Source, earlier: KronSums) -> KronSums:
        source.task.data.refuse_one_shot("structure='ekfac' passes over the data twice")
        sums, bases = measure_factors(self.approx, self.bias, source, earlier), earlier.bases
        new = {key: layout for key, layout in sums.layouts.items() if key not in bases}
        sides = eigenvectors_of(replace(sums, layouts=new))
        sums.bases = {key: bases[key] if key in bases else rows_first(*sides[key][:2]) for key in sums.layouts}
        sums.factors = {}  # they were there for the bases alone
        return measure_corrections(sums, source)

    def curvature(self, sums: KronSums, space: Space) -> KronCurvature:
        # The bases and moments are already there.
        joint = ", joint bias" if self.bias == "joint" else ""
        return decompose(sums, space, f"eigenvalue-corrected Kronecker ({self.approx}{joint})")


def rows_first(left: Tensor | None, right: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Bases in memory as files hold them: products differ in their last bits otherwise."""
    return left if left is None else left.contiguous(), right if right is None else right.contiguous()
