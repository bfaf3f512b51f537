"""Ways to predict that were tried in place of the recipe: what they choose, on networks of a few weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import peewit as pw
from benchmarks.quality import baselines, ours, ways
from benchmarks.quality.cases import Case, Likelihood, Networks, Parts
from benchmarks.quality.measure import Record, measure, plain_passes
from peewit.recommendation.recipes import RECIPES
from peewit.tuning import by_training

SAME_SLACK = ("last layer, recipe", "diagonal, recipe", "last layer kron, recipe", "last layer kron, validation")
HALFWAY = "evidence, prior halfway to the weights"
NEW = [way for way in ways.OURS if way.before or way.after or way.choice or way.weights or way.name in SAME_SLACK]
EXAMPLES, INPUTS = 60, 3


def case_of(likelihood: Likelihood) -> Case:
    """A perceptron that was trained a little, with data of its own for each part."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, 3 if likelihood == "classification" else 1))

    def examples() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(EXAMPLES, INPUTS)
        y = x.sum(1, keepdim=True) + 0.7 * torch.randn(EXAMPLES, 1)
        return (x, y) if likelihood == "regression" else (x, (y[:, 0] > 0).long() + (y[:, 0] > 1).long())

    train, stop, validation, test = (examples() for _ in range(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        outputs = model(train[0])
        loss = (
            nn.functional.cross_entropy(outputs, train[1])
            if likelihood == "classification"
            else (outputs - train[1]).square().mean()
        )
        torch.autograd.backward([loss])
        optimizer.step()
    parts = Parts(
        train=train, stop=stop, validation=validation, test=test, unknown={"far": 10 * test[0]}, shifted={"same": test}
    )
    return Case(
        task="tiny",
        likelihood=likelihood,
        training="early",
        variant="whole",
        split=0,
        parts=parts,
        networks=Networks((model.eval(),), None),
    )


def record_of(name: str, likelihood: Likelihood) -> Record:
    case = case_of(likelihood)
    record = measure(ways.WAYS[name], case, plain_passes(case))
    assert record is not None and "failure" not in record, record
    return record


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
@pytest.mark.parametrize("way", NEW, ids=lambda way: way.name)
def test_every_candidate_has_a_record(way: ours.Ours, likelihood: Likelihood) -> None:
    record = record_of(way.name, likelihood)
    assert record["settings"]["examples"] == EXAMPLES
    assert record["settings"]["weights"] >= 1 and record["cost"]["seconds"] > 0


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_without_a_pull_the_evidence_takes_the_largest_precision(likelihood: Likelihood) -> None:
    """The predictions are then those of the network, and the record says why."""
    record, plain = (record_of(name, likelihood) for name in ("evidence, prior at the weights", "plain"))
    assert record["settings"]["precision"] == pytest.approx(1e10)
    assert record["settings"]["effective dimensions"] < 1e-3
    assert record["figures"]["nll"] == pytest.approx(plain["figures"]["nll"], abs=1e-4)
    assert any("switched off" in text or "largest allowed" in text for text in record["warned"])


def test_a_prior_halfway_to_the_weights_pulls_a_quarter() -> None:
    """The same evidence at four times the precision; its best precision is the larger one."""
    case = case_of("classification")
    la = ours.Ours(name="evidence").fitted(case)
    halfway = ours.centred(0.5)(la)
    torch.testing.assert_close(halfway.prior.mean, la.weights / 2)
    settings = [record_of(name, "classification")["settings"] for name in ("evidence", HALFWAY)]
    assert settings[1]["precision"] > settings[0]["precision"]


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_effective_dimensions_are_capped(likelihood: Likelihood) -> None:
    la = ours.Ours(name="evidence").fitted(case_of(likelihood)).with_prior(1e-3)
    assert la.evidence().gamma > 0.1 * EXAMPLES
    assert ours.capped(0.1)(la).evidence().gamma == pytest.approx(0.1 * EXAMPLES, rel=1e-6)
    assert ours.capped(2.0)(la) is la


def test_the_noise_belongs_to_the_capped_precision() -> None:
    """It is the best one by the evidence under that precision."""
    la = ours.capped(0.05)(ours.Ours(name="evidence").fitted(case_of("regression")).tune())
    assert isinstance(la.likelihood, pw.Gaussian)
    noise = float(la.likelihood.noise)
    best = float(la.log_evidence())
    for factor in (0.97, 1.03):
        assert float(la.with_noise(factor * noise).log_evidence()) < best


def validation_losses(case: Case, precision: float) -> torch.Tensor:
    """(N,) in float64: the loss on validation data under the noise that is best there, by dense matrices.

    No noise below the training residuals is tried, as in tuning.
    """
    model = case.networks.plain
    names, weights = zip(*((name, weight.detach().double()) for name, weight in model.named_parameters()), strict=True)

    def outputs(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x.double(),))[:, 0]

    def jacobian(x: torch.Tensor) -> torch.Tensor:
        pieces = torch.autograd.functional.jacobian(lambda *values: outputs(x, *values), weights)
        return torch.cat([piece.flatten(1) for piece in pieces], 1)

    (x, y), (xv, yv) = case.parts.train, case.parts.validation
    quiet = float((outputs(x, *weights) - y[:, 0]).square().mean().sqrt())
    values, vectors = torch.linalg.eigh(jacobian(x).T @ jacobian(x))
    squares, residuals = (jacobian(xv) @ vectors).square(), outputs(xv, *weights) - yv[:, 0]
    losses = []
    for noise in (quiet * torch.logspace(0, 1, 400)).tolist():
        variance = squares @ (1 / (values.clamp(min=0) / noise**2 + precision)) + noise**2
        losses.append(-torch.distributions.Normal(0.0, variance.sqrt()).log_prob(residuals))
    return min(losses, key=lambda loss: float(loss.mean()))


@pytest.mark.filterwarnings("ignore::peewit.TuningWarning")  # the network itself is as good here
@pytest.mark.parametrize("rule", ["0.002", "one error"])
def test_the_least_precision_that_validation_data_cannot_tell_from_the_best(rule: str) -> None:
    """A smaller one is worse by more than is allowed."""
    case = case_of("regression")
    way = ways.WAYS[f"validation, least within {rule}"]
    assert isinstance(way, ours.Ours) and way.choice is not None
    la = way.tuned(pw.fit(case.networks.plain, case.parts.train, "regression", structure="full"), case)
    best = validation_losses(case, float(la.prior.precision))
    chosen = float(way.choice(la, case.parts.validation).prior.precision)
    assert chosen < 0.5 * float(la.prior.precision)

    def excess(precision: float) -> float:
        losses = validation_losses(case, precision) - best
        return float(losses.mean()) - (0.002 if rule == "0.002" else float(losses.std()) / len(losses) ** 0.5)

    assert excess(chosen) < 1e-4
    if rule == "0.002":  # an error shrinks as fast as the loss where weights are nearly certain: no sharp end
        assert excess(0.8 * chosen) > 0


def test_which_weights_are_uncertain() -> None:
    case = case_of("classification")
    model = case.networks.plain
    assert ours.but_the_last_layer(model) == ["0.weight", "0.bias"]
    assert record_of("all but the last layer, evidence", "classification")["settings"]["weights"] == 8 * (INPUTS + 1)
    total = sum(weight.numel() for weight in model.parameters())
    assert ours.largest_variances(model).size == round(0.1 * total) == 6
    assert ours.largest_variances(nn.Linear(100, 100)).size == ours.LARGEST
    assert record_of("largest variances, evidence", "classification")["settings"]["weights"] == 6
    la = ways.WAYS["largest weights, evidence"].fitted(case)  # type: ignore[attr-defined]
    every = torch.cat([weight.detach().flatten() for weight in model.parameters()]).abs()
    torch.testing.assert_close(la.weights.abs().sort().values, every.sort().values[-6:])


def test_candidates_at_the_slack_of_the_recipe() -> None:
    for way in (ways.WAYS[name] for name in SAME_SLACK[:3]):
        assert isinstance(way, ours.Ours)
        assert way.slack == by_training.SLACK and way.trained
    recommended = {recipe.name: recipe.fit for recipe in RECIPES}
    for name, recipe in (("recipe", "last layer, training"), ("validation", "last layer, validation")):
        way = ways.WAYS[f"last layer kron, {name}"]
        assert isinstance(way, ours.Ours)
        assert dict(way.fitting) == dict(recommended[recipe])


def test_names_of_ways_differ() -> None:
    every = (*ways.BASELINES, *ways.OURS, *ways.TRAINED)
    assert len({way.name for way in every}) == len(every) == len(ways.WAYS)
    assert isinstance(ways.WAYS["plain"], baselines.Plain)
