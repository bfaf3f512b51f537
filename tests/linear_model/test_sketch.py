"""The matrix over all weights that slow solves get: what it is, when it is made, and that the mode stays the same."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, fitted, names_of, normal, weights_of
from linear_cases import NETWORKS, classifier, dense_classifier, found, reference_of
from peewit.linear_model import find, sketch, solver
from peewit.linear_model.find import open_solver
from peewit.linear_model.objective import Target
from peewit.linear_model.sketch import Sketch, SketchPlan
from peewit.linear_model.solver import Solver
from tables import moved, table


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second step on, whatever it costs."""
    for module in (sketch, solver):
        monkeypatch.setattr(module, "SLOW", 0.1)
    monkeypatch.setattr(sketch, "FASTER", math.inf)
    monkeypatch.setattr(sketch, "PROBE", 1e-9)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SketchPlan]]:
    """Those that were made."""
    plans: list[SketchPlan] = []
    own = SketchPlan.draw

    def noted(self: SketchPlan) -> Sketch:
        plans.append(self)
        return own(self)

    monkeypatch.setattr(SketchPlan, "draw", noted)
    yield plans


def plan_of(la: pw.Laplace, data: Any, memory: float | None = None) -> SketchPlan | None:
    """The plan of a solver."""
    with open_solver(la.state, data, memory, False) as made:
        assert isinstance(made, Solver)
        return made.plan


class Ladder(nn.Module):
    """Linear layers one after the other, which can undo each other, to many outputs."""

    def __init__(self, width: int = 6, outputs: int = 40) -> None:
        super().__init__()
        sizes = [4, width, width, width, outputs]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4) -> (B, outputs)."""
        for layer in self.layers:
            x = layer(x) + 0.1 * layer(x).tanh()
        return x


@functools.cache
def ladder() -> tuple[nn.Module, Tensor, Tensor]:
    """Such a network, and data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = built(Ladder())
    return model, normal(25, 4), normal(25, 40, seed=5)


def regression(structure: str = "kron", **options: Any) -> tuple[pw.Laplace, tuple[Tensor, Tensor]]:
    """A fit of it with a noise of .1, and its data."""
    model, x, y = ladder()
    return fitted(model, x, y, pw.Gaussian(0.1), structure, **{"prior": 0.01, **options}), (moved(x), moved(y))


@functools.cache
def rows() -> Tensor:
    """(N F, D): the Jacobian of all outputs."""
    model, x, _ = ladder()
    return dense.jacobian(model, x, names_of(model)).flatten(0, 1)


def precision(delta: float = 0.01) -> Tensor:
    """(D, D): the posterior precision under a noise of .1."""
    return 100 * rows().T @ rows() + delta * torch.eye(rows().shape[1], dtype=torch.float64)


def gap(mode: pw.LinearMode, delta: float = 0.01) -> float:
    """Nats above the minimum, which least squares know."""
    model, x, y = ladder()
    residuals = (dense.outputs(model, x).detach() - y).flatten()
    theta, matrix = weights_of(model), precision(delta)
    best = -torch.linalg.solve(matrix, 100 * rows().T @ residuals + delta * theta)
    off = mode.displacement.cpu() - best
    return 0.5 * float(off @ matrix @ off)


# What it is


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_exact_where_there_are_few_outputs(temperature: float) -> None:
    """`J^T H J / T + Lambda`, H being the second derivative of the energy at the trained weights."""
    la, data = classifier("kron", prior=pw.Prior.layerwise([0.02, 0.5, 0.03, 0.7]))
    la = la.with_temperature(temperature)
    plan, reference = plan_of(la, data), dense_classifier(la)
    assert plan is not None and isinstance(plan.task.kind, pw.GGN)
    blocks = plan.draw().blocks(Target.of(la.state))
    assert blocks is not None
    matrix = blocks.mv(torch.eye(la.D, dtype=la.weights.dtype, device=la.weights.device)).cpu()
    probs = reference.f.softmax(-1)
    hessian = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :]
    expected = torch.einsum("nfi,nfg,ngj->ij", reference.jacobian, hessian, reference.jacobian) / temperature
    assert torch.allclose(matrix, expected + reference.delta.diag(), atol=1e-8)


def test_random_probes_are_near_the_precision() -> None:
    """Eigenvalues between the two matrices are those of so many random rows, (1 -+ sqrt(D / rows))^2, and no fewer."""
    la, data = regression()
    plan = plan_of(la, data)
    assert plan is not None and isinstance(plan.task.kind, pw.MonteCarlo)
    assert plan.probes == plan.task.kind.samples == math.ceil(2 * la.D / 25)
    blocks = plan.draw().blocks(Target.of(la.state))
    assert blocks is not None
    matrix = blocks.mv(torch.eye(la.D, dtype=la.weights.dtype, device=la.weights.device)).cpu()
    root = torch.linalg.cholesky(precision())
    half = torch.linalg.solve_triangular(root, matrix, upper=False)
    between = torch.linalg.eigvalsh(torch.linalg.solve_triangular(root, half.mT, upper=False))
    low, high = (1 - math.sqrt(0.5)) ** 2, (1 + math.sqrt(0.5)) ** 2
    assert 0.5 * low < float(between[0]) < 0.6 < 1.5 < float(between[-1]) < 1.5 * high


def test_what_it_costs() -> None:
    """Half a product for a probe, and the operations of the dense matrix in those of passes."""
    la, data = regression()
    with open_solver(la.state, data, None, False) as made:
        assert isinstance(made, Solver) and made.plan is not None
        piece = next(iter(made.passes.pieces.pass_over("cost")))
        cost = made.plan.cost(piece, 50)
    forward = 50 * 2 * 2 * (4 * 6 + 6 * 6 + 6 * 6 + 6 * 40)  # every layer is called twice
    dense_operations = (4 + 1 / 3) * la.D**3
    assert cost == pytest.approx(max(150, 0.5 * made.plan.probes + dense_operations / 16 / (6 * forward)))


# The mode


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network(name: str, drawn: list[SketchPlan]) -> None:
    """The gradient of the definition vanishes."""
    case = table(name)
    la = case.fit("kron", prior=pw.Prior.scalar(0.05, mean=0.1))
    mode = found(la, (moved(case.x), moved(case.y)), tolerance=1e-14)
    expected = reference_of(name, la)
    e = mode.displacement.cpu()
    loose = 1e-5 if DEVICE != "cpu" else 1e-6
    assert float(expected.gradient(e).norm()) < loose * float(expected.gradient(torch.zeros_like(e)).norm())
    assert len(drawn) == (len(la.precision.blocks) > 1)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("structure", ["kron", "ekfac", "block", "diag"])
def test_every_structure(structure: str, drawn: list[SketchPlan]) -> None:
    """The mode is that of least squares; the loss falls with every step."""
    la, data = regression(structure)
    mode = found(la, data, tolerance=1e-9)
    assert gap(mode) < 1e-9
    assert all(after <= before + 1e-7 for before, after in itertools.pairwise(mode.losses))
    assert len(drawn) == 1


def test_a_slow_solve_comes_to_its_end(monkeypatch: pytest.MonkeyPatch, drawn: list[SketchPlan]) -> None:
    """Where layers undo each other, it is made after as many products as it costs; without it they are not enough."""
    for module in (sketch, solver):
        monkeypatch.setattr(module, "SLOW", 20.0)
    monkeypatch.setattr(sketch, "FASTER", math.inf)
    monkeypatch.setattr(find, "MOST", 0)
    la, data = regression()
    mode = found(la, data, tolerance=1e-4, steps=200)
    assert gap(mode) < 1e-4
    plan = drawn[0]
    assert [plan] == drawn
    before = next(step for step, (a, b) in enumerate(itertools.pairwise(mode.passes)) if b > a + 2)
    assert mode.passes[before] == pytest.approx(max(20, 0.5 * plan.probes), abs=1)
    assert mode.passes[before + 1] - mode.passes[before] == pytest.approx(1 + 0.5 * plan.probes)
    assert len(mode.passes) - before < 40
    monkeypatch.setattr(sketch, "LARGEST", 0)
    with pytest.warns(pw.TuningWarning, match="200 steps were not enough"):
        without = la.at_linear_mode(data, tolerance=1e-4, steps=200).linear_mode
    assert without is not None and gap(without) > 1e-2


@pytest.mark.usefixtures("at_once")
def test_tuning_makes_it_once(drawn: list[SketchPlan]) -> None:
    """All turns share it, each with the factor of its own prior; the last mode is that of the last precision."""
    la, data = regression(prior=1.0)
    tuned = la.tune(at="linear_mode", train=data, parameters=["prior"], tolerance=0.05)
    assert len(drawn) == 1
    assert tuned.trace is not None and tuned.linear_mode is not None
    assert tuned.trace.converged and len(tuned.trace.values) > 2
    assert gap(tuned.linear_mode, float(tuned.prior.precision)) < 0.5


# When it is made


def test_a_fast_solve_does_without(drawn: list[SketchPlan]) -> None:
    """Most networks never need it."""
    la, data = classifier("kron", prior=0.02)
    assert plan_of(la, data) is not None
    found(la, data)
    assert not drawn


def test_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block knows all there is to know; and what does not fit, or cannot be drawn, is left."""
    la, data = regression()
    assert plan_of(la, data) is not None
    assert plan_of(*regression("full")) is None
    assert plan_of(la, data, memory=2e5) is None
    energy = pw.Custom(lambda f, y: (f - y).square().sum(-1))
    model, x, y = ladder()
    own = fitted(model, x, y, energy, "kron", prior=0.01)
    assert plan_of(own, data) is None
    monkeypatch.setattr(sketch, "ROWS", 3)
    assert plan_of(own, data) is not None  # more probes than there are outputs: the exact GGN, without labels
    monkeypatch.setattr(sketch, "LARGEST", la.D - 1)
    assert plan_of(la, data) is None


def test_half_precision_has_none() -> None:
    """Its matrix would be as wrong as its products."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).bfloat16()
    x, y = normal(30, 4).bfloat16(), classes(3, 30)
    la = fitted(model, x, y, "classification", "kron", prior=0.02)
    assert plan_of(la, (moved(x), moved(y))) is None


def test_without_a_factor_the_fitted_precision_stays() -> None:
    """Rounding may leave a matrix indefinite; the solver then goes on as it did."""
    la, data = regression()
    plan = plan_of(la, data)
    assert plan is not None
    made, target = plan.draw(), Target.of(la.state)
    negative = replace(target, data_weight=-1.0)
    assert made.blocks(target) is not None
    assert made.blocks(negative) is None
    with open_solver(la.state, data, None, False) as solving:
        assert isinstance(solving, Solver)
        solving.sketch = made
        assert solving._sketched(negative) is negative
        assert solving._sketched(target) is not target
