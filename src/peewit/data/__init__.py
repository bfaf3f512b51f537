"""Real data that comes with the package: a cut of Fashion-MNIST, with its origin and licence in ORIGIN.md."""

from __future__ import annotations

import gzip
from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor

FASHION_MNIST_CLASSES = (
    "t-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def fashion_mnist() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images (N, 1, 28, 28) in [0, 1] with labels (N,): 6,000 to train on, 3,000 to test on; classes are balanced."""
    content = (files(__name__) / "fashion_mnist.safetensors.gz").read_bytes()
    tensors = load(gzip.decompress(content))

    def part(name: str) -> tuple[Tensor, Tensor]:
        return tensors[f"{name}_images"][:, None].to(torch.float32) / 255, tensors[f"{name}_labels"].long()

    return part("train"), part("test")
