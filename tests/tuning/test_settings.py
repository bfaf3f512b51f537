"""What `tune`, `with_noise` and priors are asked for: contradictions and nonsense are refused, with what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import peewit as pw
from environment import DEVICE
from fitting import built, classes, fitted, normal
from tables import moved, relative


def regression(noise: Any = 0.5, structure: Any = "full", **options: Any) -> pw.Laplace:
    """Two outputs, the same network every time."""
    torch.manual_seed(0)
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    x = normal(25, 3)
    return fitted(model, x, model(x).detach() + 0.4 * normal(25, 2, seed=5), pw.Gaussian(noise), structure, **options)


NONSENSE: dict[str, tuple[dict[str, Any], str]] = {
    "steps below one": ({"steps": 0}, "steps=0: expected a positive whole number"),
    "steps of words": ({"steps": "many"}, "steps='many'"),
    "no tolerance": ({"tolerance": -1.0}, "tolerance=-1.0: expected a positive number"),
    "NaN as tolerance": ({"tolerance": float("nan")}, "tolerance=nan"),
    "one limit": ({"limits": 5}, "limits=5: expected two positive precisions"),
    "limits of words": ({"limits": ("a", "b")}, "expected two positive precisions"),
    "limits reversed": ({"limits": (2.0, 1.0)}, "the smaller first"),
    "a prior for a switch": ({"prior": pw.Prior.scalar(2.0)}, "no option 'prior'; did you mean 'parameters'"),
    "a noise for a switch": ({"parameters": 0.3}, "parameters=0.3: expected a list"),
    "a temperature for a switch": ({"parameters": [2.0]}, "parameters has 2.0; Known: prior, noise"),
    "one number as grid": ({"method": "grid", "grid": 5.0}, "grid=5.0: expected numbers, or a mapping"),
    "words as grid": ({"method": "grid", "grid": "fine"}, "grid='fine': expected numbers"),
    "words in a grid": ({"method": "grid", "grid": ["a"]}, "expected positive numbers"),
    "one number in a grid": ({"method": "grid", "grid": {"prior": 1.0}}, "expected positive numbers"),
    "an empty grid": ({"method": "grid", "grid": {}}, "grid has no values"),
    "options of predict": ({"predict": "mc"}, "predict='mc': expected a mapping"),
    "a fixed prior with values": (
        {"method": "grid", "parameters": ["noise"], "grid": {"prior": [0.1, 1.0], "noise": [0.3, 0.5]}},
        "The grid has values for prior",
    ),
    "a fixed noise with values": (
        {"method": "grid", "parameters": ["prior"], "grid": {"prior": [0.1, 1.0], "noise": [0.3, 0.5]}},
        "The grid has values for noise",
    ),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_bad_arguments_of_tune_are_refused(name: str) -> None:
    """Before any work is done, with what was expected."""
    options, message = NONSENSE[name]
    with pytest.raises((TypeError, ValueError), match=message):
        regression().tune(**options)


@pytest.mark.parametrize("temperature", ["warm", None, True, 0, float("inf")])
def test_a_temperature_is_a_positive_number(temperature: Any) -> None:
    """Words, nothing and switches are none."""
    with pytest.raises(ValueError, match=re.escape(f"temperature={temperature!r}: expected a positive number")):
        regression().with_temperature(temperature)


def test_groups_are_named_by_patterns() -> None:
    """Numbers of modules are not names."""
    patterns: Any = {0: 1.0, "*": 2.0}
    with pytest.raises(TypeError, match="expected a mapping from patterns"):
        pw.Prior.groups(patterns)


@pytest.mark.parametrize("fitted_with", [0.5, torch.tensor([1.0, 2.0])])
def test_other_ratios_of_noises_need_another_fit(fitted_with: Any) -> None:
    """The curvature was measured with the ratios at the fit; the same ones, times a factor, are fine."""
    la = regression(fitted_with)
    with pytest.raises(ValueError, match=r"other ratios between outputs.*fit again"):
        la.with_noise(torch.tensor([0.1, 3.0], dtype=torch.float64))
    same = torch.as_tensor(fitted_with, dtype=torch.float64) * torch.full((2,), 0.7, dtype=torch.float64)
    again = regression(same)
    assert relative(la.with_noise(same).log_evidence(), again.log_evidence()) < 1e-10


@pytest.mark.parametrize(
    ("structure", "prior", "message"),
    [
        (pw.EKFAC(bias="joint"), pw.Prior.layerwise([1.0, 2.0, 3.0, 4.0]), r"EKFAC\(bias='separate'\) with a layer"),
        (pw.EKFAC(), pw.Prior.unitwise(torch.arange(1.0, 13.0)), "structure='kron', or a scalar or layerwise prior"),
    ],
)
def test_the_alternatives_to_a_refused_prior_hold(structure: Any, prior: pw.Prior, message: str) -> None:
    """A layerwise prior is no way out where one was refused."""
    with pytest.raises(ValueError, match=message):
        regression(structure=structure, prior=prior).log_evidence()


def wide(structure: str, precision: float) -> pw.Laplace:
    """Many weights in float32, of which the data determine few."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(400, 800), nn.Tanh(), nn.Linear(800, 3))
    return fitted(model, torch.randn(20, 400), torch.arange(20) % 3, "classification", structure, prior=precision)


def spectra(la: pw.Laplace) -> torch.Tensor:
    """Eigenvalues of the curvature in float64."""
    found: Callable[..., Any] = la.state.curvature.spectrum
    return found(pw.Prior.scalar().stretches(la.space)).double()


@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_many_weights_in_float32_have_their_evidence(structure: str) -> None:
    """Sums of logarithms over all weights nearly cancel: in float32 the rest was off by tenths of a nat and more."""
    la = wide(structure, 1e-3)
    parts, values = la.evidence(), spectra(la)
    precision = float(torch.tensor(1e-3))
    assert abs(parts.log_volume - float((values / precision).log1p().sum())) < 2e-3
    assert abs(float(la.log_evidence()) - parts.total) < 1e-9


def test_many_weights_in_float32_have_their_effective_dimensions() -> None:
    """Weights that the data do not determine count zero each, and not what rounding leaves of one less one."""
    la = wide("kron", 0.7)
    values = spectra(la)
    assert abs(la.evidence().gamma - float((values / (values + 0.7)).sum())) < 1e-3


def test_effective_dimensions_rest_on_eigenvalues_alone() -> None:
    """Eigenvectors from a GPU are as far from length one as these: with 170 dimensions, off by 0.002 if they count."""
    la = wide("kron", 0.7)
    blocks = {}
    for key, block in la.state.curvature.blocks.items():
        off = [side * (1 + 1e-5 * torch.randn_like(side[:, :1])) for side in (block.left, block.right)]
        blocks[key] = replace(block, left=off[0], right=off[1])
    other = pw.Laplace(replace(la.state, curvature=replace(la.state.curvature, blocks=blocks)))
    assert abs(other.evidence().gamma - la.evidence().gamma) < 1e-9


def test_large_counts_in_float32_have_their_evidence() -> None:
    """`exp(f) - y f` is the small difference of two large numbers."""
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(0.1)
        model.bias.fill_(13.0)
    x = normal(50, 1).float()
    y = (model(x).detach().double().exp() + 600 * normal(50, 1, seed=3)).round()
    narrow = fitted(model, x, y, "count", prior=1.0)
    wide = fitted(model.double(), x.double(), y, "count", prior=1.0)
    assert abs(float(narrow.evidence().log_likelihood - wide.evidence().log_likelihood)) < 0.02
    densities = [la.predict(moved(x.to(la.weights.dtype))).log_prob(moved(y)).double() for la in (narrow, wide)]
    assert relative(*densities) < 1e-4


@pytest.mark.parametrize("away", [1e-3, 1e-4])
def test_one_short_step_of_the_fixed_point_is_no_convergence(away: float) -> None:
    """Begun near the top, the first update is short; how slowly the rest shrink is not known from it."""
    la = regression(2.0, structure="diag")
    top = la.tune(parameters=["prior"]).prior.precision
    near = la.tune("fixed_point", start=pw.Prior.scalar(top * (1 + away)), parameters=["prior"])
    assert relative(near.prior.precision, top) < 1e-6


@pytest.mark.parametrize("options", [{"limits": (1e4, 1e5)}, {"method": "grid", "grid": [1e4, 1e5]}])
def test_warnings_point_at_the_line_that_asked(options: Any) -> None:
    """And not at ours, where Python would show only the first of them."""
    with pytest.warns(pw.TuningWarning) as found:
        regression().tune(**options)
    assert {warning.filename for warning in found} == {__file__}


def test_the_floor_of_a_g_prior_is_that_of_the_tensor_with_a_mask_too() -> None:
    """A tensor with little curvature is not lifted to the mean of others: `full` and `diag` have the same ratios."""
    model = built(nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 1, bias=False)))
    with torch.no_grad():
        model[1].weight.mul_(1e-4)
    mask = {"0.weight": torch.arange(12).reshape(4, 3) % 4 != 1, "1.weight": torch.tensor([[True, False, True, True]])}
    x, y = normal(9, 3), normal(9, 1, seed=4)
    found = [
        fitted(model, x, y, "regression", structure, weights=mask, prior=pw.Prior.g_prior(1.0)).prior.base
        for structure in ("diag", "full")
    ]
    assert found[0] is not None and found[1] is not None
    assert torch.allclose(found[0], found[1], rtol=1e-9, atol=0)


def test_a_prior_that_the_structure_cannot_hold_is_refused_where_it_is_given() -> None:
    """Not at the first question after it; the posterior that was asked is as it was."""
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    la = fitted(model, normal(6, 3), classes(2, 6), "classification", "kron")
    before = la.log_evidence()
    with pytest.raises(ValueError, match="structure='diag', 'block' or 'full'"):
        la.with_prior(pw.Prior.diagonal(torch.rand(la.D, dtype=torch.float64) + 0.5))
    assert torch.equal(la.log_evidence(), before)
    assert la.with_prior(pw.Prior.unitwise(2.0)).prior.grouping.name == "unitwise"


def test_a_posterior_is_not_called() -> None:
    """As in other libraries: the message says what to ask instead."""
    la = fitted(built(nn.Linear(3, 2)), normal(6, 3), classes(2, 6), "classification", "kron")
    with pytest.raises(TypeError, match=r"la\.predict\(x\)"):
        la(normal(2, 3))


@pytest.mark.parametrize(
    "options",
    [
        {"limits": (1e-4, 1e-3)},
        {"method": "fixed_point", "limits": (1e-4, 1e-3)},
        {"method": "grid", "grid": [1e-5, 1e-4]},
        {"method": "validation", "steps": 2},
        {"at": "linear_mode", "limits": (1e-4, 1e-3)},
    ],
    ids=["evidence", "fixed_point", "grid", "validation", "linear"],
)
def test_warnings_of_tuning_point_at_the_call(options: dict[str, Any]) -> None:
    """At the line of the user who asked, whatever tunes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().to(DEVICE)
    data = torch.randn(20, 3).double().to(DEVICE), torch.randn(20, 2).double().to(DEVICE)
    la = pw.fit(model, data, pw.Gaussian(0.5))
    given = (
        {"validation": data} if options.get("method") == "validation" else {"train": data} if "at" in options else {}
    )
    with pytest.warns(pw.TuningWarning) as found:
        la.tune(**given, **options)
    assert {each.filename for each in found} == {__file__}
