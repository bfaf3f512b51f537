"""What a `Trainer` trains on: its data without its samplers, and the factor of its loss."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ...learning.examples import known_number
from ...learning.hosted import READ, factor_of
from ...likelihoods import Likelihood
from ...messages.errors import PeewitError
from ...network.calling import output_in
from ...network.isolation import isolated
from ...network.nests import Inputs


def training_data(loader: Any) -> DataLoader[Any]:
    """The examples of the Trainer's loader, through its collator, in an order of their own.

    Passes over the loader itself would change the order in which the Trainer goes on.
    """
    inner = getattr(loader, "base_dataloader", loader)  # what accelerate wraps
    dataset, number = getattr(inner, "dataset", None), known_number(inner)
    if not isinstance(dataset, Sized) or number != len(dataset):
        raise PeewitError(
            f"The Trainer trains on {'an unknown number' if number is None else number} of the examples of a "
            f"{type(dataset).__name__}, and the curvature is measured on all of them; give the examples as "
            "curvature_data=, and their number as examples=."
        )
    return DataLoader(
        dataset,  # type: ignore[arg-type]  # with a length, and with items
        batch_size=inner.batch_size or loader.total_batch_size,
        shuffle=True,
        collate_fn=inner.collate_fn,
        num_workers=inner.num_workers,
        generator=torch.Generator(),
    )


def loss_factor_of(trainer: Any, likelihood: Likelihood, inputs: Inputs, targets: Tensor) -> float:
    """The factor c of `loss = c * mean energy per example`, of one step of the Trainer, from a batch.

    Gradients of a step are accumulated over some parts. The Trainer divides the loss of each by their number, unless it
    told the loss how many labels all of them have; some losses pay no heed to that, and then the parts add up.
    """
    check_smoothing(trainer, likelihood)
    parts = trainer.args.gradient_accumulation_steps
    batch = {**inputs, "labels": targets} if isinstance(inputs, dict) else None
    if batch is None:
        raise PeewitError(f"The loss of the Trainer is computed from batches that are mappings; {READ}.")
    labels = trainer._get_num_items_in_batch([batch] * parts, targets.device)
    with isolated(trainer.model):
        loss, result = trainer.compute_loss(trainer.model, batch, return_outputs=True, num_items_in_batch=labels)
        factor = factor_of(loss, output_in(result), targets, likelihood)
    return factor * parts if adds_up(trainer, labels) else factor


def check_smoothing(trainer: Any, likelihood: Likelihood) -> None:
    """Refuse smoothed labels under another likelihood: where all logits are zero, no gradient tells them apart."""
    smoothing = trainer.args.label_smoothing_factor
    if smoothing and trainer.compute_loss_func is None and getattr(likelihood, "label_smoothing", 0) != smoothing:
        raise PeewitError(
            f"The Trainer has label_smoothing_factor={smoothing:g}, and the likelihood is {likelihood}; expected "
            f"pw.Categorical(label_smoothing={smoothing:g})."
        )


def adds_up(trainer: Any, labels: Any) -> bool:
    """Whether the Trainer leaves the losses of the parts of a step as they are, as its `training_step` decides it."""
    told = getattr(trainer, "loss_is_scaled_for_ga", None)
    if told is not None:
        return bool(told)
    return (trainer.model_accepts_loss_kwargs and labels is not None) or trainer.compute_loss_func is not None
