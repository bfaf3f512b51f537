"""What the page tells its reader to do, what it opens on, and which single inputs it shows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import peewit as pw
from peewit.evaluation import Report
from peewit.evaluation.coding import likelihood_code
from peewit.evaluation.describing import posterior_of
from peewit.likelihoods import NAMES, NAMES_BY_CLASS
from peewit.metrics.results import Estimate, Feature, Shift
from peewit.report import advice, words
from peewit.report.pictures import groups_of
from peewit.report.summary import POOR, USELESS, answers
from reports import classification, near, regression, shift, specimen


def with_metric(report: Report, place: int, **changes: Estimate) -> Report:
    methods = list(report.methods)
    methods[place] = replace(methods[place], metrics={**methods[place].metrics, **changes})
    return replace(report, methods=tuple(methods))


def tuned(report: Report, method: str | None) -> Report:
    trace = None if method is None else {**report.posterior["trace"], "method": method}
    return replace(report, posterior={**report.posterior, "trace": trace})


def code(report: Report) -> str:
    found = answers(report)[1].advice
    return "" if found is None else found.code


WORSE = with_metric(classification(), 0, nll=near(0.9, 0.02))


@pytest.mark.parametrize(
    "method, validated, typed",
    [
        ("evidence", False, "la = la.tune(train=train)  # or la.tune(validation=validation)"),
        ("evidence", True, "la = la.tune(validation=validation)"),
        ("training", False, "la = la.tune(validation=validation)"),
        ("training", True, "la = la.tune(validation=validation)"),
        ("validation", True, 'print(pw.recommend(model, train, "classification", validation=validation))'),
        (None, False, "la = la.tune(train=train)"),
    ],
)
def test_what_to_type_where_probabilities_got_worse(method: str | None, validated: bool, typed: str) -> None:
    settings = {"likelihood": "Categorical", "validation data": validated}
    assert code(tuned(replace(WORSE, settings=settings), method)) == typed


@pytest.mark.parametrize(
    ("likelihood", "typed"), [*((kind.__name__, f'"{name}"') for name, kind in NAMES.items()), ("Own", "likelihood")]
)
def test_likelihoods_are_typed_by_their_names(likelihood: str, typed: str) -> None:
    """As in the code of a report; another's own is a variable."""
    report = replace(WORSE, settings={"likelihood": likelihood}, posterior={})
    assert code(report) == f"la = pw.fit(model, train, {typed}).tune(train=train)"
    if likelihood != "Own":
        assert likelihood_code(NAMES[NAMES_BY_CLASS[likelihood]]()) == typed


def test_a_linear_mode_that_was_asked_for_needs_the_training_data() -> None:
    for method, typed in (
        ("evidence", "la = la.tune(train=train)  # or la.tune(train=train, validation=validation)"),
        ("training", "la = la.tune(validation=validation)"),
    ):
        report = tuned(replace(WORSE, settings={"likelihood": "Categorical"}), method)
        assert code(replace(report, posterior={**report.posterior, "linear_mode": True})) == typed


@pytest.mark.filterwarnings("ignore::peewit.TuningWarning")
@pytest.mark.parametrize("way", [{}, {"at": "linear_mode"}])
@pytest.mark.parametrize("method", [None, "evidence", "training", "validation"])
def test_advice_runs_as_printed(method: Any, way: dict[str, Any]) -> None:
    """On the posterior of the report, in memory; files hold the same."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    data = (torch.randn(20, 2), torch.arange(20) % 3)
    la = pw.fit(model, data, "classification", **way)
    if method is not None:
        given = {"train": data} if way or method == "training" else {}
        la = la.tune(method, **given, **({"validation": data} if method == "validation" else {}))
    names: dict[str, Any] = {"la": la, "train": data, "validation": data, "model": model, "pw": pw}
    for settings in ({"likelihood": "Categorical"}, {"likelihood": "Categorical", "validation data": True}):
        report = replace(WORSE, settings=settings, posterior=posterior_of(la))
        typed = code(report)
        assert typed
        if "recommend" not in typed:
            exec(typed, names)
            for other in [line for line in [typed.partition("# or ")[2]] if line]:
                eval(other, names)
            names["la"] = la


def test_what_to_type_where_temperature_scaling_did_better() -> None:
    better = with_metric(classification(), 2, nll=near(0.2, 0.01))
    assert answers(better)[1].mood == "good" and "la.tune(" in code(better)
    assert code(classification()) == "la.predict(x).probs"
    assert not advice.behind(with_metric(classification(), 2, nll=near(0.42, 0.1)))


def test_what_to_type_without_a_posterior_and_without_unknown_inputs() -> None:
    alone = replace(classification(), posterior={}, settings={"likelihood": "Bernoulli"})
    assert code(alone) == 'la = pw.fit(model, train, "binary").tune(train=train)'
    first, *others = classification().methods
    bare = replace(classification(), methods=tuple(replace(each, detection={}) for each in (first, *others)))
    assert answers(bare)[2].advice == advice.on_unknown(bare) and "ood=" in answers(bare)[2].advice.code
    assert answers(classification())[2].advice.code == "la.predict(x).epistemic"


def test_networks_that_are_no_better_than_a_constant() -> None:
    constant = {"accuracy": near(0.9), "nll": near(0.3)}
    found = answers(replace(classification(), constant=constant))[0]
    assert (found.verdict, found.mood) == (USELESS, POOR) and "frequent class would be in 90" in found.sentences[0]
    assert found.advice is not None and found.advice.code == "print(la.diagnose(train))"
    fine = answers(replace(classification(), constant={"accuracy": near(0.3), "nll": near(1.3)}))[0]
    assert fine.verdict != USELESS and fine.advice is not None and "in 30" in fine.sentences[1]
    assert fine.advice.code == "la.predict(x).probs"
    for value, useless in ((-0.2, True), (0.4, False), (math.nan, False)):
        numbers = answers(with_metric(regression(), 1, r2=near(value)))[0]
        assert (numbers.verdict == USELESS) == useless
        assert any("R²" in sentence for sentence in numbers.sentences) == math.isfinite(value)


def plot(report: Report, name: str) -> Any:
    pytest.importorskip("plotly", reason="no plotly")
    from peewit.report.plots import plots

    return next(each for each in plots(report) if each.name == name)


def test_menus_open_where_methods_differ_most() -> None:
    report = classification()

    def first(changed: Report) -> str:
        found = plot(changed, "compare")
        return str(found.variants[found.first].label)

    for place in range(3):  # accuracy differs more, and says nothing about probabilities
        report = with_metric(report, place, accuracy=near(0.1 + 0.4 * place), ece=near(0.05), nll=near(0.5))
    assert first(with_metric(report, 1, nll=near(0.9))) == "NLL"
    assert first(with_metric(report, 1, ece=near(0.2))) == "Calibration error"

    def gap(excess: float) -> Shift:
        made = shift(0.1, 0.02)
        excesses = tuple(near(excess * each) for each in range(6))
        return replace(made, metrics={**made.metrics, "overconfidence": excesses})

    methods = [
        replace(each, shifts={"noise": gap(0.01), "blur": gap(0.1 * place)})
        for place, each in enumerate(report.methods)
    ]
    found = plot(replace(report, methods=tuple(methods)), "shifts")
    assert found.variants[found.first].label == "Confidence minus accuracy, blur"
    assert "above 0 it is too sure" in found.variants[found.first].note


def test_how_far_apart_methods_are() -> None:
    from peewit.report.plots import contrast

    assert contrast([near(1.0, 0.1), near(2.0, 0.3)]) == pytest.approx(1 / 0.4)
    bare = [Estimate(1.0, 1.0, 1.0), Estimate(3.0, 3.0, 3.0)]
    assert contrast(bare) == pytest.approx(1.0) and contrast(bare[:1]) == 0.0
    assert contrast([near(math.nan), near(1.0)]) == contrast([Estimate(0.0, 0.0, 0.0)] * 2) == 0.0


def test_single_inputs_that_teach_most_come_first() -> None:
    wrong, unknown = specimen(20, False), replace(specimen(21, True), label=None)
    report = replace(classification(), sure_wrong=(wrong,), unknown_surest={"boots": (unknown,), "none": ()})
    names = [name for name, _ in groups_of(report)]
    assert names == ["Sure, and wrong", "Unknown (“boots”), the surest", "The least sure", "The surest"]
    found = plot(report, "specimens").variants[0]
    assert found.images is not None and found.images.text.count("<img ") == 14


def test_values_of_columns_are_shown_with_the_unusual_ones_first() -> None:
    features = tuple(Feature(name=name, value=value, deviations=far) for name, value, far in (
        ("age", 61.0, 0.4), ("bmi", 41.5, 3.2), ("bp", 80.0, -1.1), ("sex", 1.0, 0.1)
    ))  # fmt: skip
    one = replace(specimen(3, False, image=False), features=features)
    near_the_mean = replace(one, features=(Feature(name="age", value=50.0, deviations=-0.01),))
    report = replace(classification(), sure_wrong=(near_the_mean,), surest=(), least_sure=())
    assert "age 50 (+0.0)" in plot(report, "specimens").variants[0].numbers.text
    report = replace(classification(), sure_wrong=(one,), surest=(), least_sure=())
    found = plot(report, "specimens").variants[0]
    assert found.images is None and "bmi 41.5 (+3.2), bp 80 (-1.1), age 61 (+0.4)" in found.numbers.text
    assert "unusual values" not in plot(classification(), "specimens").variants[0].numbers.text


def test_strengths_of_attacks_in_settings() -> None:
    assert words.setting_text({"fgsm": [1 / 255, 16 / 255], "noise": [1.0, 2.0]}) == "fgsm: 1/255, 16/255, noise: 1, 2"
    assert words.setting_text(0.0523412) == "0.0523412"


def test_the_page_has_the_code_the_constant_and_the_words() -> None:
    pytest.importorskip("plotly", reason="no plotly")
    from peewit.report.page import render

    report = replace(classification(), code='import peewit as pw\nla = pw.fit(model, train, "classification")',
                     constant={"accuracy": near(0.1), "nll": near(2.3)})  # fmt: skip
    text = render(report)
    assert "la = pw.fit(model, train, &quot;classification&quot;)" in text
    assert '<th scope="row" role="rowheader">A constant</th>' in text and "<dt>Mutual information</dt>" in text
    assert "<dt>Mutual information</dt>" not in render(regression()) and len(text.encode()) < 2_000_000
    assert text.index('id="figure-compare"') < text.index('id="methods"') > text.index('id="figure-detection"')
