"""The demo: what a posterior over the weights of an image classifier is worth, on real data.

`peewit demo` trains a small network on eight of the ten classes of Fashion-MNIST and compares six ways to predict with
it, then writes a report on one of them, a page to open in a browser. Every step is a few lines on the public interface,
to be copied.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw
from peewit.data import FASHION_MNIST_CLASSES, fashion_mnist
from peewit.metrics import accuracy, auroc, brier, ece, nll
from peewit.runtime import progress

# The last two classes are held out because they are the last: nobody chose them by what comes out. One of them, the
# ankle boots, resembles classes that the network knows (sneakers, sandals), the other, the bags, none.
KNOWN = 8
# Chosen beforehand: the usual weights, and validation images, which temperature scaling beside it has too.
REPORTED = "Laplace, last layer, validation"


@dataclass(frozen=True)
class Data:
    """Images (n, 1, 28, 28) and labels (n,): to train on, to validate on, to test on; and of classes never seen."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    unknown_by_class: dict[str, Tensor]

    @property
    def unknown(self) -> Tensor:
        """All images of classes never seen, (m, 1, 28, 28)."""
        return torch.cat(list(self.unknown_by_class.values()))


@dataclass(frozen=True, kw_only=True)
class DemoScores:
    """How one way to predict did on the test images, and at telling them from classes never seen."""

    name: str
    accuracy: float
    nll: float
    brier: float
    ece: float
    auroc: float


def load(quick: bool = False) -> Data:
    """Eight classes, every tenth training image for validation; `quick` takes a few images only."""
    (x, y), (x_test, y_test) = fashion_mnist()
    unknown = {name: x_test[y_test == label] for label, name in enumerate(FASHION_MNIST_CLASSES) if label >= KNOWN}
    x, y = x[y < KNOWN], y[y < KNOWN]
    x_test, y_test = x_test[y_test < KNOWN], y_test[y_test < KNOWN]
    if quick:
        x, y, x_test, y_test = x[:200], y[:200], x_test[:80], y_test[:80]
        unknown = {name: each[:20] for name, each in unknown.items()}
    held = torch.arange(len(x)) % 10 == 0
    return Data((x[~held], y[~held]), (x[held], y[held]), (x_test, y_test), unknown)


def network(width: int = 16) -> nn.Sequential:
    """Three convolutions with BatchNorm, and a linear head."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, width), (width, 2 * width), (2 * width, 2 * width)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * 16, KNOWN))


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, advance: Callable[[], None], batch: int = 64) -> None:
    """Plain training until the training images are learned: the posterior is built around where it ends."""
    steps = epochs * (len(x) // batch)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(batch)[: len(x) // batch]:
            optimiser.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimiser.step()
            schedule.step()
        advance()
    model.eval()


def fit_temperature(logits: Tensor, labels: Tensor) -> Tensor:
    """(): the number that logits (n, C) are divided by for the smallest NLL of labels (n,)."""
    log_temperature = torch.zeros((), requires_grad=True)
    optimiser = torch.optim.LBFGS([log_temperature], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(logits / log_temperature.exp(), labels)
        value.backward()
        return value

    optimiser.step(loss)
    return log_temperature.detach().exp()


def judge(name: str, probs: Tensor, labels: Tensor, unknown: Tensor) -> DemoScores:
    """Scores of probabilities (n, C); unknown ones (m, C) are told from them by the entropy of the prediction."""

    def entropy(p: Tensor) -> Tensor:
        return -torch.xlogy(p, p).sum(-1)

    return DemoScores(
        name=name,
        accuracy=accuracy(probs, labels),
        nll=nll(probs, labels),
        brier=brier(probs, labels),
        ece=ece(probs, labels),
        auroc=auroc(entropy(probs), entropy(unknown)),
    )


def run(
    quick: bool = False, seed: int = 0, console: Console | None = None, report: Path | None = None
) -> list[DemoScores]:
    """Train, fit, tune and compare, and write a report where one is wanted; the global random state stays as it was."""
    console = console or Console()
    if report is not None and find_spec("plotly") is None:
        console.print("No report will be written: its figures need plotly. pip install plotly", markup=False)
        report = None
    data = load(quick)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scores, posteriors = compare(data, console, epochs=2 if quick else 15)
    show(scores, console, quick)
    if report is not None:
        write(posteriors[REPORTED], data, report, console, quick)
    return scores


def write(la: pw.Laplace, data: Data, path: Path, console: Console, quick: bool) -> None:
    """The page that says whether to trust the network, and where it is."""
    with stage(console, "unknown classes, corruptions and attacks, for the report"):
        report = pw.evaluate(
            la,
            data.test,
            validation=data.validation,
            ood=data.unknown_by_class,
            shifts=["noise", "blur", "contrast", "rotation"],
            attacks=["fgsm", "pgd"],
            classes=FASHION_MNIST_CLASSES[:KNOWN],
            intervals=50 if quick else 1000,
            title="Fashion-MNIST: a small network, and what it does not know" + (" (quick form)" if quick else ""),
        )
        report.to_html(path)
    console.print(f"The report, to be opened in a browser: {path.resolve()}", highlight=False, soft_wrap=True)


def compare(data: Data, console: Console, epochs: int) -> tuple[list[DemoScores], dict[str, pw.Laplace]]:
    """The six ways to predict, each with its scores; and the posteriors among them."""
    (x, y), (x_test, y_test) = data.train, data.test
    names = ", ".join(FASHION_MNIST_CLASSES[KNOWN:])
    console.print(f"{len(x):,} images of {KNOWN} classes to train on; never seen: {names}.", highlight=False)
    model = network()
    with stage(console, "training a CNN with BatchNorm", total=epochs) as advance:
        train(model, x, y, epochs, advance)
    with torch.no_grad():
        logits, unknown, held = model(x_test), model(data.unknown), model(data.validation[0])
    temperature = fit_temperature(held, data.validation[1])
    scores = [
        judge("MAP: the network as it is", logits.softmax(-1), y_test, unknown.softmax(-1)),
        judge("temperature scaling", (logits / temperature).softmax(-1), y_test, (unknown / temperature).softmax(-1)),
    ]
    posteriors = {}
    for weights, what in (("last_layer", "last layer"), ("all", "all weights")):
        with stage(console, f"Laplace, {what}: the fit"):
            la = pw.fit(model, data.train, "classification", weights=weights, structure="kron")
        for way in ("evidence", "validation"):
            with stage(console, f"Laplace, {what}: its prior by {way}, and predictions"):
                tuned = la.tune() if way == "evidence" else la.tune("validation", validation=data.validation)
                known, unfamiliar = tuned.predict(x_test), tuned.predict(data.unknown)
            assert isinstance(known, pw.Classes) and isinstance(unfamiliar, pw.Classes)
            name = f"Laplace, {what}, {way}"
            posteriors[name] = tuned
            scores.append(judge(name, known.probs, y_test, unfamiliar.probs))
    return scores, posteriors


def stage(console: Console, what: str, total: int | None = None) -> AbstractContextManager[Callable[[], None]]:
    """Show a step of the demo, and how long it took."""
    return progress.stage(console, what, total, console.is_terminal, partial(console.print, highlight=False))


def show(scores: list[DemoScores], console: Console, quick: bool) -> None:
    """The table, and what its figures mean."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("way to predict", no_wrap=True)
    for column in ("accuracy", "NLL", "Brier", "ECE", "AUROC"):
        table.add_column(column, justify="right", no_wrap=True)
    columns = list(zip(*(astuple(row)[1:] for row in scores), strict=True))
    best = [max(values) if column in (0, 4) else min(values) for column, values in enumerate(columns)]
    for row in scores:
        cells = zip(astuple(row)[1:], best, strict=True)
        table.add_row(row.name, *(f"[bold]{value:.3f}[/]" if value == top else f"{value:.3f}" for value, top in cells))
    console.print(table)
    console.print(
        "Negative log-likelihood, Brier score and calibration error (lower is better) say whether probabilities of the "
        "known classes can be trusted; AUROC (higher is better, .5 is chance) says how well a prediction's entropy "
        "tells the two unknown classes from them. Temperatures and priors were tuned on validation images, or, where "
        "it says 'evidence', on the training images alone.",
        highlight=False,
    )
    if quick:
        console.print("The quick form: too few images and epochs for the figures to mean anything.")
