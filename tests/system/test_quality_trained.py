"""Ways of the benchmark of quality that train networks of their own: with online evidence, or with weight decays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import peewit as pw
from benchmarks.quality import trained
from benchmarks.quality.baselines import Temperature
from benchmarks.quality.cases import Case, Likelihood, Networks, Parts
from benchmarks.quality.measure import Record, measure, plain_passes
from benchmarks.quality.training import Recipe, Stack, perceptron, train_perceptrons

EXAMPLES, INPUTS = 60, 3
SHORT = Recipe(hidden=(8,), steps=40, batch=16)
LIKELIHOODS: tuple[Likelihood, ...] = ("classification", "regression")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(trained.RECIPES, "tiny", SHORT)
    trained.learnt.cache_clear()
    trained.grid.cache_clear()
    yield


def case_of(likelihood: Likelihood) -> Case:
    """A perceptron without training, and data of its own for each part."""
    torch.manual_seed(0)

    def examples() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(EXAMPLES, INPUTS)
        y = x.sum(1, keepdim=True) + 0.7 * torch.randn(EXAMPLES, 1)
        return (x, y) if likelihood == "regression" else (x, (y[:, 0] > 0).long() + (y[:, 0] > 1).long())

    train, stop, validation, test = (examples() for _ in range(4))
    parts = Parts(train=train, stop=stop, validation=validation, test=test, unknown={}, shifted={})
    model = perceptron(INPUTS, SHORT.hidden, 3 if likelihood == "classification" else 1)
    networks = Networks((model.eval(),), None)
    return Case(
        task="tiny", likelihood=likelihood, training="early", variant="whole", split=0, parts=parts, networks=networks
    )


def record_of(way: trained.Online | trained.ChosenDecay, case: Case) -> Record:
    record = measure(way, case, plain_passes(case))
    assert record is not None and "failure" not in record, record
    return record


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("way", trained.TRAINED, ids=lambda way: way.name)
def test_every_way_has_a_record(way: trained.Online | trained.ChosenDecay, likelihood: Likelihood) -> None:
    record = record_of(way, case_of(likelihood))
    if isinstance(way, trained.Online):
        number = 3 * EXAMPLES if way.parts == trained.EVERYTHING else EXAMPLES
        assert record["settings"]["examples"] == number
        assert record["settings"]["training"] > 0 and 0 < record["settings"]["kept at"] <= 1
    else:
        assert record["settings"]["decay"] in trained.DECAYS


def test_both_cases_of_a_split_share_one_training() -> None:
    """The second one has its seconds all the same."""
    case = case_of("classification")
    other = replace(case, training="fixed")
    for way in (trained.Online(name="network"), trained.ChosenDecay()):
        first, second = record_of(way, case), record_of(way, other)
        assert second["cost"]["seconds"] > 0.5 * first["cost"]["seconds"]
    assert trained.learnt.cache_info().misses == trained.grid.cache_info().misses == 1
    moved = replace(case, parts=replace(case.parts, train=(case.parts.train[0] + 1, case.parts.train[1])))
    record_of(trained.Online(name="network"), moved)
    assert trained.learnt.cache_info().misses == 2


@pytest.mark.parametrize("way", trained.TRAINED, ids=lambda way: way.name)
def test_nothing_is_left_out_of_their_training(way: trained.Online | trained.ChosenDecay) -> None:
    assert way.fit(replace(case_of("classification"), variant="left out")) is None


def test_training_begins_where_the_plain_network_began() -> None:
    case = case_of("classification")
    plain, _ = train_perceptrons(
        [case.parts.train] * 2,
        [case.parts.stop] * 2,
        [2000, 2001],
        [0.0, 0.0],
        3,
        "classification",
        replace(SHORT, steps=0),
    )
    own = trained.Question.of(replace(case, split=2)).network()
    for theirs, ours in zip(plain[0].parameters(), own.parameters(), strict=True):
        assert torch.equal(theirs, ours)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_network_is_asked_with_the_noise_that_was_learnt(likelihood: Likelihood) -> None:
    case = case_of(likelihood)
    record = record_of(trained.Online(name="network"), case)
    la = trained.learnt(trained.Question.of(case)).posterior
    x, y = case.parts.test
    with torch.no_grad():
        outputs = la.model(x)
    if isinstance(la.likelihood, pw.Gaussian):
        assert record["settings"]["noise"] == float(la.likelihood.noise)
        nll = -torch.distributions.Normal(outputs, float(la.likelihood.noise)).log_prob(y).mean()
    else:
        nll = F.cross_entropy(outputs, y)
    assert record["figures"]["nll"] == pytest.approx(float(nll), rel=1e-5)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("training", ["early", "fixed"])
def test_validation_data_choose_the_decay(training: str, likelihood: Likelihood) -> None:
    case = replace(case_of(likelihood), training=training)
    chosen = record_of(trained.ChosenDecay(), case)["settings"]["decay"]
    networks = trained.grid(trained.Question.of(case))
    x, y = case.parts.validation
    losses = []
    for network in networks.stopped if training == "early" else networks.last:
        settings = Temperature().fit(replace(case, networks=Networks((network,), None))).settings()
        with torch.no_grad():
            outputs = network(x).double()
        if likelihood == "classification":
            losses.append(float(F.cross_entropy(outputs / settings["temperature"], y)))
        else:
            losses.append(-float(torch.distributions.Normal(outputs, settings["noise"]).log_prob(y).mean()))
    assert trained.DECAYS[losses.index(min(losses))] == chosen


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_decays_are_those_of_adam(likelihood: Likelihood) -> None:
    """One network after the other, on the same rows, with the weight decay of torch's own Adam."""
    case, decays = case_of(likelihood), (0.0, 0.3)
    outputs = 3 if likelihood == "classification" else 1
    arguments = ([case.parts.train] * 2, [case.parts.stop] * 2, [5, 5], [0.0, 0.0], outputs, likelihood, SHORT)
    _, together = train_perceptrons(*arguments, decays)
    _, without = train_perceptrons(*arguments)
    loss = F.cross_entropy if likelihood == "classification" else F.mse_loss
    for number, decay in enumerate(decays):
        stack = Stack((INPUTS, *SHORT.hidden, outputs), [5], [0.0])
        model = stack.network(0, stack.parameters).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=SHORT.rate, weight_decay=decay)
        torch.manual_seed(5)
        for _ in range(SHORT.steps):
            rows = (torch.rand(2, SHORT.batch) * EXAMPLES).long()[number]
            optimizer.zero_grad()
            loss(model(case.parts.train[0][rows]), case.parts.train[1][rows]).backward()
            optimizer.step()
        for theirs, ours in zip(model.parameters(), together[number].parameters(), strict=True):
            assert torch.allclose(theirs, ours, atol=1e-5)
    for one, other in zip(together[0].parameters(), without[0].parameters(), strict=True):
        assert torch.equal(one, other)
