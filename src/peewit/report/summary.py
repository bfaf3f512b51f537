"""Three questions about a report, answered in plain words from its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..metrics.catalogue import describe, merit
from ..metrics.results import Curve, Estimate, MethodScores, Reliability, Results, Shift
from . import advice
from .advice import Advice
from .words import (
    apart,
    differ,
    examples,
    has_interval,
    has_training_noise,
    in_percent,
    main_score,
    number,
    plain,
    score,
    variation,
    wrong_width,
)

GOOD, FAIR, POOR, OPEN = "good", "fair", "poor", "open"
VAGUE = 0.05  # calibration error by chance, above which a test says nothing about calibration
FEW = 30  # test inputs below which a share without an interval says nothing


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A question, its verdict in a few words, how good that is, the reasons, and what to do with a line to type."""

    question: str
    verdict: str
    mood: str
    sentences: tuple[str, ...]
    advice: Advice | None = None


def answer_of(question: str, verdict: str, mood: str, sentences: tuple[str, ...]) -> Answer:
    """An answer without advice."""
    return Answer(question=question, verdict=verdict, mood=mood, sentences=sentences)


def answers(report: Results) -> tuple[Answer, Answer, Answer]:
    """Is it calibrated, what changed, what does it not know; each with what to do."""
    base = plain(report) or report.methods[0]
    first = judge_classes(base) if report.task == "classification" else judge_numbers(base, examples(report))
    if has_training_noise(report):
        first = with_training_noise(first)
    if plain(report) is None:
        text = f"These are the numbers of {base.name}: the plain network was not measured."
        first = replace(first, sentences=(*first.sentences, text))
    first, second, third = beside_constant(first, base, report), judge_change(report), judge_unknown(report)
    return (
        replace(first, advice=advice.on_calibration(report, first.mood, second.mood, first.verdict == USELESS)),
        replace(second, advice=advice.on_change(report, second.mood)),
        replace(third, advice=advice.on_unknown(report)),
    )


# Is it better than a constant?

USELESS = "No better than a constant"


def beside_constant(answer: Answer, base: MethodScores, report: Results) -> Answer:
    """With the first check of any network: a prediction that is the same for all inputs."""
    accuracy, constant = base.metrics.get("accuracy"), report.constant.get("accuracy")
    if accuracy is not None and constant is not None:
        worse = accuracy.value <= constant.value
        text = (
            f"It is right in {in_percent(accuracy.value)}; always naming the most frequent class would be in "
            f"{in_percent(constant.value)}."
        )
    elif (explained := base.metrics.get("r2")) is not None and math.isfinite(explained.value):
        worse = explained.value <= 0
        text = f"Its R² is {number(explained.value)}: 1 is perfect, and always predicting the mean has 0."
    else:
        return answer
    if worse:
        return replace(answer, verdict=USELESS, mood=POOR, sentences=(text, *answer.sentences))
    return replace(answer, sentences=(*answer.sentences[:1], text, *answer.sentences[1:]))


# Is it calibrated?


def chance_error(bins: Reliability) -> float:
    """The calibration error of a perfectly calibrated network, by chance, with these numbers of predictions per bin."""
    total = sum(bins.count)
    spread = 0.0
    for confidence, count in zip(bins.confidence, bins.count, strict=True):
        # The mean distance of a share among n draws from its probability is about sqrt(2 / pi) standard deviations.
        spread += math.sqrt(count * max(confidence * (1 - confidence), 0) * 2 / math.pi)
    return spread / total if total else 0.0


def excess(bins: Reliability) -> float:
    """Mean confidence minus accuracy: above zero, the network is too sure."""
    pairs = zip(bins.confidence, bins.accuracy, bins.count, strict=True)
    return sum(count * (sure - right) for sure, right, count in pairs) / max(sum(bins.count), 1)


def judge_classes(scores: MethodScores) -> Answer:
    """Whether the network is right as often as it says."""
    question = "Is the network calibrated?"
    bins, error = scores.reliability, scores.metrics.get("ece")
    if bins is None or error is None or not math.isfinite(error.value):
        return answer_of(question, "Not measured", OPEN, ("This report has no calibration error.",))
    chance, way = chance_error(bins), direction(bins, error.value)
    if error.value <= 2 * chance and chance > VAGUE:
        verdict, mood = "This test is too small to tell", OPEN
    elif error.value <= max(2 * chance, 0.005):
        verdict, mood = "Yes, as far as this test can tell", GOOD
    elif error.value < 0.05:
        verdict, mood = f"Nearly: it is a little {way}", FAIR
    else:
        verdict, mood = f"No: it is {way}", POOR
    sentences = [
        f"Its confidence and its accuracy differ by {points(error)} on average. With this many test inputs, "
        f"about {100 * chance:.1f} points would come from chance alone."
    ]
    return answer_of(question, verdict, mood, (*example(bins), *sentences))


def direction(bins: Reliability, error: float) -> str:
    """Which way confidence is wrong: both ways if most of the error cancels on average."""
    way = excess(bins)
    if abs(way) < error / 2:
        return "too sure of some predictions, and not sure enough of others"
    return "too sure of itself" if way > 0 else "not sure enough"


def points(value: Estimate) -> str:
    """Percentage points with their interval."""
    text = f"{100 * value.value:.1f} percentage points"
    return f"{text} (95 % interval: {100 * value.low:.1f} to {100 * value.high:.1f})" if has_interval(value) else text


def example(bins: Reliability) -> tuple[str, ...]:
    """The bin with the largest weighted gap, in words."""
    rows = [row for row in zip(bins.confidence, bins.accuracy, bins.count, strict=True) if row[2] >= 20]
    if not rows:
        return ()
    sure, right, count = max(rows, key=lambda row: abs(row[0] - row[1]) * row[2])
    return (f"Of {count:,} predictions with a mean confidence of {in_percent(sure)}, {in_percent(right)} were right.",)


def judge_numbers(scores: MethodScores, count: int | None) -> Answer:
    """Whether intervals hold the share of targets that they should."""
    question = "Is the network calibrated?"
    coverage = scores.metrics.get("coverage90")
    if coverage is None or not math.isfinite(coverage.value):
        return answer_of(question, "Not measured", OPEN, ("This report has no coverage of intervals.",))
    text = f"Its 90 % intervals held {in_percent(coverage.value)} of the test targets"
    if not has_interval(coverage) and (count or 0) < FEW:
        return answer_of(question, "This test is too small to tell", OPEN, (f"{text}, without an interval for it.",))
    text += (
        f" (95 % interval: {in_percent(coverage.low)} to {in_percent(coverage.high)})."
        if has_interval(coverage)
        else "."
    )
    if coverage.low <= 0.9 <= coverage.high and coverage.high - coverage.low > 4 * VAGUE:
        return answer_of(
            question, "This test is too small to tell", OPEN, (text, "90 % lies inside that wide interval.")
        )
    if coverage.low <= 0.9 <= coverage.high:
        return answer_of(question, "Yes, as far as this test can tell", GOOD, (text, "90 % lies inside that interval."))
    way = "too narrow: it is too sure of itself" if coverage.value < 0.9 else "too wide: it is not sure enough"
    near = abs(coverage.value - 0.9) < VAGUE
    return answer_of(question, f"{'Nearly' if near else 'No'}: intervals are {way}", FAIR if near else POOR, (text,))


def with_training_noise(answer: Answer) -> Answer:
    """Where the noise came from, which alone may be why intervals are too narrow."""
    text = (
        "There are no validation data, so its noise comes from the residuals on the training data. A network that "
        "overfits has smaller residuals there than on new data."
    )
    verdict = answer.verdict.replace(": it is too sure of itself", " with the noise of its training residuals")
    return replace(answer, verdict=verdict, sentences=(*answer.sentences, text))


# What changed?


def judge_change(report: Results) -> Answer:
    """The first method, compared with the plain network."""
    first, base = report.methods[0], plain(report)
    question = "What did Laplace change?" if report.posterior else f"What did {first.name} change?"
    if base is None:
        text = f"The plain network was not measured, so there is nothing to compare {first.name} with."
        return answer_of(question, "Nothing to compare with", OPEN, (text, *winner(report)))
    if base is first:
        others = ", ".join(each.name for each in report.methods[1:])
        text = "Only the plain network was measured" + (f", beside {others}." if others else ".")
        return answer_of("What did Laplace change?", "No posterior was measured", OPEN, (text,))
    names = ("nll", "ece", "accuracy") if report.task == "classification" else ("nll", "coverage90", "rmse")
    known = [name for name in names if both(name, first, base)]
    known.sort(key=lambda name: not differ(name, first, base))  # first what decides
    sentences = [compare_metric(name, first, base) for name in known]
    verdict, mood = balance(known, first, base)
    if mood == GOOD and (limit := least_demands(first, base, report)):
        verdict, mood = limit
    return answer_of(question, verdict, mood, (*sentences, *beside_constant_nll(first, report), *winner(report)))


def least_demands(first: MethodScores, base: MethodScores, report: Results) -> tuple[str, str] | None:
    """What keeps a change for the better from being good: intervals of the wrong width, or the NLL of a constant."""
    useless = bool(beside_constant_nll(first, report))
    if width := wrong_width(first):
        near = abs(first.metrics["coverage90"].value - 0.9) < VAGUE
        since = "still" if wrong_width(base) == width else "now"
        return f"Its intervals are {since} {'a little ' if near else ''}{width}", POOR if useless else FAIR
    if not useless:
        return None
    nll, constant = first.metrics["nll"], report.constant["nll"]
    surely = not (has_interval(nll) and nll.low <= constant.value)  # else chance may explain it
    return "By NLL it is no better than a constant", POOR if surely else FAIR


def beside_constant_nll(first: MethodScores, report: Results) -> tuple[str, ...]:
    """A sentence where the NLL is no smaller than that of a constant."""
    constant = report.constant.get("nll")
    if constant is None or not known_nll(first) or not first.metrics["nll"].value >= constant.value:
        return ()
    what = (
        "the frequencies of the classes"
        if report.task == "classification"
        else "the mean of the targets, with their deviation as noise,"
    )
    return (
        f"Its NLL is {number(first.metrics['nll'].value)}: {what} would have {number(constant.value)} for every input.",
    )


def both(name: str, first: MethodScores, base: MethodScores) -> bool:
    """Whether both methods have a metric, and neither is NaN."""
    return all(name in each.metrics and not math.isnan(each.metrics[name].value) for each in (first, base))


def balance(names: list[str], first: MethodScores, base: MethodScores) -> tuple[str, str]:
    """Better, worse, both, or nothing beyond chance; fewer errors alone say nothing about probabilities."""
    what = "probabilities" if "ece" in names or "accuracy" in names else "intervals"
    better: list[str] = []
    worse: list[str] = []
    for name in names:
        if differ(name, first, base):
            gained = merit(name, first.metrics[name].value) > merit(name, base.metrics[name].value)
            (better if gained else worse).append(name)
    if better and worse:
        return "Some things for the better, some for the worse", FAIR
    if better:
        return ("It makes fewer errors" if set(better) <= ERRORS else f"Its {what} can be trusted more"), GOOD
    if worse:
        return ("It makes more errors" if set(worse) <= ERRORS else f"Its {what} got worse"), POOR
    return "Nothing beyond chance", FAIR


ERRORS = {"accuracy", "rmse"}
WORDS = {
    "accuracy": "Accuracy",
    "ece": "The calibration error",
    "nll": "The surprise at the right answers (NLL)",
    "rmse": "The typical error (RMSE)",
    "coverage90": "The share of targets inside 90 % intervals",
}


def compare_metric(name: str, first: MethodScores, base: MethodScores) -> str:
    """A sentence about one metric, honest about chance."""
    first_value, base_value = first.metrics[name], base.metrics[name]
    percent = name in ("accuracy", "ece", "coverage90")
    text_before, text_now = number(base_value.value, percent), number(first_value.value, percent)
    if text_before == text_now:
        return f"{WORDS[name]} stayed at {text_before}."
    verb = "rose" if first_value.value > base_value.value else "fell"
    gained = merit(name, first_value.value) > merit(name, base_value.value)
    ideal = describe(name).ideal
    if ideal is not None:
        return f"{WORDS[name]} {verb} from {text_before} to {text_now}: {nearer(name, first, base, ideal)}."
    if differ(name, first, base):
        doubt = f"more than chance explains, and for the {'better' if gained else 'worse'}"
    elif has_interval(first_value) or has_interval(base_value):
        doubt = "other test inputs could show the opposite, so this may be chance"
    else:
        doubt = "without intervals nobody can say whether this is chance"
    return f"{WORDS[name]} {verb} from {text_before} to {text_now}: {doubt}."


def nearer(name: str, first: MethodScores, base: MethodScores, ideal: float) -> str:
    """Whether a share came nearer to what it should be, honest about chance."""
    goal = in_percent(ideal)
    if differ(name, first, base):
        gained = merit(name, first.metrics[name].value) > merit(name, base.metrics[name].value)
        return f"{'nearer to' if gained else 'farther from'} {goal}, by more than chance explains"
    if has_interval(first.metrics[name]) or has_interval(base.metrics[name]):
        return f"neither is nearer to {goal} by more than chance explains"
    return "without intervals nobody can say whether this is chance"


def winner(report: Results) -> tuple[str, ...]:
    """The method with the smallest NLL, if it is not the first one."""
    first, *others = report.methods
    if not known_nll(first):
        return ()
    others = [method for method in others if known_nll(method)]
    ahead = [method for method in others if method.metrics["nll"].value < first.metrics["nll"].value]
    if not ahead:
        return ()
    top = min(ahead, key=lambda method: method.metrics["nll"].value)
    if number(top.metrics["nll"].value) == number(first.metrics["nll"].value):
        return ()
    clear = differ("nll", first, top)
    return (
        f"By NLL, {top.name} did {'better' if clear else 'a little better, which may be chance'}: "
        f"{number(top.metrics['nll'].value)} against {number(first.metrics['nll'].value)}.",
    )


def known_nll(scores: MethodScores) -> bool:
    """Whether a method has an NLL that is a number."""
    return "nll" in scores.metrics and not math.isnan(scores.metrics["nll"].value)


# What does it not know?


def judge_unknown(report: Results) -> Answer:
    """Unknown inputs, corrupted inputs, and which predictions to hand over."""
    question = "What does it not know, and does it notice?"
    first = report.methods[0]
    sentences: list[str] = []
    described = [describe_detection(name, first, report.methods) for name in first.detection]
    sentences += [text for text, _ in described if text]
    sentences += describe_worst_shift(first, "shifts") + describe_worst_shift(first, "attacks")
    if not sentences:
        text = "Only test inputs were given, so this report cannot say what happens outside the test data."
        return answer_of(question, "Not measured", OPEN, (text, *describe_handing_over(report)))
    rates = [rate for _, rate in described if rate is not None]
    if not rates:
        return answer_of(question, "See what disturbs it", OPEN, (*sentences, *describe_handing_over(report)))
    verdict, mood = noticing(min(rates, key=lambda rate: rate.value))
    return answer_of(question, verdict, mood, (*sentences, *describe_handing_over(report)))


def noticing(rate: Estimate) -> tuple[str, str]:
    """An AUROC in words."""
    if has_interval(rate) and rate.high < 0.5:
        return "It is surer of unknown inputs than of known ones", POOR
    if has_interval(rate) and rate.low <= 0.5 and rate.value >= 0.6:
        return "Too few inputs to tell whether it notices unknown ones", OPEN
    for least, verdict, mood in (
        (0.9, "It notices most unknown inputs", GOOD),
        (0.75, "It often notices unknown inputs", FAIR),
        (0.6, "It notices some unknown inputs", FAIR),
    ):
        if rate.value >= least:
            return verdict, mood
    return "It hardly notices unknown inputs", POOR


def describe_detection(name: str, first: MethodScores, others: Sequence[MethodScores]) -> tuple[str, Estimate | None]:
    """A sentence about one set of unknown inputs, each method by its own score; and the first method's AUROC."""
    detections = first.detection[name]
    by = main_score(detections)
    if by is None or not math.isfinite(detections[by].auroc.value):
        return "", None
    value = detections[by].auroc
    within = f"{100 * value.low:.0f} to {100 * value.high:.0f}; " if has_interval(value) else ""
    text = (
        f"By {score(by)}, {first.name} is less sure of “{name}” than of a known input in {100 * value.value:.0f} of "
        f"100 pairs ({within}a coin would say 50)"
    )
    beside = []
    for method in others:
        if method is first or (best := main_score(method.detection.get(name, {}))) is None:
            continue
        rate = method.detection[name][best].auroc
        known = has_interval(value) or has_interval(rate)  # neither has one where all inputs agree
        chance = ", which may be chance" if known and not apart(value, rate) else ""
        if math.isfinite(rate.value):
            beside.append(f"{method.name} by {score(best)} in {100 * rate.value:.0f}{chance}")
    return f"{'; '.join([text, *beside])}.", value


def describe_worst_shift(first: MethodScores, kind: str) -> list[str]:
    """The corruption, or attack, under which it is most overconfident."""
    shifts: dict[str, Shift] = getattr(first, kind)
    known = {name: each for name, each in shifts.items() if has_curves(each)}
    if not known:
        return []

    def gap(name: str) -> float:
        last = known[name].metrics
        return last["confidence"][-1].value - last["accuracy"][-1].value

    name = max(known, key=gap)
    right, sure = known[name].metrics["accuracy"], known[name].metrics["confidence"]
    which = {"attacks": "attack", "shifts": "corruption"}[kind]
    which = f"the {which} that misleads it most" if len(known) > 1 else f"the {which} tried"
    return [
        f"Under {which} ({variation(name)}, at its strongest) accuracy goes from {in_percent(right[0].value)} to "
        f"{in_percent(right[-1].value)}, and its confidence from {in_percent(sure[0].value)} to "
        f"{in_percent(sure[-1].value)}: {outcome(right, sure)}."
    ]


def has_curves(shift: Shift) -> bool:
    """Whether the first and last accuracy and confidence of a corruption are finite."""
    curves = [shift.metrics.get(name, ()) for name in ("accuracy", "confidence")]
    return all(curve and math.isfinite(curve[0].value) and math.isfinite(curve[-1].value) for curve in curves)


def outcome(right: Sequence[Estimate], sure: Sequence[Estimate]) -> str:
    """Whether confidence follows accuracy."""
    gap = sure[-1].value - right[-1].value
    if gap > 0.1:
        return f"it is then too sure, by {100 * gap:.0f} points"
    if right[0].value - right[-1].value < 0.02:
        return "it copes with that"
    if sure[0].value - sure[-1].value < 0.02:
        return "its confidence does not fall with it"
    return "it notices"


def at(curve: Curve, share: float) -> float | None:
    """The error among the surest share of predictions."""
    near = min(range(len(curve.x)), key=lambda index: abs(curve.x[index] - share), default=None)
    return None if near is None or abs(curve.x[near] - share) > 0.05 else curve.y[near]


def describe_handing_over(report: Results) -> tuple[str, ...]:
    """The error that is left when a person decides the least sure fifth."""
    curve = report.methods[0].risk_coverage
    risk_of_all, risk_of_kept = at(curve, 1.0), at(curve, 0.8)
    if risk_of_all is None or risk_of_kept is None or report.task != "classification":
        return ()
    if not (math.isfinite(risk_of_all) and math.isfinite(risk_of_kept)):
        return ()
    before, after = in_percent(risk_of_all), in_percent(risk_of_kept)
    change = (
        f"stay at {before}"
        if before == after
        else f"{'fall' if risk_of_kept < risk_of_all else 'rise'} from {before} to {after}"
    )
    return (f"If a person decided the least sure fifth, its errors on the rest would {change}.",)
