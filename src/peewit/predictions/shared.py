"""Predictions under many priors, noises and temperatures: Jacobians depend on none of them, and are shared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ..network.batches import Batches
from ..network.nests import Inputs, count, map_tensors
from ..posterior.network import Network, TooManyOutputs, network_of
from ..runtime.progress import QUIET, Progress
from ..runtime.random import DEFAULT_SEED
from . import covariance
from .families import make_prediction
from .options import PredictOptions
from .predict import normal, predict
from .prediction import Prediction

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

Setting = Callable[[], "PosteriorState"]  # made when it is asked, since each holds numbers for all weights
Value = TypeVar("Value")
SHARE = 0.5  # of the budget for Jacobians that are kept from one call to the next
KEPT = 1 << 30  # bytes of it at least, where `memory=` does not say: keeping saves passes, whatever caches hold


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearisedPiece:
    """Some examples with their outputs and Jacobians."""

    network: Network
    inputs: Inputs
    targets: Tensor
    mean: Tensor
    jacobians: covariance.Jacobians

    def predict(self, la: PosteriorState, options: PredictOptions) -> Prediction:
        """The prediction of a posterior at these inputs."""
        belief = covariance.functional_of_jacobians(self.network, la.precision, self.mean, self.jacobians, self.inputs)
        return make_prediction(normal(self.network, belief, options, DEFAULT_SEED), la.likelihood, options.link)


@dataclass(eq=False, kw_only=True)
class SharedPredictions:
    """Predictions of settings of one posterior on the same data: one pass for all, and no more where Jacobians fit."""

    la: PosteriorState
    batches: Batches
    options: Mapping[str, Any]  # of `predict`
    progress: Progress = QUIET
    kept: list[LinearisedPiece] | None = field(default=None, init=False)  # of all examples, once seen, if they fit
    simple: bool = field(init=False)  # whether predictions are made from Jacobians at all

    def __post_init__(self) -> None:
        self.simple = set(self.options) <= {"link", "samples", "memory"}

    def read(self, settings: Sequence[Setting], value: Callable[[Prediction, Tensor], Value]) -> list[list[Value]]:
        """For every setting, a value of each prediction and the targets beside it, piece by piece."""
        if self.simple:
            try:
                return self._read_shared(settings, value)
            except TooManyOutputs:  # their covariances are made of samples
                self.simple = False
        return [read_predictions(setting(), self.batches, self.options, value, self.progress) for setting in settings]

    def _read_shared(
        self, settings: Sequence[Setting], value: Callable[[Prediction, Tensor], Value]
    ) -> list[list[Value]]:
        link, samples = self.options.get("link"), self.options.get("samples")
        options = PredictOptions.of(self.la.likelihood, "linearised", link, samples)
        if len(settings) == 1:
            only = settings[0]()
            settings = [lambda: only]
        values: list[list[Value]] = [[] for _ in settings]

        def visit(piece: LinearisedPiece) -> None:
            with torch.no_grad():
                for setting_values, setting in zip(values, settings, strict=True):
                    setting_values.append(value(piece.predict(setting(), options), piece.targets))

        with closing(self.progress):
            self._visit(visit, self.options.get("memory"))
        return values

    def _visit(self, visit: Callable[[LinearisedPiece], None], memory: float | None) -> None:
        """Every piece of the data, from memory where all of them are there."""
        network = network_of(self.la, memory)  # refuses a network that has changed
        if self.kept is not None:
            for piece in self.progress.track(self.kept, len(self.kept), "validation"):
                visit(piece)
            return
        room = SHARE * (network.budget.bytes if memory is not None else max(network.budget.bytes, KEPT))
        half = max(1, int((1 - SHARE) * network.budget.bytes))
        network = replace(network, budget=replace(network.budget, bytes=half))
        pieces: list[LinearisedPiece] | None = []

        def take(targets: Tensor, inputs: Inputs, chosen: slice, mean: Tensor, jacobians: covariance.Jacobians) -> None:
            nonlocal pieces, room
            piece = LinearisedPiece(
                network=network, inputs=inputs, targets=targets[chosen], mean=mean, jacobians=jacobians
            )
            visit(piece)
            room -= (4 + 2 * mean[0].numel()) * network.knowledge.cost(inputs) * count(inputs)
            pieces = None if pieces is None or room < 0 else [*pieces, piece]

        with torch.random.fork_rng(devices=[]):  # a shuffled loader draws from the global generator
            for inputs, targets in self.progress.track(self.batches, len(self.batches), "validation"):
                if not self.batches.stored:  # a reader may write the next batch over this one, whose pieces are kept
                    inputs, targets = map_tensors(torch.clone, inputs), targets.clone()
                covariance.each_jacobian(network, inputs, functools.partial(take, targets))
        self.kept = pieces


def read_predictions(
    la: PosteriorState,
    batches: Batches,
    options: Mapping[str, Any],
    value: Callable[[Prediction, Tensor], Value],
    progress: Progress = QUIET,
) -> list[Value]:
    """A value of the prediction for each batch and the targets beside it."""
    shown = progress.track(batches, len(batches), "validation")
    with torch.random.fork_rng(devices=[]), closing(progress):  # a shuffled loader draws from the global generator
        return [value(predict(la, inputs, **options), targets) for inputs, targets in shown]
