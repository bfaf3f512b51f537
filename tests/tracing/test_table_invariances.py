"""Every network of the table again: alone and in its batch, in other memory, in other rounding, probe by probe."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from peewit.curvature.structures import NAMES as STRUCTURES
from peewit.jacobians.output_layer import identity_probes
from peewit.network.isolation import isolated
from peewit.runtime.memory import Budget
from peewit.tracing.tape import Tape
from peewit.tracing.tracer import Tracer
from random_grammar import stored_transposed
from tables import NAMES, Table, curvature_of, moved, relative, table, tolerance

EVERY = pytest.mark.parametrize("name", NAMES)
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
# Sums over examples in another order, and gradients in other strides.
EXACT = 1e-8
# Of float32 networks: rounding of the passes, times how far the largest and the smallest numbers of a matrix differ.
SHORT = 2e-3


def some(x: Any, chosen: slice) -> Any:
    """Some examples of inputs."""
    if isinstance(x, dict):
        return {key: value[chosen] for key, value in x.items()}
    return tuple(value[chosen] for value in x) if isinstance(x, tuple) else x[chosen]


def fit(case: Table, model: nn.Module, structure: Any) -> pw.Laplace:
    """Fit a network of the case in another memory layout, or in another dtype."""
    data = tuple(cast(moved(each), next(model.parameters()).dtype) for each in (case.x, case.y))
    return pw.fit(model.to(DEVICE), data, case.likelihood, structure=structure, curvature="ggn")


def cast(x: Any, dtype: torch.dtype) -> Any:
    """Numbers in a dtype."""
    if isinstance(x, dict):
        return {key: cast(value, dtype) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(cast(value, dtype) for value in x)
    return x.to(dtype) if x.is_floating_point() else x


@EVERY
@pytest.mark.parametrize("structure", ["kron", "full"])
def test_an_input_alone_is_as_in_its_batch(name: str, structure: str) -> None:
    """Mean and covariance of one input do not depend on which others are asked about with it."""
    case = table(name)
    la, x = case.fit(structure), moved(case.x)
    together = la.functional(x)
    for n in (0, 2, len(together.mean) - 1):
        alone = la.functional(some(x, slice(n, n + 1)))
        assert relative(alone.mean[0], together.mean[n]) < tolerance(name, EXACT)
        assert relative(alone.cov[0], together.cov[n]) < tolerance(name, EXACT)


def in_channels_last(model: nn.Module) -> nn.Module:
    """The network as `.to(memory_format=)` leaves it, with images or with volumes."""
    sizes = {each.dim() for each in model.parameters()}
    for size, form in FORMATS.items():
        if size in sizes:
            model = model.to(memory_format=form)
    return model


@EVERY
@pytest.mark.parametrize("layout", [stored_transposed, in_channels_last])
def test_a_memory_layout_changes_no_posterior(name: str, layout: Any) -> None:
    """The same values in other strides: the same weights, rules and matrices in every structure."""
    case = table(name)
    other = layout(copy.deepcopy(case.model))
    strides = [each.stride() for each in case.model.parameters()]
    if [each.stride() for each in other.parameters()] == strides:
        pytest.skip("nothing is stored in another way")
    with warnings.catch_warnings():
        # On a GPU torch packs the weights of recurrent layers again, and says so.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
        for structure in STRUCTURES:
            plain, turned = case.fit(structure), fit(case, copy.deepcopy(other), structure)
            assert turned.space.names == plain.space.names
            assert turned.coverage().rows == plain.coverage().rows
            assert relative(turned.weights, plain.weights) == 0
            found, expected = curvature_of(turned), curvature_of(plain)
            if structure == "ekfac":  # eigenvectors of equal eigenvalues are not unique: traces do not depend on them
                places = plain.space.slices().values()
                found, expected = (
                    torch.stack([each[place, place].trace() for place in places]) for each in (found, expected)
                )
            assert relative(found, expected) < tolerance(name, EXACT)


def recorded(case: Table) -> Tape:
    """A recorded pass over the inputs of a case, all trainable weights selected."""
    model = case.case.make()[0].to(DEVICE)
    parameters = [model.get_parameter(name) for name in case.names]
    with isolated(model, parameters):
        return Tracer(model, tuple(case.names), Budget(10**9)).trace(moved(case.x))


def rows(tape: Tape, probes: Tensor) -> dict[str, Tensor]:
    """(K, B, P) by name: the gradients of probes (K, B, ...), pulled back all at once."""
    made = {
        name: torch.zeros(*probes.shape[:2], each.numel(), dtype=torch.float64)
        for name, each in tape.parameters.items()
    }
    with isolated(tape.model, tape.parameters.values()):
        for part, value in tape.pull(probes).items():
            made[part.name][:, :, part.start : part.stop] += value.rows(slice(0, tape.examples)).cpu()
    return made


@EVERY
def test_the_recording_of_every_weight_is_its_jacobian(name: str) -> None:
    """Rows of each weight against one backward pass per output number and example, in a direction of no symmetry."""
    case = table(name)
    tape = recorded(case)
    found = rows(tape, identity_probes(tape.output))
    start = 0
    for weight in case.names:
        expected = case.jacobian[:, :, start : start + tape.parameters[weight].numel()]
        # A weight without effect, a bias before a norm, say, has rounding errors of the others' size.
        error = float((found[weight].transpose(0, 1) - expected).abs().max() / case.jacobian.abs().max())
        assert error < tolerance(name, EXACT), weight
        start += expected.shape[-1]


@EVERY
def test_probes_at_once_are_plain_backward_passes(name: str) -> None:
    """Gradients of all probes, summed over the examples, against one plain backward pass per probe."""
    case = table(name)
    tape = recorded(case)
    generator = torch.Generator().manual_seed(7)
    probes = torch.rand((4, *tape.output.shape), generator=generator, dtype=torch.float64).to(tape.output) - 0.5
    found = rows(tape, probes)
    model = dense.prepared(case.model)
    parameters = dense.selected(model, list(found))
    with dense.plain():
        output = dense.apply(model, case.x)
    for k, probe in enumerate(probes.cpu()):
        plain = torch.autograd.grad(output, parameters, probe, retain_graph=True, allow_unused=True)
        for (weight, each), gradient in zip(found.items(), plain, strict=True):
            expected = torch.zeros(each.shape[-1], dtype=torch.float64)
            if gradient is not None:
                expected = gradient.detach().to_dense().flatten().cpu()
            error = float((each[k].sum(0) - expected).abs().max() / case.jacobian.abs().max())
            assert error < tolerance(name, EXACT), weight


@EVERY
def test_products_are_the_matrix_of_the_fit(name: str) -> None:
    """Products with every unit vector: symmetric, the dense curvature, and the matrix inside a full posterior."""
    case = table(name)
    model = case.case.make()[0].to(DEVICE)
    products = pw.products(model, (moved(case.x), moved(case.y)), case.likelihood)
    found = products.mv(torch.eye(products.space.size, dtype=torch.float64, device=DEVICE)).cpu()
    assert relative(found, found.T) < tolerance(name, EXACT)
    index = case.index(products)
    assert relative(found, case.ggn[index][:, index]) < tolerance(name, EXACT)
    la = case.fit("full")
    inside = torch.isin(index, case.index(la))
    assert relative(found[inside][:, inside], curvature_of(la)) < tolerance(name, EXACT)


@EVERY
@pytest.mark.parametrize("structure", ["kron", "full"])
def test_float32_is_float64_up_to_rounding(name: str, structure: str) -> None:
    """The same network with half the digits: matrices and covariances of outputs."""
    case = table(name)
    long = case.fit(structure)
    short = fit(case, case.case.make(dtype=torch.float32)[0], structure)
    assert short.space.names == long.space.names
    assert relative(curvature_of(short).double(), curvature_of(long)) < SHORT
    x = moved(case.x)
    expected = long.functional(x).cov
    found = short.with_arithmetic("float32").functional(cast(x, torch.float32)).cov
    assert relative(found.double(), expected) < SHORT


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag"])
def test_float32_of_unstandardised_inputs(structure: str) -> None:
    """A year, kelvin and kilopascal beside a number around zero: covariances are those of the float64 network."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.rand((60, 4), generator=generator, dtype=torch.float64) - 0.5
    x = raw * torch.tensor([20.0, 17.0, 1.0, 3.5], dtype=torch.float64)
    x = x + torch.tensor([2010.0, 290.0, 101.325, 0.0], dtype=torch.float64)
    y = torch.sin((x[:, :1] - 2010) / 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5)
        model[0].weight.mul_(0.01)
        model[0].bias.copy_(-(model[0].weight @ x.mean(0)) + model[0].bias)
    found = {}
    for dtype in (torch.float32, torch.float64):
        network = copy.deepcopy(model).to(DEVICE, dtype)
        la = pw.fit(network, (x.to(DEVICE, dtype), y.to(DEVICE, dtype)), pw.Gaussian(0.1), structure=structure)
        found[dtype] = la.with_arithmetic("float32").functional(x[:5].to(DEVICE, dtype)).cov.double()
    assert relative(found[torch.float32], found[torch.float64]) < 0.05
