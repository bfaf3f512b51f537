"""The sections of the page that are text and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..figures.style import sentence
from ..metrics.catalogue import describe
from ..metrics.results import Estimate, MethodScores, Results
from .advice import Advice
from .glossary import BOTH, METHOD_TERMS, OF_POSTERIORS, TERMS
from .markup import Markup, element, fold, paragraphs, section, table
from .summary import Answer, answers
from .words import best, differ, examples, interval, number, setting_text

MAIN = {
    "classification": ("accuracy", "ece", "nll", "brier", "aurc"),
    "regression": ("rmse", "r2", "coverage90", "nll", "crps", "sharpness"),
}
LEGEND = (
    "Below each number is its 95 % interval when the test inputs are resampled. ★ marks the best value of a column, "
    "≠ a value that differs from the first row by more than chance explains, on the same resampled inputs."
)
CONSTANT = "A constant"
MOST_LETTERS = 170  # of the sentences on a card that are not folded
MOODS = {"good": "✓", "fair": "≈", "poor": "!", "open": "?"}


def summary(report: Results, figures: Markup) -> Markup:
    """What was evaluated, the three questions, and the figures that show most."""
    first = report.methods[0]
    lead = element("p", element("strong", first.name), ": ", first.description, class_="lead")
    cards = element("div", [card(each) for each in answers(report)], class_="cards")
    return section("summary", "In short", lead, cards, figures)


def card(answer: Answer) -> Markup:
    """One question with its answer, what to do, and further reasons to unfold: cards are about as long."""
    mark = element("span", MOODS[answer.mood], class_="mark", aria_hidden="true")
    shown = 1
    while shown < len(answer.sentences) and sum(map(len, answer.sentences[: shown + 1])) <= MOST_LETTERS:
        shown += 1
    more = answer.sentences[shown:]
    return element(
        "article",
        element("h3", answer.question),
        element("p", mark, " ", answer.verdict, class_="verdict"),
        paragraphs(answer.sentences[:shown]),
        fold("More", paragraphs(more)) if more else None,
        advice_line(answer.advice) if answer.advice is not None else None,
        class_=f"card {answer.mood}",
    )


def advice_line(advice: Advice) -> Markup:
    """What to do, and the line to type."""
    return element("p", f"{advice.text}: ", element("code", advice.code), class_="advice")


def methods(report: Results) -> Markup:
    """Every method with its numbers."""
    names = list(dict.fromkeys(name for each in report.methods for name in each.metrics))
    main = [name for name in MAIN.get(report.task, ()) if name in names] or names[:5]
    rest = [name for name in names if name not in main]
    count = examples(report)
    over = f" on {count:,} test input{'s' if count > 1 else ''}" if count else ""
    parts: list[Any] = [element("p", LEGEND), scores_table(f"Methods{over}", report.methods, main, report.constant)]
    if rest:
        parts.append(fold("More measures", scores_table(f"More measures{over}", report.methods, rest)))
    described = [
        element("div", element("dt", each.name), element("dd", sentence(each.description))) for each in report.methods
    ]
    if report.constant:
        constant = "the frequencies of the classes" if report.task == "classification" else "the mean of the targets"
        text = f"the same prediction for all inputs, {constant} in the test data: what any network should beat."
        described.append(element("div", element("dt", CONSTANT), element("dd", sentence(text))))
    parts.append(element("dl", described, class_="terms"))
    return section("methods", "The methods compared", *parts)


def scores_table(
    caption: str, scored: Sequence[MethodScores], names: Sequence[str], constant: Mapping[str, Estimate] | None = None
) -> Markup:
    """Methods by metrics; the last row is what a constant reaches."""
    tops = {name: best(name, scored) for name in names}
    arrows = {1: " ↑", -1: " ↓", 0: ""}
    head = ["method", *(describe(name).name + arrows[describe(name).better] for name in names), "seconds"]
    rows = []
    for position, method in enumerate(scored):
        cells: list[Any] = [method.name]
        cells += [
            value(method, name, tops[name][position], position > 0 and differs(name, scored[0], method))
            for name in names
        ]
        rows.append([*cells, f"{method.seconds:.2f}"])
    if constant:
        rows.append([CONSTANT, *(value_cell(constant[name], name) if name in constant else "–" for name in names), "–"])
    return table(caption, head, rows)


def value_cell(estimate: Estimate, name: str) -> Markup:
    """A number above its interval, without marks."""
    percent = describe(name).percent
    return element(
        "span", number(estimate.value, percent), element("small", interval(estimate, percent)), class_="value"
    )


def differs(name: str, first: MethodScores, other: MethodScores) -> bool:
    """Whether both have the metric, and differ in it."""
    return name in first.metrics and name in other.metrics and differ(name, first, other)


def mark(sign: str, meaning: str) -> tuple[Markup, Markup]:
    """A sign, and the words that screen readers say in its place."""
    return element("span", sign, aria_hidden="true"), element("span", f" {meaning}", class_="hidden-text")


def value(scores: MethodScores, name: str, top: bool, other: bool = False) -> Any:
    """A number above its interval, marked if it is the best, or if it differs from the first method's."""
    if name not in scores.metrics:
        return "–"
    estimate, percent = scores.metrics[name], describe(name).percent
    marks: list[Any] = [*(mark("★", "best") if top else ()), *(mark("≠", "differs from the first") if other else ())]
    text = number(estimate.value, percent)
    shown = element("strong" if top else "span", text, *((" ", marks) if marks else ()))
    return element("span", shown, element("small", interval(estimate, percent)), class_="value")


def handing_over(report: Results) -> Markup | None:
    """A slider: the error that is left when a person decides the least sure predictions."""
    curve = report.methods[0].risk_coverage
    if report.task != "classification" or len(curve.x) < 3:
        return None
    return element(
        "div",
        element("h3", "Try it"),
        element("label", "Share of the least sure predictions that a person decides: ", for_="hand-over"),
        element("input", type="range", id="hand-over", min="0", max="90", step="5", value="20"),
        element("output", "", id="hand-over-text", for_="hand-over", aria_live="polite"),
        class_="try",
    )


def coverage(report: Results) -> Markup | None:
    """The approximation of each weight."""
    if not report.coverage:
        return None
    head = list(dict.fromkeys(key for row in report.coverage for key in row if row[key]))  # no empty columns
    rows = [[row.get(key, "") for key in head] for row in report.coverage]
    shown = table("Every tensor of the network", head, rows)
    text = "The layer rule and the curvature approximation of each tensor. Fixed tensors count as certain."
    body = fold(f"All {len(rows)} tensors", shown) if len(rows) > 12 else shown
    return section("coverage", "The network's weights", element("p", text), body)


def settings(report: Results) -> Markup:
    """What it takes to make the report again."""
    parts: list[Any] = []
    if report.code:
        text = "The code, for your network (model) and your data (train, validation, test, and unknown inputs by name):"
        parts += [element("p", text), element("pre", element("code", report.code), tabindex="0")]
    if report.settings:
        rows = [(key.replace("_", " "), setting_text(each)) for key, each in report.settings.items()]
        parts.append(fold("Settings", table("Settings", ("setting", "value"), rows)))
    if report.versions:
        parts.append(table("Versions", ("software", "version"), list(report.versions.items())))
    if report.notes:
        parts += [element("h3", "Notes"), element("ul", [element("li", note) for note in report.notes])]
    return section("settings", "To reproduce this report", *parts)


def glossary(report: Results) -> Markup:
    """The glossary, for the task of the report."""
    words = {word: meaning for word, (meaning, task) in TERMS.items() if task in (BOTH, report.task)}
    if report.posterior:
        words |= {word: METHOD_TERMS[word] for word in OF_POSTERIORS}
    terms = [element("div", element("dt", word), element("dd", meaning)) for word, meaning in words.items()]
    return section("glossary", "Words", element("dl", terms, class_="terms"))
