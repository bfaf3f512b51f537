"""The law of scales: weights whose scale changes no output change no variance either, if each has its own precision."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from cases import randomise
from environment import DEVICE
from fitting import classes, normal
from invariant_networks import ResNet, Stream, cnn, mlp
from tables import moved

pytestmark = pytest.mark.filterwarnings("ignore::peewit.TuningWarning")  # groups that are switched off
FACTOR = 7.0
TURNS = 2  # each of which keeps the law, from a start that does; some tests go on to the end


@dataclass(frozen=True)
class Law:
    """A network, one of its sets, the norms that take the set's scale away, and inputs."""

    build: Callable[[], nn.Module]
    own: tuple[str, ...]
    norms: tuple[str, ...]
    inputs: Callable[[], Tensor]


WRITERS = [f"blocks.0.{name}.{kind}" for name in ("out", "down") for kind in ("weight", "bias")]
LAWS = {
    "layer norm": Law(lambda: mlp(nn.LayerNorm), ("3.weight", "3.bias"), ("4",), lambda: normal(30, 4)),
    "batch norm": Law(lambda: mlp(nn.BatchNorm1d), ("0.weight", "0.bias"), ("1",), lambda: normal(30, 4)),
    "cnn": Law(lambda: cnn(nn.BatchNorm2d), ("3.weight", "3.bias"), ("4",), lambda: normal(12, 2, 6, 6)),
    "resnet": Law(ResNet, ("second.conv2.weight",), ("second.bn2",), lambda: normal(12, 2, 4, 4)),
    "transformer": Law(
        lambda: Stream(blocks=1),
        ("places", "tokens.weight", *WRITERS),
        ("blocks.0.first", "blocks.0.second", "norm"),
        lambda: classes(7, 40, 5),
    ),
}


def rescaled(model: nn.Module, own: Iterable[str], norms: Iterable[str], k: float = FACTOR) -> nn.Module:
    """The same function: weights times k, and the norms behind them told so."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name in own:
            made.get_parameter(name).mul_(k)
        for name in norms:
            norm = made.get_submodule(name)
            norm.eps *= k**2
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                norm.running_mean *= k
                norm.running_var *= k**2
    return made


@functools.cache
def pair(name: str) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """A network, the same one rescaled, and data; running averages are those of the data."""
    law = LAWS[name]
    torch.manual_seed(4)
    model, x = law.build().double(), law.inputs()
    randomise(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = None
        model.train()(x)
    model.eval()
    other = rescaled(model, law.own, law.norms)
    with torch.no_grad():  # labels that the network knows something about
        outputs = model(x)
        y = (3 * (outputs - outputs.mean(0)) / outputs.std(0) + normal(len(x), 3, seed=6)).argmax(1)
    return model.to(DEVICE), other.to(DEVICE), moved(x), moved(y)


@functools.cache
def prior_of(name: str, merge: bool) -> pw.Prior:
    """With the sets of a network."""
    model, _, x, y = pair(name)
    return pw.Prior.scale_invariant(model, (x, y), merge=merge)


def variances(
    model: nn.Module, x: Tensor, y: Tensor, structure: str, prior: pw.Prior, steps: int = TURNS
) -> tuple[pw.Laplace, Tensor]:
    """The tuned posterior, and the variances of the outputs at the data."""
    la = pw.fit(model, (x, y), "classification", structure=structure, prior=prior)
    method = "fixed_point" if steps == TURNS else "evidence"  # which is faster, at switching groups off too
    la = la.tune(method, at="linear_mode", train=(x, y), tolerance=1e-6, steps=steps)
    return la, la.functional(x, variance_only=True).cov


def apart(first: Tensor, second: Tensor) -> float:
    """Largest relative difference."""
    return float((first / second - 1).abs().max())


@pytest.mark.parametrize("name", LAWS)
def test_rescaling_changes_no_output(name: str) -> None:
    """And the set is one that is found."""
    model, other, x, y = pair(name)
    assert torch.allclose(model(x), other(x), rtol=1e-10, atol=1e-10)
    assert LAWS[name].own in prior_of(name, False).sets
    assert pw.Prior.scale_invariant(other, (x, y)).sets == prior_of(name, False).sets


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("structure", ["kron", "diag"])
@pytest.mark.parametrize("name", LAWS)
def test_one_precision_per_tensor_or_set(name: str, structure: str, merge: bool) -> None:
    """Variances stay, precisions of the set are divided by the square of the scale, others stay."""
    model, other, x, y = pair(name)
    prior = prior_of(name, merge)
    first, before = variances(model, x, y, structure, prior)
    second, after = variances(other, x, y, structure, prior)
    assert apart(after, before) < 1e-6
    on = (first.prior.precision < 1e8) & (second.prior.precision < 1e8)  # those on their way to the limit are cut there
    own = torch.tensor([part.split(" ")[0] in LAWS[name].own for part in first.prior.names(first.space)])
    assert bool((own & on).any())
    expected = torch.where(own, FACTOR**-2, 1.0)
    assert apart((second.prior.precision / first.prior.precision)[on], expected[on].to(second.prior.precision)) < 1e-6


@pytest.mark.parametrize("name", LAWS)
def test_one_precision_for_all_breaks_the_law(name: str) -> None:
    """The scale of weights that does not matter decides the precision of those whose scale does."""
    model, other, x, y = pair(name)
    first, before = variances(model, x, y, "kron", pw.Prior.scalar(), 40)
    second, after = variances(other, x, y, "kron", pw.Prior.scalar(), 40)
    assert first.trace is not None and first.trace.converged
    assert second.trace is not None and second.trace.converged
    assert apart(after, before) > 0.1


@pytest.mark.parametrize(
    ("name", "structure"),
    [("batch norm", "kron"), ("batch norm", "diag"), ("cnn", "diag"), ("transformer", "kron"), ("transformer", "diag")],
)
def test_a_g_prior_needs_no_groups(name: str, structure: str) -> None:
    """Its one factor is that of weights in units of their own curvature."""
    model, other, x, y = pair(name)
    first, before = variances(model, x, y, structure, pw.Prior.g_prior())
    second, after = variances(other, x, y, structure, pw.Prior.g_prior())
    assert apart(after, before) < 1e-6
    assert apart(second.prior.precision, first.prior.precision) < 1e-6


@pytest.mark.parametrize(("name", "structure"), [("batch norm", "full"), ("layer norm", "kron"), ("cnn", "diag")])
def test_at_the_end(name: str, structure: str) -> None:
    """One precision per tensor, tuned until nothing moves."""
    model, other, x, y = pair(name)
    first, before = variances(model, x, y, structure, pw.Prior.layerwise(), 60)
    second, after = variances(other, x, y, structure, pw.Prior.layerwise(), 60)
    assert first.trace is not None and first.trace.converged
    assert second.trace is not None and second.trace.converged
    assert apart(after, before) < 1e-6
    on = first.evidence().effective_dimensions > 1e-3
    own = torch.tensor([part in LAWS[name].own for part in first.space.names])
    expected = torch.where(own, FACTOR**-2, 1.0).to(first.prior.precision)
    assert apart((second.prior.precision / first.prior.precision)[on], expected[on]) < 1e-5


@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_every_channel_by_its_own_factor(structure: str) -> None:
    """One precision per unit makes that no matter too; one per tensor does not."""
    model, _, x, y = pair("batch norm")
    other = copy.deepcopy(model)
    factors = torch.tensor([0.2, 7.0, 1.0, 3.0, 0.5, 2.0], dtype=torch.float64, device=x.device)
    with torch.no_grad():
        linear, norm = other[0], other[1]
        linear.weight *= factors[:, None]
        linear.bias *= factors
        norm.running_mean *= factors
        norm.running_var.copy_(factors**2 * (norm.running_var + norm.eps) - norm.eps)
    assert torch.allclose(model(x), other(x), rtol=1e-10, atol=1e-10)
    first, before = variances(model, x, y, structure, pw.Prior.unitwise())
    second, after = variances(other, x, y, structure, pw.Prior.unitwise())
    assert apart(after, before) < 1e-6
    on = (first.evidence().effective_dimensions > 1e-3)[:12]
    ratio = (second.prior.precision / first.prior.precision)[:12]
    assert bool(on.any()) and apart(ratio[on], factors.cpu().pow(-2).repeat(2)[on].to(ratio)) < 1e-6
    _, before = variances(model, x, y, structure, pw.Prior.layerwise())
    _, after = variances(other, x, y, structure, pw.Prior.layerwise())
    assert apart(after, before) > 1e-3
