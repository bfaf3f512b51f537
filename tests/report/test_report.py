"""What a report says in words and tables: computed from its numbers, and honest about chance."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pytest

from peewit.evaluation import Report
from peewit.metrics.results import Curve, Detection, Estimate, MethodScores, Reliability, Shift
from peewit.report import markup, words
from peewit.report.page import embed
from peewit.report.pictures import gallery, groups_of, png
from peewit.report.sections import scores_table
from peewit.report.summary import FAIR, GOOD, OPEN, POOR, Answer, answers, chance_error, excess
from reports import bins, classification, near, regression, specimen


def said(answer: Answer) -> str:
    return " ".join([answer.verdict, *answer.sentences]).replace("\N{NO-BREAK SPACE}", " ")


def with_method(report: Report, place: int, **changes: object) -> Report:
    methods = list(report.methods)
    methods[place] = replace(methods[place], **changes)
    return replace(report, methods=tuple(methods))


def with_metric(report: Report, place: int, **changes: Estimate) -> Report:
    return with_method(report, place, metrics={**report.methods[place].metrics, **changes})


def test_the_sentence_about_an_overconfident_network() -> None:
    calibrated, changed, unknown = answers(classification())
    assert calibrated.mood == POOR and "too sure of itself" in calibrated.verdict
    assert "7.4 percentage points (95 % interval: 6.6 to 8.2)" in said(calibrated)
    assert f"about {100 * chance_error(bins(0.074)):.1f} points would come from chance alone" in said(calibrated)
    assert changed.mood == GOOD and "from 7.4 % to 1.4 %" in said(changed)
    assert changed.sentences[0].startswith("The surprise at the right answers (NLL) fell")  # what decided comes first
    assert "Accuracy stayed at 84.3 %." in changed.sentences[2].replace("\N{NO-BREAK SPACE}", " ")
    text = said(unknown)
    assert "By mutual information, Laplace is less sure of “bags and boots” than of a known input in 87 of" in text
    assert "100 pairs (86 to 88; a coin would say 50); Plain network by entropy in 78; temperature" in text
    assert "(noise, at its strongest) accuracy goes from 84 % to 24 %" in said(unknown)
    assert "and its confidence from 85 % to 75 %" in said(unknown)
    assert "too sure, by 51 points" in said(unknown)
    assert "would fall from 16 % to 11 %" in said(unknown)


@pytest.mark.parametrize(
    "error, mood, verdict",
    [(0.008, GOOD, "Yes"), (0.045, FAIR, "Nearly"), (0.2, POOR, "No")],
)
@pytest.mark.parametrize("sign, way", [(1, "too sure of itself"), (-1, "not sure enough")])
def test_calibration_by_its_size_and_direction(error: float, mood: str, verdict: str, sign: int, way: str) -> None:
    report = with_metric(with_method(classification(), 1, reliability=bins(sign * error)), 1, ece=near(error))
    found = answers(report)[0]
    assert found.mood == mood and found.verdict.startswith(verdict)
    assert (way in found.verdict) == (mood != GOOD)


def test_the_error_that_chance_alone_gives() -> None:
    """Against draws: labels of a calibrated network, and the calibration error that they show."""
    drawn = numpy.random.default_rng(0)
    sure = numpy.array([0.3, 0.6, 0.9])
    count = (40, 200, 1000)
    found = []
    for _ in range(2000):
        right = drawn.binomial(count, sure) / count
        found.append(float((numpy.abs(right - sure) * count).sum() / sum(count)))
    given = Reliability((0.0, 0.4, 0.7, 1.0), tuple(sure.tolist()), (0.0, 0.0, 0.0), count)
    assert chance_error(given) == pytest.approx(float(numpy.mean(found)), rel=0.05)
    assert excess(replace(given, accuracy=(0.2, 0.5, 0.8))) == pytest.approx(0.1)


def test_differences_within_intervals_are_not_called_better() -> None:
    report = classification()
    wide = {name: near(report.methods[1].metrics[name].value, 0.5) for name in ("ece", "nll")}
    found = answers(with_metric(report, 1, **wide))[1]
    assert found.mood == FAIR and found.verdict == "Nothing beyond chance"
    assert found.sentences[1].endswith("other test inputs could show the opposite, so this may be chance.")


def test_differences_on_the_same_inputs_count_although_intervals_overlap() -> None:
    report = classification()
    first, base = report.methods[:2]
    wide = {name: near(base.metrics[name].value, 0.5) for name in ("ece", "nll")}
    report = with_metric(report, 1, **wide)
    paired = {name: Estimate(0.1, 0.05, 0.15) for name in ("ece", "nll")}
    told = replace(report, methods=(first, replace(report.methods[1], differences=paired), *report.methods[2:]))
    found = answers(told)[1]
    assert found.mood == GOOD and "more than chance explains" in found.sentences[1]
    assert "≠" in str(scores_table("", told.methods, ["nll"])) and "≠" not in str(
        scores_table("", report.methods[:2], ["nll"])
    )
    none = {name: Estimate(0.1, -0.05, 0.15) for name in ("accuracy", "ece", "nll")}
    told = replace(report, methods=(first, replace(base, differences=none), *report.methods[2:]))
    assert answers(told)[1].verdict == "Nothing beyond chance"


def covered(before: Estimate, now: Estimate) -> Report:
    """A regression in which nothing but the coverage changed."""
    report = regression()
    same = {name: value for name, value in report.methods[1].metrics.items() if name != "coverage90"}
    methods = (with_metric(with_method(report, place, metrics=same), place, coverage90=value).methods[place]
               for place, value in enumerate((now, before)))  # fmt: skip
    return replace(report, methods=tuple(methods))


@pytest.mark.parametrize(
    "before, now, mood, told",
    [
        (near(0.847, 0.03), near(0.955, 0.02), FAIR, "neither is nearer to 90 % by more than chance explains"),
        (near(0.79), near(0.92, 0.03), GOOD, "nearer to 90 %, by more than chance explains"),
        (near(0.9, 0.02), near(0.99, 0.005), POOR, "farther from 90 %, by more than chance explains"),
        (Estimate(0.8, 0.8, 0.8), Estimate(0.9, 0.9, 0.9), FAIR, "nobody can say whether this is chance"),
    ],
)
def test_coverage_is_judged_by_its_distance_from_the_share(
    before: Estimate, now: Estimate, mood: str, told: str
) -> None:
    report = covered(before, now)
    found = answers(report)[1]
    text = said(found).replace("\N{NO-BREAK SPACE}", " ")
    assert found.mood == mood and told in text and "robabilit" not in found.verdict
    assert found.verdict in ("Its intervals can be trusted more", "Its intervals got worse", "Nothing beyond chance")


@pytest.mark.parametrize(
    "before, now, verdict",
    [
        (0.7, 0.99, "Its intervals are now too wide"),
        (0.7, 0.93, "Its intervals are now a little too wide"),
        (0.4, 0.7, "Its intervals are still too narrow"),
        (0.99, 0.86, "Its intervals are now a little too narrow"),
        (0.7, 1.0, "Its intervals are now too wide"),
    ],
)
def test_intervals_of_the_wrong_width_are_not_praised(before: float, now: float, verdict: str) -> None:
    """However much nearer they came: the verdict says what they are, and the advice what to type."""
    report = covered(near(before), near(now) if now < 1 else Estimate(1.0, 1.0, 1.0))
    report = replace(report, posterior={"trace": {"method": "evidence"}})
    found = answers(with_metric(report, 1, nll=near(3.0)))[1]
    assert (found.verdict, found.mood) == (verdict, FAIR)
    assert found.advice is not None and "la.tune(train=train)" in found.advice.code


@pytest.mark.parametrize("make, what", [(classification, "the frequencies"), (regression, "the mean of the targets")])
def test_the_nll_of_a_constant_keeps_a_change_from_being_good(make: Callable[[], Report], what: str) -> None:
    report = make()
    own = report.methods[0].metrics["nll"].value
    for constant, verdict, mood in ((own - 10, "By NLL it is no better than a constant", POOR), (own + 1, "", GOOD)):
        found = answers(replace(report, constant={"nll": near(constant)}))[1]
        assert found.mood == mood and found.verdict.startswith(verdict)
        assert (what in said(found)) == (mood == POOR)
    within = with_metric(
        replace(report, constant={"nll": near(own - 0.001)}), 0, nll=Estimate(own, own - 0.01, own + 0.01)
    )
    assert answers(within)[1].mood != POOR  # chance may explain the difference from the constant
    wide = with_metric(replace(report, constant={"nll": near(own)}), 0, coverage90=near(0.99))
    assert answers(wide)[1].mood == POOR


def test_the_noise_of_training_residuals_is_not_blamed_on_the_network() -> None:
    """A network that overfits has small ones; validation data decide."""
    settings = {"likelihood": "Gaussian", "noise": 1.3, "validation data": False}
    report = replace(regression(), posterior={"trace": None}, settings=settings)
    found = answers(report)[0]
    assert found.verdict == "No: intervals are too narrow with the noise of its training residuals"
    assert "residuals on the training data" in said(found) and "too sure of itself" not in said(found)
    assert found.advice is not None and found.advice.code == "pw.evaluate(la, test, validation=validation)"
    for other in ({**settings, "validation data": True}, {"likelihood": "HeteroscedasticGaussian"}):
        found = answers(replace(report, settings=other))[0]
        assert "too sure of itself" in found.verdict and "training" not in said(found)


def test_every_red_no_about_calibration_says_what_to_type() -> None:
    poor = replace(regression(), settings={"likelihood": "Gaussian", "validation data": True})
    fitted = replace(poor, posterior={"trace": {"method": "evidence"}})
    worse = with_metric(fitted, 0, nll=near(3.0), coverage90=near(0.6))
    alone = replace(poor, methods=poor.methods[1:])
    classes = replace(classification(), methods=classification().methods[1:], posterior={})
    for report, typed in (
        (fitted, "la.predict(x).interval(0.9)"),
        (worse, "la = la.tune(validation=validation)"),
        (alone, 'la = pw.fit(model, train, "regression").tune(train=train)'),
        (classification(), "la.predict(x).probs"),
        (classes, 'la = pw.fit(model, train, "classification").tune(train=train)'),
        (with_metric(fitted, 1, r2=near(-0.2)), "print(la.diagnose(train))"),
    ):
        found = answers(report)[0]
        assert found.mood == POOR and found.advice is not None and found.advice.code == typed
    assert answers(with_metric(fitted, 1, coverage90=near(0.9)))[0].advice is None


def test_what_got_worse_is_called_worse() -> None:
    worse = with_metric(classification(), 0, ece=near(0.3), nll=near(0.9))
    found = answers(worse)[1]
    assert found.mood == POOR and "for the worse" in said(found)
    assert "Temperature scaling did better" in said(found) or "temperature scaling did better" in said(found)
    mixed = answers(with_metric(classification(), 0, nll=near(0.9)))[1]
    assert mixed.mood == FAIR and "Some things for the better" in mixed.verdict


@pytest.mark.parametrize(
    "rate, mood, verdict",
    [(0.95, GOOD, "most"), (0.8, FAIR, "often"), (0.65, FAIR, "some"), (0.5, POOR, "hardly")],
)
def test_noticing_unknown_inputs(rate: float, mood: str, verdict: str) -> None:
    own = {"entropy": Detection(near(rate), near(rate), near(0.5))}
    found = answers(with_method(classification(), 0, detection={"far": own}))[2]
    assert found.mood == mood and verdict in found.verdict


def test_the_sentence_about_what_was_not_measured() -> None:
    bare = with_method(classification(), 0, detection={}, shifts={}, attacks={})
    found = answers(bare)[2]
    assert found.mood == OPEN and "cannot say what happens outside the test data" in said(found)
    alone = replace(classification(), methods=classification().methods[1:2], posterior={})
    assert answers(alone)[1].mood == OPEN and "No posterior was measured" in answers(alone)[1].verdict


@pytest.mark.parametrize(
    "value, low, high, mood, verdict",
    [
        (0.2, 0.15, 0.25, POOR, "surer of unknown inputs than of known ones"),
        (0.45, 0.3, 0.6, POOR, "hardly"),
        (0.92, 0.4, 1.0, OPEN, "Too few inputs to tell"),
        (1.0, 1.0, 1.0, GOOD, "most"),
        (math.nan, math.nan, math.nan, OPEN, "See what disturbs it"),
    ],
)
def test_noticing_is_honest_about_chance(value: float, low: float, high: float, mood: str, verdict: str) -> None:
    own = {"entropy": Detection(Estimate(value, low, high), near(0.5), near(0.5))}
    found = answers(with_method(classification(), 0, detection={"far": own}))[2]
    assert found.mood == mood and verdict in found.verdict
    assert "nan" not in said(found)


def test_unknown_inputs_that_every_draw_separates_are_not_called_chance() -> None:
    """Both intervals are then a single number."""

    def exactly(name: str, value: float) -> dict[str, dict[str, Detection]]:
        rate = Estimate(value, value, value)
        return {"far": {name: Detection(rate, rate, rate)}}

    report = with_method(regression(), 0, detection=exactly("epistemic_variance", 1.0))
    report = with_method(report, 1, detection=exactly("variance", 0.5))
    assert "Plain network by variance in 50." in said(answers(report)[2])


def test_without_intervals_no_difference_is_called_real() -> None:
    """One test input, or none drawn anew: both ends of an interval are then the value itself."""

    def bare(values: dict[str, Estimate]) -> dict[str, Estimate]:
        return {name: Estimate(each.value, each.value, each.value) for name, each in values.items()}

    report = classification()
    for place in (0, 1, 2):
        own = bare(report.methods[place].metrics)
        report = with_method(report, place, metrics=own, differences={name: Estimate(1, 1, 1) for name in own})
    found = answers(report)
    assert found[1].mood == FAIR and "more than chance" not in said(found[1])
    assert "without intervals nobody can say" in said(found[1])
    assert "95 % interval" not in said(found[0])


def test_the_sentence_about_a_small_test_set() -> None:
    one = Reliability((0.0, 0.5, 1.0), (0.0, 0.7), (0.0, 0.0), (0, 1))
    report = with_metric(with_method(classification(), 1, reliability=one), 1, ece=Estimate(0.7, 0.7, 0.7))
    assert answers(report)[0].mood == OPEN and "too small to tell" in answers(report)[0].verdict
    for held in (Estimate(0.5, 0.3, 0.95), Estimate(1.0, 1.0, 1.0)):
        few = replace(with_metric(regression(), 1, coverage90=held), settings={"test examples": 1})
        assert answers(few)[0].mood == OPEN and "too small to tell" in answers(few)[0].verdict
    many = with_metric(regression(), 1, coverage90=Estimate(1.0, 1.0, 1.0))
    assert "too wide" in answers(replace(many, settings={"test examples": 1000}))[0].verdict


def test_more_errors_are_not_called_better() -> None:
    """Though probabilities may be better at once."""
    found = answers(with_metric(classification(), 0, accuracy=near(0.6)))[1]
    assert found.mood == FAIR and "some for the worse" in found.verdict
    same = dict(classification().methods[1].metrics)
    worse = answers(with_method(classification(), 0, metrics={**same, "accuracy": near(0.6)}))[1]
    assert worse.mood == POOR and worse.verdict == "It makes more errors"


def test_errors_both_ways_are_not_called_one_way() -> None:
    both = Reliability((0.0, 0.3, 0.6, 1.0), (0.3, 0.5, 0.9), (0.6, 0.5, 0.6), (100, 10, 100))
    found = answers(with_metric(with_method(classification(), 1, reliability=both), 1, ece=near(0.28)))[0]
    assert found.mood == POOR and "too sure of some predictions, and not sure enough of others" in found.verdict


def test_a_posterior_alone_is_not_called_the_network() -> None:
    found = answers(replace(classification(), methods=classification().methods[:1]))
    assert found[1].mood == OPEN and "nothing to compare Laplace with" in said(found[1])
    assert "These are the numbers of Laplace" in said(found[0])


@pytest.mark.parametrize(
    "right, sure, words",
    [
        ((0.9, 0.3), (0.9, 0.3), "it notices"),
        ((0.9, 0.3), (0.9, 0.8), "too sure, by 50 points"),
        ((0.9, 0.9), (0.9, 0.9), "it copes with that"),
        ((0.9, 0.5), (0.5, 0.55), "does not fall with it"),
    ],
)
def test_sentences_about_corrupted_inputs(right: tuple[float, ...], sure: tuple[float, ...], words: str) -> None:
    shift = Shift((0.0, 1.0), {"accuracy": tuple(map(near, right)), "confidence": tuple(map(near, sure))})
    holes = Shift((0.0, 1.0), {"accuracy": (near(math.nan),) * 2, "confidence": (near(math.nan),) * 2})
    changes = {"shifts": {"noise": shift, "blur": holes}, "attacks": {}, "detection": {}}
    found = said(answers(with_method(classification(), 0, **changes))[2])
    assert words in found and "Under the corruption tried (noise" in found


@pytest.mark.parametrize(
    "risk, words", [((0.2, 0.1), "rise from 10 % to 20 %"), ((0.0, 0.0), "stay at 0 %"), ((0.1, 0.2), "fall from 20 %")]
)
def test_handing_over_may_not_help(risk: tuple[float, float], words: str) -> None:
    found = answers(with_method(classification(), 0, risk_coverage=Curve((0.8, 1.0), risk)))[2]
    assert f"its errors on the rest would {words}" in said(found)


def test_metrics_that_are_no_numbers_are_left_out() -> None:
    holes = Estimate(math.nan, math.nan, math.nan)
    report = classification()
    for place in (0, 1):
        report = with_metric(report, place, ece=holes, nll=holes, accuracy=holes)
    found = answers(report)
    assert found[0].verdict == "Not measured" and not found[1].sentences
    assert "nan" not in " ".join(map(said, found))
    lacking = with_method(classification(), 0, metrics={"accuracy": near(0.8)})
    assert "NLL" not in said(answers(lacking)[1])
    same = with_metric(classification(), 1, nll=near(classification().methods[0].metrics["nll"].value - 1e-6))
    assert "By NLL" not in said(answers(same)[1])  # as far as the digits shown tell


@pytest.mark.parametrize(
    "held, mood, verdict",
    [(0.905, GOOD, "Yes"), (0.87, FAIR, "too narrow"), (0.7, POOR, "too narrow"), (0.99, POOR, "too wide")],
)
def test_intervals_of_numbers(held: float, mood: str, verdict: str) -> None:
    found = answers(with_metric(regression(), 1, coverage90=near(held)))[0]
    assert found.mood == mood and verdict in found.verdict
    changed = answers(regression())[1]
    assert changed.mood == GOOD and "from 79.0 % to 90.5 %" in said(changed)


@pytest.mark.parametrize(
    "value, percent, text",
    [
        (0.8434, True, "84.3 %"), (0.0, False, "0.000"), (12345.6, False, "1.23e+04"), (1e-5, False, "1e-05"),
        (math.inf, False, "∞"), (math.nan, True, "–"), (-0.25, False, "-0.250"),
    ],
)  # fmt: skip
def test_formats_of_numbers(value: float, percent: bool, text: str) -> None:
    assert words.number(value, percent).replace("\N{NO-BREAK SPACE}", " ") == text


@pytest.mark.parametrize(
    "value, text",
    [(0.0, "0"), (1 / 255, "1/255"), (16 / 255, "16/255"), (0.2, "0.2"), (1 / 3, "0.3333"), (0.02, "0.02"), (5, "5")],
)
def test_strengths_are_fractions_of_the_levels_of_a_pixel(value: float, text: str) -> None:
    assert words.strength(value) == text


def test_stars_are_for_what_is_seen_to_be_better() -> None:
    report = classification()
    assert words.best("ece", report.methods) == [True, False, False]
    assert words.best("accuracy", report.methods) == [False, False, False]  # all the same
    close = with_metric(report, 1, accuracy=near(0.84302))
    assert words.best("accuracy", close.methods) == [False, False, False]  # in the digits that are shown
    assert words.best("coverage90", regression().methods) == [True, False]  # nearest to 90 %
    assert words.best("nothing", report.methods) == [False, False, False]


def test_texts_are_escaped() -> None:
    nasty = "<script>alert('1')</script> & \"quotes\""
    made = markup.element("p", nasty, title=nasty, data_label=nasty).text
    assert "<script>" not in made and "&lt;script&gt;" in made and made.count('"') == 4
    assert markup.safe(None) == "" and markup.safe(("a", markup.Markup("<b>"), "<i>")) == "a<b>&lt;i&gt;"


def test_figures_cannot_end_the_script_they_stand_in() -> None:
    nasty = json.dumps({"name": "</script><b>&"})
    assert not set("<>&") & set(embed([nasty]))
    assert json.loads(embed([nasty])) == [{"name": "</script><b>&"}]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_are_what_they_were(channels: int) -> None:
    images = pytest.importorskip("PIL.Image", reason="no Pillow")
    drawn = numpy.random.default_rng(0).random((5, 7, channels)) * 1.2 - 0.1
    pixels = tuple(tuple(tuple(map(float, pixel)) for pixel in row) for row in drawn)
    found = numpy.asarray(images.open(io.BytesIO(png(pixels))))
    wanted = numpy.round(255 * drawn.clip(0, 1)).astype("uint8")
    assert numpy.array_equal(found, wanted[..., 0] if channels == 1 else wanted[..., :3])


def test_the_gallery_says_what_was_predicted() -> None:
    report = classification()
    made = gallery(report, groups_of(report))
    assert made is not None
    text = made.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "trouser, 99.0 %" in text and "wrong: trouser" in text and text.count("<img ") == 12
    assert base64.b64decode(re.findall(r"base64,([^\"]+)", text)[0]).startswith(b"\x89PNG")
    bare = replace(report, surest=(specimen(1, True, image=False),), least_sure=())
    assert gallery(bare, groups_of(bare)) is None


def test_no_sentence_about_unknown_inputs_without_any() -> None:
    pytest.importorskip("plotly", reason="no plotly")
    from peewit.report.page import render

    report = classification()
    for place, each in enumerate(report.methods):
        known = {name: found for name, found in each.uncertainty.items() if name == "test"}
        report = with_method(report, place, uncertainty=known, detection={})
    text = render(replace(report, settings={"test examples": 1}))
    assert "How unsure it is of the test inputs" in text and "Inputs of a kind it never saw" not in text
    assert "Inputs of a kind it never saw" in render(classification())
    assert "Methods on 1 test input<" in text


# The page as text


class Outline(HTMLParser):
    """Headings, identifiers and what is amiss."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[int] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        if re.fullmatch(r"h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        for name in ("for", "aria-labelledby"):
            if found.get(name):
                self.targets.append(str(found[name]))
        if tag == "a":
            self.targets.append(str(found["href"]).removeprefix("#"))


@pytest.fixture(scope="module", params=["classification", "regression"])
def text(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("plotly", reason="no plotly")
    from peewit.report.page import render

    return render({"classification": classification, "regression": regression}[request.param]())


def test_headings_links_and_landmarks(text: str) -> None:
    outline = Outline()
    outline.feed(re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.S))
    assert outline.levels[0] == 1 and outline.levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(outline.levels, outline.levels[1:], strict=False))
    assert len(outline.ids) == len(set(outline.ids))
    assert set(outline.targets) <= set(outline.ids)
    for landmark in ("header", "nav", "main", "footer"):
        assert outline.tags.count(landmark) == 1
    assert outline.tags.count("table") == outline.tags.count("caption")


def test_the_page_is_one_file_that_fetches_nothing(text: str) -> None:
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.S)  # plotly's own source names addresses
    assert not re.search(r"""(src|href)=["']https?:""", own) and "default-src 'none'" in own
    assert len(text.encode()) < 8_000_000


def test_every_figure_has_words_and_numbers() -> None:
    pytest.importorskip("plotly", reason="no plotly")
    from peewit.report.plots import plots

    for report in (classification(), regression()):
        found = plots(report)
        assert len({each.name for each in found}) == len(found)
        for plot in found:
            for variant in plot.variants:
                assert "<td" in variant.numbers.text and "<caption>" in variant.numbers.text
                assert len(variant.alt) > 20 or not variant.drawing
    names = {plot.name for plot in plots(classification())}
    assert names >= {
        "compare",
        "reliability",
        "risk-coverage",
        "uncertainty",
        "detection",
        "shifts",
        "attacks",
        "trace",
    }


def test_tables_behind_figures_hold_the_numbers_of_the_report() -> None:
    pytest.importorskip("plotly", reason="no plotly")
    from peewit.report.plots import plots

    found = {plot.name: plot for plot in plots(classification())}

    def numbers(name: str, place: int = 0) -> str:
        return found[name].variants[place].numbers.text.replace("\N{NO-BREAK SPACE}", " ")

    assert "93.3 % to 100.0 %" in numbers("reliability") and "<td role=\"cell\" data-label=\"predictions\">598</td>" in numbers("reliability")  # noqa: E501  # fmt: skip
    labels = [each.label for each in found["shifts"].variants]
    noise = numbers("shifts", labels.index("Confidence, noise"))
    assert "75.0 % (74.0–76.0 %)" in noise and "strength 5" in noise
    assert "86.0 % (85.0–87.0 %)" in numbers("detection")
    assert "-812.300" in numbers("trace") and "step 3" in numbers("trace")


def test_a_page_that_would_be_too_large_leaves_figures_out_and_keeps_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly", reason="no plotly")
    from peewit.report import page

    whole = page.render(classification())
    monkeypatch.setattr(page, "LARGEST", len(whole.encode()) - 20_000)
    made = page.render(classification())
    assert len(made.encode()) <= page.LARGEST and "would make the page too large" in made
    assert "Bins of confidence" in made and "Noticing unknown inputs" in made


def test_pages_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly", reason="no plotly")
    from peewit.report import page

    path = tmp_path / "report.html"
    assert classification().to_html(path) == path and path.stat().st_size > 1_000_000
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        page.write(regression(), path)
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(FileNotFoundError):
        page.write(regression(), tmp_path / "no" / "such.html")


def test_unusual_reports_make_pages() -> None:
    """One method, no classes, nothing beside: all that can be missing is missing."""
    pytest.importorskip("plotly", reason="no plotly")
    from peewit.report.page import render

    full = classification().methods[0]
    bare = MethodScores(
        name=full.name,
        description="",
        metrics={"nll": Estimate(math.inf, math.nan, math.nan)},
        reliability=None,
        risk_coverage=Curve((), ()),
        pit=None,
        uncertainty={},
        detection={},
        shifts={},
        attacks={},
        seconds=0.0,
    )
    empty = Report(
        title="",
        task="classification",
        methods=(bare,),
        surest=(),
        least_sure=(),
        classes=None,
        coverage=(),
        posterior={},
        settings={},
        versions={},
        notes=(),
    )
    assert "∞" in render(empty)
    assert "far away" in render(regression())
