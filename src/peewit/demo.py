"""The demo: what a posterior over the weights of an image classifier is worth, on real data.

`peewit demo` trains a small network on eight of the ten classes of Fashion-MNIST. It compares what Peewit makes of it
from the training images alone, and with validation images, and writes a report, a page to open in a browser. Every step
is a few lines on the public interface, to be copied.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw
from peewit.data import FASHION_MNIST_CLASSES, fashion_mnist
from peewit.evaluation.methods import best_temperature
from peewit.figures.style import graph_objects
from peewit.metrics import accuracy, auroc, ece, nll
from peewit.runtime import progress

# The last two classes are held out because they are the last: nobody chose them by what comes out. One of them, the
# ankle boots, resembles classes that the network knows (sneakers, sandals), the other, the bags, none.
KNOWN = 8
EPOCHS = 20
SURE = 0.9  # the confidence from which on a prediction counts as sure
PLAIN, TEMPERATURE = "the network as it is", "temperature scaling"
TRAINED, VALIDATED = "Peewit, tune(train=...)", "Peewit, tune(validation=...)"
REPORTED = TRAINED  # the recipe that needs nothing but the training images
ADVICE = """
    import peewit as pw

    # train: a DataLoader, or tensors (x, y)
    la = pw.fit(model, train, "classification").tune(train=train)
    pred = la.predict(x)
    pred.probs           # probabilities that are better calibrated
    pred.epistemic       # high for inputs that are unlike the training data

    # with data that the network was not trained on, better still
    la = la.tune(validation=held)

    # which recipe is best for your network
    print(pw.recommend(model, train, "classification", validation=held))
"""


@dataclass(frozen=True)
class DemoData:
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
    ece: float
    sure: float  # the share of unknown images that it is more than 90 % sure of
    auroc: float


def load(quick: bool = False) -> DemoData:
    """Eight classes, every tenth training image for validation; `quick` takes a few images only."""
    (x, y), (x_test, y_test) = fashion_mnist()
    unknown = {name: x_test[y_test == label] for label, name in enumerate(FASHION_MNIST_CLASSES) if label >= KNOWN}
    x, y = x[y < KNOWN], y[y < KNOWN]
    x_test, y_test = x_test[y_test < KNOWN], y_test[y_test < KNOWN]
    if quick:
        x, y, x_test, y_test = x[:200], y[:200], x_test[:80], y_test[:80]
        unknown = {name: each[:20] for name, each in unknown.items()}
    held = torch.arange(len(x)) % 10 == 0
    return DemoData((x[~held], y[~held]), (x[held], y[held]), (x_test, y_test), unknown)


def network() -> nn.Sequential:
    """LeNet-5 for eight classes, with ReLUs."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 25, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, KNOWN)),
    )


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, advance: Callable[[], None], batch: int = 64) -> None:
    """Plain training: the posterior is built around where it ends."""
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


def entropy(probs: Tensor) -> Tensor:
    """(n,): the doubt in probabilities (n, C)."""
    doubt: Tensor = torch.special.entr(probs).sum(-1)
    return doubt


def judge(
    name: str, probs: Tensor, labels: Tensor, unknown: Tensor, doubts: tuple[Tensor, Tensor] | None = None
) -> DemoScores:
    """Scores of probabilities (n, C) and of unknown ones (m, C), told from them by `doubts` (n,) and (m,)."""
    known_doubt, unknown_doubt = doubts or (entropy(probs), entropy(unknown))
    return DemoScores(
        name=name,
        accuracy=accuracy(probs, labels),
        nll=nll(probs, labels),
        ece=ece(probs, labels),
        sure=float((unknown.amax(-1) > SURE).double().mean()),
        auroc=auroc(known_doubt, unknown_doubt),
    )


def run(
    quick: bool = False, seed: int = 0, console: Console | None = None, report: Path | None = None
) -> list[DemoScores]:
    """Train, fit, tune and compare, and write a report where one is wanted; the global random state stays as it was."""
    console = console or Console()
    try:
        if report is not None:
            graph_objects()
    except pw.MissingPackageError as error:
        console.print(f"No report will be written. {error}", markup=False)
        report = None
    data = load(quick)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scores, posteriors = compare(data, console, epochs=EPOCHS)
    show(scores, len(data.validation[1]), console, quick)
    if report is not None:
        write(posteriors[REPORTED], data, report, console, quick)
    console.print("For your own network:", highlight=False)
    console.print(ADVICE, markup=False, highlight=False, soft_wrap=True)
    return scores


def write(la: pw.Laplace, data: DemoData, path: Path, console: Console, quick: bool) -> None:
    """The page that says whether to trust the network, and where it is."""
    with stage(console, "unknown classes, corruptions and attacks, for the report"):
        report = pw.evaluate(
            la,
            data.test,
            validation=data.validation,
            ood=data.unknown_by_class,
            shifts=["noise", "blur", "contrast", "rotation"],
            attacks=["fgsm", "pgd"],
            shift_examples=800,
            classes=FASHION_MNIST_CLASSES[:KNOWN],
            intervals=50 if quick else 1000,
            title="Fashion-MNIST: a small network, and what it does not know" + (" (quick form)" if quick else ""),
        )
        report.to_html(path)
    console.print(f"The report, to be opened in a browser: {path.resolve()}", highlight=False, soft_wrap=True)


def compare(data: DemoData, console: Console, epochs: int) -> tuple[list[DemoScores], dict[str, pw.Laplace]]:
    """The ways to predict, each with its scores; and the posteriors among them."""
    (x, y), (x_test, y_test) = data.train, data.test
    names = ", ".join(FASHION_MNIST_CLASSES[KNOWN:])
    console.print(f"{len(x):,} images of {KNOWN} classes to train on; never seen: {names}.", highlight=False)
    model = network()
    with stage(console, "training LeNet-5", total=epochs) as advance:
        train(model, x, y, epochs, advance)
    with torch.no_grad():
        logits, unknown, held = model(x_test), model(data.unknown), model(data.validation[0])
    plain = judge(PLAIN, logits.softmax(-1), y_test, unknown.softmax(-1))
    console.print(
        f"The network is right on {percent(plain.accuracy)} of the test images. It is more than {percent(SURE)} sure "
        f"of {percent(plain.sure)} of the images of classes that it has never seen.",
        highlight=False,
    )
    temperature = best_temperature(held.double(), data.validation[1])
    scaled = judge(TEMPERATURE, (logits / temperature).softmax(-1), y_test, (unknown / temperature).softmax(-1))
    with stage(console, "a posterior over its weights: pw.fit(model, train, ...)"):
        la = pw.fit(model, data.train, "classification")
    with stage(console, "its prior from the training images alone: la.tune(train=train)"):
        trained = la.tune(train=data.train)
    with stage(console, "its prior with validation images: la.tune(validation=held)"):
        validated = la.tune(validation=data.validation)
    posteriors = {TRAINED: trained, VALIDATED: validated}
    with stage(console, "predictions"):
        judged = {name: judge_posterior(name, tuned, data) for name, tuned in posteriors.items()}
    return [plain, judged[TRAINED], scaled, judged[VALIDATED]], posteriors


def judge_posterior(name: str, la: pw.Laplace, data: DemoData) -> DemoScores:
    """Scores of a posterior, which tells unknown images by what comes from uncertain weights."""
    known, unknown = la.predict(data.test[0]), la.predict(data.unknown)
    assert isinstance(known, pw.Classes) and isinstance(unknown, pw.Classes)
    return judge(name, known.probs, data.test[1], unknown.probs, (known.epistemic, unknown.epistemic))


def stage(console: Console, what: str, total: int | None = None) -> AbstractContextManager[Callable[[], None]]:
    """Show a step of the demo, and how long it took."""
    return progress.stage(console, what, total, console.is_terminal, partial(console.print, highlight=False))


def percent(share: float) -> str:
    """`54 %`."""
    return f"{100 * share:.0f} %"


def show(scores: list[DemoScores], validation: int, console: Console, quick: bool) -> None:
    """The table, and what its figures mean."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("way to predict", no_wrap=True)
    for column in ("accuracy", "NLL", "ECE", "sure of\nunknown", "AUROC"):
        table.add_column(column, justify="right", no_wrap=True)
    data = {PLAIN: "with the training images alone", TEMPERATURE: f"with {validation} more, to tune on"}
    for row in scores:
        if row.name in data:
            table.add_row(f"[italic]{data[row.name]}[/]")
        figures = (f"{row.accuracy:.3f}", f"{row.nll:.3f}", f"{row.ece:.3f}", percent(row.sure), f"{row.auroc:.3f}")
        table.add_row(f"  {row.name}", *figures)
    console.print(table)
    console.print(
        "NLL (negative log-likelihood) and ECE (calibration error) say whether the probabilities of known classes can "
        "be trusted; lower is better. 'Sure of unknown' is the share of images of classes never seen that it is more "
        f"than {percent(SURE)} sure of. AUROC says how well the doubt of a prediction tells these images from known "
        "ones; higher is better, .5 is chance. For Peewit this doubt is pred.epistemic, what comes from the weights. A "
        "network alone does not have that; for it the doubt is the entropy.",
        highlight=False,
    )
    if quick:
        console.print("The quick form: too few images for the figures to mean anything.")
