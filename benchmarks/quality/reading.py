"""Readers of the data sets in the folder of `--data`: IDX files, CIFAR-10, SVHN and sentences."""

from __future__ import annotations

import csv
import functools
import gzip
import lzma
import struct
from pathlib import Path

import numpy as np

CIFAR_PARTS = ("first10000", "10000-20000", "20000-30000", "30000-40000", "40000-50000")
Labelled = tuple[np.ndarray, np.ndarray]  # pixels and labels
Sentences = tuple[list[str], np.ndarray]  # and their labels


def folder(data: Path | None) -> Path:
    if data is None:
        raise SystemExit("This task needs --data DIR, or PEEWIT_DATA.")
    return data


def idx(path: Path) -> np.ndarray:
    """An array of bytes from a compressed IDX file."""
    with gzip.open(path) as file:
        content = file.read()
    shape = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def grey(data: Path, name: str, part: str) -> Labelled:
    """(N, 28, 28) pixels and their labels; part is "train" or "t10k". There may be more labels than images."""
    pixels = idx(next((data / name).glob(f"{part}-images*-idx3-ubyte.gz")))
    return pixels, idx(data / name / f"{part}-labels-idx1-ubyte.gz")[: len(pixels)].astype(np.int64)


@functools.cache
def colour(path: Path) -> np.ndarray:
    """(N, 32, 32, 3) from a file of differences: R-G, G, B-G, each differenced along rows and columns, modulo 256."""
    with lzma.open(path) as file:
        planes = np.load(file)
    planes = np.cumsum(np.cumsum(planes, axis=3, dtype=np.uint8), axis=2, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return np.ascontiguousarray(planes.transpose(1, 2, 3, 0))


def cifar_train(data: Path, parts: int) -> Labelled:
    """The first of the five parts of the training images."""
    pixels = [colour(data / "cifar10" / f"train-images-{part}.rgbd2.npy.xz") for part in CIFAR_PARTS[:parts]]
    labels = np.load(data / "cifar10" / "labels.npz")["y_train"]
    joined = np.concatenate(pixels)
    return joined, labels[: len(joined)].astype(np.int64)


def cifar_test(data: Path) -> Labelled:
    pixels = colour(data / "cifar10" / "test-images.rgbd2.npy.xz")
    return pixels, np.load(data / "cifar10" / "labels.npz")["y_test"].astype(np.int64)


def svhn(data: Path) -> np.ndarray:
    return colour(data / "svhn" / "test-crops-first5000.rgbd2.npy.xz")


def sst2(data: Path, part: str) -> Sentences:
    """Sentences of films, liked or not; part is "train", "dev" or "test"."""
    with gzip.open(data / "text" / f"sst2_{part}.tsv.gz", "rt", encoding="utf8") as file:
        rows = [line.rstrip("\n").rsplit("\t", 1) for line in file]
    return [row[0] for row in rows], np.array([int(row[1]) for row in rows])


def labelled_lines(data: Path, name: str) -> Sentences:
    """Lines that begin with their label: "trec.train", "trec.test", "subj"."""
    with gzip.open(data / "text" / f"{name}.all.txt.gz", "rt", encoding="latin1") as file:
        rows = [line.rstrip("\n").split(" ", 1) for line in file]
    return [row[1] for row in rows], np.array([int(row[0]) for row in rows])


def news(data: Path) -> list[str]:
    """Titles of news with their first sentences."""
    with gzip.open(data / "text" / "ag_news_test.csv.gz", "rt", encoding="utf8", newline="") as file:
        return [f"{row[1]} {row[2]}" for row in csv.reader(file)]
