"""Reports made by hand, with plausible numbers, for tests of what is made of them."""

from __future__ import annotations

import itertools
import math
import random

from peewit.evaluation import Report
from peewit.metrics.results import Curve, Detection, Estimate, MethodScores, Reliability, Shift, Specimen

CLASSES = ("t-shirt/top", "trouser", "pullover", "dress")


def near(value: float, width: float = 0.01) -> Estimate:
    return Estimate(value, value - width, value + width)


def bins(excess: float) -> Reliability:
    """Confidence above accuracy by `excess` everywhere."""
    edges = tuple(place / 15 for place in range(16))
    middle = tuple((low + high) / 2 for low, high in itertools.pairwise(edges))
    count = tuple(0 if place < 4 else 10 + 3 * place * place for place in range(15))
    return Reliability(edges, middle, tuple(max(0.0, each - excess) for each in middle), count)


def values(mean: float, spread: float, count: int = 300) -> tuple[float, ...]:
    drawn = random.Random(round(1000 * mean))
    return tuple(max(0.0, drawn.gauss(mean, spread)) for _ in range(count))


def shift(fall: float, doubt: float, first: str = "accuracy") -> Shift:
    strengths = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    right = tuple(near(0.84 - fall * each) for each in strengths)
    sure = tuple(near(0.85 - doubt * each) for each in strengths)
    unsure = tuple(near(0.4 + doubt * each) for each in strengths)
    return Shift(strengths, {first: right, "nll": unsure, "confidence": sure, "uncertainty": unsure})


def classifier(name: str, description: str, excess: float, nll: float, auroc: float, posterior: bool) -> MethodScores:
    scores = ("confidence", "entropy") + (("mutual_information", "epistemic_variance") if posterior else ())
    ece = abs(excess)
    return MethodScores(
        name=name,
        description=description,
        metrics={
            "accuracy": near(0.843, 0.015),
            "nll": near(nll, 0.02),
            "brier": near(0.23, 0.02),
            "ece": near(ece, 0.008),
            "ece_adaptive": near(ece + 0.003, 0.008),
            "ece_classwise": near(0.3 * ece, 0.004),
            "mce": near(2 * ece, 0.05),
            "aurc": near(0.045, 0.006),
        },
        reliability=bins(excess),
        risk_coverage=Curve(
            tuple(place / 100 for place in range(1, 101)),
            tuple(0.157 * (place / 100) ** 1.7 for place in range(1, 101)),
        ),
        pit=None,
        uncertainty={
            "test": {each: values(0.3, 0.2) for each in scores},
            "bags and boots": {each: values(0.3 + auroc - 0.5, 0.2) for each in scores},
        },
        detection={
            "bags and boots": {
                each: Detection(near(auroc + 0.01 * place), near(auroc - 0.1), near(1 - auroc, 0.03))
                for place, each in enumerate(scores)
            }
        },
        shifts={"noise": shift(0.12, 0.02), "blur": shift(0.06, 0.05)},
        attacks={"fgsm": shift(0.15, 0.03)},
        seconds=0.41,
    )


def specimen(index: int, right: bool, image: bool = True) -> Specimen:
    pixels = tuple(
        tuple((0.5 + 0.5 * math.sin(0.4 * row + index) * math.cos(0.3 * column),) for column in range(12))
        for row in range(12)
    )
    return Specimen(
        index=index,
        label=1,
        predicted=1 if right else 2,
        confidence=0.99 if right else 0.31,
        uncertainty=0.01 if right else 1.3,
        image=pixels if image else None,
    )


def classification(title: str = "Clothes", classes: tuple[str, ...] = CLASSES) -> Report:
    """A posterior that helps, beside the plain network and temperature scaling."""
    return Report(
        title=title,
        task="classification",
        methods=(
            classifier("Laplace", "Predictions averaged over the posterior.", 0.014, 0.43, 0.85, True),
            classifier("Plain network", "The network as it is.", 0.074, 0.502, 0.77, False),
            classifier("temperature scaling", "Outputs divided by one number.", 0.017, 0.432, 0.79, False),
        ),
        surest=tuple(specimen(index, True) for index in range(6)),
        least_sure=tuple(specimen(index, False) for index in range(6, 12)),
        classes=classes,
        coverage=(
            {"parameter": "0.weight", "shape": "16x1x3x3", "rule": "conv", "approximation": "Kronecker (expand)"},
            {"parameter": "1.weight", "shape": "16", "rule": "batch norm", "approximation": "dense block"},
        ),
        posterior=POSTERIOR,
        settings={"likelihood": "Categorical", "seed": 0, "bootstrap": 500},
        versions={"peewit": "0.1.0", "torch": "2.13.0"},
        notes=("Corruptions were drawn once.",),
    )


POSTERIOR = {
    "groups": ["0.weight", "1.weight"],
    "prior_precision": [3.2, 10.5],
    "effective_dimensions": [40.0, 7.5],
    "group_weights": [144, 16],
    "log_evidence": -812.3,
    "layers": [
        {
            "name": name,
            "weights": weights,
            "prior_variance": 0.3,
            "variance_mean": 0.1,
            "variance_quantiles": [0.01, 0.05, 0.1, 0.15, 0.2],
        }
        for name, weights in (("0.weight", 144), ("1.weight", 16))
    ],
    "trace": {
        "method": "evidence",
        "objective": "log evidence",
        "values": [-900.0, -830.0, -813.0, -812.3],
        "groups": ["0.weight", "1.weight"],
        "precisions": [[1.0, 1.0], [2.0, 5.0], [3.0, 9.0], [3.2, 10.5]],
        "noises": [],
        "temperatures": [1.0, 1.0, 1.0, 1.0],
        "stopped": "the next step would change nothing",
        "converged": True,
        "warnings": [],
    },
}


def regressor(name: str, description: str, held: float, nll: float) -> MethodScores:
    return MethodScores(
        name=name,
        description=description,
        metrics={
            "rmse": near(0.21, 0.02),
            "nll": near(nll, 0.05),
            "crps": near(0.12, 0.01),
            "coverage50": near(held - 0.4, 0.03),
            "coverage90": near(held, 0.02),
            "coverage95": near(min(held + 0.04, 1), 0.02),
            "sharpness": near(0.2),
            "pit_deviation": near(0.03),
        },
        reliability=None,
        risk_coverage=Curve(
            tuple(place / 20 for place in range(1, 21)), tuple(0.1 + place / 200 for place in range(20))
        ),
        pit=(0.14, 0.1, 0.08, 0.09, 0.1, 0.09, 0.09, 0.08, 0.1, 0.13),
        uncertainty={
            "test": {"epistemic_variance": values(0.2, 0.1)},
            "far away": {"epistemic_variance": values(0.9, 0.2)},
        },
        detection={"far away": {"epistemic_variance": Detection(near(0.97), near(0.9), near(0.1))}},
        shifts={"noise": shift(-0.1, 0.02, "rmse")},
        attacks={},
        seconds=0.02,
    )


def regression(title: str = "House prices") -> Report:
    """A posterior whose intervals hold what they should."""
    return Report(
        title=title,
        task="regression",
        methods=(
            regressor("Laplace", "Predictions averaged over the posterior.", 0.905, -0.1),
            regressor("Plain network", "The network with its noise alone.", 0.79, 0.31),
        ),
        surest=(Specimen(index=3, label=0.5, predicted=0.51, confidence=0.9, uncertainty=0.01, image=None),),
        least_sure=(Specimen(index=7, label=1.5, predicted=0.2, confidence=0.2, uncertainty=2.0, image=None),),
        classes=None,
        coverage=({"parameter": "0.weight", "shape": "8x1", "rule": "linear", "approximation": "Kronecker (expand)"},),
        posterior={},
        settings={"likelihood": "Gaussian"},
        versions={"peewit": "0.1.0"},
        notes=(),
    )
