"""laplace-torch on the same networks and data, as the benchmark calls it."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import Failure, available_bytes, synchronise

NAME = "laplace-torch"
Batches = list[tuple[Tensor, Tensor]]


class Loader(list[tuple[Tensor, Tensor]]):
    """Batches on the device, with the data set whose length laplace-torch needs."""

    def __init__(self, batches: Batches) -> None:
        super().__init__(batches)
        self.dataset = range(sum(len(targets) for _, targets in batches))


def supported_names(model: nn.Module) -> list[str]:
    """The parameters that laplace-torch's Kronecker factors cover: weights and biases of Linear and Conv2d."""
    return [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
        for name, _ in module.named_parameters(recurse=False)
    ]


def freeze_unsupported(model: nn.Module) -> nn.Module:
    """A copy in which everything else is frozen, since laplace-torch refuses to run otherwise."""
    model = copy.deepcopy(model)
    supported = set(supported_names(model))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in supported)
    return model


def version() -> str | None:
    """The version of laplace-torch; None where it is not installed."""
    try:
        return metadata.version("laplace-torch")
    except metadata.PackageNotFoundError:
        return None


def load() -> Any:
    """The class Laplace of laplace-torch; the first import takes seconds."""
    with warnings.catch_warnings():
        # torch.jit.script in a module that the import pulls in.
        warnings.simplefilter("ignore", DeprecationWarning)
        from laplace import Laplace
    return Laplace


def fit(
    model: nn.Module, batches: Batches, curvature: str = "exact", structure: str = "kron", weights: str = "all"
) -> Any:
    """A posterior of laplace-torch with prior precision 1 and its default backend."""
    posterior = load()(
        model,
        "classification",
        subset_of_weights=weights,
        hessian_structure=structure,
        prior_precision=1.0,
        backend_kwargs={"stochastic": curvature != "exact"},
    )
    posterior.fit(Loader(batches))
    return posterior


def tune(posterior: Any) -> float:
    """Tune one prior precision by the evidence from 1, in the default of 100 steps, and return it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about links, which the evidence does not use
        posterior.optimize_prior_precision(pred_type="glm", method="marglik", prior_structure="scalar")
    return float(posterior.prior_precision)


@contextmanager
def decomposition_seconds(device: torch.device) -> Iterator[list[float]]:
    """Collect the seconds of every eigendecomposition of a whole posterior while the block runs."""
    from laplace.utils.matrix import Kron

    seconds: list[float] = []
    original = Kron.decompose

    def decompose(*args: Any, **kwargs: Any) -> Any:
        synchronise(device)
        start = time.perf_counter()
        result = original(*args, **kwargs)
        synchronise(device)
        seconds.append(time.perf_counter() - start)
        return result

    Kron.decompose = decompose
    try:
        yield seconds
    finally:
        Kron.decompose = original


def functional(posterior: Any, inputs: Tensor, variance_only: bool = False) -> tuple[Tensor, Tensor]:
    """Mean (N, C) and covariance (N, C, C), or variances (N, C), of the linearised network."""
    mean, covariance = posterior._glm_predictive_distribution(inputs, diagonal_output=variance_only)
    return mean, covariance


def too_large(
    model: nn.Module, inputs: int, classes: int, device: torch.device, weights: int | None = None
) -> Failure | None:
    """On the host, running out of memory ends the process instead of raising: leave out what cannot fit."""
    if device.type == "cuda":
        return None
    # Eight copies of the Jacobian in float32: the most that was measured, on the ViT.
    return unless_fitting(8 * jacobian_bytes(model, inputs, classes, weights), 0.7 * available_bytes())


def diagonal_too_large(model: nn.Module, inputs: int, classes: int, device: torch.device) -> Failure | None:
    """On a GPU a diagonal fit that does not fit can end in an illegal access, and the process with it."""
    if device.type != "cuda":
        return too_large(model, inputs, classes, device)
    # Four copies: the least that was measured, on the MLP.
    return unless_fitting(4 * jacobian_bytes(model, inputs, classes), torch.cuda.mem_get_info(device)[1])


def jacobian_bytes(model: nn.Module, inputs: int, classes: int, weights: int | None = None) -> int:
    """A batch's Jacobian in float32."""
    if weights is None:
        weights = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return 4 * inputs * classes * weights


def unless_fitting(needed: float, there: float) -> Failure | None:
    """Why a measurement is left out, or an empty text."""
    return None if needed < there else Failure(f"left out: needs about {needed / 2**30:.0f} GiB")
