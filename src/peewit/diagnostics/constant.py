"""The network beside the best constant: the mean of the targets, the class frequencies, the mean rate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..likelihoods import EQUAL, Energies, Likelihood
from .findings import Finding, fine, problem, warning

LEARNT = 0.05  # of what the best constant leaves, which a network that was fitted explains at least
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


def check_fit(likelihood: Likelihood, kept: Sequence[tuple[Tensor, Tensor]], where: str = TRAINING) -> Finding:
    """Whether the network fits better than the best constant; `where` is said of the data."""
    f, y = join_batches(kept)
    if likelihood.constant is None and not has_variety(likelihood, y):
        return warning(
            "fit",
            "All targets are the same: a constant is all that there is to learn.",
            "Check that these are the targets of the training.",
            {"share": 0.0},
        )
    energies = constant_energy(likelihood, f, y)
    compared = likelihood.beside_constant(f, y, energies, where)
    numbers = {"energy": energies.network, "constant": energies.constant, "share": compared.share} | compared.numbers
    if compared.share <= EQUAL:
        than = "worse than" if compared.share < -SLIGHT else "no better than"
        advice = SIZES if compared.decides else CAUSES
        return problem("fit", f"The network is {than} a constant: {compared.words}.", advice, numbers)
    if compared.share < LEARNT:
        return warning("fit", f"The network is hardly better than a constant: {compared.words}.", TRAIN, numbers)
    if compared.poor:
        names = ", ".join(map(str, compared.poor[:5])) + (", ..." if len(compared.poor) > 5 else "")
        return warning(
            "fit",
            f"The network is better than a constant, but not in {len(compared.poor)} of its outputs ({names}, counted "
            f"from 0): {compared.words}.",
            CAUSES,
            numbers,
        )
    return fine("fit", f"The network is better than a constant: {compared.words}.", numbers)


def join_batches(kept: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Outputs and targets of batches whose outputs have the shape of the first; real numbers in float64."""
    alike = [each for each in kept if each[0].shape[1:] == kept[0][0].shape[1:]]
    f, y = (torch.cat(each) for each in zip(*alike, strict=True))
    return f.double(), y.double() if y.is_floating_point() else y


def has_variety(likelihood: Likelihood, y: Tensor) -> bool:
    """Whether any known target differs from the first."""
    return not bool(((y == y[:1, :1]) | ~likelihood.known(y)).all())


def constant_energy(likelihood: Likelihood, f: Tensor, y: Tensor) -> Energies:
    """Of the network, and of the best outputs that are the same for all examples."""
    of_network = float(likelihood.energy(f, y).sum())
    if likelihood.constant is not None:
        return Energies(of_network, float(likelihood.energy(torch.full_like(f, likelihood.constant), y).sum()))
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
        return Energies(of_network, float(likelihood.energy(constant.expand(f.shape), y).sum()))
