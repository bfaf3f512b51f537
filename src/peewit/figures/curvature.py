"""Numbers behind figures of curvature: matrices, spectra of layers, and blocks with their approximations."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..curvature.blocks import Blocks
from ..curvature.kinds import GGN, Hessian
from ..curvature.operators import DenseOperator, DiagonalOperator, RotatedOperator
from ..curvature.products import Products
from ..curvature.structures import StructureName
from ..curvature.structures.kron_curvature import KronCurvature
from ..fitting import fit
from ..messages.arguments import is_count
from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import nearest
from ..network.batches import Batches
from ..network.isolation import entry_point
from ..network.nests import Data
from ..posterior.network import network_of
from ..runtime.progress import Progress
from . import style

if TYPE_CHECKING:
    from ..laplace import Laplace

WEIGHTS = 300  # the most that fit into a picture of the whole matrix
VECTORS = 24  # bytes per element of a vector in a product with the matrix
LARGEST = 2_000  # weights of the largest block that is made dense


@dataclass(frozen=True, eq=False, kw_only=True)
class CurvatureMatrices:
    """The Hessian and the GGN of the loss at K chosen weights, (K, K) each.

    `pw.figures.curvature_matrices` returns it.

    Attributes:
        hessian: Second derivatives of the loss (K, K), float64.
        ggn: The generalised Gauss-Newton matrix (K, K), float64.
        chosen: Places (K,) of the chosen weights among all D.
        names: Names of the T tensors that the weights belong to.
        ends: For each tensor, the row after its last one (T,).

    Example:
        >>> matrices = pw.figures.curvature_matrices(la, (x, y), most=20)
        >>> matrices.hessian.shape == matrices.ggn.shape, matrices.names
        (True, ('0.weight', '0.bias', '2.weight', '2.bias'))
    """

    hessian: Tensor
    ggn: Tensor
    chosen: Tensor
    names: tuple[str, ...]
    ends: tuple[int, ...]


@entry_point
def curvature_matrices(
    la: Laplace, data: Data, *, most: int = WEIGHTS, memory: float | None = None, progress: bool = False
) -> CurvatureMatrices:
    """Compute the Hessian and the GGN of the loss over all data, at some weights.

    The loss is that of the posterior: the energy summed over the data, times the noise precision, over the
    temperature.

    Args:
        la: A posterior.
        data: Training data: a loader, batches, or a pair (inputs, targets). It is passed over twice.
        most: About how many weights to take. Each tensor gets a share in proportion to its size, and at least one,
            evenly spaced.
        memory: Bytes for the vectors of one product. None for the posterior's limit.
        progress: Whether to show a progress bar.

    Returns:
        The `CurvatureMatrices` with K weights, about `most`, or all D where there are fewer.

    Raises:
        ArgumentTypeError: `la` is not a posterior.
        PeewitError: `most` is not a positive whole number, or `data` is a one-shot iterator.
        MismatchError: The network has changed since the fit.

    Example:
        >>> pw.figures.curvature_matrices(la, (x, y)).hessian.shape == (la.D, la.D)
        True
    """
    style.expect_posterior(la)
    if not is_count(most):
        raise PeewitError(f"most={most!r} was given; expected a positive whole number of weights.")
    chosen, names, ends = pick_weights(la, most)
    batches = Batches(data, la.model)
    batches.refuse_one_shot("The figure passes over the data twice")
    network = network_of(la.state, memory)  # refuses a network that has changed
    on_device = chosen.to(la.state.weights.device)
    parts = on_device.split(network.budget.count(VECTORS * la.D, 64))
    matrices = []
    with closing(Progress(progress)) as bars:
        for kind in (Hessian(), GGN()):
            products = Products(la.model, la.space, batches, la.likelihood, kind, seed=la.state.measurement.seed)
            work = bars.track(parts, len(parts), f"curvature: {kind.name}")
            rows = torch.cat([products.mv(units(part, la.state.weights))[:, on_device] for part in work])
            matrix = rows.double().cpu() * float(la.likelihood.noise_precision) / la.temperature
            matrices.append(0.5 * (matrix + matrix.mT))
    return CurvatureMatrices(hessian=matrices[0], ggn=matrices[1], chosen=chosen, names=names, ends=ends)


def units(places: Tensor, like: Tensor) -> Tensor:
    """(k, D): unit vectors at k places."""
    vectors = like.new_zeros(len(places), len(like))
    vectors[torch.arange(len(places), device=like.device), places] = 1
    return vectors


def pick_weights(la: Laplace, most: int) -> tuple[Tensor, tuple[str, ...], tuple[int, ...]]:
    """Places of about `most` weights, in proportion to tensors' sizes; names of the tensors, and where each ends."""
    sizes = own_sizes(la)
    chosen, ends, start = [], [], 0
    share = min(1.0, most / la.D)
    for size in sizes.values():
        number = max(1, min(size, round(size * share)))
        chosen.append(start + torch.linspace(0, size - 1, number).round().long())
        ends.append(sum(map(len, chosen)))
        start += size
    return torch.cat(chosen), tuple(sizes), tuple(ends)


def own_sizes(la: Laplace) -> dict[str, int]:
    """The number of uncertain weights of each tensor."""
    return {name: number for name, number in la.space.counts().items() if number}


@dataclass(frozen=True, eq=False)
class LayerSpectrum:
    """Eigenvalues of one tensor's curvature, with its prior precision.

    `pw.figures.layer_spectra` returns one for each tensor.

    Attributes:
        name: Name of the tensor; "a and b" where weight and bias share one matrix.
        values: Eigenvalues (P,), float64, largest first, none negative.
        prior: Prior precision, its mean over the tensor.
        determined: Number of directions that the data determine: `sum l / (l + prior)`.

    Example:
        >>> spectrum = pw.figures.layer_spectra(la)[0]
        >>> spectrum.name, spectrum.values.shape, spectrum.prior
        ('0.weight', torch.Size([16]), 1.0)
    """

    name: str
    values: Tensor
    prior: float

    @property
    def determined(self) -> float:
        """Number of directions that the data determine: `sum l / (l + prior)`."""
        return float((self.values / (self.values + self.prior)).sum())


def bare(la: Laplace) -> Blocks:
    """The curvature at the likelihood's noise, without the prior."""
    data_weight = la.state.problem.data_weight(la.likelihood.noise_precision)
    return la.state.curvature.precision(torch.zeros_like(la.state.weights), data_weight)


@entry_point
def layer_spectra(la: Laplace) -> tuple[LayerSpectrum, ...]:
    """Compute the eigenvalues of every tensor's curvature, in the network's order.

    If several tensors share a block, each gets the eigenvalues of its part of the block. Weight and bias with a joint
    block count as one tensor.

    Args:
        la: A posterior.

    Returns:
        A tuple of `LayerSpectrum`, one for each tensor.

    Raises:
        ArgumentTypeError: `la` is not a posterior.

    Example:
        >>> [spectrum.name for spectrum in pw.figures.layer_spectra(la)]
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    style.expect_posterior(la)
    delta = la.prior.delta(la.space, la.state.weights).detach().double().cpu()
    pieces: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for block in bare(la).blocks:
        operator = block.operator
        names = [part.name for part in block.parts]
        sizes = [piece.stop - piece.start for piece in block.slices]
        priors = [delta[piece] for piece in block.slices]
        if isinstance(operator, DenseOperator):
            values = dense_pieces(operator.matrix.detach().double().cpu(), sizes)
        elif isinstance(operator, RotatedOperator):
            flat = operator.values.detach().double().cpu().flatten()
            if block.joint is not None:  # weight and bias are one matrix
                names, priors, sizes = [" and ".join(names)], [torch.cat(priors)], [sum(sizes)]
            values = list(flat.split(sizes))
        elif isinstance(operator, DiagonalOperator):
            values = list(operator.values.detach().double().cpu().split(sizes))
        else:
            raise ArgumentTypeError(f"layer_spectra does not know the spectrum of {type(operator).__name__} blocks.")
        for name, part, prior in zip(names, values, priors, strict=True):
            pieces.setdefault(name, []).append((part, prior))
    order = {name: number for number, name in enumerate(la.space.names)}
    spectra = []
    for name in sorted(pieces, key=lambda weight: order[weight.partition(" and ")[0]]):
        eigenvalues = torch.cat([part for part, _ in pieces[name]]).clamp(min=0).sort(descending=True).values
        spectra.append(LayerSpectrum(name, eigenvalues, float(torch.cat([prior for _, prior in pieces[name]]).mean())))
    return tuple(spectra)


def dense_pieces(matrix: Tensor, sizes: list[int]) -> list[Tensor]:
    """Eigenvalues of each block on the diagonal."""
    values, start = [], 0
    for size in sizes:
        values.append(torch.linalg.eigvalsh(matrix[start : start + size, start : start + size]))
        start += size
    return values


@dataclass(frozen=True, eq=False)
class KroneckerFactors:
    """The Kronecker block of one weight, or its first rows and columns: `product = rows (x) columns`.

    `pw.figures.kronecker_factors` returns it.

    Attributes:
        name: Name of the weight.
        rows: Factor (O, O) from the gradients of the outputs, float64.
        columns: Factor (I, I) from the inputs, float64.
        shape: Numbers of outputs and inputs of the whole weight as a matrix, before the cut.
        product: The Kronecker product (O I, O I) of `rows` and `columns`.

    Example:
        >>> block = pw.figures.kronecker_factors(la, "2.weight", most=2)
        >>> block.rows.shape, block.product.shape, block.shape
        (torch.Size([2, 2]), torch.Size([4, 4]), (3, 8))
    """

    name: str
    rows: Tensor
    columns: Tensor
    shape: tuple[int, int]

    @property
    def product(self) -> Tensor:
        """The Kronecker product (O I, O I) of `rows` and `columns`."""
        return torch.kron(self.rows, self.columns)


@entry_point
def kronecker_factors(la: Laplace, name: str | None = None, *, most: int = 8) -> KroneckerFactors:
    """Return the Kronecker factors of one weight's KFAC block, cut to the first `most` rows and columns.

    Args:
        la: A posterior with `structure="kron"`.
        name: Name of the weight; None for the first one with two factors.
        most: Most rows and columns of each factor to keep.

    Returns:
        The `KroneckerFactors` of the weight.

    Raises:
        ArgumentTypeError: `la` is not a posterior.
        PeewitError: `most` is not a positive whole number, or the posterior or the weight has no Kronecker factors.

    Example:
        >>> pw.figures.kronecker_factors(la).name
        '0.weight'
    """
    style.expect_posterior(la)
    if not is_count(most):
        raise PeewitError(f"most={most!r} was given; expected a positive whole number of rows.")
    if not isinstance(la.state.curvature, KronCurvature):
        raise PeewitError(
            f"The posterior has structure {type(la.structure).__name__}, which has no Kronecker factors; fit with "
            "structure='kron'."
        )
    known = {
        key[0].name: spectrum
        for key, spectrum in la.state.curvature.blocks.items()
        if spectrum.sides is not None and min(spectrum.layout.matrix[1:]) > 1
    }
    if not known:
        raise PeewitError("The posterior has no weight with two Kronecker factors; fit with structure='kron'.")
    weight = next(iter(known)) if name is None else name
    if weight not in known:
        raise PeewitError(f"name={name!r} has no Kronecker factors; {nearest(str(name), known)}Known: {[*known]}.")
    sides = known[weight].sides
    assert sides is not None
    rows, columns = (matrix_of(side[0]) for side in sides)
    shape = (len(rows), len(columns))
    return KroneckerFactors(weight, rows[:most, :most], columns[:most, :most], shape)


def matrix_of(side: Tensor) -> Tensor:
    """(n, n) in float64 on the CPU, from a matrix or a diagonal."""
    matrix = side.detach().double().cpu()
    return torch.diag(matrix) if matrix.dim() == 1 else matrix


@dataclass(frozen=True, eq=False)
class Version:
    """An approximation of a block, and its errors."""

    name: str
    matrix: Tensor  # (P, P)
    error: float  # |matrix - true| / |true| in the Frobenius norm
    inverse_error: float  # the same of the covariances, (matrix + prior)^-1


@dataclass(frozen=True, eq=False)
class Approximations:
    """The exact curvature block of one weight, and its diagonal, KFAC and EKFAC versions.

    `pw.figures.approximations` returns it.

    Attributes:
        weight: Name of the weight.
        shape: Shape of the weight.
        true: The exact block (P, P) of its P elements, float64.
        versions: One value for each approximation, with `name`, `matrix` (P, P), `error`, `|matrix - true| / |true|` in
            the Frobenius norm, and `inverse_error`, the relative error of the covariance `(matrix + prior)^-1`.

    Example:
        >>> found = pw.figures.approximations(la, (x, y), "0.weight")
        >>> found.true.shape, [version.name for version in found.versions]
        (torch.Size([16, 16]), ['diagonal', 'KFAC', 'EKFAC'])
    """

    weight: str
    shape: tuple[int, ...]
    true: Tensor
    versions: tuple[Version, ...]


WAYS: dict[str, StructureName] = {"diagonal": "diag", "KFAC": "kron", "EKFAC": "ekfac"}


@entry_point
def approximations(
    la: Laplace, data: Data, name: str | None = None, *, memory: float | None = None, progress: bool = False
) -> Approximations:
    """Compute the exact GGN block of one weight, and its diagonal, KFAC and EKFAC approximations.

    It fits the weight four times: in structures "full", "diag", "kron" and "ekfac", with exact GGN curvature.

    Args:
        la: A posterior over whole tensors, not over single elements.
        data: Training data: a loader, batches, or a pair (inputs, targets).
        name: Name of a weight with at most 2,000 elements. None for the largest matrix with at most 300 elements, or
            else the largest tensor with at most 2,000.
        memory: Bytes for temporary results. None for a limit that fits the device.
        progress: Whether to show a progress bar.

    Returns:
        The `Approximations` of the weight.

    Raises:
        ArgumentTypeError: `la` is not a posterior.
        PeewitError: The posterior is over single elements, or the weight is unknown or too large.
        MismatchError: The network has changed since the fit.

    Example:
        >>> found = pw.figures.approximations(la, (x, y))
        >>> found.weight, found.shape
        ('2.weight', (3, 8))
    """
    style.expect_posterior(la)
    weight = block_name(la, name)
    network_of(la.state, None)  # refuses a network that has changed
    prior = float(la.prior.delta(la.space, la.state.weights).detach().double()[la.space.slices()[weight]].mean())

    def dense(structure: StructureName) -> Tensor:
        """(P, P): the weight's curvature in one structure, at the posterior's noise and temperature."""
        posterior = fit(
            la.model, data, la.likelihood, weights=[weight], structure=structure, curvature=GGN(), memory=memory,
            progress=progress,
        )  # fmt: skip
        identity = torch.eye(posterior.D, dtype=posterior.state.weights.dtype, device=posterior.state.weights.device)
        return bare(posterior).mv(identity).detach().double().cpu() / la.temperature

    true = dense("full")
    versions = []
    for way, structure in WAYS.items():
        matrix = dense(structure)
        inverse_error = difference(covariance(matrix, prior), covariance(true, prior))
        versions.append(Version(way, matrix, difference(matrix, true), inverse_error))
    return Approximations(weight, tuple(la.model.get_parameter(weight).shape), true, tuple(versions))


def block_name(la: Laplace, name: str | None) -> str:
    """The name of the weight, checked; or of the largest matrix that is small enough."""
    if la.space.mask is not None:
        raise PeewitError("The posterior is over single elements of tensors, which Kronecker factors cannot represent.")
    sizes = dict(zip(la.space.names, la.space.shapes, strict=True))
    if name is None:
        small = [each for each, shape in sizes.items() if len(shape) > 1 and shape.numel() <= WEIGHTS]
        small = small or [each for each, shape in sizes.items() if shape.numel() <= LARGEST]
        if not small:
            raise PeewitError(f"Every tensor has more than {LARGEST} weights, the most that fit into a picture.")
        return max(small, key=lambda each: sizes[each].numel())
    if name not in sizes:
        raise PeewitError(f"name={name!r} is not an uncertain weight; {nearest(str(name), sizes)}Known: {[*sizes]}.")
    if sizes[name].numel() > LARGEST:
        raise PeewitError(f"{name!r} has {sizes[name].numel()} weights; expected at most {LARGEST} to be shown.")
    return name


def covariance(matrix: Tensor, prior: float) -> Tensor:
    """`(matrix + prior)^-1`."""
    inverse: Tensor = torch.linalg.inv(matrix + prior * torch.eye(len(matrix), dtype=matrix.dtype))
    return inverse


def difference(matrix: Tensor, true: Tensor) -> float:
    """The relative error in the Frobenius norm."""
    return float((matrix - true).norm() / true.norm().clamp(min=1e-300))
