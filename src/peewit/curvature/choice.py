"""Which curvature is measured."""

from __future__ import annotations

from dataclasses import dataclass

from ..likelihoods import Form, Likelihood
from ..messages.errors import PeewitError
from .kinds import AUTO_LIMIT, GGN, Auto, CurvatureKind, Hessian


@dataclass(frozen=True)
class KindChoice:
    """The kind of curvature: the one that was asked for, or with `Auto` the one that the batches so far allow."""

    kind: CurvatureKind | Auto | Hessian
    reason: str = ""  # for a choice
    auto: bool = False  # whether the library chose it

    def after(self, form: Form, likelihood: Likelihood) -> KindChoice:
        """The choice once a batch of some form was seen."""
        kind = self.kind
        if isinstance(kind, Hessian):
            raise PeewitError("curvature='hessian' has no factor; use structure='full', or products.")
        too_many = self.auto and kind.name == "ggn" and GGN().count(form, likelihood) > AUTO_LIMIT
        if not isinstance(kind, Auto) and not too_many:
            return self
        chosen, reason = Auto().choose(form, likelihood)
        return KindChoice(chosen, reason, auto=True)
