"""What may be wrong with a trained network, its prior or its likelihood: one function each, from sums over the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..posterior.resolution import worst_rounding
from ..priors.groupings import together
from ..tuning.by_evidence import OFF, list_groups
from .findings import Finding, fine, note, warning
from .gradients import GradientSums
from .noise import APART, CERTAIN, check_residuals, validation_call

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

NATS, SHARE = 1.0, 0.1  # the loss may be so many nats above its minimum, and so many per effective dimension more
TAILS = 9.0  # mean fourth power of residuals of mean square one; three for normal ones
TWICE = 2.0  # how far precisions chosen here and there may be apart


def at_trained(la: PosteriorState) -> PosteriorState:
    """The posterior at the trained weights."""
    return la if la.linear_mode is None else replace(la, linear_mode=None)


@dataclass(frozen=True, kw_only=True)
class NewtonStep:
    """The gradient of the regularised loss at the trained weights, and Newton's step along it, by groups."""

    gradients: Tensor
    decrements: Tensor
    ratios: Tensor
    norm: float  # of the whole gradient, over its noise
    sure: bool  # whether the mode itself is known, not one step towards it

    @staticmethod
    def of(la: PosteriorState, sums: GradientSums) -> NewtonStep:
        """`g = data_weight * dE/dtheta + delta (theta - mu)`, and `P^-1 g`."""
        groups = la.prior.stretches(la.space)
        data_weight = float(la.likelihood.noise_precision) / la.temperature
        away = (la.weights - la.prior.centre(la.space, la.weights)).to(sums.gradient)
        slope = data_weight * sums.gradient + la.prior.delta(la.space, la.weights).detach().to(away) * away
        newton = la.precision.solve(slope.to(la.weights)).to(away)
        noise = data_weight**2 * sums.noise(groups)
        linear = la.linear_mode if la.has_own_linear_mode else None
        from_centre = away - newton if linear is None else away + linear.displacement.to(away)
        squares = groups.sums(slope.square())
        ratios = 1.0 if la.prior.base is None else la.prior.base.to(away)  # of precisions within a group
        return NewtonStep(
            gradients=(squares / noise).sqrt(),
            decrements=0.5 * groups.sums(slope * newton),
            ratios=groups.sums(ratios * away.square()) / groups.sums(ratios * from_centre.square()),
            norm=math.sqrt(float(squares.sum()) / float(noise.sum())) if float(noise.sum()) > 0 else math.nan,
            sure=linear is not None,
        )

    @property
    def decrement(self) -> float:
        """Nats, of all groups."""
        return float(self.decrements.sum())


def check_mode(la: PosteriorState, step: NewtonStep, gamma: float) -> Finding:
    """Whether the weights are near a mode of the regularised loss."""
    nats, allowed = step.decrement, NATS + SHARE * gamma
    numbers = {"decrement": nats, "gradient": step.norm, "effective_dimensions": gamma}
    where = f"{nats:.3g} nats above its minimum, by one step of Newton's method, with {gamma:.3g} effective dimensions"
    if not nats > allowed:
        return fine("mode", f"The network is near a mode of its regularised loss: {where}.", numbers)
    if step.sure:
        sentence = (
            f"The network is not at a mode of its regularised loss, and need not be: {where}. The evidence of this "
            "posterior is taken at the mode of the linear model."
        )
        return fine("mode", sentence, numbers)
    sure = math.isfinite(step.norm) and step.norm > 1
    noise = f"; its gradient is {step.norm:.3g} times the noise of the data" if sure else ""
    worst = int(step.decrements.argmax())
    most = "" if len(step.decrements) == 1 else f", most of it in {la.prior.names(la.space)[worst]!r}"
    sentence = f"The network is not at a mode of its regularised loss: {where}{noise}{most}."
    if data := data_that_chose(la):
        return note("mode", f"{sentence} {meaning_beside(data)}", "", numbers)
    advice = "Or train further, with a weight decay that is the prior's (precision / N for a mean loss)."
    return warning("mode", sentence, f"{advice_by_purpose(la)} {advice}", numbers)


def data_that_chose(la: PosteriorState) -> str:
    """Whose predictions had a say in the precisions, "training" or "validation" data; "" where the evidence chose."""
    trace = la.trace
    if trace is None or (trace.raised == 1 and bool((trace.precisions == trace.precisions[0]).all())):
        return ""  # not tuned, or its noise and temperature alone
    if trace.method == "training":
        return "training"
    return "validation" if trace.objective == "validation NLL" else ""


def meaning_beside(data: str) -> str:
    """What an odd evidence means where those data chose the precisions."""
    return (
        f"The {data} data chose the precisions, so predictions need nothing; it matters where models are compared by "
        "the evidence."
    )


def advice_by_purpose(la: PosteriorState) -> str:
    """What to type for predictions, and what for the evidence itself."""
    return (
        f"For predictions, la.tune(train=...), or {validation_call(la)} with data that the network was not trained on. "
        "To compare models by the evidence, la.tune(at='linear_mode', train=...)."
    )


def check_likelihood(la: PosteriorState, sums: GradientSums, gamma: float) -> Iterator[Finding]:
    """Whether the loss is a likelihood, and fits the residuals."""
    caveat = la.likelihood.caveat
    if caveat:
        yield note(
            "likelihood",
            f"The evidence is not a marginal likelihood: {caveat}.",
            "Compare priors of this one network by it, not networks; or use the loss without these.",
        )
    residuals = sums.residuals
    if residuals.kind in ("squares", "counts"):
        yield check_residuals(la, residuals, gamma)
        tails = residuals.second / residuals.count / max((residuals.first / residuals.count) ** 2, 1e-300)
        if tails > TAILS and residuals.count > 30 and residuals.kind == "squares":
            yield note(
                "tails",
                f"Residuals have heavy tails: their mean fourth power is {tails:.3g} times the squared mean square (3 "
                f"for normal ones), the largest {residuals.largest / math.sqrt(residuals.first / residuals.count):.3g} "
                "times their size.",
                "Look for outliers, transform the targets, or use 'heteroscedastic' where the noise depends on inputs.",
                {"kurtosis": tails, "largest": residuals.largest},
            )
    if residuals.kind == "surprises":
        yield check_confidence(sums)


def check_confidence(seen: GradientSums) -> Finding:
    """Surprise at the labels against the entropy that was expected of them."""
    residuals = seen.residuals
    number = max(residuals.count, 1.0)
    surprise, entropy = residuals.first / number, residuals.second / number
    gap = surprise - entropy
    error = math.sqrt(max(residuals.spread / number - gap**2, 0.0) / number)
    numbers = {"surprise": surprise, "entropy": entropy, "error": error}
    ratio = max(surprise, 1e-300) / max(entropy, 1e-300)
    off = max(ratio, 1 / ratio) > APART and abs(gap) > max(CERTAIN * error, 0.01)
    words = f"on its training data it expects {entropy:.3g} nats a label, and sees {surprise:.3g}"
    if not off:
        return fine("confidence", f"The network is as sure as it should be: {words}.", numbers)
    if gap > 0:
        return warning(
            "confidence",
            f"The network is too sure of itself, even on its training data: {words}.",
            "Its loss was not the cross entropy of these labels, or it was not trained to its end: check labels, class "
            "weights and logit scales, or train further.",
            numbers,
        )
    return warning(
        "confidence",
        f"The network is less sure than its training data warrant: {words}.",
        "As after training with label smoothing, mixup, strong augmentation or dropout, or stopping early; the labels "
        "then have no likelihood under it. Give the loss that it was trained with, such as Categorical(label_smoothing="
        "...), or tune a temperature on validation data.",
        numbers,
    )


def check_evidence(la: PosteriorState, step: NewtonStep, gamma: Tensor) -> Finding:
    """Whether the evidence at the trained weights and that at the linear mode disagree."""
    if step.sure:
        nats = float(la.log_evidence()) - float(at_trained(la).log_evidence())
        sentence = f"The evidence at the mode of the linear model is {nats:.4g} nats above that at the trained weights"
    else:
        nats = step.decrement
        sentence = (
            f"The evidence at the mode of the linear model is about {nats:.3g} nats above that at the trained weights"
        )
    determined = gamma >= 1.0
    changes = torch.where(determined & torch.isfinite(step.ratios) & (step.ratios > 0), step.ratios, 1.0).log().abs()
    worst = int(changes.argmax())
    factor = float(step.ratios[worst]) if float(changes[worst]) > 0 else 1.0
    numbers = {"nats": nats, "ratio": factor}
    name = la.prior.names(la.space)[worst]
    apart = max(factor, 1 / factor) >= TWICE
    if factor != 1.0:
        sentence += f", and it would give {name!r} {factor:.3g} times the precision"
    total = float(gamma.sum())
    tuned = step.sure and la.trace is not None  # so the advice was followed
    if tuned or (not nats > NATS + SHARE * total and not apart):
        return fine("evidence", f"{sentence}.", numbers)
    sentence += ": they would choose different priors." if apart else "."
    if data := data_that_chose(la):
        return note("evidence", f"{sentence} {meaning_beside(data)}", "", numbers)
    return warning("evidence", sentence, advice_by_purpose(la), numbers)


def check_invariances(la: PosteriorState, sets: Sequence[tuple[str, ...]]) -> Iterator[Finding]:
    """Precisions that weights share whose scale does not matter with others whose scale does."""
    across = la.prior.straddling(la.space, sets)
    inside = [invariant_set for invariant_set in sets if any(name in la.space.names for name in invariant_set)]
    numbers = {"sets": float(len(inside)), "straddled": float(len(across))}
    if across:
        names = ", ".join(f"{{{together(invariant_set)}}}" for invariant_set in across[:3])
        names += ", ..." if len(across) > 3 else ""
        yield note(
            "scales",
            f"The scale of {len(across)} of {len(inside)} sets of weights changes no output, but it changes the "
            f"precision that they share with other weights: {names}.",
            "Use one precision per tensor, as Prior.scale_invariant(model, data) has it, or Prior.g_prior().",
            numbers,
        )
    elif inside:
        words = (
            f"{len(inside)} sets of weights can be scaled without a change of outputs, and each has its own precisions."
        )
        yield fine("scales", words, numbers)


def check_rounding(la: PosteriorState) -> Iterator[Finding]:
    """Rounding of the curvature beside the prior; a diagonal has none to speak of."""
    worst = worst_rounding(la)
    if worst is None:
        return
    numbers = {"share": worst.share}
    if worst.share > 1:
        yield warning("rounding", worst.sentence, worst.advice, numbers)
    else:
        words = f"Rounding of the curvature is {worst.share:.1g} of the prior precision at most, in {worst.name!r}."
        yield fine("rounding", words, numbers)


def check_groups(la: PosteriorState, gamma: Tensor) -> Iterator[Finding]:
    """Groups that the prior alone holds."""
    off = (gamma < OFF) & (la.prior.stretches(la.space).sizes > 0)
    if bool(off.any()):
        names = list_groups(la.prior.names(la.space), off)
        text = f"{names} switched off: less than {OFF:g} effective dimensions each."
        if data := data_that_chose(la):
            text, advice = f"{text.rstrip('.')}, as the {data} data chose.", ""
        else:
            advice = "The prior alone holds them: right where the evidence chose it, else lower their precision."
        yield note("groups", text, advice, {"off": float(off.sum())})
