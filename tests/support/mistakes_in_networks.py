"""What goes wrong with networks and questions: more rows of the table."""

from __future__ import annotations

import copy

import torch
from torch import nn

import peewit as pw
from mistakes import INF, NAN, Made, Row, T, V, World, apart, network


def on_two_devices() -> nn.Module:
    """One layer is elsewhere."""
    model = network()
    model[0] = nn.Linear(4, 5, device="meta")
    return model


def changed_weights(world: World) -> None:
    """Ask a fit of a network that was trained further."""
    model = copy.deepcopy(world.model)
    la = pw.fit(model, (world.x, world.y), "classification")
    with torch.no_grad():
        model[0].weight.add_(1.0)
    la.predict(world.x)


NETWORKS = [
    Row(
        "no module",
        lambda w: pw.fit(lambda x: x, (w.x, w.y), "classification"),
        T,
        ("model is a function", "expected a torch.nn.Module"),
    ),
    Row(
        "a class",
        lambda w: pw.fit(nn.Linear, (w.x, w.y), "classification"),
        T,
        ("model is a type", "expected a torch.nn.Module"),
    ),
    Row(
        "no module for products",
        lambda w: pw.products(3, (w.x, w.y), "classification"),
        T,
        ("model is a int", "expected a torch.nn.Module"),
    ),
    Row("no parameters", lambda w: w.fit(model=nn.Tanh()), V, ("no parameters", "expected one with trainable weights")),
    Row(
        "nothing trainable",
        lambda w: w.fit(model=network().requires_grad_(False)),
        V,
        ("no trainable weights", "requires_grad=True"),
    ),
    Row(
        "two devices",
        lambda w: pw.fit(on_two_devices(), (w.x, w.y), "classification"),
        V,
        ("meta'", "expected one device", "model.to(...)"),
    ),
    Row(
        "no values",
        lambda w: pw.fit(nn.Linear(4, 3, device="meta"), (w.x, w.y), "classification"),
        V,
        ("meta device", "no values", "load_state_dict"),
    ),
    Row(
        "lazy layers",
        lambda w: pw.fit(nn.LazyLinear(3), (w.x, w.y), "classification"),
        V,
        ("lazy layers", "run it once on data"),
    ),
    Row(
        "a tuple",
        lambda w: w.fit(model=Made(lambda net, x: (net.head(x), x))),
        T,
        ("returned tuple of 2", "`logits`", "Wrap it in a module"),
    ),
    Row(
        "a mapping without logits",
        lambda w: w.fit(model=Made(lambda net, x: {"out": net.head(x)})),
        T,
        ("keys ['out']", "`logits`", "Wrap it"),
    ),
    Row("no output", lambda w: w.fit(model=Made(lambda net, x: None)), T, ("NoneType", "expected a tensor", "Wrap it")),
    Row(
        "one number for all",
        lambda w: w.fit(model=Made(lambda net, x: net.head(x).sum())),
        V,
        ("shape ()", "expected a leading axis"),
    ),
    Row(
        "one logit",
        lambda w: w.fit(model=apart(lambda: nn.Linear(4, 1))),
        V,
        ("one output", "expected one output per class", "binary"),
    ),
    Row(
        "integers into a float network",
        lambda w: w.fit((w.y[:, None].expand(10, 4), w.y)),
        T,
        ("torch.int64", "weights are torch.float32", "x.to(torch.float32)"),
    ),
    Row(
        "float32 into a bfloat16 network",
        lambda w: w.fit(model=network().bfloat16()),
        T,
        ("torch.float32", "weights are torch.bfloat16", "x.to(torch.bfloat16)"),
    ),
    Row(
        "floats into an embedding",
        lambda w: w.fit(
            (w.x.abs(), w.y), model=apart(lambda: nn.Sequential(nn.Embedding(20, 3), nn.Flatten(), nn.Linear(12, 3)))
        ),
        T,
        ("torch.float32", "x.to(torch.int64)"),
    ),
    Row(
        "another width",
        lambda w: w.fit((w.x[:, :3], w.y)),
        V,
        ("fails on inputs", "(10, 3)", "Expected what the network itself takes"),
    ),
    Row(
        "another keyword",
        lambda w: w.fit([{"image": w.x, "labels": w.y}]),
        T,
        ("'image'", "Its forward takes (input)", "keywords"),
    ),
    Row(
        "two inputs into one",
        lambda w: w.fit([((w.x, w.x), w.y)]),
        T,
        ("tuple of", "Its forward takes (input)", "positions"),
    ),
]

QUESTIONS = [
    *(
        Row(
            f"no batch axis, {name}",
            ask,
            V,
            ("shape (4,)", "fitted on inputs of shape (N, 4)", "expected as many axes", "x[None]"),
        )
        for name, ask in {
            "predict": lambda w: w.la.predict(w.x[0]),
            "functional": lambda w: w.la.functional(w.x[0]),
            "functional_samples": lambda w: w.la.functional_samples(w.x[0], 2),
        }.items()
    ),
    Row(
        "an axis too many",
        lambda w: w.la.predict(w.x[None]),
        V,
        ("(1, 10, 4)", "fitted on inputs of shape (N, 4)", "as many axes"),
    ),
    Row("a width never seen", lambda w: w.la.predict(w.x[:, :3]), V, ("(10, 3)", "fitted on inputs of shape (N, 4)")),
    Row(
        "integers asked",
        lambda w: w.la.functional(w.y[:, None].expand(10, 4)),
        T,
        ("torch.int64", "x.to(torch.float32)"),
    ),
    Row("words asked", lambda w: w.la.predict(w.x.cpu().numpy().astype(str)), T, ("holds words", "expected numbers")),
    Row(
        "a number asked",
        lambda w: w.la.predict(3),
        T,
        ("x is a int", "expected a tensor, an array or a frame", "DataLoader"),
    ),
    Row("nothing asked", lambda w: w.la.predict(None), T, ("no inputs", "expected a tensor", "la.predict(x)")),
    Row(
        "targets asked too",
        lambda w: w.la.predict((w.x, w.y)),
        T,
        ("tuple of", "targets are not inputs", "takes (input)"),
    ),
    Row("a mapping asked", lambda w: w.la.predict({"image": w.x}), T, ("'image'", "takes (input)", "keywords")),
    Row("no examples asked", lambda w: w.la.predict(w.x[:0]), V, ("x has no examples", "expected at least one")),
    Row(
        "both forms",
        lambda w: w.la.functional(w.x, joint=True, variance_only=True),
        V,
        ("joint=True and variance_only=True", "at most one"),
    ),
    Row("memory as text", lambda w: w.fit(memory="2GB"), V, ("memory='2GB'", "positive number of bytes", "2e9")),
    Row("memory without end", lambda w: w.la.predict(w.x, memory=INF), V, ("memory=inf", "positive number of bytes")),
    Row("no samples", lambda w: w.la.sample(0), V, ("samples=0 was given", "expected a positive whole number")),
    Row(
        "half a sample",
        lambda w: w.la.functional_samples(w.x, 1.5),
        V,
        ("samples=1.5 was given", "expected a positive whole number"),
    ),
    Row(
        "a seed as generator",
        lambda w: w.la.sample(2, generator=3),
        T,
        ("generator is a int", "expected a torch.Generator", "manual_seed"),
    ),
    Row(
        "a seed for a fit",
        lambda w: w.fit(generator=3),
        T,
        ("generator is a int", "expected a torch.Generator", "manual_seed"),
    ),
    Row(
        "changed weights",
        lambda w: changed_weights(w),
        V,
        ("no longer those it was fitted with", "fit again, or restore"),
    ),
    Row(
        "before a fit",
        lambda w: pw.Laplace(w.model),
        T,
        ("Laplace(...) was called", "expected peewit.fit(model, data, likelihood)"),
    ),
    Row(
        "products without the call",
        lambda w: pw.Products(w.model, w.la.space, (w.x, w.y), w.la.likelihood, pw.GGN()),
        T,
        ("Products(...) was called", "expected peewit.products(model, data, likelihood)"),
    ),
    Row("the class itself", lambda w: pw.Laplace.predict(w.x), T, ("called on the class with a Tensor",)),
    Row("unknown row", lambda w: w.la.coverage()["0.weigt"], KeyError, ("'0.weigt' is not a parameter",)),
    Row("a short vector", lambda w: w.products().mv(torch.ones(3)), V, ("shape (3,)", "expected (..., 48)")),
    Row("a number as vector", lambda w: w.products().mv(torch.tensor(1.0)), V, ("shape ()", "expected (..., 48)")),
    Row("a list as vector", lambda w: w.products().mv([1.0] * 48), T, ("v is a list", "expected a tensor (..., 48)")),
    Row(
        "a vector with NaN", lambda w: w.products().mv(torch.full((48,), NAN)), V, ("v holds", "NaN", "expected finite")
    ),
]
