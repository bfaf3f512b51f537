"""Input that cannot be used: one table of what is said about it, and that nothing is lost by it."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mistakes
import mistakes_in_networks
import mistakes_in_options
import peewit as pw
from environment import DEVICE
from fitting import Broken
from mistakes import STRUCTURES, Row, World, alike, halves, network
from snapshots import changed, snapshot

PARTS: tuple[list[Row], ...] = (
    mistakes.DATA,
    mistakes.TARGETS,
    mistakes.NOT_FINITE,
    mistakes_in_networks.NETWORKS,
    mistakes_in_networks.QUESTIONS,
    mistakes_in_options.NAMES,
    mistakes_in_options.PRIORS,
)
TABLE = {row.name: row for part in PARTS for row in part}
SOURCE = Path(pw.__file__).parent


@functools.cache
def world() -> World:
    """One for all rows: whatever a row leaves behind is seen by those after it."""
    return World()


def test_the_table_has_no_name_twice() -> None:
    """Every row runs."""
    assert len(TABLE) == sum(map(len, PARTS)) > 150


@pytest.mark.filterwarnings("ignore::peewit.RoundingWarning")  # of curvature that is singular
@pytest.mark.parametrize("name", TABLE)
def test_a_clear_error_and_nothing_lost(name: str) -> None:
    """The message says what was given, what was expected and what to do; all else is as it was."""
    row, own = TABLE[name], world().begin()
    with pytest.raises(row.error) as caught:
        row.provoke(own)
    message = str(caught.value)
    assert [part for part in row.says if part not in message] == [], message
    assert not isinstance(caught.value, AssertionError | NotImplementedError)
    own.untouched()


INTERRUPTED = ("loader", "forward", "backward")


class Interrupted(nn.Module):
    """A network during whose forward or backward pass Ctrl-C is pressed."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        self.where = [""]

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4) to (B, 3)."""
        output = self.body(x)
        if self.where[0] == "forward":
            raise KeyboardInterrupt
        if self.where[0] == "backward" and output.requires_grad:
            output = output * 1.0
            output.register_hook(pressed)
        return output


def pressed(*_: Any) -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", INTERRUPTED)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_interruption(where: str, structure: str, bars: list[int]) -> None:
    """Ctrl-C passes through as it is, bars are taken down, and all is as it was; a second try succeeds."""
    own = world().begin()
    model = own.watch(Interrupted())
    la = pw.fit(model, halves(own), "classification", structure=structure)
    expected = la.functional(own.x).cov
    vector = torch.ones(la.D)
    calls: list[Callable[[Any], Any]] = [
        lambda data: pw.fit(model, data, "classification", structure=structure, progress=True),
        lambda data: pw.fit(model, data, "classification", structure="full", curvature="hessian", progress=True),
        lambda data: pw.products(model, data, "classification").mv(vector),
    ]
    if where != "loader":
        calls += [
            lambda _: la.predict(own.x),
            lambda _: la.functional(own.x, joint=True),
            lambda _: la.functional_samples(own.x, 2),
            lambda _: pw.fit(model, halves(own), "classification", weights="last_layer"),
        ]
    data = Broken(halves(own)[:1], KeyboardInterrupt()) if where == "loader" else halves(own)
    model.where[0] = where
    for place, call in enumerate(calls):
        with pytest.raises(KeyboardInterrupt) as caught:
            call(data)
        # While the traceback, and every frame in it, is still alive.
        assert (place, bars[1]) == (place, 0) and caught.traceback
        assert changed(model, own.watched[1][1]) == []
    assert bars[0] >= 2
    model.where[0] = ""
    assert alike(la.functional(own.x).cov, expected)
    again = pw.fit(model, halves(own), "classification", structure=structure, progress=True)
    assert bars[1] == 0 and torch.allclose(again.functional(own.x).cov, expected, rtol=1e-5)
    own.untouched()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_networks_in_half_precision(structure: str, dtype: torch.dtype) -> None:
    """They work, with sums in float32, and give what the same weights give in float32."""
    own = world().begin()
    half = copy.deepcopy(own.model).to(dtype)
    wide = copy.deepcopy(half).float()
    made = []
    for model, kind in ((half, dtype), (wide, torch.float32)):
        x = own.x.to(dtype).to(kind)
        before = snapshot(model)
        la = pw.fit(model, (x, own.y), "classification", structure=structure)
        found = la.functional(x)
        assert la.weights.dtype == torch.float32 and found.cov.dtype == torch.float32
        assert la.precision.mv(torch.ones(la.D, device=DEVICE)).dtype == torch.float32
        made.append((found.cov, la.log_evidence(), la.predict(x).probs.float()))
        assert changed(model, before) == []
    bound = 2e-2 if dtype == torch.float16 else 0.1
    for left, right in zip(*made, strict=True):
        assert float((left - right).abs().max()) < bound * float(right.abs().max())


def test_logits_are_found() -> None:
    """In a mapping, in an object, and in a tuple of one."""
    own = world().begin()
    expected = own.la.functional(own.x).cov

    class Returned:
        """As model libraries return it."""

        def __init__(self, logits: Tensor) -> None:
            self.logits = logits

    for wrap in (lambda f: {"loss": f.sum(), "logits": f}, Returned, lambda f: (f,), lambda f: [f]):
        model = nn.Sequential(own.model, Wrapped(wrap))
        assert alike(pw.fit(model, (own.x, own.y), "classification").functional(own.x).cov, expected)


class Wrapped(nn.Module):
    """Puts its input into something."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        """Wrapped."""
        return self.wrap(x)


def test_inputs_that_are_not_finite_but_harmless() -> None:
    """Infinite masks, and missing values that the network fills in, are its own business."""
    own = world().begin()
    filled = nn.Sequential(Wrapped(lambda x: x.nan_to_num(0.0, 0.0, 0.0)), own.model)
    x = own.spoilt("x", 2)
    x[5, 0] = -float("inf")
    expected = pw.fit(own.model, (x.nan_to_num(0.0, 0.0, 0.0), own.y), "classification")
    la = pw.fit(filled, (x, own.y), "classification")
    assert alike(la.functional(x).cov, expected.functional(x.nan_to_num(0.0, 0.0, 0.0)).cov)


def test_shapes_and_dtypes_never_seen_are_no_mistake() -> None:
    """A network for any length takes any length, and whatever dtypes it takes by itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), Wrapped(lambda x: x.mean(1)), nn.Linear(4, 3)).to(DEVICE)
    x = torch.arange(12, device=DEVICE).reshape(4, 3) % 7
    la = pw.fit(model, (x, torch.arange(4, device=DEVICE) % 3), "classification")
    assert la.predict(x.repeat(1, 2)).probs.shape == (4, 3)
    assert alike(la.functional(x.int()).cov, la.functional(x).cov)


class Convolution(nn.Module):
    """A network for images of any size, which may be interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 3, 2), nn.Linear(3, 3)
        self.stop = [False]

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, H, W) to (B, 3)."""
        hidden = self.first(x).tanh()
        output = self.head(hidden.mean((2, 3)))
        if self.stop[0] and output.requires_grad:
            output = output * 1.0
            output.register_hook(pressed)
        return output


@pytest.mark.parametrize("how", ["NaN", "Inf", "interrupt"])
def test_a_question_that_fails_teaches_nothing(how: str) -> None:
    """What is known about a network is not learnt from inputs that are not finite, or from half a question."""
    torch.manual_seed(0)
    model = Convolution().to(DEVICE)
    x = torch.randn(5, 1, 4, 4, device=DEVICE)
    wide = torch.randn(5, 1, 6, 5, device=DEVICE)
    la, fresh = (pw.fit(model, (x, torch.arange(5, device=DEVICE) % 3), "classification") for _ in range(2))
    before = snapshot(model)
    known = la.state.knowledge
    bad = wide.clone()
    if how == "interrupt":
        model.stop[0] = True
    else:
        bad[0, 0, 2, 2] = float(how)
    for ask in (la.predict, la.functional, lambda given: la.functional_samples(given, 2)):
        with pytest.raises(KeyboardInterrupt if how == "interrupt" else ValueError):
            ask(bad)
        assert la.state.knowledge.questions.knowledge == known
    model.stop[0] = False
    assert changed(model, before) == []
    assert alike(la.functional(wide).cov, fresh.functional(wide).cov)


def test_no_assertion_speaks_to_users_and_nothing_exits() -> None:
    """Assertions only narrow types, without a word; nothing ends the process."""
    for path in (
        each for each in SOURCE.rglob("*.py") if each.name not in ("cli.py", "__main__.py")
    ):  # whose exit status is its answer
        for node in ast.walk(ast.parse(path.read_text())):
            spoken = isinstance(node, ast.Assert) and node.msg is not None
            raised = isinstance(node, ast.Name) and node.id in ("AssertionError", "SystemExit", "exit", "quit")
            exits = isinstance(node, ast.Attribute) and node.attr in ("exit", "_exit", "abort")
            assert not (spoken or raised or exits), f"{path.name}:{node.lineno}"
