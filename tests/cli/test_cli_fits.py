"""`peewit fit`: the posterior of the library, from networks, weights and data as files have them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

import peewit as pw

pytest.importorskip("typer", reason="no typer")

from commands import classifier, data, furnished, run

FIT = "fit -m NET:classifier -w weights.safetensors -l classification --train train.npz"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def fitted() -> pw.Laplace:
    return pw.fit(classifier(), data(), "classification")


@pytest.mark.parametrize(
    "given",
    [
        FIT,
        f"{FIT} --quiet",
        "fit -m NET:classifier -w weights.pt -l classification --train NET:batches",
        "fit -m NET:classifier -w checkpoint.pt -l classification --train data/train.safetensors",
        "fit -m NET:classifier -l classification --train named.csv",
        "fit -c run.toml --set fit.structure=kron",
        "fit -c run.toml --structure kron",
    ],
)
def test_fit_writes_the_posterior_that_the_library_makes(given: str, place: str) -> None:
    assert run(f"{given} -o made.safetensors", place) == 0
    made = pw.load("made.safetensors", classifier())
    torch.testing.assert_close(made.log_evidence(), fitted().log_evidence(), rtol=1e-4, atol=1e-3)
    x = data()[0]
    torch.testing.assert_close(made.predict(x).probs, fitted().predict(x).probs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights_are_those_of_the_file(ending: str, place: str) -> None:
    other = classifier()
    with torch.no_grad():
        other[0].weight.mul_(3)
    torch.save(other.state_dict(), "three.pt")
    save_file(other.state_dict(), "three.safetensors")
    given = f"fit -m NET:classifier -w three.{ending} -l classification --train train.npz -o made.safetensors -q"
    assert run(given, place) == 0
    made = pw.load("made.safetensors", other)  # which refuses other weights
    assert float(made.log_evidence()) == pytest.approx(float(pw.fit(other, data(), "classification").log_evidence()))


class Harmful:
    """A file with code in it: reading it carelessly would write another."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("harmed", "w")


def test_weights_are_read_without_running_what_they_hold(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"0.weight": Harmful()}, "harmful.pt")
    assert run("fit -m NET:classifier -w harmful.pt -l classification --train train.npz", place) == 2
    assert "cannot be read as weights" in capsys.readouterr().err and not Path("harmed").exists()


@pytest.mark.parametrize("net", ["regressor", "squeezed"])
@pytest.mark.parametrize("source", ["numbers.csv", "flat.npz"])
def test_one_target_fits_outputs_with_and_without_an_axis(net: str, source: str, place: str) -> None:
    """Files do not tell (N,) from (N, 1)."""
    assert run(f"fit -m NET:{net} -l regression --train {source} -o made.safetensors -q", place) == 0
    assert run(f"evaluate -m NET:{net} -p made.safetensors --test {source} --set evaluate.intervals=5 -q", place) == 0


def test_folders_of_images(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = pytest.importorskip("PIL.Image", reason="no Pillow")
    drawn = numpy.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=numpy.uint8)
    for number, pixels in enumerate(drawn):
        folder = tmp_path / "photos" / ("cat" if number < 4 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        images.fromarray(pixels).save(folder / f"{number}.png")
    assert run("fit -m NET:images -l classification --train photos -o made.safetensors --json", place) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == ["cat", "dog"]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
    x = torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 255
    wanted = pw.fit(net, (x, torch.tensor([0, 0, 0, 0, 1, 1])), "classification")
    assert float(pw.load("made.safetensors", net).log_evidence()) == pytest.approx(
        float(wanted.log_evidence()), rel=1e-4
    )
    images.fromarray(drawn[0].repeat(2, 0)).save(tmp_path / "photos" / "dog" / "tall.png")
    assert run("fit -m NET:images -l classification --train photos -o b.safetensors", place) == 2
    assert "--size HEIGHT WIDTH" in capsys.readouterr().err
    assert run("fit -m NET:images -l classification --train photos -o b.safetensors --size 4 4 -q", place) == 0
    assert run("predict -m NET:images -p made.safetensors --data photos/cat -o p.csv -q", place) == 0
    assert len(Path("p.csv").read_text().splitlines()) == 5
    assert run("fit -m NET:images -l classification --train photos --classes dog,bird -o b.safetensors", place) == 2
    assert "a folder 'cat'" in capsys.readouterr().err
