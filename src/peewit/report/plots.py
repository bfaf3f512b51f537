"""The figures of the page: their captions, the variants in their menus, and their numbers as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles
from typing import TYPE_CHECKING, cast

from .. import figures
from ..figures.style import strength
from ..figures.unknown import ScoreName
from ..metrics.catalogue import MetricName, describe
from ..metrics.results import Curve, Estimate, MethodScores, Results, Shift, Specimen, VariationName
from .markup import Markup, table
from .pictures import gallery, groups_of, label_text
from .words import has_interval, interval, main_score, number, score, variation

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

ORDER = ("mutual_information", "epistemic_variance", "entropy", "variance", "confidence")  # of the menu
# Among which the first measure is chosen, by how far apart the methods are.
TELLING = {"classification": ("nll", "ece"), "regression": ("nll", "coverage90")}
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One entry of a figure's menu: its name, the drawing (JSON), a description, and the numbers.

    `note` explains it below the menu.
    """

    label: str
    drawing: str
    alt: str
    numbers: Markup
    images: Markup | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure of the page; with several variants a menu chooses between them, and shows variant `first` at first."""

    name: str
    section: str
    title: str
    caption: str
    variants: tuple[Variant, ...]
    menu: str = ""
    first: int = 0


def contrast(values: Sequence[Estimate]) -> float:
    """How far apart the values of methods are, in widths of their intervals; 0 where that cannot be told."""
    finite = [value for value in values if math.isfinite(value.value)]
    if len(finite) < 2:
        return 0.0
    spread = max(value.value for value in finite) - min(value.value for value in finite)
    widths = [value.high - value.low for value in finite if has_interval(value)]
    unit = sum(widths) / len(widths) if widths else sum(abs(value.value) for value in finite) / len(finite)
    return spread / unit if unit > 0 else 0.0


def variant(label: str, figure: Figure, numbers: Markup, note: str = "") -> Variant:
    """A plotly figure as the page stores it; the page shows a heading in place of its title."""
    meta = figure.layout.meta or {}
    content = json.loads(figure.to_json())
    layout = content.get("layout", {})
    layout.pop("template", None)  # plotly's defaults for notebooks, several kilobytes in each figure
    return Variant(
        label=label,
        drawing=json.dumps({"data": content["data"], "layout": layout}),
        alt=str(meta.get("alt", label)),
        numbers=numbers,
        note=note,
    )


def plots(report: Results) -> list[Plot]:
    """All figures for which the report has numbers."""
    makers: Sequence[Callable[[Results], Iterator[Plot]]] = (
        bars, reliability, pit, risk_coverage, histograms, detections, shifts, attacks, specimens, posterior,
    )  # fmt: skip
    return [plot for make in makers for plot in make(report)]


def bars(report: Results) -> Iterator[Plot]:
    """Every method by one metric."""
    names = list(dict.fromkeys(name for method in report.methods for name in method.metrics))
    variants = []
    for name in names:
        methods = [method for method in report.methods if name in method.metrics]
        kind = describe(name)
        rows = [
            (
                method.name,
                number(method.metrics[name].value, kind.percent),
                interval(method.metrics[name], kind.percent),
            )
            for method in methods
        ]
        variants.append(
            variant(
                kind.name,
                figures.compare(report, cast("MetricName", name)),
                table(kind.name, ("method", "value", "95 % interval"), rows),
                f"{kind.name}: {kind.meaning}." if kind.meaning else "",
            )
        )
    telling = [name for name in TELLING[report.task] if name in names]
    best = max(telling or names, key=lambda name: contrast([each.metrics[name] for each in report.methods
                                                            if name in each.metrics]))  # fmt: skip
    yield Plot(
        name="compare", section="methods", title="Methods side by side",
        caption="Whiskers are 95 % intervals over resampled test inputs.",
        menu="Measure", variants=tuple(variants), first=names.index(best),
    )  # fmt: skip


def by_method(
    methods: Sequence[MethodScores], draw: Callable[..., Figure], numbers: Callable[[Sequence[MethodScores]], Markup]
) -> tuple[Variant, ...]:
    """A figure of all methods, and one of each."""
    alone = [variant(method.name, draw(method), numbers([method])) for method in methods]
    together = [variant("all methods", draw(*methods), numbers(methods))] if len(methods) > 1 else []
    return (*together, *alone)


def reliability(report: Results) -> Iterator[Plot]:
    """Confidence against accuracy, all methods together and each on its own."""
    if methods := [each for each in report.methods if each.reliability is not None]:
        yield Plot(
            name="reliability", section="calibration", title="Confidence against accuracy",
            caption="On the diagonal a prediction made with 80 % confidence is right 80 % of the time. Below it the "
            "method is too sure, above it not sure enough.",
            menu="Method", variants=by_method(methods, figures.reliability, bins),
        )  # fmt: skip


def bins(methods: Sequence[MethodScores]) -> Markup:
    """Bins in numbers, empty ones left out."""
    rows = [
        (
            method.name,
            f"{number(low, True)} to {number(high, True)}",
            f"{count:,}",
            number(sure, True),
            number(right, True),
        )
        for method in methods
        if (curve := method.reliability) is not None
        for low, high, sure, right, count in zip(
            curve.edges, curve.edges[1:], curve.confidence, curve.accuracy, curve.count, strict=False
        )
        if count
    ]
    return table("Bins of confidence", ("method", "confidence", "predictions", "mean confidence", "right"), rows)


def pit(report: Results) -> Iterator[Plot]:
    """The quantiles of the predicted distributions at which the targets lie."""
    if methods := [each for each in report.methods if each.pit is not None]:
        yield Plot(
            name="pit", section="calibration", title="Predicted quantiles of the targets",
            caption="Even: calibrated. Higher at both ends: too sure. Higher in the middle: not sure enough.",
            menu="Method", variants=by_method(methods, figures.pit, shares),
        )  # fmt: skip


def shares(methods: Sequence[MethodScores]) -> Markup:
    """Shares of the probability integral transform."""
    count = max(len(each.pit or ()) for each in methods)
    head = ("method", *(f"to {number((index + 1) / count, True)}" for index in range(count)))
    return table("Share of targets by predicted quantile", head, [
        (each.name, *(number(share, True) for share in each.pit or ())) for each in methods
    ])  # fmt: skip


def risk_coverage(report: Results) -> Iterator[Plot]:
    """Errors among the surest predictions."""
    methods = [method for method in report.methods if method.risk_coverage.x]
    if not methods:
        return
    percent = report.task == "classification"

    def near(curve: Curve, share: float) -> str:
        nearest = min(range(len(curve.x)), key=lambda index: abs(curve.x[index] - share))
        return number(curve.y[nearest], percent)

    rows = [(method.name, *(near(method.risk_coverage, share) for share in SHARES)) for method in methods]
    head = ("method", *(f"surest {share:.0%}".replace("%", " %") for share in SHARES))
    numbers = table("Error among the surest predictions", head, rows)
    yield Plot(
        name="risk-coverage", section="handing", title="Errors when only the surest predictions are kept",
        caption="If the uncertainty is useful, the error falls as only the surest predictions are kept.",
        variants=(variant("", figures.risk_coverage(*methods), numbers),),
    )  # fmt: skip


def histograms(report: Results) -> Iterator[Plot]:
    """Uncertainty on known and unknown inputs."""
    variants = []
    for method in report.methods:
        names = {name for scores in method.uncertainty.values() for name in scores}
        for name in sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)):
            variants.append(
                variant(
                    f"{method.name}, {score(name)}",
                    figures.uncertainty_histogram(method, cast("ScoreName", name)),
                    spreads(method, name),
                )
            )
    if variants and any(set(method.uncertainty) - {"test"} for method in report.methods):
        yield Plot(
            name="uncertainty", section="unknown", title="How unsure it is of known and unknown inputs",
            caption="The less the known (test) and the unknown inputs overlap, the better it detects unknown inputs.",
            menu="Method and measure", variants=tuple(variants),
        )  # fmt: skip
    elif variants:
        yield Plot(
            name="uncertainty", section="calibration", title="How unsure it is of the test inputs",
            caption="The further to the right, the less sure it is of an input.",
            menu="Method and measure", variants=tuple(variants),
        )  # fmt: skip


def spreads(scores: MethodScores, name: str) -> Markup:
    """Quartiles by data set."""
    rows = []
    for data, samples in scores.uncertainty.items():
        values = samples.get(name, ())
        if len(values) > 1:
            rows.append((data, f"{len(values):,}", *(number(each) for each in quantiles(values, n=4))))
    caption = f"{score(name).capitalize()} by {scores.name}"
    return table(caption, ("data", "inputs", "a quarter is below", "half is below", "three quarters are below"), rows)


def detections(report: Results) -> Iterator[Plot]:
    """How well uncertainty separates unknown inputs from known ones."""
    methods = [method for method in report.methods if method.detection]
    if not methods:
        return
    rows = [
        (
            method.name,
            data,
            score(name),
            *(with_interval(value) for value in (detection.auroc, detection.aupr, detection.fpr95)),
        )
        for method in methods
        for data, by_score in method.detection.items()
        for name, detection in by_score.items()
    ]
    head = ("method", "unknown inputs", "by", "AUROC", "AUPR", "FPR95")
    numbers = table("Noticing unknown inputs", head, rows)
    yield Plot(
        name="detection", section="unknown", title="How well unknown inputs are noticed",
        caption="AUROC: in pairs of a known and an unknown input, how often it is less sure of the unknown one. 50 % "
        "is chance.", menu="Measures of doubt",
        variants=(
            variant("each method's own", figures.detection(*map(by_main_score, methods)), numbers),
            variant("all", figures.detection(*methods), numbers),
        ),
    )  # fmt: skip


def by_main_score(method: MethodScores) -> MethodScores:
    """With the measure alone by which the page compares methods."""
    chosen = {data: (main_score(by_score), by_score) for data, by_score in method.detection.items()}
    return replace(
        method, detection={data: {by: scores[by]} for data, (by, scores) in chosen.items() if by is not None}
    )


def with_interval(value: Estimate, percent: bool = True) -> str:
    """A number with its interval."""
    ends = interval(value, percent)
    return number(value.value, percent) + (f" ({ends})" if ends else "")


def shifts(report: Results) -> Iterator[Plot]:
    """Corruptions."""
    yield from shift_plots(
        report, "shifts", "Corrupted inputs",
        "Accuracy falls as inputs get worse. Confidence should fall with it: a curve far above 0 misleads.",
    )  # fmt: skip


def attacks(report: Results) -> Iterator[Plot]:
    """Adversarial inputs."""
    yield from shift_plots(
        report, "attacks", "Adversarial inputs",
        "Small changes that raise the network's loss. Strength is the largest change, as a share of the inputs' range. "
        "Confidence should fall with accuracy: a curve far above 0 misleads.",
    )  # fmt: skip


def shift_plots(report: Results, kind: VariationName, title: str, caption: str) -> Iterator[Plot]:
    """Curves against strength, one metric of one corruption at a time."""
    shifts_of_methods: list[dict[str, Shift]] = [getattr(each, kind) for each in report.methods]
    ways = list(dict.fromkeys(way for of_method in shifts_of_methods for way in of_method))
    names = list(
        dict.fromkeys(name for of_method in shifts_of_methods for shift in of_method.values() for name in shift.metrics)
    )
    variants, apart = [], []
    telling = next((name for name in ("overconfidence", "nll") if name in names), None)
    for name in names:
        for way in ways:
            alone = only(report, kind, way, name)
            if alone.methods:
                label, meaning = f"{describe(name).name}, {variation(way)}", describe(name).meaning
                drawn = figures.shift_curves(alone, kind, cast("MetricName", name))
                note = f"{describe(name).name}: {meaning}." if meaning else ""
                variants.append(variant(label, drawn, strengths(alone, kind, way, name), note))
                apart.append(contrast_of_shifts(alone, kind, way, name) if name == telling else -1.0)
    if variants:
        yield Plot(
            name=kind, section="strain", title=title, caption=caption, menu="Measure and kind",
            variants=tuple(variants), first=apart.index(max(apart)),
        )  # fmt: skip


def contrast_of_shifts(report: Results, kind: str, way: str, name: str) -> float:
    """How far apart the methods are, averaged over strengths."""
    curves: list[tuple[Estimate, ...]] = [getattr(each, kind)[way].metrics[name] for each in report.methods]
    return sum(map(contrast, zip(*curves, strict=True))) / len(curves[0])


def only(report: Results, kind: str, way: str, name: str) -> Results:
    """The report with one corruption only, and the methods that have the metric for it."""

    def kept_of(scores: MethodScores, wanted: str) -> dict[str, Shift]:
        return {way: getattr(scores, wanted)[way]} if wanted == kind else {}

    methods = [
        replace(method, shifts=kept_of(method, "shifts"), attacks=kept_of(method, "attacks"))
        for method in report.methods
        if way in getattr(method, kind) and name in getattr(method, kind)[way].metrics
    ]
    return replace(report, methods=tuple(methods))


def strengths(report: Results, kind: str, way: str, name: str) -> Markup:
    """A row per strength, a column per method."""
    shifts: list[Shift] = [getattr(method, kind)[way] for method in report.methods]
    percent = describe(name).percent
    rows = [
        (f"strength {strength(value)}", *(with_interval(shift.metrics[name][position], percent) for shift in shifts))
        for position, value in enumerate(shifts[0].strengths)
    ]
    head = ("strength", *(method.name for method in report.methods))
    return table(f"{describe(name).name}, {variation(way)}", head, rows)


def specimens(report: Results) -> Iterator[Plot]:
    """Single inputs worth a look: images if they are images, and a table."""
    groups = groups_of(report)
    if not groups:
        return
    sure = ("confidence",) if report.task == "classification" else ()
    unusual = any(specimen.features for _, shown in groups for specimen in shown)
    head = (
        "input",
        "which",
        "predicted",
        "right answer",
        *sure,
        "uncertainty",
        *(("unusual values",) if unusual else ()),
    )
    rows = [
        (
            f"number {specimen.index:,}",
            name,
            label_text(report, specimen.predicted),
            "–" if specimen.label is None else label_text(report, specimen.label),
            *((number(specimen.confidence, True),) if sure else ()),
            number(specimen.uncertainty),
            *((most_unusual(specimen),) if unusual else ()),
        )
        for name, shown in groups
        for specimen in shown
    ]
    caption = f"According to {report.methods[0].name}. A good method is unsure where a person would be."
    if unusual:
        caption += " Unusual values are the furthest from the mean of the test data; in brackets by how many standard"
        caption += " deviations."
    yield Plot(
        name="specimens", section="examples", title="Single inputs", caption=caption,
        variants=(
            Variant(
                label="", drawing="", alt="", numbers=table("Single inputs", head, rows), images=gallery(report, groups)
            ),
        ),
    )  # fmt: skip


def most_unusual(specimen: Specimen) -> str:
    """The three columns furthest from their means."""
    ordered = sorted(specimen.features, key=lambda feature: -abs(feature.deviations))[:3]
    return (
        ", ".join(f"{each.name} {each.value:.4g} ({round(each.deviations, 1) + 0.0:+.1f})" for each in ordered) or "–"
    )


def posterior(report: Results) -> Iterator[Plot]:
    """The posterior, layer by layer, and how its prior was tuned."""
    summary = report.posterior
    if summary.get("layers"):
        rows = [
            (
                layer["name"],
                f"{layer['weights']:,}",
                number(math.sqrt(layer["prior_variance"])),
                number(math.sqrt(max(layer["variance_quantiles"][2], 0.0))),
            )
            for layer in summary["layers"]
        ]
        head = ("tensor", "weights", "prior deviation", "median posterior deviation")
        yield Plot(
            name="variances", section="posterior", title="How uncertain the weights of each layer are",
            caption="Standard deviations. Where they are near the prior's, the data say little about a layer.",
            variants=(
                variant("", figures.marginal_variances(report), table("Standard deviations by tensor", head, rows)),
            ),
        )  # fmt: skip
    groups = summary.get("groups") or ()
    if len(groups) > 1 and summary.get("effective_dimensions"):
        columns = [summary.get(key) or [math.nan] * len(groups) for key in ("group_weights", "effective_dimensions")]
        counted = [(name, f"{size:g}", number(value)) for name, size, value in zip(groups, *columns, strict=True)]
        names = ("group of weights", "weights", "determined by the data")
        listed = table("Effective dimensions", names, counted)
        yield Plot(
            name="dimensions", section="posterior", title="How many weights the data determine",
            caption="Effective dimensions: about how many weights of a group the data determine. The prior determines "
            "the others.",
            variants=(variant("", figures.effective_dimensions(report), listed),),
        )  # fmt: skip
    if trace := summary.get("trace"):
        steps = [(f"step {step}", number(value)) for step, value in enumerate(trace.get("values", ()))]
        objective, done = str(trace.get("objective", "log evidence")), trace.get("converged", True)
        numbers = table("Steps of tuning", ("step", objective), steps)
        ending = "converged" if done else f"did not converge: {trace.get('stopped', 'it stopped early')}"
        yield Plot(
            name="trace", section="posterior", title="How the prior was chosen",
            caption=f"The {objective} at each step of tuning by {trace.get('method', 'evidence')}. Tuning {ending}.",
            variants=(variant("", figures.evidence_trace(report), numbers),),
        )  # fmt: skip
