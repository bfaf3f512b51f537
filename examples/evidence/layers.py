"""One precision per tensor, learnt while training, finds the blocks of a residual network that it does not need.

    python examples/evidence/layers.py [--out DIR]

Six residual blocks are more than these images need. Where the precisions of a block grow until the data determine
nothing in it, the block can go: the script takes each block out in turn, from this network and from one that was
trained with a small fixed weight decay, and measures the test loss without it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from common import BLUE, ORANGE, options
from readers import Pair, digits
from runs import figure, fresh, plain, save, surprise, table
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

BLOCKS = 6
WIDTH = 40
SIZE = 2 * WIDTH * (WIDTH + 1)  # weights of a block
USELESS = 0.001  # of a block's weights, below which share effective dimensions say that it is not needed
DECAY = 0.1  # prior precision of the network with a fixed prior


class Block(nn.Module):
    """Two layers beside an identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, width) -> (B, width)."""
        return x + self.outer(F.relu(self.inner(x)))


def network() -> nn.Sequential:
    """A first layer, the blocks, and a last layer."""
    return nn.Sequential(nn.Linear(196, WIDTH), *(Block(WIDTH) for _ in range(BLOCKS)), nn.ReLU(), nn.Linear(WIDTH, 10))


@dataclass(frozen=True, kw_only=True)
class Part:
    """A block: what was learnt about it, and the test NLL without it."""

    number: int
    precision: tuple[float, float]  # of the weights of its two layers
    dimensions: float  # effective ones, biases included
    without: float
    without_fixed: float  # in the network with a fixed prior


@dataclass(frozen=True, kw_only=True)
class Result:
    """Both networks, whole and without blocks."""

    whole: float
    whole_fixed: float
    parts: list[Part]
    removed: list[int]  # blocks that the data determine little of
    without_all: float  # the test NLL without these


def without(model: nn.Sequential, blocks: list[int]) -> nn.Sequential:
    """The network with some blocks left out; the first is number 1."""
    return nn.Sequential(*(layer for place, layer in enumerate(model) if place not in blocks))


def coarse(pair: Pair) -> Pair:
    """Images of half the size, as vectors."""
    return F.avg_pool2d(pair[0], 2).flatten(1), pair[1]


def learn(data: Pair, epochs: int, every: int, seed: int) -> tuple[nn.Sequential, pw.Laplace]:
    """The network at the kept weights, and its posterior."""
    model = fresh(network, "cpu", seed)
    assert isinstance(model, nn.Sequential)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs, 5e-4)
    run = pw.learning.train(
        model,
        data,
        "classification",
        optimiser,
        scheduler=schedule,
        epochs=epochs,
        every=every,
        prior=pw.Prior.layerwise(),
    )
    return model, run.finish().posterior()


def compare(asked: Any) -> Result:
    """Train both, and take blocks out."""
    task = digits(None)
    count = asked.images or (200 if asked.quick else 1_000)
    x, y = task.train
    data, test = coarse((x[:count], y[:count])), coarse(task.test)
    epochs = asked.epochs or (20 if asked.quick else 300)
    model, la = learn(data, epochs, 5, asked.seed)
    fixed = fresh(network, "cpu", asked.seed)
    assert isinstance(fixed, nn.Sequential)
    plain(fixed, data, DECAY, epochs, 2e-3)
    names = list(la.prior.names(la.space))
    precision = dict(zip(names, la.prior.precision.tolist(), strict=True))
    dimensions = dict(zip(names, la.evidence().effective_dimensions.tolist(), strict=True))
    parts = [
        Part(
            number=number,
            precision=(precision[f"{number}.inner.weight"], precision[f"{number}.outer.weight"]),
            dimensions=sum(value for name, value in dimensions.items() if name.startswith(f"{number}.")),
            without=surprise(without(model, [number]), test),
            without_fixed=surprise(without(fixed, [number]), test),
        )
        for number in range(1, BLOCKS + 1)
    ]
    removed = [part.number for part in parts if part.dimensions < USELESS * SIZE]
    return Result(
        whole=surprise(model, test),
        whole_fixed=surprise(fixed, test),
        parts=parts,
        removed=removed,
        without_all=surprise(without(model, removed), test),
    )


def draw(result: Result) -> Any:
    """Precisions, effective dimensions, and what the test loss is without a block."""
    made = figure(12.5, 3.8, 3)
    if made is None:
        return None
    picture, (left, middle, right) = made
    numbers = [part.number for part in result.parts]
    for place, (name, marker) in enumerate((("inner layer", "o"), ("outer layer", "s"))):
        left.semilogy(numbers, [part.precision[place] for part in result.parts], marker, color=BLUE, label=name)
    left.set(xlabel="block", ylabel="prior precision, learnt", title="precisions")
    left.legend(fontsize=8)
    middle.bar(numbers, [max(part.dimensions, 1e-3) for part in result.parts], color=BLUE)
    middle.axhline(USELESS * SIZE, color="k", lw=0.8, ls=":")
    middle.set(yscale="log", xlabel="block", ylabel="effective dimensions", title=f"of {SIZE:,} weights")
    looks = ((-0.2, BLUE, "per-tensor precisions, learnt"), (0.2, ORANGE, f"precision {DECAY:g}, fixed"))
    for (shift, colour, name), whole, key in zip(
        looks, (result.whole, result.whole_fixed), ("without", "without_fixed"), strict=True
    ):
        right.bar(
            [n + shift for n in numbers], [getattr(part, key) for part in result.parts], 0.4, color=colour, label=name
        )
        right.axhline(whole, color=colour, lw=1, ls="--")
    right.set(xlabel="block taken out", ylabel="test NLL", title="dashed: the whole network")
    right.legend(fontsize=8)
    return picture


def main(arguments: list[str] | None = None) -> Result:
    """Train, look at the blocks, take them out."""
    parser = options(__doc__)
    parser.add_argument("--epochs", type=int, default=0, help="of both trainings; 0: 300")
    asked = parser.parse_args(arguments)
    result = compare(asked)
    rows = [
        (
            str(part.number),
            f"{part.precision[0]:.3g}",
            f"{part.precision[1]:.3g}",
            f"{part.dimensions:.2f}",
            f"{part.without:.3f}",
            f"{part.without_fixed:.3f}",
        )
        for part in result.parts
    ]
    head = ("block", "inner precision", "outer precision", "eff. dim.", "NLL without", "NLL without, fixed prior")
    table(f"test NLL: {result.whole:.3f}; {result.whole_fixed:.3f} with a fixed prior", head, rows)
    print(f"Without blocks {result.removed}: {result.without_all:.3f}")
    save(asked.out, "layers", draw(result), asdict(result))
    return result


if __name__ == "__main__":
    main()
