"""What was learnt about a network, compared once with the derivative that training used.

For two examples, each alone and inside a batch, `u^T J` for a random u by plain reverse mode, without recording and
without transforms, parameter by parameter. Weights that disagree take the next slower rule, which is compared likewise.
So neither a use that the recording misreads nor a transform of torch's that is wrong goes unnoticed.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from ..network.nests import Inputs, map_tensors
from .comparison import EQUAL, DerivativeComparison, first_other
from .knowledge import Knowledge, Signature, signature
from .plain import PROBES, bounds
from .tape import Tape

if TYPE_CHECKING:
    from .tracer import Tracer

LENGTHS = 3  # signatures with equal numbers of axes and dtypes of which each is compared


def without_lengths(shapes: Signature) -> tuple[tuple[str, str, int], ...]:
    """What inputs of other lengths have in common."""
    return tuple((where, dtype, len(shape)) for where, dtype, shape in shapes)


def verify(tracer: Tracer, inputs: Inputs, tape: Tape) -> None:
    """Compare a network's derivatives with plain ones on inputs of a new kind; raises where no rule is right.

    `tape`: of the first examples, as `double` has them.
    """
    known, shapes = tracer.learner.knowledge, signature(inputs)
    alike = [each for each in known.verified if without_lengths(each) == without_lengths(shapes)]
    if not is_awaited(known, inputs) and (shapes in alike or len(alike) >= LENGTHS):
        return
    several, single = map_tensors(torch.detach, tape.inputs), tape.examples == 1
    if single:
        several = map_tensors(lambda tensor: torch.cat([tensor] * 4), several)
    # The generic rule, and large outputs of layers, are for two examples better than for six.
    large = PROBES * tape.numbers_per_probe() * tape.output.element_size() > tracer.budget.bytes
    comparison = DerivativeComparison(
        tracer=tracer,
        batch=inputs,
        several=several,
        allowed=bounds(tape),
        tape=None if single or tape.generic or large else tape,
    )
    with warnings.catch_warnings():
        # Autograd's own thread may meet the GPU for the first time here; torch sets it up and says so.
        warnings.filterwarnings("ignore", message="Attempting to run cu")
        outcome = comparison.outcome()
    tracer.learner.learn(verified={**tracer.learner.knowledge.verified, shapes: outcome})


def is_awaited(known: Knowledge, inputs: Inputs) -> bool:
    """Whether these are the first examples of their shapes that are not all equal: only they show dependences."""
    return known.verified.get(signature(inputs), "").endswith(EQUAL) and first_other(inputs) > 0
