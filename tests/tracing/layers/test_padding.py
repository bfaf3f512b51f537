"""Rows of padding tokens have no gradient and never train: they are certain in samples and in every prediction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw
from environment import DEVICE
from fitting import built, classes, covered, fitted, normal, seeded
from peewit.tracing.layers.embedding import EMBEDDING
from tables import curvature_of, moved, relative

PADDING = 2


class Reader(nn.Module):
    """Tokens (N, 3) to (N, 2), linear in its table: at drawn weights it is the linearised network."""

    def __init__(self, bag: bool = False, tied: bool = False) -> None:
        super().__init__()
        make: Any = nn.EmbeddingBag if bag else nn.Embedding
        self.table = make(6, 4, padding_idx=PADDING)
        self.head = nn.Linear(4, 2)
        self.bag, self.tied = bag, tied

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens) if self.bag else self.table(tokens).sum(1)
        return F.linear(hidden, self.table.weight) if self.tied else self.head(hidden)


def network(**options: Any) -> tuple[nn.Module, Tensor, Tensor]:
    """With a padding row that is not zero, so that it would show."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = built(Reader(**options))
    with torch.no_grad():
        model.table.weight[PADDING] = 0.5
    tokens = classes(6, 12, 3)
    tokens[:4, 2] = PADDING
    return model, tokens, normal(12, 6 if options.get("tied") else 2)


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
@pytest.mark.parametrize("bag", [False, True])
def test_samples_hold_the_padding_row(structure: str, bag: bool) -> None:
    """All other weights vary as the precision says; a mask that has the row does not change that."""
    model, x, y = network(bag=bag)
    la = fitted(model, x, y, "regression", structure)
    drawn = la.sample(200, seeded(0)).cpu()
    table = drawn[:, :24].reshape(200, 6, 4)
    assert bool((table[:, PADDING] == 0.5).all())
    others = torch.ones(la.D, dtype=torch.bool)
    others[4 * PADDING : 4 * (PADDING + 1)] = False
    covariance = la.precision.solve(torch.eye(la.D).to(la.weights)).cpu()[others][:, others]
    assert covered(drawn[:, others], covariance)


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_predictions_at_drawn_weights_are_those_of_the_linear_network(structure: str) -> None:
    """An input of nothing but padding is certain by every method, and others have the same covariance by each."""
    model, x, y = network()
    la = fitted(model, x, y, "regression", structure, weights=["table"])
    asked = torch.tensor([[PADDING] * 3, [PADDING, 1, 3], [0, 5, PADDING]])
    exact = la.functional(moved(asked))
    assert bool((exact.cov[0] == 0).all())
    sampled = la.predict(moved(asked), method="sampled", samples=3000)
    assert bool((sampled.epistemic[0] < 1e-12).all())
    assert relative(sampled.epistemic[1:], exact.cov.diagonal(dim1=1, dim2=2)[1:].cpu()) < 0.15
    drawn = la.functional_samples(moved(asked), 50, seeded(1))
    assert torch.allclose(drawn[:, 0], exact.mean[0].expand(50, 2))


def test_a_table_that_is_also_a_head_has_no_certain_row() -> None:
    """The padding row is a row of the head, and trains there."""
    model, x, y = network(tied=True)
    la = fitted(model, x, y, "regression", "full", weights=["table"])
    drawn = la.sample(200, seeded(0)).cpu()
    assert covered(drawn, la.precision.solve(torch.eye(la.D).to(la.weights)).cpu())


def test_a_mask_that_has_part_of_the_padding_row() -> None:
    """Its elements are certain all the same."""
    model, x, y = network()
    mask = torch.zeros(6, 4, dtype=torch.bool)
    mask[1:4, :2] = True
    la = fitted(model, x, y, "regression", "full", weights={"table.weight": mask})
    varies = la.sample(50, seeded(0)).std(0) > 0
    assert varies.tolist() == [True, True, False, False, True, True]


def test_files_and_updates_keep_it(tmp_path: Any) -> None:
    """What is certain follows from the network and the curvature."""
    model, x, y = network()
    la = pw.fit(model.to(DEVICE), (moved(x), moved(y)), "regression")
    la.save(tmp_path / "posterior")
    for other in (pw.load(tmp_path / "posterior", model), la.update((moved(x), moved(y)))):
        assert bool((other.sample(3)[:, 4 * PADDING : 4 * (PADDING + 1)] == 0.5).all())


@pytest.mark.parametrize("padding", [None, 1, -2])
def test_padding_may_be_counted_from_the_end(padding: int | None) -> None:
    """Rows of a table by torch's gradients; tokens are seen as one-hot vectors."""
    torch.manual_seed(0)

    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Parameter(torch.randn(4, 3)), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.nn.functional.embedding(x, self.table, padding).tanh().mean(1))

    model = Looked().double().to(DEVICE)
    x, y = torch.tensor([[0, 1, 2], [3, 3, 1], [2, 2, 0]], device=DEVICE), torch.tensor([0, 1, 0], device=DEVICE)
    la = pw.fit(model, (x, y), "classification", structure="full", prior=1.0)
    assert la.coverage()["table"].rule == "embedding" and not la.state.knowledge.corrections
    jacobian = []
    for output in model(x):
        grads = [torch.autograd.grad(each, list(model.parameters()), retain_graph=True) for each in output]
        jacobian.append(torch.stack([torch.cat([part.flatten() for part in grad]) for grad in grads]))
    rows = torch.stack(jacobian)
    shares = model(x).detach().softmax(-1)
    hessian = torch.diag_embed(shares) - shares[:, :, None] * shares[:, None, :]
    assert relative(curvature_of(la), torch.einsum("ncd,nck,nke->de", rows, hessian, rows)) < 1e-8
    weight: Any = SimpleNamespace(parameter=model.table, part=None)
    use: Any = SimpleNamespace(views={"weight": weight}, options=None)
    (made,) = EMBEDDING.contributions(use, (x,), torch.randn(1, 3, 3, 3, device=DEVICE))
    seen = made.value.acts(slice(1, 3))
    assert torch.equal(seen, torch.eye(4, dtype=torch.long, device=DEVICE)[x[1:3]][:, None])
