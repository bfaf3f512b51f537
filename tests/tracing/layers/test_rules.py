"""Layer rules one call at a time: what a call brings to the Jacobian of its weights, against torch's own gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from environment import DEVICE
from peewit.jacobians.factored import Term
from peewit.jacobians.inputs import Acts
from peewit.jacobians.layout import Layout
from peewit.kernels import available
from peewit.network.workarounds import ConstantPadding, UnchangedTables
from peewit.tracing.layers import HANDLERS
from peewit.tracing.layers.contract import (
    Contribution,
    copy_if_fragile,
    is_reshaped,
    output_edge,
    positions_last,
    split_channels,
)
from peewit.tracing.layers.contractions import Letters, parse_equation
from peewit.tracing.layers.elementwise import broadcast_axes, pad_shape, sum_broadcast
from peewit.tracing.layers.examples import BatchAxis, OwnedRows, batch_axes
from peewit.tracing.layers.norm import frozen_batch_norm
from peewit.tracing.layers.weight_views import WeightView
from peewit.weights.ranges import WeightRange

EXAMPLES, PROBES = 3, 2
MATRICES = {"convolution", "transposed convolution", "linear", "bilinear", "embedding"}  # with Kronecker factors
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Noting:
    """A recording mode that only keeps what handlers note."""

    exact = probes = second = open = False
    room = 1e9

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.uses, self.mapped, self.shown = parameters, [], True, []

    def resolve(self, tensor: Any) -> WeightView | None:
        for number, each in enumerate(self.parameters):
            if isinstance(tensor, Tensor) and (tensor is each or tensor._base is each):
                return WeightView.of(str(number), tensor, each)
        return None

    def alias(self, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    def record(self, rule: Any, output: Tensor, views: Any, inputs: Any, axes: Any, options: Any = None) -> Tensor:
        use = SimpleNamespace(rule=rule, views=views, inputs=inputs, axes=axes, options=options, cache={})
        use.shape = tuple(output.shape)
        self.uses.append(use)
        use.output = output
        return output

    def broadcast(self, rule: Any, view: WeightView, shape: tuple[int, ...]) -> Tensor:
        axes = broadcast_axes(tuple(view.tensor.shape), tuple(shape))
        return self.record(rule, view.tensor.expand(shape), {"weight": view}, (), axes)

    def lift(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        return None

    def refuse_mapping(self) -> None:
        self.mapped = False

    def show_result(self, output: Tensor) -> None:
        self.shown.append(output)


def normal(*shape: int) -> Tensor:
    """Numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE)


def weight(*shape: int) -> nn.Parameter:
    """The same to be selected."""
    return nn.Parameter(normal(*shape))


def rows_of(made: Contribution) -> Tensor:
    """(K, B, P): rows of the Jacobian of a range of a parameter."""
    size = made.part.stop - made.part.start
    assert math.prod(made.layout.matrix) == math.prod(made.layout.split) == size
    if isinstance(made.value, Tensor):
        assert made.value.shape == (PROBES, EXAMPLES, size)
        return made.value
    term = made.value
    acts = term.acts(slice(None)).to(term.grad.dtype)
    assert acts.shape == (EXAMPLES, term.grad.shape[2], term.acts.positions, term.acts.width)
    product = torch.einsum("kbgto,bgti->kbgoi", term.grad, acts)
    return made.layout.to_flat(product.mT if term.flipped else product)


def check(call: Call, rules: list[str], free: tuple[int, ...] = (0,), axis: int = 0) -> Noting:
    """A handler's output is the function's, and its notes make the function's gradients, example by example."""
    func, args, kwargs = call
    parameters = list(dict.fromkeys(base_of(each) for each in (*args, *kwargs.values()) if base_of(each) is not None))
    recorder = Noting(parameters)
    output, plain = HANDLERS[func](recorder, func, args, kwargs), func(*args, **kwargs)
    if plain.is_cuda:  # which may take another kernel for the same convolution
        torch.testing.assert_close(output, plain, rtol=1e-12, atol=1e-12)
    assert plain.is_cuda or torch.equal(output, plain)
    assert [use.rule.name for use in recorder.uses] == rules
    probes = normal(PROBES, *plain.shape)
    found = {place: torch.zeros(PROBES, EXAMPLES, each.numel()).to(plain) for place, each in enumerate(parameters)}
    for use in recorder.uses:
        assert use.axes == free and use.rule.matrix == (use.rule.name in MATRICES)
        use.cache["axis"] = axis
        grads = torch.stack([torch.autograd.grad(output, use.output, probe, retain_graph=True)[0] for probe in probes])
        inputs = tuple(each.movedim(axis, 0) for each in use.rule.prepare(use, use.inputs))
        for made in use.rule.contributions(use, inputs, grads.movedim(1 + axis, 1)):
            assert isinstance(made.part, WeightRange)
            found[int(made.part.name)][..., made.part.start : made.part.stop] += rows_of(made)
    for place, each in enumerate(parameters):
        for example in range(EXAMPLES):
            alone = torch.zeros_like(probes)
            alone.select(1 + axis, example).copy_(probes.select(1 + axis, example))
            expected = [torch.autograd.grad(plain, each, probe, retain_graph=True)[0].flatten() for probe in alone]
            torch.testing.assert_close(found[place][:, example], torch.stack(expected), rtol=1e-9, atol=1e-11)
    return recorder


def base_of(value: Any) -> nn.Parameter | None:
    """The parameter that a value is, or is a view of."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        value = value._base
    return value if isinstance(value, nn.Parameter) else None


CONVOLUTIONS: dict[str, Callable[[], Call]] = {
    "one axis": lambda: (F.conv1d, (normal(3, 4, 9), weight(6, 4, 3)), {}),
    "one axis, all": lambda: (F.conv1d, (normal(3, 4, 9), weight(6, 2, 3), weight(6), 2, 1, 2, 2), {}),
    "two axes": lambda: (F.conv2d, (normal(3, 4, 7, 6), weight(6, 4, 3, 2), weight(6)), {}),
    "two axes, all": lambda: (
        F.conv2d,
        (normal(3, 4, 7, 6), weight(6, 2, 3, 2), None, (2, 1), (1, 2), (1, 2), 2),
        {},
    ),
    "two axes, words": lambda: (
        F.conv2d,
        (),
        {
            "input": normal(3, 4, 7, 6),
            "weight": weight(6, 4, 3, 2),
            "bias": weight(6),
            "padding": "same",
            "dilation": 2,
        },
    ),
    "no padding": lambda: (F.conv2d, (normal(3, 4, 7, 6), weight(6, 4, 3, 2)), {"padding": "valid", "stride": [2]}),
    "no padding at each place": lambda: (F.conv2d, (normal(3, 4, 7, 6), weight(6, 4, 3, 2)), {"padding": "valid"}),
    "three axes": lambda: (F.conv3d, (normal(3, 2, 4, 5, 3), weight(4, 2, 2, 3, 1), weight(4)), {}),
    "three axes, all": lambda: (
        F.conv3d,
        (normal(3, 2, 4, 5, 3), weight(4, 1, 2, 3, 1), weight(4), (1, 2, 1), (1, 0, 2), (2, 1, 1), 2),
        {},
    ),
}
TRANSPOSED: dict[str, Callable[[], Call]] = {
    "one axis": lambda: (F.conv_transpose1d, (normal(3, 4, 5), weight(4, 6, 3)), {}),
    "one axis, all": lambda: (F.conv_transpose1d, (normal(3, 4, 5), weight(4, 3, 3), weight(6), 2, 1, 1, 2, 2), {}),
    "two axes": lambda: (F.conv_transpose2d, (normal(3, 4, 5, 4), weight(4, 6, 3, 2), weight(6)), {}),
    "two axes, all": lambda: (
        F.conv_transpose2d,
        (normal(3, 4, 5, 4), weight(4, 3, 3, 2), weight(6), (2, 3), (1, 0), (1, 2), 2, (1, 2)),
        {},
    ),
    "three axes": lambda: (F.conv_transpose3d, (normal(3, 2, 3, 2, 3), weight(2, 4, 2, 3, 1), weight(4)), {}),
    "three axes, all": lambda: (
        F.conv_transpose3d,
        (normal(3, 2, 3, 2, 3), weight(2, 2, 2, 3, 1), None, (2, 1, 1), (1, 0, 0), (1, 0, 0), 2, 1),
        {},
    ),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    """With every option by its place or by its name, and without."""
    torch.manual_seed(0)
    check(CONVOLUTIONS[name](), ["convolution"])


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions(name: str) -> None:
    """The same for those that make images larger."""
    torch.manual_seed(0)
    check(TRANSPOSED[name](), ["transposed convolution"])


LINEAR: dict[str, Callable[[], Call]] = {
    "plain": lambda: (F.linear, (normal(3, 4), weight(5, 4), weight(5)), {}),
    "words": lambda: (F.linear, (normal(3, 2, 4),), {"weight": weight(5, 4), "bias": weight(5)}),
    "transposed": lambda: (F.linear, (normal(3, 2, 4), weight(4, 5).T), {}),
    "rows": lambda: (F.linear, (normal(3, 4), weight(7, 4)[2:5], weight(7)[2:5]), {}),
    "bias alone": lambda: (F.linear, (normal(3, 4), normal(5, 4), weight(5)), {}),
    "matmul": lambda: (torch.matmul, (normal(3, 2, 4), weight(4, 5)), {}),
    "operator": lambda: (Tensor.__matmul__, (normal(3, 4), weight(5, 4).T), {}),
    "mm": lambda: (torch.mm, (normal(3, 4), weight(4, 5)), {}),
    "vector": lambda: (torch.matmul, (normal(3, 2, 4), weight(4)), {}),
    "groups": lambda: (torch.matmul, (normal(3, 2, 6, 4), weight(2, 4, 5)), {}),
    "stretched weight": lambda: (torch.matmul, (normal(3, 2, 6, 4), weight(1, 4, 5)), {}),
    "stretched input": lambda: (torch.matmul, (normal(3, 1, 6, 4), weight(2, 4, 5)), {}),
    "on the left": lambda: (torch.matmul, (weight(5, 4), normal(3, 4, 6)), {}),
    "groups on the left": lambda: (torch.matmul, (weight(2, 5, 4), normal(3, 2, 4, 6)), {}),
    "addmm": lambda: (torch.addmm, (weight(5), normal(3, 4), weight(4, 5)), {}),
    "addmm, words": lambda: (torch.addmm, (weight(1, 5),), {"mat1": normal(3, 4), "mat2": weight(5, 4).T}),
    "einsum": lambda: (torch.einsum, ("bti,oi->bot", normal(3, 2, 4), weight(5, 4)), {}),
    "einsum, weight first": lambda: (torch.einsum, ("oi,bti->bto", weight(5, 4), normal(3, 2, 4)), {}),
    "einsum, no arrow": lambda: (torch.einsum, ("bti,io", normal(3, 2, 4), weight(4, 5)), {}),
    "einsum, dots": lambda: (torch.einsum, ("...i,oi->...o", normal(3, 2, 4), weight(5, 4)), {}),
    "einsum, groups": lambda: (torch.einsum, ("bgi,goi->bog", normal(3, 2, 4), weight(2, 5, 4)), {}),
    "einsum, several": lambda: (torch.einsum, ("bijt,pjoi->btop", normal(3, 4, 2, 5), weight(3, 2, 6, 4)), {}),
}
FREE = {
    **dict.fromkeys(("words", "transposed", "matmul", "vector", "einsum, weight first", "einsum, dots"), (0, 1)),
    "groups": (0, 2),
    "stretched weight": (0, 1, 2),
    "stretched input": (0, 2),
    "on the left": (0, 2),
    "groups on the left": (0, 3),
    "einsum": (0, 2),
    "einsum, no arrow": (0, 2),
    "einsum, several": (0, 1),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_maps(name: str) -> None:
    """In all their words; which axes may hold the examples is noted."""
    torch.manual_seed(0)
    call = LINEAR[name]()
    if name == "einsum, no arrow":  # b, o, t in the order of the alphabet
        assert call[0](*call[1]).shape == (3, 5, 2)
    check(call, ["linear"], FREE.get(name, (0,)))


GROUPED: dict[str, Callable[[], Call]] = {
    "bmm": lambda: (torch.bmm, (normal(2, 3, 4), weight(2, 4, 5)), {}),
    "baddbmm": lambda: (torch.baddbmm, (weight(2, 1, 5), normal(2, 3, 4), weight(2, 4, 5)), {}),
    "baddbmm, words": lambda: (
        torch.baddbmm,
        (weight(2, 1, 5),),
        {"batch1": normal(2, 3, 4), "batch2": weight(2, 5, 4).mT},
    ),
    "baddbmm, fixed bias": lambda: (torch.baddbmm, (normal(3, 5), normal(2, 3, 4), weight(2, 4, 5)), {}),
}


@pytest.mark.parametrize("name", GROUPED)
def test_linear_maps_of_groups(name: str) -> None:
    """With the groups in front of the examples."""
    torch.manual_seed(0)
    check(GROUPED[name](), ["linear"], (1,), axis=1)


PASSED_ON: dict[str, Callable[[], Call]] = {
    "a vector": lambda: (torch.matmul, (normal(4), weight(4, 5)), {}),
    "another place for the result": lambda: (torch.mm, (normal(3, 4), weight(4, 5)), {"out": normal(0)}),
    "no weights": lambda: (torch.matmul, (normal(3, 4), normal(4, 5)), {}),
    "scaled": lambda: (torch.addmm, (weight(5), normal(3, 4), weight(4, 5)), {"beta": 2.0}),
    "scaled groups": lambda: (torch.baddbmm, (normal(2, 3, 5), normal(2, 3, 4), weight(2, 4, 5)), {"alpha": 2.0}),
    "added to what is fixed": lambda: (Tensor.addmm, (normal(3, 5), normal(3, 4), normal(4, 5)), {}),
    "every other row": lambda: (F.linear, (normal(3, 4), weight(8, 4)[::2]), {}),
    "a vector for a weight": lambda: (F.linear, (normal(3, 4), weight(4)), {}),
    "three operands": lambda: (torch.einsum, ("bi,ij,jo->bo", normal(3, 4), weight(4, 2), weight(2, 5)), {}),
    "one operand": lambda: (torch.einsum, ("ij->ji", weight(4, 2)), {}),
    "a letter twice": lambda: (torch.einsum, ("bi,ii->bi", normal(3, 4), weight(4, 4)), {}),
    "no letters": lambda: (torch.einsum, (normal(3, 4), [0, 1], weight(4, 5), [1, 2], [0, 2]), {}),
    "elementwise": lambda: (torch.einsum, ("bi,i->bi", normal(3, 4), weight(4)), {}),
    "two dimensions of an image": lambda: (F.conv1d, (normal(4, 9), weight(6, 4, 3)), {}),
    "a frozen bias": lambda: (F.bilinear, (normal(3, 4), normal(3, 2), normal(5, 4, 2), normal(5)), {}),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", PASSED_ON)
def test_calls_that_are_passed_on(name: str) -> None:
    """Whatever is no linear map of the examples with one weight: nothing is noted, and the result is torch's."""
    torch.manual_seed(0)
    func, args, kwargs = PASSED_ON[name]()
    recorder = Noting([each for each in map(base_of, args) if each is not None])
    with torch.set_grad_enabled("out" not in kwargs):
        found = HANDLERS[func](recorder, func, args, kwargs)
        assert torch.equal(found, func(*args, **{key: each for key, each in kwargs.items() if key != "out"}))
    assert not recorder.uses


def test_operands_that_are_no_tensors() -> None:
    """Are refused by torch in its own words."""
    for func, own in ((torch.addmm, weight(4, 5)), (torch.baddbmm, weight(2, 4, 5))):
        with pytest.raises(TypeError, match="must be Tensor, not float"):
            HANDLERS[func](Noting([own]), func, (2.0, normal(*own.shape).mT, own), {})


@pytest.mark.parametrize(
    ("equation", "first", "second", "letters"),
    [
        ("bti, io -> bto", 3, 2, ("bti", "io", "bto")),
        ("bti,io", 3, 2, ("bti", "io", "bot")),
        ("...i,io->...o", 4, 2, ("abci", "io", "abco")),
        ("...i,...io->...o", 4, 3, ("abci", "cio", "abco")),
        ("...i,io", 3, 2, ("abi", "io", "abo")),
        ("ac...,ci->a...i", 3, 2, ("acb", "ci", "abi")),
        ("bi,io,op->bp", 2, 2, None),
        ("bi->b", 2, 2, None),
        ("abc...,cd->ad", 2, 2, None),
        ("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ...,c->c", 54, 1, None),
    ],
)
def test_letters_of_equations(equation: str, first: int, second: int, letters: tuple[str, ...] | None) -> None:
    """With free ones in place of dots, and the product's in the order of the alphabet where no arrow is."""
    found = parse_equation(equation, torch.empty([1] * first), torch.empty([1] * second))
    assert found == (None if letters is None else Letters(*letters))


def test_columns_in_the_order_of_the_weight() -> None:
    """Whatever their order in a product, so that several uses of a weight agree."""
    torch.manual_seed(0)
    own = weight(5, 2, 4)
    calls: list[Call] = [
        (torch.einsum, ("bij,oij->bo", normal(3, 2, 4), own), {}),
        (torch.einsum, ("oij,bji->bo", own, normal(3, 4, 2)), {}),
        (torch.einsum, ("bji,jio->bo", normal(3, 4, 2), own.permute(2, 1, 0)), {}),
        (F.linear, (normal(3, 8), own.flatten(1)), {}),
    ]
    for call in calls:
        (use,) = check(call, ["linear"]).uses
        (made,) = use.rule.contributions(use, use.inputs, normal(PROBES, EXAMPLES, 5))
        assert made.layout == Layout.plain(1, 5, 8) and not made.value.flipped


def test_bilinear_maps() -> None:
    """With a bias and without."""
    torch.manual_seed(0)
    check((F.bilinear, (normal(3, 4), normal(3, 2), weight(5, 4, 2)), {}), ["bilinear"])
    words = {"input2": normal(3, 6, 2), "weight": weight(5, 4, 2), "bias": weight(5)}
    check((F.bilinear, (normal(3, 6, 4),), words), ["bilinear"], (0, 1))
    check((F.bilinear, (normal(3, 4), normal(3, 2), normal(5, 4, 2), weight(5)), {}), ["bilinear"])


@pytest.mark.parametrize("padding", [None, 0, 2, -1])
def test_embeddings(padding: int | None) -> None:
    """Tokens with an axis and without; a padding token has no gradient."""
    torch.manual_seed(0)
    for tokens in (torch.tensor([[0, 1], [2, 5], [5, 0]], device=DEVICE), torch.tensor([5, 0, 2], device=DEVICE)):
        check((F.embedding, (tokens, weight(6, 4), padding), {}), ["embedding"], tuple(range(tokens.dim())))
    part = weight(8, 4)[:6]
    recorder = Noting([part._base])
    HANDLERS[F.embedding](recorder, F.embedding, (tokens, part, padding), {})
    assert not recorder.uses  # a part of a table


@pytest.mark.parametrize("norm", [None, 1.0, 2.0])
def test_tables_with_a_limit(norm: float | None) -> None:
    """Long rows are shortened as torch does it, in a copy; gradients are those of a plain lookup."""
    torch.manual_seed(0)
    tokens, table = torch.tensor([[0, 1], [2, 5], [5, 0]], device=DEVICE), weight(6, 4)
    with torch.no_grad():
        table.mul_(torch.tensor([0.1, 1, 2, 3, 0.2, 5], device=DEVICE)[:, None])
    kept = table.detach().clone()
    options: dict[str, Any] = {"max_norm": 1.5} | ({} if norm is None else {"norm_type": norm})
    expected = F.embedding(tokens, kept.clone(), **options)
    bags = F.embedding_bag(tokens, kept.clone(), mode="sum", **options)
    recorder = Noting([table])
    with UnchangedTables():
        looked = F.embedding(tokens, table, scale_grad_by_freq=True, **options)
        summed = F.embedding_bag(tokens, weight=table, mode="sum", scale_grad_by_freq=True, **options)
        assert torch.equal(F.relu(table), table.relu())
    for found in (HANDLERS[F.embedding](recorder, F.embedding, (tokens, table), options), looked):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)  # torch divides by the norm plus 1e-7
        (gradient,) = torch.autograd.grad(found.sum(), table)
        torch.testing.assert_close(
            gradient, torch.bincount(tokens.flatten(), minlength=6).double()[:, None].expand(6, 4)
        )
    torch.testing.assert_close(summed, bags, rtol=1e-6, atol=1e-9)
    (gradient,) = torch.autograd.grad(summed.sum(), table)
    torch.testing.assert_close(gradient, torch.bincount(tokens.flatten(), minlength=6).double()[:, None].expand(6, 4))
    assert torch.equal(table, kept) and recorder.uses[0].rule.name == "embedding"


@pytest.mark.parametrize("padding", [None, 5, -1, 0])
def test_forward_derivatives_of_padding_tokens(padding: int | None) -> None:
    """Are zero, as torch's backward ones are."""
    torch.manual_seed(0)
    tokens, table, moved = torch.tensor([[0, 1], [2, 5], [5, 0]], device=DEVICE), normal(6, 4), normal(6, 4)
    with ConstantPadding():
        values, found = torch.func.jvp(lambda each: F.embedding(tokens, each, padding), (table,), (moved,))
    assert torch.equal(values, table[tokens])
    expected = moved[tokens]
    if padding is not None:
        expected[tokens == padding % 6] = 0
    torch.testing.assert_close(found, expected)


def statistics(size: int) -> dict[str, Tensor]:
    """Of a batch norm."""
    return {"running_mean": normal(size), "running_var": normal(size).square() + 0.5}


Norm = Callable[[Any, Any], Call]  # of scale and shift, each of four numbers
NORMS: dict[str, tuple[Norm, tuple[int, ...]]] = {
    "layer norm": (lambda w, b: (F.layer_norm, (normal(3, 2, 4), (4,), w, b), {}), (0, 1)),
    "RMS norm": (lambda w, _: (F.rms_norm, (normal(3, 2, 4), (4,), w), {"eps": 0.1}), (0, 1)),
    "group norm": (lambda w, b: (F.group_norm, (normal(3, 4, 5), 2, w, b), {}), (0,)),
    "instance norm": (lambda w, b: (F.instance_norm, (normal(3, 4, 5, 2),), {"weight": w, "bias": b}), (0,)),
    "batch norm": (lambda w, b: (F.batch_norm, (normal(3, 4, 5),), {**statistics(4), "weight": w, "bias": b}), (0,)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    """Scale and shift, each with the other and alone."""
    torch.manual_seed(0)
    make, free = NORMS[name]
    check(make(weight(4), weight(4)), [name], free)
    check(make(weight(4), normal(4)), [name], free)
    if name != "RMS norm":
        check(make(normal(4), weight(4)), [name], free)
    if name in ("layer norm", "RMS norm"):
        call = (make(None, None)[0], (normal(3, 2, 4), (2, 4), weight(2, 4)), {})
        check(call, [name])


def test_batch_norms_with_running_statistics() -> None:
    """So small a variance that `eps` counts, by its default too; and what is not frozen is torch's."""
    torch.manual_seed(0)
    given, scale = normal(3, 4, 5).requires_grad_(), weight(4)
    plain: dict[str, Any] = {"running_mean": normal(4), "running_var": torch.full((4,), 1e-5).to(given)}
    for options in ({}, {"eps": 1e-3}, {"weight": scale}):
        ours = frozen_batch_norm({"input": given, **plain, **options})
        assert ours.grad_fn.name() == "FrozenBatchNormBackward"
        theirs = F.batch_norm(given, **plain, **options)
        probe = normal(3, 4, 5)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(
            torch.autograd.grad(ours, given, probe)[0], torch.autograd.grad(theirs, given, probe)[0]
        )
    none = {"running_mean": None, "running_var": None, "training": True}
    for change in ({"input": given.detach(), "weight": scale}, none):
        assert "Frozen" not in frozen_batch_norm({"input": given, **plain, **change}).grad_fn.name()
    for name, each in plain.items():
        with pytest.raises(RuntimeError, match="not differentiable"):
            frozen_batch_norm({"input": given, **plain, name: each.clone().requires_grad_()})


@pytest.mark.parametrize("name", ["batch norm", "layer norm"])
def test_scales_that_are_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a path of their own, beside a shift that is a parameter; ours is taken where both are, once."""
    torch.manual_seed(0)
    monkeypatch.setattr(available, "usable", lambda _: True)
    given, below, scale, shift = normal(3, 4, 4).requires_grad_(), weight(4), weight(4), weight(4)
    func, args, kwargs = NORMS[name][0](below.exp(), shift)
    args = (given, *args[1:])
    recorder = Noting([shift])
    recorder.probes = True
    output, probe = HANDLERS[func](recorder, func, args, kwargs), normal(3, 4, 4)
    found = torch.autograd.grad(output, [given, below], probe, retain_graph=True)
    for one, right in zip(found, torch.autograd.grad(func(*args, **kwargs), [given, below], probe), strict=True):
        torch.testing.assert_close(one, right)
    assert [set(use.views) for use in recorder.uses] == [{"bias"}]
    _, _, kwargs = NORMS[name][0](scale, shift)
    args = (given, (4,), scale, shift) if name == "layer norm" else (given,)
    for second in (False, True):
        recorder = Noting([scale, shift])
        recorder.probes, recorder.second = True, second
        output = HANDLERS[func](recorder, func, args, kwargs)
        assert (output.grad_fn.name() in ("FrozenBatchNormBackward", "FrozenLayerNormBackward")) == (not second)
        assert [set(use.views) for use in recorder.uses] == [{"weight", "bias"}]


@pytest.mark.parametrize("affine", [True, False])
def test_statistics_of_the_batch_are_refused(affine: bool) -> None:
    """With the name of the layer's weight, where it has one."""
    own = weight(4)
    options = {"training": True} | ({"weight": own} if affine else {})
    whose = "'0'" if affine else "'a batch norm without scale and shift'"
    with pytest.raises(ValueError, match=f"^{whose} normalises with the statistics of the batch"):
        HANDLERS[F.batch_norm](Noting([own]), F.batch_norm, (normal(3, 4, 5), None, None), options)


ELEMENTWISE: dict[str, tuple[Callable[[], Call], str]] = {
    "added": (lambda: (torch.add, (normal(3, 2, 4), weight(4)), {}), "added parameter"),
    "added first": (lambda: (Tensor.__add__, (weight(2, 1), normal(3, 2, 4)), {}), "added parameter"),
    "taken away": (lambda: (torch.sub, (normal(3, 2, 4), weight(1, 2, 4)), {"alpha": 2}), "added parameter"),
    "multiplied": (lambda: (Tensor.__mul__, (normal(3, 2, 4), weight(2, 4)), {}), "multiplied parameter"),
    "divided": (lambda: (torch.div, (normal(3, 2, 4), weight(4)), {}), "multiplied parameter"),
    "a view": (lambda: (torch.mul, (normal(3, 2, 4), weight(4, 2).T), {}), "multiplied parameter"),
    "a part": (lambda: (torch.mul, (normal(3, 2, 4), weight(7)[1:5]), {}), "multiplied parameter"),
    "a number": (lambda: (torch.mul, (normal(3, 2, 4), weight(1)), {}), "multiplied parameter"),
    "expanded": (lambda: (Tensor.expand, (weight(1, 2, 4), 3, -1, -1), {}), "expanded parameter"),
    "repeated": (lambda: (Tensor.repeat, (weight(1, 2, 4), 3, 1, 1), {}), "expanded parameter"),
    "like another": (lambda: (Tensor.expand_as, (weight(4), normal(3, 2, 4)), {}), "expanded parameter"),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str) -> None:
    """Where a parameter is broadcast over the examples; the result is shown to whoever watches."""
    torch.manual_seed(0)
    make, rule = ELEMENTWISE[name]
    call = make()
    small = next(tuple(each.shape) for each in call[1] if base_of(each) is not None)
    ones = tuple(axis for axis, size in enumerate((1,) * (3 - len(small)) + small) if size == 1)
    assert len(check(call, [rule], ones).shown) == 1


@pytest.mark.parametrize("channels", [1, 4])
def test_slopes_below_zero(channels: int) -> None:
    """One, or one for each channel; the generic rule is told not to map over them."""
    torch.manual_seed(0)
    for given in (normal(3, 4, 5), normal(3, 4)):
        stretched_axes = tuple(axis for axis in range(given.dim()) if channels == 1 or axis != 1)
        recorder = check((F.prelu, (given, weight(channels)), {}), ["multiplied parameter"], stretched_axes)
        assert not recorder.mapped and len(recorder.shown) == 1


def test_parameters_that_are_changed_in_place() -> None:
    """Are not noted; one that something computed is changed by is. Whatever has more to it is passed on."""
    torch.manual_seed(0)
    own = weight(4)
    for func in (Tensor.add_, Tensor.__imul__, Tensor.div_):
        recorder = Noting([own])
        found = HANDLERS[func](recorder, func, (normal(3, 4), own), {})
        assert len(recorder.uses) == 1 and found.requires_grad
        recorder = Noting([own])
        with torch.no_grad():
            HANDLERS[func](recorder, func, (own, normal(4)), {})
        assert not recorder.uses
    recorder = Noting([own])
    made = torch.empty(3, 4, dtype=torch.float64, device=DEVICE)
    with torch.no_grad():
        HANDLERS[torch.add](recorder, torch.add, (normal(3, 4), own), {"out": made})
    HANDLERS[torch.add](recorder, torch.add, (2.0, own), {})
    HANDLERS[torch.mul](recorder, torch.mul, (own,), {"other": normal(3, 4)})
    HANDLERS[Tensor.repeat](recorder, Tensor.repeat, (own, 3), {})  # numbers beside each other: no axis is stretched
    HANDLERS[Tensor.expand](recorder, Tensor.expand, (normal(1, 4), 3, 4), {})
    assert not recorder.uses
    repeated = HANDLERS[Tensor.repeat](recorder, Tensor.repeat, (own, 3, 1), {})
    assert repeated.is_contiguous() and repeated.stride() == (4, 1)  # memory of its own
    assert HANDLERS[Tensor.expand](recorder, Tensor.expand, (own, 3, 4), {}).stride() == (0, 1)


def test_gradients_are_summed_where_a_shape_was_stretched() -> None:
    """Over axes of one alone, which stay."""
    grad = normal(2, 3, 4, 5, 1)
    assert torch.equal(sum_broadcast(grad, (4, 5, 1), 2), grad)
    torch.testing.assert_close(sum_broadcast(grad, (1, 5, 1), 2), grad.sum(2, keepdim=True))
    torch.testing.assert_close(sum_broadcast(grad, (1, 1, 1), 2), grad.sum((2, 3), keepdim=True))
    assert pad_shape((4,), 3) == (1, 1, 4) and pad_shape((2, 4), 2) == (2, 4)
    assert broadcast_axes((4,), (3, 2, 4)) == (0, 1) and broadcast_axes((2, 1), (3, 2, 4)) == (0, 2)


@pytest.mark.parametrize("skip", [0, 1])
def test_examples_are_moved_to_the_front(skip: int) -> None:
    """From an axis of their own, from one they share with positions, and where there is none."""
    plain = (
        normal(7, 2, 5, 3) if skip else normal(2, 5, 3)
    )  # behind what is skipped: two axes of which one has examples
    merged = plain.flatten(skip, 1 + skip)
    assert torch.equal(BatchAxis(1, "none").split(plain, 5, skip), plain.transpose(skip, 1 + skip))
    assert torch.equal(BatchAxis(0, "major").split(merged, 2, skip), plain)
    assert torch.equal(BatchAxis(0, "minor").split(merged, 5, skip), plain.transpose(skip, 1 + skip))
    assert torch.equal(BatchAxis(0, "whole").split(plain, 1, skip), plain.unsqueeze(skip))
    last = plain.movedim(-1, skip).flatten(1 + skip)  # (3, 2 * 5)
    assert torch.equal(BatchAxis(1, "major").split(last, 2, skip), plain.movedim((skip, -1), (skip, 1 + skip)))
    assert torch.equal(BatchAxis(1, "minor").split(last, 5, skip), plain.movedim((1 + skip, -1), (skip, 1 + skip)))


def test_places_where_examples_could_be() -> None:
    """Axes of their own before shared ones, of those that are free."""
    found = batch_axes((3, 6, 3, 5), (0, 1, 3), 3)
    assert [(each.axis, each.fold) for each in found] == [(0, "none"), (1, "major"), (1, "minor")]
    assert batch_axes((3, 6, 3), (1, 2), 3)[0] == BatchAxis(2, "none")


def test_rows_of_examples() -> None:
    """Each has as many places as the one with most; empty ones are zeros that do not count."""
    owners = torch.tensor([2, 0, 2, 2, 0], device=DEVICE)
    owned = OwnedRows.of(1, owners, 4)
    rows = normal(2, 5, 3)
    parted = owned.split(rows, 4)
    assert parted.shape == (4, 2, 3, 3)
    expected = torch.zeros(4, 2, 3, 3).to(rows)
    for example, mine in enumerate(([1, 4], [], [0, 2, 3], [])):
        for place, row in enumerate(mine):
            expected[example, :, place] = rows[:, row]
    assert torch.equal(parted, expected)
    assert torch.equal(owned.split(rows[None], 4, 1), expected[None])
    assert owned.counted.tolist() == [[True, True, False], [False] * 3, [True] * 3, [False] * 3]
    acts = Acts(make=lambda examples: normal(4, 1, 6, 2)[examples], width=2, positions=6)
    term = owned.mask(Term(acts, normal(1, 4, 1, 6, 2)))
    assert term.counted.tolist()[0] == [True] * 4 + [False] * 2
    masked = torch.ones(4, 6, dtype=torch.bool, device=DEVICE)
    masked[0, 1] = False
    assert (
        owned.mask(Term(acts, term.grad, counted=masked)).counted.tolist()[0]
        == [True, False] + [True] * 2 + [False] * 2
    )
    assert OwnedRows.of(0, owners[:0], 2).rows.shape == (2, 1)


def test_positions_and_channels() -> None:
    """Folds and places are positions; groups come first."""
    x = normal(2, 3, 4, 5)
    assert torch.equal(positions_last(x, 1, 20), x.flatten(2)) and torch.equal(positions_last(x, 0, 5), x.flatten(0, 2))
    folded = normal(2, 7, 6, 4, 5)  # an example's seven images of six channels
    made = split_channels(folded, 1, 2, 3)
    assert made.shape == (2, 3, 7 * 20, 2)
    for group, fold, channel in ((0, 0, 0), (2, 6, 1), (1, 3, 0)):
        place = folded[:, fold, 2 * group + channel, 3, 2]
        assert torch.equal(made[:, group, 20 * fold + 5 * 3 + 2, channel], place)
    assert torch.equal(split_channels(folded[:, 0], 1, 2, 1)[:, 0], folded[:, 0].flatten(2).mT)


def test_edges_that_survive_changes_in_place() -> None:
    """Of what a view is made of, where it has the same numbers in the same order; else a copy is made."""
    leaf = weight(4, 6)
    computed = leaf * 2
    views: list[
        tuple[Tensor, bool, bool]
    ] = [  # whether it is the whole of something computed, and whether it is copied
        (computed, False, False),
        (computed.view(6, 4), True, False),
        (computed[None], True, False),
        (computed[1:], False, True),
        (computed.T, False, True),
        (leaf.view(24), False, False),
        (computed.T.T, True, False),
    ]
    for view, whole, copied in views:
        assert is_reshaped(view) == whole and (copy_if_fragile(view) is not view) == copied
        assert torch.equal(copy_if_fragile(view), view)
        assert output_edge(view).node is (view._base if whole else view).grad_fn
