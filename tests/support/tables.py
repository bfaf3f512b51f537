"""What the tables of tests share: a case with its references, made once, and dense matrices out of operators."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import peewit as pw
import reference
import reference_dense as dense
from cases import BY_NAME, CASES
from environment import DEVICE
from peewit.jacobians.layout import join

NAMES = [case.name for case in CASES]
AMBIGUOUS = ("gpt_positions", "ignored_labels_causal")  # as many positions as classes
# Weights whose results go through further layers before they meet an example: the generic rule takes over.
ROUTED = {"layered_positions"}


def moved(x: Any) -> Any:
    """Inputs on the device under test."""
    if isinstance(x, dict):
        return {key: moved(value) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(moved(value) for value in x)
    return x.to(DEVICE)


@dataclass(frozen=True)
class Table:
    """One network with inputs and targets, and its dense references on the CPU in float64."""

    name: str
    model: nn.Module
    x: Any
    y: Tensor

    @property
    def case(self) -> Any:
        """The row of the table."""
        return BY_NAME[self.name]

    @property
    def names(self) -> list[str]:
        """Trainable parameters."""
        return self.case.names(self.model)

    @property
    def likelihood(self) -> pw.Categorical | pw.Gaussian:
        """The likelihood, with the class axis of the case."""
        if self.case.likelihood == "regression":
            return pw.Gaussian()
        usual = self.case.axis == -1 and self.case.name not in AMBIGUOUS
        return pw.Categorical(axis=None if usual else self.case.axis)

    def fit(self, structure: Any, curvature: Any = "ggn", **options: Any) -> pw.Laplace:
        """Fit ours, on the device under test."""
        model = self.case.make()[0].to(DEVICE)
        return pw.fit(
            model, (moved(self.x), moved(self.y)), self.likelihood, structure=structure, curvature=curvature, **options
        )

    def index(self, la: pw.Laplace) -> Tensor:
        """Places of the fitted weights among all trainable ones."""
        spans = reference.ranges(self.model, self.names)
        return torch.cat([torch.arange(*spans[name]) for name in la.space.names])

    @functools.cached_property
    def jacobian(self) -> Tensor:
        """(N, F, D)."""
        return dense.jacobian(self.model, self.x, self.names)

    @functools.cached_property
    def ggn(self) -> Tensor:
        """(D, D)."""
        return dense.ggn(self.model, self.x, self.y, self.case.likelihood, self.names, self.case.axis)

    def blocks(self, exact: frozenset[str] = frozenset(), **settings: Any) -> tuple[list[reference.Block], Tensor]:
        """Dense factors of every block, and the gradients of all probes."""
        case = self.case
        return reference.blocks(
            self.model, self.x, self.y, case.likelihood, self.names, axis=case.axis, exact=exact, **settings
        )

    def kron(self, exact: frozenset[str] = frozenset(), **settings: Any) -> Tensor:
        """(D, D): the dense Kronecker-factored matrix."""
        return reference.kron_of(*self.blocks(exact, **settings))


@functools.cache
def table(name: str) -> Table:
    """A case with its references, made once per process."""
    model, x, y = BY_NAME[name].make()
    return Table(name, model, x, y)


def curvature_of(la: pw.Laplace) -> Tensor:
    """(D, D): the curvature inside a posterior with prior precision one, as the operator applies it."""
    identity = torch.eye(la.D, dtype=la.weights.dtype, device=la.weights.device)
    return (la.precision.mv(identity) - identity).cpu()


def tolerance(name: str, usual: float) -> float:
    """Looser where torch itself is less exact: on a GPU its fused weight norm keeps the norm in float32."""
    return 1e-6 if name == "weight_norm" and DEVICE != "cpu" else usual


def relative(left: Tensor, right: Tensor) -> float:
    """The largest difference over the largest entry."""
    right = right.cpu()
    return float((left.cpu() - right).abs().max() / right.abs().max().clamp(min=1e-300))


def own_bases(la: pw.Laplace, places: Tensor, index: Tensor) -> tuple[Tensor, Tensor] | None:
    """Our eigenvectors for the weights at `places` (O, I): eigenvectors of equal eigenvalues are not unique."""
    for key, spectrum in la.state.curvature.blocks.items():
        flat = [index[la.space.slice_of(part)] for part in key]
        joined = flat[0] if len(flat) == 1 else join(flat[0], flat[1], spectrum.weight)
        for group, own in enumerate(spectrum.layout.to_matrix(joined)):
            sides = [
                torch.eye(size, dtype=torch.float64) if basis is None else basis[group].cpu().contiguous()
                for basis, size in ((spectrum.left, own.shape[0]), (spectrum.right, own.shape[1]))
            ]
            if own.shape == places.shape and torch.equal(own, places):
                return sides[0], sides[1]
            if own.T.shape == places.shape and torch.equal(own.T, places):
                return sides[1], sides[0]
    return None
