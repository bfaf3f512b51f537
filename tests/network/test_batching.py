"""How the data is cut into batches does not matter, to any curvature or structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, cut, fitted, names_of, normal
from networks import Network
from tables import curvature_of, moved, relative, table

EXACT = 1e-9
BATCHED = (
    "mlp",
    "ignored_labels",
    "ignored_labels_causal",
    "ignored_examples",
    "time_major",
    "time_major_flat",
    "windows",
    "gpt_positions",
    "positions_equal_batch",
    "self_attention_time_major",
    "lstm",
)


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("structure", ["kron", "ekfac", "full"])
def test_batches_do_not_matter(name: str, structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any cut into batches gives the curvature of one batch, with exact and with sampled labels."""
    case = table(name)
    for kind in (pw.GGN(), pw.MonteCarlo(2)):
        whole = case.fit(structure, kind)
        expected = curvature_of(whole)
        if structure == "full" and isinstance(kind, pw.GGN):
            index = case.index(whole)
            assert relative(expected, case.ggn[index][:, index]) < EXACT
        for sizes in ([1] * 5, [3, 2], [1, 4], [2, 2, 1]):
            for merge in (2048, 1):  # small batches are put together or not
                monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", merge)
                model = case.case.make()[0].to(DEVICE)
                data = cut(case.x, case.y, sizes)
                la = pw.fit(model, data, case.likelihood, structure=structure, curvature=kind)
                assert la.N == 5
                assert la.space.names == whole.space.names
                assert relative(curvature_of(la), expected) < 1e-8, (kind, sizes, merge)
                assert relative(la.log_evidence(), whole.log_evidence().cpu()) < 1e-9


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
@pytest.mark.parametrize("name", ["experts", "experts_tokens"])
def test_routed_weights_have_one_block_however_batches_are_cut(
    name: str, structure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that see no example of a batch, or the rule of another layer there, are still one block."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", 1)
    case = table(name)
    for sizes in ([5], [1] * 5, [3, 2], [1, 4]):
        model = case.case.make()[0].to(DEVICE)
        la = pw.fit(model, cut(case.x, case.y, sizes), case.likelihood, structure=structure, curvature="ggn")
        index = case.index(la)
        made = curvature_of(la)
        assert made.shape == (la.D, la.D)
        assert relative(made, made.T) < EXACT
        assert float(torch.linalg.eigvalsh(made)[0]) > -1e-9
        cov = la.functional(moved(case.x), joint=True).cov.reshape(15, 15)
        covariance = torch.linalg.inv(made + torch.eye(la.D, dtype=torch.float64))
        assert relative(cov, dense.joint_functional_covariance(case.jacobian[:, :, index], covariance)) < 1e-8
        exact = case.ggn[index][:, index]
        if structure == "full":
            assert relative(made, exact) < EXACT
        if structure == "diag":
            assert relative(made.diagonal(), exact.diagonal()) < EXACT


class Blocked(torch.autograd.Function):
    """The identity, which hands no gradient back."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None


@pytest.mark.parametrize("structure", ["kron", "full"])
@pytest.mark.parametrize("stop", [Tensor.detach, Blocked.apply])
def test_weights_without_a_gradient_whose_rows_are_all_equal(
    stop: Callable[[Tensor], Tensor], structure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many positions as examples are looked at, or not: what plain autograd finds no gradient for is left out."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return net.b(torch.tanh(x + stop(net.a(0 * x))).flatten(1))

    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", 1)
    model = built(Network(forward, a=nn.Linear(2, 2), b=nn.Linear(8, 3)))
    x, y = normal(6, 4, 2), classes(3, 6)
    found = torch.autograd.grad(model(x).sum(), [*model.parameters()], allow_unused=True)
    used = [name for name, each in zip(names_of(model), found, strict=True) if each is not None]
    assert used == ["b.weight", "b.bias"]
    exact = dense.ggn(model, x, y, "classification", used)
    whole = fitted(model, x, y, "classification", structure)
    expected = [(row.name, row.rule, row.approximation) for row in whole.coverage()]
    assert expected[:2] == [("a.weight", "unused", "left out"), ("a.bias", "unused", "left out")]
    for sizes in ([6], [2, 4], [4, 2], [1, 2, 3], [1] * 6):
        la = pw.fit(model.to(DEVICE), cut(x, y, sizes), "classification", structure=structure, curvature="ggn")
        assert [*la.space.names] == used and la.D == 27
        assert [(row.name, row.rule, row.approximation) for row in la.coverage()] == expected
        assert relative(curvature_of(la), exact if structure == "full" else curvature_of(whole)) < 1e-9
        assert relative(la.log_evidence(), whole.log_evidence().cpu()) < 1e-9
