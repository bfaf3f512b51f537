"""Directions that stay in the solver's plane: what they are, and that they change the way and not the mode."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import built, classes, fitted, normal
from linear_cases import NETWORKS, classifier, dense_classifier, found, reference_of
from peewit.curvature.blocks import Blocks
from peewit.curvature.operators import RotatedOperator
from peewit.linear_model import find, plane, sketch, solver, stiff_directions
from peewit.linear_model.block_directions import DenseDirections, OuterDirections
from peewit.linear_model.find import open_solver
from peewit.linear_model.objective import Target
from peewit.linear_model.solver import Solver
from tables import moved, table

PRIORS = {
    "scalar": pw.Prior.scalar(0.02),
    "layerwise": pw.Prior.layerwise([0.02, 0.5, 0.03, 0.7]),
    "unitwise": pw.Prior.unitwise([0.02 * (1 + place % 5) for place in range(18)]),
}
BY_STRUCTURE = [
    *((structure, prior) for structure in ("kron", "block") for prior in PRIORS),
    ("ekfac", "layerwise"),
    (pw.Kron(bias="joint"), "scalar"),
]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions from the first step on."""
    monkeypatch.setattr(solver, "PATIENCE", 1)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many directions were added, each time."""
    counts: list[int] = []
    own = Solver._learn

    def counted(self: Solver, target: Target, number: int) -> int:
        made = own(self, target, number)
        counts.append(len(self.directions))
        return made

    monkeypatch.setattr(Solver, "_learn", counted)
    yield counts


def learned(la: pw.Laplace, data: Any, number: int = 8) -> tuple[Solver, Target]:
    """A solver that has taken a step and learned some directions."""
    target = Target.of(la.state)
    with open_solver(la.state, data, None, False) as made:
        assert isinstance(made, Solver)
        made.solve(target, 1e-9, 1)
        made.directions.known.clear()
        while number > 0 and (cost := made._learn(target, number)):
            number -= 2 * cost
    return made, target


def vectors_of(made: Solver, target: Target) -> Tensor:
    """(R, D): the directions, each from its own coordinates."""
    rows = []
    for unit in torch.eye(len(made.directions), dtype=torch.float64):
        rows.append(torch.zeros_like(made.e))
        made.directions.add_to(rows[-1], unit, target)
    return torch.stack(rows)


# What they are


@pytest.mark.parametrize(("structure", "prior"), BY_STRUCTURE, ids=str)
def test_directions_and_their_products(structure: Any, prior: str) -> None:
    """Eigenvectors of one block, the stiffest of all; products with J and under the prior are the dense ones."""
    la, data = classifier(structure, prior=PRIORS[prior])
    made, target = learned(la, data)
    u = vectors_of(made, target)
    assert len(u) == 8
    jacobian = dense_classifier(la).jacobian.to(u)
    pushed = torch.cat(
        [torch.cat(made.directions.outputs(part), 0).flatten(1, 2) for part in range(len(made.pieces))], 1
    )
    assert torch.allclose(pushed, torch.einsum("nfd,rd->rnf", jacobian, u).flatten(1, 1), atol=1e-9)
    delta = la.prior.delta(la.space, la.weights)
    assert torch.allclose(made.directions.gram(target).to(u), u * delta @ u.T, atol=1e-9)
    v = normal(la.D).to(u)
    found = made.directions.coordinates(target, functools.partial(target.weigh, v))
    assert torch.allclose(found.to(u), u @ (delta * v), atol=1e-9)
    # Stiff: curvature and prior over the prior alone.
    ratios = (u * la.precision.mv(u)).sum(1) / (u * delta * u).sum(1)
    assert float(ratios.min()) > stiff_directions.STIFF
    assert sorted(ratios.tolist()) == pytest.approx(sorted(best_ratios(la, len(u))), rel=1e-6)


def best_ratios(la: pw.Laplace, number: int) -> list[float]:
    """The largest `u^T P u / u^T Lambda u` of every block, by dense matrices."""
    identity = torch.eye(la.D, dtype=la.weights.dtype, device=la.weights.device)
    precision, delta = la.precision.mv(identity), la.prior.delta(la.space, la.weights)
    every: list[float] = []
    for block in la.precision.blocks:
        places = torch.cat([torch.arange(each.start, each.stop) for each in block.slices])
        own, root = precision[places][:, places], delta[places].sqrt()
        if isinstance(block.operator, RotatedOperator) or prior_is_even(delta[places]):
            every += torch.linalg.eigvalsh(own / (root[:, None] * root)).tolist()
        else:  # eigenvectors of the curvature alone
            _, vectors = torch.linalg.eigh(own - delta[places].diag())
            every += ((vectors * (own @ vectors)).sum(0) / (vectors * delta[places][:, None] * vectors).sum(0)).tolist()
    return sorted(every)[-number:]


def prior_is_even(delta: Tensor) -> bool:
    """Whether a block has one precision."""
    return bool((delta == delta[0]).all())


def test_columns_of_several_matrices() -> None:
    """Outer products in a block of several groups, as the vectors they stand for."""
    layout = pw.jacobians.layout.Layout((3, 2, 4), (1, 0, 2), (2, 3, 4))  # groups are the tensor's second axis
    groups, left, right = torch.tensor([0, 1, 1]), normal(3, 3), normal(3, 4)
    made = OuterDirections(layout, groups, left, right)
    rows = torch.zeros(3, 2, 3, 4, dtype=left.dtype)
    for place, (group, a, b) in enumerate(zip(groups.tolist(), left, right, strict=True)):
        rows[place, group] = a[:, None] * b
    expected = DenseDirections(rows.transpose(1, 2).reshape(3, 24))
    v, c = normal(24), normal(3)
    assert torch.allclose(made.coordinates(v), expected.coordinates(v))
    assert torch.allclose(made.combine(c), expected.combine(c))
    assert torch.allclose(made.gram(), expected.gram())
    chosen = torch.tensor([2, 0])
    assert torch.allclose(made.select(chosen).combine(c[:2]), expected.select(chosen).combine(c[:2]))
    both = made.with_more(made.select(chosen)), expected.with_more(expected.select(chosen))
    assert torch.allclose(both[0].gram(), both[1].gram())


# The mode


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network(name: str, seen: list[int]) -> None:
    """The gradient of the definition vanishes where directions are in the plane from the first step on."""
    case = table(name)
    la = case.fit("kron", prior=pw.Prior.scalar(0.05, mean=0.1))
    mode = found(la, (moved(case.x), moved(case.y)), tolerance=1e-14)
    expected = reference_of(name, la)
    e = mode.displacement.cpu()
    loose = 1e-5 if DEVICE != "cpu" else 1e-6
    assert float(expected.gradient(e).norm()) < loose * float(expected.gradient(torch.zeros_like(e)).norm())
    assert max(seen) > 0


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("structure", "prior"), BY_STRUCTURE, ids=str)
def test_every_structure_and_prior(structure: Any, prior: str, seen: list[int]) -> None:
    """Newton's method on dense matrices ends at the same weights, with the same loss."""
    la, data = classifier(structure, prior=PRIORS[prior])
    mode, expected = found(la, data), dense_classifier(la)
    assert torch.allclose(mode.displacement.cpu(), expected.mode(), atol=1e-6)
    assert abs(mode.losses[-1] - float(expected.loss(expected.mode()))) < 1e-9
    assert all(after <= before + 1e-11 for before, after in zip(mode.losses, mode.losses[1:], strict=False))
    assert max(seen) > 0


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("structure", ["full", "diag"])
def test_structures_without_directions(structure: str, seen: list[int]) -> None:
    """One matrix for all weights knows how they go together, and a diagonal has no directions."""
    la, data = classifier(structure, prior=0.02)
    found(la, data)
    assert seen and max(seen) == 0


# The way


class Shared(nn.Module):
    """Layers side by side that explain the same outputs."""

    def __init__(self, ways: int = 6) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(5, 3) for _ in range(ways))

    def forward(self, x: Tensor) -> Tensor:
        """Their sum, each of a slightly different input."""
        return sum(way(x + 0.05 * place * x.roll(1, -1)) for place, way in enumerate(self.ways))


@functools.cache
def sharing() -> tuple[nn.Module, Tensor, Tensor]:
    """Such a network, and data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = built(Shared())
    return model, normal(60, 5), classes(3, 60)


def products(precisions: pw.Prior) -> float:
    """That a solve takes."""
    model, x, y = sharing()
    la = fitted(model, x, y, "classification", "kron", prior=precisions)
    return found(la, (moved(x), moved(y)), tolerance=1e-8).products


def test_layers_that_share_their_work_take_fewer_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one layer takes over from another is not steep, which no block on its own can know."""
    monkeypatch.setattr(sketch, "LARGEST", 0)
    prior = pw.Prior.scalar(1e-2)
    some = products(prior)
    monkeypatch.setattr(find, "MOST", 0)
    assert some < 0.7 * products(prior)


def test_tuning_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same precisions and evidence, whatever was in the plane."""
    la, data = classifier("kron", prior=pw.Prior.scalar(1.0))
    monkeypatch.setattr(solver, "PATIENCE", 1)
    some = la.tune(at="linear_mode", train=data, tolerance=1e-4)
    monkeypatch.setattr(find, "MOST", 0)
    none = la.tune(at="linear_mode", train=data, tolerance=1e-4)
    assert torch.allclose(some.prior.precision.log(), none.prior.precision.log(), atol=2e-3)
    assert float(some.log_evidence()) == pytest.approx(float(none.log_evidence()), abs=1e-4)


def test_a_turn_takes_ten_products_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and directions together."""
    model, x, y = sharing()
    taken: list[float] = []
    own = Solver.solve

    def counted(self: Solver, *arguments: Any, **options: Any) -> Any:
        before = self.products
        made = own(self, *arguments, **options)
        taken.append(self.products - before)
        return made

    monkeypatch.setattr(Solver, "solve", counted)
    la = fitted(model, x, y, "classification", "kron", prior=pw.Prior.layerwise(1.0))
    with pytest.warns(pw.TuningWarning, match="switched off"):
        la.tune(at="linear_mode", train=(moved(x), moved(y)), tolerance=0.05)
    assert 9 <= max(taken) <= 10


def test_directions_that_the_prior_holds_are_forgotten() -> None:
    """Under a stronger prior nothing is stiff any more, and nothing is left of what was."""
    la, data = classifier("kron", prior=0.02)
    made, _ = learned(la, data, 6)
    assert len(made.directions) == 6
    strong = Target.of(la.with_prior(1e6).state)
    assert made._candidates(strong, 10) == []
    assert len(made.directions) == 0


def test_some_are_forgotten_and_others_kept() -> None:
    """Products stay with their directions."""
    la, data = classifier("kron", prior=0.02)
    made, target = learned(la, data)
    before, outputs = vectors_of(made, target), torch.cat(made.directions.outputs(0))
    kept = torch.arange(len(before)) % 3 != 0
    made.directions.forget(~kept)
    assert torch.equal(vectors_of(made, target), before[kept])
    assert torch.equal(torch.cat(made.directions.outputs(0)), outputs[kept])


def test_a_single_solve_learns_nothing_that_it_cannot_use(seen: list[int]) -> None:
    """Directions cost products, and the last steps are for using them."""
    la, data = classifier("kron", prior=0.02)
    with pytest.warns(pw.TuningWarning, match="5 steps were not enough"):
        la.at_linear_mode(data, tolerance=1e-12, steps=5)
    assert seen and not any(seen)


@pytest.mark.usefixtures("at_once")
def test_without_room_there_are_none(monkeypatch: pytest.MonkeyPatch, seen: list[int]) -> None:
    """The outputs that are kept for them are part of `memory=`; the mode is the same."""
    la, data = classifier("kron", prior=0.02)
    expected = found(la, data)
    assert max(seen) > 0
    seen.clear()
    monkeypatch.setattr(find, "room", lambda memory, device: 4 * 30 * 3 * 8)
    mode = found(la, data)
    assert seen and max(seen) == 0
    assert torch.allclose(mode.displacement, expected.displacement, atol=1e-5)


# Energies in many directions


class OnceOnly(torch.autograd.Function):
    """The cube, whose second derivative cannot be taken for many vectors at once."""

    @staticmethod
    def forward(ctx: Any, f: Tensor) -> Tensor:
        """f^3."""
        ctx.save_for_backward(f)
        return f**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """By a number, which a batch of vectors does not have."""
        (f,) = ctx.saved_tensors
        float(grads[0].detach().sum())
        return 3 * f**2 * grads[0]


@pytest.mark.parametrize("piece", [7, 1 << 20], ids=["in pieces", "at once"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "one by one"])
def test_energies_along_many_vectors(piece: int, batched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value, gradient and second derivative of `sum energy(u + c v)` are those of automatic differentiation."""
    monkeypatch.setattr(plane, "NUMBERS", piece)
    cube = (lambda f: f**3) if batched else OnceOnly.apply
    likelihood = pw.Custom(lambda f, y: ((f - y) ** 2).sum(-1) + 0.1 * cube(f).sum(-1))
    u, y = normal(9, 1, 2), normal(9, 1, 2) + 1
    few, more = [normal(9, 1, 2) * 2], [normal(2, 9, 1, 2), normal(3, 9, 1, 2) - 1]
    every = torch.cat([few[0][None], *more])
    c = normal(6)

    def value(c: Tensor) -> Tensor:
        f = u + torch.einsum("k,kntc->ntc", c, every)
        return ((f - y) ** 2).sum() + 0.1 * (f**3).sum()

    made = plane.energy_terms(likelihood, u, few, y, c, more)
    assert float(made[0]) == pytest.approx(float(value(c)))
    assert torch.allclose(made[1:7], torch.autograd.functional.jacobian(value, c))
    assert torch.allclose(made[7:].reshape(6, 6), torch.autograd.functional.hessian(value, c))


def test_one_block_has_no_candidates() -> None:
    """There is nothing that it does not know."""
    la, data = classifier("kron", prior=0.02)
    made, target = learned(la, data, 0)
    assert made.directions.candidates(made.directions.ratios(target), 5)
    alone = Blocks(target.blocks.blocks[:1], target.blocks.size)
    assert made.directions.ratios(replace(target, blocks=alone)) == {}


# What a critical reader found


@pytest.mark.parametrize("prior", ["unitwise", "g_prior"])
@pytest.mark.parametrize("name", ["embedding", "conv_depthwise"])
def test_ratios_of_blocks_with_absent_bases_and_groups(name: str, prior: str) -> None:
    """`v^T P v / v^T Lambda v` of the directions themselves, also where one side of a block has no basis."""
    model, x, y = (embedded if name == "embedding" else depthwise)()
    count = sum(len(parameter) for parameter in model.parameters())
    chosen = pw.Prior.unitwise([0.05 * (1 + place % 3) for place in range(count)])
    la = fitted(model, x, y, "classification", "kron", prior=chosen if prior == "unitwise" else pw.Prior.g_prior(1.0))
    made, target = learned(la, (moved(x), moved(y)), 12)
    u, delta = vectors_of(made, target), la.prior.delta(la.space, la.weights)
    true = (u * la.precision.mv(u)).sum(1) / (u * delta * u).sum(1)
    ratios = made.directions.ratios(target)
    said = torch.cat([ratios[place][own.places] for place, own in made.directions.known.items()])
    assert len(u) > 4
    assert torch.allclose(said, true, rtol=1e-6)
    first = la.precision.blocks.index(next(each for each in la.precision.blocks if each.parts[0].name == "0.weight"))
    assert first in ratios
    assert float(ratios[first].min()) > 1 - 1e-6


def embedded() -> tuple[nn.Module, Tensor, Tensor]:
    """Words, whose embedding has one precision per word."""
    model = built(nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Tanh(), nn.Linear(6, 3)))
    return model, torch.randint(7, (30, 2), generator=torch.Generator().manual_seed(0)), classes(3, 30)


def depthwise() -> tuple[nn.Module, Tensor, Tensor]:
    """A convolution of each channel on its own."""
    layers = nn.Conv1d(3, 6, 2, groups=3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)
    return built(nn.Sequential(*layers)), normal(30, 3, 4), classes(3, 30)


def test_nothing_is_bought_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten is not stiff: adding and forgetting go by the same number."""
    bought: list[tuple[int, int]] = []
    own = Solver._candidates

    def noted(self: Solver, target: Target, number: int) -> Any:
        made = own(self, target, number)
        bought.extend((each.block, each.index) for each in made)
        return made

    monkeypatch.setattr(Solver, "_candidates", noted)
    monkeypatch.setattr(solver, "PATIENCE", 1)
    for scale in (1.0, 5.0):
        bought.clear()
        la, (x, y) = classifier("kron", prior=1e-3)
        found(la.with_prior(1e-3 * scale), (x, y), tolerance=1e-10)
        assert bought and len(set(bought)) == len(bought)


@pytest.mark.usefixtures("at_once")
def test_half_precision_has_none(seen: list[int]) -> None:
    """Products with J are wrong by a thousandth there, which many directions at once would make much of."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).bfloat16()
    x, y = normal(30, 4).bfloat16(), classes(3, 30)
    la = fitted(model, x, y, "classification", "kron", prior=0.02)
    la.at_linear_mode((moved(x), moved(y)), tolerance=0.5, steps=50)
    assert seen and not any(seen)


def test_the_noise_is_in_the_ratios() -> None:
    """Of a dense block too, whose eigenvectors were made under another noise."""
    x, y = normal(30, 4), normal(30, 2, seed=3)
    model = built(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
    la = fitted(model, x, y, pw.Gaussian(3.0), "block", prior=0.1)
    made, _ = learned(la, (moved(x), moved(y)))
    for noise in (3.0, 0.1):
        own = Target.of(replace(la.state, likelihood=pw.Gaussian(noise)))
        fresh = stiff_directions.Directions().ratios(own)
        assert all(torch.allclose(each, fresh[place], rtol=1e-6) for place, each in made.directions.ratios(own).items())


def test_blocks_in_float64_of_a_network_in_float32() -> None:
    """Sums are as exact where rounding would show beside the prior; the ratios are those of float64."""
    x, y = normal(30, 4), normal(30, 2, seed=3)
    model = built(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
    target = Target.of(fitted(model, x, y, pw.Gaussian(0.1), "block", prior=0.1).state)
    expected = stiff_directions.Directions().ratios(target)
    narrow = replace(target, weights=target.weights.float(), delta=lambda chosen: target.delta(chosen).float())
    ratios = stiff_directions.Directions().ratios(narrow)
    assert all(torch.allclose(each.double(), expected[place], rtol=1e-3) for place, each in ratios.items())


def test_second_derivatives_without_a_value() -> None:
    """Where a likelihood has none the plane is left as it is."""
    number = torch.full((1, 1), float("nan")).double()
    terms = plane.Terms(1.0, torch.ones(1).double(), lambda: number)
    c, first, last = plane.descend(lambda c: terms, 1, 1e-9)
    assert c.tolist() == [0.0]
    assert first is last
