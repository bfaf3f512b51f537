"""The network beside the best constant in a likelihood's own measure: R^2, NLL and accuracy, deviance or energy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

EQUAL = 1e-6  # of what the constant leaves: a network that explains no more is no better than the constant


@dataclass(frozen=True, kw_only=True)
class ConstantComparison:
    """The network and the best constant, in the likelihood's own measure."""

    share: float  # of what the constant leaves, which the network explains: R^2 for squared errors
    words: str
    numbers: dict[str, float]
    poor: tuple[int, ...] = ()  # outputs in which the network is no better than the constant
    decides: bool = False  # whether the network's decisions are better than the constant's


class Energies(NamedTuple):
    """Energies of the network and of the best constant, summed over the same targets."""

    network: float
    constant: float


@dataclass(frozen=True)
class Decisions:
    """The network's decisions, the right ones, and which of these are known: class numbers and booleans (N, T, ...)."""

    chosen: Tensor
    wanted: Tensor
    known: Tensor

    @property
    def right(self) -> Tensor:
        """Booleans (N, T, ...): where the decision is known to be right."""
        return (self.chosen == self.wanted) & self.known

    @property
    def accuracy(self) -> float:
        """The share of right ones among known ones."""
        return float(self.right[self.known].double().mean())

    @property
    def usual_accuracy(self) -> float:
        """The same, of the most frequent decision for each label."""
        labels = 1 if self.wanted.dim() < 3 else self.wanted.shape[-1]
        rows = zip(self.wanted.reshape(-1, labels).T, self.known.reshape(-1, labels).T, strict=True)
        most = [wanted[known].bincount().max() for wanted, known in rows if bool(known.any())]
        return float(sum(map(float, most))) / float(self.known.sum())


def compare_means(means: Tensor, y: Tensor, share: float, where: str) -> ConstantComparison:
    """R^2 of all outputs together, and those of them in which it is not positive."""
    left, whole = (y - means).square().sum((0, 1)), (y - y.mean((0, 1))).square().sum((0, 1))
    by_output = torch.where(whole > 0, 1 - left / whole, 1.0)
    if len(by_output) == 1:
        words = f"R^2 is {share:.3g} {where}, and 0 for the mean of the targets"
        return ConstantComparison(share=share, words=words, numbers={"r2": share})
    worst = float(by_output.min())
    words = f"R^2 is {share:.3g} {where}, {worst:.3g} in the worst output, and 0 for the mean of the targets"
    poor = tuple((by_output <= EQUAL).nonzero()[:, 0].tolist())
    return ConstantComparison(share=share, words=words, numbers={"r2": share, "worst_r2": worst}, poor=poor)


def compare_densities(means: Tensor, y: Tensor, per_number: Energies, where: str) -> ConstantComparison:
    """NLL per number against that of one mean and one variance; the share is R^2 of a noise that would save as much."""
    nll, best = per_number
    words = f"NLL {nll:.3g} {where}, against {best:.3g} for one mean and one variance"
    share = 1 - math.exp(min(2 * (nll - best), 700.0))
    poor = compare_means(means, y, 0.0, where).poor
    return ConstantComparison(share=share, words=words, numbers={"nll": nll, "constant_nll": best}, poor=poor)


def compare_labels(
    per_label: Energies,
    accuracies: tuple[float, float],
    where: str,
    loss: str = "NLL",
    rival: str = "class frequencies",
) -> ConstantComparison:
    """Loss per label and accuracy of the network, against those of the constant, which is called `rival`."""
    (nll, best), (accuracy, usual) = per_label, accuracies
    words = f"{loss} {nll:.3g} and accuracy {accuracy:.1%} {where}, against {best:.3g} and {usual:.1%} for the {rival}"
    numbers = {"nll": nll, "constant_nll": best, "accuracy": accuracy, "constant_accuracy": usual}
    return ConstantComparison(share=1 - nll / best, words=words, numbers=numbers, decides=accuracy > usual)


def compare_deviances(energies: Energies, least: float, where: str) -> ConstantComparison:
    """The deviance against the mean rate's; `least` is the energy where every rate is its count."""
    share = (energies.constant - energies.network) / (energies.constant - least)
    words = f"its deviance {where} is {1 - share:.3g} times that of the mean rate"
    return ConstantComparison(share=share, words=words, numbers={})


def compare_energies(energies: Energies, where: str) -> ConstantComparison:
    """The energy; where it has no zero, as that of a density, the share is of the larger size."""
    network, constant = energies
    density = min(energies) < 0
    saved, whole = constant - network, max(abs(constant), abs(network)) if density else constant
    words = f"energy {network:.4g} {where}, against {constant:.4g}"
    return ConstantComparison(share=saved / max(whole, 1e-300), words=words, numbers={})
