"""`evaluate`: one call from a posterior or a network, and data, to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from ..laplace import Laplace
from ..likelihoods import Likelihood, LikelihoodName
from ..messages.arguments import is_count
from ..messages.errors import ArgumentTypeError, PeewitError
from ..metrics.bootstrap import Resampling
from ..metrics.constant import constant_scores
from ..network.batches import Batches
from ..network.isolation import entry_point
from ..network.nests import Data, InputData, Inputs
from ..network.scaling import network_name
from ..predictions.families import family_of
from ..runtime.progress import Progress
from ..runtime.random import seed_of
from . import coding, describing, gathering
from .attacks import Attack
from .corruptions import InputRange
from .gathering import MethodNumbers
from .methods import Method
from .report import Report
from .scoring import score_methods
from .specimens import Columns, Gallery, finite_range, is_table
from .subject import Baselines, Subject
from .variations import Attacks, Shifts, Variation, variations_of

UnknownInputs: TypeAlias = InputData | Mapping[str, InputData]
"""Inputs of a kind that the network never saw, with or without labels; or several such data sets by name."""

DENSE = ("gaussian", "heteroscedastic")  # families whose NLL is of a density of real numbers
USUAL = {"baselines": "auto", "intervals": 1000}  # other arguments are None unless they are given
RANGED = (("shifts", "noise"), ("attacks", "fgsm"), ("attacks", "pgd"))  # what is in units of the inputs' range


@entry_point
def evaluate(
    la_or_model: Laplace | nn.Module,
    test: Data,
    *,
    likelihood: LikelihoodName | Likelihood | None = None,
    ood: UnknownInputs | None = None,
    shifts: Shifts | None = None,
    attacks: Attacks | None = None,
    baselines: Baselines = "auto",
    validation: Data | None = None,
    ensemble: Sequence[nn.Module] | None = None,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    intervals: int = 1000,
    generator: torch.Generator | None = None,
    memory: float | None = None,
    progress: bool = False,
    predict: Mapping[str, Any] | None = None,
    shift_examples: int | None = None,
    title: str | None = None,
) -> Report:
    """Measure how good predictions are, and how well they know when they are not: a report on the test data.

    It makes one pass over the test data.

    Args:
        la_or_model: A posterior, or a plain network.
        test: The test data, as in `pw.fit`.
        likelihood: What a plain network was trained for, such as "classification". None for a posterior, which has its
            own.
        ood: Inputs of unknown kinds, with or without labels, by name; or one such data set.
        shifts: Names of corruptions ("noise", "blur", "contrast", "rotation"); or by name their strengths, a function
            of (x, strength), a pair of a function and its strengths, or ready data by strength.
        attacks: "fgsm" and "pgd"; or by name their epsilons, or a function of (model, x, y, epsilon), alone or in a
            pair with its epsilons.
        baselines: "auto" for all that are possible, or some of "plain", "temperature" (needs `validation`), "ensemble"
            (needs `ensemble`) and "dropout" (needs dropout layers).
        validation: Data that the network was not trained on, for "temperature" and, in regression, for the noise of
            the plain network's predictions. Without it that noise is from the residuals on the training data.
        ensemble: Networks that were trained apart, for "ensemble".
        classes: Names of the classes, one each.
        columns: Names of the columns where inputs are rows of a table. None for those of a data frame, or those that
            the posterior was fitted with.
        intervals: How often the examples are drawn anew for intervals; 0 for no intervals.
        generator: Source of the seed of these draws, of noise and of dropout. None for a fixed seed.
        memory: Bytes for temporary results. None for the limit that the posterior has, or one that fits the device.
        progress: Whether to show a progress bar.
        predict: Options of `la.predict`, such as {"link": "mc"}.
        shift_examples: How many test examples, evenly spread, are corrupted and attacked; None for all.
        title: Title of the report. None for "Uncertainty report" and the class of the network.

    Returns:
        A `pw.Report`.

    Raises:
        PeewitError: A name is unknown, a baseline lacks what it needs, options exclude each other, the data has no
            examples, or its targets do not fit.
        MismatchError: The network has changed since the fit.
        ArgumentTypeError: An argument has the wrong type, or targets are class probabilities.

    Example:
        >>> report = pw.evaluate(la, (x, y), ood={"far": 10 * x}, intervals=20)
        >>> [scores.name for scores in report.methods]
        ['Laplace', 'Plain network']
    """
    options = EvaluationOptions.of(intervals, generator, predict, shift_examples)
    variations = [*variations_of(shifts, "shifts"), *variations_of(attacks, "attacks")]
    subject = Subject.of(la_or_model, likelihood, options.predict, memory)
    test, validation = subject.in_order(test), subject.in_order(validation)
    unknown = {name: subject.in_order(data) for name, data in unknown_sets(ood).items()}
    batches = Batches(test, subject.model, "test")
    bars, notes = Progress(progress), list[str]()
    with torch.random.fork_rng(devices=[]), closing(bars):  # a shuffled loader draws from the global generator
        first, targets = batches.first()
        for variation in variations:
            variation.check(first)
        subject = subject.with_form(first, targets)
        names = class_names(classes, subject)
        methods = subject.methods(baselines, validation, ensemble, options.seed, notes, bars)
        known = column_names(columns, test, first, subject)
        gallery = Gallery(limits=finite_range(first), columns=Columns(names=known))
        numbers = measure(subject, batches, methods, variations, options, bars, gallery)
        scores = {
            name: gathering.gather_scores(data, subject.model, methods, bars, gallery, name)
            for name, data in unknown.items()
        }
        drawn = Resampling(numbers[0].examples, options.intervals, options.seed)
        results = score_methods(methods, numbers, scores, drawn)
    surest, least = gallery.pick()
    la = subject.la
    typed = {"baselines": baselines, "classes": classes, "columns": columns, "intervals": intervals,
             "predict": predict, "shift_examples": shift_examples, "title": title}  # fmt: skip
    arguments = coding.evaluate_code(
        unknown=unknown,
        variations=variations,
        given={"validation": validation is not None, "ensemble": ensemble is not None},
        options={name: value for name, value in typed.items() if value != USUAL.get(name)},
        seed=options.known_seed,
    )
    return Report(
        title=title or default_title(subject.model),
        task="regression" if results[0].reliability is None else "classification",
        methods=results,
        surest=surest,
        least_sure=least,
        classes=names,
        coverage=() if la is None else describing.coverage_of(la),
        posterior={} if la is None else describing.posterior_of(la),
        settings=settings_of(subject, numbers[0], variations, unknown, options, validation is not None),
        versions=describing.versions(),
        notes=(*notes, *remarks(subject, results[0].metrics, variations, gallery.limits, numbers[0], options)),
        sure_wrong=gallery.pick_wrong(),
        unknown_surest=gallery.pick_unknown(),
        constant=constant_scores(numbers[0].positions(), drawn, subject.likelihood.link_family in DENSE),
        code=coding.code_of(la, subject.likelihood, arguments),
    )


def measure(
    subject: Subject,
    batches: Batches,
    methods: Sequence[Method],
    variations: Sequence[Variation],
    options: EvaluationOptions,
    bars: Progress,
    gallery: Gallery,
) -> list[MethodNumbers]:
    """The numbers of every method on the test data, as they are and changed."""
    attack = Attack(subject.model, subject.likelihood, subject.known_form, gallery.limits)
    makers = {
        (variation.kind, variation.name): variation.maker(attack, options.seed)
        for variation in variations
        if variation.ready is None
    }
    share = gathering.share_of(batches, options.shift_examples)
    numbers = gathering.gather(batches, methods, makers, bars, gallery, share)
    for variation in variations:
        if variation.ready is not None:
            gathering.gather_ready(variation, subject.model, methods, numbers, bars)
    return numbers


def settings_of(
    subject: Subject,
    numbers: MethodNumbers,
    variations: Sequence[Variation],
    unknown: Mapping[str, Any],
    options: EvaluationOptions,
    validated: bool,
) -> dict[str, Any]:
    """What it takes to make the report again."""
    return {
        **(subject.describe() if subject.la is None else describing.settings_of(subject.la)),
        "device": describing.device_name(subject.device),
        "test examples": numbers.examples,
        "validation data": validated,
        "labelled positions": sum(map(len, numbers.batches)),
        "bootstrap draws": options.intervals,
        "seed": options.known_seed,
        "predict": {key: str(value) for key, value in options.predict.items()},
        "shifts": {variation.name: list(variation.strengths) for variation in variations if variation.kind == "shifts"},
        "attacks": {
            variation.name: list(variation.strengths) for variation in variations if variation.kind == "attacks"
        },
        "changed examples": sum(batch.examples for batch in numbers.clean),
        "unknown data": list(unknown),
    }


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Plain arguments of `evaluate`, checked."""

    intervals: int
    seed: int
    known_seed: int  # of the generator, for the report
    predict: Mapping[str, Any]
    shift_examples: int | None

    @staticmethod
    def of(intervals: Any, generator: torch.Generator | None, predict: Any, shift_examples: Any) -> EvaluationOptions:
        """Refuse a count, a generator or a mapping that is not one."""
        if intervals != 0 and not is_count(intervals):
            raise PeewitError(
                f"intervals={intervals!r} was given; expected how often examples are drawn anew, such as 1000, or 0."
            )
        if predict is not None and not isinstance(predict, Mapping):
            raise ArgumentTypeError(
                f"predict is a {type(predict).__name__}; expected options of la.predict, such as a dict."
            )
        if shift_examples is not None and not is_count(shift_examples):
            raise PeewitError(
                f"shift_examples={shift_examples!r} was given; expected a positive whole number, or None."
            )
        return EvaluationOptions(
            intervals=int(intervals),
            seed=seed_of(generator, 62, fixed=0),
            known_seed=0 if generator is None else generator.initial_seed(),
            predict=dict(predict or {}),
            shift_examples=shift_examples,
        )


def unknown_sets(ood: Any) -> dict[str, Any]:
    """Data of unknown kinds by name."""
    if ood is None:
        return {}
    if not isinstance(ood, Mapping):
        return {"ood": ood}
    for name in ood:
        if not isinstance(name, str) or name == "test":
            raise PeewitError(f"ood: the name {name!r} was given; expected text other than 'test'.")
    return dict(ood)


def class_names(classes: Sequence[str] | None, subject: Subject) -> tuple[str, ...] | None:
    """One name per class."""
    if classes is None:
        return None
    number = family_of(subject.likelihood).classes
    if number is None:
        raise PeewitError(f"classes= was given, and {type(subject.likelihood).__name__} has no classes; leave it out.")
    expected = number(subject.known_form)
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise ArgumentTypeError(f"classes={classes!r} was given; expected one name per class, such as ['cat', 'dog'].")
    if len(classes) != expected:
        raise PeewitError(f"classes has {len(classes)} names, and there are {expected} classes; expected one each.")
    return tuple(classes)


def column_names(columns: Any, test: Any, first: Inputs, subject: Subject) -> tuple[str, ...] | None:
    """One name per column of a table: those given, of the data frame, or of the fit; None where there are none."""
    if not is_table(first):
        if columns is not None:
            raise PeewitError("columns= was given, and inputs are not rows of a table (N, D); leave it out.")
        return None
    expected = first.shape[1]
    if columns is None:
        schema = None if subject.la is None else subject.la.schema
        inputs = test[0] if isinstance(test, tuple) and test else None
        for names in (getattr(inputs, "columns", None), None if schema is None else schema.inputs):
            if names is not None and len(names) == expected:
                return tuple(map(str, names))
        return None
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ArgumentTypeError(f"columns={columns!r} was given; expected one name per column, such as ['age', 'sex'].")
    if len(columns) != expected:
        raise PeewitError(f"columns has {len(columns)} names, and inputs have {expected} columns; expected one each.")
    return tuple(columns)


def default_title(model: nn.Module) -> str:
    """With the class of the network, where that says something."""
    name = network_name(model)
    return "Uncertainty report" if name == "Sequential" else f"Uncertainty report: {name}"


def remarks(
    subject: Subject,
    metrics: Mapping[str, Any],
    variations: Sequence[Variation],
    limits: InputRange,
    numbers: MethodNumbers,
    options: EvaluationOptions,
) -> list[str]:
    """What a reader should know about the numbers."""
    notes = []
    if "crps" not in metrics and "brier" not in metrics:
        notes.append(
            f"For {type(subject.likelihood).__name__} the negative log-likelihood is measured, and no calibration."
        )
    if "brier" in metrics and "ece_classwise" not in metrics:
        notes.append("Class-wise calibration is left out: there are too many classes and positions.")
    ranged = any(
        variation.change is None and variation.ready is None and (variation.kind, variation.name) in RANGED
        for variation in variations
    )
    if ranged and limits != InputRange(0.0, 1.0):
        notes.append(
            f"Strengths of noise and of attacks are shares of the range of the inputs, {limits.low:.3g} to "
            f"{limits.high:.3g} in the first batch."
        )
    changed, most = sum(batch.examples for batch in numbers.clean), options.shift_examples
    if numbers.clean and most is not None and changed == numbers.examples > most:
        notes.append(
            f"The test data could not be counted beforehand: all {changed:,} examples were changed, not {most:,}."
        )
    if numbers.clean and changed < numbers.examples:
        notes.append("Corruptions and attacks were made on an evenly spread part of the test examples.")
    if any(variation.kind == "attacks" for variation in variations):
        notes.append("Attacks are made on the plain network's loss; all methods are asked about the same inputs.")
    return notes
