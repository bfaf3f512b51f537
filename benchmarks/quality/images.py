"""Images: networks trained here on MNIST and Fashion-MNIST, and pretrained ResNets on CIFAR-10."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.quality.cases import DROPOUT, MEMBERS, Case, Examples, Make, Networks, Parts, Task, Training
from benchmarks.quality.reading import cifar_test, cifar_train, folder, grey, svhn
from benchmarks.quality.together import Lesson, Run, train_together
from benchmarks.quality.training import perceptron

CLASSES = 10
TRAININGS: tuple[Training, ...] = ("early", "fixed")
OTHERS = {"mnist": ("fashion_mnist", "kmnist", "notmnist"), "fashion_mnist": ("mnist", "kmnist", "notmnist")}
MOST = 2000  # unknown images of one kind, and shifted ones
NOISE, ANGLE = 0.3, 30.0  # of the shifted grey images: standard deviation, where white is 1, and degrees
COLOUR_NOISE, CONTRAST = 0.04, 0.5  # of the shifted colour images: the same, and what is left of the contrast
CIFAR_MEAN, CIFAR_DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
BLOCKS = {"resnet20": 3, "resnet56": 9}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many images there are for what, and how long networks are trained."""

    train: int
    stop: int = 3000
    validation: int = 3000
    test: int = 5000
    variants: tuple[str, ...] = ("whole", "left out")
    lesson: Lesson


SIZES = {
    "mnist": Size(train=20_000, lesson=Lesson()),  # of 60,000
    "fashion_mnist": Size(train=14_000, lesson=Lesson()),  # of 20,000
}
SMALL = Size(train=2000, stop=500, validation=500, test=1000, variants=("whole",), lesson=Lesson(epochs=20, batch=64))


@dataclass(frozen=True, eq=False, kw_only=True)
class Greys:
    """A data set of grey images, scaled: those for training, stopping and tuning, and those for tests."""

    images: Tensor
    labels: Tensor
    test: Examples
    mean: float
    deviation: float

    def scaled(self, pixels: np.ndarray) -> Tensor:
        """(N, 1, 28, 28) from bytes."""
        return (torch.tensor(pixels, dtype=torch.float32)[:, None] / 255 - self.mean) / self.deviation


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """One split, whole or with classes left out, which come last among the new labels."""

    split: int
    variant: str
    left_out: tuple[int, ...]
    train: Tensor  # rows
    stop: Tensor
    validation: Tensor

    @property
    def number(self) -> int:
        """Of the classes that are left."""
        return CLASSES - len(self.left_out)

    def known(self, labels: Tensor) -> Tensor:
        """Booleans."""
        return ~torch.isin(labels, torch.tensor(self.left_out, dtype=torch.int64, device=labels.device))

    def relabelled(self, labels: Tensor) -> Tensor:
        """The classes that are left keep their order."""
        return labels - sum((labels > out).long() for out in self.left_out)


def convolutional(outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """Three blocks of a convolution with BatchNorm, and two linear layers: 61,000 weights."""
    layers: list[nn.Module] = []
    for inputs, channels in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), *perceptron(64 * 3 * 3, (64,), outputs, dropout)]
    return nn.Sequential(*layers)


def flat(outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """A perceptron on the pixels in one row."""
    return nn.Sequential(nn.Flatten(), *perceptron(28 * 28, (256, 256), outputs, dropout))


NETWORKS = {"mlp": flat, "cnn": convolutional}


def greys(name: str, network: str, size: Size | None = None) -> Make:
    """Cases of MNIST or Fashion-MNIST. 20,000 of MNIST's 60,000 images are trained on, and 14,000 of Fashion-MNIST."""
    build, amount = NETWORKS[network], size or SIZES[name]

    def make(task: Task, data: Path | None, splits: range, device: torch.device) -> Iterator[Case]:
        own = read_greys(folder(data), name, amount.test)
        others = {other: others_of(own, folder(data), other) for other in OTHERS[name]}
        jobs = [job_of(own.labels, split, variant, amount) for split in splits for variant in amount.variants]
        members = [(job, member) for job in jobs for member in range(MEMBERS + 1)]
        runs = [run_of(job, member, own.labels, build) for job, member in members]
        trained = train_together(lambda: build(CLASSES, DROPOUT), own.images.to(device), runs, amount.lesson)
        for number, job in enumerate(jobs):
            first = number * (MEMBERS + 1)
            parts = parts_of(own, others, job).to(device)
            for training, networks in zip(TRAININGS, trained, strict=True):
                chosen = networks[first : first + MEMBERS + 1]
                yield Case(
                    task=task.name,
                    likelihood=task.likelihood,
                    training=training,
                    variant=job.variant,
                    split=job.split,
                    parts=parts,
                    networks=Networks(tuple(chosen[:MEMBERS]), chosen[MEMBERS]),
                )

    return make


def read_greys(data: Path, name: str, tested: int) -> Greys:
    """The images for tests are spread evenly over their file: MNIST's first half is easier than its second."""
    pixels, labels = grey(data, name, "train")
    test, test_labels = grey(data, name, "t10k")
    places = np.arange(tested) * len(test) // tested if tested < len(test) else np.arange(len(test))
    mean, deviation = float(pixels.mean() / 255), float(pixels.std() / 255)
    empty = Greys(
        images=torch.empty(0), labels=torch.tensor(labels), test=(torch.empty(0),) * 2, mean=mean, deviation=deviation
    )
    return Greys(
        images=empty.scaled(pixels),
        labels=empty.labels,
        test=(empty.scaled(test[places]), torch.tensor(test_labels[places])),
        mean=mean,
        deviation=deviation,
    )


def others_of(own: Greys, data: Path, name: str) -> Tensor:
    """Images of another data set, at random, on the scale of this one."""
    pixels, _ = grey(data, name, "t10k")
    return own.scaled(pixels[np.random.RandomState(0).permutation(len(pixels))[:MOST]])


def job_of(labels: Tensor, split: int, variant: str, size: Size) -> Job:
    """Rows of the images are drawn before classes are left out."""
    order = torch.tensor(np.random.RandomState(split).permutation(len(labels)))
    left_out = (split % 5, split % 5 + 5) if variant == "left out" else ()
    own = Job(split=split, variant=variant, left_out=left_out, train=order, stop=order, validation=order)
    pieces = order[: size.train + size.stop + size.validation].split([size.train, size.stop, size.validation])
    train, stop, validation = (rows[own.known(labels[rows])] for rows in pieces)
    return Job(split=split, variant=variant, left_out=left_out, train=train, stop=stop, validation=validation)


def run_of(job: Job, member: int, labels: Tensor, build: Callable[[int, float], nn.Sequential]) -> Run:
    dropout = DROPOUT * (member == MEMBERS)
    return Run(
        seed=1000 * job.split + 10 * (job.variant == "left out") + member,
        dropout=dropout,
        train=(job.train, job.relabelled(labels[job.train])),
        stop=(job.stop, job.relabelled(labels[job.stop])),
        build=lambda: build(job.number, dropout),
    )


def parts_of(own: Greys, others: Mapping[str, Tensor], job: Job) -> Parts:
    inputs, labels = own.test
    known = job.known(labels)

    def examples(rows: Tensor) -> Examples:
        return own.images[rows], job.relabelled(own.labels[rows])

    test = inputs[known], job.relabelled(labels[known])
    few = test[0][:MOST] * own.deviation + own.mean  # black is 0, white is 1
    generator = torch.Generator().manual_seed(job.split)
    changed = {
        "noise": few + NOISE * torch.randn(few.shape, generator=generator),
        "rotation": rotated(few, ANGLE),
    }
    return Parts(
        train=examples(job.train),
        stop=examples(job.stop),
        validation=examples(job.validation),
        test=test,
        unknown=others if job.variant == "whole" else {"left out": inputs[~known][:MOST]},
        shifted={name: ((x - own.mean) / own.deviation, test[1][:MOST]) for name, x in changed.items()},
    )


def rotated(images: Tensor, degrees: float) -> Tensor:
    """Around the middle; what comes in from outside is black."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(images), 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


class Residual(nn.Module):
    """Two convolutions with BatchNorm, and a short cut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet(nn.Module):
    """The ResNets for CIFAR: three stages with 16, 32 and 64 channels."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)

        def stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            rest = [Residual(outputs, outputs, 1) for _ in range(blocks - 1)]
            return nn.Sequential(Residual(inputs, outputs, stride), *rest)

        self.layer1, self.layer2, self.layer3 = stage(16, 16, 1), stage(16, 32, 2), stage(32, 64, 2)
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, 32, 32) -> (B, 10)."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        outputs: Tensor = self.fc(x.mean((2, 3)))
        return outputs


def cifar(network: str, train: int = 5000, shares: Sequence[int] = (2000, 2000, 6000)) -> Make:
    """Cases of a pretrained network.

    It was trained on all 50,000 training images, so those for stopping, for tuning and for tests (in this order, as
    many as `shares` says) are all among the 10,000 test images. `train` of the training images are what a posterior
    may use.
    """

    def make(task: Task, data: Path | None, splits: range, device: torch.device) -> Iterator[Case]:
        own = folder(data)
        model = ResNet(BLOCKS[network])
        state = torch.load(own / "weights_cifar10" / f"chenyaofo_cifar10_{network}.pt", weights_only=True)
        model.load_state_dict(state)
        model.to(device).eval()
        pixels, labels = cifar_train(own, -(-train // 10_000))
        tested, test_labels = cifar_test(own)
        strange = svhn(own)
        strange = strange[np.random.RandomState(0).permutation(len(strange))[:MOST]]
        for split in splits:
            random = np.random.RandomState(split)
            rows = random.permutation(len(pixels))[:train]
            stop, validation, test = np.split(random.permutation(len(tested))[: sum(shares)], np.cumsum(shares)[:2])
            few = torch.tensor(tested[test[:MOST]], dtype=torch.float32) / 255
            noise = torch.randn(few.shape, generator=torch.Generator().manual_seed(split))
            middle = few.mean((1, 2, 3), keepdim=True)
            changed = {"noise": few + COLOUR_NOISE * noise, "contrast": middle + CONTRAST * (few - middle)}
            parts = Parts(
                train=(scaled(pixels[rows]), torch.tensor(labels[rows])),
                stop=(scaled(tested[stop]), torch.tensor(test_labels[stop])),
                validation=(scaled(tested[validation]), torch.tensor(test_labels[validation])),
                test=(scaled(tested[test]), torch.tensor(test_labels[test])),
                unknown={"svhn": scaled(strange)},
                shifted={
                    name: (channels_first(x), torch.tensor(test_labels[test[:MOST]])) for name, x in changed.items()
                },
            )
            yield Case(
                task=task.name,
                likelihood=task.likelihood,
                training="pretrained",
                variant="whole",
                split=split,
                parts=parts.to(device),
                networks=Networks((model,), None),
            )

    return make


def scaled(pixels: np.ndarray) -> Tensor:
    """Bytes as a network for CIFAR-10 takes them."""
    return channels_first(torch.tensor(pixels, dtype=torch.float32) / 255)


def channels_first(images: Tensor) -> Tensor:
    """(N, 32, 32, 3) between 0 and 1 -> (N, 3, 32, 32), scaled."""
    return ((images - torch.tensor(CIFAR_MEAN)) / torch.tensor(CIFAR_DEVIATION)).permute(0, 3, 1, 2).contiguous()
