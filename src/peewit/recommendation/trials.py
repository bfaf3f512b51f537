"""Trying recipes, one after the other: each is fitted, tuned and scored by what `evaluate` is made of."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from ..evaluation import gathering
from ..evaluation.corruptions import InputRange
from ..evaluation.gathering import MethodNumbers
from ..evaluation.methods import Method, Posterior
from ..evaluation.scorers import Scorer, takes_temperature
from ..evaluation.scoring import score_methods
from ..evaluation.specimens import Gallery
from ..evaluation.subject import Subject
from ..fitting import fit
from ..laplace import Laplace
from ..likelihoods import Likelihood, LikelihoodName
from ..messages.errors import PeewitError
from ..metrics.bootstrap import Resampling
from ..metrics.results import MethodScores
from ..network.batches import Batches
from ..network.nests import Inputs
from ..runtime.progress import QUIET
from .examples import HeldExamples
from .recipes import Recipe
from .result import TriedRecipe
from .table import Show

LONGEST = 300  # characters of an error in the table
Clock = Callable[[], float]


@dataclass(frozen=True, eq=False, kw_only=True)
class RecipeTask:
    """What recipes are tried on."""

    model: nn.Module
    train: Any
    likelihood: LikelihoodName | Likelihood
    validation: Any  # as it was given; None where there is none
    plain: Subject  # the network, with the form of its outputs
    known: HeldExamples  # that every recipe is scored on
    tuning: HeldExamples | None  # that recipes are tuned on; the known ones where they are too few for two halves
    unknown: Mapping[str, Any]  # inputs by name
    memory: float | None
    seed: int

    @property
    def split(self) -> bool:
        """Whether recipes are tuned on other examples than those that choose among them."""
        return self.tuning is not None and self.tuning is not self.known

    def takes(self, recipe: Recipe) -> bool:
        """Whether a recipe can be tried."""
        if recipe.baseline == "temperature" and not takes_temperature(self.plain.likelihood):
            return False
        return self.tuning is not None or not recipe.validated


@dataclass(frozen=True, eq=False, kw_only=True)
class Attempt:
    """What came of a recipe: its row, and what further questions need."""

    recipe: Recipe
    row: TriedRecipe
    fitted: Laplace | None = None  # before it was tuned
    la: Laplace | None = None
    method: Method | None = None
    numbers: MethodNumbers | None = None
    unknown: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # scores of unknown inputs, by set


@dataclass(frozen=True, eq=False)
class Renamed:
    """A method under the name of its recipe."""

    method: Method
    name: str

    @property
    def description(self) -> str:
        """The method's own."""
        return self.method.description

    def predict(self, inputs: Inputs) -> Scorer:
        """Predict as the method does."""
        return self.method.predict(inputs)


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """The seconds that may be spent, by a clock."""

    clock: Clock
    began: float
    seconds: float | None
    plain_pass: float = 0.0  # seconds of one pass of the plain network over the training data

    def refusal(self, recipe: Recipe) -> str:
        """Why a recipe is not begun any more; "" where there is time."""
        if self.seconds is None:
            return ""
        left, needed = self.seconds - (self.clock() - self.began), recipe.passes * self.plain_pass
        if left <= 0:
            return f"not tried: the {self.seconds:g} seconds are spent"
        return f"not tried: it takes about {needed:.2g} seconds, and {left:.2g} are left" if needed > left else ""


def try_all(task: RecipeTask, recipes: Sequence[Recipe], allowance: Allowance, show: Show) -> list[Attempt]:
    """Every recipe that there is time for; one that has a posterior in any case."""
    attempts: list[Attempt] = []
    fits: dict[str, Laplace] = {}
    for recipe in recipes:
        show([attempt.row for attempt in attempts], recipe.name)
        fitted = any(attempt.la is not None for attempt in attempts)
        first = not attempts
        refusal = allowance.refusal(recipe)
        if refusal and not first and (fitted or recipe.baseline is not None):
            attempts.append(Attempt(recipe=recipe, row=TriedRecipe(name=recipe.name, problem=refusal)))
        else:
            attempts.append(attempt_recipe(task, recipe, fits, allowance.clock))
    show([attempt.row for attempt in attempts], "")
    return attempts


def attempt_recipe(task: RecipeTask, recipe: Recipe, fits: dict[str, Laplace], clock: Clock) -> Attempt:
    """Fit, tune and score one recipe; an error becomes its problem, and warnings are kept with it."""
    began, texts = clock(), list[str]()
    row = TriedRecipe(name=recipe.name, tuned_on_validation=recipe.validated)
    attempt = Attempt(recipe=recipe, row=row)
    try:
        with collect_warnings(texts):
            attempt = make(task, attempt, fits, texts)
            attempt = score_if_possible(task, attempt)
    except Exception as error:  # of the network's own too, or no memory: nothing of it is used
        attempt = Attempt(recipe=recipe, row=replace(row, problem=words_of(error)))
    kept = tuple(dict.fromkeys(texts))
    return replace(attempt, row=replace(attempt.row, seconds=clock() - began, warnings=kept))


@contextlib.contextmanager
def collect_warnings(texts: list[str]) -> Iterator[None]:
    """Warnings go into a list, and nowhere else; also where something is raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            texts += [" ".join(str(each.message).split()) for each in caught]


def words_of(error: Exception) -> str:
    """An error as one line."""
    text = " ".join(str(error).split())[:LONGEST]
    if isinstance(error, PeewitError) and text:
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def make(task: RecipeTask, attempt: Attempt, fits: dict[str, Laplace], notes: list[str]) -> Attempt:
    """With the way to predict, and the posterior where the recipe has one."""
    recipe = attempt.recipe
    tuning = None if task.tuning is None else task.tuning.batches
    if recipe.baseline is not None:
        chosen = () if recipe.baseline == "plain" else (recipe.baseline,)
        baseline = task.plain.methods(chosen, tuning, None, task.seed, notes, QUIET)[-1]
        return replace(attempt, method=Renamed(baseline, recipe.name))
    key = repr(sorted(recipe.fit.items(), key=lambda option: option[0]))
    if key not in fits:
        fits[key] = fit(task.model, task.train, task.likelihood, memory=task.memory, **recipe.fit)
    la = tune(task, recipe, fits[key], tuning)
    options = dict(recipe.predict) if task.memory is None else {"memory": task.memory, **recipe.predict}
    return replace(
        attempt,
        fitted=fits[key],
        la=la,
        method=Posterior(la, options, recipe.name),
        row=replace(attempt.row, log_evidence=log_evidence(la)),
    )


def tune(task: RecipeTask, recipe: Recipe, la: Laplace, validation: Any) -> Laplace:
    """Tune as the recipe says."""
    if recipe.tune is None:
        return la
    data = recipe.data_of_tuning(task.train, validation)
    return la.tune(**recipe.tune, **data, memory=task.memory if data else None)


def log_evidence(la: Laplace) -> float | None:
    """In nats; None where there is none, as for an indefinite Hessian."""
    try:
        return float(la.log_evidence().detach())
    except PeewitError:
        return None


def score_if_possible(task: RecipeTask, attempt: Attempt) -> Attempt:
    """With its scores; with the reason in place of them where the likelihood or the labels allow none."""
    try:
        return score(task, attempt)
    except PeewitError as error:
        return replace(attempt, row=replace(attempt.row, problem=f"not scored: {words_of(error)}"))


def score(task: RecipeTask, attempt: Attempt) -> Attempt:
    """With the numbers of the known examples, and the scores of unknown inputs."""
    assert attempt.method is not None
    methods = [attempt.method]
    batches = Batches(task.known.batches, task.plain.model, "known")
    gallery = Gallery(limits=InputRange(0.0, 1.0))
    (numbers,) = gathering.gather(batches, methods, {}, QUIET, gallery, 1.0)
    numbers.batches = [replace(batch, probs=None, labels=None) for batch in numbers.batches]
    unknown = {
        name: gathering.gather_scores(data, task.plain.model, methods, QUIET, gallery, name)[0]
        for name, data in task.unknown.items()
    }
    attempt = replace(attempt, numbers=numbers, unknown=unknown)
    (scores,) = score_together(task, [attempt], 0)
    return replace(attempt, row=replace(attempt.row, scores=scores))


def score_together(task: RecipeTask, attempts: Sequence[Attempt], draws: int) -> Sequence[MethodScores]:
    """The scores of several, from the same drawn sets; differences are to the first."""
    methods = [attempt.method for attempt in attempts if attempt.method is not None]
    numbers = [attempt.numbers for attempt in attempts if attempt.numbers is not None]
    unknown = {name: [attempt.unknown[name] for attempt in attempts] for name in task.unknown}
    return score_methods(methods, numbers, unknown, Resampling(numbers[0].examples, draws, task.seed))


def with_intervals(task: RecipeTask, attempts: Sequence[Attempt], draws: int) -> list[Attempt]:
    """Those with scores get intervals, and differences to the one with the lowest NLL."""
    scored = [attempt for attempt in attempts if attempt.numbers is not None and attempt.row.nll is not None]
    scored.sort(key=nll)
    if not scored:
        return list(attempts)
    scores = {each.name: each for each in score_together(task, scored, draws)}
    return [
        replace(attempt, row=replace(attempt.row, scores=scores[attempt.row.name])) if attempt in scored else attempt
        for attempt in attempts
    ]


def nll(attempt: Attempt) -> float:
    """Of the known examples; infinite where it is not a number, or unknown."""
    estimate = attempt.row.nll
    return float("inf") if estimate is None or estimate.value != estimate.value else estimate.value


def time_plain_pass(task: RecipeTask, clock: Clock, batches_timed: int) -> float:
    """Seconds of a pass of the plain network over the training data, from its first batches."""
    batches = Batches(task.train, task.plain.model, "train")
    plain, began, timed = task.plain.network(), clock(), 0
    for inputs, _ in batches:
        plain.outputs(inputs)
        timed += 1
        if timed == batches_timed:
            break
    return (clock() - began) / timed * max(len(batches), timed)
