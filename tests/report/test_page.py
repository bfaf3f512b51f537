"""The report in a real browser: it opens from a file without a network, draws, and answers to keys and fingers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser import launched, opened
from reports import classification, regression

NASTY = "<script>document.title = 'taken'; throw 1</script> & <b>bold</b>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("plotly", reason="no plotly")
    folder = tmp_path_factory.mktemp("pages")
    nasty = classification(NASTY, (NASTY, "b", NASTY, "d"))
    nasty = replace(
        nasty,
        settings={NASTY: NASTY},
        notes=(NASTY,),
        methods=(replace(nasty.methods[0], name=NASTY, description=NASTY), *nasty.methods[1:]),
    )
    made = {"classification": classification(), "regression": regression(), "nasty": nasty}
    return {name: report.to_html(folder / f"{name}.html") for name, report in made.items()}


def ready(page: Any) -> None:
    page.wait_for_function("document.documentElement.dataset.ready === 'yes'")


@pytest.mark.parametrize("name", ["classification", "regression", "nasty"])
def test_it_opens_and_draws(name: str, chromium: Any, files: dict[str, Path]) -> None:
    with opened(chromium, files[name]) as page:
        ready(page)
        shown = page.locator(".variant:not([hidden]) > .chart")
        assert shown.count() >= 3
        for place in range(shown.count()):
            chart = shown.nth(place)
            assert chart.locator("svg.main-svg").count() >= 1
            assert chart.bounding_box()["height"] > 100
            assert len(chart.get_attribute("aria-label")) > 20
        assert page.locator("main img").count() == (0 if name == "regression" else 12)


def test_texts_of_users_are_texts(chromium: Any, files: dict[str, Path]) -> None:
    with opened(chromium, files["nasty"]) as page:
        ready(page)
        assert page.title() == NASTY
        assert page.locator("h1").inner_text() == NASTY
        assert page.locator("main b, main script").count() == 0
        assert NASTY in page.locator("#settings").inner_text()


@pytest.mark.parametrize("name", ["classification", "regression", "nasty"])
def test_a_phone_does_not_scroll_sideways(name: str, chromium: Any, files: dict[str, Path]) -> None:
    with opened(chromium, files[name], width=375, height=800) as page:
        ready(page)
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        right = "each => each.getBoundingClientRect().right"
        wide = f"Math.max(0, ...[...document.querySelectorAll('main svg.main-svg, main img')].map({right}))"
        assert page.evaluate(wide) <= 376


def test_a_phone_has_one_line_of_contents_and_whole_menus(chromium: Any, files: dict[str, Path]) -> None:
    with opened(chromium, files["classification"], width=375, height=800) as page:
        ready(page)
        assert page.locator("nav").bounding_box()["height"] < 60
        for menu in page.locator("select").all():
            menu.evaluate("""each => {
                const own = document.createElement("canvas").getContext("2d");
                own.font = getComputedStyle(each).font;
                const widest = Math.max(...[...each.options].map(option => own.measureText(option.text).width));
                each.dataset.fits = widest + 40 < each.clientWidth;
            }""")
            assert menu.get_attribute("data-fits") == "true", menu.get_attribute("id")


def test_a_figure_stands_in_the_first_screen_below_cards_of_one_height(chromium: Any, files: dict[str, Path]) -> None:
    with opened(chromium, files["classification"], width=1280, height=900) as page:
        ready(page)
        heights = [card.bounding_box()["height"] for card in page.locator(".card").all()]
        assert len(heights) == 3 and max(heights) - min(heights) < 2
        chart = page.locator("#figure-compare .variant:not([hidden]) .chart").bounding_box()
        assert chart["y"] + 150 < 900


def colours(page: Any) -> tuple[str, str]:
    """Of the page, and of a figure's text."""
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    tick = page.evaluate("getComputedStyle(document.querySelector('.chart .xtick text')).fill")
    return background, tick


def test_light_and_dark(chromium: Any, files: dict[str, Path]) -> None:
    with opened(chromium, files["classification"], dark=True) as page:
        ready(page)
        dark = colours(page)
    with opened(chromium, files["classification"]) as page:
        ready(page)
        light = colours(page)
        assert light[0] == "rgb(255, 255, 255)" and light[0] != dark[0] and light[1] != dark[1]
        page.get_by_role("button", name="Switch to dark colours").click()
        page.wait_for_function(
            "getComputedStyle(document.querySelector('.chart .xtick text')).fill !== 'rgb(28, 33, 38)'"
        )
        assert colours(page) == dark
        page.get_by_role("button", name="Switch to light colours").click()
        page.wait_for_function(
            "getComputedStyle(document.querySelector('.chart .xtick text')).fill === 'rgb(28, 33, 38)'"
        )
        assert colours(page) == light


@pytest.mark.parametrize("system", [True, False])
def test_paper_is_white(system: bool, chromium: Any, files: dict[str, Path]) -> None:
    """Whether dark colours are the system's or the reader's."""
    with opened(chromium, files["classification"], dark=system) as page:
        ready(page)
        if not system:
            page.get_by_role("button", name="Switch to dark colours").click()
        dark = colours(page)
        assert dark[0] != "rgb(255, 255, 255)"
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert colours(page) == ("rgb(255, 255, 255)", "rgb(28, 33, 38)")
        assert page.locator("details:not([open])").count() == 0
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert colours(page) == dark and page.locator("details[open]").count() == 0


def test_menus_change_figures_and_their_numbers(chromium: Any, files: dict[str, Path]) -> None:
    with opened(chromium, files["classification"]) as page:
        ready(page)
        for name in ("compare", "reliability", "uncertainty", "shifts", "attacks"):
            menu, figure = page.locator(f"#{name}-menu"), page.locator(f"#figure-{name}")
            count = menu.locator("option").count()
            assert count > 1
            shown = figure.locator(".variant:not([hidden])")
            before = shown.locator(".chart").get_attribute("aria-label")
            menu.select_option(str(count - 1))
            page.wait_for_function(
                f"document.querySelector('#figure-{name} .variant:not([hidden]) .chart[data-drawn=done] .trace')"
            )
            assert shown.count() == 1
            assert shown.locator(".chart").get_attribute("aria-label") != before
            assert shown.locator(".chart").bounding_box()["width"] > 300


def test_no_button_sends_figures_away(chromium: Any, files: dict[str, Path]) -> None:
    with opened(chromium, files["classification"]) as page:
        ready(page)
        names = page.evaluate("[...document.querySelectorAll('.modebar-btn')].map(each => each.dataset.title)")
        assert any("PNG" in name for name in names)
        assert not [name for name in names if any(word in name.lower() for word in ("share", "cloud", "edit in"))]


def test_words_in_tables_stay_whole(chromium: Any, files: dict[str, Path]) -> None:
    """A table that is too wide scrolls by itself."""
    with opened(chromium, files["classification"]) as page:
        ready(page)
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        heights = "[...document.querySelectorAll('#figure-risk-coverage thead th')].map(each => each.clientHeight)"
        assert max(page.evaluate(heights)) < 100


def test_the_slider_reads_the_curve(chromium: Any, files: dict[str, Path]) -> None:
    with opened(chromium, files["classification"]) as page:
        ready(page)
        told = page.locator("#hand-over-text")
        assert f"wrong in {100 * 0.157 * 0.8**1.7:.1f} % (of all, without help: 15.7 %)" in told.inner_text()
        page.locator("#hand-over").focus()
        for _ in range(4):  # keys move it by 5 %
            page.keyboard.press("ArrowRight")
        assert "A person decides 40 %" in told.inner_text()
        assert f"wrong in {100 * 0.157 * 0.6**1.7:.1f} %" in told.inner_text()
        page.keyboard.press("Home")
        assert "Without help it is wrong in 15.7 %" in told.inner_text()


def test_keys_reach_everything(chromium: Any, files: dict[str, Path]) -> None:
    with opened(chromium, files["classification"]) as page:
        ready(page)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        assert page.locator(".skip").bounding_box()["x"] >= 0  # seen once it has the focus
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        summary = page.locator("#figure-reliability .variant:not([hidden]) summary")
        summary.focus()
        page.keyboard.press("Enter")
        assert page.locator("#figure-reliability .variant:not([hidden]) table").is_visible()


@pytest.mark.parametrize("width", [1200, 700])
def test_the_contents_do_not_cover_what_has_the_focus(width: int, chromium: Any, files: dict[str, Path]) -> None:
    """Going backwards, what gets the focus comes into sight at the top."""
    with opened(chromium, files["classification"], width=width, height=700) as page:
        page.emulate_media(reduced_motion="reduce")
        ready(page)
        page.locator("summary").last.focus()
        covered = """(() => {
            const nav = document.querySelector("nav").getBoundingClientRect(), own = document.activeElement;
            return own.closest("main") !== null && own.getBoundingClientRect().top < nav.bottom;
        })()"""
        for _ in range(60):
            page.keyboard.press("Shift+Tab")
            assert not page.evaluate(covered)


def test_without_scripts_the_numbers_are_there(chromium: Any, files: dict[str, Path]) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(files["classification"].as_uri())
    assert page.locator("#summary .card").count() == 3
    assert page.locator("#methods table").first.is_visible()
    assert "Figures need JavaScript" in page.locator("main").inner_text()
    context.close()
