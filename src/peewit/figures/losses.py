"""Numbers behind landscapes: the loss of the network, of its linear model and of the Gaussian near the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from ..curvature.pieces import LabelledPiece
from ..laplace import Laplace
from ..linear_model.passes import Passes
from ..messages.arguments import is_count
from ..messages.errors import PeewitError
from ..network.batches import Batches
from ..network.buffers import restore_buffers
from ..network.calling import call, with_weights
from ..network.isolation import entry_point
from ..network.nests import Data, count
from ..posterior.network import network_of
from ..predictions.families import family_of
from ..runtime.progress import Progress
from ..runtime.random import generator_of
from ..weights.vectors import unflatten
from . import style
from .directions import DirectionName, choose

REACH = {"eigen": 3.0, "random": 1.0}  # deviations of the posterior; lengths of the filters
UNITS = {"eigen": "standard deviations", "random": "lengths of the trained filters"}
EXAMPLES = 1_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Landscape:
    """Losses at `trained + a d_1 + b d_2`, of the network, of its linear model and of the Gaussian.

    `pw.figures.landscape` returns it. Every table is (len(b), len(a)), float64, on the CPU.

    Attributes:
        a: Coordinates (A,) along the first direction.
        b: Coordinates (B,) along the second direction; a single zero for a line.
        directions: The directions (1 or 2, D).
        axes: A label for each direction, with its unit.
        loss: Table of the network's loss: mean over examples, without noise and prior.
        linear: Table of the loss of the linear model, `f + J d`.
        accuracy: Table of the network's accuracy; None if it does not predict classes.
        penalty: Table of the prior's part, `1/2 |theta - mu|^2` in its precisions.
        quadratic: Table of the Gaussian's part, `1/2 d^T P d`.
        data_weight: Factor of the mean loss: examples / noise variance / temperature.
        words: Name of the loss, such as "cross entropy".
        examples: Number of examples behind the loss.
        plane: Whether there are two directions.
        objective: Table of the regularised loss that training with this prior minimises: `data_weight * loss +
            penalty`.
        linear_objective: Table of the regularised loss of the linear model: `data_weight * linear + penalty`.
        density: Table of likelihood times prior, `exp(-objective)`, as a share of its largest value.
        linear_density: Table of `exp(-linear_objective)`, as a share of its largest value.
        gaussian: Table of the posterior density, `exp(-quadratic)`, as a share of its value at the trained weights.
        contrast: Table of loss minus error, each scaled to the range 0 to 1; None without classes.

    Example:
        >>> plane = pw.figures.landscape(la, (x, y), points=5)
        >>> plane.loss.shape, plane.directions.shape == (2, la.D), plane.words
        (torch.Size([5, 5]), True, 'cross entropy')
    """

    a: Tensor
    b: Tensor
    directions: Tensor
    axes: tuple[str, ...]
    loss: Tensor
    linear: Tensor
    accuracy: Tensor | None
    penalty: Tensor
    quadratic: Tensor
    data_weight: float
    words: str
    examples: int

    @property
    def plane(self) -> bool:
        """Whether there are two directions."""
        return len(self.directions) == 2

    @property
    def objective(self) -> Tensor:
        """The regularised loss that training with this prior minimises: `data_weight * loss + penalty`."""
        return self.data_weight * self.loss + self.penalty

    @property
    def linear_objective(self) -> Tensor:
        """The regularised loss of the linear model: `data_weight * linear + penalty`."""
        return self.data_weight * self.linear + self.penalty

    @property
    def density(self) -> Tensor:
        """`exp(-objective)`, likelihood times prior, as a share of its largest value in the table."""
        return (self.objective.min() - self.objective).exp()

    @property
    def linear_density(self) -> Tensor:
        """`exp(-linear_objective)`, as a share of its largest value in the table."""
        return (self.linear_objective.min() - self.linear_objective).exp()

    @property
    def gaussian(self) -> Tensor:
        """The posterior density as a share of its value at the trained weights: `exp(-quadratic)`."""
        return (-self.quadratic).exp()

    @property
    def contrast(self) -> Tensor | None:
        """Loss minus error, each scaled to the range 0 to 1 over the table; None without classes."""
        if self.accuracy is None:
            return None
        return spread(self.loss) - spread(1 - self.accuracy)


def spread(values: Tensor) -> Tensor:
    """Scale values to the range 0 to 1."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


@entry_point
def landscape(
    la: Laplace,
    data: Data,
    *,
    directions: DirectionName | Tensor = "eigen",
    dimensions: int = 2,
    reach: float | None = None,
    points: int | None = None,
    examples: int | None = EXAMPLES,
    generator: torch.Generator | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> Landscape:
    """Compute the loss around the trained weights, on a line or a plane.

    Args:
        la: A posterior.
        data: Training data: a loader, batches, or a pair (inputs, targets).
        directions: "eigen" for the directions of largest curvature, in standard deviations of the posterior; "random"
            for normal numbers whose filters have the norms of the trained ones; or a tensor (dimensions, D).
        dimensions: 1 for a line, 2 for a plane.
        reach: Distance to both sides, in units of the directions. None for 3 with "eigen", else 1.
        points: Points along each direction, at least 3; an even number becomes the next odd one. None for 101 on a
            line, 31 on a plane.
        examples: Number of examples to use, from the first on. None for all of them.
        generator: Source of random directions, and of the start of the Lanczos method, which finds eigenvectors above
            2,000 weights. None for a fixed seed.
        memory: Bytes for temporary results. None for the posterior's limit.
        progress: Whether to show a progress bar.

    Returns:
        A `Landscape` with `points` coordinates along each direction.

    Raises:
        ArgumentTypeError: `la` is not a posterior.
        PeewitError: An argument is none of the above, `directions` has another shape, is not finite or has a row of
            zeros, or there are more directions than weights.
        MismatchError: The network has changed since the fit.

    Example:
        >>> plane = pw.figures.landscape(la, (x, y), directions="random", dimensions=1, points=11)
        >>> plane.loss.shape, plane.directions.shape == (1, la.D)
        (torch.Size([1, 11]), True)
    """
    style.expect_posterior(la)
    if dimensions not in (1, 2):
        raise PeewitError(f"dimensions={dimensions!r} was given; expected 1, a line, or 2, a plane.")
    points = style.check_points((101 if dimensions == 1 else 31) if points is None else points)
    if examples is not None and not is_count(examples):
        raise PeewitError(f"examples={examples!r} was given; expected a positive whole number, or None for all.")
    kind = directions if isinstance(directions, str) else "given"
    axes = choose(la, directions, dimensions, generator_of(generator))
    far = REACH.get(kind, 1.0) if reach is None else reach
    if not 0 < far < math.inf:
        raise PeewitError(f"reach={reach!r} was given; expected a positive number.")
    a = torch.linspace(-far, far, points + (points + 1) % 2, dtype=torch.float64)  # odd: the middle is the network
    b = a.clone() if dimensions == 2 else torch.zeros(1, dtype=torch.float64)
    where = torch.cartesian_prod(b, a).flip(1)[:, :dimensions]
    with closing(Progress(progress)) as bars:
        network, batches = network_of(la.state, memory), Batches(data, la.model)
        passes = Passes(network, la.likelihood, batches, la.state.totals.form, bars)
        sums = sum_losses(la, passes, axes, where, examples)
    shape = (len(b), len(a))
    return Landscape(
        a=a,
        b=b,
        directions=axes.cpu(),
        axes=tuple(f"direction {number + 1}{unit(kind)}" for number in range(dimensions)),
        loss=(sums.loss / sums.examples).reshape(shape),
        linear=(sums.linear / sums.examples).reshape(shape),
        accuracy=(sums.right / sums.positions).reshape(shape) if sums.positions else None,
        penalty=penalties(la, axes, where).reshape(shape),
        quadratic=quadratics(la, axes, where).reshape(shape),
        data_weight=la.N * float(la.likelihood.noise_precision) / la.temperature,
        words="loss" if family_of(la.likelihood).classes is None else "cross entropy",
        examples=sums.examples,
    )


def unit(kind: str) -> str:
    """The unit of a coordinate, in words."""
    return f" ({UNITS[kind]})" if kind in UNITS else ""


def penalties(la: Laplace, axes: Tensor, where: Tensor) -> Tensor:
    """(points,): `1/2 |trained + d - mu|^2` in the prior's precisions, from six products of vectors."""
    delta = la.prior.delta(la.space, la.state.weights).detach().double()
    rows = torch.cat(
        [(la.state.weights.double() - la.prior.centre(la.space, la.state.weights).detach().double())[None], axes]
    )
    products = ((rows * delta) @ rows.mT).cpu()
    places = torch.cat([torch.ones(len(where), 1, dtype=torch.float64), where], 1)
    return 0.5 * ((places @ products) * places).sum(1)


def quadratics(la: Laplace, axes: Tensor, where: Tensor) -> Tensor:
    """(points,): `1/2 d^T P d`."""
    products = (axes @ la.precision.mv(axes.to(la.state.weights.dtype)).detach().double().mT).cpu()
    return 0.5 * ((where @ products) * where).sum(1)


@dataclass(kw_only=True)
class Sums:
    """Sums over the examples so far, one number per point."""

    loss: Tensor
    linear: Tensor
    right: Tensor
    positions: int = 0  # that have a class
    examples: int = 0


def sum_losses(la: Laplace, passes: Passes, axes: Tensor, where: Tensor, examples: int | None) -> Sums:
    """Pass over the data once, and evaluate every example at all points."""
    zeros = torch.zeros(len(where), dtype=torch.float64)
    sums = Sums(loss=zeros, linear=zeros.clone(), right=zeros.clone())
    with passes.isolated(), torch.no_grad():
        for piece in first(passes, examples):
            slopes = [passes.push(piece, axis) for axis in axes]
            for number, point in enumerate(where.tolist()):
                step = sum(coordinate * axis for coordinate, axis in zip(point, axes, strict=True))
                network = outputs(la, piece, step)
                pushed = sum(coordinate * slope for coordinate, (_, slope) in zip(point, slopes, strict=True))
                sums.loss[number] += energy(piece, network)
                sums.linear[number] += energy(piece, slopes[0][0] + pushed)
                sums.right[number] += int(count_right(piece, network)[0])
            sums.positions += count_right(piece, slopes[0][0])[1]
            sums.examples += count(piece.inputs)
    return sums


def first(passes: Passes, examples: int | None) -> Iterator[LabelledPiece]:
    """Pieces of the first `examples` examples."""
    left = examples
    for piece in passes.pieces.pass_over("landscape"):
        number = count(piece.inputs)
        if left is not None and number >= left:
            kept = slice(0, left)
            yield piece.some(kept)
            return
        yield piece
        left = None if left is None else left - number


def outputs(la: Laplace, piece: LabelledPiece, step: Tensor) -> Tensor:
    """(N, T, C): outputs of the network at the trained weights plus a step (D,)."""
    pieces = unflatten(step, la.state.space)
    weights = {name: la.model.get_parameter(name).detach() for name in la.state.space.names}
    weights = {name: (weight.double() + pieces[name]).to(weight.dtype) for name, weight in weights.items()}
    output = call(with_weights(la.model, weights), piece.inputs)
    restore_buffers(la.model)
    return piece.labels.flat(output)


def energy(piece: LabelledPiece, f: Tensor) -> float:
    """The energy, summed over examples."""
    return float(piece.labels.energy(f).double().sum())


def count_right(piece: LabelledPiece, f: Tensor) -> tuple[int, int]:
    """The number of right classes, and of all labelled positions; zeros without classes."""
    decisions = piece.labels.likelihood.decisions(f, piece.labels.y)
    return (0, 0) if decisions is None else (int(decisions.right.sum()), int(decisions.known.sum()))
