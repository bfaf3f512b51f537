"""Kronecker-factored curvature: `A (x) G` per weight, and its eigenvalue-corrected form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ...jacobians.layout import Layout, join, part_ways
from ...messages.errors import PeewitError
from ...network.finite import refuse_broken_curvature
from ...weights.groups import Groups
from ...weights.ranges import WeightRange
from ...weights.space import Space
from ..blocks import Blocks, OperatorBlock
from ..contracts import Peak
from ..operators import DenseOperator, DiagonalOperator, Dual, RotatedOperator
from ..stream import Source
from .common import filled, floored, narrowed
from .eigen import decompose_side, decompose_sides, eigenvalues_meanwhile
from .factors import LARGEST_SIDE, Key, KronFactors, KronSums
from .passes import measure_corrections, measure_factors
from .sums import check_sums, joined_sums


@dataclass(frozen=True)
class Kron:
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
    masks = False

    def __post_init__(self) -> None:
        for name, given, known in (
            ("approx", self.approx, ("expand", "reduce", "auto")),
            ("bias", self.bias, ("separate", "joint")),
        ):
            if given not in known:
                raise PeewitError(f"{type(self).__name__}({name}={given!r}): expected one of {known}.")

    def measure(self, source: Source) -> KronSums:
        """One pass over the data."""
        return measure_factors(self.approx, self.bias, source)

    def more(self, source: Source, earlier: KronSums) -> KronSums:
        """Sums over earlier data and this."""
        return joined_sums(earlier, measure_factors(self.approx, self.bias, source, earlier), source.task.space)

    def check(self, sums: KronSums, space: Space) -> None:
        """Refuse sums that are not of these weights."""
        check_sums(sums, space, corrected=False)

    def curvature(self, sums: KronSums, space: Space) -> KronCurvature:
        """Eigenvectors and eigenvalues of every factor."""
        return decompose(sums, space, self._words())

    def _words(self) -> str:
        joint = ", joint bias" if self.bias == "joint" else ""
        return f"Kronecker ({self.approx}{joint})"


@dataclass(frozen=True)
class EKFAC:
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
    masks = False

    def __post_init__(self) -> None:
        Kron(self.approx, self.bias)

    def measure(self, source: Source) -> KronSums:
        """Factors first, then the second moments in their eigenbases."""
        return self._measure(source, KronSums())

    def more(self, source: Source, earlier: KronSums) -> KronSums:
        """Sums over earlier data and this, in the eigenbases of the earlier."""
        return joined_sums(earlier, self._measure(source, earlier), source.task.space)

    def check(self, sums: KronSums, space: Space) -> None:
        """Refuse sums that are not of these weights."""
        check_sums(sums, space, corrected=True)

    def _measure(self, source: Source, earlier: KronSums) -> KronSums:
        if source.task.data.one_shot:
            raise PeewitError(
                "structure='ekfac' passes over the data twice, and a one-shot iterator was given; "
                "expected a DataLoader, a list of batches or tensors."
            )
        sums, bases = measure_factors(self.approx, self.bias, source, earlier), earlier.bases
        new = {key: layout for key, layout in sums.layouts.items() if key not in bases}
        found = eigen(replace(sums, layouts=new))
        sums.bases = {key: bases[key] if key in bases else rows_first(*found[key][:2]) for key in sums.layouts}
        sums.factors = {}  # they were there for the bases alone
        return measure_corrections(sums, source)

    def curvature(self, sums: KronSums, space: Space) -> KronCurvature:
        """The bases and moments are already there."""
        joint = ", joint bias" if self.bias == "joint" else ""
        return decompose(sums, space, f"eigenvalue-corrected Kronecker ({self.approx}{joint})")


def rows_first(left: Tensor | None, right: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Bases in memory as files hold them: products differ in their last bits otherwise."""
    return left if left is None else left.contiguous(), right if right is None else right.contiguous()


def eigen(sums: KronSums) -> dict[Key, tuple[Tensor | None, Tensor | None, Tensor, Tensor]]:
    """Eigenvectors and eigenvalues of the row side and the column side of every weight."""
    asked: list[tuple[str, Tensor]] = []
    places: dict[Key, tuple[int, int]] = {}
    known: dict[str, list[int]] = {}  # by module: a bias has the row side of its weight, or its columns' if transposed

    def place(name: str, side: Tensor) -> int:
        own = known.setdefault(name.rpartition(".")[0], [])
        alike = [each for each in own if same(asked[each][1], side)]
        if not alike:
            own.append(len(asked))
            asked.append((name, side))
        return alike[0] if alike else own[-1]

    for key in sums.layouts:
        rows, columns = sides(sums.of(key))
        places[key] = (place(key[0].name, rows), place(key[0].name, columns))
    found = decompose_sides(asked)
    return {
        key: (found[row][0], found[column][0], found[row][1], found[column][1]) for key, (row, column) in places.items()
    }


def same(side: Tensor, other: Tensor) -> bool:
    """Whether two sides are equal."""
    return side.shape == other.shape and side.dtype == other.dtype and torch.equal(side, other)


def sides(own: dict[bool, KronFactors]) -> tuple[Tensor, Tensor]:
    """Row-side and column-side factors with `block = rows (x) columns`."""
    pairs = []
    for flipped, factors in own.items():
        inputs = factors.inputs / max(factors.count, 1.0)
        pairs.append((inputs, factors.gradients) if flipped else (factors.gradients, inputs))
    if len(pairs) == 1:
        return pairs[0]
    # Used in both orientations: shapes are averaged by how much curvature each brings, strengths are added.
    tiny = torch.finfo(pairs[0][0].dtype).tiny
    traces = [trace(rows).clamp(min=tiny) for rows, _ in pairs]
    strengths = [trace(columns) * size for (_, columns), size in zip(pairs, traces, strict=True)]
    total = (strengths[0] + strengths[1]).clamp(min=tiny)
    shares = [strength / total / size for strength, size in zip(strengths, traces, strict=True)]
    return (
        blend([rows for rows, _ in pairs], shares),
        blend([columns for _, columns in pairs], traces),
    )


def blend(parts: list[Tensor], weights: list[Tensor]) -> Tensor:
    """A weighted sum of two sides: diagonal where both are, for then they may be too long to be spread."""
    if any(side.dim() == 3 for side in parts):
        parts = [spread(side) for side in parts]
    first, second = (
        side * weight.reshape(-1, *[1] * (side.dim() - 1)) for side, weight in zip(parts, weights, strict=True)
    )
    return first + second


def trace(side: Tensor) -> Tensor:
    """(G,)."""
    return side.sum(-1) if side.dim() == 2 else side.diagonal(dim1=-2, dim2=-1).sum(-1)


def spread(side: Tensor) -> Tensor:
    """(G, n, n), from a diagonal where it is one."""
    return torch.diag_embed(side) if side.dim() == 2 else side


def decompose(sums: KronSums, space: Space, words: str) -> KronCurvature:
    """All blocks, ready for any prior."""
    blocks: dict[Key, KronSpectrum] = {}
    refuse_broken_curvature((part.name, value) for part, value in sums.others.items())
    refuse_broken_curvature((key[0].name, value) for key, value in sums.corrected.items())
    others = {part: value for part, value in sums.others.items() if part.name in space.names}
    dense = eigenvalues_meanwhile({part: value for part, value in others.items() if value.dim() == 2})
    found = {} if sums.bases else eigen(sums)
    for key, layout in sums.layouts.items():
        if key[0].name not in space.names:
            continue
        if sums.bases:  # corrected: the eigenvectors were needed to measure
            left, right = sums.bases[key]
            values, factors = sums.corrected[key], None
        else:
            left, right, row_values, column_values = found[key]
            values, factors = row_values[:, :, None] * column_values[:, None, :], sums.of(key)
        blocks[key] = KronSpectrum(
            layout=layout, left=left, right=right, values=values, weight=sums.weights.get(key), factors=factors
        )
    return KronCurvature(blocks=blocks, others=others, space=space, words=words, eigenvalues=dense())


@dataclass(frozen=True, kw_only=True)
class KronSpectrum:
    """One weight's eigenbases (row side, column side) and eigenvalues (G, O, I)."""

    layout: Layout
    left: Tensor | None
    right: Tensor | None
    values: Tensor
    weight: Layout | None = None  # the weight's own layout, in a block that it shares with its bias
    factors: dict[bool, KronFactors] | None = None  # the sums themselves, where the product of factors is the block

    @property
    def sides(self) -> tuple[Tensor, Tensor] | None:
        """The factors, made when a prior needs them: the sums are held anyway."""
        return None if self.factors is None else sides(self.factors)

    def precision(self, delta: Tensor, data_weight: Tensor, key: Key, numbers: Tensor | None = None) -> RotatedOperator:
        """`data_weight H + diag(delta)` for delta (G, O, I); `numbers` alike: which of them are one number."""
        data_weight = data_weight.to(self.values)
        same = delta.detach() if numbers is None else numbers
        if not any(same.stride()) or bool((same == same[:1, :1, :1]).all()):
            return self._rotated(data_weight * self.values + delta[:1, :1, :1], self.left, self.right, delta.dtype)
        rows, columns = self._product(delta, key, numbers)
        return self._scaled(rows, columns, data_weight, key)

    def _rotated(
        self, values: Tensor, left: Tensor | None, right: Tensor | None, dtype: torch.dtype, dual: Dual | None = None
    ) -> RotatedOperator:
        """In the dtype of the weights: float64 is needed to find eigenvectors, not to turn by them."""
        return RotatedOperator(
            values=values.to(dtype),
            layout=self.layout,
            left=narrowed(left, dtype),
            right=narrowed(right, dtype),
            dual=dual,
        )

    def _product(self, delta: Tensor, key: Key, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
        """(G, O, 1) and (G, 1, I) whose product is delta, whatever its numbers are; refused where there are none."""
        if numbers is not None:
            if bool((numbers == numbers[:, :, :1]).all()):
                return delta[:, :, :1], torch.ones_like(delta[:, :1, :])
            if bool((numbers == numbers[:, :1, :]).all()):
                return torch.ones_like(delta[:, :, :1]), delta[:, :1, :]
        rows, columns = delta[:, :, :1], delta[:, :1, :] / delta[:, :1, :1]
        rtol = 1e-6 if delta.dtype == torch.float64 else 1e-5  # a base may come of a fit in float32
        if numbers is not None or not torch.allclose(rows * columns, delta, rtol=rtol, atol=0):
            alternative = "" if len(key) == 1 else "Kron(bias='separate'), "
            raise PeewitError(
                f"The prior has different precisions inside {key[0].name!r} that are no product of one per row and one "
                f"per column, which a Kronecker block cannot hold exactly; use {alternative}a scalar or layerwise "
                "prior, or structure='diag', 'block' or 'full'."
            )
        return rows, columns

    def eigenvalues(self, base: Tensor | None, key: Key) -> Tensor:
        """(P,): of the block, or of `B^-1/2 block B^-1/2` with base (G, O, I)."""
        if base is None:
            return self.values.flatten()
        if bool((base == base[:1, :1, :1]).all()):
            return (self.values / base[:1, :1, :1]).flatten()
        rows, columns = self._product(base, key, None)
        (_, _, left, above), (_, _, right, beside) = self._whitened(rows, columns, key)
        return ((left / above)[:, :, None] * (right / beside)[:, None, :]).flatten()

    def peaks(self, key: Key) -> list[Peak]:
        """Of this block; its eigenvectors are as exact as its sums."""
        sides = [basis for basis in (self.left, self.right) if basis is not None and basis.shape[-1] > 1]
        coarse = any(basis.dtype == torch.float32 for basis in sides)
        dtype = torch.float32 if coarse else torch.float64
        return [Peak(key, self.values.detach().amax(), dtype)] if sides else []

    def diagonal(self, floor: float) -> Tensor:
        """(G, O, I): with a floor on each side where the block is a product, so that it stays one."""
        found = self.sides
        if found is None:
            made = self.values.double()  # bases may be in float64 where the moments are not
            made = made if self.left is None else self.left.double().square() @ made
            made = made if self.right is None else made @ self.right.double().square().mT
            return floored(made.to(self.values.dtype), floor)
        rows, columns = (floored(side if side.dim() == 2 else side.diagonal(dim1=-2, dim2=-1), floor) for side in found)
        return rows[:, :, None] * columns[:, None, :]

    def _whitened(self, rows: Tensor, columns: Tensor, key: Key) -> tuple[Whitened, Whitened]:
        """Both sides under their share of the prior."""
        found = self.sides
        if found is None:
            alternative = "structure='kron', or a scalar or layerwise prior"
            if len(key) > 1:
                alternative = "EKFAC(bias='separate') with a layerwise prior, structure='kron', or a scalar prior"
            raise PeewitError(
                f"The prior has different precisions inside {key[0].name!r}, which an eigenvalue-corrected block "
                f"cannot hold exactly; use {alternative}."
            )
        return (
            whitened(found[0], self.left, rows[:, :, 0], key[0].name),
            whitened(found[1], self.right, columns[:, 0, :], key[0].name),
        )

    def _scaled(self, rows: Tensor, columns: Tensor, data_weight: Tensor, key: Key) -> RotatedOperator:
        """`D^1/2 (data_weight D^-1/2 H D^-1/2 + I) D^1/2` with `D = rows (x) columns`: exact, and Kronecker again."""
        sides = self._whitened(rows, columns, key)
        (left, dual_left, left_values, above), (right, dual_right, right_values, beside) = sides
        values = (
            data_weight * left_values[:, :, None] * right_values[:, None, :] + above[:, :, None] * beside[:, None, :]
        )
        _, height, width = self.layout.matrix
        volume = values.new_zeros((), dtype=torch.float64)
        for side, held, times in ((rows[:, :, 0], above, width), (columns[:, 0, :], beside, height)):
            change = side.double().log() - held.double().expand(side.shape).log()
            volume = volume + times * change.sum()
        dtype = rows.dtype
        dual = Dual(narrowed(dual_left, dtype), narrowed(dual_right, dtype), volume)
        return self._rotated(values, left, right, dtype, dual)


Whitened = tuple[Tensor | None, Tensor | None, Tensor, Tensor]


def whitened(side: Tensor, basis: Tensor | None, precision: Tensor, name: str) -> Whitened:
    """Basis, its inverse transpose, eigenvalues and remaining precision of a factor under its side of the prior.

    A diagonal side keeps its precisions beside the eigenvalues; another takes them into its basis as `D^-1/2`.
    """
    precision = precision.expand(side.shape[:2]).to(side.dtype)  # roots that are rounded otherwise spoil the side
    if basis is None:
        return None, None, side.clamp(min=0), precision
    root = precision.sqrt()
    vectors, values = decompose_side(side / (root[:, :, None] * root[:, None, :]), name)
    assert vectors is not None
    vectors = vectors.detach()
    return vectors / root[:, :, None], vectors * root[:, :, None], values, torch.ones_like(precision)


@dataclass(frozen=True, kw_only=True)
class KronCurvature:
    """Kronecker blocks, and dense or diagonal ones for the rest."""

    blocks: dict[Key, KronSpectrum]
    others: dict[WeightRange, Tensor]
    space: Space
    words: str
    eigenvalues: dict[WeightRange, Tensor]  # in float64, of the others that are matrices

    elementwise = False

    def precision(self, delta: Tensor, data_weight: Tensor, numbers: Tensor | None = None) -> Blocks:
        """`data_weight H + diag(delta)`: one precision per weight keeps the eigenbases."""
        made = []
        for key, spectrum in self.blocks.items():
            slices = tuple(self.space.place(part) for part in key)
            own = None if numbers is None else self._matrix(numbers, key, spectrum)
            operator = spectrum.precision(self._matrix(delta, key, spectrum), data_weight, key, own)
            made.append(OperatorBlock(parts=key, slices=slices, operator=operator, joint=spectrum.weight))
        for part, value in self.others.items():
            place = self.space.place(part)
            if value.dim() == 2:
                made.append(
                    OperatorBlock(
                        parts=(part,),
                        slices=(place,),
                        operator=DenseOperator(data_weight.to(value) * value + torch.diag(delta[place])),
                    )
                )
            else:
                made.append(
                    OperatorBlock(
                        parts=(part,),
                        slices=(place,),
                        operator=DiagonalOperator(data_weight.to(value) * value + delta[place]),
                    )
                )
        for place, part in self._unseen():
            made.append(OperatorBlock(parts=(part,), slices=(place,), operator=DiagonalOperator(delta[place])))
        return Blocks(made, self.space.size)

    def _matrix(self, flat: Tensor, key: Key, spectrum: KronSpectrum) -> Tensor:
        """(D,) -> (G, O, I): the numbers of one block."""
        pieces = [flat[self.space.place(part)] for part in key]
        return spectrum.layout.to_matrix(
            pieces[0] if spectrum.weight is None else join(pieces[0], pieces[1], spectrum.weight)
        )

    def diag(self, floor: float = 0.0) -> Tensor:
        """(D,): of a Kronecker block rows times columns."""
        made = self._some.new_zeros(self.space.size)
        for key, spectrum in self.blocks.items():
            flat = spectrum.layout.to_flat(spectrum.diagonal(floor))
            own = (flat,) if spectrum.weight is None else part_ways(flat, spectrum.weight)
            for part, piece in zip(key, own, strict=True):
                made[self.space.place(part)] = piece
        for part, value in self.others.items():
            made[self.space.place(part)] = floored(value.diagonal() if value.dim() == 2 else value, floor)
        return filled(made, floor)

    def spectrum(self, groups: Groups, base: Tensor | None = None) -> Tensor | None:
        """The blocks' eigenvalues, where each has one precision."""
        made = torch.zeros(self.space.size, dtype=torch.float64, device=self._some.device)
        for key, block in self.blocks.items():
            places = [self.space.place(part) for part in key]
            if not groups.shared(*places):
                return None
            values = block.eigenvalues(None if base is None else self._matrix(base, key, block), key).detach()
            pieces = values.split([place.stop - place.start for place in places])
            for place, piece in zip(places, pieces, strict=True):
                made[place] = piece
        for part, value in self.others.items():
            place = self.space.place(part)
            own = None if base is None else base[place].to(device=made.device, dtype=torch.float64)
            if value.dim() == 1:
                made[place] = value.detach() if own is None else value.detach().double() / own
                continue
            if not groups.shared(place):
                return None
            if own is None:
                made[place] = self.eigenvalues[part]
            else:
                made[place] = torch.linalg.eigvalsh(value.detach().double() / (own[:, None] * own).sqrt())
        return made

    def peaks(self) -> list[Peak]:
        """Of blocks that are no diagonals."""
        made = [peak for key, spectrum in self.blocks.items() for peak in spectrum.peaks(key)]
        dense = [(part, value) for part, value in self.others.items() if value.dim() == 2]
        return made + [Peak((part,), self.eigenvalues[part].amax(), value.dtype) for part, value in dense]

    @property
    def _some(self) -> Tensor:
        """Any tensor of the curvature: its dtype and device are those of all."""
        return next(iter([*(each.values for each in self.blocks.values()), *self.others.values()]))

    def _unseen(self) -> list[tuple[slice, WeightRange]]:
        """Ranges of used weights that no data touched (rows of a packed weight): the prior's alone."""
        taken = sorted([*(part for key in self.blocks for part in key), *self.others])
        made = []
        for whole in self.space.parts():
            start = 0
            for part in [
                *(part for part in taken if part.name == whole.name),
                WeightRange(whole.name, whole.stop, whole.stop),
            ]:
                if part.start > start:
                    gap = WeightRange(whole.name, start, part.start)
                    made.append((self.space.place(gap), gap))
                start = max(start, part.stop)
        return made

    def approximation(self, name: str) -> str:
        """For the coverage table."""
        for key, spectrum in self.blocks.items():
            if any(part.name == name for part in key):
                long = [
                    side
                    for side, basis, size in (
                        ("rows", spectrum.left, spectrum.layout.matrix[1]),
                        ("columns", spectrum.right, spectrum.layout.matrix[2]),
                    )
                    if basis is None and size > LARGEST_SIDE
                ]
                return self.words + (f", {' and '.join(long)} diagonal" if long else "")
        dense = any(part.name == name and value.dim() == 2 for part, value in self.others.items())
        return "dense block" if dense else "diagonal"
