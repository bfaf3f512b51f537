"""Ways to predict: what users have without us, laplace-torch, and posteriors of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import peewit as pw
from benchmarks.quality.answers import SMALL, Way
from benchmarks.quality.baselines import Dropout, Ensemble, LaplaceTorch, Plain, Temperature
from benchmarks.quality.cases import Likelihood
from benchmarks.quality.least import least_precision, within, within_error
from benchmarks.quality.ours import Ours, but_the_last_layer, capped, centred, largest_variances, largest_weights
from benchmarks.quality.trained import TRAINED

RECIPE, VALIDATED = "recipe", "validation"  # the two recipes: without and with validation data
LAST: Mapping[str, Any] = {"weights": "last_layer", "structure": "full"}
LAST_KRON: Mapping[str, Any] = {"weights": "last_layer", "structure": "kron"}  # as pw.recommend has it
FULL: Mapping[str, Any] = {"structure": "full"}
CLASSES: tuple[Likelihood, ...] = ("classification",)
AT_MODE: Mapping[str, Any] = {"at": "linear_mode"}
BY_VALIDATION: Mapping[str, Any] = {"method": "validation"}


def by_validation(name: str, **options: Any) -> Ours:
    """A way of ours that is tuned on validation data."""
    return Ours(**{"name": name, "validated": True, "tuning": BY_VALIDATION, "data": "validation", **options})


BASELINES: tuple[Way, ...] = (
    Plain(),
    Temperature(),
    Temperature(name="temperature, stop data", data="stop"),
    Dropout(),
    Ensemble(),
    LaplaceTorch(),
)
# A row here is all that a new way needs. On images, whose networks are large, only the quick and the main ones run.
OURS: tuple[Way, ...] = (
    Ours(name=RECIPE, main=True, trained=True),
    Ours(name="recipe, slack 0.005", trained=True, slack=0.005, likelihoods=CLASSES),
    Ours(name="recipe, slack 0.02", trained=True, slack=0.02, likelihoods=CLASSES),
    Ours(name="recipe, slack 0.05", trained=True, slack=0.05, likelihoods=CLASSES),
    Ours(name="last layer, recipe, slack 0.02", fitting=LAST, trained=True, slack=0.02),
    Ours(name="diagonal, recipe, slack 0.02", fitting={"structure": "diag"}, trained=True, slack=0.02, kinds=SMALL),
    Ours(name="evidence"),
    Ours(name="evidence, mc", predicting={"link": "mc"}, kinds=SMALL),
    Ours(name="evidence, bridge", predicting={"link": "bridge"}, kinds=SMALL, likelihoods=CLASSES),
    Ours(name="last layer, evidence", fitting=LAST),
    Ours(name="diagonal, evidence", fitting={"structure": "diag"}, kinds=SMALL),
    Ours(name="linear mode", tuning=AT_MODE, trained=True, kinds=SMALL),
    Ours(
        name="linear mode, layerwise",
        fitting={"prior": pw.Prior.layerwise(1.0)},
        tuning=AT_MODE,
        trained=True,
        kinds=SMALL,
    ),
    Ours(name="linear mode, its own mean", tuning=AT_MODE, predicting=AT_MODE, trained=True, kinds=SMALL),
    Ours(name="last layer, linear mode", fitting=LAST, tuning=AT_MODE, trained=True),
    by_validation(VALIDATED, main=True),
    by_validation("validation, stop data", data="stop", main=True),
    by_validation("validation, mc", predicting={"link": "mc"}, kinds=SMALL),
    by_validation("last layer, validation", fitting=LAST),
    by_validation("diagonal, validation", fitting={"structure": "diag"}, kinds=SMALL),
    by_validation("ekfac, validation", fitting={"structure": "ekfac"}, kinds=SMALL),
    Ours(name="evidence, prior at the weights", before=centred(), kinds=SMALL),
    Ours(name="evidence, prior halfway to the weights", before=centred(0.5), kinds=SMALL),
    Ours(name="linear mode, prior at the weights", before=centred(), tuning=AT_MODE, trained=True, kinds=SMALL),
    Ours(name="evidence, dimensions at most 0.1 N", after=capped(0.1), kinds=SMALL),
    Ours(name="evidence, dimensions at most 0.5 N", after=capped(0.5), kinds=SMALL),
    Ours(name="all but the last layer, evidence", weights=but_the_last_layer, kinds=SMALL),
    Ours(name="largest variances, evidence", fitting=FULL, weights=largest_variances, kinds=SMALL),
    Ours(name="largest weights, evidence", fitting=FULL, weights=largest_weights, kinds=SMALL),
    Ours(name="last layer, recipe", fitting=LAST, trained=True, kinds=SMALL),
    Ours(name="diagonal, recipe", fitting={"structure": "diag"}, trained=True, kinds=SMALL),
    Ours(name="last layer kron, recipe", fitting=LAST_KRON, trained=True, kinds=SMALL),
    by_validation("last layer kron, validation", fitting=LAST_KRON, kinds=SMALL),
    by_validation("validation, least within 0.002", choice=least_precision(within(0.002)), kinds=SMALL),
    by_validation("validation, least within one error", choice=least_precision(within_error), kinds=SMALL),
)
WAYS: Mapping[str, Way] = {way.name: way for way in (*BASELINES, *OURS, *TRAINED)}
