"""Data for the scripts in this folder: from a folder of data sets, or the subset that comes with peewit."""

from __future__ import annotations

import gzip
import lzma
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from peewit.data import fashion_mnist

Pair = tuple[Tensor, Tensor]
FILES = {
    "mnist": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "fashion_mnist": ("train-images-first20000-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
}
PARTS = ("first10000", "10000-20000", "20000-30000", "30000-40000", "40000-50000")
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
UNKNOWN = 1  # of words; 0 fills up short sentences


@dataclass(frozen=True)
class Task:
    """Training, validation and test data, and unknown inputs."""

    name: str
    train: Pair
    validation: Pair
    test: Pair
    unknown: Tensor | None = None

    def to(self, device: str) -> Task:
        """The task on a device."""
        pairs = [(x.to(device), y.to(device)) for x, y in (self.train, self.validation, self.test)]
        return Task(self.name, *pairs, None if self.unknown is None else self.unknown.to(device))

    def cut(self, train: int, test: int) -> Task:
        """The task with the first training examples only."""
        held = min(max(train // 5, 20), 500)
        unknown = None if self.unknown is None else self.unknown[:test]
        train_x, train_y = self.train
        held_x, held_y = self.validation
        test_x, test_y = self.test
        return Task(
            self.name,
            (train_x[:train], train_y[:train]),
            (held_x[:held], held_y[:held]),
            (test_x[:test], test_y[:test]),
            unknown,
        )


def idx(path: Path) -> Tensor:
    """An array of bytes in the format of MNIST, gzipped."""
    with gzip.open(path) as file:
        raw = file.read()
    axes = raw[3]
    shape = struct.unpack(">" + "I" * axes, raw[4 : 4 + 4 * axes])
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape).copy())


def grey(folder: Path, name: str) -> tuple[Pair, Pair]:
    """Images (N, 1, 28, 28) in [0, 1] with labels (N,), to train and to test on."""
    images, labels = (idx(folder / name / file) for file in FILES[name])
    test = idx(folder / name / "t10k-images-idx3-ubyte.gz"), idx(folder / name / "t10k-labels-idx1-ubyte.gz")
    train = images, labels[: len(images)]
    return tuple((x[:, None].float() / 255, y.long()) for x, y in (train, test))  # type: ignore[return-value]


def digits(folder: Path | None, name: str = "mnist") -> Task:
    """MNIST or Fashion-MNIST, with the other one as unknown inputs; without a folder the shipped subset."""
    if folder is None:
        train, test = fashion_mnist()
        held = torch.arange(len(train[0])) % 10 == 0
        known = (train[0][~held], train[1][~held]), (train[0][held], train[1][held])
        # Upside down and negative: no other data set of this size comes with peewit.
        return Task("Fashion-MNIST, the shipped cut", *known, test, 1 - test[0].flip(2))
    other = "fashion_mnist" if name == "mnist" else "mnist"
    train, test = grey(folder, name)
    unknown = idx(folder / other / "t10k-images-idx3-ubyte.gz")[:, None].float() / 255
    last = 55_000 if name == "mnist" else len(train[0]) - 2_000
    held_out = train[0][last:], train[1][last:]
    title = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}[name]
    return Task(title, (train[0][:last], train[1][:last]), held_out, test, unknown)


def scaled(pixels: np.ndarray) -> Tensor:
    """(N, 3, 32, 32) of bytes (N, 32, 32, 3)."""
    made = (torch.from_numpy(pixels).float() / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    return made.permute(0, 3, 1, 2).contiguous()


def rgb(path: Path) -> np.ndarray:
    """(N, 32, 32, 3) from a file of differences: R-G, G, B-G, each differenced along rows and columns, modulo 256."""
    with lzma.open(path) as file:
        planes = np.load(file)
    planes = np.cumsum(np.cumsum(planes, axis=3, dtype=np.uint8), axis=2, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return np.ascontiguousarray(planes.transpose(1, 2, 3, 0))


def colour(folder: Path | None, train: int = 10_000, held: int = 2_000) -> Task:
    """CIFAR-10, with house numbers as unknown inputs; without a folder grey images of clothes."""
    if folder is None:
        task = digits(None)
        pairs = [(x.expand(-1, 3, -1, -1), y) for x, y in (task.train, task.validation, task.test)]
        unknown = None if task.unknown is None else task.unknown.expand(-1, 3, -1, -1)
        return Task(task.name, *pairs, unknown)
    base = folder / "cifar10"
    parts = PARTS[: -(-(train + held) // 10_000)]
    pixels = np.concatenate([rgb(base / f"train-images-{part}.rgbd2.npy.xz") for part in parts])
    labels = np.load(base / "labels.npz")
    y, y_test = (torch.from_numpy(labels[name]).long() for name in ("y_train", "y_test"))
    last = min(train, len(pixels) - held)
    x, x_test = scaled(pixels[: last + held]), scaled(rgb(base / "test-images.rgbd2.npy.xz"))
    house = folder / "svhn" / "test-crops-first5000.rgbd2.npy.xz"
    unknown = scaled(rgb(house)) if house.is_file() else None
    return Task("CIFAR-10", (x[:last], y[:last]), (x[last:], y[last : last + held]), (x_test, y_test), unknown)


def questions(folder: Path, length: int = 16, least: int = 2) -> tuple[Task, int]:
    """TREC: questions as word numbers (N, length), by the kind of answer (6); and the size of the vocabulary."""

    def rows(part: str) -> list[tuple[int, list[str]]]:
        with gzip.open(folder / "text" / f"trec.{part}.all.txt.gz", "rt", encoding="latin1") as file:
            split = [line.rstrip("\n").split(" ", 1) for line in file]
        return [(int(label), words.split()) for label, words in split]

    train, test = rows("train"), rows("test")
    seen = Counter(word for _, words in train for word in words)
    number = {word: place for place, word in enumerate((w for w, n in seen.items() if n >= least), UNKNOWN + 1)}

    def pair(part: list[tuple[int, list[str]]]) -> Pair:
        x = torch.zeros(len(part), length, dtype=torch.long)
        for row, (_, words) in enumerate(part):
            known = [number.get(word, UNKNOWN) for word in words[:length]]
            x[row, : len(known)] = torch.tensor(known, dtype=torch.long)
        return x, torch.tensor([label for label, _ in part])

    x, y = pair(train)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    kept, held = order[500:], order[:500]
    return Task("TREC", (x[kept], y[kept]), (x[held], y[held]), pair(test)), len(number) + 2
