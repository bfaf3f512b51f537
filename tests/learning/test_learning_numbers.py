"""What is learnt, against closed forms: the evidence of Bayesian linear regression, its optimum and its mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import peewit as pw
from peewit.curvature.structures import NAMES as STRUCTURES
from peewit.learning.examples import share_of
from peewit.learning.options import Measuring
from peewit.learning.refresh import refresh
from peewit.runtime.progress import Progress


def line_data(number: int = 40, inputs: int = 3, outputs: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(number, inputs, generator=generator, dtype=torch.float64)
    truth = torch.randn(inputs, outputs, generator=generator, dtype=torch.float64)
    y = x @ truth + 0.5 + 0.3 * torch.randn(number, outputs, generator=generator, dtype=torch.float64)
    return x, y


def log_evidence(x: np.ndarray, y: np.ndarray, delta: np.ndarray, noise: float) -> float:
    """Of `y = features w + noise` with `w ~ N(0, 1 / delta)`: a Gaussian of the targets."""
    features = np.concatenate([x, np.ones((len(x), 1))], 1)
    covariance = features @ np.diag(1 / delta) @ features.T + noise**2 * np.eye(len(x))
    _, volume = np.linalg.slogdet(covariance)
    return -0.5 * (y @ np.linalg.solve(covariance, y) + volume + len(x) * math.log(2 * math.pi))


def closure_of(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, loss: object) -> object:
    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        return value

    return closure


@pytest.mark.parametrize("grouping", ["scalar", "layerwise"])
def test_prior_and_noise_end_at_the_optimum_of_the_evidence(grouping: str) -> None:
    x, y = line_data()
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe", max_iter=50)
    optimizer.param_groups[0].update(tolerance_grad=1e-13, tolerance_change=1e-16)
    mse = nn.MSELoss()
    learner = pw.learning.Learner(
        model,
        (x, y),
        "regression",
        optimizer,
        loss=mse,
        prior=getattr(pw.Prior, grouping)(1.0),
        structure="full",
        steps=60,
        rate=pw.learning.cosine(0.3, 1e-5, 1800),
    )
    for _ in range(30):
        optimizer.step(closure_of(model, optimizer, x, y, mse))
        learner.step()
    optimizer.step(closure_of(model, optimizer, x, y, mse))
    record = learner.step()

    def minus(z: np.ndarray) -> float:
        delta = np.exp([z[0]] * 3 + [z[0] if grouping == "scalar" else z[1]])
        return -log_evidence(x.numpy(), y[:, 0].numpy(), delta, math.exp(z[-1]))

    start = np.zeros(2 if grouping == "scalar" else 3)
    best = minimize(minus, start, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10, "maxiter": 4000})
    assert record.log_evidence == pytest.approx(-best.fun, abs=1e-6)
    assert record.precision.log().tolist() == pytest.approx(best.x[:-1].tolist(), abs=1e-3)
    assert math.log(record.noise) == pytest.approx(best.x[-1], abs=1e-3)
    # Training followed: the weights are the mode under these very numbers.
    features = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    delta = torch.exp(torch.tensor([best.x[0]] * 3 + [best.x[-2]]))
    noise = math.exp(best.x[-1])
    mode = torch.linalg.solve(features.T @ features / noise**2 + delta.diag(), features.T @ y / noise**2)[:, 0]
    weights = torch.cat([model.weight.detach()[0], model.bias.detach()])
    assert torch.allclose(weights, mode.to(weights), atol=1e-4)


def test_the_evidence_of_a_record_is_that_of_its_posterior() -> None:
    x, y = line_data()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    learner = pw.learning.Learner(model, (x, y), "regression", optimizer, prior=pw.Prior.layerwise(), structure="kron")
    record = learner.step()
    la = learner.posterior()
    assert record.log_evidence == pytest.approx(float(la.log_evidence()), abs=1e-8)
    parts = la.evidence()
    assert record.log_likelihood == pytest.approx(parts.log_likelihood, abs=1e-8)
    assert record.complexity == pytest.approx(parts.complexity, abs=1e-8)
    assert torch.allclose(record.effective_dimensions, parts.effective_dimensions, atol=1e-8)
    assert torch.allclose(record.precision, la.prior.precision)
    assert record.noise == pytest.approx(float(la.likelihood.noise))


def test_curvature_data_stand_for_all_training_examples() -> None:
    """Trained on two copies, measured on one: the posterior's evidence is that of both."""
    x, y = line_data()
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    learner = pw.learning.Learner(
        model, (x.repeat(2, 1), y.repeat(2, 1)), pw.Gaussian(0.3), optimizer, prior=2.0, structure="full", rate=0.0,
        curvature_data=(x, y), parameters=["prior"],
    )  # fmt: skip
    record, both = learner.step(), [array.repeat(2, 1).numpy() for array in (x, y)]
    assert float(learner.posterior().log_evidence()) == pytest.approx(record.log_evidence, rel=1e-9)
    expected = log_evidence(both[0], both[1][:, 0], np.full(4, 2.0), 0.3)
    assert float(learner.posterior(at="linear_mode").log_evidence()) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("structure", ["diag", "full", "kron", "block", "ekfac"])
def test_a_share_of_the_data_counts_as_all_of_it(structure: str) -> None:
    """Of two copies of the data one is drawn: the evidence is that of both."""
    x, y = line_data(number=16)
    model = nn.Linear(3, 1).double()
    records = []
    for share in (1.0, 0.5):
        learner = pw.learning.Learner(
            model, [(x, y), (x, y)], "regression", sgd(model), structure=structure, rate=0.0, share=share
        )
        records.append(learner.step())
        learner.detach()
    whole, half = records
    assert whole.examples == half.examples == 32
    assert half.log_evidence == pytest.approx(whole.log_evidence, abs=1e-8)
    assert torch.allclose(half.effective_dimensions, whole.effective_dimensions, atol=1e-8)


@pytest.mark.parametrize("structure", ["diag", "full", "kron", "block"])
def test_running_sums_weigh_earlier_data_less(structure: str) -> None:
    """12 new examples beside 12 earlier ones that count a quarter, scaled to N = 24; energies are of the new alone."""
    x, y = line_data(number=24)
    model = nn.Linear(3, 1).double()
    measuring = Measuring(
        weights="all",
        structure=STRUCTURES[structure](),
        curvature=pw.GGN(),
        share=1.0,
        running=0.25,
        memory=None,
        arithmetic="auto",
        seed=0,
    )
    state, earlier = None, None
    for number, chosen in enumerate((slice(0, 12), slice(12, 24))):
        state, earlier = refresh(
            model,
            (x[chosen], y[chosen]),
            pw.Gaussian(1.0),
            pw.Prior.scalar(1.0),
            measuring,
            number,
            24,
            earlier,
            Progress(),
        )
    features = torch.cat([x, torch.ones(24, 1, dtype=x.dtype)], 1)
    counts = torch.tensor([0.25] * 12 + [1.0] * 12, dtype=x.dtype)
    dense = 24 / 15 * (features.T * counts) @ features
    weight = state.problem.data_weight(torch.ones((), dtype=x.dtype))
    assert torch.allclose(weight * state.curvature.diag(), dense.diagonal(), atol=1e-8)
    if structure in ("kron", "full"):  # one layer with one position: the factors are exact
        columns = state.curvature.precision(torch.full((4,), 1e-300, dtype=x.dtype), weight)
        product = columns.mv(torch.eye(4, dtype=x.dtype))
        blocks = dense if structure == "full" else dense * torch.block_diag(torch.ones(3, 3), torch.ones(1, 1))
        assert torch.allclose(product, blocks, atol=1e-8)
    residuals = (y[12:] - model(x[12:]).detach()).square().sum()
    fit = -0.5 * 2 * residuals - 24 / 2 * math.log(2 * math.pi)
    assert float(state.problem.evidence(state.prior).log_likelihood) == pytest.approx(float(fit), abs=1e-8)


def test_the_decay_is_the_prior_in_units_of_the_loss() -> None:
    """`N beta / c` divides precisions: with the mean squared error of two outputs, c is one."""
    x, y = line_data(outputs=2)
    model = nn.Linear(3, 2).double()
    losses = {nn.MSELoss(): 1.0, None: 1.0, 3.0: 3.0}
    for loss, factor in losses.items():
        learner = pw.learning.Learner(model, (x, y), pw.Gaussian(0.5), sgd(model), loss=loss, prior=7.0)
        learner.detach()
        decay = {pull.decay for pull in learner.hook.pulls.values()}
        assert [*decay] == [pytest.approx(factor * 7.0 / (40 * 4))], loss


def sgd(model: nn.Module, **options: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def test_moments_are_kept_between_hyper_steps() -> None:
    """At the same weights, two hyper-steps of five steps are one of ten."""
    x, y = line_data()
    model = nn.Linear(3, 1).double()
    records = {}
    for steps, times in ((5, 2), (10, 1)):
        learner = pw.learning.Learner(model, (x, y), "regression", sgd(model), steps=steps, prior=pw.Prior.layerwise())
        for _ in range(times):
            records[steps] = learner.step()
        learner.detach()
    assert torch.allclose(records[5].precision, records[10].precision, rtol=1e-10)
    assert records[5].noise == pytest.approx(records[10].noise, rel=1e-10)


EVERY_PRIOR = {
    "scalar": pw.Prior.scalar(2.0),
    "layerwise": pw.Prior.layerwise(2.0),
    "unitwise": pw.Prior.unitwise(2.0),
    "groups": pw.Prior.groups({"0.*": 2.0, "*": 3.0}),
    "diagonal": pw.Prior.diagonal(2.0),
}


HOLDING = {"unitwise": {"kron", "diag", "block", "full"}, "diagonal": {"diag", "block", "full"}}


@pytest.mark.parametrize("likelihood", ["classification", "regression", "heteroscedastic"])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("prior", EVERY_PRIOR)
def test_every_prior_is_learnt_under_every_structure_that_holds_it(prior: str, structure: str, likelihood: str) -> None:
    """One step moves each precision where differences of the evidence say; others are refused before training."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    outputs = {"classification": 3, "heteroscedastic": 2}.get(likelihood, 1)
    y = torch.randint(0, 2, (20,), generator=generator)
    y = y if likelihood == "classification" else y[:, None].double()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs)).double()
    start = EVERY_PRIOR[prior]
    options = {"structure": structure, "prior": start}
    if structure not in HOLDING.get(prior, {structure}):
        with pytest.raises(pw.PeewitError, match=r"use .*structure="):
            pw.learning.Learner(model, (x, y), likelihood, sgd(model), **options)
        return
    la = pw.fit(model, (x, y), likelihood, **options)
    learner = pw.learning.Learner(model, (x, y), likelihood, sgd(model), steps=1, rate=0.05, **options)
    after = learner.step().precision.log()
    before = start.precision.log().expand(len(after))
    for group in range(min(len(after), 5)):
        moved = torch.zeros(len(after), dtype=torch.float64)
        moved[group] = 1e-4
        up, down = (float(la.log_evidence(start.with_precision((before + way * moved).exp()))) for way in (1, -1))
        if abs(up - down) > 1e-7:
            assert float(after[group] - before[group]) == pytest.approx(0.05 * (1 if up > down else -1), rel=1e-3)


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Examples that say which they are."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([float(index)]), torch.tensor([0.0])


@pytest.mark.parametrize("make", [Rows, lambda: DataLoader(Rows(), 3), lambda: [*DataLoader(Rows(), 2)]])
def test_shares_of_data_that_nobody_shuffles_are_drawn(make: Callable[[], Any]) -> None:
    """Every step another share, and with one seed the same in every pass."""
    seen = []
    for seed in (0, 1, 2):
        shares = [share_of(make(), nn.Linear(1, 1), 0.3, seed) for _ in range(2)]
        passes = [torch.cat([x for x, _ in share]).flatten().tolist() for share in (shares[0], shares[0], shares[1])]
        assert passes[0] == passes[1] == passes[2]
        assert len(passes[0]) == 6
        seen.append(sorted(passes[0]))
    assert seen[0] != seen[1] != seen[2]


def test_a_batch_that_training_drops_is_measured() -> None:
    x, y = line_data(number=10)
    model = nn.Linear(3, 1).double()
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, drop_last=True)
    learner = pw.learning.Learner(model, loader, "regression", sgd(model), structure="full", rate=0.0)
    assert learner.step().examples == 10
    la = learner.posterior()
    assert (la.N, la.temperature) == (10, 1.0)
