"""The network beside the best constant: the mean of the targets, the class frequencies, the mean rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Normal

from ..likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson
from .findings import Finding, fine, problem, warning

LEARNT = 0.05  # of what the best constant leaves, which a network that was fitted explains at least
EQUAL = 1e-6  # of it: a network that explains no more is no better than the constant
SLIGHT = 0.01  # of it: a network that explains so much less than nothing is worse
ROUNDS = 100  # of the search for the constant
TRAINING = "on its training data"
CAUSES = (
    "Check that the trained weights are loaded, that inputs and targets are scaled as in training, that the labels are "
    "those of these inputs and in the order of the outputs, and that the network works in evaluation mode."
)
TRAIN = "Train it further, or check inputs and targets; the posterior of an untrained network says little."
SIZES = (
    "Its decisions are better than the constant's, and its probabilities are not: check the scale of the logits, and "
    "the loss that it was trained with."
)


@dataclass(frozen=True, kw_only=True)
class ConstantComparison:
    """The network and the best constant, in the likelihood's own measure."""

    share: float  # of what the constant leaves, which the network explains: R^2 for squared errors
    words: str
    numbers: dict[str, float]
    poor: tuple[int, ...] = ()  # outputs in which the network is no better than the constant
    decides: bool = False  # whether the network's decisions are better than the constant's


def check_fit(likelihood: Likelihood, kept: Sequence[tuple[Tensor, Tensor]], where: str = TRAINING) -> Finding:
    """Whether the network fits better than the best constant; `where` is said of the data."""
    f, y = join_batches(kept)
    if not has_variety(likelihood, y):
        return warning(
            "fit",
            "All targets are the same: a constant is all that there is to learn.",
            "Check that these are the targets of the training.",
            {"share": 0.0},
        )
    compared = compare(likelihood, f, y, where)
    if compared.share <= EQUAL:
        than = "worse than" if compared.share < -SLIGHT else "no better than"
        advice = SIZES if compared.decides else CAUSES
        return problem("fit", f"The network is {than} a constant: {compared.words}.", advice, compared.numbers)
    if compared.share < LEARNT:
        return warning(
            "fit", f"The network is hardly better than a constant: {compared.words}.", TRAIN, compared.numbers
        )
    if compared.poor:
        names = ", ".join(map(str, compared.poor[:5])) + (", ..." if len(compared.poor) > 5 else "")
        return warning(
            "fit",
            f"The network is better than a constant, but not in {len(compared.poor)} of its outputs ({names}, counted "
            f"from 0): {compared.words}.",
            CAUSES,
            compared.numbers,
        )
    return fine("fit", f"The network is better than a constant: {compared.words}.", compared.numbers)


def join_batches(kept: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Outputs and targets of batches whose outputs have the shape of the first; real numbers in float64."""
    alike = [each for each in kept if each[0].shape[1:] == kept[0][0].shape[1:]]
    f, y = (torch.cat(each) for each in zip(*alike, strict=True))
    return f.double(), y.double() if y.is_floating_point() else y


def has_variety(likelihood: Likelihood, y: Tensor) -> bool:
    """Whether any known target differs from the first."""
    return not bool(((y == y[:1, :1]) | ~likelihood.known(y)).all())


def compare(likelihood: Likelihood, f: Tensor, y: Tensor, where: str = TRAINING) -> ConstantComparison:
    """By R^2, NLL and accuracy, deviance or the energy, as the likelihood has them."""
    energy, constant = constant_energy(likelihood, f, y)
    numbers = {"energy": energy, "constant": constant}
    if isinstance(likelihood, Gaussian):
        compared = compare_means(f, y, 1 - energy / constant, where)
    elif isinstance(likelihood, HeteroscedasticGaussian):
        compared = compare_densities(likelihood, f, y, energy, constant, where)
    elif isinstance(likelihood, Categorical | Bernoulli):
        compared = compare_labels(likelihood, f, y, energy, constant, where)
    elif isinstance(likelihood, Poisson):
        least = float((y - torch.xlogy(y, y)).sum())  # where every rate is its count
        share = (constant - energy) / (constant - least)
        words = f"its deviance {where} is {1 - share:.3g} times that of the mean rate"
        compared = ConstantComparison(share=share, words=words, numbers={})
    else:
        # Energies of densities have no zero: the share is then of the larger size.
        density = min(energy, constant) < 0
        saved, whole = constant - energy, max(abs(constant), abs(energy)) if density else constant
        words = f"energy {energy:.4g} {where}, against {constant:.4g}"
        compared = ConstantComparison(share=saved / max(whole, 1e-300), words=words, numbers={})
    return replace(compared, numbers=numbers | {"share": compared.share} | compared.numbers)


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


def compare_densities(
    likelihood: HeteroscedasticGaussian, f: Tensor, y: Tensor, energy: float, constant: float, where: str
) -> ConstantComparison:
    """NLL against that of one mean and one variance; the share is R^2 of a noise that would save as much."""
    rest, number = float(likelihood.rest(y)), float(likelihood.scalars(y))
    nll, best = (energy + rest) / number, (constant + rest) / number
    distribution = likelihood.distribution(f)
    assert isinstance(distribution, Normal)
    of_means = compare_means(distribution.mean, y, 0.0, where)
    words = f"NLL {nll:.3g} {where}, against {best:.3g} for one mean and one variance"
    share = 1 - math.exp(min(2 * (nll - best), 700.0))
    return ConstantComparison(share=share, words=words, numbers={"nll": nll, "constant_nll": best}, poor=of_means.poor)


def compare_labels(
    likelihood: Categorical | Bernoulli, f: Tensor, y: Tensor, energy: float, constant: float, where: str
) -> ConstantComparison:
    """NLL and accuracy against those of the class frequencies."""
    known = likelihood.labelled(y) if isinstance(likelihood, Categorical) else likelihood.known(y)
    if isinstance(likelihood, Categorical):
        labels = (y.argmax(-1) if y.is_floating_point() else y)[known]
        accuracy = float((f.argmax(-1)[known] == labels).double().mean())
        usual = float(labels.bincount().max()) / len(labels)
    else:
        yes = (y > 0.5) & known
        accuracy = float(((f > 0) == yes)[known].double().mean())
        counts, most = known.sum((0, 1)), yes.sum((0, 1))
        usual = float(torch.maximum(most, counts - most).sum()) / float(counts.sum())
    number = float(likelihood.scalars(y))
    nll, best = energy / number, constant / number
    loss = "loss" if likelihood.caveat else "NLL"
    words = (
        f"{loss} {nll:.3g} and accuracy {accuracy:.1%} {where}, against {best:.3g} and {usual:.1%} for "
        "the class frequencies"
    )
    numbers = {"nll": nll, "constant_nll": best, "accuracy": accuracy, "constant_accuracy": usual}
    return ConstantComparison(share=1 - nll / best, words=words, numbers=numbers, decides=accuracy > usual)


def constant_energy(likelihood: Likelihood, f: Tensor, y: Tensor) -> tuple[float, float]:
    """Energies of the network and of the best outputs that are the same for all examples, on the same targets."""
    of_network = float(likelihood.energy(f, y).sum())
    # From the network's own mean: outputs that are variances have to be positive.
    constant = f.mean((0, 1)).clone().requires_grad_()
    search = torch.optim.LBFGS([constant], max_iter=ROUNDS, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def loss() -> Tensor:
        search.zero_grad()
        value = likelihood.energy(constant.expand(f.shape), y).sum() / len(y)
        value.backward()
        return value

    with torch.enable_grad():
        search.step(loss)
    with torch.no_grad():
        return of_network, float(likelihood.energy(constant.expand(f.shape), y).sum())
