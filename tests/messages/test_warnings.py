"""Warnings point at the line of the user's that led to them, from however deep inside the package."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE, ROOT
from fitting import classes, normal
from peewit.messages.warnings import Silence
from tables import moved

X, Y = moved(normal(20, 3)), moved(classes(3, 20))


def classifier(*after: nn.Module) -> nn.Module:
    """A small network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), *after).double().to(DEVICE)


def wide() -> nn.Module:
    """A network with more outputs than exact covariances have."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 300)).double().to(DEVICE)


def posterior() -> pw.Laplace:
    """A fit of it."""
    return pw.fit(classifier(), (X, Y), "classification")


def concave(f: Tensor, y: Tensor) -> Tensor:
    """An energy with negative curvature."""
    return -(f**2).sum(-1) + (f**4).sum(-1)


CALLS: dict[str, Callable[[], Any]] = {
    "a fit of probabilities": lambda: pw.fit(classifier(nn.Softmax(-1)), (X, Y), "classification"),
    "a fit whose search stops early": lambda: posterior().at_linear_mode((X, Y), steps=1, tolerance=1e-12),
    "a fit of a custom likelihood": lambda: pw.fit(classifier(), (X, moved(normal(20, 3))), pw.Custom(concave)),
    "a fit with rounding": lambda: pw.fit(
        classifier().float(), (1e6 * X.float(), moved(normal(20, 3)).float()), pw.Gaussian(0.01), prior=1e-9
    ),
    "products of a custom likelihood": lambda: pw.products(
        classifier(), (X, moved(normal(20, 3))), pw.Custom(concave)
    ).mv(torch.ones(31).to(X)),
    "a predict by another mode": lambda: (
        posterior().at_linear_mode((X, Y)).with_prior(2.0).predict(X, at="linear_mode")
    ),
    "an estimated covariance": lambda: pw.fit(
        wide(), (X, moved(normal(20, 300))), pw.Gaussian(1.0), structure="diag"
    ).functional(X[:2]),
    "a diagnosis of other data": lambda: posterior().diagnose((X, Y.flip(0))),
    "a tune": lambda: posterior().tune(steps=1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_warning_points_at_the_users_line(call: Callable[[], Any]) -> None:
    """At this file, and at the very lines that call."""
    lines, first = inspect.getsourcelines(call)
    with pytest.warns(pw.PeewitWarning) as found:
        call()
    for warning in found:
        assert issubclass(warning.category, pw.PeewitWarning)
        assert warning.filename == __file__, warning.message
        assert first <= warning.lineno < first + len(lines) + 6


@pytest.mark.parametrize("module", [pw, torch], ids=["peewit", "torch"])
def test_a_users_folder_that_begins_like_a_librarys(module: Any) -> None:
    """`peewit_study/run.py` beside the package is the user's."""
    file = f"{Path(module.__file__).parent}_study/run.py"
    with pytest.warns(UserWarning) as found:
        exec(compile("la.tune(steps=1)", file, "exec"), {"la": posterior()})
    assert [warning.filename for warning in found] == [file]


def test_warnings_are_given_in_one_way() -> None:
    """No number says how far up the user's line is, which the next wrapper would make wrong."""
    package = ROOT / "src" / "peewit"
    files = [path for path in package.rglob("*.py") if "stacklevel" in path.read_text()]
    assert [path.relative_to(package) for path in files] == [Path("messages/warnings.py")]


def test_classes_of_warnings_and_errors() -> None:
    """All of ours have one base class each, and no error of ours is one of Python's own classes."""
    public = [getattr(pw, name) for name in pw.__all__]
    classes = [each for each in public if inspect.isclass(each)]
    for base in (pw.PeewitWarning, pw.PeewitError):
        ours = {each for each in classes if each.__name__.endswith(base.__name__.removeprefix("Peewit"))}
        assert len(ours) >= 4 and all(issubclass(each, base) for each in ours)
    package = ROOT / "src" / "peewit"
    plain = re.compile(r"raise (?:RuntimeError|ValueError|TypeError|ImportError)\(\n? *[fr]?\"[A-Z]")
    assert [path.name for path in package.rglob("*.py") if plain.search(path.read_text())] == []


def test_silence_of_several_threads() -> None:
    """Whoever leaves last puts the filters back."""
    silence, before = Silence("not this"), list(warnings.filters)
    first, second = silence.hold(), silence.hold()
    first.__enter__()
    second.__enter__()
    warnings.warn("not this one", stacklevel=1)
    first.__exit__(None, None, None)
    warnings.warn("not this one", stacklevel=1)
    with pytest.raises(UserWarning, match="but this"):
        warnings.warn("but this", stacklevel=1)
    second.__exit__(None, None, None)
    assert list(warnings.filters) == before
    with pytest.raises(UserWarning, match="not this"):
        warnings.warn("not this one", stacklevel=1)
