"""`evaluate`: one call from a posterior or a network, and data, to a report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import likelihoods
from ..batches import Batches, Inputs, call, device_of, evaluation, restore_buffers, unwrapped
from ..complaints import is_count, nearest
from ..likelihoods import Form, Likelihood
from ..memory import budget
from ..modes import plainly
from ..progress import Progress
from . import describing, gathering
from .attacks import Attack
from .bootstrap import Resampling
from .methods import DROPOUT_SAMPLES, STEEPEST, Method, Networks, Posterior, dropouts, fit_temperature, members
from .results import Report
from .scoring import scores_of
from .specimens import Gallery, finite_range
from .variations import Asked, asked

if TYPE_CHECKING:
    from ..laplace import Laplace

BASELINES = ("plain", "temperature", "ensemble", "dropout")
PLAIN = "Plain network"


@plainly
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
    seed: int = 0,
    progress: bool = False,
    predict: Mapping[str, Any] | None = None,
    shift_examples: int | None = None,
    title: str | None = None,
) -> Report:
    """How good predictions are, and how well they know when they are not: a report on one pass over the test data.

    `likelihood`: what a plain network was trained for; a posterior has its own. `ood`: inputs of unknown kinds by name,
    with or without labels. `shifts`: names of corruptions ("noise", "blur", "contrast", "rotation"), or by name their
    strengths, a function of (x, strength), or ready data by strength. `attacks`: "fgsm" and "pgd", or by name their
    epsilons or a function of (model, x, y, epsilon). `baselines`: "auto" for all that are possible, or some of "plain",
    "temperature" (needs `validation` data), "ensemble" (needs networks as `ensemble`) and "dropout". `classes`: their
    names. `intervals`: how often the examples are drawn anew for intervals; 0 for none. `predict`: options of
    `la.predict`. `shift_examples`: how many test examples, evenly spread, are corrupted and attacked; None for all.
    """
    settings = Settings.checked(intervals, seed, predict, shift_examples)
    wanted = [*asked(shifts, "shifts"), *asked(attacks, "attacks")]
    subject = Subject.of(la_or_model, likelihood, settings.predict)
    unknown = unknown_sets(ood)
    batches = Batches(test, subject.device)
    shown = Progress(progress)
    with torch.random.fork_rng(devices=[]), closing(shown):  # a shuffled loader draws from the global generator
        first, targets = first_batch(batches)
        for one in wanted:
            one.check(first)
        subject = subject.formed(first, targets)
        names = class_names(classes, subject)
        notes: list[str] = []
        methods = subject.methods(baselines, validation, ensemble, settings.seed, notes)
        limits = finite_range(first)
        attack = Attack(subject.model, subject.likelihood, subject.known_form, limits)
        makers = {(one.kind, one.name): one.made(attack, settings.seed) for one in wanted if one.ready is None}
        gallery = Gallery(limits)
        share = gathering.share_of(batches, settings.shift_examples)
        found = gathering.labelled(batches, methods, makers, shown, "test", gallery, share)
        for one in wanted:
            if one.ready is not None:
                gathering.ready(one, subject.device, methods, found, f"{one.kind}: {one.name!r}")
        scores = {
            name: gathering.unlabelled(data, subject.device, methods, shown, f"ood: {name!r}")
            for name, data in unknown.items()
        }
        drawn = Resampling(sum(part.examples for part in found[0].parts), settings.intervals, settings.seed)
        others = {
            name: Resampling(len(next(iter(each[0].values()))), drawn.draws, drawn.seed + 1)
            for name, each in scores.items()
        }
        made = tuple(
            scores_of(method, own, {name: each[place] for name, each in scores.items()}, drawn, others)
            for place, (method, own) in enumerate(zip(methods, found, strict=True))
        )
    surest, least = gallery.chosen()
    task = "classification" if made[0].reliability is not None else "regression"
    notes += remarks(subject, made[0].metrics, wanted, limits.low, limits.high)
    la = subject.la
    return Report(
        title=title or f"{type(subject.model).__name__}: how sure can we be?",
        task=task,
        methods=made,
        surest=surest,
        least_sure=least,
        classes=names,
        coverage=() if la is None else describing.coverage_of(la),
        posterior={} if la is None else describing.posterior_of(la),
        settings={
            **(subject.described() if la is None else describing.settings_of(la)),
            "device": describing.device_name(subject.device),
            "test examples": drawn.examples,
            "labelled positions": sum(len(part.owner) for part in found[0].parts),
            "bootstrap draws": settings.intervals,
            "seed": settings.seed,
            "predict": {key: str(value) for key, value in settings.predict.items()},
            "shifts": [one.name for one in wanted if one.kind == "shifts"],
            "attacks": [one.name for one in wanted if one.kind == "attacks"],
            "unknown data": list(unknown),
        },
        versions=describing.versions(),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class Settings:
    """Plain options, checked."""

    intervals: int
    seed: int
    predict: Mapping[str, Any]
    shift_examples: int | None

    @staticmethod
    def checked(intervals: Any, seed: Any, predict: Any, shift_examples: Any) -> Settings:
        """Refuse what is no count, no seed and no options."""
        if intervals != 0 and not is_count(intervals):
            raise ValueError(
                f"intervals={intervals!r} was given; expected how often examples are drawn anew, such as 1000, or 0."
            )
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 62:
            raise ValueError(f"seed={seed!r} was given; expected a whole number from 0.")
        if predict is not None and not isinstance(predict, Mapping):
            raise TypeError(f"predict is a {type(predict).__name__}; expected options of la.predict, such as a dict.")
        if shift_examples is not None and not is_count(shift_examples):
            raise ValueError(f"shift_examples={shift_examples!r} was given; expected a positive whole number, or None.")
        return Settings(int(intervals), seed, dict(predict or {}), shift_examples)


@dataclass(frozen=True, eq=False)
class Subject:
    """What is evaluated: a network, with its posterior or without."""

    la: Laplace | None
    model: nn.Module
    likelihood: Likelihood
    form: Form | None
    predict: Mapping[str, Any]
    device: torch.device

    @staticmethod
    def of(given: Any, likelihood: str | Likelihood | None, predict: Mapping[str, Any]) -> Subject:
        """A posterior, or a network and its likelihood."""
        from ..fitting import named
        from ..laplace import Laplace

        if isinstance(given, Laplace):
            if likelihood is not None:
                raise ValueError(
                    f"likelihood={likelihood!r} was given with a posterior, which has its own; leave it out."
                )
            given._network(None)  # refuses a network that has changed
            return Subject(given, given.model, given.likelihood, given.totals.form, predict, given.mode.device)
        if not isinstance(given, nn.Module):
            raise TypeError(
                f"evaluate was given a {type(given).__name__}; expected a Laplace, which lapwing.fit returns, or a "
                "torch.nn.Module."
            )
        if likelihood is None:
            raise ValueError(
                "evaluate was given a network without its likelihood; expected likelihood='classification', 'binary', "
                "'regression', ..."
            )
        if predict:
            raise ValueError("predict= has options of a posterior's predictions, and a plain network was given.")
        family: Likelihood = named(likelihood, likelihoods.NAMES, "likelihood", "energy")
        model = unwrapped(given)
        return Subject(None, model, family, None, predict, device_of(model))

    @property
    def known_form(self) -> Form:
        """Where the outputs are."""
        assert self.form is not None  # `formed` was called
        return self.form

    def formed(self, first: Inputs, targets: Tensor) -> Subject:
        """With the form of the outputs, which a plain network shows in its first batch."""
        if self.form is not None:
            return self
        with evaluation(self.model, []), torch.no_grad():
            f = call(self.model, first)
            restore_buffers(self.model)
        form = self.likelihood.form(f, targets.to(f.device))
        return replace(self, form=form, likelihood=self.likelihood.bound(form))

    def plain(self) -> Networks:
        """The network as it is."""
        words = "the trained network as it is, with one setting of its weights."
        limit = budget(None, self.device)
        return Networks(PLAIN, words, (self.model,), self.likelihood, self.known_form, limit)

    def methods(
        self,
        baselines: str | Iterable[str],
        validation: Any,
        ensemble: Sequence[nn.Module] | None,
        seed: int,
        notes: list[str],
    ) -> list[Method]:
        """The one asked about, then baselines."""
        plain = self.plain()
        chosen = baseline_names(baselines, validation is not None, ensemble is not None, bool(dropouts(self.model)))
        made: list[Method] = [plain if self.la is None else Posterior(self.la, self.predict)]
        makers: dict[str, Callable[[], Method | None]] = {
            "plain": lambda: None if self.la is None else plain,
            "temperature": lambda: self._temperature(plain, validation, notes, baselines == "auto"),
            "ensemble": lambda: self._ensemble(plain, ensemble),
            "dropout": lambda: replace(
                plain,
                name="MC dropout",
                description=f"the network with dropout left on, averaged over {DROPOUT_SAMPLES} passes.",
                dropout=DROPOUT_SAMPLES,
                seed=seed,
            ),
        }
        for name in BASELINES:
            one = makers[name]() if name in chosen else None
            if one is not None:
                made.append(one)
        return made

    def _temperature(self, plain: Networks, validation: Any, notes: list[str], auto: bool) -> Method | None:
        family = self.likelihood.link_family
        if family not in ("categorical", "bernoulli", "gaussian", "heteroscedastic"):
            words = f"Temperature scaling is not known for {type(self.likelihood).__name__}"
            if not auto:
                raise ValueError(f"baselines: {words}; leave 'temperature' out.")
            notes.append(f"{words}, and is left out.")
            return None
        value = fit_temperature(plain, Batches(validation, self.device))
        if family in ("categorical", "bernoulli"):
            words = f"the plain network, its outputs divided by {value:.3g}, which was chosen on validation data."
            if not 1 / STEEPEST * 1.01 < value < STEEPEST / 1.01:
                notes.append(f"Temperature scaling ended at its limit, {value:.3g}: validation data has no best one.")
        else:
            words = f"the plain network, its noise multiplied by {value**0.5:.3g}, which was chosen on validation data."
        return replace(plain, name="Temperature scaling", description=words, temperature=value)

    def _ensemble(self, plain: Networks, ensemble: Sequence[nn.Module] | None) -> Method:
        assert ensemble is not None  # or its name would have been refused
        models = members(ensemble, self.device)
        words = f"{len(models)} networks trained apart, their predictions averaged."
        return replace(plain, name="Deep ensemble", description=words, models=models)

    def described(self) -> dict[str, Any]:
        """Settings of a plain network."""
        made: dict[str, Any] = {"network": type(self.model).__name__, "likelihood": type(self.likelihood).__name__}
        noise = getattr(self.likelihood, "noise", None)
        return made if noise is None else {**made, "noise": noise.tolist() if isinstance(noise, Tensor) else noise}


def baseline_names(asked: Any, validation: bool, ensemble: bool, dropout: bool) -> set[str]:
    """Which baselines to compare with; refuses those that something is missing for."""
    possible = {"plain": True, "temperature": validation, "ensemble": ensemble, "dropout": dropout}
    if asked == "auto":
        return {name for name, there in possible.items() if there}
    names = [asked] if isinstance(asked, str) else asked
    if not isinstance(names, Iterable):
        raise TypeError(f"baselines is a {type(asked).__name__}; expected 'auto', or some of {', '.join(BASELINES)}.")
    missing = {
        "temperature": "needs validation=data that was not trained on",
        "ensemble": "needs ensemble=[networks trained apart]",
        "dropout": "needs a network with dropout layers, and this one has none",
    }
    made = set()
    for name in names:
        if name not in BASELINES:
            near = nearest(name, BASELINES) if isinstance(name, str) else ""
            raise ValueError(f"baselines: {name!r} is not known; {near}Known: auto, {', '.join(BASELINES)}.")
        if not possible[name]:
            raise ValueError(f"baselines: {name!r} {missing[name]}.")
        made.add(name)
    return made


def unknown_sets(ood: Any) -> dict[str, Any]:
    """Data of unknown kinds by name."""
    if ood is None:
        return {}
    if not isinstance(ood, Mapping):
        return {"ood": ood}
    for name in ood:
        if not isinstance(name, str) or name == "test":
            raise ValueError(f"ood: the name {name!r} was given; expected text other than 'test'.")
    return dict(ood)


def class_names(classes: Sequence[str] | None, subject: Subject) -> tuple[str, ...] | None:
    """One name per class."""
    if classes is None:
        return None
    family = subject.likelihood.link_family
    if family not in ("categorical", "bernoulli"):
        raise ValueError(f"classes= was given, and {type(subject.likelihood).__name__} has no classes; leave it out.")
    expected = 2 if family == "bernoulli" else subject.known_form.outputs
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise TypeError(f"classes={classes!r} was given; expected one name per class, such as ['cat', 'dog'].")
    if len(classes) != expected:
        raise ValueError(f"classes has {len(classes)} names, and there are {expected} classes; expected one each.")
    return tuple(classes)


def first_batch(batches: Batches) -> tuple[Inputs, Tensor]:
    """Inputs and targets, which are not lost to the pass that follows."""
    source = batches
    if batches.one_shot:
        head = list(itertools.islice(batches.data, 1))
        batches.data = itertools.chain(head, batches.data)
        source = Batches(head, batches.device)
    for inputs, targets in source:
        return inputs, targets
    raise ValueError("test: the data has no examples; expected some (or the iterator was already used up).")


def remarks(
    subject: Subject, metrics: Mapping[str, Any], wanted: Sequence[Asked], low: float, high: float
) -> list[str]:
    """What a reader should know about the numbers."""
    made = []
    if "pit" not in metrics and "crps" not in metrics and "brier" not in metrics:
        made.append(
            f"For {type(subject.likelihood).__name__} the negative log-likelihood is measured, and no calibration."
        )
    if wanted and (low, high) != (0.0, 1.0):
        made.append(
            f"Strengths of noise and of attacks are shares of the range of the inputs, {low:.3g} to {high:.3g} in the "
            "first batch."
        )
    if any(one.kind == "attacks" for one in wanted):
        made.append("Attacks are made on the plain network's loss; all methods are asked about the same inputs.")
    return made
