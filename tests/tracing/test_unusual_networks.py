"""Unusual networks and calls, each against dense float64 loops."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, fitted, names_of, normal
from peewit.tracing import routing
from tables import curvature_of, moved, relative


class Network(nn.Module):
    """A forward function over named parts."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self, *inputs)


def attention_read_at(position: int) -> nn.Module:
    """Attention flattens (T, B, E) with time first; one token is read out."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head((x + net.attention(x, x, x)[0])[:, position])

    return Network(forward, attention=nn.MultiheadAttention(4, 2, batch_first=True), head=nn.Linear(4, 3))


def time_major(net: Any, x: Tensor) -> Tensor:
    flat = net.first(x.transpose(0, 1).reshape(-1, 4)).tanh()
    return net.head(flat.reshape(x.shape[1], x.shape[0], -1)[x.shape[1] // 2])


def gated(net: Any, x: Tensor) -> Tensor:
    flat = net.first(x.transpose(0, 1).reshape(-1, 4)).tanh()
    hidden = flat.reshape(x.shape[1], x.shape[0], -1).sum(0)
    return net.head(torch.where(x[:, 0, :1] > 0.3, hidden, torch.zeros_like(hidden)))


def sorted_inside(net: Any, x: Tensor) -> Tensor:
    order = x[:, 0, 0].argsort(stable=True)
    return net.head(net.first(x[order].mean(1)).tanh())[order.argsort()]


def sorted_before_softmax(net: Any, x: Tensor) -> Tensor:
    return 3 * sorted_inside(net, x).softmax(-1)  # probabilities themselves would be taken for a mistake


def flipped_inside(net: Any, x: Tensor) -> Tensor:
    return net.head(net.first(x.flip(0).mean(1)).tanh()).flip(0)


def folded_windows(net: Any, x: Tensor) -> Tensor:
    windows = x.reshape(x.shape[0], -1, 2, 4).transpose(0, 1).reshape(-1, 2, 4)  # windows before examples
    hidden = net.first(windows).tanh().reshape(-1, x.shape[0], 2, 5)
    return net.head(hidden[1, :, 0])


def writes_into_its_input(net: Any, x: Tensor) -> Tensor:
    return net.head(net.first(x.mul_(1.5).mean(1)).tanh())


def pair(forward: Callable[..., Tensor]) -> nn.Module:
    """A forward function over two linear layers."""
    return Network(forward, first=nn.Linear(4, 5), head=nn.Linear(5, 3))


class SlicedList(nn.Module):
    """Slicing a ParameterList wraps its tensors anew, which swapped-in weights do not survive."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(0.3 * torch.randn(4, 3)) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1) @ self.weights[0] + torch.stack(list(self.weights[1:])).sum(0).tanh().sum(0)


def shared_attention() -> nn.Module:
    """The same packed weight applied whole, and in slices."""

    def forward(net: Any, x: Tensor) -> Tensor:
        y = x + net.attention(x, x, x)[0]
        return net.head((y + net.attention(y, x.flip(1), x.flip(1))[0]).mean(1))

    return Network(forward, attention=nn.MultiheadAttention(4, 2, batch_first=True), head=nn.Linear(4, 3))


def prototypes() -> nn.Module:
    """Distances to prototypes: torch's vectorised derivative of them is wrong, and the bias has none at all."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return -torch.cdist(net.first(x.mean(1)), net.first(net.table.weight))

    return Network(forward, first=nn.Linear(4, 5), table=nn.Embedding(3, 4))


TRAPS: dict[str, Callable[[], nn.Module]] = {
    "attention read in the middle": lambda: attention_read_at(1),
    "attention read at the end": lambda: attention_read_at(-1),
    "time-major rows": lambda: pair(time_major),
    "gated examples": lambda: pair(gated),
    "sorted inside": lambda: pair(sorted_inside),
    "sorted inside, behind a softmax": lambda: pair(sorted_before_softmax),
    "flipped inside": lambda: pair(flipped_inside),
    "windows before examples": lambda: pair(folded_windows),
    "writes into its input": lambda: pair(writes_into_its_input),
    "sliced parameter list": SlicedList,
    "packed weight whole and sliced": shared_attention,
    "prototypes": prototypes,
}


def test_parameters_that_are_wrapped_anew_are_verified() -> None:
    """Their derivatives were called too small to tell, so that a torch whose transforms give zeros went unnoticed."""
    torch.manual_seed(3)
    la = fitted(built(SlicedList()), moved(normal(2, 4, 4)), moved(classes(3, 2)), "classification", "full")
    assert "too small" not in str(la.coverage())


@pytest.mark.parametrize("examples", [2, 5])
@pytest.mark.parametrize("name", TRAPS)
def test_curvature_and_covariance(name: str, examples: int) -> None:
    """Exact curvature, its diagonal, and covariances; inputs come back as they were."""
    torch.manual_seed(3)
    model = built(TRAPS[name]())
    x, y = normal(examples, 4, 4), classes(3, examples)
    # Equal at first, so that a pass over the first three examples sees nothing of the sorting.
    x[:, 0, 0] = torch.tensor([1.0, 1.0, 1.0, 0.5, 2.0])[:examples]
    kept = x.clone()
    names = names_of(model)
    plain = copy.deepcopy(model)
    if name == "writes into its input":  # the loops would see what an earlier one wrote
        plain.run = lambda net, x: writes_into_its_input(net, x.clone())
    exact = dense.ggn(plain, kept, y, "classification", names)
    jacobian = dense.jacobian(plain, kept, names)
    data = (moved(x), moved(y))
    given = data[0].clone()
    full = fitted(model, *data, "classification", "full")
    assert relative(curvature_of(full), exact) < 1e-8
    diagonal = fitted(model, *data, "classification", "diag")
    assert relative(curvature_of(diagonal).diagonal(), exact.diagonal()) < 1e-8
    covariance = torch.linalg.inv(exact + torch.eye(len(exact), dtype=torch.float64))
    shuffled = torch.randperm(examples, generator=torch.Generator().manual_seed(1))
    expected = dense.functional_covariance(jacobian[shuffled], covariance)
    assert relative(full.functional(moved(kept[shuffled])).cov, expected) < 1e-8
    assert torch.equal(data[0], given)


def test_examples_that_depend_on_each_other_are_refused() -> None:
    """Batch statistics, by a layer or by hand, leave no example with a likelihood of its own."""
    x, y = moved(normal(6, 4)), moved(classes(3, 6))
    layer = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3)).double()
    with pytest.raises(ValueError, match="statistics of the batch"):
        fitted(layer, x, y, "classification")

    def centred(net: Any, x: Tensor) -> Tensor:
        z = net.first(x)
        return net.head((z - z.mean(0)).tanh())

    with pytest.raises(ValueError, match="depends on the other examples"):
        fitted(built(pair(centred)), x, y, "classification")


@pytest.mark.parametrize("how", ["unrecognised", "multiplied"])
@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full"])
def test_a_weight_that_turns_generic_late(structure: str, how: str) -> None:
    """A batch of another length applies the weight in another way: the pass begins again, nothing counts twice."""

    def forward(net: Any, x: Tensor) -> Tensor:
        weight = net.first.weight
        if x.shape[1] < 4:
            hidden = F.linear(x, weight)
        else:
            hidden = x @ weight.exp().log().T if how == "unrecognised" else (x.unsqueeze(2) * weight).sum(-1)
        return net.head(hidden.mean(1).tanh())

    model = built(Network(forward, first=nn.Linear(4, 5, bias=False), head=nn.Linear(5, 3)))
    lengths = (3, 2, 6)
    batches = [(normal(4, length, 4, seed=length), classes(3, 4, seed=length)) for length in lengths]
    la = pw.fit(model.to(DEVICE), [moved(batch) for batch in batches], "classification", structure=structure)
    made = curvature_of(la)
    assert made.shape == (la.D, la.D)
    model = model.cpu()
    exact = sum(dense.ggn(model, x, y, "classification", names_of(model)) for x, y in batches)
    own = slice(0, 20)  # the generic weight has its exact block, or its diagonal
    expected = torch.diag(exact.diagonal())[own, own] if structure == "diag" else exact[own, own]
    assert relative(made[own, own], expected) < 1e-8
    with pytest.raises(ValueError, match="one-shot"):
        pw.fit(model.to(DEVICE), iter([moved(batch) for batch in batches]), "classification", structure="kron")


@pytest.mark.parametrize("how", ["last", "two", "sorted"])
def test_examples_that_pick_their_positions(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`h[arange(B), last]` leaves examples where they are, so no later batch is looked at; sorted ones do not."""
    looks = []
    own = routing.gradients_of

    def look(tape: Any, *args: Any) -> Any:
        looks.append(tape.examples)
        return own(tape, *args)

    monkeypatch.setattr(routing, "gradients_of", look)

    def forward(net: Any, x: Tensor) -> Tensor:
        hidden = net.first(x).tanh()
        rows, last = torch.arange(len(x), device=x.device), x[..., 0].argmax(1)
        if how == "two":
            pairs = torch.stack([last, x[..., 1].argmax(1)], 1)
            return net.head(hidden[rows[:, None], pairs].sum(1))
        order = last.argsort(stable=True) if how == "sorted" else rows
        return (
            net.head(hidden[order, last[order]])[order.argsort()] if how == "sorted" else net.head(hidden[rows, last])
        )

    model = built(Network(forward, first=nn.Linear(4, 5), head=nn.Linear(5, 3)))
    x, y = normal(4, 8, 4), classes(3, 4)  # positions are a multiple of examples
    exact = dense.ggn(model, x, y, "classification", names_of(model))
    la = fitted(model, x, y, "classification", "full")
    assert relative(curvature_of(la), exact) < 1e-8
    looks.clear()
    la.functional(moved(x))
    assert bool(looks) == (how == "sorted")


def test_one_logit_is_no_classification() -> None:
    """A softmax over one class is always 1."""
    with pytest.raises(ValueError, match="binary"):
        fitted(built(nn.Linear(4, 1)), normal(5, 4), torch.zeros(5, dtype=torch.long), "classification")


def test_the_class_axis_does_not_change_between_batches() -> None:
    """(B, C, T) outputs with T equal to C in some batches keep the axis that others show, or ask."""
    model = built(nn.Conv1d(2, 3, 1))
    wide, square = ((normal(2, 2, t, seed=t), classes(3, 2, t, seed=t)) for t in (4, 3))
    la = pw.fit(model.to(DEVICE), [moved(wide), moved(square)], "classification", structure="full")
    model = model.cpu()
    exact = sum(dense.ggn(model, x, y, "classification", names_of(model), axis=1) for x, y in (wide, square))
    assert relative(curvature_of(la), exact) < 1e-8
    with pytest.raises(ValueError, match="axis="), pytest.warns(UserWarning, match="axis="):
        pw.fit(model.to(DEVICE), [moved(square), moved(wide)], "classification")


@pytest.mark.parametrize("weights", ["all", "last_layer"])
def test_max_norm_leaves_the_users_table_alone(weights: str) -> None:
    """Torch shrinks long rows in place in every forward pass; whoever asks for a posterior does not want that."""
    embedding = nn.Embedding(6, 4, max_norm=0.5)
    model = built(nn.Sequential(embedding, nn.GRU(4, 3, batch_first=True))).to(DEVICE)
    head = nn.Linear(3, 3).double().to(DEVICE)
    whole = Network(lambda net, x: net.head(net.body[1](net.body[0](x))[0][:, -1]), body=model, head=head)
    kept = embedding.weight.detach().clone()
    x, y = moved(torch.randint(6, (4, 3))), moved(classes(3, 4))
    la = pw.fit(whole, (x, y), "classification", weights=weights)
    la.functional(x)
    pw.products(whole, (x, y), "classification", weights=weights).mv(torch.ones(la.D))
    assert torch.equal(embedding.weight, kept)


def test_masks_over_unused_layers() -> None:
    """Elements of a layer that never runs leave the matrix with it."""
    model = built(nn.ModuleDict({"used": nn.Linear(4, 3), "spare": nn.Linear(2, 3)}))
    network = Network(lambda net, x: net.parts["used"](x), parts=model)
    x, y = normal(5, 4), classes(3, 5)
    mask = torch.rand(24, generator=torch.Generator().manual_seed(1)) < 0.6
    la = fitted(network, x, y, "classification", "full", weights=mask)
    used = dict(network.named_parameters())
    flags = torch.cat([torch.full((p.numel(),), "used" in name) for name, p in used.items()])
    exact = dense.ggn(network, x, y, "classification", list(used))
    chosen = (mask & flags).nonzero()[:, 0]
    assert relative(curvature_of(la), exact[chosen][:, chosen]) < 1e-8


def test_the_last_layer_is_the_last_that_matters() -> None:
    """A value head that runs after the logits is not the last layer of the logits."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.logits, self.value = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            hidden = self.body(x).tanh()
            return {"logits": self.logits(hidden), "value": self.value(hidden)}

    la = fitted(built(TwoHeads()), normal(5, 4), classes(3, 5), "classification", weights="last_layer")
    assert la.space.names == ("logits.weight", "logits.bias")


def test_inference_mode_and_autocast_around_a_call_change_nothing() -> None:
    """The numbers, and what can be done with them, are those of a plain call."""
    model = built(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))).to(DEVICE)
    data = moved((normal(5, 4), classes(3, 5)))
    plain = pw.fit(model, data, "classification")
    with torch.inference_mode(), torch.autocast(torch.device(DEVICE).type, dtype=torch.bfloat16):
        la = pw.fit(model, data, "classification")
        made = la.functional(data[0]).cov
        product = pw.products(model, data, "classification").mv(torch.ones(la.D, device=DEVICE))
    assert torch.equal(product, pw.products(model, data, "classification").mv(torch.ones(la.D, device=DEVICE)))
    assert torch.equal(made, plain.functional(data[0]).cov)
    precision = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    la.log_evidence(prior=precision).backward()
    assert precision.grad is not None


def test_weights_changed_after_the_fit_are_noticed() -> None:
    """In place, through `.data`, or in a buffer: predictions with other weights are refused."""
    model = built(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))).to(DEVICE)
    data = moved((normal(5, 4), classes(3, 5)))
    la = pw.fit(model, data, "classification", weights="last_layer")
    for change, undo in (
        (lambda: model[0].weight.data.mul_(2.0), lambda: model[0].weight.data.div_(2.0)),
        (lambda: model[1].running_mean.add_(1.0), lambda: model[1].running_mean.sub_(1.0)),
        # The same norm: a sign, and an order.
        (lambda: model[0].weight.detach().neg_(), lambda: model[0].weight.detach().neg_()),
        (lambda: model[2].weight.detach().copy_(model[2].weight.detach().flip(0)), lambda: None),
    ):
        before = [tensor.clone() for tensor in model.state_dict().values()]
        change()
        with pytest.raises(ValueError, match="no longer"):
            la.predict(data[0])
        undo()
        with torch.no_grad():
            for tensor, value in zip(model.state_dict().values(), before, strict=True):
                tensor.copy_(value)
        la.predict(data[0])


def test_threads_share_a_network() -> None:
    """Several fits at once leave it in training mode, and agree."""
    model = built(nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))).to(DEVICE).train()
    data = moved((normal(5, 4), classes(3, 5)))
    values: list[Tensor] = []
    threads = [
        threading.Thread(target=lambda: values.append(pw.fit(model, data, "classification").log_evidence()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(values) == 4 and all(torch.equal(value, values[0]) for value in values)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("where", ["whole", "inside"])
def test_compiled_networks(where: str) -> None:
    """A compiled network, or one with a compiled part, has the curvature of the plain one, under its own names."""
    model = built(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))).to(DEVICE)
    x, y = normal(5, 4), classes(3, 5)
    exact = dense.ggn(copy.deepcopy(model).cpu(), x, y, "classification", names_of(model))
    if where == "whole":
        compiled: Any = torch.compile(model)
    else:
        compiled = nn.Sequential(torch.compile(model[0]), model[1], model[2])
    la = pw.fit(compiled, moved((x, y)), "classification", structure="full")
    assert relative(curvature_of(la), exact) < 1e-8
    assert la.functional(moved(x)).cov.shape == (5, 3, 3)
    if where == "whole":
        assert la.space.names == ("0.weight", "0.bias", "2.weight", "2.bias")


def standardised(net: Any, x: Tensor) -> Tensor:
    """A convolution whose weight is standardised by a batch norm over the weight, as in NF-ResNets and BiT."""
    flat = net.conv.weight.reshape(1, 3, -1)
    kernel = F.batch_norm(flat, None, None, weight=net.gain.weight[0], training=True, momentum=0.0)
    return net.head(F.conv2d(x, kernel.reshape_as(net.conv.weight), net.conv.bias).tanh().mean((2, 3)))


@pytest.mark.parametrize("examples", [1, 4])
@pytest.mark.parametrize("weights", ["all", "last_layer"])
def test_a_batch_norm_over_a_weight_has_no_statistics_of_a_batch(weights: str, examples: int) -> None:
    """Not refused as one over examples is, selected or not."""
    parts = {"conv": nn.Conv2d(2, 3, 3), "gain": nn.Linear(3, 1, bias=False), "head": nn.Linear(3, 2)}
    model = built(Network(standardised, **parts))
    x, y = normal(examples, 2, 5, 5), classes(2, examples)
    options: dict[str, Any] = {"structure": "full", "curvature": "ggn", "prior": 2.0}
    la = pw.fit(copy.deepcopy(model).to(DEVICE), (moved(x), moved(y)), "classification", weights=weights, **options)
    names = names_of(model) if weights == "all" else ["head.weight", "head.bias"]
    expected = dense.ggn(model, x, y, "classification", names) + 2.0 * torch.eye(la.D, dtype=torch.float64)
    v = normal(2, la.D)
    assert relative(la.precision.mv(moved(v)).cpu(), v @ expected) < 1e-8
