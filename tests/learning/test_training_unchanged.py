"""A learner whose rate is zero leaves training as it is, to the last bit; and what it adds is the prior's gradient."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import peewit as pw

DECAY = 0.048  # times 64 examples it is a precision without rounding, which exp(log()) would change


class Augmented(Dataset[tuple[Tensor, int]]):
    """Examples that Python, numpy and torch change every time they are asked for."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(64, 1, 6, 6, generator=generator)
        self.y = torch.randint(0, 3, (64,), generator=generator)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = random.random() + np.random.rand() + torch.rand(())
        return self.x[index] + 0.1 * noise, int(self.y[index])


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)
    )


def loader(own: bool) -> DataLoader[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(5) if own else None
    return DataLoader(Augmented(), batch_size=16, shuffle=True, generator=generator)


OPTIMIZERS = {
    "sgd": lambda parameters, decay: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=decay),
    "adam": lambda parameters, decay: torch.optim.Adam(parameters, lr=0.01, weight_decay=decay),
    "adamw": lambda parameters, decay: torch.optim.AdamW(parameters, lr=0.01, weight_decay=decay),
    "foreach": lambda parameters, decay: torch.optim.Adam(parameters, lr=0.01, weight_decay=decay, foreach=True),
    "fused": lambda parameters, decay: torch.optim.SGD(parameters, lr=0.1, weight_decay=decay, fused=True),
}


def trained(name: str, own_generator: bool, **options: object) -> dict[str, Tensor]:
    """The network after four epochs, with a learner or with the same weight decay."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model, data = network(), loader(own_generator)
    optimizer = OPTIMIZERS[name](model.parameters(), 0.0 if options else DECAY)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    learner = pw.learning.Learner(model, data, "classification", optimizer, **options) if options else None
    for epoch in range(4):
        model.train()
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
        schedule.step()
        if learner is not None and epoch % 2:
            learner.step()
    return copy.deepcopy(model.state_dict())


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_with_rate_zero_is_plain_training_bit_for_bit(name: str, own_generator: bool) -> None:
    plain = trained(name, own_generator)
    learnt = trained(name, own_generator, prior=64 * DECAY, rate=0.0, loss=nn.CrossEntropyLoss())
    if name == "fused":  # one rounding for the decay and the step there
        assert all(torch.allclose(plain[key].double(), learnt[key].double(), atol=1e-5) for key in plain)
        return
    assert all(torch.equal(plain[key], learnt[key]) for key in plain)


@pytest.mark.parametrize(
    "options",
    [
        {"share": 0.5},
        {"structure": "ekfac"},
        {"structure": "diag", "prior": pw.Prior.diagonal(64 * DECAY)},
        {"prior": pw.Prior.layerwise(64 * DECAY)},
        {"prior": pw.Prior.unitwise(64 * DECAY), "structure": "diag"},
        {"curvature": "fisher", "running": 0.5},
        {"keep": "last"},
    ],
    ids=str,
)
def test_no_option_disturbs_training(options: dict[str, object]) -> None:
    plain = trained("sgd", True)
    learnt = trained("sgd", True, **{"prior": 64 * DECAY, "rate": 0.0, **options})
    if getattr(options.get("prior"), "grouping", None) in (pw.Prior.diagonal().grouping, pw.Prior.unitwise().grouping):
        # A decay per weight is multiplied and then added, where torch's one number is multiplied and added at once.
        assert all(torch.allclose(plain[key].double(), learnt[key].double(), atol=1e-4) for key in plain)
        return
    assert all(torch.equal(plain[key], learnt[key]) for key in plain)


def test_what_is_learnt_changes_training() -> None:
    plain = trained("sgd", True)
    learnt = trained("sgd", True, prior=64 * DECAY, rate=0.5)
    assert not torch.equal(plain["5.weight"], learnt["5.weight"])


def test_the_state_of_every_module_and_gradient_is_left_alone() -> None:
    model, data = network(), loader(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = pw.learning.Learner(model, data, "classification", optimizer)
    x, y = next(iter(data))
    F.cross_entropy(model(x), y).backward()
    model[3].eval()
    before = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    learner.step()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before[0].items())
    assert all(torch.equal(old, p.grad) for old, p in zip(before[1], model.parameters(), strict=True))
    assert modes == [module.training for module in model.modules()]
    learner.detach()
    assert not optimizer._optimizer_step_pre_hooks


def test_compiled_networks_are_the_network_inside() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = pw.learning.Learner(torch.compile(model, backend="eager"), loader(True), "classification", optimizer)
    assert learner.model is model
    assert learner.step().kept
