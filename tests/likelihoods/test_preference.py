"""Reward models: fits to pairs, and questions about pairs and single inputs, against dense loops in float64."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, names_of, normal, weights_of
from tables import moved, relative

PRIOR = 1.5
EXACT = 1e-8
FIRST, SECOND, NEW = normal(12, 3, seed=1), normal(12, 3, seed=2), normal(5, 3, seed=3)
OUTCOMES = (normal(12, seed=4) > 0).double()
OUTCOMES[0] = 0.5  # a tie


def reward() -> nn.Module:
    """(N, 3) -> (N, 1)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))


class Reference:
    """The posterior of Bradley and Terry's model by loops over pairs."""

    def __init__(self, first: Tensor = FIRST, second: Tensor = SECOND, y: Tensor = OUTCOMES) -> None:
        self.model = reward()
        self.names = names_of(self.model)
        self.theta = weights_of(self.model)
        size = len(self.theta)
        self.curvature = torch.zeros(size, size, dtype=torch.float64)
        self.log_likelihood = torch.zeros((), dtype=torch.float64)
        difference, j = self.differences(first, second)
        for n in range(len(first)):
            p = torch.sigmoid(difference[n])
            self.curvature += p * (1 - p) * torch.outer(j[n], j[n])
            self.log_likelihood += y[n] * torch.log(p) + (1 - y[n]) * torch.log(1 - p)
        self.covariance = torch.linalg.inv(self.curvature + PRIOR * torch.eye(size, dtype=torch.float64))

    def differences(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) differences of rewards, and their derivatives (N, D)."""
        f = [dense.outputs(self.model, x)[:, 0] for x in (first, second)]
        j = [dense.jacobian(self.model, x, self.names)[:, 0] for x in (first, second)]
        return f[0] - f[1], j[0] - j[1]

    @property
    def evidence(self) -> Tensor:
        """()."""
        delta = torch.full_like(self.theta, PRIOR)
        return dense.log_evidence(self.log_likelihood, self.curvature, self.theta, torch.zeros_like(delta), delta)


def fitted(data: Any, **options: Any) -> pw.Laplace:
    """A full posterior."""
    options = {"structure": "full", "curvature": "ggn", "prior": PRIOR, **options}
    return pw.fit(reward().to(DEVICE), data, "preference", **options)


def pairs() -> tuple[pw.Pair, Tensor]:
    """With outcomes."""
    return pw.Pair(moved(FIRST), moved(SECOND)), moved(OUTCOMES)


def test_fit_and_evidence() -> None:
    """Curvature and evidence of pairs."""
    la, expected = fitted(pairs()), Reference()
    inverse = la.precision.solve(torch.eye(la.D, dtype=torch.float64, device=DEVICE)).cpu()
    assert relative(inverse, expected.covariance) < EXACT
    assert relative(la.log_evidence().cpu(), expected.evidence) < EXACT


def test_rewards_of_single_inputs() -> None:
    """Their means, variances, and covariances between inputs."""
    la, expected = fitted(pairs()), Reference()
    pred = la.predict(moved(NEW), joint=True)
    assert isinstance(pred, pw.Outputs)
    j = dense.jacobian(expected.model, NEW, expected.names)[:, 0]
    covariance = j @ expected.covariance @ j.T
    assert relative(pred.mean.cpu(), dense.outputs(expected.model, NEW)) < EXACT
    assert relative(pred.covariance.cpu()[:, 0, :, 0], covariance) < EXACT
    single = la.predict(moved(NEW))
    assert relative(single.epistemic.cpu()[:, 0], covariance.diagonal()) < EXACT
    with pytest.raises(pw.PeewitError, match="distribution of y"):
        single.log_prob(moved(OUTCOMES[:5]))


def test_preferences_of_pairs() -> None:
    """The probability that the first is preferred, by the probit, and log probabilities of outcomes."""
    la, expected = fitted(pairs()), Reference()
    first, second = NEW, NEW.flip(0)
    pred = la.predict(pw.Pair(moved(first), moved(second)))
    assert isinstance(pred, pw.Binary)
    f, j = expected.differences(first, second)
    variance = (j @ expected.covariance * j).sum(1)
    p = torch.sigmoid(f / (1 + math.pi / 8 * variance).sqrt())
    assert relative(pred.probs.cpu()[:, 0], p) < 1e-7
    y = OUTCOMES[:5]
    log_prob = y * p.log() + (1 - y) * (1 - p).log()
    assert relative(pred.log_prob(moved(y)).cpu(), log_prob) < 1e-7
    assert float(pred.probs[2]) == pytest.approx(0.5)  # an input and itself
    swapped = la.predict(pw.Pair(moved(second), moved(first)))
    assert relative(swapped.probs, 1 - pred.probs) < 1e-7
    sampled = la.predict(pw.Pair(moved(first), moved(second)), method="sampled")
    assert isinstance(sampled, pw.Binary) and sampled.probs.shape == (5, 1)


def test_forms_of_data() -> None:
    """The first is preferred where no outcome is given; loaders, mappings and pairs of tensors are the same data."""
    first, second, ones = moved(FIRST), moved(SECOND), torch.ones(12, device=DEVICE)
    expected = Reference(y=torch.ones(12, dtype=torch.float64)).evidence
    dataset = [pw.Pair(a, b) for a, b in zip(FIRST, SECOND, strict=True)]
    forms: list[Any] = [
        pw.Pair(first, second),
        [pw.Pair(first[:5], second[:5]), pw.Pair(first[5:], second[5:])],
        (pw.Pair(first, second), ones),
        (pw.Pair(first, second), ones[:, None]),
        torch.utils.data.DataLoader(dataset, batch_size=4),
        [{"input_chosen": first, "input_rejected": second}],
        [{"input_chosen": first, "input_rejected": second, "return_loss": True}],
        [{"chosen_input": first, "rejected_input": second}],
    ]
    for data in forms:
        assert relative(fitted(data).log_evidence().cpu(), expected) < EXACT


@pytest.mark.filterwarnings("ignore:The network itself is best:peewit.TuningWarning")
def test_tune_evaluate_update_and_files(tmp_path: Path) -> None:
    """All that other likelihoods have."""
    pair, y = pairs()
    some, rest = ((pw.Pair(pair.first[at], pair.second[at]), y[at]) for at in (slice(0, 7), slice(7, None)))
    la = fitted(some)
    assert relative(la.update([rest]).log_evidence().cpu(), Reference().evidence) < EXACT
    la = fitted((pair, y.round()))
    la.save(tmp_path / "la.safetensors")
    loaded = pw.load(tmp_path / "la.safetensors", copy.deepcopy(la.model))
    assert loaded.likelihood == pw.Preference() and torch.equal(loaded.predict(pair).probs, la.predict(pair).probs)
    tuned = la.tune("grid", validation=(pair, y.round()), grid=[0.01, 1.0, 100.0])
    candidates = (0.01, 1.0, 100.0, 1e10)  # those of the grid, and the network itself
    p = {prior: la.with_prior(prior).predict(pair).log_prob(y.round()).mean() for prior in candidates}
    assert float(tuned.prior.precision) == max(p, key=lambda prior: float(p[prior]))
    report = pw.evaluate(la, (pair, y.round()), baselines="plain", intervals=0)
    assert report.methods[0].metrics["nll"].value == pytest.approx(-float(p[1.0]), rel=0.1)
    assert la.diagnose((pair, y.round())) is not None


def test_mistakes() -> None:
    """Single inputs, several outputs, margins, and names that do not match."""
    x, y = moved(FIRST), moved(OUTCOMES)
    with pytest.raises(pw.PeewitError, match=r"expected pairs: pw\.Pair"):
        fitted((x, y))
    with pytest.raises(pw.PeewitError, match="one reward per input"):
        pw.fit(nn.Linear(3, 2).double().to(DEVICE), pw.Pair(x, x.flip(0)), "preference")
    with pytest.raises(pw.PeewitError, match="margins"):
        fitted([{"input_chosen": x, "input_rejected": x.flip(0), "margin": y}])
    with pytest.raises(pw.PeewitError, match="the same names"):
        fitted([{"input_chosen": x, "ids_rejected": x.flip(0)}])
    with pytest.raises(pw.PeewitError, match="prompt_input"):
        fitted([{"chosen_input": x, "rejected_input": x.flip(0), "prompt_input": x}])


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block"])
@pytest.mark.parametrize("weights", ["all", "last_layer"])
def test_structures(structure: str, weights: str) -> None:
    """Every structure fits, and knows that equal inputs have equal rewards; diagonals are exact."""
    la = fitted(pairs(), structure=structure, weights=weights)
    same = la.predict(pw.Pair(moved(NEW), moved(NEW)))
    assert float(same.output_variance.abs().max()) < 1e-12
    if structure == "diag" and weights == "all":
        expected = Reference().curvature.diagonal() + PRIOR
        assert relative(la.precision.variance().cpu(), 1 / expected) < EXACT
