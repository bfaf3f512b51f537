"""Small networks, and the dense mode of their linear models."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw
from fitting import built, classes, fitted, normal, weights_of
from reference_linear import Linear
from tables import moved, table

EXACT = 1e-17  # nats: as near as float64 comes


NETWORKS = (
    "mlp",
    "mlp_regression",
    "scalar_output",
    "inplace_mlp",
    "train_mode",
    "frozen_bias",
    "unused_layer",
    "ignored_examples",
    "bilinear",
    "conv2d",
    "resnet",
    "segmentation",
    "unet",
    "batch_norm2d",
    "layer_norm",
    "weight_norm",
    "tied_gpt",
    "tied_linears",
    "same_module_twice",
    "checkpoint_reentrant",
    "mapping_input",
    "time_major",
    "token_regression",
    "experts_tokens",
    "embedding_sparse",
    "token_classifier",
    "lstm",
    "encoder_layer",
    "bare_nonlinear",
)


def cross_entropy(axis: int, f: Tensor, y: Tensor) -> Tensor:
    """Of one example, with its classes where the case has them."""
    logits = f.movedim(axis if axis < 0 else axis - 1, -1).reshape(-1, f.shape[axis if axis < 0 else axis - 1])
    return F.cross_entropy(logits, y.reshape(-1), reduction="sum")


def squares(noise: float, f: Tensor, y: Tensor) -> Tensor:
    """A Gaussian's, with all constants."""
    return -torch.distributions.Normal(f, noise).log_prob(y).sum()


def reference_of(name: str, la: pw.Laplace) -> Linear:
    """The definition for a network of the table."""
    case = table(name)
    index = case.index(la)
    import reference_dense as dense

    axis = case.case.axis
    nll = functools.partial(squares, 1.0) if case.case.likelihood == "regression" else None
    nll = functools.partial(cross_entropy, axis) if nll is None else nll
    return Linear(
        f=dense.outputs(case.model, case.x).detach(),
        jacobian=case.jacobian[..., index],
        y=case.y,
        nll=nll,
        theta=la.weights.cpu(),
        delta=la.prior.delta(la.space, la.weights).cpu(),
        mean=la.prior.centre(la.space, la.weights).cpu(),
    )


def found(la: pw.Laplace, data: Any, **options: Any) -> pw.LinearMode:
    """Its mode, as near as it comes."""
    options = {"tolerance": EXACT, "steps": 1000, **options}
    made = la.at_linear_mode(data, **options).linear_mode
    assert made is not None and made.converged, made
    return made


@functools.cache
def simple() -> tuple[nn.Module, Tensor, Tensor]:
    """A small classifier with 30 examples, far from any mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = built(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    return model, normal(30, 4), classes(3, 30)


def classifier(structure: Any = "kron", **options: Any) -> tuple[pw.Laplace, tuple[Tensor, Tensor]]:
    """A fit of it, and its data."""
    model, x, y = simple()
    return fitted(model, x, y, "classification", structure, **options), (moved(x), moved(y))


def dense_classifier(la: pw.Laplace) -> Linear:
    """Its definition."""
    import reference_dense as dense
    from fitting import names_of

    model, x, y = simple()
    return Linear(
        f=dense.outputs(model, x).detach(),
        jacobian=dense.jacobian(model, x, names_of(model)),
        y=y,
        nll=functools.partial(cross_entropy, -1),
        theta=weights_of(model),
        delta=la.prior.delta(la.space, la.weights).cpu(),
        mean=la.prior.centre(la.space, la.weights).cpu(),
        temperature=la.temperature,
    )
