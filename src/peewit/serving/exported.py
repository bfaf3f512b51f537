"""What an exported predictor holds: a network, and a few tensor operations from its last layer to labels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid
from torch.overrides import TorchFunctionMode

from ..likelihoods import Form
from ..network.calling import output_in, run_plainly
from ..network.nests import Inputs, map_tensors
from ..predictions import label_rules, links
from ..predictions.predict import flat_outputs
from .last_layer import BasisWeights, DenseForm, Rows, SpectralForm, Turned
from .network import LastLayer

SHIFTS = 6  # by which the argument of the digamma function grows until its series is good to 1e-11

NamedOutputs: TypeAlias = dict[str, Tensor]  # by the name that a prediction has for them


class TurnedSquares(nn.Module):
    """`(a turn + shift)^2 table`, of one block."""

    turn: Tensor | None
    shift: Tensor | None
    table: Tensor

    def __init__(self, part: Turned) -> None:
        super().__init__()
        for name in ("turn", "shift", "table"):
            self.register_buffer(name, getattr(part, name))

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, T, R), from the inputs (N, T, I) of the last layer."""
        turned = inputs if self.turn is None else linear(inputs, self.turn, self.shift)
        return linear(turned.square(), self.table)


class Spectrum(nn.Module):
    """Variances along one basis, of all blocks that share it."""

    constant: Tensor | None

    def __init__(self, weights: BasisWeights) -> None:
        super().__init__()
        self.parts = nn.ModuleList(map(TurnedSquares, weights.parts))
        self.register_buffer("constant", weights.constant)

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, T, R)."""
        total = self.constant
        for part in self.parts:
            total = part(inputs) if total is None else total + part(inputs)
        assert total is not None
        return total if len(self.parts) else total.expand(*inputs.shape[:-1], -1)


class RowRoots(nn.Module):
    """Roots of covariances as a linear map of the layer's inputs."""

    turn: Tensor | None
    shift: Tensor | None

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.outputs = rows.outputs
        self.register_buffer("turn", rows.turn)
        self.register_buffer("shift", rows.shift)

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, T, C, H)."""
        if self.turn is not None:
            roots = linear(inputs, self.turn, self.shift)
        else:
            assert self.shift is not None
            roots = self.shift.expand(*inputs.shape[:-1], -1)
        split: Tensor = roots.unflatten(-1, (self.outputs, -1))
        return split


class Variances(nn.Module):
    """Of the outputs, each on its own."""

    def __init__(self, form: SpectralForm | DenseForm) -> None:
        super().__init__()
        self.dtype = form.dtype
        self.spectral = Spectrum(form.variances) if isinstance(form, SpectralForm) else None
        self.blocks = nn.ModuleList([] if isinstance(form, SpectralForm) else map(RowRoots, form.blocks))

    def forward(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """(N, T, C)."""
        wide = inputs.to(self.dtype)
        if self.spectral is not None:
            variances: Tensor = self.spectral(wide).clamp(min=0).to(dtype)
            return variances
        return torch.stack([block(wide).square().sum(-1) for block in self.blocks]).sum(0).to(dtype)


class Spread(NamedTuple):
    """What links of several outputs need of their covariance."""

    variance: Tensor  # (N, T, C)
    row_sums: Tensor  # (N, T, C)
    steps: Tensor  # (S, N, T, C): away from the mean, at quasi-random points


class Covariances(nn.Module, ABC):
    """Of the outputs of every example; `rank` normal numbers make one draw of them."""

    rank: int
    points: Tensor

    def place(self, points: Tensor) -> None:
        """Keep the points (S, R) that averages are taken over."""
        self.register_buffer("points", points)

    @abstractmethod
    def forward(self, inputs: Tensor, dtype: torch.dtype) -> Spread:
        """From the inputs (N, T, I) of the last layer."""


class SpectralCovariances(Covariances):
    """`basis diag(deviation^2) basis^T`."""

    basis: Tensor | None

    def __init__(self, form: SpectralForm) -> None:
        super().__init__()
        self.dtype = form.dtype
        self.spectra = nn.ModuleList(Spectrum(basis.weights) for basis in form.bases)
        self.register_buffer("basis", form.basis)
        constants = form.variances.parts[0].table if form.variances.parts else form.variances.constant
        assert constants is not None
        self.rank = len(constants) if form.basis is None else form.basis.shape[1]

    def forward(self, inputs: Tensor, dtype: torch.dtype) -> Spread:
        """From the inputs (N, T, I) of the last layer."""
        parts = [spectrum(inputs.to(self.dtype)) for spectrum in self.spectra]
        squares = (torch.stack(parts).sum(0) if self.basis is None else torch.cat(parts, -1)).clamp(min=0).to(dtype)
        steps = self.points[:, None, None] * squares.sqrt()
        if self.basis is None:
            return Spread(squares, squares, steps)
        variance = squares @ self.basis.square().mT
        return Spread(variance, (squares * self.basis.sum(0)) @ self.basis.mT, steps @ self.basis.mT)


class DenseCovariances(Covariances):
    """Sums of `root root^T`, of full and block curvature."""

    def __init__(self, blocks: list[Rows], dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.rank = dtype, blocks[0].outputs
        self.blocks = nn.ModuleList(map(RowRoots, blocks))

    def forward(self, inputs: Tensor, dtype: torch.dtype) -> Spread:
        """From the inputs (N, T, I) of the last layer."""
        roots = [block(inputs.to(self.dtype)) for block in self.blocks]
        covariance = torch.stack([root @ root.mT for root in roots]).sum(0).to(dtype)
        steps = torch.einsum("ntcr,sr->sntc", cholesky(covariance), self.points)
        return Spread(covariance.diagonal(dim1=-2, dim2=-1), covariance.sum(-1), steps)


def cholesky(covariance: Tensor) -> Tensor:
    """(..., C, C): the lower factor column by column, for ONNX has no operation for it."""
    columns: list[Tensor] = []
    size = covariance.shape[-1]
    for number in range(size):
        column = covariance[..., number]
        if columns:
            earlier = torch.stack(columns, -1)
            column = column - (earlier * earlier[..., number : number + 1, :]).sum(-1)
        pivot = column[..., number : number + 1].clamp(min=links.SMALLEST)
        below = torch.arange(size, device=covariance.device) >= number
        columns.append(torch.where(below, column / pivot.sqrt(), 0.0))
    return torch.stack(columns, -1)


def average(draws: Tensor) -> Tensor:
    """(S, ...) -> (...): in two stages, for runtimes that add one number after the other lose 1e-5 over thousands."""
    number = draws.shape[0]
    groups = next(size for size in range(math.isqrt(number), 0, -1) if number % size == 0)
    total: Tensor = draws.unflatten(0, (groups, -1)).sum(1).sum(0)
    return total / number


class LabelRule(nn.Module, ABC):
    """From the mean of the outputs and the inputs of the last layer to what is said of labels."""

    names: tuple[str, ...]

    @abstractmethod
    def forward(self, mean: Tensor, inputs: Tensor) -> NamedOutputs:
        """Of outputs (N, T, C), in the shape that predictions have."""


class ClassRule(LabelRule):
    """One of several classes."""

    names = ("probs", "epistemic", "entropy")
    averages = False  # whether entropies are averages over draws of the outputs

    def __init__(self, form: Form, covariances: Covariances) -> None:
        super().__init__()
        self.form, self.covariances = form, covariances

    @abstractmethod
    def of(self, mean: Tensor, spread: Spread) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities (N, T, C), the entropy of them and the mean entropy (N, T)."""

    def forward(self, mean: Tensor, inputs: Tensor) -> NamedOutputs:
        """Of outputs (N, T, C)."""
        probs, total, expected = self.of(mean, self.covariances(inputs, mean.dtype))
        entropies = {"epistemic": (total - expected).clamp(min=0), "entropy": total}
        return {"probs": self.form.restore(probs), **{name: self._arrange(each) for name, each in entropies.items()}}

    def _arrange(self, flat: Tensor) -> Tensor:
        """(N, T) -> (N, *positions)."""
        shape, axis = self.form.shape, self.form.axis or 0
        return flat.reshape(flat.shape[0], *shape[:axis], *shape[axis + 1 :])


class ProbitRule(ClassRule):
    """By "probit"."""

    averages = True

    def of(self, mean: Tensor, spread: Spread) -> tuple[Tensor, Tensor, Tensor]:
        """Entropies are averages."""
        log_p = (mean + spread.steps).log_softmax(-1)
        expected = average(-(log_p.exp() * log_p).sum(-1))
        return links.probit(mean, spread.variance), label_rules.entropy(average(log_p.exp())), expected


class BridgeRule(ClassRule):
    """By a Laplace bridge."""

    normalised = False

    def of(self, mean: Tensor, spread: Spread) -> tuple[Tensor, Tensor, Tensor]:
        """All in closed form."""
        log_alpha = links.log_bridge_of(mean, spread.variance, spread.row_sums, self.normalised)
        total, expected = (part.to(mean.dtype) for part in links.dirichlet_entropies(log_alpha, digamma))
        return log_alpha.softmax(-1).to(mean.dtype), total, expected


class NormalisedBridgeRule(BridgeRule):
    """By the bridge of a projected Gaussian of a mean variance where it is good."""

    normalised = True


class VarianceRule(LabelRule):
    """What needs the variance of each output alone."""

    def __init__(self, form: Form, variances: Variances) -> None:
        super().__init__()
        self.form, self.variances = form, variances

    def forward(self, mean: Tensor, inputs: Tensor) -> NamedOutputs:
        """Of outputs (N, T, C)."""
        values = self.of(mean, self.variances(inputs, mean.dtype))
        return {name: self.form.restore(value) for name, value in zip(self.names, values, strict=True)}

    @abstractmethod
    def of(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        """(N, T, C) each, in the order of the names."""


class BinaryRule(VarianceRule):
    """Zero or one, by "probit"."""

    nodes: Tensor
    log_weights: Tensor
    names = ("probs", "epistemic", "entropy")

    def __init__(self, form: Form, variances: Variances) -> None:
        super().__init__(form, variances)
        nodes, log_weights = links.line_points()
        self.register_buffer("nodes", nodes)
        self.register_buffer("log_weights", log_weights)

    def of(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        """(N, T, C) each, in the order of the names."""
        nodes, log_weights = (each.to(mean.dtype)[:, None, None, None] for each in (self.nodes, self.log_weights))
        total, expected = label_rules.pair_entropies_of_draws(mean + variance.sqrt() * nodes, log_weights)
        probs = logsigmoid(links.probit_logits(mean, variance)).exp()
        return probs, (total - expected).clamp(min=0), total


class NumberRule(VarianceRule):
    """Gaussian observations with noise that does not depend on the outputs."""

    noise: Tensor
    names = ("mean", "epistemic", "variance")

    def __init__(self, form: Form, variances: Variances, noise: Tensor) -> None:
        super().__init__(form, variances)
        self.register_buffer("noise", noise)

    def of(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        """(N, T, C) each, in the order of the names."""
        return mean, variance, variance + self.noise


class CountRule(VarianceRule):
    """Counts whose log rate is Gaussian."""

    names = ("mean", "epistemic", "variance")

    def of(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        """(N, T, C) each, in the order of the names."""
        rate, epistemic = links.lognormal(mean, variance)
        return rate, epistemic, epistemic + rate


def digamma(x: Tensor) -> Tensor:
    """For x of at least one, by its asymptotic series: ONNX has no operation for it."""
    steps = sum(1 / (x + step) for step in range(SHIFTS))
    far = x + SHIFTS
    square = far.square().reciprocal()
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return far.log() - 0.5 / far - series - steps


class ExportedModule(nn.Module):
    """A network of its own, its last layer, and a rule for labels: called as the predictor is, with one argument."""

    def __init__(
        self,
        network: nn.Module,
        last: LastLayer,
        form: Form,
        change: nn.Linear | None,
        rule: LabelRule,
        mode: type[TorchFunctionMode] | None,
    ) -> None:
        super().__init__()
        self.network, self.change, self.rule = network, change, rule
        self.last, self.form, self.mode = last, form, mode

    def forward(self, x: Inputs) -> NamedOutputs:
        """Of inputs of the kind that the predictor was made for."""
        with nullcontext() if self.mode is None else self.mode():
            output = output_in(run_plainly(self.network, map_tensors(torch.clone, x)))
        layer_inputs, _ = self.last.take()
        mean = flat_outputs(self.form, output)
        inputs = layer_inputs.reshape(mean.shape[0], -1, layer_inputs.shape[-1])
        if self.change is not None:  # to the linear mode
            mean = mean + self.change(inputs.to(self.change.weight.dtype)).to(mean.dtype)
        outputs: NamedOutputs = self.rule(mean, inputs)
        return {name: outputs[name] for name in self.rule.names}
