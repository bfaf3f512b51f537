"""Weights applied to rows that the data chooses: whose each row is, in every batch, and what follows from it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference
import reference_dense as dense
from environment import DEVICE
from fitting import cut
from networks import Network, parameter
from peewit.tracing import routing
from peewit.tracing.layers.examples import OwnedRows
from tables import curvature_of, moved, relative, table

ROUTED = (
    "experts",
    "experts_tokens",
    "switch_masks",
    "top_two",
    "dead_rows",
    "first_token",
    "sorted_experts",
    "routed_ignoring",
    "by_length",
)
NORMS = ("norm", "norms.0", "norms.1", "norms.2")
NOT_LINEAR = {"bias", *(f"{name}.{each}" for name in NORMS for each in ("weight", "bias"))}


@pytest.mark.parametrize("name", ROUTED)
def test_routed_weights_have_the_rule_of_their_layer(name: str) -> None:
    """None takes the generic rule, and the comparison with plain reverse mode was made."""
    la = table(name).fit("kron")
    rules = {row.name: row.rule for row in la.coverage()}
    assert {rule for weight, rule in rules.items() if weight not in NOT_LINEAR} == {"linear"}
    assert "generic" not in rules.values()
    assert "agree with plain reverse mode" in la.state.knowledge.words()
    assert not la.state.knowledge.generic
    assert not la.state.knowledge.corrections


@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize("name", ROUTED)
def test_batches_do_not_matter_to_factors(name: str, approx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kronecker factors equal loops however the data is cut, examples alone included."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", 1)
    case = table(name)
    for sizes in ([1] * 5, [1, 4]):
        model = case.case.make()[0].to(DEVICE)
        la = pw.fit(model, cut(case.x, case.y, sizes), case.likelihood, structure=pw.Kron(approx), curvature="ggn")
        index = case.index(la)
        assert relative(curvature_of(la), case.kron(approx=approx)[index][:, index]) < 1e-8, sizes


def routed_by_sign() -> nn.Module:
    """Tokens take one of two matrices by the sign of their first number, (B, T, 2) to (B, 2)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        mixed = torch.zeros_like(x)
        for number, mask in enumerate((x[..., 0] < 0, x[..., 0] >= 0)):
            mixed[mask] = torch.tanh(x[mask] @ self.weight[number])
        return mixed.sum(1) @ self.head

    torch.manual_seed(0)
    return Network(forward, weight=parameter(2, 2, 2), head=parameter(2, 2)).double()


def tokens(signs: list[list[int]], seed: int = 0) -> Tensor:
    """(B, T, 2) with these signs of the first numbers."""
    made = torch.rand(len(signs), len(signs[0]), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    made[..., 0] = (0.1 + made[..., 0]) * torch.tensor(signs, dtype=torch.float64)
    return made


def exact(model: nn.Module, x: Tensor, y: Tensor, approx: str = "expand") -> Tensor:
    """The dense Kronecker curvature of a regression."""
    names = [name for name, _ in model.named_parameters()]
    return reference.kron(model, x, y, "regression", names, approx=approx)


def fitted(x: Tensor, sizes: list[int], structure: Any = "kron") -> tuple[nn.Module, pw.Laplace, Tensor]:
    """The network, a fit of it to some batches, and the targets."""
    model, y = routed_by_sign(), torch.zeros(len(x), 2, dtype=torch.float64)
    data = cut(moved(x), moved(y), sizes)
    return model, pw.fit(routed_by_sign().to(DEVICE), data, pw.Gaussian(), structure=structure, curvature="ggn"), y


def test_as_many_rows_as_before_and_other_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that looked as if an axis held their examples, until a batch has the same number, of others."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", 1)
    even = [[1, -1]] * 4
    for later in list(itertools.permutations([[1, 1], [-1, -1], [1, -1], [-1, 1]]))[::4]:
        x = tokens([*even, *later])
        model, la, y = fitted(x, [4, 4], "full")
        assert {row.rule for row in la.coverage()} == {"linear"}
        names = ["weight", "head"]
        assert relative(curvature_of(la), dense.ggn(model, x, y, "regression", names)) < 1e-9
        _, la, _ = fitted(x, [4, 4], pw.Kron("reduce"))
        assert relative(curvature_of(la), exact(model, x, y, "reduce")) < 1e-9


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full"])
@pytest.mark.parametrize("sizes", [[3, 2], [1] * 5, [5]])
def test_an_expert_without_tokens(structure: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first batch, in a later one, or in all: its weights keep the prior, and count where inputs go to it."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", 1)
    for signs in ([[1, 1]] * 3 + [[-1, 1]] * 2, [[-1, 1]] * 3 + [[1, 1]] * 2, [[1, 1]] * 5, [[-1, -1]] * 5):
        x = tokens(signs)
        model, la, y = fitted(x, sizes, structure)
        made, names = curvature_of(la), ["weight", "head"]
        assert la.space.names == tuple(names)
        ggn = dense.ggn(model, x, y, "regression", names)
        if structure == "kron":
            assert relative(made, exact(model, x, y)) < 1e-9
        if structure in ("diag", "ekfac"):
            assert relative(made.diagonal().sum(), ggn.diagonal().sum()) < 1e-9
        if structure == "full":
            assert relative(made, ggn) < 1e-9
        other = tokens([[1, -1], [-1, -1], [1, 1]], seed=3)
        covariance = torch.linalg.inv(made + torch.eye(la.D, dtype=torch.float64))
        jacobian = dense.jacobian(model, other, names)
        for chosen in (slice(0, 3), slice(1, 2)):
            cov = la.functional(moved(other[chosen])).cov
            assert relative(cov, dense.functional_covariance(jacobian[chosen], covariance)) < 1e-9


def test_rows_that_examples_share_are_not_owned() -> None:
    """Rows of a table that is made once and looked up by each example keep the generic rule."""

    def forward(self: Any, x: Tensor) -> Tensor:
        table = torch.tanh(self.table.weight @ self.mix)
        return x @ self.head * table[(x[:, 0] > 0).long()]

    torch.manual_seed(0)
    model = Network(forward, table=nn.Embedding(2, 3), mix=parameter(3, 2), head=parameter(2, 2)).double()
    x = torch.randn(5, 2, dtype=torch.float64)
    y = torch.zeros(5, 2, dtype=torch.float64)
    for data in ((x, y), cut(x, y, [1, 4])):
        la = pw.fit(model, data, pw.Gaussian(), structure="full", curvature="ggn")
        assert {row.name: row.rule for row in la.coverage()}["table.weight"] == "generic"
        assert relative(curvature_of(la), dense.ggn(model, x, y, "regression", list(la.space.names))) < 1e-9


@pytest.mark.parametrize("name", ["mlp", "windows", "encoder_layer", "where_experts", "token_classifier"])
def test_networks_without_routing_are_looked_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two backward passes ask whose the rows of the first batch are, and none those of later ones."""
    asked: list[int] = []
    plain = routing.gradients_of

    def counted(*args: Any) -> Any:
        asked.append(1)
        return plain(*args)

    monkeypatch.setattr(routing, "gradients_of", counted)
    case = table(name)
    la = case.fit("kron")
    assert len(asked) == 2 and not la.state.knowledge.generic
    la.functional(moved(case.x))
    assert len(asked) == 2


def test_a_batch_takes_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One, and one for each digit of its size, whatever the number of experts."""
    x = tokens([[1, -1], [-1, -1], [1, 1], [1, -1], [-1, 1]] * 20)
    _, la, _ = fitted(x, [100])
    asked: list[Tensor] = []
    plain = routing.gradients_of

    def counted(tape: Any, edges: Any, chosen: Tensor) -> Any:
        asked.append(chosen)
        return plain(tape, edges, chosen)

    monkeypatch.setattr(routing, "gradients_of", counted)
    la.functional(moved(x))
    assert len(asked) == 3
    assert len({tuple(torch.stack(asked)[:, example].tolist()) for example in range(100)}) == 100


@pytest.mark.parametrize("name", ["switch_masks", "first_token", "routed_ignoring"])
def test_without_scaled_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gradients cannot be scaled exactly, which examples reach a row tells the same."""
    monkeypatch.setattr(routing.Routing, "_find_by_scale", lambda *args: False)
    case = table(name)
    la = case.fit(pw.Kron("reduce"))
    index = case.index(la)
    assert not la.state.knowledge.generic
    assert relative(curvature_of(la), case.kron(approx="reduce")[index][:, index]) < 1e-8


def test_rows_are_put_where_their_examples_are() -> None:
    """Each example's rows in order, zeros in empty places, and one place at least."""
    rows = torch.arange(1.0, 6.0)[:, None]
    made = OwnedRows.of(0, torch.tensor([2, 0, 2, 2, 0]), 4)
    assert made.split(rows, 4)[..., 0].tolist() == [[2, 5, 0], [0, 0, 0], [1, 3, 4], [0, 0, 0]]
    assert made.counted.sum(1).tolist() == [2, 0, 3, 0]
    assert OwnedRows.of(0, torch.zeros(0, dtype=torch.long), 3).split(rows[:0], 3).tolist() == [[[0.0]]] * 3
    assert torch.equal(made.split(rows.expand(2, 5, 1), 4, 1), made.split(rows, 4).expand(2, 4, 3, 1))


def test_saved_and_loaded(tmp_path: Any) -> None:
    """A posterior of a routed network predicts the same after it was loaded."""
    case = table("switch_masks")
    la = case.fit("kron")
    la.save(tmp_path / "posterior")
    again = pw.load(tmp_path / "posterior", case.case.make()[0].to(DEVICE))
    x = moved(case.x)
    assert relative(again.functional(x).cov, la.functional(x).cov) < 1e-12
