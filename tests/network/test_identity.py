"""A network that is no longer the one that was fitted: what questions see, and what passes over all weights see."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import peewit as pw
from fitting import classes, normal
from peewit.network.identity import SPREAD, WHOLE, Identity
from peewit.network.modules import every_module, parameters_and_buffers
from tables import moved


def network(width: int = 8) -> nn.Sequential:
    """With a buffer, and a module that two places hold."""
    torch.manual_seed(0)
    act = nn.Tanh()
    return moved(nn.Sequential(nn.Linear(4, width), act, nn.BatchNorm1d(width), act, nn.Linear(width, 3)).eval())


def optimise(model: nn.Sequential) -> None:
    """One step of training."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(moved(normal(5, 4).float())).sum().backward()
    optimiser.step()


@torch.no_grad()
def write(model: nn.Sequential) -> None:
    model[0].weight[0, 0] += 1


def load(model: nn.Sequential) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def write_data(model: nn.Sequential) -> None:
    """One number of a small weight, past torch's count of writes."""
    model[4].bias.data[1] += 0.5


def flip_data(model: nn.Sequential) -> None:
    """The same norm with other signs."""
    model[4].weight.data.neg_()


def write_buffer(model: nn.Sequential) -> None:
    model[2].running_mean.add_(1.0)


def swap(model: nn.Sequential) -> None:
    model[4].weight = nn.Parameter(model[4].weight.detach() + 1)


def swap_data(model: nn.Sequential) -> None:
    model[4].weight.data = model[4].weight.detach() + 1


def swap_module(model: nn.Sequential) -> None:
    model[4] = moved(nn.Linear(model[4].in_features, 3))


def convert(model: nn.Sequential) -> None:
    model.double()


CHANGES = [optimise, write, load, write_data, flip_data, write_buffer, swap, swap_data, swap_module, convert]


@pytest.mark.parametrize("asked", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes_that_questions_see(change: Callable[[nn.Sequential], None], asked: bool) -> None:
    """Also where the network was seen to be the same just before."""
    model = network()
    x = moved(normal(6, 4).float())
    la = pw.fit(model, (x, moved(classes(3, 6))), "classification", weights="last_layer")
    for _ in range(2 * asked):
        la.predict(x)
    change(model)
    with pytest.raises(pw.MismatchError, match="no longer those it was fitted with"):
        la.predict(x.to(model[0].weight.dtype))
    with pytest.raises(pw.MismatchError, match="no longer those it was fitted with"):
        la.functional(x.to(model[0].weight.dtype))


def test_one_number_of_a_large_weight_past_torch() -> None:
    """What questions do not see: what passes over all weights do. A write to all numbers they see."""
    model = network(4 * WHOLE)
    identity = Identity.of(model)
    assert identity.is_same(model) and identity.seems_same(model)
    size = model[4].weight.numel()
    step = size // SPREAD | 1
    model[4].weight.data.flatten()[1] += 100.0  # a number between those that are looked at
    assert step > 2 and identity.seems_same(model) and not identity.is_same(model)
    model[4].weight.data.flatten()[1] -= 100.0
    model[4].weight.data.mul_(1 + 1e-4)
    assert not identity.seems_same(model)


def test_written_and_put_back() -> None:
    """The same numbers after writes are the same network; it is looked at whole once."""
    model = network()
    identity, state = Identity.of(model), copy.deepcopy(model.state_dict())
    optimise(model)
    assert not identity.seems_same(model)
    model.load_state_dict(state)
    assert identity.seems_same(model)
    versions, _ = identity.known[0]
    assert versions != identity.versions and identity.seems_same(model)
    write_data(model)
    assert not identity.seems_same(model)


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "gaps", "complex", "empty", "half"])
def test_any_layout(layout: str) -> None:
    """A write through `.data` shows whatever the strides and the dtype."""
    value = torch.randn(16, 4, 20, 20, generator=torch.Generator().manual_seed(1))
    made = {
        "channels_last": lambda: value.to(memory_format=torch.channels_last),
        "transposed": lambda: value.transpose(0, 3),
        "gaps": lambda: value[:, :, ::2],
        "complex": lambda: torch.complex(value, value),
        "empty": lambda: value[:0],
        "half": lambda: value.half(),
    }[layout]()
    model = nn.Module()
    model.register_parameter("weight", nn.Parameter(moved(made)))
    model.register_buffer("steps", moved(torch.tensor(3)))
    identity = Identity.of(model)
    assert identity.seems_same(model) and identity.seems_same(model)
    if layout == "empty":
        model.steps.data.add_(1)
    else:
        model.weight.data.mul_(2)
    assert not identity.seems_same(model)


def test_modules_and_tensors_are_those_of_torch() -> None:
    """In the same order, each once, without what is not there."""
    model = network()
    model.register_buffer("nothing", None)
    model.tied = nn.Linear(8, 3, bias=False)
    model.tied.weight = model[4].weight
    model.none = None
    assert every_module(model) == list(model.modules())
    expected = [*model.parameters(), *model.buffers()]
    assert list(map(id, parameters_and_buffers(model))) == list(map(id, expected))
