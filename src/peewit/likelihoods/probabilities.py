"""Networks that end in a softmax or sigmoid where logits are expected: seen in the first batch, with a warning."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..messages.warnings import FitWarning, warn
from .contract import Likelihood

# Steps of autograd's graph that only move numbers.
MOVES = (
    "Slice",
    "View",
    "Squeeze",
    "Unsqueeze",
    "ReshapeAlias",
    "UnsafeView",
    "Permute",
    "Transpose",
    "Alias",
    "Clone",
    "ToCopy",
)


def last_step(node: Any) -> str:
    """The name of the last operation that computed something, from the output's node in autograd's graph."""
    while node is not None:
        name = str(node.name())
        if not name.startswith(MOVES) or not node.next_functions:
            return name
        node = node.next_functions[0][0]
    return ""


def warn_of_probabilities(likelihood: Likelihood, f: Tensor, node: Any) -> None:
    """Warn where outputs (N, T, C) of a batch are probabilities and the likelihood takes logits."""
    look = LOGITS.get(likelihood.link_family)
    seen, function, advice = ("", "", "") if look is None else look(f, node)
    if seen:
        warn(
            f"{type(likelihood).__name__}: {seen}. These look like probabilities; logits are expected, of which the "
            f"{function} is taken here. {advice}",
            FitWarning,
        )


def classes(f: Tensor, node: Any) -> tuple[str, str, str]:
    """What there is to see, where there is; what is taken of logits; and advice."""
    seen = f"all outputs of the first batch are positive and sum to one over the {f.shape[-1]} classes"
    return seen if sums_to_one(f) else "", "softmax", "Leave the last Softmax out, or make it a LogSoftmax."


def yes_or_no(f: Tensor, node: Any) -> tuple[str, str, str]:
    """The same; logits between 0 and 1 are nothing unusual: the network's last step has to say so too."""
    seen = "the network ends in a Sigmoid or Softmax, with all outputs between 0 and 1"
    ends = last_step(node).startswith(("Sigmoid", "Softmax")) and bool(((f >= 0) & (f <= 1)).all().cpu())
    return seen if ends else "", "sigmoid", "Leave that last step out."


LOGITS = {"categorical": classes, "bernoulli": yes_or_no}  # by family


def sums_to_one(f: Tensor) -> bool:
    """Whether outputs are probabilities of classes: their logarithms, which are good logits, are never positive."""
    close = 1e-4 if f.dtype.itemsize > 2 else 2e-2
    return bool(((f >= 0).all() & ((f.double().sum(-1) - 1).abs() < close).all()).cpu())
