"""Whether a trained network is fit for a Laplace approximation, in plain sentences with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..linear_model.find import check_energy
from ..messages.errors import PeewitError
from ..network.batches import Batches
from ..network.nests import count
from ..posterior.network import network_of
from ..priors.invariance import invariant_sets
from .checks import (
    NewtonStep,
    at_trained,
    check_evidence,
    check_groups,
    check_invariances,
    check_likelihood,
    check_mode,
    check_rounding,
)
from .constant import check_fit
from .findings import Finding
from .gradients import examine

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

SHOWN = 12  # groups in print


@dataclass(frozen=True, eq=False, kw_only=True)
class Diagnosis:
    """All findings about a trained network, and what the gradient says about each group of the prior.

    `la.diagnose(data)` returns it. `diagnosis["mode"]` is the finding on a topic, a loop goes over all of them, and
    `print(diagnosis)` prints them.

    Attributes:
        findings: All findings, in the order in which to read them.
        groups: Names of the prior's groups.
        gradients: The gradient of the regularised loss over the noise of the data's (groups,); NaN for one example.
        decrements: How far the loss is above its minimum, in nats, by one step of Newton's method (groups,).
        ratios: Precision that the evidence would choose at the mode, over that at the trained weights (groups,).
        complaints: The findings that are not fine.
        healthy: Whether all findings are fine.

    Example:
        >>> diagnosis = la.diagnose((x, y))
        >>> diagnosis["fit"].severity, diagnosis.gradients.shape
        ('fine', torch.Size([1]))
    """

    findings: tuple[Finding, ...]
    groups: Sequence[str]
    gradients: Tensor
    decrements: Tensor
    ratios: Tensor

    @property
    def complaints(self) -> tuple[Finding, ...]:
        """The findings that are not fine."""
        return tuple(finding for finding in self.findings if finding.severity != "fine")

    @property
    def healthy(self) -> bool:
        """Whether all findings are fine."""
        return not self.complaints

    def __iter__(self) -> Iterator[Finding]:
        """In the order in which they should be looked at."""
        return iter(self.findings)

    def __getitem__(self, topic: str) -> Finding:
        """The finding on a topic."""
        for finding in self.findings:
            if finding.topic == topic:
                return finding
        raise KeyError(
            f"{topic!r} is not a topic of this diagnosis; it has {[finding.topic for finding in self.findings]}."
        )

    def __str__(self) -> str:
        """One answer after the other, and a table of the groups where they are few."""
        lines = [str(each) for each in self.findings]
        if 1 < len(self.groups) <= SHOWN:
            width = max(len("group"), *(len(name) for name in self.groups))
            lines.append(f"{'group':<{width}}  gradient/noise  nats above  precision ratio")
            columns = zip(
                self.groups, *(each.tolist() for each in (self.gradients, self.decrements, self.ratios)), strict=True
            )
            lines += [f"{n:<{width}}  {g:>14.3g}  {d:>10.3g}  {r:>15.3g}" for n, g, d, r in columns]
        return "\n".join(lines)


def find_sets(la: PosteriorState, data: Any) -> tuple[tuple[str, ...], ...]:
    """Sets of weights whose scale does not matter; none where one example at a time is not a batch to norm."""
    inputs, _ = Batches(data, la.model).first()
    return () if count(inputs) < 2 else invariant_sets(la.model, data)


def diagnose(la: PosteriorState, data: Any, memory: float | None, progress: bool) -> Diagnosis:
    """Look at the network's first batch for invariant sets, then pass over the data once."""
    network = network_of(la, memory, progress)  # refuses one that has changed
    Batches(data, la.model).refuse_one_shot("A diagnosis looks at the first batch twice")
    sets = la.prior.sets or find_sets(la, data)
    sums = examine(la, data, network if memory is not None else None, network.progress)
    if sums.examples != la.N:
        raise PeewitError(
            f"data has {sums.examples} examples, and the posterior was fitted to {la.N}; expected the training data."
        )
    check_energy(la, sums.energy)
    with torch.no_grad():
        step = NewtonStep.of(la, sums)
        evidence = at_trained(la).evidence()
        gamma = evidence.effective_dimensions
        findings = [
            check_fit(la.likelihood.bind(la.totals.form) if la.totals.form else la.likelihood, sums.kept),
            check_mode(la, step, float(gamma.sum())),
            *check_likelihood(la, sums, float(gamma.sum())),
            check_evidence(la, step, gamma),
            *check_invariances(la, sets),
            *check_groups(la, gamma),
            *check_rounding(la),
        ]
    return Diagnosis(
        findings=tuple(findings),
        groups=la.prior.names(la.space),
        gradients=step.gradients,
        decrements=step.decrements,
        ratios=step.ratios,
    )
