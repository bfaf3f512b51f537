"""Figures looked at by a program: what they hold, and whether it is near."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from peewit.comparison.result import ComparedPosterior, Comparison, rank
from peewit.evaluation import Report
from peewit.figures import style
from peewit.metrics.results import Curve, Detection, Estimate, MethodScores, Reliability, Shift, Specimen


def grid(small: Any) -> Tensor:
    """Inputs along a line."""
    return torch.linspace(-2, 2, 9, dtype=torch.float64, device=small.x.device)[:, None]


def checked(figure: Any) -> dict[str, Any]:
    """What every figure has: JSON that any browser reads, a title and a description, no fixed width."""
    content = json.loads(figure.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    meta = content["layout"]["meta"]
    assert 40 < len(meta["alt"]) < 420, meta["alt"]
    assert (
        meta["alt"].endswith(".") and meta["alt"][0].isupper() and "<" not in meta["alt"] and "nan" not in meta["alt"]
    )
    assert meta["title"] and len(meta["title"]) < 60
    assert "width" not in content["layout"] and content["layout"]["height"] >= 200
    assert content["layout"]["paper_bgcolor"] == content["layout"]["plot_bgcolor"] == style.CLEAR
    assert content["data"]
    return content


def near(value: float, width: float = 0.02) -> Estimate:
    """A number with its interval."""
    return Estimate(value, value - width, value + width)


def scored(name: str, task: str = "classification") -> MethodScores:
    """Made up."""
    classes = task == "classification"
    own = ("entropy", "mutual_information") if classes else ("epistemic_variance",)
    strain = Shift((0.0, 1.0, 2.0), {each: (near(0.9), near(0.8), near(0.6)) for each in ("accuracy", "confidence")})
    return MethodScores(
        name=name,
        description="A way to predict.",
        metrics={"accuracy": near(0.9), "nll": near(0.4), "coverage90": near(0.85), "odd_one": near(math.nan)},
        reliability=Reliability((0.0, 0.5, 0.8, 1.0), (0.0, 0.7, 0.95), (0.0, 0.6, 0.9), (0, 10, 30))
        if classes
        else None,
        risk_coverage=Curve((0.1, 0.5, 1.0), (0.0, 0.05, 0.1)),
        pit=None if classes else (0.3, 0.2, 0.2, 0.3),
        uncertainty={data: dict.fromkeys(own, (0.1, 0.2, 0.2, 0.9)) for data in ("test", "bags")},
        detection={"bags": {each: Detection(near(0.8), near(0.7), near(0.4)) for each in own}},
        shifts={"noise": strain, "blur": strain},
        attacks={"fgsm": strain},
        seconds=0.5,
    )


def pixels(channels: int) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """A small image."""
    return tuple(tuple((0.1 * row,) * channels for _ in range(3)) for row in range(4))


def report(task: str = "classification", channels: int | None = 1) -> Report:
    """Made up."""
    image = None if channels is None else pixels(channels)
    specimens = tuple(
        Specimen(index=place, label=place % 3, predicted=1, confidence=0.9, uncertainty=0.2, image=image)
        for place in range(5)
    )
    posterior = {
        "groups": ["0.weight", "0.bias"], "prior_precision": [1.0, 2.0], "effective_dimensions": [3.0, 1.5],
        "group_weights": [8, 2],
        "layers": [
            {"name": each, "weights": 8, "prior_variance": 1.0, "variance_quantiles": [0.1, 0.2, 0.3, 0.4, 0.5]}
            for each in ("0.weight", "0.bias")
        ],
        "trace": {"values": [-3.0, -2.0, -1.0], "objective": "log evidence", "groups": ["0.weight", "0.bias"],
                  "precisions": [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]},
    }  # fmt: skip
    names = ("a", "b", "c") if task == "classification" else None
    methods = (scored("Laplace", task), scored("plain network", task))
    return Report(
        title="Test",
        task=task,
        methods=methods,
        surest=specimens,
        least_sure=specimens[:2],
        classes=names,
        coverage=(),
        posterior=posterior,
        settings={},
        versions={},
        notes=(),
    )


def compared(count: int = 3) -> Comparison:
    """A comparison, made up: the more weights, the better the fit, up to a point."""
    return rank(
        [
            ComparedPosterior(
                name=f"width {width}",
                log_likelihood=-40.0 / width,
                distance=float(width),
                log_volume=2.0 * width,
                effective_dimensions=0.5 * width,
                D=width,
                N=20,
                likelihood="Gaussian",
                structure="Kron",
                curvature="ggn",
                test_log_likelihood=-abs(width - 4.0),
            )
            for width in range(1, count + 1)
        ]
    )


class Tried:
    """A sweep, made up."""

    class Point:
        def __init__(self, weight: float, precision: float) -> None:
            self.data_weight, self.prior_precision = weight, precision
            self.metrics = {"nll": weight + precision, "ece": math.nan if weight > 5 else 0.1}

    def __init__(self) -> None:
        self.points = tuple(self.Point(weight, precision) for weight in (0.1, 1.0, 10.0) for precision in (0.5, 5.0))
        self.metric, self.best = "nll", self.points[0]
