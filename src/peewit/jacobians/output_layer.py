"""The Jacobian of the layer whose output is the network's own: its gradients are unit vectors, and are never made.

`J[(g, t, o), b] = e_o (x) act[b, g, t]`: every number of the output is one row o of the weight at one position t. All
that a prediction needs is then a product or two of the layer's inputs, however many outputs there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..runtime.memory import Budget
from .explicit import Explicit
from .factored import Matrix, Term
from .inputs import Acts
from .layout import Layout, rotate
from .stacked import Stacked


def identity_probes(output: Tensor) -> Tensor:
    """(F, B, ...): one per output number, so that pulled-back rows are the Jacobian's."""
    number = output[0].numel()
    eye = torch.eye(number, dtype=output.dtype, device=output.device)
    return eye.reshape(number, 1, *output.shape[1:]).expand(number, *output.shape)


@dataclass(frozen=True, kw_only=True)
class OutputLayerJacobian:
    """The Jacobian of one weight of the outermost layer, a row for each of the F numbers of an example's output."""

    acts: Acts
    order: Tensor  # (G, T, O) on the CPU: the number, in the network's own order, of each output
    layout: Layout
    examples: int
    dtype: torch.dtype
    device: torch.device
    budget: Budget
    flipped: bool  # the weight is (I, O)

    @staticmethod
    def of(term: Term, layout: Layout, examples: int, like: Tensor, budget: Budget) -> OutputLayerJacobian:
        """From a rule's term whose "gradients" (1, 1, G, T, O) are the numbers of the outputs."""
        order, acts = term.grad[0, 0], term.acts
        groups, positions, _ = order.shape
        if acts.constant:
            acts = replace(
                acts, make=lambda chosen: like.new_ones(()).expand(len(range(examples)[chosen]), groups, positions, 1)
            )
        return OutputLayerJacobian(
            acts=acts,
            order=order,
            layout=layout,
            examples=examples,
            dtype=like.dtype,
            device=like.device,
            budget=budget,
            flipped=term.flipped,
        )

    @property
    def probes(self) -> int:
        """F."""
        return self.order.numel()

    @property
    def size(self) -> int:
        """P."""
        groups, rows, columns = self.layout.matrix
        return groups * rows * columns

    @property
    def groups(self) -> int:
        """G."""
        return self.order.shape[0]

    def arrange(self, value: Tensor) -> Tensor:
        """(..., G, T, O) -> (..., F) in the network's own order."""
        flat, order = value.flatten(-3), self.order.flatten()
        if torch.equal(order, torch.arange(len(order), device="cpu")):
            return flat
        return flat[..., order.argsort().to(flat.device, non_blocking=True)]

    def inputs(self, examples: slice, basis: Tensor | None = None) -> Tensor:
        """(b, G, T, I): the layer's inputs in a basis."""
        return self.acts(examples, basis).to(self.dtype)

    def chunks(self, extra: int = 0) -> list[slice]:
        """Slices of examples whose inputs, and `each` numbers beside them, fit the budget."""
        groups, positions, rows = self.order.shape
        numbers = self.acts.scratch + groups * positions * (3 * self.acts.width + 2 * rows) + extra
        return list(self.budget.slices(self.examples, numbers * self.dtype.itemsize, 0.3))

    def inner(self, weight: Tensor, left: Tensor | None, right: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """`J U diag(weight) U^T J^T = basis diag(inner) basis^T` at every position: (G, O, O) and (B, G, T, O)."""
        basis, turn, table = (right, left, weight) if self.flipped else (left, right, weight.mT)
        pieces = [rotate(self.inputs(some, turn).square(), table) for some in self.chunks()]
        return basis, torch.cat(pieces)

    def variance(self, weight: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """(B, F): the diagonal of `quad`."""
        basis, inner = self.inner(weight, left, right)
        return self.arrange(inner if basis is None else rotate(inner, basis.square().mT))

    def quad(self, weight: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """(B, F, F): `J U diag(weight) U^T J^T` per example."""
        if self.order.shape[:2] != (1, 1):
            return self.matrix().quad(weight, left, right)
        basis, inner = self.inner(weight, left, right)
        return covariance_of_spectra([(basis if basis is None else basis[0], inner[:, 0, 0])])

    def apply(self, vectors: Tensor) -> Tensor:
        """(S, P) in the tensor's own order -> (S, F, B): `J v`."""
        matrices = self.layout.to_matrix(vectors)
        matrices = matrices.mT if self.flipped else matrices
        products = []
        for some in self.chunks(2 * self.probes * len(vectors)):  # numbers in memory
            moved = torch.einsum("sgoi,bgti->sbgto", matrices, self.inputs(some).to(vectors.dtype))
            products.append(self.arrange(moved).transpose(1, 2))
        return torch.cat(products, 2)

    def matrix(self) -> Matrix:
        """The same with its gradients made: for questions without a shorter way."""
        identity = torch.zeros(self.probes, self.probes, dtype=self.dtype, device=self.device)
        identity[self.order.flatten().to(self.device), torch.arange(self.probes, device=self.device)] = 1
        grad = identity.reshape(self.probes, 1, *self.order.shape)
        grad = grad.expand(self.probes, self.examples, *self.order.shape)
        return Matrix((Term(self.acts, grad, self.flipped),), self.layout, self.budget)

    def product(self, examples: slice, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """(b, G, F, O, I) for a slice of the examples, in the bases."""
        return self.matrix().product(examples, left, right)

    def rows(self, examples: slice) -> Tensor:
        """(F, b, P) in the tensor's own order, for a slice of the examples."""
        return self.matrix().rows(examples)

    def with_bias(self) -> OutputLayerJacobian:
        """The Jacobian of weight and bias as one matrix (O, I + 1)."""
        groups, rows, columns = (self.layout.transpose() if self.flipped else self.layout).matrix
        layout = Layout.plain(groups, rows, columns + 1)
        return replace(self, acts=self.acts.with_ones(), layout=layout, flipped=False)

    def places(self) -> Tensor:
        """(O, I) on the CPU: where each row's weights are in the flat tensor; of a layer without groups."""
        index = self.layout.to_matrix(torch.arange(self.size, device="cpu"))[0]
        return index.T if self.flipped else index


Piece = Matrix | Explicit | OutputLayerJacobian
OutputSpectrum = tuple[Tensor | None, Tensor]  # a basis (O, R), the identity where there is none, and weights (..., R)


def covariance_of_spectra(spectra: list[OutputSpectrum]) -> Tensor:
    """(..., O, O): the sum of `basis diag(weights) basis^T`."""
    total: Tensor | None = None
    for basis, weights in spectra:
        part = torch.diag_embed(weights) if basis is None else (basis * weights[..., None, :]) @ basis.mT
        total = part if total is None else total + part
    assert total is not None
    return total


def variance_of_spectra(spectra: list[OutputSpectrum]) -> Tensor:
    """(..., O): its diagonal."""
    total: Tensor | None = None
    for basis, weights in spectra:
        part = weights if basis is None else weights @ basis.square().mT
        total = part if total is None else total + part
    assert total is not None
    return total


def outermost_pieces(jacobian: Piece | Stacked) -> tuple[OutputLayerJacobian, ...] | None:
    """The weights of an outermost layer without groups, if a Jacobian is nothing else."""
    pieces = (jacobian,) if not isinstance(jacobian, Stacked) else jacobian.pieces
    outermost = tuple(piece for piece in pieces if isinstance(piece, OutputLayerJacobian) and piece.groups == 1)
    masked = isinstance(jacobian, Stacked) and (jacobian.mask is not None or jacobian.joint is not None)
    return None if masked or len(outermost) < len(pieces) else outermost


def row_places(pieces: tuple[OutputLayerJacobian, ...]) -> Tensor:
    """(O, I) on the CPU: where the weights of each row, its bias among them, are in the pieces put side by side."""
    start, places = 0, []
    for piece in pieces:
        places.append(piece.places() + start)
        start += piece.size
    return torch.cat(places, 1)


def row_roots(cholesky: Tensor, places: Tensor, budget: Budget) -> Tensor:
    """(O, I, I): R_o with `R_o^T R_o` the covariance of row o's weights, for a precision `L L^T`.

    By QR of `L^-1` rather than from the inverse, whose rounding errors are the largest variance's.
    """
    size, (rows, width) = len(cholesky), places.shape
    roots = []
    for some in budget.slices(rows, 4 * size * width * cholesky.itemsize, 0.5):
        columns = places[some].flatten().to(cholesky.device)
        identity = cholesky.new_zeros(size, len(columns))
        identity[columns, torch.arange(len(columns), device=columns.device)] = 1
        solved = torch.linalg.solve_triangular(cholesky, identity, upper=False)
        del identity
        roots.append(torch.linalg.qr(solved.reshape(size, -1, width).transpose(0, 1), mode="r")[1])
    return torch.cat(roots)


def rooted_variance(pieces: tuple[OutputLayerJacobian, ...], roots: Tensor) -> Tensor:
    """(B, F): the variances of the outputs from the roots of the rows' covariances."""
    first = pieces[0]
    rows, height = roots.shape[:2]
    table = roots.flatten(0, 1).T.to(first.dtype)
    variances = []
    for some in first.chunks(3 * first.order.shape[1] * rows * height):  # numbers in memory
        act = torch.cat([piece.inputs(some) for piece in pieces], -1)
        variances.append((act @ table).unflatten(-1, (rows, height)).square().sum(-1))
    return first.arrange(torch.cat(variances))
