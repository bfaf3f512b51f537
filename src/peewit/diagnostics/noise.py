"""The noise, or what else was predicted to vary, beside the network's residuals on its training data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..likelihoods import WithNoise
from .findings import Finding, Severity, fine, note
from .gradients import Residuals

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

APART, FAR = 1.5, 2.5  # factors between the noise and residuals: a warning, and a problem
CERTAIN = 4.0  # standard errors beyond which it is not by chance
ONE_IN = 10  # so many outputs have to be apart for a finding about them: a single one of few
MOST = 1e6  # the largest factor that is told


@dataclass(frozen=True, kw_only=True)
class NoiseFactor:
    """The standard deviation that was predicted over the root mean square of residuals."""

    value: float
    error: float  # of its logarithm

    @staticmethod
    def of(first: float, second: float, count: float) -> NoiseFactor:
        """From sums of the second and the fourth powers of standardised residuals."""
        mean = first / count
        if not mean * MOST**2 > 1:
            return NoiseFactor(value=MOST, error=0.0)
        spread = max(second / count - mean**2, 0.0) / count
        return NoiseFactor(value=mean**-0.5, error=0.5 * math.sqrt(spread) / mean)

    @property
    def apart(self) -> float:
        """How far it is from one, either way; one where that may be by chance."""
        size = max(self.value, 1 / self.value)
        return size if math.log(size) > CERTAIN * self.error else 1.0


@dataclass(frozen=True, kw_only=True)
class NoiseFactors:
    """Of all residuals; as they are, corrected for effective dimensions, and by output."""

    plain: NoiseFactor
    corrected: NoiseFactor | None  # by `n / (n - gamma)`; None where as many dimensions as residuals are in use
    outputs: Sequence[NoiseFactor]  # none where there is one output
    gamma: float
    count: float

    @staticmethod
    def of(residuals: Residuals, gamma: float) -> NoiseFactors:
        """The factors, from sums of residuals."""
        plain, count = NoiseFactor.of(residuals.first, residuals.second, residuals.count), residuals.count
        corrected = None
        if count - gamma >= 1:
            corrected = NoiseFactor(value=plain.value * math.sqrt((count - gamma) / count), error=plain.error)
        sums = [] if residuals.by_output is None else residuals.by_output.T.tolist()
        outputs = [NoiseFactor.of(first, second, count / len(sums)) for first, second in sums if len(sums) > 1]
        return NoiseFactors(plain=plain, corrected=corrected, outputs=outputs, gamma=gamma, count=count)

    @property
    def uneven(self) -> Sequence[int]:
        """Outputs that are apart, the farthest first; none where they are as all are, or too few of many."""
        apart = [number for number, each in enumerate(self.outputs) if each.apart > APART]
        apart.sort(key=lambda number: -self.outputs[number].apart)
        ratios = [self.outputs[number].value / self.plain.value for number in apart]
        few = len(apart) < max(1, len(self.outputs) // ONE_IN)
        return [] if few or not any(max(ratio, 1 / ratio) > APART for ratio in ratios) else apart

    @property
    def size(self) -> float:
        """How far the noise is from residuals: from some of the outputs', from all, or from corrected ones."""
        if uneven := self.uneven:
            return max(self.plain.apart, self.outputs[uneven[max(1, len(self.outputs) // ONE_IN) - 1]].apart)
        if self.plain.apart > APART or self.corrected is None or self.corrected.value > 1:
            return self.plain.apart
        return min(self.corrected.apart, FAR)  # a correction alone makes no problem

    @property
    def explained(self) -> bool:
        """Whether effective dimensions may be why residuals are smaller than the noise."""
        large = self.plain.apart > APART and self.plain.value > 1
        return large and (self.corrected is None or self.corrected.value <= APART)

    @property
    def severity(self) -> Severity:
        """Above 1.5 a warning, above 2.5 a problem."""
        return "problem" if self.size > FAR else "warning" if self.size > APART else "fine"


def check_residuals(la: PosteriorState, residuals: Residuals, gamma: float) -> Finding:
    """The noise against residuals of the network itself; what is epistemic does not count."""
    if residuals.kind == "counts":
        return check_counts(residuals, gamma)
    factors = NoiseFactors.of(residuals, gamma)
    noise = float(la.likelihood.factor) if isinstance(la.likelihood, WithNoise) else None
    numbers = numbers_of(factors, noise)
    what = "predicted deviation" if noise is None else "noise"
    words = words_of(factors, noise)
    if factors.severity == "fine":
        return fine("residuals", f"The {what} fits the residuals: {words}.", numbers)
    if uneven := factors.uneven:
        by_output = ", ".join(
            f"{write_factor(factors.outputs[number].value)} times in {number}" for number in uneven[:5]
        )
        sentence = (
            f"The {what} fits some outputs and not others: {words}. By output, counted from 0, it is {by_output}"
            f"{', ...' if len(uneven) > 5 else ''}. Intervals are too wide where that is above 1, and too narrow where "
            "it is below."
        )
        advice = advice_by_output(la)
    elif chosen_by(la) == "validation NLL" and factors.plain.value > 1:
        sentence = f"The {what} is large: {words}. Validation data chose it: the network is closer to its training "
        sentence += "targets than to new ones."
        advice = "Intervals are as wide as those data ask for. To narrow them, train with more data, or stop earlier."
        return note("residuals", sentence, advice, numbers)
    else:
        sentence, advice = f"The {what} is too {effect_of(la, factors, words)}", advice_of(la, factors, numbers)
    return Finding(topic="residuals", severity=factors.severity, sentence=sentence, advice=advice, numbers=numbers)


def numbers_of(factors: NoiseFactors, noise: float | None) -> dict[str, float]:
    """Numbers behind the finding."""
    numbers = {"factor": factors.plain.value, "error": factors.plain.error, "count": factors.count}
    numbers |= {f"factor of output {number}": each.value for number, each in enumerate(factors.outputs[:100])}
    if noise is not None:
        numbers |= {"noise": noise, "residual": 0.0 if factors.plain.value >= MOST else noise / factors.plain.value}
    if factors.corrected is not None and factors.plain.value < MOST:
        numbers["corrected_factor"] = factors.corrected.value
        if noise is not None:
            numbers["corrected"] = noise / factors.corrected.value
    return numbers


def write_factor(factor: float) -> str:
    """A factor in print."""
    return f"{factor:.3g}" if factor < MOST else "over a million"


def words_of(factors: NoiseFactors, noise: float | None) -> str:
    """By which factor one is larger than the other, without and with the correction."""
    factor, corrected = factors.plain.value, factors.corrected
    correction = f"; corrected for {factors.gamma:.3g} effective dimensions of {factors.count:g} residuals "
    if factor >= MOST:
        return "it is over a million times the network's residuals on its training data"
    if noise is None:
        words = f"it is {write_factor(factor)} times the network's residuals on its training data"
        return words + ("" if corrected is None else f"{correction}{write_factor(corrected.value)} times")
    residual = noise / factor
    if factor >= 1:
        words = (
            f"it is {write_factor(factor)} times the network's residuals on its training data, {noise:.3g} against "
            f"{residual:.3g} (root mean square)"
        )
    else:
        words = (
            f"the network's residuals on its training data are {1 / factor:.3g} times as large, {residual:.3g} (root "
            f"mean square) against {noise:.3g}"
        )
    return words + ("" if corrected is None else f"{correction}they are {noise / corrected.value:.3g}")


def chosen_by(la: PosteriorState) -> str:
    """The score by which tuning chose the noise; "" where it did not."""
    trace = la.trace
    return "" if trace is None or len(set(trace.noises)) < 2 else trace.objective


def is_guess(la: PosteriorState, factors: NoiseFactors) -> bool:
    """Whether the noise may be right though residuals are smaller, because the network follows its training targets."""
    return factors.explained or (factors.plain.value > 1 and chosen_by(la) != "")


def effect_of(la: PosteriorState, factors: NoiseFactors, words: str) -> str:
    """Large or small, and what that means."""
    if factors.plain.apart > APART and factors.plain.value > 1:
        guess = is_guess(la, factors)
        unless = ", unless the network is closer to its training targets than to new ones" if guess else ""
        return f"large: {words}. Intervals are too wide{unless}."
    return f"small: {words}. Intervals {'are' if factors.plain.apart > APART else 'may be'} too narrow."


def advice_of(la: PosteriorState, factors: NoiseFactors, numbers: dict[str, float]) -> str:
    """Data that were not trained on decide; else a number."""
    advice = la.likelihood.residual_advice
    if not isinstance(la.likelihood, WithNoise):
        return advice
    advice = f"{advice} on data that the network was not trained on, {validation_call(la)}"
    if is_guess(la, factors) or factors.plain.value >= MOST:  # residuals of an interpolation say nothing of the noise
        return f"{advice}; or set a noise that is known otherwise, la.with_noise(...)."
    low, high = numbers["residual"], numbers.get("corrected", numbers["residual"])
    if high / low > APART:
        return f"{advice}; or set it, la.with_noise(...), from {low:.3g} to {high:.3g}."
    return f"{advice}; or set it, la.with_noise({high:.3g})."


def advice_by_output(la: PosteriorState) -> str:
    """The likelihood's own; a noise is then tuned."""
    advice = la.likelihood.uneven_advice
    if not isinstance(la.likelihood, WithNoise):
        return advice
    return f"{advice} on data that the network was not trained on, {validation_call(la)}."


def validation_call(la: PosteriorState) -> str:
    """How to tune on validation data."""
    return f"la.tune('validation', validation=...{'' if la.linear_mode is None else ', train=...'})"


def check_counts(residuals: Residuals, gamma: float) -> Finding:
    """Whether counts vary as a Poisson's: squared standardised residuals sum to `n - gamma`."""
    plain = NoiseFactor.of(residuals.first, residuals.second, residuals.count)
    ratio = residuals.count / max(residuals.count - gamma, 1.0) / plain.value**2
    size = max(ratio, 1 / ratio)
    numbers = {"dispersion": ratio, "error": 2 * plain.error, "count": residuals.count}
    words = f"squared standardised residuals sum to {ratio:.3g} times what they should"
    if size <= APART or math.log(size) <= 2 * CERTAIN * plain.error:
        return fine("residuals", f"Counts vary as predicted: {words}.", numbers)
    if ratio > 1:
        sentence = f"Counts vary more than predicted: {words}. Intervals are too narrow."
        advice = "Counts that vary more than a Poisson's need a Custom likelihood, such as a negative binomial."
    else:
        sentence = f"Counts vary less than predicted: {words}. Intervals are too wide."
        advice = (
            "Stop the training earlier where the network follows single counts; counts of events that do not come "
            "independently need a Custom likelihood."
        )
    severity: Severity = "problem" if size > FAR**2 else "warning"
    return Finding(topic="residuals", severity=severity, sentence=sentence, advice=advice, numbers=numbers)
