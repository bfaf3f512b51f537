"""Scores of many settings on the same data: Jacobians depend on no prior, noise or temperature, and are shared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..network.batches import Batches
from ..network.nests import Inputs, count, map_tensors
from ..posterior import network
from ..posterior.network import TooManyOutputs, network_of
from ..predictions import covariance, options, predict
from ..predictions.families import made_of
from ..runtime.random import DEFAULT_SEED
from .validation import validation_nll

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

Setting = Callable[[], "PosteriorState"]  # made when it is asked, since each holds numbers for all weights
SHARE = 0.5  # of the budget for Jacobians that are kept from one call to the next
KEPT = 1 << 30  # bytes of it at least, where `memory=` does not say: keeping saves passes, whatever caches hold


@dataclass(frozen=True, eq=False)
class Slice:
    """Some examples: their outputs and Jacobians, and what was observed."""

    network: network.Network
    mean: Tensor
    found: covariance.Jacobians
    targets: Tensor
    inputs: Inputs

    def loss(self, la: PosteriorState, question: options.Question) -> float:
        """The negative log probability of the observations, summed."""
        with torch.no_grad():
            made = covariance.given(self.network, la.precision, self.mean, self.found, self.inputs)
            belief = predict.normal(self.network, made, question, DEFAULT_SEED)
            return -float(made_of(belief, la.likelihood, question.link).log_prob(self.targets).double().sum())


@dataclass(eq=False)
class Scores:
    """Mean NLLs of settings of one posterior on validation data: one pass for all, and no more where Jacobians fit."""

    la: PosteriorState
    batches: Batches
    predict: Mapping[str, Any]
    kept: list[Slice] | None = field(default=None, init=False)  # of all examples, once they were seen and fit
    simple: bool = field(default=True, init=False)  # whether predictions are made from Jacobians at all

    def of(self, settings: Sequence[Setting]) -> list[float]:
        """One NLL per setting."""
        asked = self.predict
        if not self.simple or not set(asked) <= {"link", "samples", "memory"}:
            return [validation_nll(setting(), self.batches, **asked) for setting in settings]
        link, samples = asked.get("link"), asked.get("samples")
        question = options.Question.of(self.la.likelihood, "linearised", link, samples, False, False)
        if len(settings) == 1:
            only = settings[0]()
            settings = [lambda: only]
        totals = [0.0] * len(settings)

        def visit(each: Slice) -> None:
            for place, setting in enumerate(settings):
                totals[place] += each.loss(setting(), question)

        try:
            examples = self._visit(visit, asked.get("memory"))
        except TooManyOutputs:  # their covariances are made of samples
            self.simple = False
            return self.of(settings)
        return [total / examples for total in totals]

    def _visit(self, visit: Callable[[Slice], None], memory: float | None) -> int:
        """Every slice of the data, from memory where all of them are there; says how many examples there were."""
        if self.kept is not None:
            network_of(self.la, memory)  # refuses a network that has changed
            for each in self.kept:
                visit(each)
            return sum(count(each.inputs) for each in self.kept)
        network = network_of(self.la, memory)
        room = SHARE * (network.budget.bytes if memory is not None else max(network.budget.bytes, KEPT))
        half = max(1, int((1 - SHARE) * network.budget.bytes))
        network = replace(network, budget=replace(network.budget, bytes=half))
        kept: list[Slice] | None = []
        examples = 0

        def take(targets: Tensor, inputs: Inputs, chosen: slice, mean: Tensor, found: covariance.Jacobians) -> None:
            nonlocal kept, room
            each = Slice(network, mean, found, targets[chosen], inputs)
            visit(each)
            room -= (4 + 2 * mean[0].numel()) * network.plan.cost(inputs) * count(inputs)
            kept = None if kept is None or room < 0 else [*kept, each]

        with torch.random.fork_rng(devices=[]):  # a shuffled loader draws from the global generator
            for inputs, targets in self.batches:
                if not self.batches.stored:  # a reader may write the next batch over this one, whose slices are kept
                    inputs, targets = map_tensors(torch.clone, inputs), targets.clone()
                covariance.each_jacobian(network, inputs, functools.partial(take, targets))
                examples += count(inputs)
        self.kept = kept
        return examples
