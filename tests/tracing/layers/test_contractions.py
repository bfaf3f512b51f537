"""Linear maps in other words than `F.linear`: which calls are recognised, and the layers of GPT-2 beside plain ones."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference
import reference_dense as dense
from contraction_networks import Addmm
from environment import DEVICE
from fitting import built, fitted, names_of, normal
from networks import Network, parameter
from peewit.curvature.structures import eigen, sides
from peewit.jacobians.factored import Matrix, Term
from peewit.jacobians.inputs import Acts
from peewit.jacobians.layout import Layout
from peewit.kernels import available, operands
from peewit.kernels import jacobians as kernel_jacobians
from peewit.kernels import products as kernel_products
from peewit.runtime.memory import Budget
from peewit.tracing.layers import linear
from peewit.tracing.layers.contractions import Letters, are_valid
from saving import assert_same
from tables import curvature_of, moved, relative, table

EXACT = 1e-8
# By network of the table: the weights that take the generic rule; all others are linear, with Kronecker factors.
FORMS: dict[str, set[str]] = {
    "addmm": set(),
    "addmm_forms": {"out", "scaled"},
    "transposed_linear": set(),
    "square_both_ways": set(),
    "bmm": set(),
    "baddbmm": set(),
    "left_bmm": set(),
    "batched_matmul": set(),
    "stretched_matmul": set(),
    "left_matmul": set(),
    "einsum_groups": set(),
    "einsum_attention": set(),
    "einsum_forms": {"summed", "diagonal"},
    "einsum_tied": set(),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_linear(name: str) -> None:
    """Every form has the rule of linear layers and Kronecker factors, but for those that are no plain linear map."""
    rows = [row for row in table(name).fit("kron").coverage() if row.rule != "not selected"]
    assert {row.name for row in rows if row.rule == "generic"} == FORMS[name]
    for row in rows:
        if row.name not in FORMS[name]:
            assert (row.rule, row.approximation) == ("linear", "Kronecker (expand)"), row


# Equations of all kinds

SIZES = {"b": 4, "t": 2, "s": 3, "i": 2, "j": 3, "g": 2, "o": 2, "p": 3}


def equation(number: int) -> tuple[str, str, str, bool]:
    """The letters of an input with examples b, of a weight and of their product, and whether the weight is first."""
    draw = random.Random(number)
    positions = ["b", *draw.sample("ts", draw.randint(0, 2))]
    columns, rows = draw.sample("ij", draw.randint(1, 2)), draw.sample("op", draw.randint(0, 2))
    groups = ["g"] * draw.randint(0, 1)
    words = [positions + columns + groups, columns + groups + rows, positions + groups + rows]
    for word in words:
        draw.shuffle(word)
    given, weight, product = ("".join(word) for word in words)
    return given, weight, product, draw.random() < 0.3


@pytest.mark.parametrize("number", range(24))
def test_equations(number: int) -> None:
    """Positions, groups, rows and columns in any number and any order: the exact curvature, and its factors."""
    given, weight, product, first = equation(number)
    inside = [SIZES[letter] for letter in given if letter != "b"]
    made = math.prod(SIZES[letter] for letter in product if letter != "b")

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.enter(x)).reshape(len(x), *inside).movedim(0, given.index("b"))
        if first:
            mixed = torch.einsum(f"{weight},{given}->{product}", self.weight, hidden)
        else:
            mixed = torch.einsum(f"{given},{weight}->{product}", hidden, self.weight)
        return self.head(torch.tanh(mixed.movedim(product.index("b"), 0)).reshape(len(x), -1))

    members = {"weight": parameter(*[SIZES[letter] for letter in weight]), "head": nn.Linear(made, 2)}
    model = built(Network(forward, enter=nn.Linear(3, math.prod(inside)), **members))
    x, y = normal(SIZES["b"], 3), normal(SIZES["b"], 2, seed=3)
    settings = (model, x, y, "regression", names_of(model))
    assert relative(curvature_of(fitted(model, x, y, "regression", "full")), dense.ggn(*settings)) < EXACT
    la = fitted(model, x, y, "regression", "kron")
    assert relative(curvature_of(la), reference.kron(*settings)) < EXACT
    assert {row.rule for row in la.coverage()} == {"linear"}


@pytest.mark.parametrize(
    ("words", "given", "weight", "right"),
    [
        ("bti io bto", (5, 3, 4), (4, 2), True),
        ("gti gio gto", (5, 3, 4), (5, 4, 2), True),
        ("bti io bto", (5, 3, 4), (3, 2), False),  # another size
        ("bti io bto", (5, 4), (4, 2), False),  # too few axes
        ("bti io bto", (5, 3, 4), (4, 2, 2), False),  # too many
        ("bti io btoz", (5, 3, 4), (4, 2), False),  # a letter of neither
        ("bti io bo", (5, 3, 4), (4, 2), False),  # summed over in the input alone
        ("bti io bti", (5, 3, 4), (4, 2), False),  # and in the weight alone
        ("bii io bo", (5, 4, 4), (4, 2), False),
        ("bi ioo bo", (5, 4), (4, 2, 2), False),
        ("bi io boo", (5, 4), (4, 2), False),
    ],
)
def test_letters_that_are_right(words: str, given: tuple[int, ...], weight: tuple[int, ...], right: bool) -> None:
    """Each once in an operand, of one size, and summed over in both or in none."""
    assert are_valid(Letters(*words.split()), torch.empty(given), torch.empty(weight)) == right


def test_when_gradients_go_through_the_input_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second derivatives, no other weights, no mixed dtypes; and exactly where that is asked for."""
    given, weight, bias = (normal(*shape).requires_grad_() for shape in ((2, 3, 4), (5, 4), (5,)))
    asked: list[float] = []
    monkeypatch.setattr(
        kernel_products, "in_parts", lambda x, operations: not x.requires_grad and (asked.append(operations) or True)
    )

    def both(second: bool = False, exact: bool = True, found: str = "weight bias", **other: Any) -> tuple[bool, bool]:
        values = {"given": given, "weight": weight, "bias": bias} | other
        recorder: Any = SimpleNamespace(second=second, exact=exact)
        asked = (recorder, *values.values(), dict.fromkeys(found.split()))
        return linear.only_input_gradient(*asked), linear.wants_exact_gradient(*asked)

    assert both() == both(bias=None) == both(found="weight", bias=bias.detach()) == (True, True)
    assert asked == 3 * [2 * 3 * 20]
    assert both(exact=False) == both(bias=normal(3, 5)) == both(bias=normal(3, 5).requires_grad_()) == (True, False)
    assert both(second=True) == both(given=given.detach()) == both(given=given.float()) == (False, False)
    assert both(found="weight") == both(found="bias") == both(found="", bias=bias.detach()) == (False, False)
    with torch.autocast(given.device.type, torch.bfloat16):
        assert both() == (False, False)
    monkeypatch.setattr(kernel_products, "in_parts", lambda *_: False)
    assert both() == (True, False)


# What is passed on


def between(apply: Callable[[Any, Tensor], Tensor], **members: Any) -> nn.Module:
    """A layer, something with a parameter p that keeps the shape (B, 3, 4), and a layer, (B, 3, 4) to (B, 2)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(apply(self, torch.tanh(self.enter(x)))).flatten(1))

    return built(Network(forward, enter=nn.Linear(4, 4), **members, head=nn.Linear(12, 2)))


def into(self: Any, h: Tensor) -> Tensor:
    """A product by a method that works on what is there."""
    return torch.zeros(h.shape[0] * 3, 4).to(h).addmm_(h.flatten(0, 1), self.p).view_as(h)


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "three operands": lambda: between(
        lambda self, h: torch.einsum("bti,ij,jk->btk", h, self.p, self.q), p=parameter(4, 4), q=parameter(4, 4)
    ),
    "numbers for letters": lambda: between(
        lambda self, h: torch.einsum(h, [0, 1, 2], self.p, [2, 3], [0, 1, 3]), p=parameter(4, 4)
    ),
    "stretched letter": lambda: between(
        lambda self, h: torch.einsum("bti,io->bto", h[..., :1], self.p), p=parameter(4, 4)
    ),
    "two weights": lambda: between(
        lambda self, h: h @ torch.einsum("ij,jk->ik", self.p, self.q), p=parameter(4, 3), q=parameter(3, 4)
    ),
    "low rank": lambda: between(lambda self, h: h @ (self.p @ self.q), p=parameter(4, 3), q=parameter(3, 4)),
    "every other row": lambda: between(lambda self, h: torch.einsum("bti,io->bto", h, self.p[::2]), p=parameter(8, 4)),
    "in place": lambda: between(into, p=parameter(4, 4)),
    "elementwise": lambda: between(lambda self, h: torch.einsum("bti,i->bti", h, self.p), p=parameter(4)),
    "dots in the weight": lambda: between(
        lambda self, h: torch.einsum("...ti,...io->...to", h, self.p), p=parameter(1, 4, 4)
    ),
    "bias of its own for each row": lambda: between(
        lambda self, h: torch.stack([torch.addmm(self.q, each, self.p) for each in h]),
        p=parameter(4, 4),
        q=parameter(3, 4),
    ),
    "one number for a bias": lambda: between(
        lambda self, h: torch.addmm(self.q, h.flatten(0, 1), self.p).view_as(h), p=parameter(4, 4), q=parameter(1)
    ),
    "shared bias of groups": lambda: between(
        lambda self, h: torch.baddbmm(self.q, h.transpose(0, 1), self.p).transpose(0, 1),
        p=parameter(3, 4, 4),
        q=parameter(4),
    ),
    "one weight for all": lambda: between(
        lambda self, h: torch.bmm(h, self.p.expand(len(h), -1, -1)), p=parameter(4, 4)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_passed_on(name: str) -> None:
    """Whatever is not recognised, and what stands beside it, has the exact curvature all the same."""
    model = OTHERS[name]()
    x, y = normal(5, 3, 4), normal(5, 2, seed=3)
    exact = dense.ggn(model, x, y, "regression", names_of(model))
    assert relative(curvature_of(fitted(model, x, y, "regression", "full")), exact) < EXACT
    diagonal = torch.diag(exact.diagonal())
    assert relative(curvature_of(fitted(model, x, y, "regression", "diag")), diagonal) < EXACT


def test_uses_agree_whatever_the_order_of_axes() -> None:
    """A weight that is given as another view of itself, with results in another order, has the same factors."""

    def plain(self: Any, h: Tensor) -> Tensor:
        made = torch.tanh(torch.einsum("bti,hid->bthd", h, self.p))
        return torch.einsum("bthd,hid->bti", made, self.p)

    def other(self: Any, h: Tensor) -> Tensor:
        made = torch.tanh(torch.einsum("dhi,bti->dbht", self.p.permute(2, 0, 1), h))
        return torch.einsum("bthd,ihd->bti", made.permute(1, 3, 2, 0), self.p.transpose(0, 1))

    first = between(plain, p=parameter(2, 4, 3))
    second = between(other, p=parameter(2, 4, 3))
    second.load_state_dict(first.state_dict())
    x, y = normal(5, 3, 4), normal(5, 2, seed=3)
    fits = [fitted(model, x, y, "regression") for model in (first, second)]
    assert relative(curvature_of(fits[1]), curvature_of(fits[0])) < EXACT
    assert {row.approximation for la in fits for row in la.coverage()} == {"Kronecker (expand)"}


# Layers of GPT-2 beside plain ones


def gpt(layer: Callable[[int, int], nn.Module]) -> nn.Module:
    """A block with attention and a head, its linear layers made by `layer`, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        query, key, value = self.attend(self.norm(x)).split(4, -1)
        x = x + self.project(nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True))
        x = x + self.down(nn.functional.gelu(self.up(x), approximate="tanh"))
        return self.head(x[:, -1])

    members = {"attend": layer(4, 12), "project": layer(4, 4), "up": layer(4, 8), "down": layer(8, 4)}
    return Network(forward, norm=nn.LayerNorm(4), **members, head=layer(4, 3))


def both_ways() -> tuple[nn.Module, nn.Module]:
    """One network with layers of GPT-2, and with `nn.Linear` and the transposed weights."""
    torch.manual_seed(1)
    turned = built(gpt(Addmm))
    plain = gpt(nn.Linear).double()
    state = {name: value.T if value.dim() == 2 else value for name, value in turned.state_dict().items()}
    plain.load_state_dict(state)
    return turned, plain


@pytest.mark.parametrize("structure", [pw.Kron(), pw.Kron(bias="joint"), pw.EKFAC(bias="joint"), pw.Diag(), pw.Block()])
def test_transposed_weights_are_those_of_linear_layers(structure: Any) -> None:
    """The same evidence and the same covariances, with weight and bias in one block or in two."""
    turned, plain = both_ways()
    x, y = normal(6, 3, 4), torch.arange(6) % 3
    first, second = (fitted(model, x, y, "classification", structure) for model in (turned, plain))
    assert relative(first.log_evidence(), second.log_evidence().cpu()) < EXACT
    asked = moved(normal(4, 3, 4, seed=7))
    assert relative(first.functional(asked).cov, second.functional(asked).cov.cpu()) < 1e-7
    assert relative(first.functional(asked, joint=True).cov, second.functional(asked, joint=True).cov.cpu()) < 1e-7
    words = {row.name: row.approximation for row in second.coverage()}
    assert {row.name: row.approximation for row in first.coverage()} == words


@pytest.mark.parametrize("structure", [pw.Kron(), pw.Kron(bias="joint"), pw.EKFAC(bias="joint")])
def test_transposed_weights_in_files_and_updates(structure: Any, tmp_path: Path) -> None:
    """A posterior that is saved and loaded answers the same, and sums go on where they were."""
    model, _ = both_ways()
    model = model.to(DEVICE)
    x, y = moved(normal(8, 3, 4)), moved(torch.arange(8) % 3)
    la = pw.fit(model, (x, y), "classification", structure=structure, curvature="ggn")
    la.save(tmp_path / "posterior.safetensors")
    assert_same(la, pw.load(tmp_path / "posterior.safetensors", model), x)
    if not isinstance(structure, pw.EKFAC):
        half = pw.fit(model, (x[:4], y[:4]), "classification", structure=structure, curvature="ggn")
        assert relative(half.update((x[4:], y[4:])).log_evidence(), la.log_evidence().cpu()) < EXACT


def test_one_decomposition_for_weight_and_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients' side of a weight is that of its bias, also where it is the columns' side."""
    asked: list[int] = []

    def note(sides: Any) -> Any:
        asked.append(len(sides))
        return eigen.decompose_sides(sides)

    monkeypatch.setattr(sides, "decompose_sides", note)
    x, y = normal(6, 3, 4), torch.arange(6) % 3
    counts = []
    for model in both_ways():
        fitted(model, x, y, "classification")
        counts.append(sum(asked))
        asked.clear()
    assert counts[0] == counts[1] == 15  # inputs and gradients of five layers, and a one for each bias


def test_gradients_through_transposed_weights_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where products are to be exact on a GPU, these layers take the same way as plain ones, to the same numbers."""
    seen: list[tuple[int, ...]] = []

    def note(grad: Tensor, weight: Tensor) -> Tensor:
        seen.append(tuple(weight.shape))
        return grad @ weight

    monkeypatch.setattr(kernel_products, "in_parts", lambda *_: True)
    monkeypatch.setattr(linear, "exact_product", note)
    turned, plain = both_ways()
    x, y = normal(6, 3, 4), torch.arange(6) % 3
    wide = fitted(turned, x, y, "classification").functional(moved(x)).cov
    shapes = []
    for model in (turned, plain):
        model = copy.deepcopy(model).float().to(DEVICE)
        seen.clear()
        la = pw.fit(model, (moved(x).float(), moved(y)), "classification", curvature="ggn", arithmetic="float32")
        shapes.append(set(seen))
        assert relative(la.functional(moved(x).float()).cov.double(), wide.cpu()) < 1e-4
    assert shapes[0] == shapes[1] == {(12, 4), (4, 4), (8, 4), (4, 8), (3, 4)}


# Jacobians with gradients on the columns


def flipped(grad: Tensor, act: Tensor) -> tuple[Matrix, Tensor]:
    """The Jacobian of a weight (G, I, O) with gradients (K, B, G, T, O) and inputs (B, G, T, I), and its rows."""
    acts = Acts(make=lambda examples: act[examples], width=act.shape[-1], positions=act.shape[-2])
    layout = Layout.plain(grad.shape[2], act.shape[-1], grad.shape[-1])
    rows = torch.einsum("kbgto,bgti->bkgio", grad, act)
    return Matrix((Term(acts, grad, flipped=True),), layout, Budget(10**9)), rows


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("positions", [1, 3])
def test_flipped_jacobians(groups: int, positions: int) -> None:
    """Squares, variances, covariances and a joint bias, in bases, against sums written out."""
    grad, act = normal(2, 4, groups, positions, 3), normal(4, groups, positions, 5, seed=2)
    left, right = normal(groups, 5, 5, seed=3), normal(groups, 3, 3, seed=4)
    weight = normal(groups, 5, 3, seed=5).square()
    asked, rows = flipped(grad, act)
    for bases in ((left, right), (None, right), (left, None), (None, None)):
        turned = rows if bases[0] is None else torch.einsum("bkgio,gij->bkgjo", rows, bases[0])
        turned = turned if bases[1] is None else torch.einsum("bkgio,gop->bkgip", turned, bases[1])
        scaled = (turned * weight.sqrt()).flatten(2)
        assert relative(asked.quad(weight, *bases), scaled @ scaled.mT) < EXACT
        assert relative(asked.variance(weight, *bases), scaled.square().sum(-1)) < EXACT
        assert relative(asked.square_sum(*bases), turned.square().sum((0, 1))) < EXACT
    assert relative(asked.rows(slice(0, 4)), rows.flatten(2).transpose(0, 1)) < EXACT
    joint = torch.cat([rows.mT, grad.sum(3).transpose(0, 1).unsqueeze(-1)], -1)  # (B, K, G, O, I + 1)
    assert relative(asked.with_bias().rows(slice(0, 4)), joint.flatten(2).transpose(0, 1)) < EXACT


def test_kernels_see_gradients_on_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a transposed weight is asked for as a plain one is, with both sides exchanged."""
    grad, act = normal(2, 4, 1, 6, 3).float(), normal(4, 1, 6, 5, seed=2).float()
    asked, _ = flipped(grad, act)
    seen = []

    def note(*given: Any) -> Tensor:
        seen.append(given)
        return torch.zeros(4, 2, 2)

    monkeypatch.setattr(available, "usable", lambda *_: True)
    monkeypatch.setattr(kernel_jacobians, "worthwhile", lambda *_: True)
    monkeypatch.setattr(operands, "rotate", lambda x, basis, *_: x if basis is None else x @ basis)
    monkeypatch.setattr(kernel_jacobians, "inner_products", note)
    left, right, weight = normal(1, 5, 5, seed=3).float(), normal(1, 3, 3, seed=4).float(), torch.rand(1, 5, 3)
    asked.quad(weight, left, right)
    ((of_grad, of_act, of_weight, _),) = seen
    assert torch.equal(of_grad, grad @ right) and torch.equal(of_act, act @ left)
    assert torch.equal(of_weight, weight.mT)
