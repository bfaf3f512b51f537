"""Options of `tune`: their defaults, and what is refused."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import peewit as pw
from peewit.tuning.by_grid import axes
from peewit.tuning.options import Passing, as_limits, check_settings, listable, positive

EVERY = ("prior", "noise", "temperature")


def settings(noise_there: bool = True, **given: Any) -> Any:
    """What `tune` makes of what it was asked for."""
    likelihood = pw.Gaussian() if noise_there else pw.Poisson()
    usual: dict[str, Any] = {"method": "evidence", "parameters": None, "train": None, "validation": None}
    usual |= {
        "grid": None,
        "steps": None,
        "tolerance": None,
        "limits": (0.1, 10),
        "predict": None,
        "passing": Passing(),
    }
    untuned = SimpleNamespace(likelihood=likelihood, linear_mode=None, trace=None)
    return check_settings(untuned, **usual | given)  # type: ignore[arg-type]


def test_defaults_of_tune() -> None:
    """Noise where there is one, on a grid where it has values; steps for each number that is searched."""
    linear = Passing("linear_mode")
    for given, noise, steps, tolerance in (
        ({}, True, 400, 1e-6),
        ({"parameters": ["prior"]}, False, 200, 1e-6),
        ({"noise_there": False}, False, 200, 1e-6),
        ({"method": "fixed_point"}, True, 2000, 1e-7),
        ({"method": "validation", "validation": ()}, True, 120, 1e-3),
        ({"method": "validation", "validation": (), "parameters": EVERY}, True, 180, 1e-3),
        ({"method": "grid"}, False, 0, 0.0),
        ({"method": "grid", "grid": {"prior": [1.0], "noise": [1.0]}}, True, 0, 0.0),
        ({"method": "grid", "parameters": ("prior", "noise")}, True, 0, 0.0),
        ({"passing": linear, "train": ()}, True, 100, 1e-2),
        ({"passing": linear, "train": (), "method": "fixed_point", "steps": 7, "tolerance": 0.5}, True, 7, 0.5),
        ({"parameters": ["noise"]}, True, 200, 1e-6),
    ):
        made = settings(**given)
        assert (made.noise, made.steps, made.tolerance) == (noise, steps, tolerance), given
        assert (
            made.limits == (0.1, 10.0)
            and made.predict == {}
            and made.prior is ("prior" in given.get("parameters", EVERY))
        )
    assert settings(method="grid", validation=(), grid={"temperature": [1.0]}).temperature is True
    assert not settings(method="grid", grid=[1.0]).temperature and settings(steps=1).steps == 1
    assert (
        settings(method="validation", validation=(), predict={"link": "mc", "at": "trained_weights"}).predict["link"]
        == "mc"
    )
    assert pw.tuning.options.LIMITS == (1e-10, 1e10) and pw.tuning.options.TEMPERATURES == (1e-4, 1e4)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"method": 3}, TypeError, r"method is a int; expected one of evidence, .*training, validation, grid\. Val"),
        ({"method": "gridd"}, ValueError, "method='gridd' is not known; did you mean 'grid'. Known: evidence"),
        (
            {"passing": Passing("linear_mode")},
            ValueError,
            "at='linear_mode' passes over the training data; give it as train=",
        ),
        ({"passing": Passing(memory=1.0)}, ValueError, "memory= is for passes over data"),
        (
            {"method": "grid", "validation": (), "predict": {"memory": 1.0}},
            ValueError,
            "memory= is an option of tune itself",
        ),
        (
            {"passing": Passing("linear_mode"), "method": "validation"},
            ValueError,
            "whose score does not depend on a mode",
        ),
        ({"passing": Passing("far")}, ValueError, "at='far' is not known; .*Known: trained_weights, linear_mode"),
        ({"parameters": "prior"}, TypeError, r"parameters='prior': expected a list, such as \['prior', 'noise'\]"),
        ({"parameters": 1}, TypeError, "parameters=1: expected a list"),
        ({"parameters": ["nois"]}, ValueError, "parameters has 'nois'; did you mean 'noise'. Known: prior, noise"),
        ({"parameters": [1]}, ValueError, "parameters has 1; Known: prior, noise, temperature"),
        ({"train": ()}, ValueError, "train= was given, but nothing here passes over the training data"),
        ({"steps": True}, ValueError, "steps=True: expected a positive whole number"),
        ({"steps": 0}, ValueError, "steps=0: expected a positive whole number"),
        ({"steps": 1.5}, ValueError, "steps=1.5: expected"),
        ({"tolerance": 0.0}, ValueError, "tolerance=0.0: expected a positive number"),
        ({"predict": [1]}, TypeError, r"predict=\[1\]: expected a mapping"),
        ({"predict": {"link": "mc"}}, ValueError, "predict= was given, but method='evidence' makes no predictions"),
        (
            {"method": "grid", "validation": (), "predict": {"at": "linear_mode"}},
            ValueError,
            "leave at= out",
        ),
        ({"method": "grid", "grid": 1.0}, TypeError, "grid=1.0: expected numbers, or a mapping"),
        ({"method": "grid", "grid": {}}, ValueError, "grid has no values"),
        (
            {"method": "grid", "grid": [1.0], "parameters": ["noise"]},
            ValueError,
            r"The grid has values for prior, which parameters=\['noise'\] leaves out",
        ),
        (
            {"method": "grid", "grid": {"noise": [1.0]}, "parameters": ["prior"]},
            ValueError,
            "The grid has values for noise, which",
        ),
        (
            {"parameters": ["noise"], "noise_there": False},
            ValueError,
            "parameters has 'noise', but Poisson has none",
        ),
        ({"parameters": EVERY}, ValueError, "The evidence cannot choose a temperature"),
        ({"parameters": EVERY, "method": "fixed_point"}, ValueError, "The evidence cannot choose a temperature"),
        ({"parameters": EVERY, "method": "grid"}, ValueError, "The evidence cannot choose a temperature"),
        (
            {"parameters": EVERY, "passing": Passing("linear_mode"), "train": ()},
            ValueError,
            "The evidence cannot choose",
        ),
        ({"validation": ()}, ValueError, "validation= was given, but method='evidence' needs none"),
        (
            {"validation": (), "method": "fixed_point"},
            ValueError,
            "validation= was given, but method='fixed_point' needs none",
        ),
        ({"grid": [1.0]}, ValueError, "grid= was given, but method='evidence' has none"),
        ({"grid": [1.0], "method": "validation", "validation": ()}, ValueError, "but method='validation' has none"),
        ({"parameters": []}, ValueError, "there is nothing to tune"),
        ({"limits": (1.0,)}, ValueError, r"limits=\(1.0,\): expected two positive precisions"),
    ],
    ids=str,
)
def test_refusals_of_tune(given: dict[str, Any], error: type[Exception], words: str) -> None:
    """Each by what was given, with what to do."""
    with pytest.raises(error, match=words):
        settings(**given)


def test_numbers_that_are_positive() -> None:
    """Finite, and numbers at all."""
    assert positive(2) == 2.0 and positive(torch.tensor(0.5)) == 0.5 and positive(1e-300) == 1e-300
    assert all(positive(value) is None for value in (0, -1.0, math.inf, math.nan, True, "1", None, torch.ones(2)))
    assert (
        listable([1])
        and listable(torch.ones(1))
        and listable({})
        and not listable(torch.ones(()))
        and not listable("a")
    )
    assert not listable(3) and as_limits([1, 2.5]) == (1.0, 2.5)
    for limits in ((1.0, 1.0), (2.0, 1.0), (0.0, 1.0), (1.0, math.inf), (1.0, 2.0, 3.0), 5.0, "12"):
        with pytest.raises(ValueError, match="expected two positive precisions, the smaller first"):
            as_limits(limits)


def test_axes_of_a_grid() -> None:
    """Forty-one precisions from 1e-4 to 1e4, or what was given; what has no values stays where it is."""
    la: Any = SimpleNamespace(likelihood=SimpleNamespace(noise_precision=torch.tensor(4.0)), temperature=1.5)

    def made(grid: Any, prior: bool = True, noise: bool = False) -> dict[str, list[float]]:
        return axes(la, SimpleNamespace(grid=grid, prior=prior, noise=noise), 3.0)  # type: ignore[arg-type]

    usual = made(None)
    assert usual["prior"] == pytest.approx(
        [10**power for power in torch.linspace(-4, 4, 41).double().tolist()], rel=1e-5
    )
    assert (usual["noise"], usual["temperature"]) == ([0.5], [1.5]) and [*usual] == ["prior", "noise", "temperature"]
    assert made([1, 2.0])["prior"] == [1.0, 2.0] and made(torch.tensor([1.0, 2.0]))["prior"] == [1.0, 2.0]
    assert made({"noise": [0.3], "temperature": (2.0, 1.0)}, noise=True) == {
        "prior": [3.0],
        "noise": [0.3],
        "temperature": [2.0, 1.0],
    }
    for given, words in (
        ({"grid": None, "prior": False}, "A grid without the prior needs the values of what is tuned"),
        ({"grid": {"precision": [1.0]}}, r"grid has values for \['precision'\]; expected 'prior'"),
        ({"grid": [1.0], "noise": True}, "The noise on a grid needs its values"),
        ({"grid": {"prior": []}}, r"grid: the values for 'prior' are \[\]; expected positive numbers"),
        ({"grid": {"noise": [1.0, -1.0]}}, "the values for 'noise' are"),
        ({"grid": {"noise": 1.0}}, "the values for 'noise' are 1.0"),
    ):
        with pytest.raises(ValueError, match=words):
            made(**given)
