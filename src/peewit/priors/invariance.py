"""Scale-invariant sets of weights, `f(k theta_g) = f(theta_g)`: a common factor does not change the outputs.

Weight and bias before a normalisation layer are such a set. In a residual stream, all weights that add to the stream
form one set. The sets are found by evaluating the network, not by reading its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from ..network.batches import Batches
from ..network.calling import call
from ..network.isolation import entry_point, isolated
from ..network.modules import device_of, unwrap
from ..network.nests import Data, Inputs, count, take, tensors
from ..runtime.memory import budget
from ..runtime.progress import Progress
from .rescaling import FAINTEST, TOLERANCE, Names, RescaledNetwork, batch_statistics, root_mean_square

EXAMPLES = 64  # of the first batch
FEWEST = 8  # where memory is scarce: with fewer, statistics of the batch leave nothing of what weights do
WHOLE = 0.1  # largest distance of a coefficient from one


@entry_point
def invariant_sets(
    model: nn.Module, data: Data, memory: float | None = None, progress: bool = False
) -> tuple[Names, ...]:
    """Disjoint sets of parameter names, in the network's order, found on the first batch of `data`.

    Normalisation layers use the statistics of the batch; the network is not changed. Of overlapping sets the first one
    found counts: modules, then single tensors, then unions of both.
    """
    model = unwrap(model)
    inputs = Batches(data, model).first()[0]
    with isolated(model), batch_statistics(model), torch.no_grad(), closing(Progress(progress)) as bars:
        inputs = take(inputs, slice(0, examples_within(model, inputs, memory)))
        network = RescaledNetwork.of(model, inputs)
        sets = [*modules_and_tensors(network, bars)]
        for units in (network.modules, [(name,) for name in network.weights]):
            sets += unions(network, units, sets, bars)
    order = {name: number for number, name in enumerate(network.weights)}
    return tuple(sorted((tuple(sorted(each, key=order.__getitem__)) for each in sets), key=lambda s: order[s[0]]))


def examples_within(model: nn.Module, inputs: Inputs, memory: float | None) -> int:
    """How many examples the network is asked about: fewer where what its modules return would not fit."""
    examples = min(count(inputs), EXAMPLES)
    if memory is None:
        return examples
    limit = budget(memory, device_of(model))
    if examples <= FEWEST:
        return examples
    some = take(inputs, slice(0, FEWEST))
    sizes: list[int] = []

    def note(_: nn.Module, __: Any, output: Any) -> None:
        sizes.extend(tensor.numel() * tensor.element_size() for tensor in tensors(output))

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        call(model, some)
    finally:
        for hook in hooks:
            hook.remove()
    bytes_each = 2 * sum(sizes) / FEWEST  # twice: beside the outputs, how they move with a scale
    return max(FEWEST, limit.count(bytes_each, examples))


def modules_and_tensors(network: RescaledNetwork, bars: Progress) -> Iterator[Names]:
    """Modules that are invariant to the scale of weight and bias together, else single invariant tensors."""
    for unit in bars.track(network.modules, len(network.modules), "scales of weights"):
        if network.invariant(unit):
            yield unit
        elif len(unit) > 1:
            yield from ((name,) for name in unit if network.invariant((name,)))


def unions(network: RescaledNetwork, units: Iterable[Names], earlier: Iterable[Names], bars: Progress) -> list[Names]:
    """Unions of units that are in no set yet: the smallest whose columns sum to zero."""
    names = {name for each in earlier for name in each}
    free = [unit for unit in units if not names & {*unit}]
    tracked = bars.track(free, len(free), "scales of several weights")
    free = [unit for unit in tracked if root_mean_square(network.column(unit)) > FAINTEST * network.variation]
    sets: list[Names] = []
    if len(free) < 2:
        return sets
    matrix = torch.stack([network.column(unit) for unit in free], 1)
    gram = (matrix.T @ matrix).cpu()
    dependent = dependent_units(gram)
    for number in range(len(free)):
        chosen = cancelling_units(gram, number, dependent) if dependent[number] else []
        together = tuple(name for each in chosen for name in free[each])
        if together and network.invariant(together):
            sets.append(together)
            dependent[chosen] = False
    return sets


def dependent_units(gram: Tensor) -> Tensor:
    """(units,): whether a unit is part of a combination of columns that vanishes."""
    norms = gram.diagonal().sqrt()
    values, vectors = torch.linalg.eigh(gram / norms / norms[:, None])
    null = vectors[:, values < TOLERANCE * len(values)]
    taking_part: Tensor = null.square().sum(1) > 1e-6
    return taking_part


def cancelling_units(gram: Tensor, unit: int, left: Tensor) -> list[int]:
    """The columns that sum to zero with a given one, and that one; an empty list if there are none."""
    others = [each for each in left.nonzero()[:, 0].tolist() if each != unit]
    coefficients = torch.zeros(len(gram), dtype=gram.dtype, device="cpu")
    coefficients[others] = nonnegative(gram[others][:, others], -gram[others, unit])
    coefficients[unit] = 1.0
    ones = (coefficients > 0.5).to(gram)
    sizes = gram.diagonal().sqrt()
    largest = float((sizes * ones).max())
    uneven = ((coefficients - ones).abs() > WHOLE) & (sizes > WHOLE * TOLERANCE * largest)
    rest = max(float(ones @ gram @ ones), 0.0) ** 0.5
    if bool(uneven.any()) or rest > 10 * TOLERANCE * largest:
        return []
    return [int(each) for each in ones.nonzero()[:, 0]]


def nonnegative(gram: Tensor, target: Tensor) -> Tensor:
    """Nonnegative least squares by the active-set method of Lawson and Hanson, with a scaled Gram matrix."""
    scale = gram.diagonal().sqrt()
    gram, target = gram / scale / scale[:, None], target / scale
    x = torch.zeros_like(target)
    passive = torch.zeros_like(target, dtype=torch.bool)
    for _ in range(3 * len(x)):
        slope = torch.where(passive, -torch.inf, target - gram @ x)
        steepest = float(slope.max()) if len(slope) else 0.0
        if steepest <= 1e-9 * float(target.abs().max()):
            break
        # Of equal columns take the last: in a network it is the nearest to the sum.
        passive[(slope >= (1 - TOLERANCE) * steepest).nonzero()[-1]] = True
        while True:
            trial = torch.zeros_like(x)
            trial[passive] = torch.linalg.lstsq(gram[passive][:, passive], target[passive, None]).solution[:, 0]
            below = passive & (trial <= 0)
            if not bool(below.any()):
                break
            step = float((x[below] / (x[below] - trial[below]).clamp_min(1e-300)).min())
            x = x + step * (trial - x)
            passive &= ~(below & (x <= 1e-12))
            x[~passive] = 0.0
            if not bool(passive.any()):
                return x / scale
        x = trial
    return x / scale
