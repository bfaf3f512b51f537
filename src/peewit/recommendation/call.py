"""`recommend`: from a network and data to the posterior of the best of a few recipes, with the reasons."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import nn

from .. import likelihoods
from ..evaluation.call import UnknownInputs, unknown_sets
from ..evaluation.gathering import inputs_of
from ..evaluation.subject import Subject
from ..laplace import Laplace
from ..likelihoods import Likelihood, LikelihoodName, WithNoise
from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import resolve_name
from ..messages.python_code import write_value
from ..network.batches import Batches
from ..network.isolation import entry_point
from ..network.modules import device_of, unwrap
from ..network.nests import Data, take
from ..posterior.measure import with_residual_noise
from ..runtime.random import seed_of
from . import recipes
from .choice import Choice, choose
from .examples import EVERY, HeldExamples
from .result import Recommendation, TriedRecipe
from .table import grow_table
from .trials import (
    Allowance,
    Attempt,
    Clock,
    RecipeTask,
    collect_warnings,
    time_plain_pass,
    try_all,
    tune,
    with_intervals,
    words_of,
)

ENOUGH = 200  # validation examples, from which on one half tunes and the other chooses
SCORED = 10_000  # validation examples that are looked at
SEEN = 2_000  # training examples that are scored where there is no validation data
DRAWS = 1_000  # of the examples, for intervals
TIMED = 4  # batches of a plain pass


@entry_point
def recommend(
    model: nn.Module,
    train: Data,
    likelihood: LikelihoodName | Likelihood,
    *,
    validation: Data | None = None,
    ood: UnknownInputs | None = None,
    seconds: float | None = None,
    generator: torch.Generator | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> Recommendation:
    """Try the few recipes worth trying, and return the best posterior with the table and the reasons.

    Recipes differ in the uncertain weights and in how the prior is tuned; the plain network is one of them. With
    validation data the lowest NLL there is the best. Without, it is the recipe with all weights whose predictions
    explain the training data, or another that tells `ood` surely better. Errors and warnings of a recipe go into its
    row. Neither the network nor any random state is changed.

    Args:
        model: The trained network.
        train: The training data, as in `pw.fit`.
        likelihood: How targets are distributed given the outputs, as in `pw.fit`.
        validation: Data that the network was not trained on; at most 10,000 examples of it are looked at. From 200 on,
            one half tunes and the other chooses, and the winner is tuned again on all of it.
        ood: Inputs of unknown kinds, as in `pw.evaluate`, to see which recipe notices them.
        seconds: Time limit. A recipe is not started if it would take longer than what is left, as estimated from a
            pass of the plain network; one posterior is made in any case. None for all recipes.
        generator: Source of the seed of the halves and of the draws for intervals. None for a fixed seed.
        memory: Bytes for temporary results. None for a limit that fits the device.
        progress: Whether to show the table while it grows.

    Returns:
        A `pw.Recommendation`: `posterior`, `table`, `reasons` and the `code` to type.

    Raises:
        PeewitError: A name is unknown, data is a one-shot iterator or does not fit, or no recipe has a posterior; the
            message has the reason of each.
        ArgumentTypeError: An argument has the wrong type.

    Example:
        >>> found = pw.recommend(model, (x[:40], y[:40]), "classification", validation=(x[40:], y[40:]))
        >>> found.known, [row.name for row in found.table][:2]
        ('validation', ['plain network', 'temperature scaling'])
        >>> isinstance(found.posterior, pw.Laplace)
        True
    """
    if isinstance(model, Laplace) or not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            f"model is a {type(model).__name__}; expected the network itself, a torch.nn.Module, such as la.model."
        )
    seconds = check_seconds(seconds)
    seed = seed_of(generator, 62, fixed=0)
    model = unwrap(model)
    clock: Clock = perf_counter
    began, device = clock(), device_of(model)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        task = task_of(model, train, likelihood, validation, ood, memory, seed)
        timed = 0.0 if seconds is None else time_plain_pass(task, clock, TIMED)
        allowance = Allowance(clock=clock, began=began, seconds=seconds, plain_pass=timed)
        tried = [recipe for recipe in recipes.RECIPES if task.takes(recipe)]
        with grow_table(progress, len(tried), known_name(task)) as show:
            attempts = with_intervals(task, try_all(task, tried, allowance, show), DRAWS)
        return finish(task, attempts, choose(task, attempts))


def check_seconds(seconds: Any) -> float | None:
    """A positive number, or None."""
    if seconds is None:
        return None
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 < seconds < math.inf:
        raise PeewitError(f"seconds={seconds!r} was given; expected a positive number, or None for all recipes.")
    return float(seconds)


def known_name(task: RecipeTask) -> str:
    """Which examples are scored."""
    return "training" if task.validation is None else "validation"


def task_of(
    model: nn.Module,
    train: Any,
    likelihood: LikelihoodName | Likelihood,
    validation: Any,
    ood: Any,
    memory: float | None,
    seed: int,
) -> RecipeTask:
    """What recipes are tried on; refuses what none of them could use."""
    family: Likelihood = resolve_name(likelihood, likelihoods.NAMES, "likelihood", Likelihood)
    unknown = unknown_sets(ood)
    Batches(train, model, "train").refuse_one_shot(EVERY)
    for name, data in unknown.items():
        if hasattr(data, "__next__"):
            raise PeewitError(
                f"{EVERY}, and ood={{{name!r}: ...}} is a one-shot iterator; expected a DataLoader, a list of batches "
                "or a tensor."
            )
    if validation is None:
        known, tuning = HeldExamples.of(train, SEEN, "train"), None
    else:
        known = tuning = HeldExamples.of(validation, SCORED, "validation")
        if len(known) >= ENOUGH and any(recipe.validated for recipe in recipes.RECIPES):
            tuning, known = known.halves(seed)
    # A plain network's noise is that of its residuals, where only the name of the likelihood was given.
    if isinstance(likelihood, str) and isinstance(family, WithNoise) and family.in_target_units:
        with contextlib.suppress(PeewitError):  # where there are none, it keeps the likelihood's own
            family = with_residual_noise(model, family, Batches(train, model, "train"))
    plain = Subject.of(model, family, {}, memory).with_form(*Batches(known.batches, model, "known").first())
    check_unknown(plain, unknown)
    return RecipeTask(
        model=model,
        train=train,
        likelihood=likelihood,
        validation=validation,
        plain=plain,
        known=known,
        tuning=tuning,
        unknown=unknown,
        memory=memory,
        seed=seed,
    )


def check_unknown(plain: Subject, unknown: Mapping[str, Any]) -> None:
    """Refuse unknown inputs that the network does not take, before any recipe is scored on them."""
    for name, data in unknown.items():
        inputs, _ = inputs_of(data, plain.model, f"ood: {name!r}").first()
        try:
            plain.network().outputs(take(inputs, slice(0, 1)))
        except Exception as error:  # the network's own
            raise PeewitError(f"ood={{{name!r}: ...}} does not fit the network. {words_of(error)}") from error


def finish(task: RecipeTask, attempts: list[Attempt], choice: Choice) -> Recommendation:
    """The winner, tuned on all validation data if it was tuned on some of it, and checked on its training data."""
    chosen, texts = choice.posterior, list[str]()
    la, reasons = chosen.la, list(choice.reasons)
    assert la is not None and chosen.fitted is not None
    if chosen.recipe.validated and (task.split or not task.known.whole):
        try:
            with collect_warnings(texts):
                la = tune(task, chosen.recipe, chosen.fitted, task.validation)
            reasons.append("The posterior returned was then tuned again on all validation data.")
        except Exception as error:
            reasons.append(f"Tuning it again on all validation data failed: {words_of(error)}")
    warned = tuple(dict.fromkeys((*chosen.row.warnings, *texts)))
    if warned:
        reasons.append(f"It gave {len(warned)} warning{'s' * (len(warned) > 1)}: {' '.join(warned)}")
    rows = [replace(each.row, warnings=warned) if each is chosen else each.row for each in attempts]
    return Recommendation(
        posterior=la,
        recipe=chosen.row.name,
        best=choice.best.row.name,
        table=tuple[TriedRecipe, ...](rows),
        reasons=(*problems_of(task, la), *reasons),
        code=chosen.recipe.code(write_value(task.likelihood)),
        known=known_name(task),
    )


def problems_of(task: RecipeTask, la: Laplace) -> list[str]:
    """What is wrong with the network itself, whatever is made of it."""
    texts: list[str] = []
    try:
        with collect_warnings(texts):
            findings = la.diagnose(task.train, memory=task.memory)
    except Exception:  # the recommendation stands without it
        return []
    network = [finding for finding in findings if finding.severity == "problem" and finding.topic == "fit"]
    return [f"{finding.sentence} {finding.advice}" for finding in network]
