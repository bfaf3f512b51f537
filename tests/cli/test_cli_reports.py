"""The commands that judge and draw: evaluate, report, compare, landscape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import peewit as pw

pytest.importorskip("typer", reason="no typer")

from commands import classifier, data, furnished, leftovers, run
from peewit.cli import evaluating
from peewit.evaluation import Report
from reports import classification

POSTERIOR = "-m NET:classifier -w weights.pt -p made.safetensors"
FEW = "--set evaluate.intervals=20"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def fitted(structure: str = "kron") -> pw.Laplace:
    return pw.fit(classifier(), data(), "classification", structure=structure)


def test_an_evaluation_is_that_of_the_library(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted().save("made.safetensors")
    given = f"evaluate {POSTERIOR} {FEW} --test train.npz --validation train.npz --ood far=far.npz --seed 3 --title T"
    assert run(f"{given} -o report.json -o report.md --classes a,b,c", place) == 0
    told = capsys.readouterr()
    assert "Temperature scaling" in told.out and "written to report.md" in told.out and "Traceback" not in told.err
    made = Report.from_json("report.json")
    x, _ = data()
    wanted = pw.evaluate(
        fitted(),
        data(),
        validation=data(),
        ood={"far": 9 * x},
        intervals=20,
        generator=torch.Generator().manual_seed(3),
        classes=("a", "b", "c"),
        title="T",
    )
    assert made.title == "T" and made.classes == ("a", "b", "c")
    for mine, theirs in zip(made.methods, wanted.methods, strict=True):
        assert mine.name == theirs.name
        for name, value in theirs.metrics.items():
            assert mine.metrics[name].value == pytest.approx(value.value, rel=1e-3, abs=1e-3), name
        found, own = (each.detection["far"]["entropy"].auroc.value for each in (mine, theirs))
        assert found == pytest.approx(own, abs=1e-3)
    assert "# T" in Path("report.md").read_text()
    assert leftovers(tmp_path) == []


def test_an_ensemble_of_weights(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The network and copies of it with other weights; its own stay as they are."""
    members = [classifier() for _ in range(3)]
    for number, member in enumerate(members[1:], 1):
        torch.manual_seed(number)
        with torch.no_grad():
            for parameter in member.parameters():
                parameter.normal_()
        save_file(member.state_dict(), f"other{number}.safetensors")
    given = f"evaluate -m NET:classifier -w weights.pt -l classification {FEW} --test train.npz -o report.json -q"
    others = "--ensemble other1.safetensors --ensemble other2.safetensors"
    assert run(f"{given} {others} --set evaluate.baselines=['ensemble']", place) == 0
    made = Report.from_json("report.json")
    wanted = pw.evaluate(members[0], data(), likelihood="classification", ensemble=members, intervals=0)
    assert [each.name for each in made.methods] == ["Plain network", "Deep ensemble"]
    for each in made.methods:
        assert each.metrics["nll"].value == pytest.approx(wanted[each.name].metrics["nll"].value, rel=1e-4)
    capsys.readouterr()
    assert run(f"{given} --ensemble gone.safetensors", place) == 2
    assert "gone.safetensors" in capsys.readouterr().err


def test_no_interval_is_shown_where_there_is_none(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = "evaluate -m NET:classifier -l classification --test train.npz --set evaluate.intervals=0 -q"
    assert run(given, place) == 0
    assert "–" not in capsys.readouterr().out


def test_intervals_are_the_same_ones_everywhere(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The share of targets in 90 % intervals: in the table, in JSON, in Markdown and on the page."""
    pytest.importorskip("plotly", reason="no plotly")
    assert run("fit -m NET:regressor -l regression --train numbers.csv --noise 0.4 -o made.safetensors -q", place) == 0
    capsys.readouterr()
    given = "evaluate -m NET:regressor -p made.safetensors --test numbers.csv -o r.json -o r.html -o r.md -q"
    assert run(f"{given} {FEW}", place) == 0
    shown = capsys.readouterr().out
    methods = {each["name"]: each["metrics"] for each in json.loads(Path("r.json").read_text())["methods"]}
    laplace, plain = (methods[name]["coverage90"]["value"] for name in ("Laplace", "Plain network"))
    assert min(laplace, plain) > 0.02 and max(laplace, plain) < 0.98, "so that shares are told from others"
    head, row = (next(line.split() for line in shown.splitlines() if word in line) for word in ("rmse", "Laplace"))
    assert row[head.index("coverage90")] == f"{laplace:.3f}" and "coverage95" not in head
    page = " ".join(Path("r.html").read_text().split())
    assert f"Its 90 % intervals held {100 * plain:.0f} % of the test targets" in page
    line = next(line for line in Path("r.md").read_text().splitlines() if line.startswith("| Laplace"))
    assert f"{laplace:.3f}" in line or f"{100 * laplace:.1f}" in line


def test_json_alone_is_on_stdout(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a network without a posterior, with corruptions and attacks."""
    given = f"evaluate -m NET:images -l classification {FEW} --test photos --shifts noise --attacks fgsm --json"
    images = pytest.importorskip("PIL.Image", reason="no Pillow")
    for number in range(8):
        folder = Path("photos") / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        images.effect_noise((4, 4), 90).convert("RGB").save(folder / f"{number}.png")
    assert run(given, place) == 0
    made = Report.from_json(capsys.readouterr().out)
    assert made.classes == ("cat", "dog") and [each.name for each in made.methods] == ["Plain network"]
    assert list(made.methods[0].shifts) == ["noise"] and list(made.methods[0].attacks) == ["fgsm"]


def test_pages_from_json_and_from_a_posterior(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly", reason="no plotly")
    classification("From JSON").to_json("report.json")
    assert run("report report.json -o page.html", place) == 0
    assert "<h1>From JSON</h1>" in Path("page.html").read_text()
    older = json.loads(Path("report.json").read_text())
    for each in older["methods"]:
        del each["differences"]  # which came later
    Path("report.json").write_text(json.dumps(older))
    assert run("report report.json -o page.html --title Another", place) == 0
    assert "<h1>Another</h1>" in Path("page.html").read_text()
    fitted().save("made.safetensors")
    assert run(f"report {POSTERIOR} {FEW} --test train.npz --title Direct -q", place) == 0
    assert "<h1>Direct</h1>" in Path("report.html").read_text()
    assert "written to report.html" in capsys.readouterr().out
    Path("report.json").write_text('{"format": 99}')
    assert run("report report.json -o other.html", place) == 2
    assert "format 99" in capsys.readouterr().err and not Path("other.html").exists()


def test_files_appear_together_or_not_at_all(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted().save("made.safetensors")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluating.Report, "to_markdown", interrupted)
    given = f"evaluate {POSTERIOR} {FEW} --test train.npz -o report.json -o report.md -q"
    assert run(given, place) == 130
    assert capsys.readouterr().err == "Interrupted; nothing was written.\n"
    assert not Path("report.json").exists() and leftovers(tmp_path) == []


def test_posteriors_are_compared_by_evidence(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("kron", "diag", "full")
    for name in names:
        fitted(name).save(f"{name}.safetensors")
    files = " ".join(f"{name}.safetensors" for name in names)
    assert run(f"compare {files} -m NET:classifier -w weights.pt --test train.npz --json", place) == 0
    told = json.loads(capsys.readouterr().out)
    wanted = {name: float(fitted(name).log_evidence()) for name in names}
    found = {row["name"]: row for row in told["posteriors"]}
    assert list(found) == sorted(names, key=lambda name: -wanted[name])
    best = max(wanted.values())
    judged = pw.evaluate(fitted("diag"), data(), baselines=())
    for name in names:
        assert found[name]["log_evidence"] == pytest.approx(wanted[name], rel=1e-4)
        assert found[name]["behind"] == pytest.approx(best - wanted[name], abs=1e-2)
    assert found["diag"]["metrics"]["nll"]["value"] == pytest.approx(judged.methods[0].metrics["nll"].value, rel=1e-3)
    assert run(f"compare {files} -m NET:classifier -w weights.pt", place) == 0
    shown = capsys.readouterr().out
    assert "log evidence" in shown and f"{best:.1f}" in shown
    assert "data fit" in shown and "complexity" in shown and "Different structures" in shown
    row, la = found["diag"], fitted("diag")
    evidence = la.evidence()
    assert row["log_likelihood"] == pytest.approx(evidence.log_likelihood, rel=1e-4)
    assert row["complexity"] == pytest.approx(evidence.complexity, rel=1e-4)
    assert row["test_log_likelihood"] == pytest.approx(-pw.validation_nll(la, data()), rel=1e-3)
    assert row["structure"] == "Diag" and row["weights"] == la.D and row["where"] == "the trained weights"


def test_files_of_one_name_are_told_apart(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By their folders; the same file twice is refused."""
    for name in ("kron", "diag"):
        Path(name).mkdir()
        fitted(name).save(f"{name}/made.safetensors")
    given = "compare kron/made.safetensors diag/made.safetensors -m NET:classifier -w weights.pt"
    assert run(f"{given} --json", place) == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)["posteriors"]}
    assert names == {str(Path(name, "made.safetensors")) for name in ("kron", "diag")}
    assert run("compare kron/made.safetensors kron/made.safetensors -m NET:classifier", place) == 2
    assert "kron/made.safetensors was given twice; expected each posterior once." in capsys.readouterr().err


def test_networks_are_compared_by_their_own_settings(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = data()
    for width, count in ((8, 60), (5, 40)):
        pw.fit(classifier(width), (x[:count], y[:count]), "classification").save(f"{width}.safetensors")
        Path(f"{width}.toml").write_text(
            f'model = "{place}:classifier"\nposterior = "{width}.safetensors"\n[arguments]\nwidth = {width}\n'
        )
    assert run("compare 8.toml 5.toml", place) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "different numbers of examples" in shown
    assert "Different weights" not in shown  # all weights of both are uncertain, however many these are


def test_a_landscape_is_written(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly", reason="no plotly")
    fitted().save("made.safetensors")
    assert run(f"landscape {POSTERIOR} --train train.npz --points 5 --seed 1 --directions random", place) == 0
    assert "written to landscape.html" in capsys.readouterr().out
    assert "plotly" in Path("landscape.html").read_text() and leftovers(tmp_path) == []
    assert run(f"landscape {POSTERIOR} --train train.npz --points 5 --directions sideways", place) == 2
    assert "sideways" in capsys.readouterr().err
