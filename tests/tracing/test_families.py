"""Real architectures with random weights: one call fits them, and covariances equal the explicit computation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from families import FAMILIES

EVERY = pytest.mark.parametrize("name", FAMILIES)


def made(name: str, examples: int = 3) -> tuple[nn.Module, Tensor, Tensor]:
    """A family in float64 on the device, handed over in training mode, with inputs and targets."""
    family = FAMILIES[name]
    model = family.model().double().to(DEVICE).train()
    x, y = family.batch(examples)
    x, y = (each.double() if each.is_floating_point() else each for each in (x, y))
    return model, x.to(DEVICE), y.to(DEVICE)


def gradient_rows(model: nn.Module, x: Tensor, names: tuple[str, ...], vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (F,) of one input in evaluation mode, and (R, D): `vectors^T df/dweights`, a backward pass each."""
    model.eval()
    parameters = [model.get_parameter(name) for name in names]
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        output = model(x).flatten()
        rows = []
        for vector in vectors:
            found = torch.autograd.grad(output @ vector, parameters, retain_graph=True, allow_unused=True)
            filled = [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]
            rows.append(torch.cat([each.flatten() for each in filled]))
    model.train()
    return output.detach(), torch.stack(rows)


@EVERY
def test_families_fit_with_kron(name: str) -> None:
    """Every parameter is covered, and projected covariances equal `J P^-1 J^T` with explicit gradients."""
    model, x, y = made(name)
    la = pw.fit(model, (x, y), FAMILIES[name].likelihood, structure="kron", prior=2.0)
    assert all(module.training for module in model.modules())
    assert len(x) == la.N
    assert sum(parameter.numel() for parameter in model.parameters()) == la.D
    coverage = la.coverage()
    assert [row.name for row in coverage] == [parameter for parameter, _ in model.named_parameters()]
    for row in coverage:
        assert row.rule not in ("unused", "not selected") and row.approximation
        if len(row.shape) == 4:  # every convolution has Kronecker factors
            assert row.approximation.startswith("Kronecker"), row

    # Jointly over two inputs: J of all outputs, projected on random vectors.
    pair = x[:2]
    joint = la.functional(pair, joint=True)
    outputs = joint.mean[0].numel()
    cov = joint.cov.reshape(2 * outputs, 2 * outputs)
    assert bool(torch.isfinite(cov).all())
    assert float((cov - cov.T).abs().max()) <= 1e-10 * float(cov.abs().max())
    values = torch.linalg.eigvalsh(cov)
    assert float(values[0]) > -1e-10 * float(values[-1])
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(2, min(outputs, 4), outputs, generator=generator, dtype=torch.float64).to(DEVICE)
    found = [gradient_rows(model, pair[n : n + 1], la.space.names, vectors[n]) for n in range(2)]
    assert torch.allclose(torch.stack([mean for mean, _ in found]), joint.mean.reshape(2, -1), atol=1e-8)
    rows = torch.cat([each for _, each in found])
    expected = rows @ la.precision.solve(rows).T
    wide = torch.block_diag(*vectors)
    projected = wide @ cov @ wide.T
    assert float((projected - expected).abs().max() / expected.abs().max()) < 1e-6

    # Per input, by the path that does not keep pairs.
    variance = la.functional(pair, variance_only=True).cov.reshape(-1)
    assert float((variance - cov.diagonal()).abs().max() / variance.max()) < 1e-6
    marginal = la.functional(pair).cov
    assert bool(torch.isfinite(marginal).all()) and marginal.shape[-1] == marginal.shape[-2]


@EVERY
def test_families_predict(name: str) -> None:
    """Evidence, samples and predictions are finite; probabilities sum to one."""
    model, x, y = made(name)
    likelihood = FAMILIES[name].likelihood
    la = pw.fit(model, [(x[:1], y[:1]), (x[1:], y[1:])], likelihood)
    assert bool(torch.isfinite(la.log_evidence()))
    generator = torch.Generator().manual_seed(1)
    samples = la.functional_samples(x[:2], 2, generator=generator)
    assert samples.shape[0] == 2 and bool(torch.isfinite(samples).all())
    made_of = la.predict(x[:2])
    assert bool((made_of.epistemic > 0).all())
    if likelihood == "classification":
        axis = 1 if made_of.probs.dim() == 4 else -1
        assert torch.allclose(made_of.probs.sum(axis), torch.ones((), dtype=torch.float64, device=DEVICE))


@pytest.mark.parametrize("name", ["resnet18_cifar", "vit", "gpt", "lstm_classifier"])
def test_products_see_the_curvature_of_families(name: str) -> None:
    """`v^T H v` of the exact curvature equals the squared forward derivatives of the outputs along v, weighted."""
    model, x, y = made(name, 2)
    likelihood = FAMILIES[name].likelihood
    products = pw.products(model, (x, y), likelihood)
    v = torch.randn(products.space.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(DEVICE)
    v = v / v.norm()
    parameters = [model.get_parameter(name) for name in products.space.names]
    model.eval()
    step, outputs = 1e-5, []
    for sign in (1, -1):  # central differences of the outputs
        start = 0
        for parameter in parameters:
            parameter.data.add_(sign * step * v[start : start + parameter.numel()].reshape(parameter.shape))
            start += parameter.numel()
        with torch.no_grad():
            outputs.append(model(x))
        start = 0
        for parameter in parameters:
            parameter.data.sub_(sign * step * v[start : start + parameter.numel()].reshape(parameter.shape))
            start += parameter.numel()
    push = (outputs[0] - outputs[1]) / (2 * step)
    if likelihood == "classification":
        p = ((outputs[0] + outputs[1]) / 2).softmax(-1)
        expected = ((p * push.square()).sum(-1) - (p * push).sum(-1).square()).sum()
    else:
        expected = push.square().sum()
    found = v @ products.mv(v)
    assert abs(float(found - expected)) < 1e-5 * float(expected)
