"""Which curvature is measured."""

from __future__ import annotations

from dataclasses import dataclass

from ..likelihoods import Form, Likelihood
from ..messages.errors import PeewitError
from .kinds import AUTO_LIMIT, GGN, Auto, CurvatureKind, Hessian
from .restart import PassRestart


@dataclass
class KindChoice:
    """The kind of curvature: as asked, or chosen by the first batch where that is left open."""

    kind: CurvatureKind | Auto | Hessian
    reason: str = ""  # for a choice
    auto: bool = False  # whether it was chosen here

    def of(self, form: Form, likelihood: Likelihood) -> CurvatureKind:
        """The kind for a batch of some form."""
        kind = self.kind
        if isinstance(kind, Auto):
            kind, self.reason = kind.choose(form, likelihood)
            self.kind, self.auto = kind, True
        elif self.auto and kind.name == "ggn" and GGN().count(form, likelihood) > AUTO_LIMIT:
            self.kind, self.reason = Auto().choose(form, likelihood)
            if self.kind.name != "ggn":
                raise PassRestart(f"curvature='auto': {self.reason}, which was seen")
        if isinstance(kind, Hessian):
            raise PeewitError("curvature='hessian' has no factor; use structure='full', or products.")
        return kind
