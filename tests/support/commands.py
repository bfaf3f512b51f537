"""A folder with networks, weights and data in every form that the command line reads."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from peewit.cli import main

NETWORKS = """
import torch
from torch import nn

def classifier(width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 3))

def regressor():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

def pair():
    torch.manual_seed(0)
    return nn.Linear(2, 2)

def hollow():
    return nn.Linear(2, 0)

def images():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 2))

class squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = regressor()

    def forward(self, x):
        return self.inner(x).squeeze(-1)

def loud():
    print("I am being made")
    return classifier()

def broken():
    raise RuntimeError("no such thing")

def number():
    return 3

def batches():
    x, y = data()
    return list(zip(x.split(20), y.split(20)))

def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 2, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
"""


def classifier(width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 3))


def data(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 2, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def write_csv(path: Path, head: list[str], rows: list[list[object]]) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def furnish(folder: Path, module: str) -> None:
    """Everything under one roof; the module's name is its own, since Python remembers modules."""
    (folder / f"{module}.py").write_text(NETWORKS)
    x, y = data()
    numpy.savez(folder / "train.npz", x=x.numpy().astype("float64"), y=y.numpy())
    numpy.savez(folder / "inputs.npz", x=x[:5].numpy())
    numpy.savez(folder / "far.npz", x=9 * x.numpy())
    numpy.savez(folder / "four.npz", x=x.numpy(), y=(y + 1).numpy())  # a class that the network does not have
    save_file({"x": x, "y": y}, folder / "train.data.safetensors")
    (folder / "data").mkdir()
    save_file({"x": x, "y": y}, folder / "data" / "train.safetensors")
    names = ["low", "middle", "top"]
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    write_csv(folder / "named.csv", ["a", "b", "class"], [[*each, names[label]] for each, label in pairs])
    write_csv(folder / "numbers.csv", ["a", "b", "sum"], [[*each, sum(each)] for each, _ in pairs])
    (folder / "ragged.csv").write_text("a,b,c\n1,2,0\n1,2\n")
    (folder / "head.csv").write_text("a,b,c\n")
    (folder / "twice.csv").write_text("a,a,c\n1,2,0\n3,4,1\n")
    (folder / "semicolons.csv").write_text("a;b;c\n1;2;0\n3;4;1\n")
    numpy.savez(folder / "words.npz", x=x.numpy(), y=numpy.array(["low"] * 60))
    numpy.savez(folder / "flat.npz", x=x.numpy(), y=x.sum(1).numpy())
    with open(folder / "one.npz", "wb") as file:
        numpy.save(file, x.numpy())
    torch.save(classifier(), folder / "module.pt")
    (folder / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    (folder / "cut.npz").write_bytes((folder / "train.npz").read_bytes()[:200])
    numpy.savez(folder / "objects.npz", x=numpy.array([1, "a", None], dtype=object))
    numpy.savez(folder / "holes.npz", x=numpy.full((4, 2), numpy.nan), y=numpy.zeros(4, dtype="int64"))
    torch.save(classifier().state_dict(), folder / "weights.pt")
    save_file(classifier().state_dict(), folder / "weights.safetensors")
    save_file(classifier(5).state_dict(), folder / "other.safetensors")
    torch.save({"state_dict": classifier().state_dict(), "epoch": 3}, folder / "checkpoint.pt")
    (folder / "junk.pt").write_bytes(b"not weights")
    (folder / "run.toml").write_text(
        f'model = "{module}:classifier"\ncheckpoint = "weights.safetensors"\nlikelihood = "classification"\n'
        'train = "train.npz"\ntest = "train.npz"\n[fit]\nstructure = "diag"\n'
    )


def furnished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """For a fixture: a furnished folder that is the current one; the name of its module."""
    module = "networks_" + re.sub(r"\W", "_", folder.name)
    furnish(folder, module)
    monkeypatch.chdir(folder)
    yield module
    sys.modules.pop(module, None)


def run(text: str, module: str, anyway: bool = True) -> int:
    """A command line as a person types it; NET is the module, whose networks are untrained: --anyway goes on."""
    words = text.replace("NET", module).split()
    checks = words[0] in ("fit", "tune", "recommend", "evaluate") or (words[0] == "report" and "--test" in words)
    return main([*words, "--anyway"] if anyway and checks else words)


def leftovers(folder: Path) -> list[str]:
    """Half-written files."""
    return [each.name for each in folder.rglob("*") if each.name.endswith(".tmp")]
