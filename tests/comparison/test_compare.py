"""`pw.compare`: its numbers against dense float64 ones, its ranks against scipy's, its notes, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, names_of, normal, weights_of
from peewit.comparison.ranks import rank_correlation, ranks
from peewit.comparison.result import rank
from snapshots import changed, snapshot
from tables import moved

stats = pytest.importorskip("scipy.stats")

X, Y = normal(30, 2), normal(30, 1, seed=2)
NEW, TRUTH = normal(17, 2, seed=3), normal(17, 1, seed=4)
LABELS = classes(3, 30)
DELTA, NOISE = 0.8, 0.6


def network(width: int = 4, outputs: int = 1) -> nn.Module:
    """(N, 2) -> (N, outputs), on the CPU: the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(width)
        return built(nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, outputs)))


def posterior(width: int = 4, structure: Any = "full", examples: int = 30, **settings: Any) -> pw.Laplace:
    """Of numbers with a known noise."""
    model, data = network(width).to(DEVICE), (moved(X[:examples]), moved(Y[:examples]))
    options: dict[str, Any] = {"structure": structure, "prior": DELTA, "curvature": "ggn"} | settings
    return pw.fit(model, data, pw.Gaussian(noise=NOISE), **options)


def classifier(**settings: Any) -> pw.Laplace:
    """Of three classes."""
    family = settings.pop("likelihood", "classification")
    return pw.fit(network(4, 3).to(DEVICE), (moved(X), moved(LABELS)), family, **settings)


def held() -> tuple[Tensor, Tensor]:
    """Test data on the device under test."""
    return moved(NEW), moved(TRUTH)


def test_every_number_is_its_dense_definition() -> None:
    """Evidence in parts, effective dimensions, and the log density of new targets."""
    widths = (2, 4, 7)
    found = pw.compare({f"width {width}": posterior(width) for width in widths}, test=held())
    totals = {}
    for width in widths:
        model, row = network(width), found[f"width {width}"]
        names, theta = names_of(model), weights_of(model)
        curvature = dense.ggn(model, X, Y, "regression", names)
        delta = torch.full((len(theta),), DELTA, dtype=torch.float64)
        energy = sum(float((model(x[None]) - y).detach().square().sum()) / 2 for x, y in zip(X, Y, strict=True))
        fit = dense.log_likelihood("regression", torch.tensor(energy, dtype=torch.float64), len(Y), NOISE)
        covariance = dense.posterior(curvature, delta, NOISE**-2)
        total = float(dense.log_evidence(fit, curvature, theta, torch.zeros_like(theta), delta, NOISE**-2))
        totals[row.name] = total
        assert row.log_likelihood == pytest.approx(float(fit), rel=1e-9)
        assert row.distance == pytest.approx(DELTA * float(theta.square().sum()), rel=1e-9)
        assert row.log_volume == pytest.approx(-float(torch.logdet(covariance * DELTA)), rel=1e-9)
        assert row.log_evidence == pytest.approx(total, rel=1e-9)
        assert row.log_evidence_per_example == pytest.approx(total / 30, rel=1e-9)
        assert row.complexity == pytest.approx(total - float(fit), rel=1e-9)
        assert row.effective_dimensions == pytest.approx(len(theta) - DELTA * float(covariance.trace()), rel=1e-9)
        spread = dense.functional_covariance(dense.jacobian(model, NEW, names), covariance)[:, :, 0]
        density = Normal(model(NEW).detach(), (spread + NOISE**2).sqrt()).log_prob(TRUTH)
        assert row.test_log_likelihood == pytest.approx(float(density.mean()), rel=1e-9)
        assert row.test_nll == pytest.approx(-float(density.mean()), rel=1e-9)
        assert (row.D, row.N, row.fixed, row.noise) == (len(theta), 30, 0, NOISE)
    assert [row.name for row in found] == sorted(totals, key=lambda name: -totals[name])
    assert [row.rank for row in found] == [1, 2, 3]
    best = max(totals.values())
    assert [row.behind for row in found] == pytest.approx([best - totals[row.name] for row in found], abs=1e-8)
    fits = [row.test_log_likelihood for row in found]
    expected = stats.spearmanr([totals[row.name] for row in found], fits).statistic
    assert found.rank_correlation == pytest.approx(expected, abs=1e-12)


def test_ranks_are_those_of_scipy() -> None:
    """Ties share the mean of their ranks."""
    generator = torch.Generator().manual_seed(5)
    for size in (2, 3, 10, 40):
        first, second = torch.randint(size, (2, size), generator=generator).double().tolist()
        assert ranks(first) == stats.rankdata(first).tolist()
        if len(set(first)) > 1 and len(set(second)) > 1:
            assert rank_correlation(first, second) == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)
    assert rank_correlation([1.0, 2.0, math.inf], [-math.inf, 2.0, 3.0]) == pytest.approx(1.0)
    for nothing in (([], []), ([1.0], [2.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, math.nan], [1.0, 2.0])):
        assert rank_correlation(*nothing) is None


@pytest.mark.parametrize("kind", ["several outputs", "classes", "tokens", "Poisson"])
def test_the_log_likelihood_is_that_of_all_labels_of_an_example(kind: str) -> None:
    """As `validation_nll` has it; and metrics are those of `evaluate`, with their intervals."""
    if kind == "several outputs":
        la = pw.fit(network(4, 2).to(DEVICE), (moved(X), moved(normal(30, 2, seed=6))), pw.Gaussian(noise=0.7))
        data = moved(NEW), moved(normal(17, 2, seed=7))
    elif kind == "classes":
        la, data = classifier(), (moved(NEW), moved(classes(3, 17, seed=8)))
    elif kind == "tokens":
        labels = classes(3, 30, 4)
        labels[::3, 1] = -100
        model = built(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3))).to(DEVICE)
        la = pw.fit(model, (moved(classes(5, 30, 4, seed=9)), moved(labels)), "classification")
        data = moved(classes(5, 30, 4, seed=10)), moved(labels)
    else:
        la = pw.fit(network().to(DEVICE), (moved(X), moved(classes(4, 30, 1).double())), "count")
        data = moved(NEW), moved(classes(4, 17, 1, seed=11).double())
    row = pw.compare([la], test=data).best
    assert row.test_log_likelihood == pytest.approx(-pw.validation_nll(la, data), rel=1e-6)
    assert row.metrics == pw.evaluate(la, data, baselines=()).methods[0].metrics
    mc = pw.compare([la], test=data, predict={"method": "sampled", "samples": 8}).best
    assert mc.test_nll != row.test_nll


def test_loaders_and_batches_change_no_number() -> None:
    """A shuffled loader draws from the caller's generator and gives its state back; the network is left alone."""
    la = posterior()
    before, state = snapshot(la.model), torch.get_rng_state()
    expected = pw.compare([la], test=held()).best
    loader = DataLoader(TensorDataset(*held()), batch_size=5, shuffle=True)
    (row,) = pw.compare([la], test=loader)
    assert row.test_log_likelihood == pytest.approx(expected.test_log_likelihood, rel=1e-12)
    assert changed(la.model, before) == [] and torch.equal(torch.get_rng_state(), state)


def test_names() -> None:
    """Of a mapping they are kept; of a list they are places and what tells the posteriors apart."""
    one, other = posterior(2), posterior(4)
    assert {row.name for row in pw.compare({"a": one, "b": other})} == {"a", "b"}
    assert sorted(row.name for row in pw.compare([one, other])) == ["[0] 9 weights", "[1] 17 weights"]
    same = [one, posterior(2, "diag"), one.with_prior(2.0)]
    assert sorted(row.name for row in pw.compare(same)) == ["[0] Full", "[1] Diag", "[2] Full"]
    assert [row.name for row in pw.compare(iter([one]))] == ["[0] Sequential"]


def notes(**posteriors: pw.Laplace) -> str:
    """All of them."""
    return "\n".join(pw.compare(posteriors).notes)


def test_notes_are_on_what_does_not_compare() -> None:
    """Each on its cause, and on nothing else."""
    plain, wide = posterior(), posterior(7)
    assert "compare" not in notes(plain=plain, wide=wide) and "fixed" not in notes(plain=plain, wide=wide)
    assert "different numbers of examples, 30 (a), 20 (b)" in notes(a=plain, b=posterior(examples=20)).replace(
        "20 (b), 30 (a)", "30 (a), 20 (b)"
    )
    assert "Different likelihoods" in notes(a=plain, b=classifier(structure="full"))
    assert "Different structures" in notes(a=plain, b=posterior(structure="diag"))
    assert "Different curvatures" in notes(a=plain, b=posterior(curvature="empirical"))
    last = posterior(weights="last_layer")
    assert "Different weights are uncertain" in notes(a=plain, last=last)
    assert "last 5 of 17" in notes(a=plain, last=last) and "Different weights" not in notes(a=last, b=last)
    some = posterior(weights=pw.Subnetwork.largest_magnitude(6))
    assert pw.compare([some]).best.fixed == 11 and "some 6 of 17" in notes(a=plain, some=some)
    warm = notes(a=plain, warm=plain.with_temperature(2.0))
    assert "warm: the evidence is not a marginal likelihood" in warm and "a: the evidence" not in warm
    weighted = classifier(likelihood=pw.Categorical(weight=torch.tensor([1.0, 2.0, 1.0])))
    assert "b: the evidence is not a marginal likelihood" in notes(a=classifier(), b=weighted)
    linear = plain.at_linear_mode((moved(X), moved(Y)))
    assert "Evidences at different kinds of weights" in notes(a=plain, b=linear)
    assert "b: the linear mode was found under another prior" in notes(b=linear.with_prior(3.0))
    assert not notes(b=linear)


def test_a_search_that_stopped_early_is_told() -> None:
    with pytest.warns(pw.TuningWarning):
        la = posterior(7, "diag").at_linear_mode((moved(X), moved(Y)), steps=1)
    assert "a: the search for the linear mode stopped about" in notes(a=la)


def test_equal_evidence_shares_a_place() -> None:
    la = posterior()
    found = pw.compare({"a": la, "b": la, "c": la.with_prior(1e6)})
    assert [(row.name, row.rank) for row in found] == [("a", 1), ("b", 1), ("c", 3)]
    assert found.notes == ("Equal evidence: a, b share the first place.",)
    near = pw.compare({"a": la, "b": la.with_prior(DELTA * 1.01)})
    assert 0 < near.rows[1].behind < 3 and near.notes[0].startswith("The first two are within 3 nats")
    assert pw.compare({"b": la, "c": la.with_prior(1e6)}).notes == ()


def test_evidence_that_is_not_finite_comes_last() -> None:
    row = pw.compare([posterior()]).best
    broken = [replace(row, name=name, log_likelihood=value) for name, value in (("nan", math.nan), ("low", -math.inf))]
    found = rank([*broken, row])
    assert [(each.name, each.rank) for each in found] == [(row.name, 1), ("nan", 2), ("low", 2)]
    assert "The log evidence of nan, low is not finite" in found.notes[0]
    assert rank(broken).best.rank == 1


def test_the_table_is_aligned_and_says_all() -> None:
    """Columns that tell nothing are left out; the sums can be checked."""
    found = pw.compare({"a": posterior(2), "a longer name": posterior(7)}, test=held())
    lines = str(found).splitlines()
    assert lines[0].split("  ")[0] == "posterior" and lines[0].endswith("test log-likelihood")
    assert len({len(line) for line in lines[:3]}) == 1
    row = found["a longer name"]
    (line,) = [each for each in lines if each.startswith("a longer name")]
    numbers = [row.log_evidence, row.behind, row.log_likelihood, row.complexity]
    assert line.removeprefix("a longer name").split()[1:5] == [f"{number:.1f}" for number in numbers]
    assert "structure" not in lines[0] and "evidence at" not in lines[0] and "noise" in lines[0]
    assert lines[3].startswith("rank correlation of evidence and test log-likelihood: ")
    mixed = str(pw.compare({"a": classifier(), "b": classifier(structure="diag")}))
    assert "Diag" in mixed and "noise" not in mixed and "test" not in mixed.splitlines()[0]
    linear = pw.compare([posterior().at_linear_mode((moved(X), moved(Y)))])
    assert "linear mode" in str(linear)


def test_a_frame_has_the_numbers() -> None:
    pytest.importorskip("pandas")
    found = pw.compare({"a": posterior(2), "b": posterior(7)}, test=held())
    frame = found.to_pandas()
    assert frame["name"].tolist() == [row.name for row in found]
    for name in ("log_evidence", "complexity", "effective_dimensions", "test_nll", "test_log_likelihood"):
        assert frame[name].tolist() == [getattr(row, name) for row in found]
    assert "test_nll" not in pw.compare([posterior()]).to_pandas()


def test_a_comparison_is_a_value() -> None:
    found = pw.compare({"a": posterior(2), "b": posterior(7)})
    assert len(found) == 2 and list(found) == list(found.rows) and found[found.best.name] is found.best
    assert found.rank_correlation is None and found.best.test_nll is None
    with pytest.raises(AttributeError):
        found.rows = ()  # type: ignore[misc]
    with pytest.raises(KeyError, match="'c' is not a posterior of this comparison; it has"):
        found["c"]
    assert copy.deepcopy(found) == found


def bad() -> Iterator[Any]:
    """What is given, options, the error, and words of it."""
    la = posterior()
    yield [], {}, pw.PeewitError, "posteriors is an empty list; expected posteriors"
    yield {}, {}, pw.PeewitError, "posteriors is an empty dict"
    yield la, {}, pw.ArgumentTypeError, "posteriors is a Laplace; expected posteriors, which peewit.fit returns, in a"
    yield None, {}, pw.ArgumentTypeError, "posteriors is a NoneType"
    yield "ab", {}, pw.ArgumentTypeError, "posteriors is a str"
    yield [la, la.model], {}, pw.ArgumentTypeError, r"posteriors\[1\] is a Sequential"
    yield [("a", la)], {}, pw.ArgumentTypeError, r"posteriors\[0\] is a tuple"
    yield {"a": 3}, {}, pw.ArgumentTypeError, r"posteriors\['a'\] is a int"
    yield {1: la}, {}, pw.ArgumentTypeError, "posteriors has the name 1"
    yield [la], {"predict": {}}, pw.PeewitError, "no test data was given"
    yield [la], {"predict": 3, "test": held()}, pw.ArgumentTypeError, "predict is a int"
    yield [la], {"predict": {"link": "no"}, "test": held()}, pw.PeewitError, "on the test data: link='no' with Gaussian"
    yield (
        [la, la],
        {"test": iter([held()])},
        pw.PeewitError,
        "Every posterior predicts the test data, and test is a one",
    )
    yield (
        {"a": la},
        {"test": (moved(NEW[:, :1]), moved(TRUTH))},
        pw.PeewitError,
        "a on the test data: The network fails",
    )
    yield {"a": la}, {"test": (moved(NEW), moved(TRUTH[:3]))}, pw.PeewitError, "a on the test data: "
    yield {"a": la}, {"test": held()[0]}, pw.ArgumentTypeError, "data is one tensor"
    yield [la], {"data": held()}, pw.ArgumentTypeError, "has no option 'data'; did you mean 'test'"
    yield [la], {"generator": 3}, pw.ArgumentTypeError, "generator is a int"


@pytest.mark.parametrize("number", range(len(list(bad()))))
def test_bad_input_is_refused(number: int) -> None:
    given, options, error, words = list(bad())[number]
    with pytest.raises(error, match=words):
        pw.compare(given, **options)


def test_names_are_used_once() -> None:
    row = pw.compare({"a": posterior()}).best
    with pytest.raises(pw.PeewitError, match="posteriors has the name 'a' twice; expected a name of its own for each"):
        rank([row, row])


def test_a_network_that_changed_is_told_by_its_name() -> None:
    la = posterior()
    with torch.no_grad():
        la.model[0].weight.add_(1.0)  # type: ignore[index]
    assert len(pw.compare({"a": la})) == 1  # the evidence needs no network
    with pytest.raises(pw.MismatchError, match=r"^a on the test data: "):
        pw.compare({"a": la}, test=held())


def test_a_single_pass_is_enough_for_one() -> None:
    """So an iterator does for one posterior."""
    la = posterior()
    assert pw.compare([la], test=iter([held()])).best.test_nll == pw.compare([la], test=held()).best.test_nll
