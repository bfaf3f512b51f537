"""How the rules' derivatives are compared with plain ones, piece by piece: numbers written out, and plain autograd."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from environment import DEVICE
from networks import Network
from peewit.jacobians.explicit import Explicit
from peewit.network.nests import take
from peewit.runtime.memory import Budget
from peewit.tracing import verification
from peewit.tracing.comparison import EQUAL, ComparisonResult, DerivativeComparison, first_names, first_other, unlike
from peewit.tracing.knowledge import Knowledge, KnowledgeLearner, signature
from peewit.tracing.plain import EXACT, Bounds, PlainDerivatives, bounds, nudge
from peewit.tracing.tracer import Tracer
from peewit.tracing.verification import is_awaited, verify, without_lengths
from peewit.weights.ranges import WeightRange

close = torch.testing.assert_close
BUDGET = Budget(1 << 24)
HALVES = Bounds(0.5, 0.25, 0.125)  # sums and products with these are exact


def at(*values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers on the device under test."""
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def stand_in(**parts: Any) -> Any:
    """What has these attributes."""
    return SimpleNamespace(**parts)


def comparison(model: Any = None, several: Any = None, allowed: Bounds = EXACT, **known: Any) -> Any:
    """Of a network or of a stand-in for its tracer; what is known already is not computed."""
    tracer: Any = model
    if isinstance(model, nn.Module):
        tracer = Tracer(model, tuple(name for name, _ in model.named_parameters()), BUDGET)
    made = DerivativeComparison(
        tracer=tracer, batch=several, several=several, allowed=allowed, tape=known.pop("tape", None)
    )
    made.plain = PlainDerivatives(
        model=getattr(tracer, "model", None) or nn.Identity(),
        parameters=getattr(tracer, "parameters", {}),
        dtype=getattr(tracer, "dtype", torch.float64),
        inputs=known.get("inputs") if several is None else take(several, slice(0, 2)),
        allowed=allowed,
    )
    for name, value in known.items():
        vars(made.plain if hasattr(PlainDerivatives, name) else made)[name] = value
    return made


def bent() -> nn.Module:
    """(B, 3) -> (B, 2), by two weights; a third is not used."""
    model = Network(
        lambda net, x: torch.tanh(x @ net.first) * net.second.square(),
        first=nn.Parameter(torch.tensor([[1.0, 0.5], [-0.5, 0.25], [0.75, -1.0]])),
        second=nn.Parameter(torch.tensor([1.5, -0.5])),
        unread=nn.Parameter(torch.ones(4)),
    )
    return model.double().to(DEVICE)


X = [[0.5, -1.0, 0.25], [1.0, 0.5, -0.5], [-0.25, 0.5, 1.0], [2.0, 0.25, 0.5], [0.5, 0.5, 1.5], [-1.0, 2.0, 0.5]]


def plain_gradients(model: nn.Module, x: Tensor, probes: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Of the first probe and half of the second, one example after the other, each alone."""
    made = []
    for place in range(2):
        output = model(x[place : place + 1])[0]
        total = (output * (probes[0, place] + 0.5 * probes[1, place])).sum()
        found = torch.autograd.grad(total, parameters, allow_unused=True)
        made += [
            torch.zeros_like(own).flatten() if each is None else each.to_dense().flatten()
            for each, own in zip(found, parameters, strict=True)
        ]
    return made


def tape_of(*dtypes: torch.dtype, model: nn.Module | None = None) -> Any:
    """With an output, a use and a parameter of these dtypes."""
    output, use, parameter = (torch.zeros((), dtype=dtype) for dtype in dtypes)
    return stand_in(output=output, uses=[use], parameters={"w": parameter}, model=model or nn.Identity())


def test_bounds_of_arithmetic() -> None:
    """The least exact of outputs, uses and parameters counts, and what is quantised."""
    double, single = torch.float64, torch.float32
    assert bounds(tape_of(double, double, double)) == (1e-5, 1e-9, 1e-9)
    packed = type("Packed", (nn.Identity,), {"__module__": "torch.ao.nn.quantized"})()
    assert bounds(tape_of(double, double, double, model=packed)) == (2e-1, 2e-2, 1e-1)
    for place in range(3):
        for dtype, expected in (
            (single, (2e-2, 1e-5, 1e-4)),
            (torch.float16, (2e-1, 2e-2, 1e-1)),
            (torch.bfloat16, (2e-1, 2e-2, 1e-1)),
        ):
            dtypes = [double] * 3
            dtypes[place] = dtype
            assert bounds(tape_of(*dtypes)) == expected


def test_what_inputs_of_other_lengths_share() -> None:
    """Where they are given, their dtypes and numbers of axes."""
    assert without_lengths((("x", "torch.float32", (3, 4)), ("y", "torch.int64", ()))) == (
        *(("x", "torch.float32", 2), ("y", "torch.int64", 0)),
    )


def verified(monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    """Comparisons are noted, and say nothing more."""

    def compared(**given: Any) -> Any:
        asked.append(given)
        return stand_in(outcome=lambda: f"outcome {len(asked)}")

    monkeypatch.setattr(verification, "DerivativeComparison", compared)


def small_tape(inputs: Any, **options: Any) -> Any:
    """Of ten numbers per probe."""
    given: Any = {"generic": (), **options}
    examples = len(inputs["x"] if isinstance(inputs, dict) else inputs)
    return stand_in(
        inputs=inputs, examples=examples, numbers_per_probe=lambda: 10, **given, **vars(tape_of(*[torch.float64] * 3))
    )


def test_each_of_the_first_lengths_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; inputs of another dtype or with other axes are of another kind, of which there are again three."""
    asked: list[Any] = []
    verified(monkeypatch, asked)
    tracer: Any = stand_in(learner=KnowledgeLearner(), budget=BUDGET)
    compared = []
    for shape in ((4, 2), (4, 2), (4, 3), (4, 4), (4, 5), (4, 2), (4, 2, 1), (4, 5), (4, 1, 7)):
        before = len(asked)
        inputs = torch.zeros(shape)
        verify(tracer, inputs, small_tape(inputs))
        compared.append(len(asked) - before)
    assert compared == [1, 0, 1, 1, 0, 0, 1, 0, 1]
    inputs = torch.zeros(4, 2).double()
    verify(tracer, inputs, small_tape(inputs))
    outcomes = tracer.learner.knowledge.verified
    assert outcomes[signature(inputs)] == "outcome 6" and len(outcomes) == 6


@pytest.mark.parametrize(
    ("examples", "memory", "options", "served"),
    [
        (1, 1 << 20, {}, False),
        (4, 1 << 20, {}, True),
        (6, 1 << 20, {}, True),
        (4, 160, {}, True),
        (4, 159, {}, False),
        (4, 1 << 20, {"generic": ("w",)}, False),
    ],
)
def test_examples_that_are_compared(
    examples: int, memory: int, options: Any, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single one four times; others as they were recorded, whose tape serves unless it is large or generic."""
    asked: list[Any] = []
    verified(monkeypatch, asked)
    inputs = {"x": torch.arange(1.0, 1.0 + examples)[:, None].double().requires_grad_()}
    tape = small_tape(inputs, **options)
    tracer: Any = stand_in(learner=KnowledgeLearner(), budget=Budget(memory))
    verify(tracer, "all", tape)  # type: ignore[arg-type]
    (given,) = asked
    several, kept = given["several"], given["tape"]
    assert given["tracer"] is tracer and given["batch"] == "all" and given["allowed"] == EXACT
    assert (kept is tape) is served and (served or kept is None)
    assert not several["x"].requires_grad
    assert several["x"].flatten().tolist() == ([1.0] * 4 if examples == 1 else [*range(1, 1 + examples)])


@pytest.mark.parametrize(("message", "heard"), [("Attempting to run cuBLAS", False), ("Attempting nothing", True)])
def test_warnings_while_comparing(message: str, heard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of torch at the first use of a GPU are left out, and no others."""

    def outcome() -> str:
        warnings.warn(message, UserWarning, stacklevel=2)
        return "said"

    monkeypatch.setattr(verification, "DerivativeComparison", lambda **_: stand_in(outcome=outcome))
    inputs = torch.zeros(4, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        verify(stand_in(learner=KnowledgeLearner(), budget=BUDGET), inputs, small_tape(inputs))
    assert [str(each.message) for each in caught] == [message] * heard


def test_the_first_example_that_differs() -> None:
    """In any number of any tensor; it stands beside the first in both orders."""
    x, y = torch.ones(6, 3, 2), torch.zeros(6, dtype=torch.long)
    assert unlike(x) is None
    x[4, 2, 1] = 5.0
    x[5] = 6.0
    y[2:] = torch.arange(2, 6)
    found = unlike(x.requires_grad_())
    assert isinstance(found, Tensor) and not found.requires_grad
    assert torch.equal(found, x[[0, 4, 4, 0]])
    both: Any = unlike({"x": x, "y": y})
    assert torch.equal(both["x"], x[[0, 2, 2, 0]]) and both["y"].tolist() == [0, 2, 2, 0]
    assert unlike(torch.tensor([0.0, 1.0, 0.0])) is None


def test_the_number_of_the_first_example_that_differs() -> None:
    """And whether it was waited for: only where all examples of these shapes were equal."""
    equal, others = torch.ones(4, 2), torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 2.0]])
    assert first_other(equal) == 0 and first_other(equal[:1]) == 0 and first_other(others) == 2
    assert not is_awaited(Knowledge(), others)
    known = Knowledge(verified={signature(equal): "agree" + EQUAL})
    assert is_awaited(known, others) and not is_awaited(known, equal) and not is_awaited(known, others.double())
    assert not is_awaited(Knowledge(verified={signature(equal): "agree"}), others)


RIGHT = ComparisonResult(True, False, False, True, [], [])


def outcome_of(
    monkeypatch: pytest.MonkeyPatch,
    *seen: ComparisonResult | Callable[[], ComparisonResult],
    made: Any = None,
    repeatable: float = 0.0,
) -> tuple[str, list[Any]]:
    """What is said when comparisons show this, one after the other, and what was done about them."""
    done: list[Any] = []
    left = list(seen)

    def next_seen(self: Any) -> ComparisonResult:
        done.append(self)
        each = left.pop(0)
        return each() if callable(each) else each

    monkeypatch.setattr(DerivativeComparison, "_compare", next_seen)
    monkeypatch.setattr(PlainDerivatives, "is_repeatable", lambda self, bound: bound >= repeatable)
    monkeypatch.setattr(DerivativeComparison, "_step_back", lambda self, *given: done.append(given))
    made = comparison(bent(), at(*X[:4]), HALVES) if made is None else made
    return made.outcome(), [each for each in done if each is not made]


AGREE = "derivatives of 2 examples, in a batch and alone, agree with plain reverse mode to 5e-01"


def test_words_of_what_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch, alone if the network takes a single example, and with the first names that nothing can be told of."""
    assert outcome_of(monkeypatch, RIGHT) == (AGREE, [])
    assert outcome_of(monkeypatch, RIGHT._replace(alone=False))[0] == AGREE.replace(" and alone", "")
    for names, words in (
        ("a", "a"),
        ("abc", "a, b, c"),
        ("abcd", "a, b, c and 1 more"),
        ("abcde", "a, b, c and 2 more"),
    ):
        assert first_names([*names]) == words
        faint = RIGHT._replace(faint=[*names])
        assert outcome_of(monkeypatch, faint)[0] == f"{AGREE}; too small there to tell: {words}"


def test_words_where_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs without weights, and outputs that are not finite."""
    frozen = bent().requires_grad_(False)
    words = outcome_of(monkeypatch, RIGHT, made=comparison(frozen, at(*X[:4])))[0]
    assert words == "nothing, since the output does not depend on the weights"
    words = "nothing, since the network's output was not finite"
    assert outcome_of(monkeypatch, ComparisonResult(False, True, True, True, ["first"], []))[0] == words


def test_examples_with_equal_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are compared where there are some; the two are taken as they are where their outputs differ."""
    alike = RIGHT._replace(alike=True)
    assert outcome_of(monkeypatch, alike) == (AGREE, [])
    x = at(X[0], X[0], X[0], X[1], X[2])
    made = comparison(bent(), x[:4], HALVES, tape="first")
    made.batch = x
    assert outcome_of(monkeypatch, RIGHT, made=made) == (AGREE, [])
    words, (second,) = outcome_of(monkeypatch, alike, RIGHT._replace(alone=False), made=made)
    assert words == AGREE.replace(" and alone", "")
    assert torch.equal(second.batch, x[[0, 3, 3, 0]]) and torch.equal(second.several, x[[0, 3, 3, 0]])
    assert second.tape is None and second.allowed is HALVES and second.tracer is made.tracer


def test_examples_that_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused where outputs repeat to the bound of outputs; noise is no dependence."""
    coupled = RIGHT._replace(coupled=True)
    with pytest.raises(ValueError, match=r"^One input has another output in another batch: the network's output for"):
        outcome_of(monkeypatch, coupled, repeatable=0.125)
    assert outcome_of(monkeypatch, coupled, repeatable=0.2) == (AGREE, [])
    noisy = "nothing, since the network's output is not the same for the same inputs"
    assert outcome_of(monkeypatch, coupled._replace(wrong=["first"]), repeatable=0.2) == (noisy, [])
    wrong = RIGHT._replace(wrong=["first"])
    assert outcome_of(monkeypatch, wrong, repeatable=0.6) == (noisy, [])
    assert outcome_of(monkeypatch, wrong, RIGHT, repeatable=0.5) == (AGREE, [(["first"], True)])


def test_weights_that_are_wrong_go_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until none is; the way of the generic rule is the one before the comparison, which may change it."""
    made = comparison(bent(), at(*X[:4]), HALVES)

    def changing() -> ComparisonResult:
        made.tracer.learner.learn(vectorised=False)
        return RIGHT._replace(wrong=["first", "second"])

    words, done = outcome_of(monkeypatch, changing, RIGHT._replace(wrong=["second"]), RIGHT, made=made)
    assert words == AGREE and done == [(["first", "second"], True), (["second"], False)]


def test_tensors_that_the_output_takes_from_an_earlier_pass() -> None:
    """They are named, however deep; what the output does not take is no matter."""
    model = bent()
    model.kept = {"gain": model.second.exp()}
    model.aside = torch.zeros(2, dtype=torch.float64, device=DEVICE)
    comparison(model, at(*X[:4]))._refuse_kept()
    model.body = lambda net, x: (torch.tanh(x @ net.first) * net.kept["gain"]).sin()
    with pytest.raises(ValueError, match=r"^The network's output takes 'kept', which an earlier pass computed from"):
        comparison(model, at(*X[:4]))._refuse_kept()
    with pytest.raises(ValueError, match="at other weights it would be wrong"):
        comparison(model, at(*X[:4])).outcome()


@pytest.mark.parametrize("examples", [4, 6])
def test_examples_of_a_comparison(examples: int) -> None:
    """The first two; and the first beside the fourth, which is the first again."""
    model, x = bent(), at(*X[:examples])
    made = comparison(model, x)
    assert torch.equal(made.inputs, x[:2])
    close(made.plain.output, model(x[:2]))
    assert made.plain.output.requires_grad and not made.beside.requires_grad
    close(made.beside, model(x[[0, 3]]).detach())


def test_one_example_alone() -> None:
    """Where the network takes it; where it does, its failure in a recorded pass is no secret."""
    model, x = bent(), at(*X[:4])
    found = comparison(model, x)._alone()
    assert found.examples == 1
    close(found.output, model(x[:1]))
    full = model.body

    def choosy(net: Any, given: Tensor) -> Tensor:
        if len(given) == 1:
            raise RuntimeError("one alone")
        return full(net, given)

    for forward in (choosy, lambda net, given: full(net, given).squeeze(0)):
        model.body = forward
        assert comparison(model, x)._alone() is None
    model.body = full
    made = comparison(model, x)

    def failing(inputs: Any) -> Any:
        raise RuntimeError("recorded")

    made.tracer.trace = failing
    with pytest.raises(RuntimeError, match="recorded"):
        made._alone()
    for shape, taken in (((1, 2), True), ((1, 3), False), ((2, 2), False), ((0, 2), False)):
        tape = stand_in(output=torch.zeros(shape))
        made.tracer.trace = lambda inputs, tape=tape: tape if torch.equal(inputs, x[:1]) else None
        assert made._alone() is (tape if taken else None)


def test_probes_that_are_compared() -> None:
    """Two random probes, the same every time; an example's is the first plus half of the second, the others' zero."""
    output = torch.zeros(2, 3, 5, dtype=torch.float64, device=DEVICE)
    made = comparison(output=output)
    probes = made.plain.probes
    assert probes.shape == (2, 2, 3, 5) and probes.dtype == torch.float64
    assert not torch.equal(probes.float().double(), probes)
    assert torch.equal(probes, comparison(output=output).plain.probes)
    assert comparison(output=output.float()).plain.probes.dtype == torch.float32
    assert len({*probes.flatten().tolist()}) == probes.numel() and 0.5 < float(probes.std()) < 2.0
    expected = torch.zeros(2, 2, 3, 5, dtype=torch.float64, device=DEVICE)
    for place in range(2):
        expected[place, place] = probes[0, place] + probes[1, place] / 2
    close(made.plain.combined, expected)


@pytest.mark.parametrize(
    ("memory", "sizes", "ends"),
    [
        (2240, (10, 10, 5, 10), [0, 2, 4]),
        (2239, (10, 10, 5, 10), [0, 1, 3, 4]),
        (1 << 20, (10, 10, 5, 10), [0, 4]),
        (560, (10, 5, 5, 20, 1, 1), [0, 1, 2, 3, 4, 6]),
        (111, (1, 1), [0, 1, 2]),
    ],
)
def test_weights_at_a_time(memory: int, sizes: tuple[int, ...], ends: list[int]) -> None:
    """Fourteen copies of each in float64 are 112 bytes a number."""
    tracer = stand_in(selected=[torch.empty(size) for size in sizes], dtype=torch.float64, budget=Budget(memory))
    expected = [slice(*both) for both in itertools.pairwise(ends)]
    assert comparison(tracer).groups == expected
    tracer = stand_in(selected=tracer.selected, dtype=torch.float32, budget=Budget(memory // 2))
    if memory % 2 == 0:
        assert comparison(tracer).groups == expected


def test_plain_gradients() -> None:
    """Of dense, sparse and unused weights, in the widest dtype, against passes of each example alone."""

    def forward(net: Any, token: Tensor) -> Tensor:
        return torch.tanh(net.table(token) @ net.mix)

    model = Network(
        forward,
        table=nn.Embedding(5, 3, sparse=True),
        mix=nn.Parameter(torch.tensor([[1.0, 0.5], [-0.5, 0.25], [0.75, -1.0]])),
        unread=nn.Parameter(torch.ones(4)),
    ).to(DEVICE)
    with torch.no_grad():
        model.table.weight.copy_(torch.arange(15).reshape(5, 3) / 8 - 1)
    model.unread.data = model.unread.data.double()
    tokens = torch.tensor([1, 3, 3, 1], device=DEVICE)
    made = comparison(model, tokens)
    assert made.tracer.dtype == torch.float64
    for group in (slice(0, 3), slice(1, 3)):
        expected = plain_gradients(model, tokens, made.plain.probes, made.tracer.selected[group])
        found = made.plain.inside(made.tracer.selected[group])
        assert all(each.dtype == torch.float64 for each in found)
        close(found, [each.double() for each in expected])
    close(made._kept, made.plain.inside(made.tracer.selected))


def explicit(*shape: int, seed: int) -> Explicit:
    """Random rows (K, B, P)."""
    generator = torch.Generator().manual_seed(seed)
    return Explicit(torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE), BUDGET)


def test_rows_of_each_weight() -> None:
    """From all of its ranges, some of which overlap, with zeros where there are none."""
    sizes = {"a": 6, "b": 4, "none": 3, "other": 2}
    tracer = stand_in(
        parameters={name: torch.empty(size, device=DEVICE) for name, size in sizes.items()}, dtype=torch.float64
    )
    made = comparison(tracer, probes=torch.zeros(2, 2, 1, device=DEVICE))
    found = {
        WeightRange("a", 2, 4): explicit(2, 3, 2, seed=0),
        WeightRange("a", 3, 6): explicit(2, 3, 3, seed=1),
        WeightRange("b", 0, 4): explicit(2, 3, 4, seed=2),
        WeightRange("other", 0, 2): explicit(2, 3, 2, seed=3),
    }
    whole = {name: torch.zeros(3, size, dtype=torch.float64, device=DEVICE) for name, size in sizes.items()}
    for part, rows in found.items():
        whole[part.name][:, part.start : part.stop] += rows.value[0] + rows.value[1] / 2
    for examples in (1, 2):
        expected = [whole[name][place] for place in range(examples) for name in ("a", "b", "none")]
        rows = made._rows(found, slice(0, 3), examples)
        assert all(each.dtype == torch.float64 for each in rows)
        close(rows, expected)
        close(
            made._rows(found, slice(2, 4), examples), [whole[n][p] for p in range(examples) for n in ("none", "other")]
        )
    nothing = [torch.zeros(size, dtype=torch.float64, device=DEVICE) for size in (6, 4, 6, 4)]
    close(made._rows({}, slice(0, 2), 2), nothing)


def batch_and_alone(sizes: dict[str, int]) -> list[Any]:
    """Rows of two examples in a batch and of one alone."""
    return [
        {
            WeightRange(name, 0, size): explicit(2, count, size, seed=seed + place)
            for place, (name, size) in enumerate(sizes.items())
        }
        for seed, count in ((0, 2), (10, 1))
    ]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_norms_that_are_compared(groups: int, alone: bool) -> None:
    """Of differences, of the rules' and of plain derivatives, for both examples and the first again alone."""
    model, x = bent(), at(*X[:4])
    sizes = {"first": 6, "second": 2, "unread": 4}
    found = batch_and_alone(sizes)[: 1 + alone]
    made = comparison(model, x)
    made.groups = [slice(0, 3)] if groups == 1 else [slice(0, 1), slice(1, 3)]
    plain = plain_gradients(model, x, made.plain.probes, made.tracer.selected)
    plain += plain[:3] if alone else []
    rows = [each.value[0] + each.value[1] / 2 for one in found for each in one.values()]
    ours = [rows[place][example] for example in range(2) for place in range(3)]
    ours += [rows[3 + place][0] for place in range(3)] if alone else []
    lines = [[o - p for o, p in zip(ours, plain, strict=True)], ours, plain]
    expected = torch.stack([torch.stack([each.norm() for each in line]).reshape(-1, 3) for line in lines])
    norms = torch.cat([made._norms(found, group) for group in made.groups], -1)
    assert norms.dtype == torch.float64
    close(norms, expected)


class Taped:
    """Stands in for a tape: rows are a multiple of the probes' plain gradients, and what is asked is noted."""

    def __init__(self, output: Tensor, examples: int, rows: dict[str, Tensor]) -> None:
        self.output, self.examples, self.rows = output, examples, rows
        self.asked: list[Tensor] = []

    def pull(self, probes: Tensor) -> dict[WeightRange, Any]:
        """The rows (B, P), in the first probe."""
        self.asked.append(probes)
        return {
            WeightRange(name, 0, each.shape[-1]): Explicit(torch.stack([each, torch.zeros_like(each)]), BUDGET)
            for name, each in self.rows.items()
        }


def seen_of(
    output: Any,
    beside: Any = None,
    alone: Any = None,
    tape: Taped | None = None,
    allowed: Bounds = HALVES,
    last_digits: float = 0.0,
) -> tuple[ComparisonResult, Any]:
    """What is seen of these outputs, where derivatives are 1, 2 and 3 times 4, -3 and the rules' of another sign."""
    output = at(*output)
    tracer = stand_in(
        parameters={name: torch.empty(2, dtype=torch.float64, device=DEVICE) for name in "abc"},
        selected=[*"abc"],
        dtype=torch.float64,
    )
    one = None if alone is None else Taped(at(*alone), 1, {"a": at([3.0, 4.0]), "b": at([6.0, 8.0])})
    rows = {"a": at([-3.0, -4.0], [0.3, 0.4]), "b": at([6.0, 8.0], [6.0, 8.0])}
    taped = Taped(output, 2, rows)
    tracer.trace = lambda inputs: taped if inputs == "inputs" else None
    made = comparison(tracer, allowed=allowed, tape=tape)
    vars(made).update(beside=output if beside is None else at(*beside), inputs="inputs")
    made.plain.output, made.plain.last_digits = output, last_digits
    made.groups = [slice(0, 2), slice(2, 3)]
    plain = {"a": [at(3.0, 4.0), at(3.0, 4.0)] * 2, "c": [at(0.0, 5.0), at(12.0, 0.0)]}
    made.plain.inside = lambda chosen: plain[chosen[0]]
    made._alone = lambda: one
    given: list[Tensor] = []

    def judged(differences: Tensor, sizes: Tensor) -> Any:
        given.extend([differences, sizes])
        return ["wrong"], ["faint"]

    made._judge = judged
    return made._compare(), stand_in(made=made, taped=tape or taped, alone=one, given=given)


def test_what_a_comparison_shows() -> None:
    """Differences and the larger of both sizes, by example and weight, of what a tape or a new pass pulls back."""
    seen, known = seen_of([[1.0, 2.0], [3.0, 4.0]], alone=[[1.0, 2.0]])
    assert seen == (True, False, False, True, ["wrong"], ["faint"])
    differences, sizes = known.given
    close(differences, torch.tensor([[10.0, 5.0, 5.0], [4.5, 5.0, 12.0], [0.0, 5.0, 5.0]]).double())
    close(sizes, torch.tensor([[5.0, 10.0, 5.0], [5.0, 10.0, 12.0], [5.0, 10.0, 5.0]]).double())
    probes = known.made.plain.probes
    assert torch.equal(known.taped.asked[0], probes) and torch.equal(known.alone.asked[0], probes[:, :1])
    tape = Taped(at([1.0, 2.0]), 6, {"a": at(*[[3.0, 4.0]] * 6)})
    seen, known = seen_of([[1.0, 2.0], [3.0, 4.0]], tape=tape)
    assert seen.alone is False and known.made.tape is None
    assert torch.equal(tape.asked[0], torch.cat([known.made.plain.probes] * 3, 1))
    close(known.given[0], torch.tensor([[0.0, 5.0, 5.0], [0.0, 5.0, 12.0]]).double())


@pytest.mark.parametrize(
    ("output", "alike"),
    [
        ([[1.0, 0.0], [1.0, 1e-6]], True),
        ([[1.0, 0.0], [1.0, 1.5e-6]], False),
        ([[4.0, 0.0], [4.0, 3e-6]], True),
        ([[0.25, 0.0], [0.25, 5e-7]], False),
        ([[0.0, 0.0], [0.0, 0.0]], True),
        ([[1.0, 0.0], [0.0, 0.0]], False),
        ([[-4.0, 0.0], [-4.0, 3e-6]], True),
    ],
)
def test_outputs_that_are_alike(output: Any, alike: bool) -> None:
    """To a millionth of the largest."""
    assert seen_of(output)[0].alike is alike


@pytest.mark.parametrize(
    ("beside", "alone", "coupled"),
    [
        ([[4.0, 0.0], [9.0, 9.0]], [[4.0, 0.0]], False),
        ([[4.5, 0.0], [9.0, 9.0]], [[4.0, 0.0]], False),
        ([[4.0, 0.5], [9.0, 9.0]], None, False),
        ([[4.0, 0.625], [9.0, 9.0]], None, True),
        ([[4.0, 0.625], [9.0, 9.0]], [[4.0, 0.0]], True),
        ([[4.0, 0.0], [9.0, 9.0]], [[4.0, 0.7]], False),
        ([[4.0, 0.0], [9.0, 9.0]], [[4.0, 0.9]], True),
        ([[4.0, 0.0], [9.0, 9.0]], [[4.0, -math.nan]], True),
        ([[9.0, 0.0], [9.0, 9.0], [9.0, 9.0]], [[9.0, 9.0]], False),
    ],
)
def test_outputs_that_depend_on_the_batch(beside: Any, alone: Any, coupled: bool) -> None:
    """By an eighth of the largest, which is 4, beside another; by a fifth alone; unless lengths follow the batch."""
    assert seen_of([[4.0, 0.0], [2.0, 1.0]], beside, alone)[0].coupled is coupled


@pytest.mark.parametrize(
    ("beside", "alone", "last_digits", "coupled"),
    [
        (1.0, 0.0, 1.0, False),
        (1.0, 0.0, 0.875, True),
        (0.0, 1.0, 1.0, False),
        (0.0, 1.0, 0.875, True),
        (math.nan, 0.0, 8.0, True),
        (0.0, 0.0, math.nan, False),
    ],
)
def test_gaps_that_are_rounding(beside: float, alone: float, last_digits: float, coupled: bool) -> None:
    """What other last digits of the weights do to the outputs is no dependence, and nothing beyond it is rounding."""
    other, one = [[4.0, beside], [9.0, 9.0]], [[4.0, alone]]
    assert seen_of([[4.0, 0.0], [2.0, 1.0]], other, one, last_digits=last_digits)[0].coupled is coupled


def test_outputs_that_are_not_finite() -> None:
    """Or all zero: then nothing differs."""
    assert seen_of([[math.inf, 0.0], [1.0, 1.0]])[0].finite is False
    assert seen_of([[math.nan, 0.0], [1.0, 1.0]])[0].finite is False
    seen = seen_of([[0.0, 0.0], [0.0, 0.0]], alone=[[0.0, 0.0]])[0]
    assert seen.finite and seen.alike and not seen.coupled


def judged(
    differences: Any,
    sizes: Any,
    *,
    cancelling: float | None = None,
    noise: Any = None,
    shifts: Any = None,
    allowed: Bounds = HALVES,
    used: str = "abc",
) -> tuple[list[str], list[str]]:
    """What is wrong and what is faint of three weights; cancelling and noise are asked for where they are given.

    Shifts of derivatives with the last digits of weights are zero unless they are given.
    """
    differences, sizes = (torch.tensor(each, dtype=torch.float64) for each in (differences, sizes))
    names = "abc"[: sizes.shape[1]]
    tracer = stand_in(
        parameters=dict.fromkeys(names), learner=KnowledgeLearner(Knowledge(used=dict.fromkeys(used, frozenset())))
    )
    made = comparison(tracer, allowed=allowed)
    asked = []

    def cancels() -> Tensor:
        asked.append("cancelling")
        return torch.full((len(names),), 0.0 if cancelling is None else cancelling, dtype=torch.float64)

    def noisy(suspected: list[str]) -> Tensor:
        asked.append("noise")
        return torch.tensor([noise[name] for name in suspected], dtype=torch.float64)

    def shifted(suspected: list[str]) -> Tensor:
        return torch.tensor([(shifts or {}).get(name, 0.0) for name in suspected], dtype=torch.float64)

    made.plain.cancelling, made.plain.noise, made.plain.shifts = cancels, noisy, shifted
    found = made._judge(differences, sizes)
    assert asked == ["cancelling"] * (cancelling is not None) + ["noise"] * (noise is not None)
    return found


SIZES = [[4.0, 1.0, 0.5], [8.0, 2.0, 16.0]]
LIMITS = [[3.0, 1.5, 1.25], [8.0, 5.0, 12.0]]  # half of each, and a quarter of the largest of its example


def changed(rows: list[list[float]], example: int, weight: int, value: float) -> list[list[float]]:
    """With another number."""
    return [
        [value if (i, j) == (example, weight) else each for j, each in enumerate(row)] for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize("example", [0, 1])
@pytest.mark.parametrize("weight", [0, 1, 2])
def test_differences_beyond_rounding(example: int, weight: int) -> None:
    """Half of a derivative's size and a quarter of the largest are allowed, in every example."""
    assert judged(LIMITS, SIZES)[0] == []
    over = changed(LIMITS, example, weight, LIMITS[example][weight] + 0.0625)
    name = "abc"[weight]
    assert judged(over, SIZES, cancelling=0.0, noise={name: 0.0})[0] == [name]
    single = changed([[0.0] * 3] * 2, example, weight, LIMITS[example][weight] + 0.0625)
    assert judged(single, SIZES, cancelling=0.0, noise={name: 0.0})[0] == [name]


def test_differences_of_what_cancels() -> None:
    """Half of a derivative's size, and a quarter of what cancels: 2 + 2."""
    for difference, wrong in ((4.0, []), (4.0625, ["a"])):
        given = changed(LIMITS, 0, 0, difference)
        assert judged(given, SIZES, cancelling=8.0, noise={"a": 0.0} if wrong else None)[0] == wrong
    assert judged(changed(LIMITS, 1, 1, 5.5), SIZES, cancelling=18.0)[0] == []


def test_differences_of_plain_derivatives_themselves() -> None:
    """Four times the noise of those that are suspected is allowed; in float64 it is not asked for."""
    given = changed(changed(LIMITS, 0, 0, 6.0), 1, 2, 14.0)
    assert judged(given, SIZES, cancelling=0.0, noise={"a": 1.5, "c": 3.5})[0] == []
    assert judged(given, SIZES, cancelling=0.0, noise={"a": 1.5, "c": 3.0})[0] == ["c"]
    assert judged(given, SIZES, cancelling=0.0, noise={"a": 1.0, "c": 3.5})[0] == ["a"]
    assert judged([[1.0, 0.0]], [[1.0, 1.0]], cancelling=0.0, allowed=EXACT)[0] == ["a"]


def test_differences_that_last_digits_of_weights_explain() -> None:
    """Four times their shift is allowed in float64, and such weights are too small to tell; others have a noise."""
    sizes = [[6.0, 1.0]]
    assert judged(sizes, sizes, cancelling=0.0, allowed=EXACT, shifts={"a": 1.5, "b": 0.25}) == ([], ["a", "b"])
    assert judged(sizes, sizes, cancelling=0.0, allowed=EXACT, shifts={"a": 1.25, "b": 0.25}) == (["a"], ["b"])
    assert judged([[6.0, 0.0]], sizes, cancelling=0.0, noise={"a": 0.0}, shifts={"a": 1.5}) == (["a"], ["b"])


def test_other_last_digits() -> None:
    """Every number moves by up to four units of its last place, to both sides, and zeros stay."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        given = torch.linspace(-3, 3, 601, device=DEVICE).to(dtype)
        made = nudge(given, torch.Generator(DEVICE).manual_seed(0))
        assert made.dtype == dtype and made.requires_grad
        moves = ((made.detach() - given) / given.abs().clamp_min(1e-30)).double() / torch.finfo(dtype).eps
        assert 1.0 <= float(moves.max()) <= 2.5 and -2.5 <= float(moves.min()) <= -1.0
        assert bool((moves[given == 0] == 0).all())


def test_how_far_last_digits_go() -> None:
    """Outputs and derivatives of a product move by units of its last place; what cancels, by those of its terms."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return x * net.w * net.size - x * net.size * 2.0

    for size in (1.0, 1024.0):
        model = Network(forward, w=nn.Parameter(torch.full((2,), 3.0)), size=size).double().to(DEVICE)
        made = comparison(model, at(*[[1.0, 2.0], [3.0, 4.0]] * 2))
        eps = torch.finfo(torch.float64).eps
        terms = 4.0 * 3.0 * size  # the largest term; all outputs are x times the size
        assert 1.0 * eps * terms <= made.plain.last_digits <= 4 * 3.0 * eps * terms
        assert not made._is_rounding()
        assert float(made.plain.shifts(["w"])) <= 3 * eps * 4 * 3.5 * size  # of the probes alone
    model = Network(lambda net, x: (net.w.square() - 9.0) * x, w=nn.Parameter(torch.full((2,), 3.0 + 1e-15)))
    made = comparison(model.double().to(DEVICE), at(*[[1.0, 2.0], [3.0, 4.0]] * 2))
    assert made._is_rounding()
    shifts = float(made.plain.shifts(["w"])) / float(torch.cat(made.plain.inside(made.tracer.selected[:1])).abs().max())
    assert 0.25 * eps <= shifts <= 12 * eps


def test_noise_is_no_rounding() -> None:
    """Outputs that change by themselves say nothing of last digits; nor do those of a network that takes no others."""
    model = Network(lambda net, x: x * net.w + torch.rand_like(x), w=nn.Parameter(torch.ones(2))).double().to(DEVICE)
    made = comparison(model, at(*[[1.0, 2.0], [3.0, 4.0]] * 2))
    assert made.plain.last_digits == 0.0 and made.plain.shifts(["w"]).tolist() == [0.0]

    def choosy(net: Any, x: Tensor) -> Tensor:
        if net.w is not net.own[0]:
            raise RuntimeError("another weight")
        return x * net.w

    model = Network(choosy, w=nn.Parameter(torch.ones(2))).double().to(DEVICE)
    model.own = (model.w,)
    made = comparison(model, at(*[[1.0, 2.0], [3.0, 4.0]] * 2))
    assert made.plain.last_digits == 0.0 and made.plain.shifts(["w"]).tolist() == [0.0]


def test_outputs_that_are_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are said to be so where something disagrees, and nothing else is done."""
    words = "nothing, since the network's output was zero but for rounding"
    for seen in (RIGHT._replace(coupled=True), RIGHT._replace(wrong=["first"])):
        made = comparison(bent(), at(*X[:4]), HALVES)
        made.plain.last_digits = float(made.plain.output.detach().abs().max())
        assert outcome_of(monkeypatch, seen, made=made) == (words, [])
    made = comparison(bent(), at(*X[:4]), HALVES, last_digits=math.inf)
    assert outcome_of(monkeypatch, RIGHT, made=made) == (AGREE, [])


def test_derivatives_that_are_too_small_to_tell() -> None:
    """In both examples, of weights that are used; what is not finite is none of them, and no measure of others."""
    sizes = [[4.0, 2.0, 1.0], [8.0, 4.0, 4.5]]
    zeros = [[0.0] * 3] * 2
    assert judged(zeros, sizes) == ([], ["b"])
    assert judged(zeros, sizes, used="ac") == ([], [])
    assert judged(zeros, [[4.0, 1.0, 1.0], [8.0, 4.0, 0.0]]) == ([], ["b", "c"])
    infinite = [[math.inf, 0.125, 0.0625]]
    assert judged([[0.0, 0.0, 0.0]], infinite) == ([], ["c"])
    over = judged([[math.nan, 0.125, 0.0]], infinite, cancelling=0.0, noise={"b": 0.0})
    assert over == (["b"], ["c"])


def test_derivatives_that_cancel() -> None:
    """What outputs have beyond their mean, times the probes, over the norm of a weight that has one."""
    weights = [at(3.0, 4.0).requires_grad_(), at(0.0, 0.0), at(0.25, 0.0)]
    tracer = stand_in(parameters=dict(zip("abc", weights, strict=True)))
    made = comparison(tracer, output=at([1.0, 2.0, 3.0], [3.0, 2.0, 7.0]))
    made.plain.combined = at([[1.0, 2.0, 3.0], [0.0] * 3], [[0.0] * 3, [4.0, 5.0, 6.0]])
    size = math.sqrt((1 * 1) ** 2 + (3 * 2) ** 2 + (4 * 1) ** 2 + (6 * 2) ** 2)
    found = made.plain.cancelling()
    assert found.device.type == "cpu"
    close(found, torch.tensor([size / 5, 0.0, size / 0.25], dtype=torch.float64))


class Rounded(torch.autograd.Function):
    """The identity, whose gradient is half as large again in float32."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * (1.5 if grads[0].dtype == torch.float32 else 1.0)


def noisy_network() -> nn.Module:
    """A table and a weight that are used behind the rounded gradient, and one that is not."""

    def forward(net: Any, x: Tensor, token: Tensor) -> Tensor:
        return Rounded.apply(torch.tanh(x @ net.mix + net.table(token))) * net.gain

    model = Network(
        forward,
        table=nn.Embedding(5, 2),
        mix=nn.Parameter(torch.tensor([[1.0, 0.5], [-0.5, 0.25], [0.75, -1.0]])),
        gain=nn.Parameter(torch.tensor([1.5, -0.5])),
    )
    with torch.no_grad():
        model.table.weight.copy_(torch.arange(10).reshape(5, 2) / 8 - 1)
    model.again = model.table
    return model.to(DEVICE)


def test_noise_of_plain_derivatives() -> None:
    """Against the network in float64: half of the exact ones here, of the example and probe with the largest."""
    model = noisy_network()
    x, tokens = at(*X[:4], dtype=torch.float32), torch.tensor([1, 3, 3, 1], device=DEVICE)
    made = comparison(model, {"x": x, "token": tokens})
    names = ["mix", "gain", "table.weight"]
    found = made.plain.noise(names)
    assert found.dtype == torch.float64 and found.shape == (3,) and found.device.type == "cpu"
    twin = noisy_network().double()
    weights = [dict(twin.named_parameters())[name] for name in names]
    rows = []
    for place, share in itertools.product(range(2), ((1.0, 0.0), (0.0, 1.0), (1.0, 0.5))):
        probe = (share[0] * made.plain.probes[0, place] + share[1] * made.plain.probes[1, place]).double()
        output = twin(x[place : place + 1].double(), tokens[place : place + 1])[0]
        exact = torch.autograd.grad((output * probe).sum(), weights)
        rows.append(torch.stack([each.norm() / 2 for each in exact]).cpu())
    expected = torch.stack(rows).amax(0)
    expected[1] = found[1]
    assert found[1] < 1e-6  # behind nothing that rounds
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    body = model.body

    def single(net: Any, x: Tensor, token: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise TypeError("float32 only")
        return body(net, x, token)

    model.body = single
    none = comparison(model, {"x": x, "token": tokens}).plain.noise(names)
    assert torch.equal(none, torch.zeros(3, dtype=torch.float64)) and none.dtype == torch.float64


@pytest.mark.parametrize(
    ("again", "repeatable"),
    [
        ([[4.0, 1.0], [-2.0, 0.5]], True),
        ([[4.0, 1.5], [-2.0, 0.5]], True),
        ([[4.0, 1.0], [-2.0, 0.0]], True),
        ([[4.0, 1.5625], [-2.0, 0.5]], False),
        ([[4.0, 1.0], [-2.0, -0.125]], False),
        ([[-4.0, -1.0], [2.0, -0.5]], False),
        ([[4.0, 1.0]], False),
        ([[math.nan, 1.0], [-2.0, 0.5]], False),
    ],
)
def test_outputs_that_repeat(again: Any, repeatable: bool) -> None:
    """To an eighth of the largest number, which is 4."""
    made = comparison(output=at([4.0, 1.0], [-2.0, 0.5]), inputs="inputs")
    made.plain.call = lambda inputs: at(*again) if inputs == "inputs" else None
    assert made.plain.is_repeatable(0.125) is repeatable


def test_outputs_that_are_smaller_than_one_repeat() -> None:
    """The bound is relative."""
    made = comparison(output=at(0.25, 0.0), inputs="inputs")
    made.plain.call = lambda inputs: at(0.25, 0.0625)
    assert made.plain.is_repeatable(0.25) and not made.plain.is_repeatable(0.125)
    made.plain.call = lambda inputs: at(0.25, 0.0)
    assert made.plain.is_repeatable(0.0)


def stepped_back(
    wrong: str, vectorised: bool = True, pulled: bool | None = None, **known: Any
) -> tuple[Knowledge, tuple[str, ...]]:
    """What is known after weights were wrong; whether several probes were right at once is asked where it is given."""
    tracer = stand_in(
        learner=KnowledgeLearner(Knowledge(corrections=("before",), **known)), trace=lambda inputs: inputs
    )
    made = comparison(tracer, inputs="inputs")
    asked = []

    def pull(tape: Any) -> bool:
        assert tape == "inputs"
        asked.append(tape)
        return bool(pulled)

    made._pulls_alike = pull
    made._step_back([*wrong], vectorised)
    assert len(asked) == (pulled is not None) and tracer.learner.knowledge.corrections[0] == "before"
    return tracer.learner.knowledge, tracer.learner.knowledge.corrections[1:]


def test_the_next_slower_way() -> None:
    """Probes one by one, the generic rule, examples one by one; then nothing is left."""
    known, said = stepped_back("ab", pulled=False, generic=frozenset("b"))
    assert (known.batched, known.vectorised, known.generic) == (False, True, {"b"})
    assert said == ("probes of the Jacobian go one by one, since several at once were off",)
    generic = ("a, c took the generic rule, since the recorded ones were off",)
    known, said = stepped_back("abc", pulled=True, generic=frozenset("b"))
    assert (known.batched, known.vectorised, known.generic, said) == (True, True, {"a", "b", "c"}, generic)
    known, said = stepped_back("abc", generic=frozenset("b"), batched=False)
    assert (known.batched, known.vectorised, known.generic, said) == (False, True, {"a", "b", "c"}, generic)
    known, said = stepped_back("b", generic=frozenset("bc"))
    assert (known.batched, known.vectorised, known.generic) == (True, False, {"b", "c"})
    assert said == ("the generic rule takes examples one by one, since several at once were off",)
    with pytest.raises(ValueError, match=r"^b, c: the derivatives of single examples are not those of plain reverse m"):
        stepped_back("bc", vectorised=False, generic=frozenset("bc"))


@pytest.mark.parametrize(
    ("together", "apart", "right"),
    [
        ([[[4.0, 0.0], [0.0, 8.0]]], [[[4.0, 0.0]], [[0.0, 8.0]]], True),
        ([[[4.0, 2.0], [0.0, 8.0]]], [[[4.0, 0.0]], [[0.0, 8.0]]], True),
        ([[[4.0, 2.5], [0.0, 8.0]]], [[[4.0, 0.0]], [[0.0, 8.0]]], False),
        ([[[4.0, 0.0], [4.5, 8.0]]], [[[4.0, 0.0]], [[0.0, 8.0]]], False),
        ([[[-4.0, 0.0], [0.0, -8.0]]], [[[4.0, 0.0]], [[0.0, 8.0]]], False),
        ([[[0.125, 0.125], [1.0, 0.0]]], [[[0.125, 0.0]], [[1.0, 0.0]]], False),
        ([[[0.0, 0.0], [0.0, 0.0]]], [[[0.0, 0.0]], [[0.0, 0.0]]], True),
        ([[[math.nan, 0.0], [0.0, 8.0]]], [[[4.0, 0.0]], [[0.0, 8.0]]], False),
        ([None], [[None], [None]], True),
        ([None], [[[4.0, 0.0]], [None]], True),
        ([[[4.0, 0.0], [9.0, 8.0]]], [[[4.0, 0.0]], [None]], True),
        ([None, [[4.0, 0.0], [9.0, 8.0]]], [[None, [4.0, 0.0]], [None, [0.0, 8.0]]], False),
    ],
)
def test_several_probes_at_once(together: Any, apart: Any, right: bool) -> None:
    """Half of each gradient's norm is allowed, for every probe and every use that both ways reach."""
    probes = at([[1.0], [2.0]], [[3.0], [4.0]])

    def pulled(source: Any, asked: Tensor, edges: list[Any]) -> list[Any]:
        assert source == "output" and edges == ["use", "lift"]
        if len(asked) == 2:
            assert torch.equal(asked, probes)
            return [None if each is None else at(*each) for each in together]
        place = [torch.equal(asked[0], each) for each in probes].index(True)
        return [None if each is None else at(each) for each in apart[place]]

    tape = stand_in(direct=[stand_in(edge="use")], lifts=[stand_in(edge="lift")], output="output", pull_back=pulled)
    assert comparison(probes=probes, allowed=HALVES)._pulls_alike(tape) is right
