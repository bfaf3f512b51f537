"""Real architectures with random weights: a table of small versions that fit and predict in seconds on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.networks import resnet18 as resnet18_cifar
from benchmarks.networks import vit
from convolutional_families import convnext, efficientnet_b0, mobilenet_v2, resnet50, unet
from sequence_families import gpt, gru_classifier, lstm_classifier, swin

__all__ = [
    "FAMILIES",
    "Family",
    "convnext",
    "efficientnet_b0",
    "gpt",
    "gru_classifier",
    "lstm_classifier",
    "mobilenet_v2",
    "resnet18_cifar",
    "resnet50",
    "swin",
    "unet",
    "vit",
]

CLASSES = 4
VOCABULARY = 13
LENGTH = 6


@dataclass(frozen=True)
class Family:
    """A small network with what it takes in and is compared with; inputs and targets take (N, generator)."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], Tensor]
    likelihood: str
    targets: Callable[[int, torch.Generator], Tensor]

    def batch(self, count: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
        """(inputs, targets) on the CPU, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        return self.inputs(count, generator), self.targets(count, generator)

    def model(self, seed: int = 0) -> nn.Module:
        """The network in eval mode with norm statistics that are not the trivial ones; the global state is kept."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.build()
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
                    module.running_mean.normal_(0, 0.1)
                    module.running_var.uniform_(0.5, 1.5)
        return model.eval()


def images(side: int) -> Callable[[int, torch.Generator], Tensor]:
    """(N, 3, side, side)."""
    return lambda count, generator: torch.randn(count, 3, side, side, generator=generator)


def labels(classes: int, *positions: int) -> Callable[[int, torch.Generator], Tensor]:
    """(N, *positions) class labels."""
    return lambda count, generator: torch.randint(classes, (count, *positions), generator=generator)


def values(outputs: int) -> Callable[[int, torch.Generator], Tensor]:
    """(N, outputs) regression targets."""
    return lambda count, generator: torch.randn(count, outputs, generator=generator)


tokens = labels(VOCABULARY, LENGTH)

FAMILIES: dict[str, Family] = {
    "resnet50": Family(
        lambda: resnet50(CLASSES, width=4, depths=(1, 1, 1, 1)), images(32), "classification", labels(CLASSES)
    ),
    "resnet18_cifar": Family(lambda: resnet18_cifar(CLASSES, width=4), images(16), "classification", labels(CLASSES)),
    "mobilenet_v2": Family(
        lambda: mobilenet_v2(CLASSES, width=0.25, stages=((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 1, 2))),
        images(16),
        "classification",
        labels(CLASSES),
    ),
    "efficientnet_b0": Family(
        lambda: efficientnet_b0(2, width=0.25, stages=((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 1, 2, 5))),
        images(16),
        "regression",
        values(2),
    ),
    "convnext": Family(
        lambda: convnext(CLASSES, width=6, depths=(1, 2), patch=4), images(16), "classification", labels(CLASSES)
    ),
    "swin": Family(
        lambda: swin(CLASSES, width=8, depths=(2, 1), heads=(2, 2), window=4, patch=2),
        images(16),
        "classification",
        labels(CLASSES),
    ),
    "vit": Family(
        lambda: vit(CLASSES, width=12, blocks=2, heads=2, patch=4, size=8, class_token=True),
        images(8),
        "classification",
        labels(CLASSES),
    ),
    "gpt": Family(
        lambda: gpt(VOCABULARY, context=8, width=12, blocks=2, heads=2),
        tokens,
        "classification",
        tokens,
    ),
    "unet": Family(lambda: unet(3, width=4, depth=2, norm="group"), images(8), "classification", labels(3, 8, 8)),
    "unet_batch_norm": Family(
        lambda: unet(2, width=4, depth=1, norm="batch"), images(4), "classification", labels(2, 4, 4)
    ),
    "gru_classifier": Family(
        lambda: gru_classifier(VOCABULARY, CLASSES, width=8), tokens, "classification", labels(CLASSES)
    ),
    "lstm_classifier": Family(
        lambda: lstm_classifier(VOCABULARY, 2, width=6, layers=2), tokens, "regression", values(2)
    ),
}
