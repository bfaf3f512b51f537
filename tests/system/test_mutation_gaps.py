"""What mistakes planted by `make test-mutants` passed every other test with."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference
import reference_dense as dense
from environment import DEVICE
from fitting import normal
from peewit.curvature import blocks, operators
from peewit.curvature.structures import factors, kron
from peewit.jacobians.explicit import Explicit
from peewit.jacobians.factored import Matrix, Term
from peewit.jacobians.inputs import Acts
from peewit.jacobians.layout import Layout
from peewit.likelihoods.categorical import fitting_axes
from peewit.runtime.memory import budget
from peewit.tracing import generic
from peewit.tracing.doubling import doubled
from peewit.tracing.forward_mode import Push
from peewit.tracing.knowledge import Plan
from peewit.tracing.layers.conv.geometry import TapGroup
from peewit.tracing.layers.embedding import EMBEDDING
from peewit.tuning.alternate import newton
from peewit.weights.ranges import WeightRange
from stand_ins import ROOM
from tables import curvature_of, relative, table


def without_rest(factor: Tensor, longest: int) -> Tensor:
    """A factor, or its diagonal where a side is longer than that."""
    return torch.diag(factor.diagonal()) if len(factor) > longest else factor


@pytest.mark.parametrize("bias", ["separate", "joint"])
@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize("longest", [1, 3])
@pytest.mark.parametrize("name", ["token_regression", "residual_cnn", "embedding_sparse", "called_twice_unevenly"])
def test_long_sides_keep_their_diagonal(
    name: str, longest: int, approx: str, bias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Factors made by loops, each with its diagonal alone where it has more rows than there may be."""
    monkeypatch.setattr(factors, "LARGEST_SIDE", longest)
    monkeypatch.setattr(kron, "LARGEST_SIDE", longest)
    case = table(name)
    la = case.fit(pw.Kron(approx=approx, bias=bias))
    blocks, whole = case.blocks(approx=approx, bias=bias)
    shorter = [
        block
        if block.exact is not None
        else replace(
            block,
            row_factor=without_rest(block.row_factor, longest),
            column_factor=without_rest(block.column_factor, longest),
        )
        for block in blocks
    ]
    index = case.index(la)
    expected = reference.kron_of(shorter, whole)[index][:, index]
    assert relative(curvature_of(la), expected) < 1e-8


@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_a_position_with_some_gradient_counts(approx: str) -> None:
    """Beside ignored labels, a token with units that are off has zeros in its gradient, and is not ignored itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3)).double().to(DEVICE)
    x, y = torch.randn(4, 5, 3).double().to(DEVICE), torch.randint(3, (4, 5)).to(DEVICE)
    y[1:3, ::2] = -100
    assert bool((model[:2](x) == 0).any(-1).all())
    la = pw.fit(model, (x, y), pw.Categorical(axis=-1), structure=pw.Kron(approx=approx))
    names = [name for name, _ in model.named_parameters()]
    expected = reference.kron(model.cpu(), x.cpu(), y.cpu(), "classification", names, approx=approx)
    assert relative(curvature_of(la), expected) < 1e-8


def test_the_table_names_sides_that_are_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The side that is too long, or both."""
    monkeypatch.setattr(factors, "LARGEST_SIDE", 3)
    monkeypatch.setattr(kron, "LARGEST_SIDE", 3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 2), nn.Tanh(), nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    model = model.to(DEVICE)
    x, y = torch.randn(6, 5, device=DEVICE), torch.randn(6, 3, device=DEVICE)
    rows = {row.name: row.approximation for row in pw.fit(model, (x, y), "regression").coverage()}
    assert rows["0.weight"].endswith(", columns diagonal")
    assert rows["2.weight"].endswith(", rows diagonal")
    assert rows["4.weight"].endswith(", rows and columns diagonal")
    assert rows["5.weight"].endswith(", columns diagonal")
    assert "diagonal" not in rows["0.bias"]


def profile_at(spread: list[float], pull: list[float], surprise: float, degree: float) -> tuple[Any, Any]:
    """A question and a point of it, as far as Newton's step looks."""
    point = SimpleNamespace(spread=torch.tensor(spread).double(), pull=torch.tensor(pull).double(), surprise=surprise)
    return SimpleNamespace(question=SimpleNamespace(degree=degree)), point


@pytest.mark.parametrize("degree", [1.0, 0.5])
@pytest.mark.parametrize("noise", [True, False])
def test_a_newton_step_solves_the_dense_system(noise: bool, degree: float) -> None:
    """Against the matrix of all second derivatives, as docs and docstring have them."""
    problem, point = profile_at([2.0, 3.0, 0.5], [4.0, 1.0, 0.7], 9.0, degree)
    answers = torch.tensor([0.3, 0.2, 0.1]).double()
    gradient = torch.tensor([0.4, -0.8, 0.2, 0.5]).double()
    open_ = torch.tensor([True, True, True, noise])
    matrix = torch.diag(0.5 * (point.spread + point.pull) - answers)
    expected = torch.linalg.solve(matrix, gradient[:3])
    if noise:
        cross = (answers - 0.5 * degree * point.spread)[:, None]
        corner = point.surprise - answers.sum() + 0.5 * degree**2 * point.spread.sum()
        whole = torch.cat([torch.cat([matrix, cross], 1), torch.cat([cross.T, corner.reshape(1, 1)], 1)])
        expected = torch.linalg.solve(whole, gradient)
    step = newton(problem, point, answers, gradient, open_)
    torch.testing.assert_close(step[: len(expected)], expected)
    assert noise or float(step[-1]) == 0.0


def test_a_newton_step_is_taken_where_a_fifth_of_the_curvature_is_left() -> None:
    """Of the second derivative with the mode held fixed, in every group and, with noise, of the noise precision."""
    problem, point = profile_at([8.0, 8.0, 0.1], [4.0, 4.0, 0.1], 9.0, 1.0)
    answers = torch.tensor([6.0 * 0.79, 6.0 * 0.81, 0.1 * 0.79]).double()
    gradient = torch.ones(4).double()
    step = newton(problem, point, answers, gradient, torch.tensor([True, True, True, False]))
    assert torch.isfinite(step).tolist() == [True, False, True, True]

    corner = 1.0 + 0.5 * 2.0  # of one group with spread 2, of which `left` keeps a fifth
    for share, taken in ((0.21, True), (0.19, False)):
        problem, point = profile_at([2.0], [1000.0], 1.0, 1.0)
        # corner - answer - (answer - 1)^2 / (501 - answer) = share corner
        answer = corner * (1 - share)
        for _ in range(50):
            answer = corner * (1 - share) - (answer - 1.0) ** 2 / (501.0 - answer)
        step = newton(problem, point, torch.tensor([answer]).double(), torch.ones(2).double(), torch.tensor([True] * 2))
        assert math.isfinite(float(step[1])) is taken
        assert math.isfinite(float(step[0]))


@pytest.mark.parametrize(
    "options",
    [
        {"limits": (1e-4, 1e-3)},
        {"method": "fixed_point", "limits": (1e-4, 1e-3)},
        {"method": "grid", "grid": [1e-5, 1e-4]},
        {"method": "validation", "steps": 2},
        {"at": "linear_mode", "limits": (1e-4, 1e-3)},
    ],
    ids=["evidence", "fixed_point", "grid", "validation", "linear"],
)
def test_warnings_of_tuning_point_at_the_call(options: dict[str, Any]) -> None:
    """At the line of the user who asked, whatever tunes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().to(DEVICE)
    data = torch.randn(20, 3).double().to(DEVICE), torch.randn(20, 2).double().to(DEVICE)
    la = pw.fit(model, data, pw.Gaussian(0.5))
    given = (
        {"validation": data} if options.get("method") == "validation" else {"train": data} if "at" in options else {}
    )
    with pytest.warns(pw.TuningWarning) as found:
        la.tune(**given, **options)
    assert {each.filename for each in found} == {__file__}


@pytest.mark.parametrize(
    ("examples", "rows"), [(1, [0]), (2, [0, 1, 1, 0]), (3, [0, 1, 2, 0, 2, 1]), (5, [0, 1, 2, 0, 2, 1])]
)
def test_examples_are_doubled_in_another_order(examples: int, rows: list[int]) -> None:
    """Up to three of them; the second order is no flip and no roll of the first, so that neither passes for it."""
    inputs = {"x": 10.0 * torch.arange(examples)[:, None], "y": torch.arange(examples)}
    made: Any = doubled(inputs)
    assert made["y"].tolist() == rows
    assert made["x"].flatten().tolist() == [10.0 * row for row in rows]


class Switched(nn.Module):
    """A network in which the sign of an input decides on further weights, and a switch on any."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.waves = nn.Linear(3, 2), nn.Parameter(torch.randn(2))
        self.off = False

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2); the inputs of a batch have the same sign."""
        made = self.layer(x)
        if float(x[0, 0]) > 0:
            made = made + torch.stack([self.waves.cos().prod(), self.waves.sin().sum()])
        return made.detach() if self.off else made


def test_a_later_batch_may_use_further_weights() -> None:
    """In a way that no rule knows; all batches count them."""
    model = Switched().double().to(DEVICE)
    x, y = torch.randn(6, 3).double().to(DEVICE), torch.randn(6, 2).double().to(DEVICE)
    x[:, 0] = x[:, 0].abs() * torch.tensor([-1, -1, 1, 1, -1, -1], device=DEVICE)
    batches = [(x[start : start + 2], y[start : start + 2]) for start in (0, 2, 4)]
    la = pw.fit(model, batches, "regression", structure="full")
    names = [name for name, _ in model.named_parameters()]
    place = torch.cat([torch.arange(*reference.ranges(model, names)[name]) for name in la.space.names])
    expected = dense.ggn(model.cpu(), x.cpu(), y.cpu(), "regression", names)[place][:, place]
    assert relative(curvature_of(la), expected) < 1e-8


def test_outputs_without_weights_do_not_move() -> None:
    """Row by row, as where a network has neither forward mode nor second derivatives."""
    model = Switched().double().to(DEVICE)
    x, y = torch.randn(4, 3).double().to(DEVICE), torch.randn(4, 2).double().to(DEVICE)
    x[:, 0] = x[:, 0].abs()
    la = pw.fit(model, (x, y), "regression")
    vectors = torch.randn(5, la.D).double().to(DEVICE)
    push = Push(model, la.space, Plan(), budget(None, x.device))
    jacobian = dense.jacobian(Switched().double(), x.cpu(), list(la.space.names))
    expected = torch.einsum("nfd,sd->snf", jacobian, vectors.cpu())
    torch.testing.assert_close(push._rows(x, vectors)[1].cpu(), expected)
    model.off = True
    output, pushed = Push(model, la.space, Plan(), budget(None, x.device))._rows(x, vectors)
    torch.testing.assert_close(output, model(x))
    assert torch.equal(pushed, torch.zeros_like(pushed)) and pushed.shape == (5, 4, 2)


class Packed(nn.Module):
    """A weight used whole, and again its first rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.unread = nn.Parameter(torch.randn(4, 3)), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 4)."""
        self.unread(x)
        made = nn.functional.linear(x, self.weight)
        return made + nn.functional.pad(nn.functional.linear(x.tanh(), self.weight[:2]).sin(), (0, 2))


def test_a_weight_used_whole_and_in_part() -> None:
    """Its first rows are a block of their own, with both uses as positions; what nothing depends on is left out."""
    model = Packed().double().to(DEVICE)
    x, y = torch.randn(6, 3).double().to(DEVICE), torch.randn(6, 4).double().to(DEVICE)
    full, kron = (pw.fit(model, (x, y), "regression", structure=structure) for structure in ("full", "kron"))
    assert full.space.names == kron.space.names == ("weight",)
    model, x, y = model.cpu(), x.cpu(), y.cpu()
    assert relative(curvature_of(full), dense.ggn(model, x, y, "regression", ["weight"])) < 1e-8

    expected = torch.zeros(12, 12, dtype=torch.float64)
    slopes = (x.tanh() @ model.weight[:2].T).cos()
    for rows, inputs, slope in (
        (slice(0, 6), [x, x.tanh()], [torch.ones_like(slopes), slopes]),
        (slice(6, 12), [x], [torch.ones_like(slopes)]),
    ):
        gradients = torch.diag(sum(each.square().sum(0) for each in slope))
        expected[rows, rows] = torch.kron(gradients, sum(each.T @ each for each in inputs)) / (len(x) * len(inputs))
    assert relative(curvature_of(kron), expected.detach()) < 1e-8


@pytest.mark.parametrize("lengths", [(3, 1), (1, 3)])
def test_batches_of_single_tokens_and_of_sequences(lengths: tuple[int, int]) -> None:
    """Batch by batch another approximation, which is exact in both for one layer on tokens."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 3, bias=False)).double().to(DEVICE)
    batches = [(torch.randint(4, (4, length)).to(DEVICE), torch.randn(4, length, 3).double()) for length in lengths]
    batches = [(tokens, y.to(DEVICE)) for tokens, y in batches]
    la = pw.fit(model, batches, "regression", structure=pw.Kron(approx="auto"))
    tokens = torch.cat([each.flatten() for each, _ in batches]).cpu()
    table_, weight = (each.detach().cpu() for each in model.parameters())
    counts = torch.bincount(tokens, minlength=5).double()
    rows = table_[tokens]
    expected = torch.block_diag(
        torch.kron(torch.diag(counts), weight.T @ weight), torch.kron(torch.eye(3).double(), rows.T @ rows)
    )
    assert relative(curvature_of(la), expected) < 1e-8


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        (((0, 2), (2, 4), (4, 5), (5, 6)), [(0, 2, 2), (4, 1, 2)]),
        (((0, 2), (2, 3), (3, 5)), [(0, 2, 1), (2, 1, 1), (3, 2, 1)]),
        (((0, 2), (3, 5), (5, 7)), [(0, 2, 1), (3, 2, 2)]),
    ],
)
def test_neighbours_of_equal_length_are_one_product(intervals: Any, expected: list[tuple[int, int, int]]) -> None:
    """Start, length and number of each; a gap or another length begins a new one."""
    assert TapGroup(0, 0, (), intervals, ()).batches() == expected


class Unread(nn.Module):
    """Weights that nothing depends on, before two that are used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.unread, self.first = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
        self.second = nn.Linear(4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        return self.second(self.first(x).tanh())


@pytest.mark.parametrize(("precision", "left"), [(2.0, [2.0]), ([2.0, 3.0, 4.0], [3.0, 4.0])])
def test_precisions_of_unused_weights_are_dropped(precision: Any, left: list[float]) -> None:
    """One for all stays one; of several, those of the weights that are used stay."""
    model = Unread().double().to(DEVICE)
    data = torch.randn(6, 3).double().to(DEVICE), torch.randn(6, 2).double().to(DEVICE)
    for prior in (pw.Prior.layerwise(precision), pw.Prior.scale_invariant(model, data, precision=precision)):
        la = pw.fit(model, data, "regression", prior=prior)
        assert la.space.names == ("first.weight", "second.weight")
        assert la.prior.precision.reshape(-1).tolist() == left
        expected = torch.tensor(left).expand(2).double().repeat_interleave(torch.tensor([12, 8]))
        torch.testing.assert_close(la.prior.delta(la.space, la.weights).cpu(), expected)


class Flattened(nn.Module):
    """A head that sees the tokens of all examples in a row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, 3) -> (B, T, 2)."""
        hidden = self.first(x).tanh()
        return self.head(hidden.reshape(-1, 4)).reshape(*x.shape[:2], 2)


@pytest.mark.parametrize("weights", ["all", "head.*"])
@pytest.mark.parametrize("structure", ["kron", "full"])
def test_output_covariances_of_a_head_on_tokens_in_a_row(structure: str, weights: str) -> None:
    """From the operator's own covariance and the dense Jacobian."""
    model = Flattened().double().to(DEVICE)
    x, y = torch.randn(5, 3, 3).double().to(DEVICE), torch.randn(5, 3, 2).double().to(DEVICE)
    la = pw.fit(model, (x, y), "regression", structure=structure, weights=weights)
    identity = torch.eye(la.D, dtype=torch.float64, device=DEVICE)
    covariance = torch.linalg.inv(la.precision.mv(identity).cpu())
    jacobian = dense.jacobian(Flattened().double(), x.cpu(), list(la.space.names))
    expected = dense.joint_functional_covariance(jacobian, covariance)
    assert relative(la.functional(x, joint=True).cov.reshape(30, 30), expected) < 1e-8
    variance = la.functional(x, variance_only=True).cov.reshape(-1)
    assert relative(variance, expected.diagonal()) < 1e-8


@pytest.mark.parametrize("parameters", ["natural", "mean_variance", "mean_log_variance"])
def test_every_form_of_a_gaussian_has_its_natural_parameters(parameters: str) -> None:
    """Mean over variance, and minus half of one over variance."""
    mean, variance = torch.tensor([[0.3, -2.0]]).double(), torch.tensor([[0.5, 4.0]]).double()
    outputs = {
        "natural": (mean / variance, -0.5 / variance),
        "mean_variance": (mean, variance),
        "mean_log_variance": (mean, variance.log()),
    }
    first, second = pw.HeteroscedasticGaussian(parameters).natural(torch.cat(outputs[parameters], -1))
    torch.testing.assert_close(first, mean / variance)
    torch.testing.assert_close(second, -0.5 / variance)


@pytest.mark.parametrize(
    ("bias", "prior", "words"),
    [
        ("separate", pw.Prior.unitwise([1.0, 2.0, 3.0, 4.0]), "use structure='kron', or a scalar or layerwise prior"),
        (
            "joint",
            pw.Prior.layerwise([1.0, 2.0]),
            r"use EKFAC\(bias='separate'\) with a layerwise prior, structure='kron', or a scalar prior",
        ),
    ],
)
def test_a_prior_that_ekfac_cannot_hold_names_what_can(bias: Any, prior: pw.Prior, words: str) -> None:
    """A joint block has a weight and a bias, which a layerwise prior tells apart."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double().to(DEVICE)
    data = torch.randn(6, 3).double().to(DEVICE), torch.randn(6, 2).double().to(DEVICE)
    la = pw.fit(model, data, "regression", structure=pw.EKFAC(bias=bias))
    with pytest.raises(ValueError, match=words):
        la.with_prior(prior).log_evidence()


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
    assert la.coverage()["table"].rule == "embedding" and not la.state.plan.corrections
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


class Scripted(nn.Module):
    """A scripted part without weights below a weight that needs the generic rule."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.part = nn.Parameter(torch.randn(3, 2)), torch.jit.script(nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x @ self.w.exp())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_the_generic_rule_says_what_it_cannot_look_into() -> None:
    """By names of weights and of the scripted part, or of the network itself."""
    model = Scripted().to(DEVICE)
    x, probes = torch.randn(4, 3, device=DEVICE), torch.randn(2, 4, 2, device=DEVICE)
    plan: Any = Plan()
    for network, where in ((model, r"\('part'\)"), (torch.jit.script(nn.Linear(3, 2)), r"\('the network itself'\)")):
        with pytest.raises(ValueError, match=rf"^w, b can only be reached by the generic rule.*{where}; expected"):
            generic.generic_rows(network, x, ("w", "b"), probes, budget(None, x.device), plan)


def test_the_generic_rule_does_not_hide_that_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other errors lead to one example at a time; that one would not be cured by it."""
    model = nn.Linear(3, 2).double().to(DEVICE)
    x, probes = torch.randn(4, 3).double().to(DEVICE), torch.randn(2, 4, 2).double().to(DEVICE)
    names, room = ("weight", "bias"), budget(None, x.device)
    expected = {"weight": torch.einsum("kbo,bi->kboi", probes, x).flatten(2), "bias": probes}

    def fails(error: Exception) -> Any:
        def raises(*_: Any) -> Any:
            raise error

        return raises

    plan: Any = Plan()
    for own in (generic._vectorised, fails(TypeError("axes"))):
        monkeypatch.setattr(generic, "_vectorised", own)
        assert plan.vectorised
        found = generic.generic_rows(model, x, names, probes, room, plan)
        for name in names:
            torch.testing.assert_close(found[name], expected[name])
    assert not plan.vectorised
    monkeypatch.setattr(generic, "_vectorised", fails(torch.OutOfMemoryError("none left")))
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        generic.generic_rows(model, x, names, probes, room, Plan())


class Partly(nn.Module):
    """Of two weights one is used where the first input is positive, and none where it is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        assert len(x) == 1
        if float(x[0, 0]) == 0:
            return x[:, :2].clone()
        return (x @ (self.one if float(x[0, 0]) > 0 else self.two)).square()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_generic_rule_one_example_at_a_time(dtype: torch.dtype) -> None:
    """What an example does not use has zeros; rows are in float32 at least, and differentiable where asked for."""
    torch.manual_seed(0)
    model = Partly().to(DEVICE, dtype)
    x = torch.tensor([[1.0, 2.0, -1.0], [-1.0, 0.5, 2.0], [0.0, 1.0, 1.0]], device=DEVICE, dtype=dtype)
    probes = torch.randn(2, 3, 2, device=DEVICE, dtype=dtype)
    plan: Any = Plan()
    rows = generic.generic_rows(model, x, ("one", "two"), probes, budget(None, x.device), plan)
    assert not plan.vectorised
    for place, (name, used) in enumerate((("one", 0), ("two", 1))):
        made = rows[name]
        assert made.shape == (2, 3, 6) and made.dtype == torch.promote_types(dtype, torch.float32)
        assert not made.requires_grad and not bool(made[:, [1 - place, 2]].any())
        output = x[used] @ model.get_parameter(name).detach()
        expected = torch.einsum("i,ko->kio", x[used], 2 * output * probes[:, used]).flatten(1)
        torch.testing.assert_close(
            made[:, used], expected.to(made.dtype), rtol=2e-2 if dtype == torch.bfloat16 else 1e-9, atol=0
        )
    again = generic.generic_rows(model, x, ("one",), probes, budget(None, x.device), plan, create_graph=True)
    (twice,) = torch.autograd.grad(again["one"].sum(), model.one)
    assert bool(twice.any())


# A weight with several uses


def used_twice(tokens: bool) -> Matrix:
    """A bias of a layer that is applied twice, to several positions, or an embedding that is."""
    terms = []
    for seed, positions in ((1, 3), (2, 2)):
        grad = normal(2, 4, 1, positions, 5, seed=seed)
        if tokens:
            index = torch.randint(3, (4, positions), generator=torch.Generator().manual_seed(seed))
            hot = torch.nn.functional.one_hot(index, 3).double().unsqueeze(1)
            acts = Acts(lambda chosen, hot=hot: hot[chosen], 3, positions, index=index)
        else:
            ones = torch.ones(4, 1, positions, 1, dtype=torch.float64)
            acts = Acts(lambda chosen, ones=ones: ones[chosen], 1, positions, constant=True)
        terms.append(Term(acts, grad))
    return Matrix(tuple(terms), Layout.plain(1, 5, 3 if tokens else 1), ROOM)


@pytest.mark.parametrize("tokens", [False, True])
def test_every_use_of_a_weight_counts(tokens: bool) -> None:
    """Squares, covariances and variances, from loops over examples, uses and positions."""
    matrix = used_twice(tokens)
    rows = torch.zeros(2, 4, 5, matrix.layout.matrix[2], dtype=torch.float64)
    for term in matrix.terms:
        acts = term.acts(slice(0, 4))
        for example, position in itertools.product(range(4), range(term.acts.positions)):
            for probe in range(2):
                rows[probe, example] += torch.outer(term.grad[probe, example, 0, position], acts[example, 0, position])
    weight = normal(1, 5, matrix.layout.matrix[2], seed=3).square()
    covariance = torch.einsum("kboi,oi,lboi->bkl", rows, weight[0], rows)
    torch.testing.assert_close(matrix.square_sum()[0], rows.square().sum((0, 1)))
    torch.testing.assert_close(matrix.quad(weight), covariance)
    torch.testing.assert_close(matrix.variance(weight), covariance.diagonal(dim1=-2, dim2=-1))


def test_a_range_that_was_not_used_has_zeros() -> None:
    """As many as it has weights, wherever it begins."""
    parts = WeightRange("a", 0, 2), WeightRange("b", 2, 5)
    block = blocks.OperatorBlock(parts, (slice(0, 2), slice(2, 5)), operators.DiagonalOperator(torch.ones(5)))
    value = normal(2, 4, 2)
    made = block.jacobian({parts[0]: Explicit(value, ROOM)})
    assert made is not None
    rows = made.rows(slice(0, 4))
    assert torch.equal(rows, torch.cat([value, torch.zeros(2, 4, 3, dtype=torch.float64)], -1))


# What is taken where nothing is said


def test_a_prior_is_around_zero() -> None:
    """Unless it is told otherwise."""
    assert pw.Prior("scalar", torch.ones(1)).mean == 0.0


def test_axes_of_classes() -> None:
    """Never the examples'; and one output is none, whatever the labels' shape."""
    assert fitting_axes((3, 3), torch.zeros(3)) == [1]
    assert fitting_axes((3, 3, 3), torch.zeros(3, 3)) == [1, 2]
    for labels in (torch.zeros(5, 1), torch.zeros(5)):
        with pytest.raises(ValueError, match="the network has one output"):
            pw.Categorical().form(torch.zeros(5, 1), labels.long())


@pytest.mark.parametrize("outputs", [1, 2, 3, 5])
def test_natural_parameters_of_any_number_of_outputs(outputs: int) -> None:
    """The first half of the outputs, and the second."""
    f = normal(4, 2 * outputs)
    first, second = pw.HeteroscedasticGaussian(parameters="natural").natural(f)
    assert torch.equal(first, f[:, :outputs]) and torch.equal(second, f[:, outputs:])


def test_one_deviation_for_each_output() -> None:
    """Or one for all, or one that is yet to be found."""
    f = y = torch.zeros(4, 2)
    for noise in (0.1, "residuals", [0.1, 0.2]):
        assert pw.Gaussian(noise).form(f, y).outputs == 2
    with pytest.raises(ValueError, match="has 3 numbers, and the network 2 outputs"):
        pw.Gaussian([0.1, 0.2, 0.3]).form(f, y)


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
