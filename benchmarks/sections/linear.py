"""The mode of the linear model: what products with the Jacobian reach, and the memory that they take."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import ours
from benchmarks.cases import Batches, Bench, Case, batched
from benchmarks.networks import NETWORKS

CASES = ("mlp", "lenet", "resnet18")
STEPS = (1, 2, 3, 5, 7, 9, 15)  # k steps take k + 1/2 products, and half a one more to look at where they led
TOLERANCE = 0.01  # of the last turn: what is left after it is a few times as much
TURNS = 200  # at most
TURN = 0.1  # what every log precision is changed by, for a solve from the mode before
REFERENCE = 60  # steps that are taken to have arrived
EXAMPLES = {"mlp": 1024, "lenet": 1024, "resnet18": 512}  # a large network takes hundreds of passes over them
QUICK_EXAMPLES = 32
TRAINING, QUICK_TRAINING = 300, 10  # steps of Adam
# By whether it is quick. Products in TF32 carry no more.
TIGHT = {False: {"tolerance": 2e-3, "steps": 40}, True: {"tolerance": 1.0, "steps": 2}}
MEMORY = 256 << 20
OFF = 1e-3  # effective dimensions of a group that is switched off: its precision has no value to come near to


def measure(bench: Bench) -> None:
    """A record per network: solves at the tuned prior that stop later and later, and tuning itself."""
    for case in bench.cases({name: NETWORKS[name] for name in CASES if name in NETWORKS}):
        bench.note(
            case, "linear", partial(solves, case), library=ours.NAME, structure="kron", curvature="exact", task="solve"
        )


def solves(case: Case) -> dict[str, Any]:
    """How near a solve comes to the log precisions of a converged one, by the number of products; and tuning."""
    quick, said = case.settings.quick, case.settings.say
    images = Images.of(case)
    model = trained(case, images)
    batches = images.batches(QUICK_EXAMPLES if quick else EXAMPLES[case.name])
    posterior = ours.fit(model, batches, "exact")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps that are not enough are the subject
        began = time.perf_counter()
        usual = TIGHT[True] if quick else {"tolerance": TOLERANCE, "steps": TURNS}
        with counted() as solved:
            tuned = posterior.with_prior(layerwise()).tune(at="linear_mode", train=batches, **usual)
        tuning = time.perf_counter() - began
        said(f"  tuned in {tuning:.1f} s, {len(tuned.trace)} turns and {tuned.linear_mode.products:g} products")
        exact = tuned.tune(at="linear_mode", train=batches, start=tuned.prior, **TIGHT[quick])
        said(f"  to {TIGHT[quick]['tolerance']:g}: {exact.linear_mode.products:g} products more")
        from_trained = posterior.with_prior(tuned.prior)
        after_turn = tuned.with_prior(moved(tuned.prior))
        found = case.settings.measured(lambda: from_trained.at_linear_mode(batches, steps=2, tolerance=1e-9), 2)
        bounded = case.settings.measured(
            lambda: from_trained.at_linear_mode(batches, steps=2, tolerance=1e-9, memory=MEMORY), 1
        )
        points = [
            *reached(from_trained, batches, "the trained weights", quick),
            *reached(after_turn, batches, "the mode before", quick),
        ]
    weights = sum(parameter.numel() for parameter in model.parameters())
    gamma = exact.evidence().effective_dimensions
    return {
        **found.as_dict(),
        "examples": sum(len(targets) for _, targets in batches),
        "points": points,
        "copies": max(0.0, bounded.extra - MEMORY) / (4 * weights),
        "tuning": {
            "seconds": tuning,
            "turns": len(tuned.trace),
            "converged": tuned.trace.converged,
            "products": tuned.linear_mode.products,
            "products_per_solve": max(solved),
            "solves": len(solved),
            "precision_error": error(tuned, exact),
            "exact_products": exact.linear_mode.products,
            "exact_converged": exact.trace.converged,
        },
        "groups": len(gamma),
        "off": int((gamma <= OFF).sum()),
    }


def reached(begin: Any, batches: Batches, start: str, quick: bool) -> list[dict[str, Any]]:
    """What solves from one start reach when they stop later and later, beside a converged one."""
    goal, gamma = updated(begin.at_linear_mode(batches, steps=2 if quick else REFERENCE, tolerance=1e-9))
    points = []
    for steps in STEPS[:2] if quick else STEPS:
        made = begin.at_linear_mode(batches, steps=steps, tolerance=1e-9)
        found, _ = updated(made)
        points.append(
            {
                "start": start,
                "products": made.linear_mode.products,
                "decrement": made.linear_mode.decrement,
                "precision_error": float((found - goal).abs()[gamma > OFF].max()),
            }
        )
    return points


def moved(prior: Any) -> Any:
    """A prior as a turn might leave it: every log precision changed by TURN, up and down in turn."""
    signs = torch.ones_like(prior.precision)
    signs[1::2] = -1
    return prior.with_precision(prior.precision * (TURN * signs).exp())


@contextmanager
def counted() -> Iterator[list[float]]:
    """Products of every solve inside the block; those that tuning takes back count too."""
    from peewit.linear_model.solver import Solver

    own, found = Solver.solve, []

    def solve(self: Any, *arguments: Any) -> Any:
        before = self.products
        made = own(self, *arguments)
        found.append(self.products - before)
        return made

    Solver.solve = solve  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Solver.solve = own  # type: ignore[method-assign]


@dataclass(frozen=True)
class Images:
    """Images of a smooth pattern for each class in noise, a tenth of the labels at random: something to learn."""

    patterns: Tensor
    generator: torch.Generator
    device: torch.device
    batch_size: int

    @staticmethod
    def of(case: Case) -> Images:
        """Images of the size that the network takes."""
        generator = torch.Generator().manual_seed(1)
        shape = case.network.shape
        if len(shape) == 3:
            coarse = torch.randn(case.classes, shape[0], 4, 4, generator=generator)
            patterns = F.interpolate(coarse, size=shape[1:], mode="bilinear")
        else:
            patterns = torch.randn(case.classes, *shape, generator=generator)
        return Images(patterns, generator, case.settings.device, case.settings.batch_size)

    def batches(self, count: int) -> Batches:
        """New images, as many as asked."""
        classes = len(self.patterns)
        labels = torch.randint(classes, (count,), generator=self.generator)
        noise = torch.randn(count, *self.patterns.shape[1:], generator=self.generator)
        inputs = 0.5 * self.patterns[labels] + noise
        other = torch.randint(classes, (count,), generator=self.generator)
        labels = torch.where(torch.rand(count, generator=self.generator) < 0.1, other, labels)
        return batched((inputs.to(self.device), labels.to(self.device)), self.batch_size)


def trained(case: Case, images: Images) -> nn.Module:
    """A copy of the network after some steps of Adam, each on new images, so that it memorises nothing."""
    model = copy.deepcopy(case.model).train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(QUICK_TRAINING if case.settings.quick else TRAINING):
        ((inputs, targets),) = images.batches(images.batch_size)
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimiser.step()
    return model.eval()


def layerwise() -> Any:
    """One precision per tensor; tuning chooses the start."""
    import peewit as pw

    return pw.Prior.layerwise(1.0)


def error(tuned: Any, exact: Any) -> float:
    """The largest difference of a log precision, of the groups that are not switched off."""
    live = exact.evidence().effective_dimensions > OFF
    difference = (tuned.prior.precision.log() - exact.prior.precision.log()).abs()[live]
    return float(difference.max()) if len(difference) else 0.0


def updated(posterior: Any) -> tuple[Tensor, Tensor]:
    """MacKay's log precisions `gamma_g / |theta_lin_g|^2` at a linear mode, and gamma."""
    gamma = posterior.evidence().effective_dimensions
    weights = posterior.weights + posterior.linear_mode.displacement
    squares = posterior.prior.stretches(posterior.space).sums(weights.double().square())
    return (gamma / squares).log(), gamma
