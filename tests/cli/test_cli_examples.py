"""The examples at the end of help pages run as they are printed, in a folder with files of these names."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

pytest.importorskip("typer", reason="no typer")
pytest.importorskip("PIL", reason="no Pillow")
pytest.importorskip("plotly", reason="no plotly")

from PIL import Image

from commands import write_csv
from peewit.cli import commands, main

MODULE = """
from torch import nn

def lenet():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh(), nn.Linear(4, 2))

def mlp():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
"""
RUN = 'model = "networks:lenet"\ncheckpoint = "lenet.safetensors"\nlikelihood = "classification"\ntrain = "train.npz"\n'
HOUSES = "-m networks:mlp -w mlp.safetensors"
LINES = [
    line.strip()
    for _, epilog in commands.ALL
    for line in epilog.splitlines()
    if line.strip().startswith("peewit ") and not line.strip().startswith("peewit demo")
]


@pytest.fixture(scope="module")
def furnished_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every file that an example names."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sys.modules.pop("networks", None)
        make_files()
        for given in (
            "fit -c run.toml -q -o posterior.safetensors",
            "fit -c run.toml -q -o kron.safetensors",
            "fit -c run.toml -q --structure diag -o diag.safetensors",
            "fit -c run.toml -q --structure full -o full.safetensors",
            f"fit {HOUSES} -l regression --train houses.csv --target price --standardise -q -o houses.safetensors",
            "evaluate -c run.toml -p posterior.safetensors --test test.npz -q -o report.json",
        ):
            assert main(given.split()) == 0, given
        yield folder
    sys.modules.pop("networks", None)


def make_files() -> None:
    from safetensors.torch import save_file
    from torch import nn

    Path("networks.py").write_text(MODULE)
    torch.manual_seed(0)
    x = torch.rand(40, 3, 4, 4)
    labels = (x.flatten(1).mean(1) > 0.5).long()
    lenet = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh(), nn.Linear(4, 2))
    mlp = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    z = torch.randn(40, 2)
    t = (z[:, :1] - z[:, 1:]) / 2**0.5
    for net, inputs, targets, loss in (
        (lenet, x, labels, nn.functional.cross_entropy),
        (mlp, z, t, nn.functional.mse_loss),
    ):
        optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
        for _ in range(100):
            optimiser.zero_grad()
            loss(net(inputs), targets).backward()
            optimiser.step()
    save_file(lenet.state_dict(), "lenet.safetensors")
    save_file(mlp.state_dict(), "mlp.safetensors")
    for name in ("train", "held_out", "test", "new", "letters"):
        numpy.savez(f"{name}.npz", x=x.numpy(), y=labels.numpy())
    write_csv(Path("houses.csv"), ["area", "rooms", "price"], torch.cat([100 + 30 * z, 5e4 + 1e4 * t], 1).tolist())
    for folder in ("photos", "test/bright", "test/dark"):
        Path(folder).mkdir(parents=True)
        for number in range(3):
            colour = 250 if folder == "test/bright" else 20
            pixels = numpy.full((4, 4, 3), colour + number, dtype="uint8")
            Image.fromarray(pixels).save(f"{folder}/{number}.png")
    Path("run.toml").write_text(RUN + 'test = "test.npz"\n[evaluate]\nintervals = 5\n[landscape]\npoints = 5\n')
    for name, posterior in (("small", "diag"), ("large", "full")):
        Path(f"{name}.toml").write_text(f'{RUN}posterior = "{posterior}.safetensors"\n')


@pytest.mark.filterwarnings("ignore:The geometric mean of the precisions:peewit.TuningWarning")
@pytest.mark.parametrize("line", LINES)
def test_examples_run_as_they_are_printed(
    line: str, furnished_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy("kron.safetensors", "posterior.safetensors")  # other examples write one under this name
    command = line.partition("  (")[0]  # a remark
    if "networks:mlp" in command:  # whose posterior has a name of its own here
        command = command.replace("posterior.safetensors", "houses.safetensors")
    if "--size 32 32" in command:
        command = command.replace("--size 32 32", "--size 4 4")
    words = shlex.split(command.partition(" > ")[0])[1:]
    if words[0] in ("recommend", "evaluate") and "run.toml" not in words:
        words += ["--anyway"]
    assert main(words) == 0, capsys.readouterr().err


def test_every_command_has_examples() -> None:
    assert len(LINES) >= 20
    for command, epilog in commands.ALL:
        assert f"peewit {command.__name__}" in epilog
