"""What to do about each answer of the summary, with the line to type."""

from __future__ import annotations

from dataclasses import dataclass

from ..likelihoods import NAMES_BY_CLASS
from ..metrics.results import MethodScores, Results
from .words import differ, has_training_noise, has_validation, plain, wrong_width

MEASURE_AGAIN = "pw.evaluate(la, test, validation=validation)"


@dataclass(frozen=True)
class Advice:
    """What to do, and the code for it."""

    text: str
    code: str


def on_calibration(report: Results, mood: str, change: str, useless: bool) -> Advice | None:
    """What to do about a network that is not calibrated, or no better than a constant; `change`: the second mood."""
    if useless:
        fitted = "la" if report.posterior else f"pw.fit(model, train, {likelihood(report)})"
        return Advice(
            "Look at its training, and at the scaling of inputs and targets. If this finds nothing, it overfits: it "
            "needs more data, weight decay or an earlier stop",
            f"print({fitted}.diagnose(train))",
        )
    if mood != "poor":
        return None
    if has_training_noise(report):
        return Advice("Give it validation data, from which its noise is then taken", MEASURE_AGAIN)
    if report.posterior and plain(report) is not None and change == "good":
        return Advice("Predict with the posterior in place of the network", predictions(report))
    return on_change(report, mood)


def on_change(report: Results, mood: str) -> Advice | None:
    """Another way to tune where probabilities got worse, or where a method that is as cheap did better."""
    if not report.posterior:
        return Advice("Fit a posterior", f"la = pw.fit(model, train, {likelihood(report)}).tune(train=train)")
    trace = report.posterior.get("trace")
    method = trace.get("method") if isinstance(trace, dict) else None
    validated = method in ("validation", "grid")
    if method is None:
        return Advice("The prior was not tuned. Tune it on the training data", "la = la.tune(train=train)")
    if mood != "poor" and not behind(report) and not wrong_width(report.methods[0]):
        return Advice("Predict with the posterior", predictions(report)) if mood == "good" else None
    if not validated and has_validation(report):
        return Advice("You have validation data. Tune on them", on_validation(report, method))
    if method in ("evidence", "fixed_point"):
        return Advice(
            "Tune so that predictions explain the training data, or on data that the network was not trained on",
            f"la = la.tune(train=train)  # or {on_validation(report, method).removeprefix('la = ')}",
        )
    if not validated:
        return Advice("Tune on data that the network was not trained on", on_validation(report, method))
    return Advice(
        "Let the few recipes worth trying compete",
        f"print(pw.recommend(model, train, {likelihood(report)}, validation=validation))",
    )


def on_validation(report: Results, method: str | None) -> str:
    """The line that tunes on validation data: a linear mode that was asked for needs the training data."""
    kept = report.posterior.get("linear_mode") is True and method != "training"
    return f"la = la.tune({'train=train, ' if kept else ''}validation=validation)"


def on_unknown(report: Results) -> Advice | None:
    """How to flag unknown inputs, or how to measure whether they are noticed."""
    if not any(method.detection for method in report.methods):
        return Advice("Measure it with inputs of another kind", 'pw.evaluate(la, test, ood={"name": inputs})')
    if not report.posterior:
        return None
    return Advice("Hand over inputs for which this is large", "la.predict(x).epistemic")


def likelihood(report: Results) -> str:
    """As it is typed: its name, or a variable where it has none."""
    name = NAMES_BY_CLASS.get(str(report.settings.get("likelihood")))
    return "likelihood" if name is None else f'"{name}"'


def predictions(report: Results) -> str:
    """The line that predicts."""
    return "la.predict(x).probs" if report.task == "classification" else "la.predict(x).interval(0.9)"


def behind(report: Results) -> bool:
    """Whether a method that needs no more networks has a surely smaller NLL."""
    first, *others = report.methods
    rivals = [each for each in others if each is plain(report) or each.name.lower() == "temperature scaling"]
    return any(better(rival, first) for rival in rivals)


def better(rival: MethodScores, first: MethodScores) -> bool:
    """Whether the NLL is smaller by more than chance explains."""
    if "nll" not in rival.metrics or "nll" not in first.metrics:
        return False
    return rival.metrics["nll"].value < first.metrics["nll"].value and differ("nll", first, rival)
