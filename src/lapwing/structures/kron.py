"""Kronecker-factored curvature: `A (x) G` per weight, and its eigenvalue-corrected form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..curvature import Source
from ..jacobians import Explicit, Layout, Matrix, Term
from ..layers.base import Part
from ..operators import Block, Blocks, Dense, Diagonal, Rotated
from ..space import Space
from .common import sum_dtype

LARGEST_SIDE = 16_384  # a factor with a longer side keeps its diagonal
WORTH_SPLITTING = 3e10  # operations from which a symmetric product is done by halves: below, calls cost more
LARGEST_DENSE = 1_024  # norm and generic weights up to this size get a dense block
Key = tuple[Part, ...]  # one weight, or weight and bias of a joint block


@dataclass
class Factors:
    """Sums for one orientation of one weight: inputs (.., width, width), gradients, and positions counted.

    A side that is diagonal (one-hot inputs, or too long) is kept as a vector.
    """

    inputs: Tensor
    gradients: Tensor
    count: float = 0.0


@dataclass
class KronSums:
    """Additive sums: factors of matrix-shaped weights, dense or diagonal curvature of the others."""

    layouts: dict[Key, Layout] = field(default_factory=dict)
    weights: dict[Key, Layout] = field(default_factory=dict)  # of joint blocks: the weight's layout alone
    factors: dict[tuple[Key, bool], Factors] = field(default_factory=dict)
    others: dict[Part, Tensor] = field(default_factory=dict)
    corrected: dict[Key, Tensor] = field(default_factory=dict)
    bases: dict[Key, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)


def outer(rows: Tensor) -> Tensor:
    """(G, n, width) -> (G, width, width), or (G, width) for a side too long to square."""
    rows = rows.to(sum_dtype(rows.dtype))
    width = rows.shape[-1]
    if width > LARGEST_SIDE:
        return rows.square().sum(1)
    if width < 512 or rows.shape[1] < width or rows.shape[1] * width**2 < WORTH_SPLITTING:
        return rows.mT @ rows
    return symmetric(rows, 3 if rows.is_cuda else 4)


def symmetric(rows: Tensor, number: int) -> Tensor:
    """`rows^T rows` by its lower blocks alone (with four pieces 10 products of 16): the rest is their transpose.

    On a GPU three pieces were the fastest at widths from 576 to 2,304; with more, products no longer fill it.
    """
    pieces = rows.split(-(-rows.shape[-1] // number), -1)
    blocks = [[left.mT @ right for right in pieces[: place + 1]] for place, left in enumerate(pieces)]
    lines = [
        torch.cat([blocks[i][j] if j <= i else blocks[j][i].mT for j in range(len(pieces))], -1)
        for i in range(len(pieces))
    ]
    return torch.cat(lines, -2)


@dataclass(frozen=True)
class Kron:
    """KFAC: `expand` treats shared positions as independent, `reduce` sums over them first."""

    approx: Literal["expand", "reduce", "auto"] = "expand"
    bias: Literal["separate", "joint"] = "separate"
    masks = False
    elementwise = False  # one prior precision per weight would not keep the Kronecker form

    def __post_init__(self) -> None:
        for name, given, known in (
            ("approx", self.approx, ("expand", "reduce", "auto")),
            ("bias", self.bias, ("separate", "joint")),
        ):
            if given not in known:
                raise ValueError(f"{type(self).__name__}({name}={given!r}): expected one of {known}.")

    def measure(self, source: Source) -> KronSums:
        """One pass over the data."""
        return measure_factors(self, source)

    def curvature(self, sums: KronSums, space: Space) -> KronCurvature:
        """Eigenvectors and eigenvalues of every factor."""
        return decompose(sums, space, self._words())

    def _words(self) -> str:
        joint = ", joint bias" if self.bias == "joint" else ""
        return f"Kronecker ({self.approx}{joint})"


@dataclass(frozen=True)
class EKFAC:
    """KFAC's eigenvectors with the exact second moments along them: two passes over the data."""

    approx: Literal["expand", "reduce", "auto"] = "expand"
    bias: Literal["separate", "joint"] = "separate"
    masks = False
    elementwise = False  # one prior precision per weight would not keep the Kronecker form

    def __post_init__(self) -> None:
        Kron(self.approx, self.bias)

    def measure(self, source: Source) -> KronSums:
        """Factors first, then the second moments in their eigenbases."""
        if source.data.one_shot:
            raise ValueError(
                "structure='ekfac' passes over the data twice, and a one-shot iterator was given; "
                "expected a DataLoader, a list of batches or tensors."
            )
        kron = Kron(self.approx, self.bias)
        sums = measure_factors(kron, source)
        sums.bases = {key: (left, right) for key, (left, right, _, _) in eigen(sums).items()}
        return measure_corrections(sums, source)

    def curvature(self, sums: KronSums, space: Space) -> KronCurvature:
        """The bases and moments are already there."""
        joint = ", joint bias" if self.bias == "joint" else ""
        return decompose(sums, space, f"eigenvalue-corrected Kronecker ({self.approx}{joint})")


def measure_factors(structure: Kron, source: Source) -> KronSums:
    """Sums of both factors over all data."""
    sums = KronSums()
    for batch in source:
        reduced = structure.approx == "reduce" or (
            structure.approx == "auto" and batch.view.form.positions == 1
        )
        pairs = batch.tape.pairs() if structure.bias == "joint" else {}
        last: dict[Key, Matrix] = {}
        alive: dict[tuple[Key, int], Tensor] = {}
        for found in batch.columns():
            products: dict[tuple[int, ...], Tensor] = {}  # of this chunk: a bias has the gradients of its weight
            for part, jacobian in found.items():
                if isinstance(jacobian, Explicit):
                    add_other(sums, part, jacobian)
                    continue
                key, matrix = joined(part, jacobian, pairs)
                if key is None or matrix is None:
                    continue
                last[key] = matrix
                if len(key) == 2:
                    sums.weights[key] = jacobian.layout
                add_gradients(sums, key, matrix, reduced, products)
                if batch.masked is not None:
                    for place, term in enumerate(matrix.terms):
                        nonzero = (term.grad != 0).any(0).any(-1).any(1)
                        earlier = alive.get((key, place))
                        alive[key, place] = nonzero if earlier is None else earlier | nonzero
        for key, matrix in last.items():
            weights = [
                counted_positions(term, batch.masked, alive.get((key, place)))
                for place, term in enumerate(matrix.terms)
            ]
            add_inputs(sums, key, matrix, weights, reduced)
    return sums


def joined(part: Part, jacobian: Matrix, pairs: dict[Part, Part]) -> tuple[Key | None, Matrix | None]:
    """A weight with its bias where they are one block; the bias alone is then left out."""
    if part in pairs:
        return (part, pairs[part]), jacobian.with_bias()
    if part in pairs.values():
        return None, None
    return (part,), jacobian


def add_other(sums: KronSums, part: Part, jacobian: Explicit) -> None:
    """Curvature of a weight without a Kronecker form: dense where small, else diagonal."""
    rows = jacobian.value.flatten(0, 1)
    rows = rows.to(sum_dtype(rows.dtype))
    made = rows.T @ rows if jacobian.size <= LARGEST_DENSE else rows.square().sum(0)
    sums.others[part] = made if part not in sums.others else sums.others[part] + made


def counted_positions(term: Term, masked: Tensor | None, alive: Tensor | None) -> Tensor | None:
    """(B, T) booleans: positions that enter the input factor; None where all do.

    Of examples with ignored labels, positions without any gradient leave it.
    """
    counted = term.counted
    if masked is not None and alive is not None:
        valid = alive | ~masked[:, None]
        counted = valid if counted is None else counted & valid
    return counted


def add_gradients(
    sums: KronSums, key: Key, matrix: Matrix, reduced: bool, products: dict[tuple[int, ...], Tensor]
) -> None:
    """`sum g g^T` over columns, examples and positions (summed over positions first when reduced)."""
    sums.layouts.setdefault(key, matrix.layout)
    for flipped in {term.flipped for term in matrix.terms}:
        grads = [term.grad for term in matrix.terms if term.flipped == flipped]
        key_of_product = tuple(id(grad) for grad in grads)  # all alive as long as this chunk is
        if key_of_product not in products:
            if reduced:
                products[key_of_product] = outer_of(torch.stack([grad.sum(3) for grad in grads]).sum(0).unsqueeze(3))
            else:
                products[key_of_product] = sum((outer_of(grad) for grad in grads[1:]), outer_of(grads[0]))
        factors = _factors(sums, key, flipped, matrix, grads[0], reduced)
        factors.gradients = factors.gradients + products[key_of_product]


def outer_of(grad: Tensor) -> Tensor:
    """(K, B, G, T, width) -> (G, width, width), summed over the rest."""
    columns, examples, groups, positions, width = grad.shape
    return outer(grad.permute(2, 0, 1, 3, 4).reshape(groups, columns * examples * positions, width))


def _factors(sums: KronSums, key: Key, flipped: bool, matrix: Matrix, like: Tensor, reduced: bool) -> Factors:
    if (key, flipped) not in sums.factors:
        groups, rows, columns = matrix.layout.matrix
        wide, tall = (rows, columns) if flipped else (columns, rows)
        # One-hot inputs have a diagonal factor; their averages over positions do not.
        tokens = not reduced and all(term.acts.index is not None for term in matrix.terms if term.flipped == flipped)

        def zeros(size: int, diagonal: bool) -> Tensor:
            shape = (groups, size) if diagonal else (groups, size, size)
            return torch.zeros(shape, dtype=sum_dtype(like.dtype), device=like.device)

        sums.factors[key, flipped] = Factors(
            zeros(wide, tokens or wide > LARGEST_SIDE), zeros(tall, tall > LARGEST_SIDE)
        )
    return sums.factors[key, flipped]


def add_inputs(sums: KronSums, key: Key, matrix: Matrix, weights: list[Tensor | None], reduced: bool) -> None:
    """`sum a a^T` over examples and counted positions (averaged over positions first when reduced)."""
    for flipped in {term.flipped for term in matrix.terms}:
        own = [(term, weight) for term, weight in zip(matrix.terms, weights, strict=True) if term.flipped == flipped]
        factors = sums.factors[key, flipped]
        if reduced:
            _add_reduced(factors, matrix, own)
        else:
            for term, weight in own:
                _add_expanded(factors, matrix, term, weight)


def _add_expanded(factors: Factors, matrix: Matrix, term: Term, weight: Tensor | None) -> None:
    examples = matrix.examples
    positions = examples * term.acts.positions if weight is None else weight.sum().item()
    factors.count += positions
    if term.acts.index is not None and not term.acts.ones:
        tokens = term.acts.index if weight is None else term.acts.index[weight]
        counts = torch.bincount(tokens.flatten(), minlength=term.acts.width).to(factors.inputs.dtype)
        factors.inputs = factors.inputs + (counts[None] if factors.inputs.dim() == 2 else torch.diag(counts)[None])
        return
    if term.acts.constant:
        factors.inputs = factors.inputs + positions
        return
    groups = matrix.layout.matrix[0]
    each = (term.acts.scratch + 2 * groups * term.acts.positions * term.acts.width) * 4
    for chosen in matrix.budget.slices(examples, each):
        act = term.acts(chosen)
        if weight is not None:
            act = act * weight[chosen, None, :, None]
        factors.inputs = factors.inputs + outer(act.transpose(0, 1).reshape(groups, -1, act.shape[-1]))


def _add_reduced(factors: Factors, matrix: Matrix, own: list[tuple[Term, Tensor | None]]) -> None:
    """All uses' positions are averaged together, per example."""
    examples, groups = matrix.examples, matrix.layout.matrix[0]
    device = factors.inputs.device
    total = torch.zeros(examples, device=device, dtype=factors.inputs.dtype)
    for term, weight in own:
        total = total + (term.acts.positions if weight is None else weight.sum(1))
    factors.count += examples if all(weight is None for _, weight in own) else float((total > 0).sum())
    each = max((term.acts.scratch + 2 * groups * term.acts.positions * term.acts.width) * 4 for term, _ in own)
    for chosen in matrix.budget.slices(examples, each):
        mean: Tensor | None = None
        for term, weight in own:
            act = term.acts(chosen).to(factors.inputs.dtype)
            if weight is not None:
                act = act * weight[chosen, None, :, None]
            summed = act.sum(2)
            mean = summed if mean is None else mean + summed
        assert mean is not None
        mean = mean / total[chosen].clamp(min=1)[:, None, None]
        made = outer(mean.transpose(0, 1))
        if factors.inputs.dim() == 2 and made.dim() == 3:
            made = made.diagonal(dim1=-2, dim2=-1)
        factors.inputs = factors.inputs + made


def measure_corrections(sums: KronSums, source: Source) -> KronSums:
    """Second moments of the Jacobian in the eigenbases: the second pass of EKFAC."""
    paired = {key[0]: key[1] for key in sums.bases if len(key) == 2}
    for batch in source:
        for found in batch.columns():
            for part, jacobian in found.items():
                if isinstance(jacobian, Explicit):
                    continue
                key, matrix = joined(part, jacobian, paired)
                if key is None or matrix is None:
                    continue
                left, right = sums.bases[key]
                cast = [None if basis is None else basis.to(matrix.dtype) for basis in (left, right)]
                made = matrix.square_sum(*cast)
                made = made.to(sum_dtype(made.dtype))
                sums.corrected[key] = made if key not in sums.corrected else sums.corrected[key] + made
    return sums


def eigen(sums: KronSums) -> dict[Key, tuple[Tensor | None, Tensor | None, Tensor, Tensor]]:
    """Eigenvectors and eigenvalues of the row side and the column side of every weight."""
    made = {}
    done: dict[str, tuple[Tensor, Tensor | None, Tensor]] = {}  # by module: a bias has the row side of its weight
    for key in sums.layouts:
        rows, columns = sides(sums, key)
        name = key[0].name
        module = name.rpartition(".")[0]
        known = done.get(module)
        if known is not None and known[0].shape == rows.shape and torch.equal(known[0], rows):
            left, left_values = known[1:]
        else:
            left, left_values = decompose_side(rows, name)
            done[module] = (rows, left, left_values)
        right, right_values = decompose_side(columns, name)
        made[key] = (left, right, left_values, right_values)
    return made


def sides(sums: KronSums, key: Key) -> tuple[Tensor, Tensor]:
    """Row-side and column-side factors with `block = rows (x) columns`."""
    pairs = []
    for flipped in (False, True):
        factors = sums.factors.get((key, flipped))
        if factors is not None:
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


def decompose_side(side: Tensor, name: str) -> tuple[Tensor | None, Tensor]:
    """Eigenvectors (G, n, n), or None for a diagonal side, and eigenvalues (G, n), none negative."""
    if side.dim() == 2:
        return None, side.clamp(min=0)
    if not bool(torch.isfinite(side).all()):
        raise ValueError(f"The curvature of {name!r} holds NaN or Inf; check the network's outputs and gradients.")
    if side.shape[-1] == 1:
        return torch.ones_like(side), side[..., 0].clamp(min=0)
    try:
        values, vectors = torch.linalg.eigh(side)
        if not bool(torch.isfinite(values).all()):
            raise RuntimeError("not finite")
    except RuntimeError:  # float32 can fail to converge where float64 does not
        try:
            wide, basis = torch.linalg.eigh(side.double())
        except RuntimeError as error:
            raise ValueError(f"The curvature of {name!r} could not be decomposed, in float64 either.") from error
        values, vectors = wide.to(side.dtype), basis.to(side.dtype)
    return vectors, values.clamp(min=0)


def decompose(sums: KronSums, space: Space, words: str) -> KronCurvature:
    """All blocks, ready for any prior."""
    blocks: dict[Key, Spectrum] = {}
    found = {} if sums.bases else eigen(sums)
    for key, layout in sums.layouts.items():
        if key[0].name not in space.names:
            continue
        if sums.bases:  # corrected: the eigenvectors were needed to measure
            left, right = sums.bases[key]
            values = sums.corrected[key]
        else:
            left, right, row_values, column_values = found[key]
            values = row_values[:, :, None] * column_values[:, None, :]
        blocks[key] = Spectrum(layout, left, right, values, sums.weights.get(key))
    others = {part: value for part, value in sums.others.items() if part.name in space.names}
    return KronCurvature(blocks, others, space, words)


@dataclass(frozen=True)
class Spectrum:
    """One weight's eigenbases (row side, column side) and eigenvalues (G, O, I)."""

    layout: Layout
    left: Tensor | None
    right: Tensor | None
    values: Tensor
    weight: Layout | None = None  # the weight's own layout, in a block that it shares with its bias


@dataclass(frozen=True)
class KronCurvature:
    """Kronecker blocks, and dense or diagonal ones for the rest."""

    blocks: dict[Key, Spectrum]
    others: dict[Part, Tensor]
    space: Space
    words: str

    def precision(self, delta: Tensor, scale: Tensor) -> Blocks:
        """`scale H + diag(delta)`: one precision per weight keeps the eigenbases."""
        made = []
        for key, spectrum in self.blocks.items():
            slices = tuple(self.space.place(part) for part in key)
            own = self._constant(torch.cat([delta[piece] for piece in slices]), key)
            values = scale.to(spectrum.values) * spectrum.values + own
            operator = Rotated(values, spectrum.layout, spectrum.left, spectrum.right)
            made.append(Block(key, slices, operator, joint=spectrum.weight))
        for part, value in self.others.items():
            place = self.space.place(part)
            if value.dim() == 2:
                made.append(Block((part,), (place,), Dense(scale.to(value) * value + torch.diag(delta[place]))))
            else:
                made.append(Block((part,), (place,), Diagonal(scale.to(value) * value + delta[place])))
        for place, part in self._unseen():
            made.append(Block((part,), (place,), Diagonal(delta[place])))
        return Blocks(made, self.space.size)

    @staticmethod
    def _constant(delta: Tensor, key: Key) -> Tensor:
        if bool((delta.detach() == delta.detach()[0]).all()):
            return delta[0]
        if len(key) == 2:
            raise ValueError(
                f"The prior has different precisions for {key[0].name!r} and {key[1].name!r}, which are one Kronecker "
                "block with bias='joint'; use bias='separate', or give both the same precision."
            )
        raise ValueError(
            f"The prior has different precisions inside {key[0].name!r}, which a Kronecker block cannot hold exactly; "
            "use a scalar or layerwise prior, or structure='diag', 'block' or 'full'."
        )

    def _unseen(self) -> list[tuple[slice, Part]]:
        """Ranges of used weights that no data touched (rows of a packed weight): the prior's alone."""
        taken = sorted([*(part for key in self.blocks for part in key), *self.others])
        made = []
        for whole in self.space.parts():
            start = 0
            for part in [*(part for part in taken if part.name == whole.name), Part(whole.name, whole.stop, whole.stop)]:
                if part.start > start:
                    gap = Part(whole.name, start, part.start)
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
