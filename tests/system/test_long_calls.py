"""Calls that take long show their progress when asked, and keep to `memory=`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import classes, normal
from mistakes import alike
from tables import moved

pytestmark = pytest.mark.filterwarnings("ignore::peewit.TuningWarning")  # of small grids
X, Y = moved(normal(24, 3)), moved(classes(3, 24))


class Counted(nn.Sequential):
    """A classifier that knows the largest batch it was given, but for that of the fit."""

    largest = 0

    def forward(self, x: Tensor) -> Tensor:
        """Note the examples."""
        self.largest = max(self.largest, len(x))
        return super().forward(x)


@pytest.fixture
def model() -> Counted:
    """A small one."""
    torch.manual_seed(0)
    return Counted(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double().to(DEVICE)


def vectors() -> Tensor:
    """Two, of all weights."""
    return moved(normal(2, 31, seed=3))


Call = Callable[..., Any]
CALLS: dict[str, Call] = {
    "fit": lambda la, **o: pw.fit(la.model, (X, Y), "classification", **o).functional(X).cov,
    "update": lambda la, **o: la.update((X, Y), **o).functional(X).cov,
    "at_linear_mode": lambda la, **o: la.at_linear_mode((X, Y), **o).linear_mode.displacement,
    "predict": lambda la, **o: la.predict(X, **o).probs,
    "predict jointly": lambda la, **o: la.predict(X, link="mc", joint=True, samples=64, **o).probs,
    "predict by weights": lambda la, **o: la.predict(X, method="sampled", samples=8, **o).probs,
    "functional": lambda la, **o: la.functional(X, **o).cov,
    "functional of all inputs": lambda la, **o: la.functional(X, joint=True, **o).cov,
    "functional_samples": lambda la, **o: la.functional_samples(X, 3, torch.Generator(DEVICE).manual_seed(0), **o),
    "tune by validation": lambda la, **o: (
        la.tune("grid", grid=[0.1, 1.0, 10.0], validation=(X, Y), **o).prior.precision
    ),
    "validation_nll": lambda la, **o: torch.tensor(pw.validation_nll(la, (X, Y), **o)),
    "compare": lambda la, **o: torch.tensor(pw.compare([la], test=(X, Y), **o).best.test_log_likelihood),
    "diagnose": lambda la, **o: torch.tensor(la.diagnose((X, Y), **o)["mode"].numbers["decrement"]),
    "products": lambda la, **o: pw.products(la.model, (X, Y), "classification", **o).mv(vectors()),
    "products with the Hessian": lambda la, **o: pw.products(
        la.model, (X, Y), "classification", curvature="hessian", **o
    ).mv(vectors()),
}
WITHOUT_PASSES: dict[str, Call] = {
    "tune": lambda la, **o: la.tune(**o).prior.precision,
    "recommend": lambda la, **o: pw.recommend(la.model, (X, Y), "classification", **o).posterior.prior.precision,
    "tune on a grid": lambda la, **o: la.tune("grid", grid=[0.1, 1.0, 10.0], **o).prior.precision,
}


@pytest.mark.parametrize("name", [*CALLS, *WITHOUT_PASSES])
def test_progress_is_shown_when_asked(name: str, model: Counted, bars: list[int]) -> None:
    """At least one bar, none of which stays; and none unasked."""
    la, call = pw.fit(model, (X, Y), "classification"), (CALLS | WITHOUT_PASSES)[name]
    expected = call(la)
    assert bars == [0, 0]
    made = call(la, progress=True)
    assert bars[0] >= 1 and bars[1] == 0
    assert alike(made, expected)


def test_loading_shows_its_progress(model: Counted, bars: list[int], tmp_path: Path) -> None:
    """The decomposition takes long."""
    path = tmp_path / "posterior.safetensors"
    pw.fit(model, (X, Y), "classification").save(path)
    pw.load(path, model)
    assert bars == [0, 0]
    pw.load(path, model, progress=True)
    assert bars == [1, 0]


def normed() -> nn.Sequential:
    """A network with a set of weights whose scale does not matter."""
    torch.manual_seed(0)
    layers = (nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    return nn.Sequential(*layers).double().to(DEVICE)


def test_looking_for_invariances_shows_its_progress(bars: list[int]) -> None:
    """Some evaluations for each weight."""
    expected = pw.Prior.scale_invariant(normed(), (X, Y)).sets
    assert bars == [0, 0] and expected == (("0.weight", "0.bias"),)
    assert pw.Prior.scale_invariant(normed(), (X, Y), progress=True).sets == expected
    assert bars[0] >= 2 and bars[1] == 0


def test_looking_for_invariances_keeps_to_memory() -> None:
    """With next to none the network meets the fewest examples that tell; the sets stay."""
    model, seen = normed(), list[int]()
    model[0].register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    for options, examples in (({}, 24), ({"memory": 1.0}, 8), ({"memory": 1e9}, 24)):
        seen.clear()
        assert pw.Prior.scale_invariant(model, (X, Y), **options).sets == (("0.weight", "0.bias"),)
        assert max(seen) == examples
    with pytest.raises(pw.PeewitError, match="memory=0 was given"):
        pw.Prior.scale_invariant(model, (X[:4], Y[:4]), memory=0)


@pytest.mark.parametrize("name", ["landscape_1d", "landscape_2d", "landscape_3d"])
def test_landscapes_show_their_progress_and_keep_to_memory(name: str, model: Counted, bars: list[int]) -> None:
    """As the numbers behind them; all examples where none are left out."""
    pytest.importorskip("plotly")
    draw, la = getattr(pw.figures, name), pw.fit(model, (X, Y), "classification", structure="diag")

    def heights(**options: Any) -> Tensor:
        traces = draw(la, (X, Y), points=3, **options).data
        return torch.tensor(list(traces[0]["z" if name != "landscape_1d" else "y"]))

    expected = heights()
    assert bars == [0, 0]
    assert torch.equal(heights(progress=True), expected) and bars[0] >= 1 and bars[1] == 0
    model.largest = 0
    assert torch.allclose(heights(memory=1.0), expected, rtol=1e-6)
    assert model.largest <= 6
    assert torch.equal(heights(examples=None), expected) and not torch.equal(heights(examples=8), expected)
    many = moved(normal(1_020, 3, seed=5)), moved(classes(3, 1_020))  # the first 1,000 unless all are asked for
    some, first, everything = (
        draw(la, many, points=3, **options).data[0].to_json()
        for options in ({}, {"examples": 1_000}, {"examples": None})
    )
    assert some == first != everything
    with pytest.raises(pw.PeewitError, match="leave memory out"):
        draw(pw.figures.landscape(la, (X, Y), points=3, dimensions=1 if name == "landscape_1d" else 2), memory=1.0)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"fit", "update", "at_linear_mode"}))
def test_memory_is_kept_to(name: str, model: Counted) -> None:
    """With next to none, the network meets few examples at a time; the numbers stay."""
    la = pw.fit(model, (X, Y), "classification")
    expected = CALLS[name](la)
    model.largest = 0
    made = CALLS[name](la, memory=1.0)
    assert model.largest <= 6
    assert torch.allclose(made, expected, rtol=1e-6 if name != "diagnose" else 0.3)


def test_interrupted_bars_are_taken_down(model: Counted, bars: list[int]) -> None:
    """Also while the traceback, and every frame in it, is still alive."""
    la = pw.fit(model, (X, Y), "classification")
    handle = model[0].register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    for name in sorted(CALLS):
        bars[:] = [0, 0]
        with pytest.raises(KeyboardInterrupt) as caught:
            CALLS[name](la, progress=True)
        assert (name, bars[1]) == (name, 0) and caught.traceback
    handle.remove()
