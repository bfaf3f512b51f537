"""The linear mode at its edges: steps that run out, other priors, readers that reuse memory, wrapped networks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from fitting import built, classes, fitted, normal
from peewit.curvature import pieces
from peewit.priors.groupings import Layerwise, ScaleInvariant
from tables import moved


def separable() -> tuple[nn.Module, Tensor, Tensor]:
    """A network that is sure of labels that its first input decides."""
    x = normal(30, 3)
    y = (x[:, 0] > 0).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = built(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
        optimiser = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    return model, x, y


@pytest.mark.parametrize("precision", [1e-4, 1e-2, 1.0])
def test_the_error_estimate_of_the_linear_mode(precision: float) -> None:
    """The curvature at the trained weights alone would say ten times less."""
    model, x, y = separable()
    data = moved(x), moved(y)
    la = fitted(model, x, y, "classification", "kron", prior=precision)
    usual, exact = la.at_linear_mode(data), la.at_linear_mode(data, tolerance=1e-8, steps=2000)
    assert usual.linear_mode is not None and exact.linear_mode is not None
    assert usual.linear_mode.converged and exact.linear_mode.converged
    assert usual.linear_mode.losses[-1] - exact.linear_mode.losses[-1] < 0.03  # of 0.01


def test_tuning_that_runs_out_of_steps_ends_at_its_best_point() -> None:
    """Not at one that was still to be tried."""
    model, x, y = separable()
    for steps in (2, 3, 4, 5):
        la = fitted(model, x, y, "classification", "kron", prior=pw.Prior.layerwise())
        with pytest.warns(pw.TuningWarning):
            made = la.tune(at="linear_mode", train=(moved(x), moved(y)), steps=steps, tolerance=1e-6)
        assert made.trace is not None
        assert float(made.log_evidence()) > max(made.trace.values) - 0.05


def test_groups_keep_their_precisions_when_weights_are_added() -> None:
    """Groups are numbered as weights come, and later data may use earlier weights."""

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b, self.c, self.d = (nn.Linear(2, 2, bias=False) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.d(self.c(x))
            return made + self.b(x) if float(x.detach().max()) > 100 else made

    model = built(Routed())
    x, y = normal(6, 2), classes(2, 6)
    prior = pw.Prior(ScaleInvariant((("b.weight", "d.weight"),)), torch.tensor([7.0, 1.0]))
    la = fitted(model, x, y, "classification", "diag", prior=prior)
    before = dict(zip(la.prior.names(la.space), la.prior.precision.tolist(), strict=True))
    more = la.update((moved(200 * x.abs()), moved(y)))
    after = dict(zip(more.prior.names(more.space), more.prior.precision.tolist(), strict=True))
    assert before["c.weight"] == after["c.weight"] == 1.0
    assert sorted(after.values()) == [1.0, 7.0]


@pytest.mark.parametrize("together", [2048, 10], ids=["put together", "one by one"])
def test_a_reader_may_write_over_its_last_batch(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches outlive the next one: they are put together, and read ahead."""
    monkeypatch.setattr(pieces, "MERGED_EXAMPLES", together)
    x, y = normal(30, 3), classes(3, 30)
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))

    class Reader:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            place, labels = torch.empty(10, 3, dtype=x.dtype), torch.empty(10, dtype=y.dtype)
            for start in range(0, 30, 10):
                place.copy_(x[start : start + 10])
                labels.copy_(y[start : start + 10])
                yield moved(place), moved(labels)

    right = fitted(model, x, y, "classification", "kron")
    found = pw.fit(right.model, Reader(), "classification")
    assert found.state.totals.energy == pytest.approx(right.state.totals.energy, rel=1e-12)


def test_a_mode_of_another_prior_is_not_taken_for_this_one() -> None:
    """It warns around it, and a diagnosis does without it."""
    model, x, y = separable()
    data = moved(x), moved(y)
    other = fitted(model, x, y, "classification", "kron").at_linear_mode(data).with_prior(100.0)
    with pytest.warns(pw.TuningWarning, match="under another prior"):
        other.predict(data[0], at="linear_mode")
    own = other.at_linear_mode(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.predict(data[0], at="linear_mode")
    plain = fitted(model, x, y, "classification", "kron", prior=100.0)
    assert other.diagnose(data)["evidence"].sentence == plain.diagnose(data)["evidence"].sentence


def test_ratios_of_a_g_prior_are_in_its_own_units() -> None:
    """`|theta_hat|^2 / |theta_lin|^2`, both in the ratios of the curvature."""
    model, x, y = separable()
    data = moved(x), moved(y)
    la = fitted(model, x, y, "classification", "kron", prior=pw.Prior.g_prior(3.0)).at_linear_mode(data)
    assert la.linear_mode is not None and la.prior.base is not None
    away, base = la.weights, la.prior.base
    there = away + la.linear_mode.displacement
    expected = float((base * away.square()).sum() / (base * there.square()).sum())
    assert float(la.diagnose(data).ratios) == pytest.approx(expected, rel=1e-6)


def test_a_diagnosis_of_one_example_at_a_time() -> None:
    """It looks for no invariant sets, and says the rest."""
    model, x, y = separable()
    la = fitted(model, x, y, "classification", "kron")
    found = la.diagnose([(moved(x[i : i + 1]), moved(y[i : i + 1])) for i in range(30)])
    assert found["fit"].severity == "fine"


def test_sets_of_another_network_are_refused() -> None:
    """Before a file is written that could not be read."""
    model, x, y = separable()
    with pytest.raises(ValueError, match=r"nope\.weight, which the network does not have"):
        fitted(model, x, y, "classification", prior=pw.Prior(Layerwise((("nope.weight",),)), torch.ones(1)))


def test_a_warning_for_a_noise_at_its_limit() -> None:
    """Also at the mode of the linear model, which fits these targets exactly."""
    x = normal(30, 3)
    y = x @ normal(3, 1, seed=4)
    model = built(nn.Linear(3, 1))
    la = fitted(model, x, y, pw.Gaussian(1.0), "full")
    with pytest.warns(pw.TuningWarning, match="The noise is at the smallest allowed"):
        la.tune(at="linear_mode", train=(moved(x), moved(y)))


def test_options_of_predictions_that_tuning_ignores_are_refused() -> None:
    """Options that could not be followed are refused."""
    model, x, y = separable()
    data = moved(x), moved(y)
    la = fitted(model, x, y, "classification", "kron")
    with pytest.raises(ValueError, match="makes no predictions"):
        la.tune(at="linear_mode", train=data, predict={"link": "mc"})
    with pytest.raises(ValueError, match="belongs to one prior"):
        la.at_linear_mode(data).tune("validation", train=data, validation=data, predict={"at": "linear_mode"})


def test_no_findings_after_tuning_at_the_linear_mode() -> None:
    """A posterior tuned at the mode of the linear model need not be at one of the network's own."""
    model, x, y = separable()
    data = moved(x), moved(y)
    la = fitted(model, x, y, "classification", "kron", prior=30.0)
    assert la.diagnose(data)["mode"].severity == "warning"
    found = la.tune(at="linear_mode", train=data).diagnose(data)
    assert found["mode"].severity == found["evidence"].severity == "fine"


def test_a_warning_for_a_diagnosis_of_other_data() -> None:
    """As many examples, but not those of the fit."""
    model, x, y = separable()
    la = fitted(model, x, y, "classification", "kron")
    with pytest.warns(pw.TuningWarning, match="other data"):
        la.diagnose((moved(5 * x), moved(y.roll(3))))


def test_a_network_wrapped_for_several_devices() -> None:
    """It is the one inside that is asked, and that names the weights."""
    model, x, y = separable()
    data = moved(x), moved(y)
    la = fitted(model, x, y, "classification", "kron", prior=pw.Prior.layerwise())
    wrapped = nn.DataParallel(la.model)
    prior = pw.Prior.scale_invariant(wrapped, data)
    made = pw.fit(wrapped, data, "classification", prior=prior)
    assert made.space.names == la.space.names
    assert float(made.at_linear_mode(data).log_evidence()) == pytest.approx(
        float(la.at_linear_mode(data).log_evidence())
    )
    made.diagnose(data)


def test_a_module_with_two_names_keeps_its_parameters() -> None:
    """Torch's own way of giving a network other weights leaves tensors in their place."""
    shared = nn.Linear(3, 3)
    x, y = normal(12, 3), classes(3, 12)
    la = fitted(built(nn.Sequential(shared, nn.Tanh(), shared)), x, y, "classification", "kron")
    before = dict(la.model.named_parameters())
    assert list(before) == ["0.weight", "0.bias"]
    la.at_linear_mode((moved(x), moved(y)))
    la.predict(moved(x), method="sampled", samples=3)
    after = dict(la.model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] and isinstance(after[name], nn.Parameter) for name in before)
