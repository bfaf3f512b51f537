"""`evaluate`: one call from a posterior or a network, and data, to a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..likelihoods import Likelihood
from ..messages.arguments import is_count
from ..messages.errors import ArgumentTypeError, PeewitError
from ..metrics.bootstrap import Resampling
from ..metrics.results import Scores
from ..network.batches import Batches
from ..network.isolation import entry_point
from ..predictions.families import family_of
from ..runtime.progress import Progress
from ..runtime.random import seed_of
from . import describing, gathering
from .attacks import Attack
from .corruptions import Range
from .gathering import Gathered
from .methods import Method
from .report import Report
from .scoring import metrics_of, scores_of
from .specimens import Gallery, finite_range
from .subject import Subject
from .variations import Asked, asked

if TYPE_CHECKING:
    from ..laplace import Laplace

RANGED = (("shifts", "noise"), ("attacks", "fgsm"), ("attacks", "pgd"))  # what is in units of the inputs' range


@entry_point
def evaluate(
    la_or_model: Laplace | nn.Module,
    test: Any,
    *,
    likelihood: str | Likelihood | None = None,
    ood: Any = None,
    shifts: Any = None,
    attacks: Any = None,
    baselines: str | Iterable[str] = "auto",
    validation: Any = None,
    ensemble: Sequence[nn.Module] | None = None,
    classes: Sequence[str] | None = None,
    intervals: int = 1000,
    generator: torch.Generator | None = None,
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
        validation: Data that the network was not trained on, for "temperature".
        ensemble: Networks that were trained apart, for "ensemble".
        classes: Names of the classes, one each.
        intervals: How often the examples are drawn anew for intervals; 0 for no intervals.
        generator: Source of the seed of these draws, of noise and of dropout. None for a fixed seed.
        progress: Whether to show a progress bar.
        predict: Options of `la.predict`, such as {"link": "mc"}.
        shift_examples: How many test examples, evenly spread, are corrupted and attacked; None for all.
        title: Title of the report. None for one that names the network.

    Returns:
        A `pw.Report`.

    Raises:
        PeewitError: A name is unknown, a baseline lacks what it needs, options exclude each other, the data has no
            examples, its targets do not fit, or the network has changed since the fit.
        ArgumentTypeError: An argument has the wrong type, or targets are class probabilities.

    Example:
        >>> report = pw.evaluate(la, (x, y), ood={"far": 10 * x}, intervals=20)
        >>> [scores.name for scores in report.methods]
        ['Laplace', 'Plain network']
    """
    settings = Settings.checked(intervals, generator, predict, shift_examples)
    wanted = [*asked(shifts, "shifts"), *asked(attacks, "attacks")]
    subject = Subject.of(la_or_model, likelihood, settings.predict)
    unknown = unknown_sets(ood)
    batches = Batches(test, subject.device, "test")
    shown, notes = Progress(progress), list[str]()
    with torch.random.fork_rng(devices=[]), closing(shown):  # a shuffled loader draws from the global generator
        first, targets = batches.first()
        for one in wanted:
            one.check(first)
        subject = subject.formed(first, targets)
        names = class_names(classes, subject)
        methods = subject.methods(baselines, validation, ensemble, settings.seed, notes)
        gallery = Gallery(finite_range(first))
        found = measured(subject, batches, methods, wanted, settings, shown, gallery)
        scores = {
            name: gathering.unlabelled(data, subject.device, methods, shown, f"ood: {name!r}")
            for name, data in unknown.items()
        }
        made = scored(methods, found, scores, settings)
    surest, least = gallery.chosen()
    la = subject.la
    return Report(
        title=title or f"{type(subject.model).__name__}: how sure can we be?",
        task="regression" if made[0].reliability is None else "classification",
        methods=made,
        surest=surest,
        least_sure=least,
        classes=names,
        coverage=() if la is None else describing.coverage_of(la),
        posterior={} if la is None else describing.posterior_of(la),
        settings=settings_of(subject, found[0], wanted, unknown, settings),
        versions=describing.versions(),
        notes=(*notes, *remarks(subject, made[0].metrics, wanted, gallery.limits, found[0], settings)),
    )


def measured(
    subject: Subject,
    batches: Batches,
    methods: Sequence[Method],
    wanted: Sequence[Asked],
    settings: Settings,
    shown: Progress,
    gallery: Gallery,
) -> list[Gathered]:
    """Of every method, the numbers of the test data, as they are and changed."""
    attack = Attack(subject.model, subject.likelihood, subject.known_form, gallery.limits)
    makers = {(one.kind, one.name): one.made(attack, settings.seed) for one in wanted if one.ready is None}
    share = gathering.share_of(batches, settings.shift_examples)
    found = gathering.labelled(batches, methods, makers, shown, gallery, share)
    for one in wanted:
        if one.ready is not None:
            gathering.ready(one, subject.device, methods, found, f"{one.kind}: {one.name!r}")
    return found


def scored(
    methods: Sequence[Method],
    found: Sequence[Gathered],
    unknown: Mapping[str, Sequence[Mapping[str, Tensor]]],
    settings: Settings,
) -> tuple[Scores, ...]:
    """Metrics of every method, with the same drawn sets for all."""
    drawn = Resampling(found[0].examples, settings.intervals, settings.seed)
    others = {
        name: Resampling(len(next(iter(each[0].values()))), drawn.draws, drawn.seed + 1)
        for name, each in unknown.items()
    }
    columns = [own.columns() for own in found]
    metrics = [metrics_of(each, drawn) for each in columns]
    return tuple(
        scores_of(
            method,
            own,
            columns[place],
            {name: each[place] for name, each in unknown.items()},
            drawn,
            others,
            metrics[place],
            metrics[0] if place else {},
        )
        for place, (method, own) in enumerate(zip(methods, found, strict=True))
    )


def settings_of(
    subject: Subject, found: Gathered, wanted: Sequence[Asked], unknown: Mapping[str, Any], settings: Settings
) -> dict[str, Any]:
    """What it takes to make the report again."""
    return {
        **(subject.described() if subject.la is None else describing.settings_of(subject.la)),
        "device": describing.device_name(subject.device),
        "test examples": found.examples,
        "labelled positions": sum(len(part.owner) for part in found.parts),
        "bootstrap draws": settings.intervals,
        "seed": settings.known_seed,
        "predict": {key: str(value) for key, value in settings.predict.items()},
        "shifts": {one.name: list(one.strengths) for one in wanted if one.kind == "shifts"},
        "attacks": {one.name: list(one.strengths) for one in wanted if one.kind == "attacks"},
        "changed examples": sum(part.examples for part in found.clean),
        "unknown data": list(unknown),
    }


@dataclass(frozen=True)
class Settings:
    """Plain options, checked."""

    intervals: int
    seed: int
    known_seed: int  # which makes the generator again
    predict: Mapping[str, Any]
    shift_examples: int | None

    @staticmethod
    def checked(intervals: Any, generator: torch.Generator | None, predict: Any, shift_examples: Any) -> Settings:
        """Refuse what is no count, no generator and no options."""
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
        seed = seed_of(generator, 62, fixed=0)
        known_seed = 0 if generator is None else generator.initial_seed()
        return Settings(int(intervals), seed, known_seed, dict(predict or {}), shift_examples)


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


def remarks(
    subject: Subject,
    metrics: Mapping[str, Any],
    wanted: Sequence[Asked],
    limits: Range,
    found: Gathered,
    settings: Settings,
) -> list[str]:
    """What a reader should know about the numbers."""
    made = []
    if "crps" not in metrics and "brier" not in metrics:
        made.append(
            f"For {type(subject.likelihood).__name__} the negative log-likelihood is measured, and no calibration."
        )
    if "brier" in metrics and "ece_classwise" not in metrics:
        made.append("Class-wise calibration is left out: there are too many classes and positions.")
    ranged = any(one.own is None and one.ready is None and (one.kind, one.name) in RANGED for one in wanted)
    if ranged and limits != Range(0.0, 1.0):
        made.append(
            f"Strengths of noise and of attacks are shares of the range of the inputs, {limits.low:.3g} to "
            f"{limits.high:.3g} in the first batch."
        )
    changed, most = sum(part.examples for part in found.clean), settings.shift_examples
    if found.clean and most is not None and changed == found.examples > most:
        made.append(
            f"The test data could not be counted beforehand: all {changed:,} examples were changed, not {most:,}."
        )
    if found.clean and changed < found.examples:
        made.append("Corruptions and attacks were made on an evenly spread part of the test examples.")
    if any(one.kind == "attacks" for one in wanted):
        made.append("Attacks are made on the plain network's loss; all methods are asked about the same inputs.")
    return made
