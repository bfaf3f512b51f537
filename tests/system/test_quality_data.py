"""Images and sentences of the benchmark of quality: how they are read and split, and training side by side."""

from __future__ import annotations

import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.quality import images, reading, text
from benchmarks.quality.cases import Case, Make, Task
from benchmarks.quality.together import Lesson, Run, Stack, taken, train_together
from benchmarks.quality.training import outputs_of

CPU = torch.device("cpu")
BRIEF = Lesson(epochs=1, batch=16)


def cases(make: Make, data: Path, splits: range = range(1)) -> list[Case]:
    task = Task(
        name="some", likelihood="classification", kind="image", half="choose", splits=1, reduced=False, make=make
    )
    return list(task.cases(data, splits, CPU))


def write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    with gzip.open(path, "wb") as file:
        file.write(header + values.astype(np.uint8).tobytes())


@pytest.fixture
def greys(tmp_path: Path) -> Path:
    """Images whose brightness is their class, in files as they are found elsewhere; more labels than images."""
    for name in ("mnist", "fashion_mnist", "kmnist", "notmnist"):
        for part, number in (("train", 100), ("t10k", 60)):
            labels = np.arange(number + 10) % 10
            pixels = np.broadcast_to(20 * labels[:number, None, None], (number, 28, 28))
            write_idx(tmp_path / name / f"{part}-images-idx3-ubyte.gz", pixels)
            write_idx(tmp_path / name / f"{part}-labels-idx1-ubyte.gz", labels)
    return tmp_path


def write_colour(path: Path, pixels: np.ndarray) -> None:
    planes = pixels.transpose(3, 0, 1, 2).copy()
    planes[0] -= planes[1]
    planes[2] -= planes[1]
    planes = np.diff(np.diff(planes, axis=2, prepend=np.uint8(0)), axis=3, prepend=np.uint8(0))
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wb") as file:
        np.save(file, planes)


def network_of_words(outputs: int, dropout: float = 0.0) -> nn.Sequential:
    return text.network(20, outputs, dropout)


@pytest.mark.parametrize("build", [images.flat, images.convolutional, network_of_words])
def test_networks_side_by_side_are_the_networks(build: Callable[..., nn.Sequential]) -> None:
    x = torch.randint(0, 20, (30, 7)) if build is network_of_words else torch.randn(30, 1, 28, 28)
    own = torch.arange(30), torch.zeros(30, dtype=torch.int64)
    runs = [Run(seed=seed, dropout=0.0, train=own, stop=own, build=lambda: build(4)) for seed in range(3)]
    stack = Stack(lambda: build(4, 0.1), runs, CPU)
    models = [taken(run, stack.state(), number).train() for number, run in enumerate(runs)]
    rows = torch.randint(0, 30, (3, 20))
    for training in (True, False):
        outputs = stack(x[rows], training)
        expected = torch.stack([model.train(training)(x[own]) for model, own in zip(models, rows, strict=True)])
        torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-4)
        gradients = torch.autograd.grad(outputs.square().sum(), list(stack.parameters.values()))
        alone = torch.autograd.grad(expected.square().sum(), [own for model in models for own in model.parameters()])
        for place, gradient in enumerate(gradients):
            torch.testing.assert_close(
                gradient,
                torch.stack(alone[place :: len(gradients)]),
                rtol=1e-2,
                atol=1e-3 * float(gradient.abs().max()),
            )
    for number, model in enumerate(models):
        for (name, buffer), value in zip(model.named_buffers(), stack.buffers.values(), strict=True):
            if "running" in name:
                torch.testing.assert_close(buffer, value[number], rtol=1e-3, atol=1e-4)


def test_training_side_by_side_learns_and_cuts_to_size() -> None:
    """Of two runs one has fewer examples, classes and words."""
    labels = torch.arange(60) % 3
    x = (labels + 2)[:, None].expand(60, 5)
    few = torch.nonzero(labels < 2)[:, 0]
    rows = [torch.arange(60), few]
    runs = [
        Run(seed=1, dropout=0.1, train=(own, labels[own]), stop=(own, labels[own]), build=build)
        for own, build in zip(rows, (lambda: text.network(5, 3, 0.1), lambda: text.network(4, 2)), strict=True)
    ]
    kept, last = train_together(lambda: text.network(5, 3, 0.1), x, runs, Lesson(epochs=30, batch=20, rate=0.03))
    for networks in (kept, last):
        for network, own, size in zip(networks, rows, (3, 2), strict=True):
            outputs = outputs_of(network, x[own])
            assert outputs.shape == (len(own), size) and torch.equal(outputs.argmax(-1), labels[own])


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_grey_images_are_split_and_relabelled(greys: Path, network: str) -> None:
    size = images.Size(train=50, stop=20, validation=20, test=40, lesson=BRIEF)
    found = cases(images.greys("mnist", network, size), greys, range(1, 2))
    assert [case.key for case in found] == [
        f"{training}/{variant}/1" for variant in ("whole", "left out") for training in ("early", "fixed")
    ]
    whole, left_out = found[0].parts, found[2].parts
    assert [len(part[0]) for part in (whole.train, whole.stop, whole.validation, whole.test)] == [50, 20, 20, 40]
    assert set(whole.unknown) == {"fashion_mnist", "kmnist", "notmnist"}
    assert set(left_out.unknown) == {"left out"}
    scale = np.arange(100) % 10 * 20 / 255
    for parts, classes in ((whole, list(range(10))), (left_out, [0, 2, 3, 4, 5, 7, 8, 9])):  # 1 and 6 are left out
        for x, y in (parts.train, parts.stop, parts.validation, parts.test):
            brightness = x[:, 0, 14, 14].double().numpy() * scale.std() + scale.mean()
            assert np.allclose(brightness * 255 / 20, np.array(classes)[y.numpy()], atol=1e-4)
        assert all(len(x) == len(y) == len(parts.test[0]) for x, y in parts.shifted.values())
    for case, number in zip(found, (10, 10, 8, 8), strict=True):
        assert len(case.networks.members) == 5 and case.networks.dropout is not None
        assert case.networks.plain(case.parts.test[0]).shape == (len(case.parts.test[1]), number)


def test_rotated_images_keep_their_middle() -> None:
    x = torch.zeros(1, 1, 29, 29)
    x[:, :, 14, 4:25] = 1.0
    turned = images.rotated(x, 90.0)
    torch.testing.assert_close(turned, x.mT, atol=1e-4, rtol=0)


def test_colour_images_are_read_and_split(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    made = {name: random.randint(0, 256, (40, 32, 32, 3)).astype(np.uint8) for name in ("train", "test", "svhn")}
    write_colour(tmp_path / "cifar10" / "train-images-first10000.rgbd2.npy.xz", made["train"])
    write_colour(tmp_path / "cifar10" / "test-images.rgbd2.npy.xz", made["test"])
    write_colour(tmp_path / "svhn" / "test-crops-first5000.rgbd2.npy.xz", made["svhn"])
    np.savez(tmp_path / "cifar10" / "labels.npz", y_train=np.arange(40) % 10, y_test=np.arange(40) % 10)
    (tmp_path / "weights_cifar10").mkdir()
    torch.save(images.ResNet(3).state_dict(), tmp_path / "weights_cifar10" / "chenyaofo_cifar10_resnet20.pt")
    assert np.array_equal(reading.svhn(tmp_path), made["svhn"])
    case, other = cases(images.cifar("resnet20", 30, (10, 10, 20)), tmp_path, range(2))
    parts = case.parts
    assert case.key == "pretrained/whole/0" and case.networks.dropout is None and len(case.networks.members) == 1
    assert parts.train[0].shape == (30, 3, 32, 32) and parts.unknown["svhn"].shape == (40, 3, 32, 32)
    assert [len(part[1]) for part in (parts.stop, parts.validation, parts.test)] == [10, 10, 20]
    drawn = torch.cat([part[0] for part in (parts.stop, parts.validation, parts.test)])
    assert len(drawn.flatten(1).unique(dim=0)) == 40
    assert not torch.equal(parts.test[1], other.parts.test[1])


def test_sentences_become_ids(tmp_path: Path) -> None:
    """Three classes, each with a word of its own; the rarest class is not the one left out first."""
    (tmp_path / "text").mkdir()
    labels = [0, 1, 1, 2, 2, 2] * 300
    for name, number in (("trec.train", 1800), ("trec.test", 60)):
        with gzip.open(tmp_path / "text" / f"{name}.all.txt.gz", "wt", encoding="latin1") as file:
            file.writelines(f"{y} What {'abc'[y]} word{row} ?\n" for row, y in enumerate(labels[:number]))
    with gzip.open(tmp_path / "text" / "sst2_test.tsv.gz", "wt", encoding="utf8") as file:
        file.writelines(f"what film {'is ' * 50}\t1\n" for _ in range(5))
    found = cases(text.sentences("trec", BRIEF), tmp_path)
    assert [case.key for case in found] == ["early/whole/0", "fixed/whole/0", "early/left out/0", "fixed/left out/0"]
    whole, left_out = found[0].parts, found[2].parts
    assert [len(part[1]) for part in (whole.train, whole.stop, whole.validation, whole.test)] == [400, 700, 700, 60]
    x, y = whole.test
    assert x.shape == (60, text.LENGTH) and x.dtype == torch.int64
    assert bool((x[:, 2] == text.UNKNOWN).all()), "words that occur once have no id"
    assert bool((x[:, 4:] == text.PADDING).all()) and bool((x[:, :4] != text.PADDING).all())
    assert len({(int(word), int(label)) for word, label in zip(x[:, 1], y, strict=True)}) == 3
    assert whole.unknown["sst2"].shape == (5, text.LENGTH)
    changed = whole.shifted["words dropped"][0] != x
    assert 0.1 < float(changed[:, [0, 1, 3]].double().mean()) < 0.6 and not bool(changed[:, 4:].any())
    assert set(left_out.train[1].tolist()) == {0, 1} and len(left_out.unknown["left out"]) == 900 + 30
    assert found[2].networks.plain(left_out.test[0]).shape == (30, 2)
    assert found[2].networks.plain[0].embedding.num_embeddings < found[0].networks.plain[0].embedding.num_embeddings


@pytest.mark.data
def test_the_real_images(data_dir: Path) -> None:
    (case,) = cases(images.cifar("resnet20", 100, (100, 100, 500)), data_dir)
    x, y = case.parts.test
    assert float((outputs_of(case.networks.plain, x, 250).argmax(-1) == y).double().mean()) > 0.88
    own = images.read_greys(data_dir, "fashion_mnist", 5000)
    assert own.images.shape == (20_000, 1, 28, 28) and len(own.labels) == 20_000 and len(own.test[0]) == 5000


@pytest.mark.data
@pytest.mark.parametrize("name", list(text.READERS))
def test_the_real_sentences(data_dir: Path, name: str) -> None:
    corpus = text.READERS[name](data_dir)
    assert len(corpus.sentences) == len(corpus.labels) > 5000
    job = text.job_of(corpus, 0, "whole")
    assert 2000 < job.words <= text.WORDS + 2
    assert (job.parts.test[0] == text.UNKNOWN).double().mean() < 0.1
