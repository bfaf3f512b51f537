"""The Jacobian of one weight tensor, kept factored: every layer rule returns it and every structure takes it.

`Matrix` holds `J[k, b] = sum_t grad[k, b, t] (x) act[b, t]` without forming it; `Explicit` holds rows. Both answer the
same five questions (`square_sum`, `quad`, `variance`, `apply`, `rows`), so structures never ask which one they have.
Shapes: K probes, B examples, G groups, T positions, O rows and I columns of the weight seen as a matrix, P = G*O*I.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..kernels import available, operands
from ..kernels import jacobians as kernel_jacobians
from ..runtime.memory import Budget
from .inputs import Acts
from .layout import Layout, rotate, rotate_columns

LARGEST_GRID = 65_535  # blocks along one axis of a kernel's grid


@dataclass(frozen=True)
class Term:
    """One use of a weight: acts on its columns and gradients on its rows, or the reverse when `flipped`."""

    acts: Acts
    grad: Tensor  # (K, B, G, T, O); (K, B, G, T, I) when flipped
    flipped: bool = False
    counted: Tensor | None = None  # (B, T): positions that count, where not all do (padding)

    def product(self, examples: slice, left: Tensor | None, right: Tensor | None) -> Tensor:
        """(b, G, K, O, I): the per-example Jacobian in the given bases."""
        act_basis, grad_basis = (left, right) if self.flipped else (right, left)
        grad = self.grad[:, examples]
        probes, count, groups, positions, rows = grad.shape
        # Either side is turned where it is smaller: before the product by its positions, or in the product.
        act_first = positions <= probes * rows or self.acts.index is not None  # faster
        grad_first = positions <= self.acts.width  # faster
        act = self.acts(examples, act_basis if act_first else None).to(grad.dtype)
        beside = grad.permute(1, 2, 0, 4, 3)
        if grad_basis is not None and grad_first:
            # From the left where positions are neighbours in memory, as in convolutions: nothing is copied twice. Each
            # example has a product of its own then, which pays where positions are many.
            left_first = grad.stride(-2) == 1 and 2 * positions >= rows and not grad.is_cuda
            beside = (
                grad_basis.mT.unsqueeze(1) @ beside if left_first else rotate(grad, grad_basis).permute(1, 2, 0, 4, 3)
            )
        # One product with the probes beside the rows: broadcasting over probes would copy the inputs K times.
        tall = beside.reshape(count * groups, probes * rows, positions)
        width = act.shape[-1]  # given, since a use without positions leaves a reshape nothing to infer it from
        jacobian = torch.bmm(tall, act.reshape(count * groups, positions, width))
        jacobian = jacobian.reshape(count, groups, probes, rows, width)
        if act_basis is not None and not act_first:
            jacobian = rotate_columns(jacobian, act_basis)
        if grad_basis is not None and not grad_first:
            jacobian = grad_basis.mT.unsqueeze(1) @ jacobian
        return jacobian.mT if self.flipped else jacobian


@dataclass(frozen=True)
class Matrix:
    """The Jacobian of a matrix-shaped weight as a sum of `Term`s, seen through `layout`."""

    terms: tuple[Term, ...]
    layout: Layout
    budget: Budget
    graph: bool = False  # whether inputs and gradients lead back to the network's inputs

    @property
    def probes(self) -> int:
        """K."""
        return self.terms[0].grad.shape[0]

    @property
    def examples(self) -> int:
        """B."""
        return self.terms[0].grad.shape[1]

    @property
    def size(self) -> int:
        """P."""
        groups, rows, columns = self.layout.matrix
        return groups * rows * columns

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the gradients."""
        return self.terms[0].grad.dtype

    def _plain(self) -> Matrix:
        """The same Jacobian; a bias, whose input is one everywhere, with its positions already summed."""
        term = self.terms[0]
        if len(self.terms) > 1 or not term.acts.constant or term.acts.positions == 1:
            return self
        summed = term.grad.sum(3, keepdim=True)
        ones = Acts(
            make=lambda chosen: summed.new_ones(len(range(self.examples)[chosen]), 1, 1, 1),
            width=1,
            positions=1,
            constant=True,
        )
        return replace(self, terms=(Term(ones, summed),))

    def upright(self) -> Matrix:
        """The same Jacobian with gradients on the rows, where all uses have them on the columns."""
        if not all(term.flipped and term.acts.index is None for term in self.terms):
            return self
        return replace(
            self, terms=tuple(replace(term, flipped=False) for term in self.terms), layout=self.layout.transpose()
        )

    def _single(self) -> Term | None:
        """The only term, where there is one position: then the Jacobian is an outer product."""
        term = self.terms[0]
        return term if len(self.terms) == 1 and term.acts.positions == 1 else None

    def _token(self) -> Term | None:
        """The only term, where its inputs are one-hot: then most rows of the Jacobian are zero."""
        term = self.terms[0]
        return term if len(self.terms) == 1 and term.acts.index is not None else None

    def _chunks(self, copies: int = 2) -> Iterator[slice]:
        """Slices of examples whose (b, K, P) products fit the budget."""
        scratch = sum(term.acts.scratch + 2 * term.grad[:, 0].numel() for term in self.terms)
        bytes_each = (copies * self.probes * self.size + scratch) * self.dtype.itemsize
        return self.budget.slices(self.examples, bytes_each, 0.3)

    def product(self, examples: slice, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """(b, G, K, O, I) for a slice of the examples."""
        jacobian = self.terms[0].product(examples, left, right)
        for term in self.terms[1:]:
            jacobian = jacobian + term.product(examples, left, right)
        return jacobian

    def square_sum(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """(G, O, I): squares of the Jacobian in the bases, summed over probes and examples."""
        if (plain := self._plain()) is not self:
            return plain.square_sum(left, right)
        if (upright := self.upright()) is not self:
            return upright.square_sum(right, left).mT
        everything = slice(0, self.examples)
        if (term := self._token()) is not None and left is None:
            total, first = merge_tokens(term, right)
            assert term.acts.index is not None
            squares = (total.square().sum(0) * first[..., None]).flatten(0, 1)
            summed = squares.new_zeros(self.layout.matrix[1:])
            return summed.index_add(0, term.acts.index.flatten(), squares).unsqueeze(0)
        if (term := self._single()) is not None:
            act_basis, grad_basis = (left, right) if term.flipped else (right, left)
            grad = term.grad if grad_basis is None else rotate(term.grad, grad_basis)
            act = term.acts(everything, act_basis).to(grad.dtype)
            squares = torch.einsum("bgo,bgi->goi", grad.square().sum(0)[:, :, 0], act.square()[:, :, 0])
            return squares.mT if term.flipped else squares
        summed = torch.zeros(self.layout.matrix, dtype=self.dtype, device=self.terms[0].grad.device)
        if self._fusable():
            pairs = self._pairs(left, right, predicting=False)
            fused = available.attempt(lambda: sum((kernel_jacobians.square_sums(*pair) for pair in pairs), summed))
            if fused is not None:
                return fused
        for examples in self._chunks(3):  # copies in memory
            summed = summed + self.product(examples, left, right).square().sum((0, 2))
        return summed

    def quad(self, weight: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """(B, K, K): `J U diag(weight) U^T J^T` per example, `weight` (G, O, I)."""
        if (plain := self._plain()) is not self:
            return plain.quad(weight, left, right)
        if (upright := self.upright()) is not self:
            return upright.quad(weight.mT, right, left)
        if (term := self._token()) is not None and left is None:
            total, first = merge_tokens(term, right)
            assert term.acts.index is not None
            weighted = weight[0][term.acts.index] * first[..., None]
            rows = total.flatten(2).transpose(0, 1)
            return (rows * weighted.flatten(1)[:, None]) @ rows.mT
        if (term := self._single()) is not None:
            return weighted_gram(*self._outer(term, weight, left, right))
        if (gram := self._fuse(weight, left, right, diagonal=False)) is not None:
            return gram
        covariances = []
        root = weight.sqrt().unsqueeze(1)
        for examples in self._chunks(2):  # copies in memory
            rows = scale_product(self.product(examples, left, right), root).transpose(1, 2).flatten(2)
            covariances.append(rows @ rows.mT)
        return torch.cat(covariances)

    def variance(self, weight: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """(B, K): the diagonal of `quad`."""
        if (plain := self._plain()) is not self:
            return plain.variance(weight, left, right)
        if (upright := self.upright()) is not self:
            return upright.variance(weight.mT, right, left)
        if self._token() is not None and left is None:
            return self.quad(weight, left, right).diagonal(dim1=-2, dim2=-1)
        if (term := self._single()) is not None:
            grad, inner = self._outer(term, weight, left, right)
            return torch.einsum("kbo,bo->bk", grad.flatten(2).square(), inner.flatten(1))
        if (variance := self._fuse(weight, left, right, diagonal=True)) is not None:
            return variance
        variances = []
        for examples in self._chunks():
            product = self.product(examples, left, right)
            variances.append(torch.einsum("bgkoi,goi->bk", product.square(), weight))
        return torch.cat(variances)

    def _fusable(self) -> bool:
        """Whether the fused kernels serve: several positions, one use, on a GPU, and a Jacobian worth not making."""
        term = self.terms[0]
        if self.graph or len(self.terms) > 1 or term.flipped or term.acts.index is not None:
            return False
        if self.layout.matrix[1] > LARGEST_GRID:
            return False
        operands = term.grad[:, 0].numel() + self.layout.matrix[0] * term.acts.positions * term.acts.width
        return available.usable(term.grad, self.probes) and kernel_jacobians.worthwhile(
            self.probes * self.size, operands
        )

    def _pairs(
        self, left: Tensor | None, right: Tensor | None, predicting: bool
    ) -> Iterator[tuple[operands.Operand, operands.Operand]]:
        """Gradients and inputs in the bases for the fused kernels, some examples at a time."""
        term = self.terms[0]
        groups, rows, width = self.layout.matrix
        bytes_each = 12 * term.grad[:, 0].numel() + 4 * term.acts.scratch + 12 * groups * term.acts.positions * width
        if predicting:  # more memory
            bytes_each += 4 * groups * kernel_jacobians.partial_sums(self.probes, rows)  # bytes
        two, half = self.budget.arithmetic.parts(predicting) == 2, self.budget.arithmetic.half
        for examples in self.budget.slices(self.examples, bytes_each, 0.3):
            grad = operands.rotate(term.grad[:, examples], left, 1, two, half)
            yield grad, term.acts.operand(examples, right, two, half)

    def _fuse(self, weight: Tensor, left: Tensor | None, right: Tensor | None, diagonal: bool) -> Tensor | None:
        """(B, K, K) or (B, K) by the kernels; None where they do not serve."""
        if weight.requires_grad or not self._fusable():
            return None
        return available.attempt(
            lambda: torch.cat(
                [
                    kernel_jacobians.inner_products(*pair, weight, diagonal)
                    for pair in self._pairs(left, right, predicting=True)
                ]
            )
        )

    def inner(self, weight: Tensor, right: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Where there is one position: the gradients (K, B, G, T, O) themselves, and their weights (B, G, O)."""
        term = self._single()
        if term is None or term.flipped or term.acts.index is not None:
            return None
        if term.acts.constant:  # a bias: its input is one, and a basis of length one does not turn it
            return term.grad, weight[..., 0].expand(self.examples, -1, -1)
        act = term.acts(slice(0, self.examples), right).to(term.grad.dtype)[:, :, 0]
        return term.grad, (act.square().transpose(0, 1) @ weight.mT).transpose(0, 1)

    def _outer(self, term: Term, weight: Tensor, left: Tensor | None, right: Tensor | None) -> tuple[Tensor, Tensor]:
        """One position: gradients (K, B, G, O) and `sum_i act_i^2 weight_oi` (B, G, O) in the bases."""
        act_basis, grad_basis = (left, right) if term.flipped else (right, left)
        grad = (term.grad if grad_basis is None else rotate(term.grad, grad_basis))[:, :, :, 0]
        act = term.acts(slice(0, self.examples), act_basis).to(grad.dtype)[:, :, 0]
        subscripts = "bgi,gio->bgo" if term.flipped else "bgi,goi->bgo"
        return grad, torch.einsum(subscripts, act.square(), weight)

    def apply(self, vectors: Tensor) -> Tensor:
        """(S, P) in the tensor's own order -> (S, K, B): `J v`."""
        matrices = self.layout.to_matrix(vectors)
        products = vectors.new_zeros(vectors.shape[0], self.probes, self.examples)
        for term in self.terms:
            turned = matrices if not term.flipped else matrices.mT
            bytes_each = (term.grad[0, 0].numel() * (vectors.shape[0] + 1) + term.acts.scratch) * self.dtype.itemsize
            for examples in self.budget.slices(self.examples, bytes_each):
                if term.acts.index is not None:  # picking columns instead of multiplying by one-hot vectors
                    moved = turned[:, 0].mT[:, term.acts.index[examples]].unsqueeze(2)
                else:
                    moved = torch.einsum("sgoi,bgti->sbgto", turned, term.acts(examples).to(vectors.dtype))
                products[:, :, examples] += torch.einsum("kbgto,sbgto->skb", term.grad[:, examples], moved)
        return products

    def rows(self, examples: slice) -> Tensor:
        """(K, b, P) in the tensor's own order, for a slice of the examples."""
        term = self.terms[0]
        if len(self.terms) == 1 and term.acts.constant:  # a bias: its gradients, summed over positions
            grad = term.grad[:, examples]
            return self.layout.to_flat((grad[..., 0, :] if grad.shape[3] == 1 else grad.sum(3)).unsqueeze(-1))
        return self.layout.to_flat(self.product(examples).permute(2, 0, 1, 3, 4))

    def with_bias(self) -> Matrix:
        """The Jacobian of weight and bias as one matrix (O, I + 1)."""
        upright = self.upright()
        groups, rows, columns = upright.layout.matrix
        terms = tuple(replace(term, acts=term.acts.with_ones()) for term in upright.terms)
        return replace(self, terms=terms, layout=Layout.plain(groups, rows, columns + 1))


def weighted_gram(grad: Tensor, inner: Tensor) -> Tensor:
    """(K, B, G, O) gradients and (B, G, O) weights -> (B, K, K)."""
    rows = grad.flatten(2).transpose(0, 1)
    return (rows * inner.flatten(1)[:, None]) @ rows.mT


def scale_product(product: Tensor, root: Tensor) -> Tensor:
    """`product * root`, in place where no gradient is asked for: these are the largest tensors there are."""
    if product.requires_grad or root.requires_grad:
        return product * root
    return product.mul_(root)


def merge_tokens(term: Term, basis: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients (K, B, T, E) summed over equal tokens of an example, and (B, T) marking each token's first place."""
    grad = term.grad[:, :, 0]
    if basis is not None:
        grad = rotate(grad, basis)
    index = term.acts.index
    assert index is not None
    same = index[:, :, None] == index[:, None, :]
    earlier = same.tril(-1).any(-1)
    return same.to(grad.dtype) @ grad, (~earlier).to(grad.dtype)
