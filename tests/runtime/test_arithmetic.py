"""The precision policy: what it sets, that it is taken back, and what it costs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

import peewit as pw
from environment import DEVICE
from peewit.runtime.arithmetic import Arithmetic, ArithmeticName, use_rounding

STATES = {
    "as torch comes": lambda: None,
    "TF32 products": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "no TF32 anywhere": lambda: (
        setattr(torch.backends.cuda.matmul, "allow_tf32", False),
        setattr(torch.backends.cudnn, "allow_tf32", False),
    ),
    "newer switches": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
}


MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
NEWER = hasattr(MATMUL, "fp32_precision")  # whether this torch has the newer switches: 2.6 has not


def readable(ask: Any) -> Any:
    """Torch refuses some questions once both sets of switches were used."""
    try:
        return ask()
    except RuntimeError:
        return "refused"


def state() -> tuple[Any, ...]:
    """All switches."""
    return (
        readable(torch.get_float32_matmul_precision),
        readable(lambda: MATMUL.allow_tf32),
        readable(lambda: CUDNN.allow_tf32),
        *(each.fp32_precision for each in ((MATMUL, CUDNN.conv, CUDNN.rnn) if NEWER else ())),
    )


@pytest.fixture
def untouched() -> Any:
    """Torch's switches as they come, before and after."""
    yield
    if NEWER:
        MATMUL.fp32_precision = "none"
    MATMUL.allow_tf32 = False
    CUDNN.allow_tf32 = True
    torch.set_float32_matmul_precision("highest")
    if NEWER:
        MATMUL.fp32_precision = "none"


@pytest.mark.parametrize("name", list(STATES))
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_switches_are_set_and_taken_back(
    name: str, precision: str, untouched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they were, also after an exception."""
    if name == "newer switches" and not NEWER:
        pytest.skip("this torch has none")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    STATES[name]()
    before = state()
    with pytest.raises(KeyError), use_rounding(precision):
        products = MATMUL.fp32_precision == "tf32" if NEWER else MATMUL.allow_tf32
        layers = CUDNN.conv.fp32_precision == "tf32" if NEWER else CUDNN.allow_tf32
        assert products == layers == (precision == "tf32")
        raise KeyError
    assert state() == before
    with use_rounding(None):
        assert state() == before


def test_what_each_policy_asks_for(untouched: None) -> None:
    """Parts of products in fits and predictions, and dtypes."""
    expected = {"auto": (2, 1), "float32": (2, 2), "tf32": (1, 1), "bf16": (1, 1), "float64": (2, 1)}
    for name in get_args(ArithmeticName):
        own = Arithmetic(name)
        assert (own.parts(predicting=False), own.parts(predicting=True)) == expected[name]
        assert own.dtype == (torch.float64 if name == "float64" else torch.float32)
    torch.set_float32_matmul_precision("high")
    assert Arithmetic("auto").parts(predicting=False) == 1


def test_bad_policies() -> None:
    """Named, with what was expected."""
    model, x, y = network()
    with pytest.raises(ValueError, match="arithmetic='half' is not known; Known: auto, float32"):
        pw.fit(model, (x, y), "classification", arithmetic="half")
    with pytest.raises(TypeError, match="arithmetic is a dtype; expected one of"):
        pw.fit(model, (x, y), "classification", arithmetic=torch.float32)  # type: ignore[arg-type]
    la = pw.fit(model, (x, y), "classification")
    with pytest.raises(ValueError, match="arithmetic='fp32'"):
        la.with_arithmetic("fp32")


def network() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A small network in float32 and its data."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)).to(DEVICE)
    return model, torch.randn(12, 2, 8, device=DEVICE), torch.arange(12, device=DEVICE) % 3


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full"])
def test_policies_round_and_change_nothing_else(structure: str) -> None:
    """Numbers near those of a network in float64; a posterior asked otherwise is a new value."""
    model, x, y = network()
    wide = pw.fit(copy.deepcopy(model).double(), (x.double(), y), "classification", structure=structure)
    expected = wide.functional(x.double()).cov
    for name in get_args(ArithmeticName):
        la = pw.fit(model, (x, y), "classification", structure=structure, arithmetic=name)
        assert la.arithmetic == name
        bound = {"float64": 1e-6, "float32": 1e-4}.get(name, 1e-2)
        assert float((la.functional(x).cov - expected).norm() / expected.norm()) < bound
        assert float(la.log_evidence()) == pytest.approx(float(wide.log_evidence()), rel=1e-3)
        other = la.with_arithmetic("float64" if name == "float32" else "float32")
        assert la.arithmetic == name and other.arithmetic != name
        assert other.functional(x).cov.dtype == (torch.float64 if name == "float32" else torch.float32)
        assert float((other.functional(x).cov - expected).norm() / expected.norm()) < max(bound, 1e-4)
        assert other.update((x, y)).N == 24
    assert float((wide.with_arithmetic("tf32").functional(x.double()).cov - expected).norm()) < 1e-12


@pytest.mark.parametrize("name", get_args(ArithmeticName))
@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full", "block"])
def test_files_keep_the_policy(name: str, structure: str, tmp_path: Path) -> None:
    """And numbers in its precision."""
    model, x, y = network()
    la = pw.fit(model, (x, y), "classification", structure=structure, arithmetic=name)
    la.save(tmp_path / "posterior")
    found = pw.load(tmp_path / "posterior", model)
    assert found.arithmetic == name and found.weights.dtype == la.weights.dtype
    assert torch.equal(found.functional(x).cov, la.functional(x).cov)


def test_networks_of_several_dtypes() -> None:
    """The widest of them is kept."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.last(self.first(x).tanh().double())
            return made

    torch.manual_seed(0)
    model, x = Mixed().to(DEVICE), torch.randn(6, 3, device=DEVICE)
    la = pw.fit(model, (x, torch.arange(6, device=DEVICE) % 2), "classification")
    torch.testing.assert_close(la.with_arithmetic("float32").functional(x).cov, la.functional(x).cov)


def test_priors_made_of_curvature_in_float32() -> None:
    """A g-prior's ratios are those of the fit, rounded."""
    model, x, y = network()
    la = pw.fit(model, (x, y), "classification", prior=pw.Prior.g_prior(1.0))
    made = la.with_arithmetic("float64").functional(x).cov
    torch.testing.assert_close(made.float(), la.functional(x).cov, rtol=1e-3, atol=1e-5)


def test_the_mean_is_the_networks(untouched: None) -> None:
    """By default predictions round their variances alone."""
    model, x, y = network()
    la = pw.fit(model, (x, y), "classification")
    with torch.no_grad():
        torch.testing.assert_close(la.functional(x).mean, model(x), rtol=1e-6, atol=1e-7)
