"""Figures of unusual data: constant values, two classes and a hundred, one layer and many, names with signs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from evaluating import numbers
from figure_cases import case
from figure_checks import Tried, checked, pixels, report, scored
from fitting import normal
from peewit import figures
from peewit.evaluation import SweepPoint
from peewit.figures import (
    KroneckerFactors,
    Landscape,
    curvature,
    landscapes,
    prediction,
    saving,
    style,
    summary,
    sweeps,
)
from peewit.messages.errors import PeewitError
from peewit.metrics import Specimen

pytest.importorskip("plotly", reason="no plotly: pip install plotly")


def plane(loss: Tensor | None = None, accuracy: float = 1.0) -> Landscape:
    """A bowl, made up, with the same accuracy everywhere."""
    a = torch.linspace(-1, 1, 5, dtype=torch.float64)
    bowl = a[:, None].square() + a.square()
    loss = bowl + 0.1 if loss is None else loss
    axes = torch.eye(2, dtype=torch.float64)
    right = torch.full_like(bowl, accuracy)
    return Landscape(
        a=a,
        b=a,
        directions=axes,
        axes=("one", "two"),
        loss=loss,
        linear=bowl + 0.1,
        accuracy=right,
        penalty=bowl,
        quadratic=bowl,
        data_weight=10.0,
        words="loss",
        examples=5,
    )


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_contours_of_one_value_have_a_range(value: float) -> None:
    """Browsers stop at contours from a number to itself."""
    made = plane(accuracy=value)
    for view in landscapes.views(made):
        trace = landscapes.contour(made, view, True)
        assert trace.zmin < trace.zmax and trace.contours.start < trace.contours.end, view.name
        assert trace.zmin <= float(view.values.min()) or view.steep
    flat = plane(torch.full((5, 5), 0.7, dtype=torch.float64))
    assert "Ellipses" in checked(figures.landscape_2d(flat))["layout"]["meta"]["alt"]
    still = replace(flat, quadratic=torch.zeros_like(flat.quadratic))  # directions along which nothing changes
    assert "Ellipses" not in checked(figures.landscape_2d(still))["layout"]["meta"]["alt"]


def test_constant_accuracy_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("kaleido")
    if figures.saving.browser() is None:
        pytest.skip("no Chromium")
    figure = figures.landscape_2d(plane())
    for number, trace in enumerate(figure.data[:5]):
        trace.visible = number == 1
    assert figures.save(figure, tmp_path / "accuracy.png").stat().st_size > 5_000


def test_losses_that_are_not_finite_are_left_out() -> None:
    bowl = plane().loss.clone()
    bowl[0, 0], bowl[4, 4] = math.inf, math.nan
    figure = figures.landscape_2d(plane(bowl))
    checked(figure)
    assert figure.data[0].z[0][0] is None and math.isfinite(figure.data[0].zmax)
    with pytest.raises(ValueError, match="reach=inf"):
        figures.landscape(case("classes").fit("diag"), case("classes").data, reach=math.inf)


def test_a_factor_of_zeros_is_drawn() -> None:
    zero, one = torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    figure = figures.kronecker(KroneckerFactors("weight", zero, one, (2, 2)))
    assert [list(row) for row in figure.data[0].z] == [[0, 0], [0, 0]]


def test_yes_is_the_class_of_a_binary_probability() -> None:
    small = case("binary")
    la = small.fit("kron")
    for names, wanted in ((None, ("class 1",)), (("no", "yes"), ("yes",))):
        figure = figures.monte_carlo(la, small.x[:1], 3, classes=names)
        assert figure.layout.xaxis2.ticktext == wanted
    probability = float(la.predict(small.x[:1], link="mc").probs)
    assert figure.data[3].y[0] == pytest.approx(probability, rel=1e-4)


def test_captions_about_samples_of_the_network() -> None:
    small = case("regression")
    la = small.fit("full")
    own, other = (figures.monte_carlo(la, small.x[:4], 3, method=method) for method in ("linearised", "sampled"))
    assert "comes closer" in own.layout.meta["alt"] and own.data[3].name == "closed form"
    assert "closer" not in other.layout.meta["alt"] and other.data[3].name == "the linear model"
    with pytest.raises(ValueError, match="output=1 was given; expected a whole number from 0 to 0"):
        figures.monte_carlo(la, small.x[:4], 3, output=1)


def hundred() -> tuple[pw.Laplace, tuple[Tensor, Tensor]]:
    """A posterior over a hundred classes of two inputs."""
    x, y = normal(120, 2).to(DEVICE), (torch.arange(120) % 100).to(DEVICE)
    return pw.fit(nn.Linear(2, 100).double().to(DEVICE), (x, y), "classification", structure="diag"), (x, y)


def test_draws_take_arrays() -> None:
    """As predictions do, in the network's dtype; without inputs there is nothing to draw."""
    line = nn.Linear(1, 1, device=DEVICE)
    x = torch.linspace(-1, 1, 8)[:, None]
    la = pw.fit(line, (x, x.sin()), "regression")
    wanted = figures.prediction_draws(la, x, samples=3).predictions
    assert torch.allclose(figures.prediction_draws(la, x.double().numpy(), samples=3).predictions, wanted)
    assert len(figures.monte_carlo(la, x.tolist(), samples=3).data) > 0
    for empty in (None, x[:0].numpy()):
        with pytest.raises(PeewitError, match="x holds no inputs"):
            figures.monte_carlo(la, empty, samples=3)


def test_many_classes_leave_room_for_the_figure() -> None:
    la, data = hundred()
    figure = figures.decision_map(la, data, points=3)
    assert not any(trace.showlegend for trace in figure.data if trace.type == "scatter")
    drawn = figures.monte_carlo(la, data[0][:1], 2)
    assert len(drawn.layout.xaxis2.ticktext) <= 20 and drawn.layout.xaxis2.ticktext[1] == "class 5"


def test_maps_call_classes_by_their_names() -> None:
    small = case("classes")
    figure = figures.decision_map(small.fit("diag"), small.data, points=3, classes=("cat", "confidence", "<s>"))
    names = ["probability of cat", "probability of confidence", "probability of &lt;s>"]
    assert [button.label for button in figure.layout.updatemenus[0].buttons][-3:] == names
    assert [(trace.name, trace.zmin, trace.zmax) for trace in figure.data[4:7]] == [(name, 0.0, 1.0) for name in names]
    assert figure.data[-1].name == "&lt;s>"


@pytest.mark.parametrize("layer", ["confidence", "what the weights leave open", "probability of class 1"])
def test_a_map_shows_the_wanted_layer_first(layer: str) -> None:
    small = case("classes")
    figure = figures.decision_map(small.fit("diag"), small.data, points=3, layer=layer)
    shown = [trace.name for trace in figure.data if trace.type == "heatmap" and trace.visible]
    assert shown == [layer] and figure.layout.updatemenus[0].buttons[figure.layout.updatemenus[0].active].label == layer
    with pytest.raises(pw.PeewitError, match="did you mean 'entropy'"):
        figures.decision_map(small.fit("diag"), small.data, points=3, layer="entropie")


def test_data_at_one_place_have_a_range_around_it() -> None:
    small = case("regression")
    la = small.fit("full")
    made = prediction.band(la, (torch.full_like(small.x[:3], 2.0), small.y[:3]), points=3)
    assert made.x.tolist() == [1.0, 2.0, 3.0]
    for settings, words in (
        ({"output": 5}, "output=5"),
        ({"points": 0}, "points=0"),
        ({"extend": -1.0}, r"extend=-1\.0"),
    ):
        with pytest.raises(ValueError, match=words):
            figures.regression_band(la, small.data, **settings)


def test_errors_of_numbers_are_squared_and_those_of_classes_counted() -> None:
    counts = replace(scored("counts", "regression"), pit=None)  # a likelihood without quantiles
    for scores, wanted in (
        ((counts,), "mean squared error"),
        (report("regression").methods, "mean squared error"),
        (report().methods, "share of errors"),
        ((counts, scored("classes")), "error"),
    ):
        assert figures.risk_coverage(*scores).layout.yaxis.title.text == wanted


def test_sharpness_is_called_what_it_is() -> None:
    made = report("regression")
    sharp = replace(made.methods[0], metrics={"sharpness": made.methods[0].metrics["nll"]})
    figure = figures.compare(replace(made, methods=(sharp,)), "sharpness")
    assert figure.layout.title.text == "Predicted standard deviation"


def test_numbers_are_neither_right_nor_wrong() -> None:
    one = Specimen(index=3, label=0.5, predicted=0.25, confidence=math.nan, uncertainty=0.125, image=pixels(1))
    figure = figures.specimens(replace(report("regression"), surest=(one,), least_sure=(one,)))
    note = figure.layout.annotations[1]
    assert note.text == "0.25 ± 0.125<br>is 0.5" and note.font.color is None
    assert "nan" not in figure.data[0].hovertemplate and "confidence" not in figure.data[0].hovertemplate


def test_names_are_shown_as_they_are() -> None:
    table = figures.specimens(replace(report(channels=None), classes=("<s>", "a & b", "c"))).data[0]
    assert list(table.cells.values[2][:2]) == ["&lt;s>", "a &amp; b"]
    method = scored("Laplace")
    odd = replace(method, detection={"<s>": method.detection["bags"]}, uncertainty={"<s>": method.uncertainty["bags"]})
    figure = figures.detection(odd)
    assert figure.layout.title.text == "Unknown inputs noticed: &lt;s>" and "(<s>)" in figure.layout.meta["alt"]
    assert figures.uncertainty_histogram(odd).data[0].name == "&lt;s>"


def test_the_best_setting_is_the_best_by_its_own_metric() -> None:
    figure = figures.sweep(Tried(), "ece")
    assert "coloured by calibration error (ECE). Best NLL: 0.6" in figure.layout.meta["alt"]
    assert figure.data[-1].name == "best NLL"


def test_a_grid_is_drawn_as_cells_that_touch() -> None:
    figure = figures.sweep(Tried())
    cells = figure.data[0]
    assert cells.type == "bar" and len(cells.x) == 6
    right = [left + width for left, width in zip(cells.x, cells.width, strict=True)]
    assert sorted(set(cells.x)) == pytest.approx([0.1 / 10**0.5, 10**-0.5, 10**0.5])
    assert sorted(set(right)) == pytest.approx([10**-0.5, 10**0.5, 10 * 10**0.5])
    top = [low + height for low, height in zip(cells.base, cells.y, strict=True)]
    assert sorted(set(top)) == pytest.approx([2.5**0.5, 250**0.5])
    assert figure.layout.xaxis.range == pytest.approx((-1.5, 1.5))
    tried = Tried()
    tried.points = tried.points[:-1]
    assert figures.sweep(tried).data[0].type == "scatter"


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG defines it."""
    shares = [level / 255 for level in bytes.fromhex(colour[1:])]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_has_contrast_on_white_and_on_black() -> None:
    for colour in (style.TEXT, style.RIGHT, style.WRONG):
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5 and (luminance(colour) + 0.05) / 0.05 >= 4.5, colour
    assert 1.05 / (luminance(style.INK) + 0.05) >= 7


def test_pictures_have_a_white_ground_and_dark_text() -> None:
    figure = figures.sweep(Tried())
    drawn = saving.on_white(figure)
    assert drawn["layout"]["paper_bgcolor"] == "white" and drawn["layout"]["font"]["color"] == style.INK
    assert style.TEXT not in json.dumps(drawn)
    figure.update_layout(paper_bgcolor="navy")
    drawn = saving.on_white(figure)
    assert drawn["layout"]["paper_bgcolor"] == "navy" and drawn["layout"]["font"]["color"] == style.TEXT


def test_images_stand_in_rows_of_a_chosen_length() -> None:
    for across in (2, 5):
        shown = figures.specimens(report(), across=across)
        assert len({image.x0 for image in shown.data}) == across
    with pytest.raises(PeewitError, match="across=0 was given"):
        figures.specimens(report(), across=0)


def test_colours_leave_the_worst_settings_aside() -> None:
    points = [
        SweepPoint(1.0, 1.0, 1.0, {"nll": value, "accuracy": value}) for value in torch.linspace(0, 1, 21).tolist()
    ]
    for name, ends in (("nll", (0.0, 0.9)), ("accuracy", (0.1, 1.0))):
        marker = sweeps.settings_trace(points, name, True).marker
        assert (marker.cmin, marker.cmax) == pytest.approx(ends), name


def test_axes_over_few_values_have_ticks() -> None:
    for values in ((4.3,), (0.9, 1.1), (1.0,), (0.00231, 0.00232), (4.3e7, 4.4e7), (1e-9, 1e9)):
        made = style.logarithmic(values)
        low, high = made["range"]
        assert 2 <= len(made["tickvals"]) <= 8, values
        assert all(low <= math.log10(tick) <= high for tick in made["tickvals"])
        assert len(set(made["ticktext"])) == len(made["ticktext"])


def test_many_layers_say_how_many_are_shown() -> None:
    layer = summary.Layer("weight", 3, (0.1, 0.2, 0.3, 0.4, 0.5), 1.0)
    names = tuple(f"layer {number}" for number in range(50))
    made = summary.Summary(
        groups=names,
        precisions=(1.0,) * 50,
        dimensions=(0.01,) * 50,
        sizes=(3,) * 50,
        layers=tuple(replace(layer, name=n) for n in names),
    )
    for draw in (figures.marginal_variances, figures.prior_posterior, figures.effective_dimensions):
        assert "the first 40 of 50" in draw(made).layout.xaxis.title.text
    assert figures.effective_dimensions(made).layout.title.text == "0.5 of 150 weights determined by data"
    many = curvature.CurvatureMatrices(
        hessian=torch.eye(70, dtype=torch.float64),
        ggn=torch.eye(70, dtype=torch.float64),
        chosen=torch.arange(70),
        names=names[:1] * 70,
        ends=(*range(1, 71),),
    )
    figure = figures.hessian_blocks(many)
    assert not figure.layout.shapes and "lines" not in figure.layout.meta["alt"]


def test_spectra_of_many_layers_leave_room() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(12))).double().to(DEVICE)
    la = pw.fit(model, numbers(10, 2), "regression", structure="diag")
    figure = figures.spectra(la)
    named = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert named == ["24 tensors, named under the pointer", "prior precision"]


def test_vectors_of_a_large_network_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    small = case("classes")
    la = small.fit("diag")
    whole = figures.curvature_matrices(la, small.data)
    sizes = []
    made = curvature.units

    def counted(places: Tensor, like: Tensor) -> Tensor:
        sizes.append(len(places))
        return made(places, like)

    monkeypatch.setattr(curvature, "units", counted)
    again = figures.curvature_matrices(la, small.data, memory=3 * curvature.VECTORS * la.D)
    assert max(sizes) == 3
    torch.testing.assert_close(again.hessian, whole.hessian)
    torch.testing.assert_close(again.ggn, whole.ggn)


def test_scores_of_numbers_have_a_histogram_too() -> None:
    method = scored("Laplace", "regression")
    odd = replace(method, uncertainty={"test": {"variance": (0.1, 0.2)}})
    assert figures.uncertainty_histogram(odd).layout.xaxis.title.text == "variance"
    with pytest.raises(ValueError, match="bins=0"):
        figures.uncertainty_histogram(odd, bins=0)


def test_other_things_than_posteriors_and_scores_are_refused() -> None:
    small, made = case("classes"), report()
    asked: tuple[Any, ...] = (
        lambda: figures.spectra(small.model),
        lambda: figures.hessian_blocks(small.model, small.data),
        lambda: figures.kronecker(small.model),
        lambda: figures.block_approximations(small.model, small.data),
        lambda: figures.monte_carlo(small.model, small.x),
        lambda: figures.decision_map(small.model, small.data),
        lambda: figures.regression_band(small.model, small.data),
        lambda: figures.landscape(small.model, small.data),
    )
    for ask in asked:
        with pytest.raises(TypeError, match="A Sequential was given; expected a posterior"):
            ask()
    for draw in (figures.reliability, figures.pit, figures.risk_coverage, figures.detection):
        for given in (made, made.methods):
            with pytest.raises(TypeError, match=r"\(\*report.methods\)"):
                draw(given)
    for ask in (
        lambda: figures.compare(made.methods[0], "nll"),
        lambda: figures.shift_curves(small.fit("diag")),
        lambda: figures.specimens(made.methods),
    ):
        with pytest.raises(TypeError, match="expected a report"):
            ask()
    with pytest.raises(TypeError, match="expected a sweep"):
        figures.sweep(made)
    for most in (0, "all"):
        with pytest.raises(ValueError, match="most="):
            figures.specimens(made, most)
        with pytest.raises(ValueError, match="most="):
            figures.hessian_blocks(small.fit("diag"), small.data, most=most)
        with pytest.raises(ValueError, match="most="):
            figures.kronecker(small.fit("kron"), most=most)
