"""Which weights are uncertain: names, patterns, masks, the last layer, subnetworks and low-rank pairs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, fitted, names_of, normal, seeded, weights_of
from networks import Network
from tables import curvature_of, moved, relative, table

EXACT = 1e-8


def reversed_forward(self: Network, x: Tensor) -> Tensor:
    """The module that comes first runs last."""
    return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def shuffled() -> tuple[nn.Module, Tensor, Tensor]:
    """A network whose head is the first of its modules."""
    members = {"head": nn.Linear(5, 3), "spare": nn.Linear(3, 3), "second": nn.Linear(6, 5), "first": nn.Linear(4, 6)}
    return built(Network(reversed_forward, **members)), normal(6, 4), classes(3, 6)


def against_dense(la: pw.Laplace, model: nn.Module, x: Any, y: Tensor, index: Tensor, names: list[str]) -> None:
    """Curvature, covariances and samples equal the dense ones of the selected weights; the rest is certain."""
    exact = dense.ggn(model, x, y, "classification", names)[index][:, index]
    made = curvature_of(la.with_prior(1.0))
    if isinstance(la.structure, pw.Diag):
        exact = torch.diag(exact.diagonal())
    assert relative(made, exact) < EXACT
    jacobian = dense.jacobian(model, x, names)[:, :, index]
    delta = la.prior.delta(la.space, la.weights).cpu()
    covariance = torch.linalg.inv(exact + torch.diag(delta))
    marginal = dense.functional_covariance(jacobian, covariance)
    given = moved(x)
    assert relative(la.functional(given).cov, marginal) < EXACT
    assert relative(la.functional(given, variance_only=True).cov, marginal.diagonal(dim1=1, dim2=2)) < EXACT
    joint = dense.joint_functional_covariance(jacobian, covariance)
    assert relative(la.functional(given, joint=True).cov.reshape(joint.shape), joint) < EXACT
    assert relative(la.precision.variance(), covariance.diagonal()) < EXACT
    draws = la.sample(3, generator=seeded(1)) - la.weights
    samples = la.functional_samples(given, 3, generator=seeded(1)).cpu() - dense.outputs(model, x)
    assert relative(samples, torch.einsum("nfd,sd->snf", jacobian, draws.cpu())) < EXACT
    identity = torch.eye(la.D).to(la.weights)
    root = la.precision.root(identity)
    assert relative(root.T @ root, covariance) < EXACT
    theta = torch.cat([model.get_parameter(name).detach().flatten() for name in names])[index]
    assert torch.equal(la.weights.cpu(), theta)
    energy = dense.energy(model, x, y, "classification")
    expected = dense.log_evidence(-energy, exact, theta, torch.zeros_like(theta), delta)
    assert relative(la.log_evidence(), expected) < EXACT


def places(model: nn.Module, names: list[str], chosen: list[str]) -> Tensor:
    """Flat places of some parameters among all named ones."""
    made, start = [], 0
    for name in names:
        stop = start + model.get_parameter(name).numel()
        if name in chosen:
            made.append(torch.arange(start, stop))
        start = stop
    return torch.cat(made)


SELECTIONS: list[tuple[Any, list[str]]] = [
    ("all", ["head.weight", "head.bias", "second.weight", "second.bias", "first.weight", "first.bias"]),
    ("last_layer", ["head.weight", "head.bias"]),
    ("head", ["head.weight", "head.bias"]),
    ("second.weight", ["second.weight"]),
    ("*.bias", ["head.bias", "second.bias", "first.bias"]),
    (["first", "head.bias"], ["head.bias", "first.weight", "first.bias"]),
    (("*.weight",), ["head.weight", "second.weight", "first.weight"]),
]


@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize(("weights", "chosen"), SELECTIONS, ids=lambda value: str(value)[:20])
def test_names_and_patterns(structure: str, weights: Any, chosen: list[str]) -> None:
    """Weights outside the selection and weights never used are certain; the rest is as in the dense matrix."""
    model, x, y = shuffled()
    la = fitted(model, x, y, "classification", structure, weights=weights, prior=0.8)
    assert list(la.space.names) == chosen
    against_dense(la, model, x, y, places(model, names_of(model), chosen), names_of(model))
    asked = {"all": {"spare.weight", "spare.bias"}, "*.bias": {"spare.bias"}, "('*.weight',)": {"spare.weight"}}
    for row in la.coverage():
        if row.name not in chosen:
            assert row.approximation == ("left out" if row.name in asked.get(str(weights), ()) else "fixed")
        else:
            assert row.approximation not in ("fixed", "left out")


@pytest.mark.parametrize("structure", ["kron", "ekfac", "block", pw.Kron(bias="joint")], ids=str)
@pytest.mark.parametrize("weights", ["last_layer", "second", "*.weight"])
def test_selected_layers_have_the_blocks_of_a_whole_fit(structure: Any, weights: str) -> None:
    """Block-diagonal structures: selecting layers takes their blocks out of the whole, covariances follow."""
    model, x, y = shuffled()
    la = fitted(model, x, y, "classification", structure, weights=weights)
    every = fitted(model, x, y, "classification", structure)
    index = places(model, list(every.space.names), list(la.space.names))
    if structure != pw.Kron(bias="joint") or weights != "*.weight":  # there weight and bias are one factor
        assert relative(curvature_of(la), curvature_of(every)[index][:, index]) < EXACT
    covariance = torch.linalg.inv(curvature_of(la) + torch.eye(la.D, dtype=torch.float64))
    expected = dense.functional_covariance(dense.jacobian(model, x, list(la.space.names)), covariance)
    assert relative(la.functional(moved(x)).cov, expected) < EXACT


def pooled_forward(self: Network, x: Tensor) -> Tensor:
    """A convolution as head, pooled afterwards."""
    return self.head(torch.tanh(self.stem(x))).mean((2, 3))


def tied_forward(self: Network, x: Tensor) -> Tensor:
    """Tokens and logits from one table."""
    return torch.tanh(self.token(x).cumsum(1)) @ self.token.weight.T


def residual_forward(self: Network, x: Tensor) -> Tensor:
    """A norm and a scale follow the head."""
    return self.norm(self.head(torch.tanh(self.first(x)))) * self.scale


@pytest.mark.parametrize("structure", ["diag", "full", "kron"])
def test_last_layer_of_a_convolutional_head(structure: str) -> None:
    """The convolution is found, and the pooling after it is part of its Jacobian."""
    model = built(Network(pooled_forward, head=nn.Conv2d(3, 4, 2), stem=nn.Conv2d(2, 3, 2)))
    x, y = normal(5, 2, 4, 4), classes(4, 5)
    la = fitted(model, x, y, "classification", structure, weights="last_layer")
    assert la.space.names == ("head.weight", "head.bias")
    if structure != "kron":
        against_dense(la, model, x, y, places(model, names_of(model), list(la.space.names)), names_of(model))


def test_last_layer_before_a_norm() -> None:
    """The last layer is the last matrix that is applied; a norm and a scale after it are respected."""
    members = {"scale": nn.Parameter(torch.rand(3) + 0.5), "head": nn.Linear(5, 3), "norm": nn.LayerNorm(3)}
    model = built(Network(residual_forward, **members, first=nn.Linear(4, 5)))
    x, y = normal(6, 4), classes(3, 6)
    with pytest.warns(UserWarning, match=r"head.bias; scale, norm.weight, norm.bias also reaches"):
        la = fitted(model, x, y, "classification", "full", weights="last_layer")
    assert la.space.names == ("head.weight", "head.bias")
    against_dense(la, model, x, y, places(model, names_of(model), list(la.space.names)), names_of(model))


def test_last_layer_tied_to_an_embedding() -> None:
    """The table is the head, with its other use in the Jacobian."""
    model = built(Network(tied_forward, token=nn.Embedding(4, 3)))
    x, y = classes(4, 5, 3, seed=3), classes(4, 5, 3)
    la = fitted(model, x, y, "classification", "full", weights="last_layer")
    assert la.space.names == ("token.weight",)
    assert relative(curvature_of(la), dense.ggn(model, x, y, "classification", ["token.weight"])) < EXACT


def test_last_layer_of_frozen_heads() -> None:
    """Frozen weights are not selected; the last trainable layer is."""
    model, x, y = shuffled()
    model.head.requires_grad_(False)
    assert fitted(model, x, y, "classification", weights="last_layer").space.names == ("second.weight", "second.bias")
    assert "head.weight" not in fitted(model, x, y, "classification").space.names


@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize("form", ["mapping", "flat"])
def test_masks(structure: str, form: str) -> None:
    """Single elements, some of a tensor, all of another and none of the rest."""
    model, x, y = shuffled()
    names = [name for name in names_of(model) if not name.startswith("spare")]
    masks = {name: torch.rand(model.get_parameter(name).shape, generator=seeded(4)) < 0.4 for name in names}
    masks["second.bias"][:] = True
    masks["head.weight"][:] = False
    flat = torch.cat([masks.get(name, torch.zeros(model.get_parameter(name).shape, dtype=torch.bool)).flatten()
                      for name in names_of(model)])  # fmt: skip
    weights = masks if form == "mapping" else flat
    for prior in (0.8, pw.Prior.diagonal(torch.rand(int(flat.sum()), generator=seeded(5), dtype=torch.float64) + 0.5)):
        la = fitted(model, x, y, "classification", structure, weights=weights, prior=prior)
        assert int(flat.sum()) == la.D and "head.weight" not in la.space.names
        against_dense(la, model, x, y, flat.nonzero()[:, 0], names_of(model))


@pytest.mark.parametrize("name", ["conv2d_groups", "vision_transformer", "lstm", "batch_norm2d", "embedding_padding"])
@pytest.mark.parametrize("structure", ["diag", "full"])
def test_masks_on_other_layers(name: str, structure: str) -> None:
    """Masks cut convolutions, packed projections, recurrent weights, norms and embeddings alike."""
    case = table(name)
    flat = torch.rand(len(case.ggn), generator=seeded(6)) < 0.3
    la = case.fit(structure, weights=flat, prior=0.9)
    against_dense(la, case.model, case.x, case.y, flat.nonzero()[:, 0], case.names)


@pytest.mark.parametrize("structure", ["diag", "full"])
def test_subnetworks(structure: str) -> None:
    """Largest magnitude, largest variance and random choices are those of the definition."""
    model, x, y = shuffled()
    del model.spare
    names = names_of(model)
    theta, exact = weights_of(model), dense.ggn(model, x, y, "classification", names)
    scores = {
        pw.Subnetwork.largest_magnitude: theta.abs(),
        pw.Subnetwork.largest_variance: 1 / (exact.diagonal() + 0.8),
    }
    for make, score in scores.items():
        la = fitted(model, x, y, "classification", structure, weights=make(9), prior=0.8)
        against_dense(la, model, x, y, score.topk(9).indices.sort().values, names)
    chosen = []
    for generator in (None, None, seeded(1), seeded(2)):
        la = fitted(model, x, y, "classification", structure, weights=pw.Subnetwork.random(9, generator))
        assert la.D == 9
        chosen.append((la.space.names, la.space.mask.tolist()))
    assert chosen[0] == chosen[1] and chosen[2] != chosen[3]


def test_subnetworks_with_unused_layers() -> None:
    """Weights that are never used are not chosen by variance, though theirs is the prior's."""
    model, x, y = shuffled()
    la = fitted(model, x, y, "classification", "diag", weights=pw.Subnetwork.largest_variance(20))
    assert la.D == 20 and not any(name.startswith("spare") for name in la.space.names)


@pytest.mark.parametrize("size", [0, -1, 10**6, 2.0, True])
def test_subnetworks_of_impossible_size(size: Any) -> None:
    """The size and what is possible are named."""
    model, x, y = shuffled()
    with pytest.raises(ValueError, match=r"Subnetwork size .*expected a whole number from 1 to"):
        fitted(model, x, y, "classification", "diag", weights=pw.Subnetwork.largest_magnitude(size))


@pytest.mark.parametrize("name", ["lora_modules", "lora_parameters"])
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_lora(name: str, structure: str) -> None:
    """The low-rank pairs alone, with what follows them in the Jacobian."""
    case = table(name)
    la = case.fit(structure, weights="lora")
    assert all("lora_" in each for each in la.space.names) and len(la.space.names) == 2
    index = case.index(la)
    if structure == "kron":
        expected = case.kron()[index][:, index]
        assert relative(curvature_of(la), expected) < EXACT
    else:
        against_dense(la, case.model, case.x, case.y, index, case.names)


@pytest.mark.parametrize("structure", ["kron", "ekfac", "block"])
def test_structures_that_cannot_hold_masks_say_which_can(structure: str) -> None:
    """The alternatives are in the message."""
    model, x, y = shuffled()
    for weights in ({"head.weight": torch.eye(3, 5) > 0}, pw.Subnetwork.largest_magnitude(3)):
        with pytest.raises(ValueError, match=r"single elements.*'diag' or 'full'"):
            fitted(model, x, y, "classification", structure, weights=weights)


def test_refusals_name_what_is_near() -> None:
    """Unknown names, wrong masks and other types are refused with what was expected."""
    model, x, y = shuffled()
    wrong: list[tuple[Any, type[Exception], str]] = [
        ("heed.weight", ValueError, r"fits no parameter.*head\.weight"),
        (["first", "secnd.bias"], ValueError, r"secnd\.bias.*second\.bias"),
        ({"head.wight": torch.ones(3, 5) > 0}, ValueError, r"not a parameter.*head\.weight"),
        ({"head.weight": torch.ones(5, 3) > 0}, ValueError, r"\(5, 3\).*expected \(3, 5\) booleans"),
        ({"head.weight": torch.ones(3, 5)}, ValueError, r"float32.*booleans"),
        (torch.ones(7) > 0, ValueError, r"\(7,\).*one per trainable weight"),
        ({"head.weight": torch.zeros(3, 5) > 0}, ValueError, "No weights are selected"),
        (torch.zeros(95) > 0, ValueError, "."),
        ([], ValueError, "No weights are selected"),
        ("lora", ValueError, "lora_"),
        (3, TypeError, r"int.*'last_layer'"),
    ]
    for weights, error, message in wrong:
        with pytest.raises(error, match=message):
            fitted(model, x, y, "classification", "diag", weights=weights)


class Ends(nn.Module):
    """Networks whose last layer is not all that stands before the output."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.a, self.b = nn.Linear(5, 3), nn.Linear(5, 3)
        self.norm, self.scale, self.power = nn.LayerNorm(3), nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(3))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        if self.how == "sum":
            return self.a(hidden) + self.b(hidden)
        if self.how == "side by side":
            return torch.cat([self.a(hidden), self.b(hidden)], 1)
        if self.how == "norm":
            return self.norm(self.a(hidden))
        if self.how == "scale":
            return self.scale * self.a(hidden)
        if self.how == "power":
            return torch.sigmoid(self.a(hidden)) ** self.power
        if self.how == "skip":
            return hidden[:, :3] + self.a(hidden)
        return (
            self.a(hidden).log_softmax(1)
            if self.how == "log_softmax"
            else self.a(torch.relu(self.b(hidden) @ self.b.weight))
        )


@pytest.mark.parametrize(
    ("how", "taken", "others"),
    [
        ("sum", "b", ["a.weight", "a.bias"]),
        ("side by side", "b", ["a.weight", "a.bias"]),
        ("norm", "a", ["norm.weight", "norm.bias"]),
        ("scale", "a", ["scale"]),
        ("power", "a", ["power"]),
        ("skip", "a", ["body.weight", "body.bias"]),
        ("log_softmax", "a", []),
        ("plain", "a", []),
    ],
)
def test_what_the_last_layer_is_not_all_of(how: str, taken: str, others: list[str]) -> None:
    """Weights that reach the output beside it are named, with the way to have them too; others are not."""
    model, x = built(Ends(how)).to(DEVICE), moved(normal(6, 4))
    y = moved(classes(3, 6))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        la = pw.fit(model, (x, y), "classification", weights="last_layer", structure="diag")
    assert la.space.names == (f"{taken}.weight", f"{taken}.bias")
    assert len(said) == bool(others)
    if others:
        text = str(said[0].message)
        every = [f"{taken}.weight", f"{taken}.bias", *others]
        assert f"takes {taken}.weight, {taken}.bias; {', '.join(others)} also reaches the output" in text
        assert f"weights={every}" in text
        assert set(pw.fit(model, (x, y), "classification", weights=every, structure="diag").space.names) == {*every}
