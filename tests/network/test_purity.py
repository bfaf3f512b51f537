"""The user's network and the global random state are bit for bit what they were, also after an exception."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import peewit as pw
from environment import DEVICE
from fitting import Broken, built, classes, cut, normal
from networks import Network
from peewit.network import buffers, isolation
from peewit.network import kept as memory
from peewit.network.calling import Replacement
from peewit.network.kept import INSIDE, Attributes, hide_kept
from snapshots import changed, same, snapshot
from tables import moved, table

NETWORKS = (
    "train_mode",
    "batch_norm2d",
    "checkpoint",
    "checkpoint_reentrant",
    "tied_gpt",
    "frozen_bias",
    "unused_layer",
    "weight_norm",
    "embedding_sparse",
    "inplace_mlp",
    "lstm",
    "encoder_layer",
    "bare_nonlinear",
)


def repeated(left: Any, right: Any) -> bool:
    """The same answer twice; sums on a GPU may be taken in another order."""
    if isinstance(left, Tensor) and DEVICE.startswith("cuda"):
        return torch.allclose(left, right, rtol=1e-10, atol=1e-12)
    return same(left, right)


def prepared(name: str) -> tuple[nn.Module, Any, Tensor, Any]:
    """A network of the table with gradients, a hook and mixed modes, as a training script would have it."""
    case = table(name)
    model = case.case.make()[0].to(DEVICE)
    model.train()
    for place, module in enumerate(model.modules()):
        if place % 3 == 2 and not isinstance(module, (nn.MultiheadAttention, nn.TransformerEncoderLayer)):
            module.training = False
    for place, parameter in enumerate(model.parameters()):
        if place % 2 == 0:
            parameter.grad = torch.full_like(parameter, 0.25 + place)
    next(module for module in model.modules() if isinstance(module, nn.Linear)).register_forward_hook(lambda *_: None)
    return model, moved(case.x), moved(case.y), case.likelihood


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("structure", ["kron", "ekfac", "full"])
@pytest.mark.filterwarnings("ignore:weights='last_layer' takes")
def test_every_question_leaves_everything_as_it_was(name: str, structure: str) -> None:
    """Fit, covariances, samples, predictions, evidence, coverage and products change nothing, and repeat."""
    model, x, y, likelihood = prepared(name)
    before = snapshot(model)
    la = pw.fit(model, cut(x, y, [3, 2]), likelihood, structure=structure)
    assert changed(model, before) == []
    questions: dict[str, Callable[[], Any]] = {
        "functional": lambda: la.functional(x).cov,
        "joint": lambda: la.functional(x, joint=True).cov,
        "variance": lambda: la.functional(x, variance_only=True, memory=20_000).cov,
        "functional samples": lambda: la.functional_samples(x, 3, generator=torch.Generator().manual_seed(1)),
        "predict": lambda: la.predict(x).output_variance,
        "predict at samples": lambda: la.predict(x, method="sampled", samples=3).output_variance,
        "predict by points": lambda: la.predict(x, link="mc", samples=64, joint=True).aleatoric,
        "sample": lambda: la.sample(3, generator=torch.Generator().manual_seed(1)),
        "evidence": lambda: la.log_evidence(),
        "other evidence": lambda: la.log_evidence(prior=3.0),
        "coverage": lambda: str(la.coverage()),
        "products": lambda: pw.products(model, (x, y), likelihood).mv(torch.ones(2, sum_of(model))),
        "hessian products": lambda: pw.products(model, (x, y), likelihood, curvature="hessian").mv(
            torch.ones(sum_of(model))
        ),
        "fit": lambda: pw.fit(model, (x, y), likelihood, structure=structure, curvature="fisher").log_evidence(),
        "last layer": lambda: pw.fit(model, (x, y), likelihood, weights="last_layer").log_evidence(),
    }
    first = {}
    for what, ask in questions.items():
        first[what] = ask()
        assert (what, changed(model, before)) == (what, [])
    for what, ask in questions.items():
        assert repeated(ask(), first[what]), what
    assert changed(model, before) == []


def sum_of(model: nn.Module) -> int:
    """Trainable weights."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_samples_use_the_global_generator_by_default() -> None:
    """The one thing that may advance the global state: asking for samples without a generator."""
    la = table("mlp").fit("kron")
    torch.manual_seed(0)
    first = la.sample(2)
    assert not torch.equal(first, la.sample(2))
    torch.manual_seed(0)
    assert torch.equal(first, la.sample(2))


class Failure(Exception):
    """Raised in the middle of a call."""


ERRORS = (Failure("in the middle"), KeyboardInterrupt())


@pytest.mark.parametrize(
    "name", ["train_mode", "checkpoint", "tied_gpt", "frozen_bias", "batch_norm2d", "encoder_layer"]
)
@pytest.mark.parametrize("structure", ["kron", "ekfac", "full"])
@pytest.mark.parametrize("error", ERRORS, ids=["exception", "interrupt"])
def test_a_loader_that_fails(name: str, structure: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception from the data reaches the caller as it is, and nothing is left behind."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", 1)
    model, x, y, likelihood = prepared(name)
    before = snapshot(model)
    with pytest.raises(type(error)) as caught:
        pw.fit(model, Broken(cut(x, y, [2, 3]), error), likelihood, structure=structure)
    assert caught.value is error
    assert changed(model, before) == []
    with pytest.raises(type(error)):
        pw.products(model, Broken(cut(x, y, [2, 3]), error), likelihood).mv(torch.ones(sum_of(model)))
    assert changed(model, before) == []


class Fragile(nn.Module):
    """A network that counts its forward passes in a buffer and fails at one of them, past its BatchNorm."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.error = error
        self.passes = SimpleNamespace(count=0, fails=-1)  # lists would be put back

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4) to (B, 3)."""
        self.passes.count += 1
        self.calls += 1
        hidden = self.drop(torch.tanh(self.norm(self.first(x))))
        if self.passes.count == self.passes.fails:
            raise self.error
        return self.head(hidden)


@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize("error", ERRORS, ids=["exception", "interrupt"])
def test_a_network_that_fails(which: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in any forward pass of a fit, prediction or product leaves nothing behind."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", 1)
    model = built(Fragile(error)).to(DEVICE).train()
    x, y = moved(normal(6, 4)), moved(classes(3, 6))
    batches = cut(x, y, [2, 2, 2])
    la = pw.fit(model, batches, "classification")
    before = snapshot(model)
    vector = torch.ones(la.D)
    calls: list[Callable[[], Any]] = [
        lambda: pw.fit(model, batches, "classification"),
        lambda: pw.fit(model, batches, "classification", structure="ekfac"),
        lambda: pw.fit(model, batches, "classification", structure="full", curvature="hessian"),
        lambda: pw.products(model, batches, "classification").mv(vector),
        lambda: la.functional(x, memory=1000),
        lambda: la.functional_samples(x, 2, generator=torch.Generator()),
        lambda: la.predict(x, memory=1000),
    ]
    if which == 1:
        calls.append(lambda: pw.fit(model, batches, "classification", weights="last_layer"))
    reached = 0
    for call in calls:
        model.passes.count, model.passes.fails = 0, which
        try:
            call()
        except type(error) as caught:
            assert caught is error
            reached += 1
        assert changed(model, before) == []
    assert reached >= 5
    model.passes.count, model.passes.fails = 0, -1
    assert repeated(la.functional(x).cov, la.functional(x).cov)


def test_wrong_labels_in_a_later_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label out of range in the second batch is refused, and nothing is left behind."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", 1)
    model, x, y, likelihood = prepared("train_mode")
    y = y.clone()
    y[3] = 17
    before = snapshot(model)
    for structure in ("kron", "diag"):
        with pytest.raises(ValueError, match="label 17 is outside"):
            pw.fit(model, cut(x, y, [3, 2]), likelihood, structure=structure)
        assert changed(model, before) == []


def forward_replacing(self: Network, x: Tensor) -> Tensor:
    """A network that keeps a running mean of its inputs in a new tensor every time, and subtracts the one before."""
    before = self.running
    self.running = 0.9 * before + 0.1 * x.detach().mean(0)
    return self.head(torch.tanh(self.first(x - before)))


def test_buffers_that_the_network_replaces() -> None:
    """A buffer that a forward pass sets to another tensor comes back as it was."""
    model = built(Network(forward_replacing, first=nn.Linear(4, 5), head=nn.Linear(5, 3)))
    model.register_buffer("running", normal(4, seed=7))
    model = model.to(DEVICE)
    before = snapshot(model)
    la = pw.fit(model, (moved(normal(5, 4)), moved(classes(3, 5))), "classification")
    assert changed(model, before) == []
    la.functional(moved(normal(2, 4)))
    assert changed(model, before) == []


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_shuffled_loaders_do_not_advance_the_global_generator(workers: int) -> None:
    """Iterating over a shuffled loader draws from the global generator; a fit gives those draws back."""
    model = built(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))).to(DEVICE)
    data = TensorDataset(normal(8, 4), classes(3, 8))
    loader = DataLoader(data, batch_size=3, shuffle=True, num_workers=workers)
    before = snapshot(model)
    for options in (
        {},
        {"structure": "ekfac"},
        {"weights": "last_layer"},
        {"structure": "diag", "weights": pw.Subnetwork.largest_variance(5)},
        {"structure": "diag", "weights": pw.Subnetwork.random(5)},
        {"structure": "full", "curvature": "hessian", "prior": 50.0},
        {"curvature": "fisher"},
    ):
        pw.fit(model, loader, "classification", **options)
        assert (options, changed(model, before)) == (options, [])
    pw.products(model, loader, "classification").mv(torch.ones(sum_of(model)))
    assert changed(model, before) == []


def test_inside_inference_mode_and_without_gradients() -> None:
    """Callers that switched gradients off get the same numbers, and their switch back."""
    case = table("mlp")
    model = case.case.make()[0].to(DEVICE)
    data = moved(case.x), moved(case.y)
    expected = pw.fit(model, data, "classification").functional(data[0]).cov
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            before = snapshot(model)
            la = pw.fit(model, data, "classification")
            assert repeated(la.functional(data[0]).cov, expected)
            assert torch.isfinite(la.log_evidence())
            assert changed(model, before) == []


class Remembering(nn.Module):
    """A buffer that is empty until the first pass fills it, one that a pass makes, and a counter that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("seen", None)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if self.seen is None:
            self.seen = hidden.detach().mean(0)
        else:
            hidden = hidden + 1.0
        if "made" not in self._buffers:
            self.register_buffer("made", torch.ones(5, dtype=x.dtype, device=x.device), persistent=False)
        self.calls = self.calls + 1
        return self.last(hidden * self.made)


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_buffers_that_a_forward_pass_fills_or_makes(structure: str) -> None:
    """They are empty, or not there, for every pass and afterwards; one that the user has filled keeps its value."""
    model = built(Remembering()).to(DEVICE)
    x, y = moved(normal(6, 4)), moved(classes(3, 6))
    before = snapshot(model)
    la = pw.fit(model, (x, y), "classification", structure=structure)
    made = la.functional(x[:2])
    la.predict(x, method="sampled", samples=2)
    pw.products(model, (x, y), "classification").mv(torch.ones(la.D))
    assert changed(model, before) == []
    assert model.seen is None and list(model._buffers) == ["seen", "calls"] and not model._non_persistent_buffers_set
    with torch.no_grad():
        assert torch.equal(made.mean, copy.deepcopy(model)(x[:2]))
    with pytest.raises(RuntimeError):
        pw.fit(model, Broken(cut(x, y, [3, 3]), RuntimeError("stop")), "classification")
    assert changed(model, before) == []
    model(x)
    kept = snapshot(model)
    pw.fit(model, (x, y), "classification", structure=structure)
    assert changed(model, kept) == [] and model.seen is not None


class Powers(nn.Module):
    """A weight that takes the generic rule: vectorised, or, where the data decide, one by one."""

    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.first, self.power = nn.Linear(4, 3), nn.Parameter(torch.tensor([1.5, 2.0, 2.5]))
        self.branches = branches

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.first(x))
        if self.branches and float(hidden.detach().sum()) > -1:
            hidden = hidden * 1.0
        return hidden**self.power


@pytest.mark.parametrize("name", ["first.weight", "power"])
@pytest.mark.parametrize("branches", [False, True])
def test_hooks_on_the_gradients_of_parameters(name: str, branches: bool) -> None:
    """No rule obeys one, none is called, a warning names the weight, and training still calls it."""
    model, x, y = built(Powers(branches)).to(DEVICE), moved(normal(6, 4)), moved(normal(6, 3))

    def asked() -> list[Tensor]:
        la = pw.fit(model, (x, y), "regression", structure="full", curvature="ggn")
        products = pw.products(model, (x, y), "regression")
        hessian = pw.products(model, (x, y), "regression", curvature="hessian")
        vector = torch.arange(la.D).double()
        return [la.functional(x).cov, la.log_evidence(), products.mv(vector), hessian.mv(vector)]

    expected, calls = asked(), []
    handle = model.get_parameter(name).register_hook(lambda gradient: calls.append(1) or 0.5 * gradient)
    before = snapshot(model)
    with pytest.warns(UserWarning, match=rf"{name} has a hook .* without it.*mask"):
        made = asked()
    assert all(map(torch.equal, made, expected))
    assert calls == [] and changed(model, before) == []
    model(x).sum().backward()
    assert calls == [1]
    handle.remove()
    assert all(map(torch.equal, asked(), expected))


class Given(nn.Module):
    """A layer on inputs times numbers that it makes once, or that somebody sets."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(4, 2), None

    def forward(self, x: Tensor) -> Tensor:
        if self.gain is None:
            self.gain = torch.ones(4, dtype=x.dtype, device=x.device)
        return self.layer(x * self.gain)


def test_numbers_that_a_user_sets_after_a_fit_are_not_hidden() -> None:
    """Where the network itself would make others."""
    model = built(Given())
    x, y = normal(6, 4), normal(6, 2)
    pw.fit(model, (x, y), "regression")
    model.gain = torch.arange(4, dtype=x.dtype, device=x.device)
    la = pw.fit(model, (x, y), "regression")
    torch.testing.assert_close(la.predict(x).mean, model(x).detach())
    assert torch.equal(model.gain, torch.arange(4, dtype=x.dtype, device=x.device))


class Standardised(nn.Module):
    """A layer on inputs less the mean of those that it saw first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(4, 2), None

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.mean(0)
        return self.layer(x - self.mean)


def test_a_refused_network_may_be_set_up_and_fitted() -> None:
    """Examples meet in a mean that is not there yet; a pass of the user's makes it."""
    model = built(Standardised())
    x, y = normal(6, 4), normal(6, 2)
    with pytest.raises(ValueError, match="expected examples to be independent"):
        pw.fit(model, (x, y), "regression")
    assert model.mean is None
    model(x)
    la = pw.fit(model, (x, y), "regression")
    torch.testing.assert_close(la.predict(x[:3]).mean, model(x).detach()[:3])


def test_attributes_that_a_pass_changes_are_put_back() -> None:
    """The same objects with the same contents; those that came to hold tensors are told, as they were before."""
    module, tensor = nn.Module(), torch.ones(2)
    before: dict[str, Any] = {"flag": 1, "gone": 2, "cache": None, "shown": tensor}
    before |= {"items": [1], "same": [1, 2], "table": {"a": tensor}, "names": {"a": 1}, "plain": [3]}
    vars(module).update(before)
    kept = Attributes.of(module)
    assert kept.restore() == {}
    module.flag, module.cache, module.shown, module.fresh, module.number = 2, tensor, tensor.clone(), [tensor], 3
    del module.gone
    before["items"].append(tensor)
    before["same"][1] = tensor
    before["table"]["b"] = tensor
    before["names"]["a"] = tensor
    before["plain"].append(4)
    found = {name: (value, len(tensors)) for name, (value, tensors) in kept.restore().items()}
    made = {"cache": (None, 1), "fresh": (INSIDE, 1), "items": ([1], 1), "same": ([1, 2], 1), "names": ({"a": 1}, 1)}
    assert found == made | {"flag": (1, 0), "gone": (2, 0), "number": (INSIDE, 0), "plain": ([3], 0)}
    assert vars(module).keys() == vars(nn.Module()).keys() | before.keys()
    assert all(vars(module)[name] is value for name, value in before.items())
    assert [before[name] for name in ("items", "same", "names", "plain")] == [[1], [1, 2], {"a": 1}, [3]]
    assert before["table"].keys() == {"a"} and before["table"]["a"] is tensor
    assert kept.restore() == {}


def test_what_an_earlier_pass_kept_is_taken_away() -> None:
    """As it was before that pass, where tensors are held; and given back afterwards."""
    module, tensor = nn.Module(), torch.ones(2)
    now: dict[str, Any] = {"cache": tensor, "fresh": {"a": tensor}, "items": [1, tensor], "turned": tensor, "number": 3}
    vars(module).update(now)
    before = {"cache": None, "fresh": INSIDE, "items": [1], "turned": [2], "number": 4, "never": None}  # flags too
    memory._RECORDS[module] = dict(before)
    kept = hide_kept(module)
    assert not hasattr(module, "fresh")
    assert [getattr(module, name) for name in ("cache", "items", "turned", "number")] == [None, [1], [2], 4]
    assert module.items is now["items"]
    kept.restore()
    assert all(vars(module)[name] is value for name, value in now.items())
    assert now["items"][0] == 1 and now["items"][1] is tensor and len(now["items"]) == 2


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["hide_kept", "refill", "is_set_by_user", "Buffers.of", "plain_attention"])
def test_what_is_hidden_is_given_back_where_that_fails(
    where: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the second of two modules, after a part of its attributes, or before the network is held at all."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    tensor, before = torch.ones(2), {"cache": None, "items": [1], "fresh": INSIDE, "table": {}}
    now: list[dict[str, Any]] = []
    for module in model:
        now.append({"cache": tensor.clone(), "items": [1, tensor], "fresh": tensor.clone(), "table": {"a": tensor}})
        vars(module).update(now[-1])
        memory._RECORDS[module] = dict(before)
    calls = []

    def failing(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == (1 if where == "plain_attention" else 2):
            raise error
        return own(*given)

    place = isolation if where == "plain_attention" else memory
    if where == "Buffers.of":
        own: Any = buffers.Buffers.of
        monkeypatch.setattr(buffers.Buffers, "of", staticmethod(failing))
    else:
        own = getattr(place, where)
        monkeypatch.setattr(place, where, failing)
    with pytest.raises(type(error)), isolation.isolated(model):
        raise AssertionError("isolated")
    monkeypatch.undo()
    for module, attributes in zip(model, now, strict=True):
        assert all(vars(module)[name] is value for name, value in attributes.items())
        assert len(module.items) == 2 and module.items[1] is tensor and module.table["a"] is tensor
        assert module.training
    assert id(model) not in buffers._HELD
    with isolation.isolated(model):  # and what may be hidden still is
        assert model[0].cache is None and not hasattr(model[1], "fresh") and model[1].items == [1]
    assert model[0].cache is now[0]["cache"] and model[1].fresh is now[1]["fresh"]


def test_other_tensors_in_place_of_weights() -> None:
    """However they are given to a torch function; those that were given are known."""
    weights = [nn.Parameter(torch.full((2,), float(number))) for number in range(4)]
    others = {id(each): 10 + each.detach() for each in weights[:3]}
    with Replacement(others) as mode:
        assert torch.add(weights[0], weights[3]).tolist() == [13.0, 13.0]
        assert mode.used == {id(weights[0])}
        assert torch.cat([weights[3], weights[0]]).tolist() == [3.0, 3.0, 10.0, 10.0]
        assert torch.stack((weights[1], weights[3])).tolist() == [[11.0, 11.0], [3.0, 3.0]]
        assert torch.add(weights[3], other=weights[1]).tolist() == [14.0, 14.0]
    assert mode.used == {id(weights[0]), id(weights[1])}
    assert Replacement(others)._replace({"a": [weights[2]], "b": 1})["a"][0].tolist() == [12.0, 12.0]


def test_what_a_pass_made_of_newer_weights_is_hidden() -> None:
    """Training between two fits: what the network makes of the new weights is no number of the user's."""

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.table, self.kept = nn.Linear(4, 2), nn.Parameter(torch.randn(4)), None

        def forward(self, x: Tensor) -> Tensor:
            if self.kept is None:
                self.kept = self.table.exp()
            return self.layer(x * self.kept)

    model = built(Keeping())
    x, y = normal(6, 4), normal(6, 2)
    pw.fit(model, (x, y), "regression", structure="full")
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1.5)
        model(x)
    la = pw.fit(model, (x, y), "regression", structure="full")
    assert la.coverage()["table"].rule != "unused"
    model.kept = None
    expected = pw.fit(model, (x, y), "regression", structure="full")
    torch.testing.assert_close(la.functional(x).cov, expected.functional(x).cov)
