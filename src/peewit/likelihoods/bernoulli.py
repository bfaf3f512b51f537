"""Yes or no: binary classification with one logit, and several labels that do not exclude each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Bernoulli as BernoulliDistribution

from ..messages.errors import ArgumentTypeError
from ..messages.names import spelled_class
from ..runtime.random import Hashed
from .comparison import ConstantComparison, Decisions, Energies, compare_labels
from .contract import Likelihood, diagonal_root
from .form import ALL, Form


@spelled_class
@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Yes or no: one logit per label, for one label or for several that do not exclude each other.

    `pw.fit(..., "binary")` takes it. Targets have the outputs' shape; each is 0 or 1, or a probability. The loss is
    `torch.nn.BCEWithLogitsLoss(reduction="sum")`.

    Args:
        ignore_index: Labels with this value are missing, each on its own: -100 or -1, for example. None: none are.

    Raises:
        PeewitError: By `pw.fit`, where a target is neither missing nor between 0 and 1.

    Example:
        >>> positive = (t > 0).float()
        >>> positive[0] = -1  # this label is not known
        >>> la = pw.fit(line_model, (t, positive), pw.Bernoulli(ignore_index=-1))
        >>> la.predict(t).probs.shape
        torch.Size([40, 1])
    """

    ignore_index: int | None = None

    title = "binary"
    link_family = "bernoulli"
    draws = True

    def targets(self, y: Tensor, form: Form) -> Tensor:
        if y.is_complex():
            raise ArgumentTypeError(f"binary: targets have dtype {y.dtype}; expected 0 and 1, or probabilities.")
        return form.flatten(y if y.is_floating_point() else y.float())

    def known(self, y: Tensor) -> Tensor:
        return torch.ones_like(y, dtype=torch.bool) if self.ignore_index is None else y != self.ignore_index

    def _wrong(self, y: Tensor) -> Tensor:
        return self.known(y) & ~((y >= 0) & (y <= 1))

    def valid(self, y: Tensor, form: Form) -> Tensor:
        # All targets are probabilities.
        return ~self._wrong(y).any()

    def complaint(self, y: Tensor, form: Form) -> str:
        missing = "" if self.ignore_index is None else f" ({self.ignore_index} is missing)"
        return (
            f"binary: target {y[self._wrong(y)][0].item():g} was given; expected 0 or 1, or a probability{missing}. "
            "Missing labels need Bernoulli(ignore_index=...)."
        )

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        # Binary cross entropy, (N,).
        known = self.known(y)
        wanted = torch.where(known, y, 0).to(f.dtype)
        # Not `softplus(f) - y f`: for sure answers that is the difference of two large numbers.
        yes, no = (torch.nn.functional.logsigmoid(each) for each in (f, -f))
        return -((wanted * yes + (1 - wanted) * no) * known).sum((1, 2))

    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        # `sqrt(p (1 - p))` on the diagonal.
        # As a product of two sigmoids: 1 - p would round to zero for sure answers.
        spread = (f.sigmoid() * (-f).sigmoid()).sqrt() * self.known(y)
        return diagonal_root(spread, probes)

    def sample(self, f: Tensor, y: Tensor, draws: Hashed) -> Tensor:
        """(N, T, C)."""
        return (draws.uniform(f.shape[-1]) < f.detach().double().sigmoid()).to(f.dtype)

    def drawn_score(self, f: Tensor, y: Tensor, draws: Hashed, create_graph: bool = False) -> Tensor:
        # `p - drawn`.
        with torch.set_grad_enabled(create_graph):
            return (f.sigmoid() - self.sample(f, y, draws)) * self.known(y)

    def scalars(self, y: Tensor) -> Tensor:
        """Known labels."""
        return self.known(y).sum()

    def distribution(self, f: Tensor) -> BernoulliDistribution:
        # The distribution of 0 and 1, (..., T, C).
        return BernoulliDistribution(logits=f, validate_args=False)

    def decisions(self, f: Tensor, y: Tensor) -> Decisions:
        """Yes where it is more probable, (N, T, C)."""
        return Decisions((f > 0).long(), (y > 0.5).long(), self.known(y))

    def beside_constant(self, f: Tensor, y: Tensor, energies: Energies, where: str) -> ConstantComparison:
        """By NLL and accuracy."""
        number, decisions = float(self.scalars(y)), self.decisions(f, y)
        per_label = Energies(*(energy / number for energy in energies))
        return compare_labels(per_label, (decisions.accuracy, decisions.usual_accuracy), where)
