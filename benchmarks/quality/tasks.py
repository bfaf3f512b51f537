"""The tasks. On those of the half "choose" defaults are chosen, on those of the half "confirm" they are confirmed."""

from __future__ import annotations

from benchmarks.quality.cases import Half, Likelihood, Make, Task
from benchmarks.quality.images import SMALL, cifar, greys
from benchmarks.quality.tables import shipped, table, uci, uci_classes
from benchmarks.quality.text import sentences


def of_table(
    name: str, likelihood: Likelihood, half: Half, read: object, splits: int = 20, reduced: bool = False
) -> Task:
    return Task(
        name=name,
        likelihood=likelihood,
        kind="table",
        half=half,
        splits=splits,
        reduced=reduced,
        make=table(name, read),  # type: ignore[arg-type]
    )


def of_text(name: str, half: Half) -> Task:
    return Task(
        name=name, likelihood="classification", kind="text", half=half, splits=3, reduced=False, make=sentences(name)
    )


def of_images(
    name: str, half: Half, make: Make, splits: int = 3, small: Make | None = None, by_name: bool = False
) -> Task:
    return Task(
        name=name,
        likelihood="classification",
        kind="image",
        half=half,
        splits=splits,
        reduced=small is not None,
        make=make,
        make_small=small,
        trainings=("pretrained",) if name.startswith("cifar10") else ("early", "fixed"),
        by_name=by_name,
    )


TASKS = [
    of_table("digits", "classification", "choose", shipped("digits"), reduced=True),
    of_table("breast cancer", "classification", "choose", shipped("breast_cancer")),
    of_table("glass", "classification", "choose", uci_classes("glass")),
    of_table("ionosphere", "classification", "choose", uci_classes("ionosphere")),
    of_table("diabetes", "regression", "choose", shipped("diabetes"), reduced=True),
    of_table("concrete", "regression", "choose", uci("concrete")),
    of_table("yacht", "regression", "choose", uci("yacht")),
    of_table("kin8nm", "regression", "choose", uci("kin8nm"), splits=5),
    of_table("wine", "classification", "choose", shipped("wine"), reduced=True),
    of_table("satellite", "classification", "confirm", uci_classes("satellite")),
    of_table("vehicle", "classification", "confirm", uci_classes("vehicle")),
    of_table("waveform", "classification", "confirm", uci_classes("waveform")),
    of_table("australian", "classification", "confirm", uci_classes("australian")),
    of_table("boston", "regression", "confirm", uci("boston")),
    of_table("energy", "regression", "confirm", uci("energy")),
    of_table("power", "regression", "confirm", uci("power"), splits=5),
    of_table("red wine", "regression", "confirm", uci("wine")),
    of_table("protein", "regression", "confirm", uci("protein"), splits=5),
    of_images("fashion mlp", "choose", greys("fashion_mnist", "mlp"), small=greys("fashion_mnist", "mlp", SMALL)),
    of_images("mnist cnn", "choose", greys("mnist", "cnn")),
    of_images("cifar10 resnet20", "choose", cifar("resnet20")),
    of_images("cifar10 resnet20 50k", "choose", cifar("resnet20", train=50_000), splits=1, by_name=True),
    of_text("trec", "choose"),
    of_images("mnist mlp", "confirm", greys("mnist", "mlp")),
    of_images("fashion cnn", "confirm", greys("fashion_mnist", "cnn")),
    of_images("cifar10 resnet56", "confirm", cifar("resnet56")),
    of_text("sst2", "confirm"),
    of_text("subj", "confirm"),
]
BY_NAME = {task.name: task for task in TASKS}
