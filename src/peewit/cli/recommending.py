"""The work of `peewit recommend`: which recipe to use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import peewit as pw

from ..laplace import Laplace
from ..metrics.results import Estimate
from ..posterior.schema import Schema
from ..recommendation.result import Recommendation, TriedRecipe
from ..recommendation.table import cells, remarks
from .checking import check_network, check_weights, refuse_misfit
from .datasets import Wanted, load
from .networks import generator, is_classification, network
from .networks import likelihood as chosen_likelihood
from .output import check_writable, table
from .posteriors import check_classes
from .runs import Run
from .scaling import standardise
from .settings import require_setting, section


def recommend(run: Run, out: Path | None) -> None:
    """Try the recipes, write the best posterior if asked to, and show the table."""
    settings, voice = run.settings, run.voice
    target_file = None if out is None else check_writable(out, (".safetensors",))
    net, family = network(settings), chosen_likelihood(settings)
    weights = check_weights(settings, net)
    wanted = Wanted.of(settings, net, is_classification(family))
    data = load(require_setting(settings, "train", "--train DATA"), wanted)
    net, data, family = standardise(settings, net, data, family, voice)
    refuse_misfit(net, data.value, family, settings)
    schema = None if data.schema == Schema() else data.schema
    known = Wanted.of(settings, net, wanted.categorical, schema=schema)
    validation = load(settings["validation"], known).value if "validation" in settings else None
    unlabelled = replace(known, labels=False)
    ood = {name: load(source, unlabelled).inputs() for name, source in settings.get("ood", {}).items()}
    with voice.stage("the recipes", with_bar=False):
        recommendation = pw.recommend(
            net,
            data.value,
            family,
            validation=validation,
            ood=ood or None,
            generator=generator(settings),
            progress=voice.progress,
            **section(settings, "recommend"),
        )
    la = Laplace(replace(recommendation.posterior.state, schema=schema))
    check_classes(la, data.schema.classes, data.source)
    check = check_network(la, data.value, settings, voice, weights)
    if target_file is not None:
        la.save(target_file)
    head, rows = cells(recommendation.table, recommendation.known)
    values = {
        **values_of(recommendation),
        **check.values(),
        "posterior": None if target_file is None else str(target_file),
    }
    voice.answer(
        values,
        table(head, rows),
        *remarks(recommendation.table),
        *(line for line in check.lines() if line.startswith("problem, ")),
        *(f"- {reason}" for reason in recommendation.reasons),
        f"\nuse {recommendation.recipe}:",
        *(f"    {line}" for line in recommendation.code.splitlines()),
        *([] if data.schema.scaling is None else ["(model: the network with its scaling, la.model of the posterior)"]),
        *([] if target_file is None else [f"written to {target_file}"]),
    )


def values_of(recommendation: Recommendation) -> dict[str, Any]:
    """As JSON holds it."""
    return {
        "recipe": recommendation.recipe,
        "best": recommendation.best,
        "reasons": list(recommendation.reasons),
        "code": recommendation.code,
        "scored": recommendation.known,
        "table": [values_of_row(row) for row in recommendation.table],
    }


def values_of_row(row: TriedRecipe) -> dict[str, Any]:
    """Every metric with its interval, and what went wrong."""
    metrics = {} if row.scores is None else row.scores.metrics
    return {
        "name": row.name,
        "metrics": {name: values_of_estimate(value) for name, value in metrics.items()},
        "auroc": None if row.auroc is None else values_of_estimate(row.auroc),
        "log_evidence": row.log_evidence,
        "seconds": row.seconds,
        "tuned_on_validation": row.tuned_on_validation,
        "problem": row.problem,
        "warnings": list(row.warnings),
    }


def values_of_estimate(estimate: Estimate) -> dict[str, float]:
    """The number and its interval."""
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
