"""A preconditioner that knows how all layers go together: one matrix over all weights, from random probes.

Blocks side by side do not know that one layer undoes what another does: a channel scaled up, and all that reads it
scaled down, changes no output at all. Where the data decide on most of the weights the solver takes thousands of steps
for such moves, with exact blocks too. With twice as many products `J^T s` of random probes as there are weights,
`data_weight J^T S S^T J + Lambda` is so close to the precision that a solve takes some fifteen steps ("Blendenpik",
Avron, Maymounkov and Toledo, 2010). The probes cost passes, the matrix takes memory, and its factor takes time under
every new prior. So it is made once the solver has spent as much without an end in sight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..curvature.blocks import Blocks
from ..curvature.contracts import Curvature
from ..curvature.kinds import GGN, CurvatureKind, MonteCarlo
from ..curvature.pieces import LabelledPiece
from ..curvature.stream import MeasurementTask, Source
from ..curvature.structures.dense import Full
from ..messages.errors import PeewitError
from ..network.batches import Batches
from ..network.calling import call
from ..network.nests import count
from ..posterior.measure import curvature_of, sums_of
from ..posterior.network import Network
from ..tracing.knowledge import KnowledgeLearner
from .objective import Target

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

ROWS = 2  # products with J^T per weight
FEWEST = 8  # probes per example: what one example alone decides is known by its own
LARGEST = 1 << 14  # weights
COPIES = 4  # of the matrix: the sum, the precision, its factor, and one in float64 where rounding asks for it
SLOW = 150.0  # products without an end in sight before it is made: most networks take fewer without it
PROBE = 0.5  # products that a probe takes
PRODUCT = 6.0  # operations of a product with J and its transpose, in those of a forward pass
FASTER = 16.0  # times that a large matrix product does as many operations as a pass in the same time


@dataclass(frozen=True, eq=False)
class Sketch:
    """The curvature of random probes."""

    curvature: Curvature

    def blocks(self, target: Target) -> Blocks | None:
        """The precision, with its factor; None where rounding leaves it none."""
        delta = target.delta(slice(0, len(target.weights)))
        with torch.no_grad():
            blocks = self.curvature.precision(delta, torch.tensor(target.data_weight, device=delta.device))
            try:
                blocks.logdet()
            except PeewitError:
                return None
        return blocks


@dataclass(frozen=True, eq=False, kw_only=True)
class SketchPlan:
    """How it would be made."""

    task: MeasurementTask
    learner: KnowledgeLearner
    probes: int  # per example

    @staticmethod
    def of(la: PosteriorState, network: Network, data: Batches, room: int) -> SketchPlan | None:
        """None where its matrix does not fit, where one block has all weights, or no labels can be drawn."""
        weights, form = la.space.size, la.totals.form
        assert form is not None
        itemsize = torch.promote_types(la.weights.dtype, torch.float32).itemsize
        if weights > LARGEST or COPIES * weights**2 * itemsize > room or len(la.precision.blocks) < 2:
            return None
        probes, exact = max(FEWEST, -(-ROWS * weights // la.N)), GGN().count(form, la.likelihood)
        if exact > probes and not la.likelihood.draws:
            return None
        kind: CurvatureKind = GGN() if exact <= probes else MonteCarlo(probes)
        task = MeasurementTask(
            model=la.model,
            space=la.space,
            data=data,
            likelihood=la.likelihood,
            kind=kind,
            budget=network.budget,
            seed=la.measurement.seed,
            form=form,
            least=la.prior.least,
        )
        return SketchPlan(task=task, learner=network.learner, probes=min(exact, probes))

    def draw(self) -> Sketch:
        """Pass over the data."""
        source = Source(self.task, KnowledgeLearner(self.learner.knowledge))
        sums = sums_of(source, Full())
        return Sketch(curvature_of(source, Full(), sums, self.task.space))

    def cost(self, piece: LabelledPiece, examples: int) -> float:
        """Products that take as long."""
        weights = float(self.task.space.size)
        dense = (2 * ROWS + 1 / 3) * weights**3
        passing = PRODUCT * operations(self.task, piece) / count(piece.inputs) * examples
        return max(SLOW, PROBE * self.probes + dense / (FASTER * max(passing, 1.0)))


def operations(task: MeasurementTask, piece: LabelledPiece) -> int:
    """Of a forward pass over some examples, as far as they are matrix products and convolutions."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(task.model, piece.inputs)
    total: int = counter.get_total_flops()
    return total
