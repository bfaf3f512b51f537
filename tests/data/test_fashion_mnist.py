"""The data that come with the package."""

from __future__ import annotations

import gzip
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from environment import ROOT
from peewit.data import FASHION_MNIST_CLASSES, fashion_mnist


def test_the_data_have_the_shapes_they_should() -> None:
    assert len(FASHION_MNIST_CLASSES) == 10
    for (images, labels), count in zip(fashion_mnist(), (600, 300), strict=True):
        assert images.shape == (10 * count, 1, 28, 28) and images.dtype == torch.float32
        assert labels.shape == (10 * count,) and labels.dtype == torch.int64
        assert torch.bincount(labels).tolist() == 10 * [count]
        assert images.min() == 0 and images.max() == 1
        assert images.std() > 0.3  # pictures, not a constant
        assert not torch.equal(labels, labels.sort().values)


def test_the_data_come_with_their_licence_and_are_small() -> None:
    folder = files("peewit.data")
    assert len((folder / "fashion_mnist.safetensors.gz").read_bytes()) <= 5_000_000
    origin, licence = ((folder / name).read_text(encoding="utf-8") for name in ("ORIGIN.md", "LICENCE"))
    for word in ("Xiao", "Rasul", "Vollgraf", "2017", "Zalando", "MIT"):
        assert word in origin
    assert "Copyright © 2017 Zalando SE" in licence and "WITHOUT WARRANTY OF ANY KIND" in licence


@pytest.mark.data
def test_the_data_can_be_made_again(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool makes the same tensors from the original files."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import fashion_mnist as tool

    out = tmp_path / "made.gz"
    monkeypatch.setattr(sys, "argv", ["tool", "--data", str(data_dir / "fashion_mnist"), "--out", str(out)])
    tool.main()
    shipped = (files("peewit.data") / "fashion_mnist.safetensors.gz").read_bytes()
    assert gzip.decompress(out.read_bytes()) == gzip.decompress(shipped)
