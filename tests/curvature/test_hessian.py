"""The Hessian of the energy as a full matrix, and products with every curvature."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, cut, fitted, names_of, normal, seeded
from peewit.curvature.kinds import NAMES
from peewit.runtime.random import Hashed
from tables import Table, curvature_of, moved, relative, table

EXACT = 1e-8
MATRICES = (
    "mlp",
    "mlp_regression",
    "conv2d_groups",
    "batch_norm2d",
    "layer_norm",
    "unused_layer",
    "tied_functional",
    "token_regression",
    "self_attention",
    "checkpoint",
    "gru",
    "embedding_padding",
    "bare_nonlinear",
    "ignored_labels",
    "segmentation",
)
PRODUCTS = (
    "mlp",
    "mlp_regression",
    "conv2d",
    "tied_gpt",
    "lstm",
    "train_mode",
    "checkpoint_reentrant",
    "ignored_labels_causal",
    "frozen_weight",
    "unused_layer",
    "embedding_sparse",
    "segmentation",
    "learned_temperature",
    "weight_norm",
)


def hessian(case: Table) -> torch.Tensor:
    """(D, D)."""
    return dense.hessian(case.model, case.x, case.y, case.case.likelihood, case.names, case.case.axis)


def drawn(case: Table, samples: int) -> list[torch.Tensor]:
    """The labels that the fixed seed draws."""
    f = dense.outputs(case.model, case.x)
    form = case.likelihood.form(f, case.y)
    targets = case.likelihood.targets(case.y, form)
    made = []
    for sample in range(samples):
        draws = Hashed(0x1A9, torch.arange(len(f)), form.positions, sample)
        labels = case.likelihood.sample(form.flatten(f), targets, draws)
        made.append(form.restore(labels) if labels.dim() == 3 else labels.reshape(case.y.shape))
    return made


@pytest.mark.parametrize("name", MATRICES)
def test_the_full_hessian(name: str) -> None:
    """Equal to second derivatives one weight at a time, whatever the batches."""
    case = table(name)
    exact = hessian(case)
    for data in ((moved(case.x), moved(case.y)), cut(case.x, case.y, [2, 3])):
        model = case.case.make()[0].to(DEVICE)
        la = pw.fit(model, data, case.likelihood, structure="full", curvature="hessian")
        index = case.index(la)
        assert relative(curvature_of(la), exact[index][:, index]) < EXACT
        assert la.N == 5


def empirical(case: Table) -> torch.Tensor:
    """(D, D)."""
    return dense.empirical(case.model, case.x, case.y, case.case.likelihood, case.names, case.case.axis)


def fisher(case: Table, samples: int = 1) -> torch.Tensor:
    """(D, D)."""
    settings = case.case.likelihood, case.names, case.case.axis
    return dense.fisher(case.model, case.x, drawn(case, samples), *settings)


REFERENCES = {"ggn": lambda case: case.ggn, "fisher": fisher, "empirical": empirical, "hessian": hessian}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("curvature", [*(each for each in NAMES if each != "auto"), pw.MonteCarlo(3)], ids=str)
def test_products(name: str, curvature: Any) -> None:
    """Equal to products with the dense matrices, for one vector and for several, whatever the batches."""
    case = table(name)
    exact = REFERENCES[curvature](case) if isinstance(curvature, str) else fisher(case, curvature.samples)
    v = torch.randn(2, 2, len(exact), generator=seeded(1), dtype=torch.float64)
    for data in ((moved(case.x), moved(case.y)), cut(case.x, case.y, [2, 3])):
        model = case.case.make()[0].to(DEVICE)
        products = pw.products(model, data, case.likelihood, curvature=curvature)
        assert relative(products.mv(moved(v)), v @ exact) < EXACT
        assert relative(products.mv(moved(v[0, 0])), v[0, 0] @ exact) < EXACT


def test_products_of_selected_weights() -> None:
    """Names and masks take rows and columns out of the matrix."""
    case = table("mlp")
    model = case.case.make()[0].to(DEVICE)
    data = moved(case.x), moved(case.y)
    mask = torch.rand(len(case.ggn), generator=seeded(2)) < 0.4
    last = torch.zeros(len(case.ggn), dtype=torch.bool)
    last[-18:] = True
    for weights, chosen in ((mask, mask), ("last_layer", last)):
        for curvature, exact in (("ggn", case.ggn), ("hessian", hessian(case))):
            v = torch.randn(int(chosen.sum()), generator=seeded(3), dtype=torch.float64)
            made = pw.products(model, data, "classification", weights=weights, curvature=curvature).mv(moved(v))
            assert relative(made, exact[chosen][:, chosen] @ v) < EXACT
    with pytest.raises(ValueError, match=rf"\(3,\) was given; expected \(\.\.\., {len(case.ggn)}\)"):
        pw.products(model, data, "classification").mv(torch.ones(3))


def test_an_indefinite_hessian_is_an_error_with_its_smallest_eigenvalue() -> None:
    """The fit keeps the matrix as it is; what needs it to be positive definite says by how much it is not."""
    case = table("bare_nonlinear")
    exact = hessian(case)
    smallest = float(torch.linalg.eigvalsh(exact)[0])
    assert smallest < -0.1
    la = case.fit("full", "hessian", prior=0.01)
    for ask in (la.log_evidence, lambda: la.functional(moved(case.x)), lambda: la.sample(1), la.precision.variance):
        with pytest.raises(ValueError, match=r"not positive definite.*smallest eigenvalue.*clip=True") as caught:
            ask()
        given = float(re.search(r"smallest eigenvalue is (-[\d.e+-]+)\.", str(caught.value)).group(1))
        assert abs(given - (smallest + 0.01)) < 1e-2 * abs(smallest)
    # A prior that makes it definite is enough.
    delta = 0.5 - smallest
    made = la.with_prior(delta).precision.logdet()
    assert relative(made, torch.logdet(exact + delta * torch.eye(len(exact), dtype=torch.float64))) < EXACT


def test_clipped_eigenvalues() -> None:
    """`clip=True` drops the negative part, and every question has an answer."""
    case = table("bare_nonlinear")
    values, vectors = torch.linalg.eigh(hessian(case))
    exact = (vectors * values.clamp(min=0)) @ vectors.T
    la = case.fit("full", pw.Hessian(clip=True), prior=0.3)
    identity = torch.eye(la.D, dtype=torch.float64)
    assert relative(la.precision.mv(moved(identity)).cpu() - 0.3 * identity, exact) < EXACT
    covariance = torch.linalg.inv(exact + 0.3 * identity)
    assert relative(la.functional(moved(case.x)).cov, dense.functional_covariance(case.jacobian, covariance)) < 1e-7
    assert bool(torch.isfinite(la.log_evidence()))


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block"])
def test_other_structures_refuse_the_hessian(structure: str) -> None:
    """With what to use instead."""
    with pytest.raises(ValueError, match=r"curvature='hessian'.*structure='full'.*curvature='ggn'"):
        table("mlp").fit(structure, "hessian")


def test_the_noise_scales_the_hessian_once() -> None:
    """`H / sigma^2`, as for the exact curvature; a linear model's Hessian is its curvature."""
    model = built(torch.nn.Linear(3, 2))
    x, y = normal(5, 3), normal(5, 2, seed=2)
    la = fitted(model, x, y, pw.Gaussian(noise=0.5), "full", curvature="hessian")
    assert relative(curvature_of(la), dense.ggn(model, x, y, "regression", names_of(model)) / 0.25) < EXACT
    masked = torch.rand(8, generator=seeded(1)) < 0.5
    model, y = built(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())), classes(2, 5)
    la = fitted(model, x, y, "classification", "full", curvature="hessian", weights=masked)
    exact = dense.hessian(model, x, y, "classification", names_of(model))
    assert relative(curvature_of(la), exact[masked][:, masked]) < EXACT


def test_products_refuse_to_clip() -> None:
    """They hold no matrix; a fit clips."""
    model, x = built(torch.nn.Linear(2, 2)), normal(4, 2)
    with pytest.raises(pw.PeewitError, match=r"Hessian\(clip=True\) in products.*use Hessian\(\) here, or fit"):
        pw.products(model, (x, classes(2, 4)), "classification", curvature=pw.Hessian(clip=True))


def test_products_draw_labels_from_a_generator() -> None:
    """The same generator gives the same labels, another one others; a fixed seed is the default."""
    model, data = built(torch.nn.Linear(2, 2)), (normal(9, 2), classes(2, 9))
    v = torch.ones(6, dtype=torch.float64)
    made = [
        pw.products(model, data, "classification", curvature="fisher", generator=generator).mv(v)
        for generator in (seeded(0), seeded(0), seeded(1), None, None)
    ]
    assert torch.equal(made[0], made[1]) and torch.equal(made[3], made[4])
    assert not torch.equal(made[0], made[2]) and not torch.equal(made[0], made[3])


class Off(nn.Module):
    """A weight below a unit that is off for the first examples, and a function that torch differentiates once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 1).double(), nn.Linear(1, 2).double()
        self.first.weight.data.fill_(1.0)
        self.first.bias.data.fill_(0.0)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1) -> (B, 2)."""
        return self.last(torch.relu(Once.apply(self.first(x))))


class Once(torch.autograd.Function):
    """A cube."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        """z^3."""
        ctx.save_for_backward(z)
        return z**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """3 z^2."""
        return grad * 3 * ctx.saved_tensors[0].square()


def test_products_are_tried_on_examples_that_reach_every_weight() -> None:
    """The first examples have no gradient at one of them, and would not show that second derivatives are wrong."""
    torch.manual_seed(0)
    model, y = Off(), normal(8, 2)
    x = torch.linspace(-2.0, 2.0, 8, dtype=torch.float64)[:, None]
    rows = torch.stack(
        [
            torch.cat([g.flatten() for g in torch.autograd.grad(out, list(model.parameters()), retain_graph=True)])
            for out in model(x).flatten()
        ]
    )
    found = pw.products(model, (x, y), "regression").mv(torch.eye(rows.shape[1], dtype=torch.float64))
    torch.testing.assert_close(found, rows.T @ rows)


class AddsItsSquares(nn.Module):
    """A layer that adds the squares of its weight for large inputs: the generic rule is needed late."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x)
        return made + self.inner.weight.square().sum() if float(x.detach().max()) > 100 else made


def test_what_a_later_batch_teaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that counts examples begins again, as any other."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", 1)
    x, y = normal(6, 2), classes(3, 6)
    model = built(AddsItsSquares()).to(DEVICE)
    data = [(moved(x), moved(y)), (moved(200 * x.abs()), moved(y))]
    la = pw.fit(model, data, "classification", structure="full", curvature=pw.Hessian(clip=True))
    assert la.N == 12 and la.coverage()["inner.weight"].rule == "generic"


def test_products_show_what_is_for_users() -> None:
    """What they were made with, under the same names."""
    made = pw.products(built(torch.nn.Linear(2, 2)), (normal(4, 2), classes(2, 4)), "classification", curvature="ggn")
    assert [name for name in dir(made) if name[0] != "_"] == ["curvature", "likelihood", "model", "mv", "space"]
    assert made.curvature == pw.GGN() and made.likelihood == pw.Categorical()
