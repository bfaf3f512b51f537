"""Saved figures in a real browser, offline: they draw without complaint, and menus and sliders change the drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import browser
from figure_cases import case
from figure_checks import grid, learnt, report
from peewit import figures

pytest.importorskip("plotly", reason="no plotly: pip install plotly")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for all tests here."""
    with browser.launched() as made:
        yield made


def plane() -> Any:
    """A small landscape."""
    small = case("classes")
    return figures.landscape(small.fit("full"), small.data, points=7)


def curves() -> Any:
    """Sampled functions."""
    small = case("regression")
    return figures.prediction_draws(small.fit("full"), grid(small), 8)


MENUS: dict[str, Callable[[], Any]] = {
    "landscape_2d": lambda: figures.landscape_2d(plane()),
    "hessian_blocks": lambda: figures.hessian_blocks(case("classes").fit("diag"), case("classes").data),
    "decision_map": lambda: figures.decision_map(case("classes").fit("diag"), case("classes").data, points=7),
    "shift_curves": lambda: figures.shift_curves(report()),
}
SLIDERS: dict[str, Callable[[], Any]] = {
    "gaussian_sliders": figures.gaussian_sliders,
    "monte_carlo": lambda: figures.monte_carlo(curves()),
}
PLOT = "document.querySelectorAll('.js-plotly-plot')[{0}]"
STATE = f"() => JSON.stringify({PLOT}._fullData.map(each => each.visible))"
DRAWING = f"() => {PLOT}.querySelector('.cartesianlayer').innerHTML"
RIGHT = "[...document.querySelectorAll('{0}')].map(each => [each.textContent, each.getBoundingClientRect().right])"


def together(made: dict[str, Any], folder: Path) -> Path:
    """All figures on one page with plotly inside: what takes time is to read that."""
    from plotly.offline import get_plotlyjs

    look = {"full_html": False, "include_plotlyjs": False, "config": {"responsive": True}}
    parts = "".join(each.to_html(**look) for each in made.values())
    head = f"<!doctype html><html><head><meta charset='utf-8'><script>{get_plotlyjs()}</script></head>"
    path = folder / "all.html"
    path.write_text(f"{head}<body style='margin: 0'>{parts}</body></html>", encoding="utf-8")
    return path


def test_menus_change_the_drawing(chromium: Any, tmp_path: Path) -> None:
    made = {name: draw() for name, draw in MENUS.items()}
    with browser.opened(chromium, together(made, tmp_path)) as page:
        browser.drawn(page)
        for place, (name, figure) in enumerate(made.items()):
            state, drawing = STATE.format(place), DRAWING.format(place)
            plot = page.locator(".js-plotly-plot").nth(place)
            seen, drawings = [page.evaluate(state)], [page.evaluate(drawing)]
            for number in range(1, len(figure.layout.updatemenus[0].buttons)):
                plot.locator(".updatemenu-header").click()
                plot.locator(".updatemenu-dropdown-button").nth(number).click()
                page.wait_for_function(f"before => ({state})() !== before", arg=seen[-1])
                seen.append(page.evaluate(state))
                drawings.append(page.evaluate(drawing))
            assert len(set(seen)) == len(seen) and drawings[0] != drawings[1], name


def test_sliders_change_the_drawing(chromium: Any, tmp_path: Path) -> None:
    made = {name: draw() for name, draw in SLIDERS.items()}
    with browser.opened(chromium, together(made, tmp_path), width=390, height=844, dark=True) as page:
        browser.drawn(page)
        for place, figure in enumerate(made.values()):
            plot, drawing = page.locator(".js-plotly-plot").nth(place), DRAWING.format(place)
            for number in range(len(figure.layout.sliders)):
                before = page.evaluate(drawing)
                rail = plot.locator(".slider-rail-touch-rect").nth(number)
                rail.scroll_into_view_if_needed()
                box = rail.bounding_box()
                page.mouse.click(box["x"] + 3, box["y"] + box["height"] / 2)
                page.wait_for_function(f"before => ({drawing})() !== before", arg=before)
                assert page.evaluate(f"() => {PLOT.format(place)}._fullLayout.sliders[{number}].active") == 0


def test_saved_surfaces_are_drawn_and_chosen(chromium: Any, tmp_path: Path) -> None:
    path = figures.save(figures.landscape_3d(plane()), tmp_path / "figure.html")
    with browser.opened(chromium, path, width=900) as page:
        browser.drawn(page)
        page.wait_for_selector(".gl-container canvas")
        assert page.evaluate("document.documentElement.scrollWidth") <= 900
        assert len(page.inner_text("figcaption")) > 40
        width = f"() => {PLOT.format(0)}._fullLayout.scene2._scene.container.offsetWidth"
        assert page.evaluate(width) < 450
        page.click(".updatemenu-header")
        page.locator(".updatemenu-dropdown-button").nth(2).click()
        page.wait_for_function(f"() => ({STATE.format(0)})() === '[false,true,false]'")
        page.wait_for_function(f"() => ({width})() > 600")


def others() -> dict[str, Any]:
    """Every figure that has no menu and no slider."""
    small = case("classes")
    la = small.fit("kron").tune()
    made = report()
    return {
        "landscape_1d": figures.landscape_1d(la, small.data, points=9),
        "spectra": figures.spectra(la),
        "kronecker": figures.kronecker(la),
        "block_approximations": figures.block_approximations(la, small.data),
        "marginal_variances": figures.marginal_variances(la),
        "prior_posterior": figures.prior_posterior(la),
        "effective_dimensions": figures.effective_dimensions(la),
        "evidence_trace": figures.evidence_trace(la),
        "learning_curves": figures.learning_curves(learnt(None), {"test NLL": [0.7, 0.6, 0.5]}),
        "monte_carlo": figures.monte_carlo(la, small.x[:1], 4),
        "regression_band": figures.regression_band(case("regression").fit("diag"), case("regression").data, points=9),
        "reliability": figures.reliability(*made.methods),
        "risk_coverage": figures.risk_coverage(*made.methods),
        "uncertainty_histogram": figures.uncertainty_histogram(made.methods[0]),
        "detection": figures.detection(*made.methods),
        "pit": figures.pit(*report("regression").methods),
        "specimens": figures.specimens(made),
        "specimens_table": figures.specimens(report(channels=None)),
        "compare": figures.compare(made, "nll"),
        "compare_shares": figures.compare(made, "coverage90"),
    }


def test_every_other_figure_fits_a_phone_and_a_desk(chromium: Any, tmp_path: Path) -> None:
    made = others()
    with browser.opened(chromium, together(made, tmp_path), width=360) as page:
        browser.drawn(page)
        assert page.locator(".js-plotly-plot").count() == len(made)
        for width in (360, 1200):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_function(f"() => Math.abs({PLOT.format(0)}._fullLayout.width - {width}) < 20")
            for part in (".main-svg", ".gtitle", ".xtitle", ".legendtext"):
                assert [text for text, right in page.evaluate(RIGHT.format(part)) if right > width + 1] == [], part


def test_pictures_are_drawn(chromium: Any, tmp_path: Path) -> None:
    pytest.importorskip("kaleido", reason="no kaleido: pip install kaleido")
    path = figures.save(figures.compare(report(), "nll"), tmp_path / "one.png", width=300, height=200)
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[16:24] == (300).to_bytes(4, "big") + (200).to_bytes(4, "big")
    assert [each.name for each in tmp_path.iterdir()] == ["one.png"]
