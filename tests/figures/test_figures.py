"""Every figure is valid, says in words what is seen, and leaves the network as it was; files are whole or not there."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import peewit as pw
from environment import DEVICE, ROOT
from figure_cases import case
from figure_checks import Tried, checked, compared, grid, learnt, report
from fitting import normal
from peewit import figures
from peewit.figures import prediction, saving
from peewit.figures.plotly_source import basic_source, is_basic
from snapshots import changed, snapshot

pytest.importorskip("plotly", reason="no plotly: pip install plotly")


# By name of the figure: the case, the structure of its posterior, and how it is drawn.
DRAWN: dict[str, tuple[str, Any, Callable[[Any, Any], Any]]] = {
    "landscape_1d": ("classes", "kron", lambda la, s: figures.landscape_1d(la, s.data, points=5)),
    "landscape_1d random": (
        "regression", "full", lambda la, s: figures.landscape_1d(la, s.data, points=5, directions="random")
    ),
    "landscape_2d": ("images", "kron", lambda la, s: figures.landscape_2d(la, s.data, points=5, directions="random")),
    "landscape_2d batch norm": ("batch_norm", "diag", lambda la, s: figures.landscape_2d(la, s.data, points=5)),
    "landscape_2d numbers": ("regression", "full", lambda la, s: figures.landscape_2d(la, s.data, points=5)),
    "landscape_2d binary": ("binary", "kron", lambda la, s: figures.landscape_2d(la, s.data, points=5)),
    "landscape_3d": ("classes", "full", lambda la, s: figures.landscape_3d(la, s.data, points=5)),
    "landscape_3d numbers": ("regression", "kron", lambda la, s: figures.landscape_3d(la, s.data, points=5)),
    "hessian_blocks": ("classes", "diag", lambda la, s: figures.hessian_blocks(la, s.data)),
    "hessian_blocks some": ("images", "diag", lambda la, s: figures.hessian_blocks(la, s.data, most=20)),
    "spectra": ("classes", "kron", lambda la, s: figures.spectra(la)),
    "spectra full": ("regression", "full", lambda la, s: figures.spectra(la)),
    "kronecker": ("classes", "kron", lambda la, s: figures.kronecker(la)),
    "kronecker conv": ("images", "kron", lambda la, s: figures.kronecker(la, "0.weight")),
    "block_approximations": ("classes", "kron", lambda la, s: figures.block_approximations(la, s.data)),
    "block_approximations conv": ("images", "diag", lambda la, s: figures.block_approximations(la, s.data, "0.weight")),
    "gaussian_sliders": ("classes", "diag", lambda la, s: figures.gaussian_sliders()),
    "marginal_variances": ("batch_norm", "kron", lambda la, s: figures.marginal_variances(la)),
    "prior_posterior": ("regression", "full", lambda la, s: figures.prior_posterior(la)),
    "effective_dimensions": ("classes", "ekfac", lambda la, s: figures.effective_dimensions(la)),
    "evidence_trace": ("regression", "kron", lambda la, s: figures.evidence_trace(la.tune())),
    "learning_curves": (
        "classes", "diag", lambda la, s: figures.learning_curves(learnt(la), {"test NLL": [0.7, None, 0.5]})
    ),
    "learning_curves many": ("images", "diag", lambda la, s: figures.learning_curves(learnt(la, 30))),
    "learning_curves without": ("classes", "diag", lambda la, s: figures.learning_curves(learnt(la, steps=[]))),
    "monte_carlo curves": ("regression", "full", lambda la, s: figures.monte_carlo(la, grid(s), 6)),
    "monte_carlo classes": ("classes", "kron", lambda la, s: figures.monte_carlo(la, s.x[:2], 5, method="sampled")),
    "monte_carlo images": ("images", "diag", lambda la, s: figures.monte_carlo(la, s.x[:1], 3, classes=tuple("abc"))),
    "monte_carlo binary": ("binary", "kron", lambda la, s: figures.monte_carlo(la, s.x[:1], 3)),
    "monte_carlo two": ("two_outputs", "kron", lambda la, s: figures.monte_carlo(la, grid(s), 3, output=1)),
    "regression_band": ("regression", "kron", lambda la, s: figures.regression_band(la, s.data, points=9)),
    "decision_map": ("classes", "kron", lambda la, s: figures.decision_map(la, s.data, points=5)),
    "decision_map binary": ("binary", "diag", lambda la, s: figures.decision_map(la, s.data, points=5)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(DRAWN))
def test_figure_of_a_posterior(name: str) -> None:
    network, structure, draw = DRAWN[name]
    small = case(network)
    small.model.train()  # a user may have left it so
    try:
        la = small.fit(structure)
        before = snapshot(small.model)
        checked(draw(la, small))
        assert changed(small.model, before) == []
    finally:
        small.model.eval()


def test_all_functions_are_drawn_here() -> None:
    tested = {name.split()[0] for name in DRAWN} | set(REPORTED) | {"save"}
    functions = {name for name in figures.__all__ if callable(getattr(figures, name)) and name.islower()}
    numbers = {
        "approximations",
        "curvature_matrices",
        "kronecker_factors",
        "landscape",
        "layer_spectra",
        "prediction_draws",
    }
    assert functions - numbers == tested


def test_the_gallery_shows_every_figure() -> None:
    docs = ROOT / "docs"
    page = (docs / "gallery.md").read_text(encoding="utf-8")
    for name in {each.split()[0] for each in DRAWN} | set(REPORTED):
        assert f"figures.{name}(" in page, name
    shown = re.findall(r"^!\[([^\]]*)\]\(([^)]*)\)$", page, re.M)
    assert len(shown) == page.count("figure = figures.")
    for alt, path in shown:
        assert len(alt) > 40, path
        content = (docs / path).read_bytes()
        assert len(content) < 230_000, path
        assert content[16:20] == (2 * 760).to_bytes(4, "big"), path  # sharp where a pixel of the page has two
    kept = {path.relative_to(docs).as_posix() for path in (docs / "figures" / "gallery").iterdir()}
    assert kept == {path for _, path in shown}


def test_a_failure_leaves_the_network_as_it_was() -> None:
    small = case("batch_norm")
    la = small.fit("kron")
    small.model.train()
    before = snapshot(small.model)
    bad = [small.data, (small.x[:, :1], small.y)]
    for ask in (
        lambda: figures.landscape_2d(la, bad, points=3, examples=None),
        lambda: figures.hessian_blocks(la, bad),
        lambda: figures.monte_carlo(la, small.x[:, :1], 3, method="sampled"),
        lambda: figures.decision_map(la, bad),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            ask()
        assert changed(small.model, before) == []
    small.model.eval()


REPORTED: dict[str, Callable[[], Any]] = {
    "reliability": lambda: figures.reliability(*report().methods),
    "risk_coverage": lambda: figures.risk_coverage(*report().methods),
    "uncertainty_histogram": lambda: figures.uncertainty_histogram(report().methods[0]),
    "detection": lambda: figures.detection(*report().methods),
    "shift_curves": lambda: figures.shift_curves(report()),
    "pit": lambda: figures.pit(*report("regression").methods),
    "specimens": lambda: figures.specimens(report()),
    "compare": lambda: figures.compare(report(), "nll"),
    "sweep": lambda: figures.sweep(Tried()),
    "evidence_against_test": lambda: figures.evidence_against_test(compared()),
}


@pytest.mark.parametrize("name", list(REPORTED))
def test_figure_of_a_report(name: str) -> None:
    checked(REPORTED[name]())


def test_figures_of_a_report_in_their_other_forms() -> None:
    made, numbers = report(), report("regression", None)
    for figure in (
        figures.prior_posterior(made),
        figures.effective_dimensions(made),
        figures.evidence_trace(made),
        figures.marginal_variances(made),
        figures.prior_posterior(replace(made, posterior={**made.posterior, "layers": []})),
        figures.evidence_trace(replace(made, posterior={"trace": {"values": [1.0, 2.0]}})),
        figures.shift_curves(made, "attacks", "confidence"),
        figures.specimens(report(channels=3)),
        figures.specimens(report(channels=None)),
        figures.specimens(numbers),
        figures.compare(made, "coverage90"),
        figures.compare(made, "odd_one"),
        figures.uncertainty_histogram(made.methods[0], "mutual_information"),
        figures.sweep(Tried(), "ece"),
        figures.risk_coverage(*numbers.methods),
        figures.detection(*numbers.methods),
    ):
        checked(figure)


def test_report_figures_show_its_numbers() -> None:
    methods = report().methods
    drawn = figures.reliability(methods[0]).data
    assert list(drawn[1].x) == [0.7, 0.95] and list(drawn[1].y) == [0.6, 0.9]  # the empty bin is left out
    assert list(drawn[2].y) == [0.0, 0.25, 0.75]
    compared = figures.compare(report(), "accuracy")
    assert [trace.x[0] for trace in compared.data] == [0.9, 0.9]
    assert compared.data[0].error_x.array[0] == pytest.approx(0.02)
    curve = figures.shift_curves(report(), "shifts", "accuracy")
    assert list(curve.data[0].y) == [0.9, 0.8, 0.6] and [trace.visible for trace in curve.data] == [
        True,
        True,
        False,
        False,
    ]
    shares = figures.pit(*report("regression").methods).data[0]
    assert list(shares.y) == pytest.approx([1.2, 0.8, 0.8, 1.2, 1.2])
    noticed = figures.detection(methods[0])
    assert [trace.name for trace in noticed.data] == ["entropy", "mutual information"]
    best = figures.evidence_trace(report()).data[1]
    assert (best.x[0], best.y[0]) == (2, -1.0)
    swept = figures.sweep(Tried())
    assert swept.data[-1].x[0] == 0.1 and list(swept.data[0].marker.color) == pytest.approx(
        [0.6, 5.1, 1.5, 6.0, 10.5, 15.0]
    )


def test_drawn_numbers_are_those_of_the_values() -> None:
    small = case("classes")
    la = small.fit("full")
    made = figures.landscape(la, small.data, points=5)
    figure = figures.landscape_2d(made)
    names = [trace.name for trace in figure.data]
    assert names[:2] == ["loss", "accuracy"] and "linear model's loss" in names and "network less linear model" in names
    texts = figure.data[0].text
    assert float(texts[0][1]) == pytest.approx(float(made.loss[0, 1]), rel=0.01)
    shown = figure.layout.updatemenus[0].buttons
    assert [button.args[0]["visible"].index(True) for button in shown] == list(range(5))
    surfaces = figures.landscape_3d(made).data
    torch.testing.assert_close(torch.tensor(surfaces[0].z, dtype=torch.float64), made.density, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(torch.tensor(surfaces[1].z, dtype=torch.float64), made.gaussian, rtol=1e-4, atol=1e-9)
    line = figures.landscape_1d(la, small.data, points=5)
    assert [trace.name for trace in line.data] == ["network"] * 2 + ["linear model"] * 2 + ["Gaussian"] * 2
    block = figures.block_approximations(la, small.data, "2.weight")
    assert float(block.data[0].z[1][2]) == pytest.approx(
        float(figures.approximations(la, small.data, "2.weight").true[1, 2]), rel=0.01, abs=0.01
    )


def test_parabola_is_the_loss_of_a_linear_network_at_its_mode() -> None:
    x, y = normal(30, 2).to(DEVICE), normal(30, 1, seed=2).to(DEVICE)
    model = torch.nn.Linear(2, 1, bias=False).double().to(DEVICE)
    with torch.no_grad():
        ridge = 3.0 * torch.eye(2, dtype=x.dtype, device=DEVICE)
        model.weight.copy_(torch.linalg.solve(4.0 * x.T @ x + ridge, 4.0 * x.T @ y).T)
    la = pw.fit(model, (x, y), pw.Gaussian(noise=0.5), structure="full", prior=3.0)
    network, _, linear, _, parabola, _ = (list(each.y) for each in figures.landscape_1d(la, (x, y), points=9).data)
    assert linear == pytest.approx(network, rel=1e-4) and parabola == pytest.approx(network, rel=1e-4)


def test_sliders_hold_every_setting() -> None:
    figure = figures.gaussian_sliders((0.5, 1.0), (-0.5, 0.0, 0.5))
    across, along, turned = figure.layout.sliders
    assert [len(each.steps) for each in (across, along, turned)] == [2, 2, 3]
    assert max(across.steps[0].args[0]["x"][0]) == pytest.approx(1.5)
    assert list(across.steps[0].args[1]) == [0, 1] and list(along.steps[1].args[1]) == [0, 2]
    small = case("regression")
    made = figures.prediction_draws(small.fit("full"), grid(small), 6)
    figure = figures.monte_carlo(made)
    slider = figure.layout.sliders[0]
    assert [step.label for step in slider.steps] == ["1", "2", "4", "6"]
    for step, number in zip(slider.steps, (1, 2, 4, 6), strict=True):
        assert len(step.args[0]["x"][0]) == number  # points
        assert step.args[0]["y"][1].count(None) == number  # curves
        assert step.args[0]["y"][2] == pytest.approx(made.predictions[:number].mean(0)[:, 0].tolist(), rel=1e-3)


def test_what_has_no_figure_is_refused() -> None:
    small = case("classes")
    la = small.fit("diag")
    made, numbers = report(), report("regression")
    for ask, words in (
        (lambda: figures.landscape_2d(la), "none was given"),
        (lambda: figures.landscape_2d(figures.landscape(la, small.data, points=3, dimensions=1)), "expected 2"),
        (lambda: figures.landscape_2d(figures.landscape(la, small.data, points=3), small.data), "leave data"),
        (lambda: figures.hessian_blocks(la), "none was given"),
        (lambda: figures.hessian_blocks(figures.curvature_matrices(la, small.data, most=4), most=3), "leave most out"),
        (lambda: figures.kronecker(figures.kronecker_factors(small.fit("kron")), "2.weight"), "leave name out"),
        (lambda: figures.block_approximations(figures.approximations(la, small.data), small.data), "leave data out"),
        (lambda: figures.monte_carlo(figures.prediction_draws(la, small.x, 3), small.x, 3), "leave x and samples out"),
        (lambda: figures.decision_map(prediction.decisions(la, small.data, points=3), points=5), "leave points out"),
        (lambda: figures.reliability(), "no scores"),
        (lambda: figures.reliability(*numbers.methods), "use pit"),
        (lambda: figures.pit(*made.methods), "use reliability"),
        (lambda: figures.uncertainty_histogram(made.methods[0], "entropie"), "did you mean 'entropy'"),
        (lambda: figures.compare(made, "acuracy"), "did you mean 'accuracy'"),
        (lambda: figures.shift_curves(made, "shift"), "did you mean 'shifts'"),
        (lambda: figures.shift_curves(made, "shifts", "acuracy"), "did you mean 'accuracy'"),
        (lambda: figures.detection(replace(made.methods[0], detection={})), "ood="),
        (lambda: figures.learning_curves(pw.learning.History()), "iterate over the run first"),
        (lambda: figures.learning_curves(learnt(la), {"a": [0.1] * 4}), r"'a' has 4 numbers.*record \(3\).*\(2\)"),
        (lambda: figures.evidence_trace(la), "la.tune"),
        (lambda: figures.evidence_trace(replace(made, posterior={})), "not tuned"),
        (lambda: figures.effective_dimensions(replace(made, posterior={})), "give the posterior itself"),
        (lambda: figures.specimens(replace(made, surest=(), least_sure=())), "no single inputs"),
        (lambda: figures.gaussian_sliders(correlations=(1.0,)), "between -1 and 1"),
        (lambda: figures.monte_carlo(la, small.x, 3, classes=("a",)), "has 1 names"),
        (lambda: figures.monte_carlo(la), "no inputs"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            ask()
    with pytest.raises(TypeError, match="expected a posterior"):
        figures.landscape_2d(small.model, small.data)
    with pytest.raises(TypeError, match="or a report"):
        figures.prior_posterior(3)
    with pytest.raises(TypeError, match="given a Laplace; expected a run"):
        figures.learning_curves(la)


def test_pages_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = figures.compare(report(), "nll")
    path = figures.save(figure, tmp_path / "one.html")
    text = path.read_text(encoding="utf-8")
    assert figure.layout.meta["alt"] in text and "<title>NLL" in text and 1_000_000 < len(text) < 1_500_000
    assert '"showSendToCloud": false' in text  # no figure leaves the reader's machine
    small = figures.save(figure, tmp_path / "two.html", plotlyjs="cdn").read_text(encoding="utf-8")
    assert len(small) < 100_000 and "https://cdn" in small
    for name, words in (("one.pdf", "ends in .html or"), ("one", "ends in .html or")):
        with pytest.raises(ValueError, match=words):
            figures.save(figure, tmp_path / name)
    with pytest.raises(FileNotFoundError, match="make it first"):
        figures.save(figure, tmp_path / "no" / "one.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        figures.save(figure, tmp_path / "folder.html")
    with pytest.raises(TypeError, match="expected a plotly figure"):
        figures.save("figure", tmp_path / "one.html")
    with pytest.raises(ValueError, match="plotlyjs"):
        figures.save(figure, tmp_path / "one.html", plotlyjs="local")

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space left"):
        figures.save(figure, tmp_path / "one.html", plotlyjs="cdn")
    assert path.read_text(encoding="utf-8") == text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder.html", "one.html", "two.html"]


def test_the_basic_bundle_is_that_of_plotly_for_python() -> None:
    """`make plotly` fetches it after plotly for Python was updated."""
    from plotly.offline import get_plotlyjs_version

    pinned = re.search(r"^plotly==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    assert pinned is not None
    if pinned[1] != version("plotly"):
        pytest.skip("another plotly is installed than the pinned one")
    assert f"plotly.js (basic - minified) v{get_plotlyjs_version()}\n" in basic_source()[:200]


def test_figures_with_contours_keep_the_whole_bundle(tmp_path: Path) -> None:
    import plotly.graph_objects as go

    lines, contour = go.Scatter(x=[0, 1], y=[0, 1]), go.Contour(z=[[0, 1], [1, 0]])
    assert is_basic(go.Figure([lines, go.Bar(y=[1])])) and not is_basic(go.Figure())
    assert not is_basic(go.Figure([lines, contour]))
    assert not is_basic(go.Figure([lines], frames=[go.Frame(data=[contour])]))
    assert figures.save(go.Figure([contour]), tmp_path / "contour.html").stat().st_size > 3_000_000


def test_names_with_signs_do_not_break_pages(tmp_path: Path) -> None:
    odd = replace(report(), methods=(replace(report().methods[0], name="</script><b>&"),))
    text = figures.save(figures.compare(odd, "nll"), tmp_path / "odd.html", plotlyjs="cdn").read_text(encoding="utf-8")
    assert "</script><b>" not in text


def test_missing_parts_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = figures.compare(report(), "nll")
    kaleido = pytest.importorskip("kaleido")

    class ChromeNotFoundError(RuntimeError):
        pass

    def none(*_: Any, **__: Any) -> bytes:
        raise ChromeNotFoundError("nothing here")

    monkeypatch.setattr(kaleido, "calc_fig_sync", none)
    with pytest.raises(pw.MissingPackageError, match=r"apt-get install chromium.*BROWSER_PATH"):
        figures.save(figure, tmp_path / "one.png")
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(ImportError, match="pip install kaleido"):
        figures.save(figure, tmp_path / "one.png")
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(ImportError, match="pip install plotly"):
        figures.gaussian_sliders()
    assert not list(tmp_path.iterdir())


def test_browser_named_by_the_user_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_PATH", "/some/chrome")
    assert saving.browser() == "/some/chrome"
    monkeypatch.delenv("BROWSER_PATH")
    monkeypatch.setattr(saving.shutil, "which", lambda name: f"/bin/{name}" if name == "google-chrome" else None)
    assert saving.browser() == "/bin/google-chrome"


def test_plotly_is_imported_with_the_first_figure_alone() -> None:
    import subprocess

    code = "import sys, peewit, peewit.figures; print(sorted({'plotly', 'kaleido'} & set(sys.modules)))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"


def test_a_real_report_is_drawn() -> None:
    small = case("classes")
    la = small.fit("kron").tune()
    made = pw.evaluate(la, small.data, ood={"far": 4 * small.x}, intervals=20)
    for figure in (
        figures.reliability(*made.methods),
        figures.risk_coverage(*made.methods),
        figures.detection(*made.methods),
        figures.compare(made, "nll"),
        figures.prior_posterior(made),
        figures.effective_dimensions(made),
        figures.marginal_variances(made),
        figures.evidence_trace(made),
        figures.specimens(made),
        *(figures.uncertainty_histogram(made.methods[0], score) for score in made.methods[0].uncertainty["test"]),
    ):
        checked(figure)
    own, told = figures.effective_dimensions(la), figures.effective_dimensions(made)
    assert list(own.data[1].x) == pytest.approx(list(told.data[1].x))
    first, second = figures.marginal_variances(la).data[2], figures.marginal_variances(made).data[2]
    assert list(first.x) == pytest.approx(list(second.x), rel=1e-6)
    first, second = figures.marginal_variances(la).data[3], figures.marginal_variances(made).data[3]
    assert list(first.x) == pytest.approx(list(second.x), rel=1e-6)
    prior = 1 / math.sqrt(float(la.prior.precision))
    assert list(first.x) == pytest.approx([prior] * 4, rel=1e-6)


def test_old_names_say_the_new_ones() -> None:
    with pytest.raises(AttributeError, match="it is curvature_matrices now"):
        _ = figures.whole  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="did you mean 'landscape'"):
        _ = figures.landscap  # type: ignore[attr-defined]
