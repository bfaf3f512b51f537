"""What may be asked of `predict`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ..likelihoods import Likelihood
from ..messages.arguments import check_samples
from ..messages.errors import PeewitError
from ..messages.names import check_name, nearest
from ..posterior.linear_mode import At, check_at
from .families import family_of
from .prediction import LinkName

POINTS = 4096  # quasi-random outputs that averages are taken over: about 1e-3 for ten classes
WEIGHTS = 64  # draws of the weights
PredictMethod: TypeAlias = Literal["linearised", "sampled"]
"""Whose outputs are averaged: those of the linearised network, or of the network itself at drawn weights."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What was asked of `predict`, checked."""

    method: PredictMethod
    link: LinkName
    samples: int
    joint: bool
    create_graph: bool
    at: At = "trained_weights"

    @staticmethod
    def of(
        likelihood: Likelihood,
        method: PredictMethod,
        link: LinkName | None = None,
        samples: int | None = None,
        joint: bool = False,
        create_graph: bool = False,
        at: At = "trained_weights",
    ) -> PredictOptions:
        """Names checked against what the likelihood's family has."""
        check_name(method, get_args(PredictMethod), "method")
        links = family_of(likelihood).links
        known = tuple(links) if method == "linearised" else ("mc",)
        if link is not None and link not in known:
            raise PeewitError(
                f"link={link!r} with {type(likelihood).__name__} and method={method!r}; "
                f"{nearest(link, known)}Known there: {', '.join(known)}."
            )
        number = (WEIGHTS if method == "sampled" else POINTS) if samples is None else check_samples(samples)
        chosen = link if link is not None else known[0]
        if joint and not links[chosen].joint:
            raise PeewitError(f"joint=True with link={chosen!r}; expected link='mc', which is joint over inputs.")
        check_at(at)
        if at == "linear_mode" and method == "sampled":
            raise PeewitError(
                "at='linear_mode' with method='sampled': this method evaluates the network at sampled weights, so it "
                "cannot be centred on the linear mode; use method='linearised'."
            )
        return PredictOptions(method=method, link=chosen, samples=number, joint=joint, create_graph=create_graph, at=at)
