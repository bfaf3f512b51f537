"""Networks and priors that cannot be used are refused by `fit` itself, in a sentence that says what to do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import built, classes, fitted, normal
from tables import moved, relative


def layers(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2), *more)


@pytest.mark.parametrize("structure", ["ekfac", pw.EKFAC(bias="joint")])
def test_a_prior_that_the_structure_cannot_hold(structure: Any) -> None:
    """As `with_prior` does, and not at the first question; a prior that fits is accepted."""
    model, x, y = built(layers()), normal(6, 4), normal(6, 2)
    prior = pw.Prior.g_prior()
    with pytest.raises(ValueError) as later:
        fitted(model, x, y, "regression", structure).with_prior(prior)
    with pytest.raises(ValueError) as made:
        fitted(model, x, y, "regression", structure, prior=prior)
    assert str(made.value) == str(later.value) and "cannot hold exactly" in str(made.value)
    fitted(model, x, y, "regression", "kron", prior=prior).log_evidence()


@pytest.mark.parametrize("how", ["script", "trace"])
def test_scripted_networks(how: str) -> None:
    """By every entrance; a scripted part without weights of interest is none of our business."""
    model, x, y = built(layers()).to(DEVICE), moved(normal(6, 4)), moved(normal(6, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        made = torch.jit.script(model) if how == "script" else torch.jit.trace(model, x)
        inner = nn.Sequential(torch.jit.script(model[:2]), model[2])
    for call in (pw.fit, pw.products):
        with pytest.raises(ValueError, match=r"expected a plain torch\.nn\.Module, since scripted or traced networks"):
            call(made, (x, y), "regression")
    part = pw.fit(inner, (x, y), "regression", structure="full", weights=["1"])
    whole = pw.fit(model, (x, y), "regression", structure="full", weights=["2"])
    assert relative(part.functional(x).cov, whole.functional(x).cov) < 1e-12


@pytest.mark.skipif(DEVICE != "cpu", reason="quantised layers run on CPUs")
@pytest.mark.filterwarnings("ignore:quantized.*an autograd kernel was not registered")
def test_quantised_networks() -> None:
    """Whether all weights are quantised, or some that others lie behind; weights after them can be fitted."""
    x, y = normal(6, 4).float(), normal(6, 5).float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: quantisation moves to another library
        torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
        whole = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 5)))
    with pytest.raises(ValueError, match=r"weights are quantised \(0\)"):
        pw.fit(whole, (x, y), "regression")
    behind = nn.Sequential(nn.LayerNorm(4), *whole)
    with pytest.raises(ValueError, match=r"0.weight, 0.bias has no gradient.*quantised layers \(1\).*before it was"):
        pw.fit(behind, (x, y), "regression")
    after = nn.Sequential(nn.LayerNorm(4), *whole, nn.Linear(5, 5))
    with pytest.raises(ValueError, match="choose weights= after its last quantised layer"):
        pw.fit(after, (x, y), "regression")
    assert pw.fit(after, (x, y), "regression", weights=["2"]).D == 30


def test_networks_without_outputs() -> None:
    """For classes, numbers and noise from residuals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: nothing is initialised
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 0)).double().to(DEVICE)
    x = moved(normal(6, 4))
    for y, likelihood in ((classes(2, 6), "classification"), (normal(6, 0), "regression"), (normal(6, 0), RESIDUALS)):
        with pytest.raises(ValueError, match=r"no outputs: its shape is \(N, 0\); expected one per example"):
            pw.fit(model, (x, moved(y)), likelihood)
    with pytest.raises(ValueError, match="no outputs"):
        pw.products(model, (x, moved(normal(6, 0))), "regression").mv(torch.ones(15))


RESIDUALS = pw.Gaussian(noise="residuals")


class Spectral(nn.Module):
    """A complex weight, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(4, 3, dtype=torch.complex128))
        self.head = nn.Linear(3, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x.to(self.gain.dtype) @ self.gain).abs())


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_complex_weights(structure: str) -> None:
    """They are named, with what to do; real weights of such a network can be fitted."""
    model, x, y = Spectral().to(DEVICE), moved(normal(6, 4)), moved(normal(6, 1))
    for weights in ("all", ["gain"]):
        with pytest.raises(ValueError, match=r"'gain' is torch.complex128.*torch.view_as_complex.*weights="):
            pw.fit(model, (x, y), "regression", structure=structure, weights=weights)
    named = pw.fit(model, (x, y), "regression", structure=structure, weights=["head"])
    last = pw.fit(model, (x, y), "regression", structure=structure, weights="last_layer")
    assert named.D == last.D == 4
    with torch.no_grad():
        model.gain.imag += 1.0
    with pytest.raises(pw.MismatchError, match="no longer those it was fitted with"):
        named.functional(x)
    with torch.no_grad():
        model.gain.imag -= 1.0
    last = pw.fit(model, (x, y), "regression", structure=structure, weights="last_layer")
    hidden = (x.to(torch.complex128) @ model.gain).abs().detach()
    rows = torch.cat([hidden, torch.ones(6, 1).to(x)], 1)
    if structure == "full":
        expected = rows @ torch.linalg.inv(rows.T @ rows + torch.eye(4).to(x)) @ rows.T
        assert relative(last.functional(x).cov.flatten(), expected.diagonal()) < 1e-8
