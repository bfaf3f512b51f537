"""Real data that comes with the package: a cut of Fashion-MNIST, with its origin and licence in ORIGIN.md."""

from __future__ import annotations

import gzip
from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor

__all__ = ["FASHION_MNIST_CLASSES", "fashion_mnist"]

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
    """A cut of Fashion-MNIST, 28 by 28 grey images of clothing in ten balanced classes, read from the package.

    `FASHION_MNIST_CLASSES` has the names of the classes, in the order of the labels.

    Returns:
        `(x, y), (x_test, y_test)`: 6,000 images to train on and 3,000 to test on. Images (N, 1, 28, 28) are float32 in
        [0, 1]; labels (N,) are int64.

    Raises:
        FileNotFoundError: The file with the images is missing from the installed package.

    Example:
        >>> (x, y), (x_test, y_test) = pw.data.fashion_mnist()
        >>> x.shape, x_test.shape
        (torch.Size([6000, 1, 28, 28]), torch.Size([3000, 1, 28, 28]))
        >>> pw.data.FASHION_MNIST_CLASSES[:3]
        ('t-shirt/top', 'trouser', 'pullover')
    """
    content = (files(__name__) / "fashion_mnist.safetensors.gz").read_bytes()
    tensors = load(gzip.decompress(content))

    def part(name: str) -> tuple[Tensor, Tensor]:
        return tensors[f"{name}_images"][:, None].to(torch.float32) / 255, tensors[f"{name}_labels"].long()

    return part("train"), part("test")


def __dir__() -> list[str]:
    """What is for users."""
    return sorted(__all__)
