"""Where the examples are in each use: a place is right if equal examples of a doubled batch have equal rows there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..messages.errors import PeewitError
from ..network.nests import Inputs, count
from .doubling import double, reach, repeats
from .knowledge import DEPENDENT, Signature
from .layers.contract import Lift, Use
from .layers.examples import BatchAxis, batch_axes
from .recording import Shown
from .routing import gradients_of
from .tape import Tape


class FittingPlace(NamedTuple):
    """A place where equal examples have equal rows."""

    axis: BatchAxis
    differ: bool  # whether other examples have other rows
    hits: list[bool]  # (B,): whose rows the gradient of the example in the middle reaches


@dataclass
class Locating:
    """One batch of a network, in whose uses the examples are looked for."""

    tape: Tape
    watch: Callable[[Inputs], Shown]  # what a forward pass of a doubled batch shows

    def locate(self, shown: Shown) -> None:
        """Find where the examples are in each use that is new: where equal examples have equal rows.

        Then make sure, by pulling one example's gradient back, that no other example depends on its rows. Nothing is
        `shown` where the batch is not a doubled one.
        """
        tape = self.tape
        self._distrust()
        uses: list[Use | Lift] = [*tape.uses, *tape.lifts]
        unknown = [use for use in uses if not tape.learner.knowledge.fits(use, tape.signature, tape.examples)]
        if not unknown:
            return
        inputs = tape.inputs if shown else double(tape.inputs)
        shown = shown or self.watch(inputs)
        unknown = self._try_latest(unknown, shown, count(inputs))
        if not unknown:
            return
        fitting = self._fitting(unknown, shown, count(inputs))
        middle = tape.examples // 2
        places = {use.key: self._choose(use.names, fits, middle) for use, fits in zip(unknown, fitting, strict=True)}
        self.tape.learner.locate(places, tape.signature)

    def _fitting(self, unknown: Sequence[Use | Lift], shown: Shown, number: int) -> list[list[FittingPlace]]:
        """Of each use the places that fit, by a doubled batch of some number of examples."""
        tape = self.tape
        middle = torch.arange(tape.examples, device=tape.output.device) == tape.examples // 2
        gradients = gradients_of(tape, [use.edge for use in unknown], middle)
        candidates: list[list[BatchAxis]] = []
        questions: list[tuple[BatchAxis, Tensor]] = []
        reaches: list[Tensor] = []
        for use, gradient in zip(unknown, gradients, strict=True):
            tensors = shown.get(use.key, ())
            places = batch_axes(use.shape, use.axes, tape.examples) if tensors else ()
            candidates.append([axis for axis in places if all(axis.fits(tensor.shape, number) for tensor in tensors)])
            for axis in candidates[-1]:
                questions += [(axis, tensor) for tensor in tensors]
                reaches.append(reach(axis, gradient, use.shape, tape.examples, like=tape.output))
        # One answer for all: asking each question on its own would wait for the device.
        answers = iter(repeats(questions, number))
        reached = iter(torch.stack(reaches).tolist() if reaches else [])
        fitting: list[list[FittingPlace]] = []
        for use, places in zip(unknown, candidates, strict=True):
            fitting.append([])
            for axis in places:
                equal, differ = map(all, zip(*(next(answers) for _ in shown[use.key]), strict=True))
                sizes = next(reached)
                hits = [size != 0 for size in sizes] if all(map(math.isfinite, sizes)) else [False] * len(sizes)
                if equal:
                    fitting[-1].append(FittingPlace(axis, differ, hits))
        return fitting

    def _choose(self, names: tuple[str, ...], fitting: list[FittingPlace], middle: int) -> BatchAxis | None:
        """The place that follows the examples and that only its own example's gradient reaches."""
        separate = [axis for axis, _, hits in fitting if not any(hits[:middle]) and not any(hits[middle + 1 :])]
        if not separate and any(differ and sum(hits) > 1 for _, differ, hits in fitting):
            raise PeewitError(f"{names[0]!r}: {DEPENDENT}")
        if len(separate) > 1:  # nothing tells the places apart, such as inputs that are all equal: be slow and right
            self.tape.learner.make_generic(names)
        return separate[0] if separate else None

    def _try_latest(self, unknown: Sequence[Use | Lift], shown: Shown, number: int) -> list[Use | Lift]:
        """Those of which it is still unknown, once places that hold for inputs of other shapes were tried."""
        tape = self.tape
        tried: list[tuple[str, BatchAxis]] = []
        questions: list[tuple[BatchAxis, Tensor]] = []
        places: dict[str, BatchAxis | None] = {}
        for use in unknown:
            axis, tensors = self.tape.learner.knowledge.latest.get(use.key), shown.get(use.key, ())
            if axis is None or not tensors or not axis.fits(use.shape, tape.examples):
                continue
            if axis.fold == "owned":
                places[use.key] = axis
            elif all(axis.fits(each.shape, number) for each in tensors):
                tried.append((use.key, axis))
                questions += [(axis, each) for each in tensors]
        answers = iter(repeats(questions, number))
        for key, axis in tried:
            equalities = [next(answers) for _ in shown[key]]
            if all(equal and differ for equal, differ in equalities):
                places[key] = axis
        self.tape.learner.locate(places, tape.signature)
        return [use for use in unknown if use.key not in places]

    def _distrust(self) -> None:
        """Find weights that are applied to a selection of positions that depends on the data.

        Routing shows in a number of rows that changes although the inputs' shapes do not: then no axis holds the
        examples, even where the number happens to fit.
        """
        known, shapes = self.tape.learner.knowledge, self.tape.signature
        rows: dict[tuple[str, Signature], float] = {}
        for use in self.tape.uses:
            axis = known.axes.get((use.key, shapes))
            if axis is None or axis.fold in ("whole", "owned"):
                continue
            share = use.shape[axis.axis] / self.tape.examples
            if known.rows.get((use.key, shapes), share) != share:
                self.tape.learner.expect_owned(use, shapes)
            elif (use.key, shapes) not in known.rows:
                rows[use.key, shapes] = share
        if rows:
            self.tape.learner.learn(rows={**known.rows, **rows})
