"""Ways that train networks of their own on the data of a case: as the evidence learns, or with weight decays to choose.

They train once for both cases of a split, "early" and "fixed", and on tables with all classes and values alone.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw
from benchmarks.quality.answers import Ask, Prepared, WayOptions, answer, of_classes, of_numbers, outputs
from benchmarks.quality.baselines import Temperature
from benchmarks.quality.cases import Case, Examples, Kind, Networks
from benchmarks.quality.ours import asking, settings_of
from benchmarks.quality.scores import figures
from benchmarks.quality.tables import RECIPES, seed_of
from benchmarks.quality.training import Recipe, Stack, train_perceptrons

TABLES: tuple[Kind, ...] = ("table",)
DECAYS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of the mean cross entropy or squared error
HYPER_STEPS = 20  # about so many in a run
TIMED = 0.1  # of the steps of plain training, to know how long all of them take
EVERYTHING, TRAIN = "train, stop and validation", "train"

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be trained; equal ones have one answer."""

    task: str
    variant: str
    split: int
    content: str  # of the training data
    parts: str  # which of them are trained on
    case: Case = field(compare=False, repr=False)

    @classmethod
    def of(cls, case: Case, parts: str = TRAIN) -> Question:
        """The data of a case."""
        content = hashlib.sha256(b"".join(each.cpu().numpy().tobytes() for each in case.parts.train)).hexdigest()
        return cls(task=case.task, variant=case.variant, split=case.split, content=content, parts=parts, case=case)

    @property
    def recipe(self) -> Recipe:
        """How the task's plain networks are trained."""
        return RECIPES.get(self.task, Recipe())

    @property
    def examples(self) -> Examples:
        """Inputs and targets to train on."""
        parts = self.case.parts
        if self.parts == TRAIN:
            return parts.train
        three = (parts.train, parts.stop, parts.validation)
        return torch.cat([x for x, _ in three]), torch.cat([y for _, y in three])

    @property
    def loss(self) -> Loss:
        """Which loss training minimises."""
        return F.cross_entropy if self.case.likelihood == "classification" else F.mse_loss

    @property
    def outputs(self) -> int:
        """How many the network has."""
        return outputs(self.case.networks.plain, self.case.parts.train[0][:1]).shape[1]

    def network(self) -> nn.Sequential:
        """As the plain network was before its training."""
        stack = Stack((self.examples[0].shape[1], *self.recipe.hidden, self.outputs), [self.seed], [0.0])
        return stack.network(0, [value.detach() for value in stack.parameters])

    @property
    def seed(self) -> int:
        """Of the plain network."""
        return seed_of(self.split, self.variant)


@dataclass(frozen=True, eq=False, kw_only=True)
class Learnt:
    """What a training run with online evidence ended in, and how long it took."""

    posterior: pw.Laplace
    seconds: float
    plain: float  # seconds that as many steps of plain training take
    hyper_steps: int
    kept: float  # when the best evidence was, as a share of the epochs

    @property
    def settings(self) -> dict[str, float]:
        """For the record."""
        return {"training": self.seconds / self.plain, "hyper-steps": float(self.hyper_steps), "kept at": self.kept}


@functools.lru_cache(maxsize=2)
def learnt(question: Question) -> Learnt:
    """Train a network as long as the plain one, while its prior precision and noise are learnt."""
    recipe, (x, y) = question.recipe, question.examples
    torch.manual_seed(question.seed)
    model = question.network()
    batches = -(-len(x) // recipe.batch)
    epochs = max(1, round(recipe.steps / batches))
    plain = plain_seconds(question.network(), question, round(TIMED * recipe.steps)) / TIMED
    began = time.perf_counter()
    run = pw.learning.train(
        model,
        (x, y),
        question.case.likelihood,
        torch.optim.Adam(model.parameters(), lr=recipe.rate),
        epochs=epochs,
        every=max(1, epochs // HYPER_STEPS),
        loss=question.loss,
        batch_size=recipe.batch,
    ).finish()
    posterior = run.posterior()
    steps = run.history.hyper_steps
    return Learnt(
        posterior=posterior,
        seconds=time.perf_counter() - began,
        plain=plain,
        hyper_steps=len(steps),
        kept=[record.epoch or 0 for record in steps if record.kept][-1] / epochs,
    )


def plain_seconds(model: nn.Module, question: Question, steps: int) -> float:
    """How long some steps of plain training take; the network is thrown away."""
    x, y = question.examples
    optimizer = torch.optim.Adam(model.parameters(), lr=question.recipe.rate)
    began, taken = time.perf_counter(), 0
    while taken < steps:
        for rows in torch.randperm(len(x)).split(question.recipe.batch)[: steps - taken]:
            optimizer.zero_grad()
            loss = question.loss(model(x[rows]), y[rows])
            torch.autograd.backward([loss])
            optimizer.step()
            taken += 1
    return time.perf_counter() - began


@dataclass(frozen=True, kw_only=True)
class Online(WayOptions):
    """Training with online evidence: its network with the noise that was learnt, or its posterior."""

    main: bool = False
    kinds: tuple[Kind, ...] = TABLES
    parts: str = TRAIN
    posterior: bool = False
    tuning: Mapping[str, Any] | None = None  # of the posterior, with the training data; None for as it is

    def fit(self, case: Case) -> Prepared | None:
        """Train, unless another case has the same data."""
        if case.variant != "whole":
            return None
        began, question = time.perf_counter(), Question.of(case, self.parts)
        run = learnt(question)
        earlier = max(0.0, run.seconds - (time.perf_counter() - began))
        la = run.posterior if self.tuning is None else run.posterior.tune(train=question.examples, **self.tuning)
        ask = asking(la, case, {}) if self.posterior else asking_network(la)
        return Prepared(ask, lambda: {**settings_of(la), **run.settings}, earlier)


def asking_network(la: pw.Laplace) -> Ask:
    """The network of a posterior, with the posterior's noise."""
    if not isinstance(la.likelihood, pw.Gaussian):
        return lambda x: of_classes(outputs(la.model, x).softmax(1))
    noise = float(la.likelihood.noise)
    return lambda x: of_numbers(outputs(la.model, x), noise)


@dataclass(frozen=True, eq=False, kw_only=True)
class Grid:
    """Networks that were trained with one weight decay each."""

    stopped: list[nn.Sequential]  # where the stopping data were fitted best
    last: list[nn.Sequential]
    seconds: float


@functools.lru_cache(maxsize=2)
def grid(question: Question) -> Grid:
    """All of them at once, from the same start."""
    began, number = time.perf_counter(), len(DECAYS)
    stopped, last = train_perceptrons(
        [question.case.parts.train] * number,
        [question.case.parts.stop] * number,
        [question.seed] * number,
        [0.0] * number,
        question.outputs,
        question.case.likelihood,
        question.recipe,
        DECAYS,
    )
    return Grid(stopped=stopped, last=last, seconds=time.perf_counter() - began)


@dataclass(frozen=True, kw_only=True)
class ChosenDecay(WayOptions):
    """The weight decay with the smallest NLL on validation data, under the temperature or noise that they choose."""

    name: str = "weight decay, temperature"
    validated: bool = True
    main: bool = False
    kinds: tuple[Kind, ...] = TABLES

    def fit(self, case: Case) -> Prepared | None:
        """Train with every decay, and choose."""
        if case.variant != "whole":
            return None
        began = time.perf_counter()
        trained = grid(Question.of(case))
        earlier = max(0.0, trained.seconds - (time.perf_counter() - began))
        networks = trained.stopped if case.training == "early" else trained.last
        scaled = [Temperature().fit(replace(case, networks=Networks((network,), None))) for network in networks]
        inputs, targets = case.parts.validation
        losses = [figures(answer(each.ask, inputs), targets)["nll"] for each in scaled]
        best = losses.index(min(losses))
        return Prepared(scaled[best].ask, lambda: {"decay": DECAYS[best], **scaled[best].settings()}, earlier)


TRAINED = (
    Online(name="online evidence"),
    Online(name="online evidence, posterior", posterior=True),
    Online(name="online evidence, recipe", posterior=True, tuning={}),
    Online(name="online evidence, recipe, all data", parts=EVERYTHING, posterior=True, tuning={}),
    ChosenDecay(),
)
