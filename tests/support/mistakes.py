"""What goes wrong with data and the numbers in it: rows of a table, and the world that they happen in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import classes, normal
from peewit.curvature.structures import NAMES as STRUCTURES
from snapshots import changed, same, snapshot
from tables import moved

NAN, INF = float("nan"), float("inf")


def network() -> nn.Module:
    """(B, 4) to (B, 3) in float32, in training mode, with gradients, a hook and a frozen weight."""
    model = apart(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)))
    model = model.to(DEVICE).train()
    model[1].bias.requires_grad_(False)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    model[3].register_forward_hook(lambda *_: None)
    return model


def alike(left: Tensor, right: Tensor) -> bool:
    """The same answer twice: to the bit, but for sums on a GPU, which may be taken in another order."""
    return torch.allclose(left, right, rtol=1e-4, atol=1e-6) if DEVICE.startswith("cuda") else same(left, right)


@dataclass(kw_only=True)
class World:
    """A network with data and fits of it, and everything that is to stay as it is."""

    model: nn.Module = field(default_factory=network)
    x: Tensor = field(default_factory=lambda: moved(normal(10, 4).float()))
    y: Tensor = field(default_factory=lambda: moved(classes(3, 10)))
    r: Tensor = field(default_factory=lambda: moved(normal(10, 3, seed=5).float()))
    watched: list[tuple[nn.Module, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.la = pw.fit(self.model, (self.x, self.y), "classification")
        self.regression = pw.fit(self.model, (self.x, self.r), "regression", structure="full")
        self.D = self.la.D
        self.kept = [self.x.clone(), self.y.clone(), self.r.clone()]
        self.before = self.answers()

    def begin(self) -> World:
        """What is the same before and after one row."""
        self.watched.clear()
        self.watch(self.model)
        return self

    def watch(self, model: nn.Module) -> nn.Module:
        """Another network that is to stay as it is."""
        model = model.to(DEVICE)
        self.watched.append((model, snapshot(model)))
        return model

    def fit(
        self, data: Any = None, likelihood: Any = "classification", model: Any = None, **options: Any
    ) -> pw.Laplace:
        """With something wrong in one place."""
        model = self.model if model is None else self.watch(model)
        return pw.fit(model, (self.x, self.y) if data is None else data, likelihood, **options)

    def products(self, data: Any = None, likelihood: Any = "classification", **options: Any) -> Any:
        """Likewise."""
        return pw.products(self.model, (self.x, self.y) if data is None else data, likelihood, **options)

    def spoilt(self, what: str, example: int, value: float = NAN) -> Tensor:
        """Data with a number that is not finite."""
        made = getattr(self, what).clone()
        made[example, 1] = value
        return made

    def answers(self) -> list[Tensor]:
        """What good questions give: a new fit, and the old ones."""
        again = pw.fit(self.model, (self.x, self.y), "classification", structure="ekfac")
        return [
            again.functional(self.x).cov,
            again.log_evidence(),
            self.la.functional(self.x).cov,
            self.la.predict(self.x[:3]).probs,
            self.la.log_evidence(),
            self.regression.functional(self.x, joint=True).cov,
            self.regression.log_evidence(),
            self.la.sample(2, generator=torch.Generator().manual_seed(1)),
        ]

    def untouched(self) -> None:
        """Nothing was lost."""
        for model, before in self.watched:
            assert changed(model, before) == []
        assert same(self.kept, [self.x, self.y, self.r])
        assert all(alike(new, old) for new, old in zip(self.answers(), self.before, strict=True))
        assert changed(self.model, self.watched[0][1]) == []


def apart(make: Callable[[], Any]) -> Any:
    """Something made at random, with the random state as it was."""
    devices = [torch.cuda.current_device()] if DEVICE.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(3)
        return make()


class Made(nn.Module):
    """A network whose forward is given."""

    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.head = apart(lambda: (nn.Linear(4, 4), nn.Linear(4, 3)))
        self.bare = nn.Parameter(torch.zeros(4))
        self.own = forward

    def forward(self, x: Tensor) -> Any:
        """Whatever was given."""
        return self.own(self, x)


def with_weights(value: float) -> nn.Module:
    """A network whose training diverged."""
    model = network()
    model[3].weight.data[1, 2] = value
    return model


def undefined_gradient(net: Any, x: Tensor) -> Tensor:
    """Finite outputs whose gradient at zero is not."""
    return net.head((net.first(x) * 0).abs().sqrt())


def undefined_bare(net: Any, x: Tensor) -> Tensor:
    """The same for a parameter without a layer."""
    return net.head(x + net.bare.abs().sqrt())


class Growing:
    """One batch more every time."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.passes = batches, 1

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return iter(self.batches[: self.passes])


def used_up(world: World) -> Any:
    """A generator that was read before."""
    data = iter([(world.x, world.y)])
    list(data)
    return data


@dataclass(frozen=True)
class Row:
    """What is done, what it raises, and what the message has to say: given, expected, what to do."""

    name: str
    provoke: Callable[[World], Any]
    error: type[Exception]
    says: tuple[str, ...]


def halves(world: World, x: Tensor | None = None, y: Tensor | None = None) -> list[Any]:
    """Two batches of five."""
    x, y = world.x if x is None else x, world.y if y is None else y
    return [(x[:5], y[:5]), (x[5:], y[5:])]


PLACE = ("example 7", "batch 1", "examples 5 to 9")
V, T = ValueError, TypeError

DATA = [
    Row("empty loader", lambda w: w.fit([]), V, ("no examples", "loader is empty")),
    Row("empty tensors", lambda w: w.fit((w.x[:0], w.y[:0])), V, ("no examples",)),
    Row("empty for the last layer", lambda w: w.fit([], weights="last_layer"), V, ("no examples",)),
    Row("empty for products", lambda w: w.products([]).mv(torch.ones(w.D)), V, ("no examples", "loader is empty")),
    Row("a used-up generator", lambda w: w.fit(used_up(w)), V, ("no examples", "one-shot iterator already used up")),
    Row(
        "a generator, twice",
        lambda w: w.fit(iter(halves(w)), structure="ekfac"),
        V,
        ("'ekfac' passes over the data twice", "one-shot iterator", "expected a DataLoader, a list"),
    ),
    Row("a generator for products", lambda w: w.products(iter(halves(w))), V, ("every time", "one-shot iterator")),
    Row(
        "another number of examples",
        lambda w: w.fit(Growing([*halves(w), *halves(w)]), structure="ekfac"),
        V,
        ("10 examples in the first pass and 15 in the second", "expected the same data", "sampler or drop_last"),
    ),
    Row(
        "another number of examples, Hessian",
        lambda w: w.fit(Growing([*halves(w), *halves(w)]), structure="full", curvature="hessian", prior=100.0),
        V,
        ("10 examples in the first pass and 15 in the second", "expected the same data"),
    ),
    Row("one tensor", lambda w: w.fit(w.x), T, ("data is one tensor", "expected (inputs, targets)")),
    Row(
        "nothing",
        lambda w: pw.fit(w.model, None, "classification"),
        T,
        ("data is a NoneType", "expected a pair", "a DataLoader"),
    ),
    Row("a text", lambda w: w.fit("train"), T, ("the text 'train'", "expected (inputs, targets)")),
    Row(
        "one mapping",
        lambda w: w.fit({"input": w.x, "labels": w.y}),
        T,
        ("one mapping with keys ['input', 'labels']", "expected", "goes in as [data]"),
    ),
    Row("a mapping without labels", lambda w: w.fit([{"input": w.x}]), V, ("keys ['input']", "expected", "'labels'")),
    Row("a list of two", lambda w: w.fit([w.x, w.y]), T, ("a list of 2", "expected", "go in as (x, y)")),
    Row("a tuple of three", lambda w: w.fit((w.x, w.x, w.y)), T, ("a tuple of 3", "several inputs as ((x1, x2), y)")),
    Row("three in a batch", lambda w: w.fit([(w.x, w.x, w.y)]), T, ("tuple of 3", "expected (x, y), ((x1, x2), y)")),
    Row("one array", lambda w: w.fit(w.x.cpu().numpy()), T, ("one ndarray of shape (10, 4)", "go in as (x, y)")),
    Row(
        "a list of arrays",
        lambda w: w.fit([w.x.cpu().numpy(), w.y.cpu().numpy()]),
        T,
        ("a list of 2, first a ndarray", "expected (inputs, targets)", "go in as (x, y)"),
    ),
    Row("lists alone", lambda w: w.fit(w.x.tolist()), T, ("lists of numbers", "expected (inputs, targets)", "(x, y)")),
    Row(
        "targets apart",
        lambda w: pw.fit(w.model, w.x, w.y, "classification"),
        T,
        ("4 arguments", "fit(model, (x, y), l"),
    ),
    Row(
        "targets for a likelihood",
        lambda w: pw.fit(w.model, w.x, w.y, likelihood="classification"),
        T,
        ("likelihood twice", "fit(model, (x, y), likelihood)"),
    ),
    Row(
        "targets of an evaluation",
        lambda w: pw.evaluate(w.la, w.x, w.y),
        T,
        ("3 arguments", "evaluate(la_or_model, (x, y))"),
    ),
    Row(
        "words for labels",
        lambda w: w.fit((w.x, ["a", "b"] * 5)),
        T,
        ("holds words, such as 'a'", "pandas.factorize(y"),
    ),
    Row("rows of other lengths", lambda w: w.fit(([[1.0] * 4, [1.0]], [0, 1])), V, ("lengths [1, 4]", "in every row")),
    Row(
        "words from a loader", lambda w: w.fit([(w.x[:2], ("a", "b"))]), T, ("Targets are a tuple", "expected a tensor")
    ),
    Row(
        "lengths that differ",
        lambda w: w.fit((w.x, w.y[:7])),
        V,
        ("10 inputs and targets of shape (7,)", "Expected one target per example"),
    ),
    Row(
        "lengths of a batch", lambda w: w.fit([(w.x, w.y[:7])]), V, ("10 inputs and targets of shape (7,)", "Expected")
    ),
    Row(
        "lengths of inputs", lambda w: w.fit([((w.x, w.x[:3]), w.y)]), V, ("[(10, 4), (3, 4)]", "expected one leading")
    ),
    Row(
        "no batch axis",
        lambda w: w.fit((w.x[0], w.y[0])),
        V,
        ("targets of shape ()", "leading axis", "(x[None], y[None])"),
    ),
    Row(
        "a list of examples",
        lambda w: w.fit(list(zip(w.x, w.y, strict=True))),
        V,
        ("targets of shape ()", "leading axis of examples", "by a DataLoader"),
    ),
    Row("a scalar input", lambda w: w.fit([(w.x[0, 0], w.y[0])]), V, ("shapes [()]", "expected one leading axis")),
]

TARGETS = [
    Row(
        "label too large",
        lambda w: w.fit(halves(w, y=w.y + (torch.arange(10, device=DEVICE) == 7) * 5)),
        V,
        ("outside 0..2", "the network has 3 outputs", *PLACE),
    ),
    Row("negative label", lambda w: w.fit((w.x, w.y - 3)), V, ("outside 0..2", "-100 is ignored", "example 0")),
    Row("labels of products", lambda w: w.products((w.x, w.y + 3)).mv(torch.ones(w.D)), V, ("outside 0..2", "batch 0")),
    Row(
        "labels with fractions",
        lambda w: w.fit((w.x, w.y + 0.5)),
        T,
        ("torch.float32", "expected integers (class numbers)", "pw.fit(model, (x, y), 'regression')"),
    ),
    Row("boolean labels", lambda w: w.fit((w.x, w.y > 0)), T, ("torch.bool", "expected integers", "y.long()")),
    Row(
        "labels (N, 2)",
        lambda w: w.fit((w.x, w.y[:, None].expand(-1, 2))),
        V,
        ("(10, 3)", "(10, 2)", "expected labels shaped like"),
    ),
    Row("labels in a row", lambda w: w.fit((w.x, w.y[None])), V, ("10 inputs", "(1, 10)", "Give y[0]")),
    Row(
        "one-hot labels",
        lambda w: w.fit((w.x, nn.functional.one_hot(w.y, 3))),
        V,
        ("(10, 3)", "expected labels shaped", "y.argmax(1)"),
    ),
    Row(
        "target that broadcasts",
        lambda w: w.fit((w.x, w.r[:, :1]), "regression"),
        V,
        ("(10, 3)", "(10, 1)", "nothing is broadcast", "Linear(..., 1)"),
    ),
    Row(
        "flat target", lambda w: w.fit((w.x, w.r[:, 0]), "regression"), V, ("(10, 3)", "(10,)", "expected equal shapes")
    ),
    Row(
        "boolean target",
        lambda w: w.fit((w.x, w.r > 0), "regression"),
        T,
        ("torch.bool", "expected numbers", "y.float()"),
    ),
    Row(
        "class numbers as targets",
        lambda w: w.fit((w.x, w.y), "regression"),
        V,
        ("(10, 3)", "(10,)", "pw.fit(model, (x, y), 'classification')"),
    ),
    Row(
        "NaN target",
        lambda w: w.fit(halves(w, y=w.spoilt("r", 7)), "regression"),
        V,
        ("targets hold NaN or Inf", "expected finite", *PLACE),
    ),
    Row(
        "NaN target, first of a batch",
        lambda w: w.fit(halves(w, y=w.spoilt("r", 5)), "regression"),
        V,
        ("example 5", "batch 1 (examples 5 to 9"),
    ),
    Row("Inf target", lambda w: w.fit(halves(w, y=w.spoilt("r", 7, INF)), "regression"), V, ("NaN or Inf", *PLACE)),
    Row(
        "NaN target of products",
        lambda w: w.products((w.x, w.spoilt("r", 7)), "regression").mv(torch.ones(w.D)),
        V,
        ("targets hold NaN or Inf", "example 7"),
    ),
]

NOT_FINITE = [
    *(
        Row(
            f"NaN input, {structure}",
            lambda w, s=structure: w.fit(halves(w, w.spoilt("x", 7)), structure=s),
            V,
            ("1 of 10 examples", "inputs hold NaN or Inf", "leave them out", *PLACE),
        )
        for structure in STRUCTURES
    ),
    Row("Inf input", lambda w: w.fit(halves(w, w.spoilt("x", 7, INF)), structure="diag"), V, ("NaN or Inf", *PLACE)),
    Row(
        "NaN in the first input",
        lambda w: w.fit((w.spoilt("x", 0), w.y)),
        V,
        ("the input holds NaN or Inf", "batch 0", "clean it or leave it out"),
    ),
    Row(
        "NaN input, last layer",
        lambda w: w.fit((w.spoilt("x", 0), w.y), weights="last_layer"),
        V,
        ("input number 0", "NaN or Inf"),
    ),
    Row("NaN input, residuals", lambda w: w.fit((w.spoilt("x", 0), w.r), pw.Gaussian("residuals")), V, ("NaN or Inf",)),
    Row(
        "NaN input of products",
        lambda w: w.products(halves(w, w.spoilt("x", 7))).mv(torch.ones(w.D)),
        V,
        ("NaN or Inf", *PLACE),
    ),
    Row(
        "NaN outputs",
        lambda w: w.fit(model=Made(lambda net, x: net.head(x).log())),
        V,
        ("output is NaN", "the input is finite", "log, root or division"),
    ),
    Row(
        "NaN outputs of some",
        lambda w: w.fit(
            halves(w, (torch.arange(10, device=DEVICE) == 7)[:, None] * w.x),
            model=Made(lambda net, x: net.head(x) / (x.abs().sum(1, keepdim=True) == 0)),
        ),
        V,
        ("output holds NaN or Inf", "division"),
    ),
    Row(
        "outputs beyond float32",
        lambda w: w.fit((w.x, w.r), "regression", model=Made(lambda net, x: net.head(x) * 1e25)),
        V,
        ("too large for torch.float32", "use float64", "batch 0"),
    ),
    *(
        Row(
            f"undefined gradient, {structure}",
            lambda w, s=structure: w.fit(model=Made(undefined_gradient), structure=s),
            V,
            ("curvature of 'first.weight'", "NaN or Inf", "root or norm at zero", "weights="),
        )
        for structure in STRUCTURES
    ),
    *(
        Row(
            f"undefined generic gradient, {structure}",
            lambda w, s=structure: w.fit(model=Made(undefined_bare), structure=s),
            V,
            ("curvature of 'bare'", "NaN or Inf", "weights="),
        )
        for structure in STRUCTURES
    ),
    Row(
        "undefined gradient, Hessian",
        lambda w: w.fit(model=Made(undefined_gradient), structure="full", curvature="hessian"),
        V,
        ("curvature of", "NaN or Inf"),
    ),
    Row(
        "half precision that overflows",
        lambda w: w.fit(
            (w.x.half(), w.y),
            model=Made(
                lambda net, x: (net.head(x) * 1e-3) @ torch.full((3, 3), 3e4, dtype=x.dtype, device=x.device) * 1e4
            ).half(),
        ),
        V,
        ("Inf",),
    ),
    Row(
        "Inf inputs and finite outputs",
        lambda w: w.fit(halves(w, w.spoilt("x", 7, INF)), model=Made(lambda net, x: net.head(net.first(x).tanh()))),
        V,
        ("curvature of 'first.weight'", "The inputs hold NaN or Inf", *PLACE),
    ),
    Row(
        "NaN weights",
        lambda w: pw.fit(with_weights(NAN), (w.x, w.y), "classification"),
        V,
        ("3.weight holds NaN or Inf", "expected a trained network"),
    ),
    Row(
        "Inf weights",
        lambda w: w.fit(model=with_weights(INF)),
        V,
        ("3.weight holds NaN or Inf", "expected a trained network"),
    ),
    *(
        Row(
            f"NaN in {name}",
            ask,
            V,
            ("output is not finite for 1 of 10 inputs", "first for number 7", "x holds NaN", "clean it"),
        )
        for name, ask in {
            "predict": lambda w: w.la.predict(w.spoilt("x", 7)),
            "functional": lambda w: w.la.functional(w.spoilt("x", 7)),
            "joint": lambda w: w.la.functional(w.spoilt("x", 7), joint=True),
            "functional_samples": lambda w: w.la.functional_samples(w.spoilt("x", 7), 2),
        }.items()
    ),
]
