"""What other libraries got wrong without an error: one test for each failure."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, cut, fitted, names_of, normal
from networks import Network, tied_linears
from tables import curvature_of, moved, relative, table

EXACT = 1e-8


@pytest.mark.parametrize("scored", ["evidence", "validation"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_grid_takes_its_best(scored: str, order: int) -> None:
    """The score of every value stands alone: the best of all is taken, wherever it is on the grid."""
    model = built(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)))
    x, y = normal(30, 3), classes(3, 30)
    la = fitted(model, x, y, "classification")
    grid = [10.0 ** (place / 2) for place in range(-8, 9)][::order]
    new = normal(60, 3, seed=6)
    labels = (0.6 * model(new).detach() - torch.rand(60, 3, dtype=torch.float64).log().neg().log()).argmax(-1)
    data = (moved(new), moved(labels)) if scored == "validation" else None
    tuned = la.tune("grid", grid=grid, validation=data)
    scores = [
        float(la.log_evidence(prior=value)) if data is None else -pw.validation_nll(la.with_prior(value), data)
        for value in grid
    ]
    best = scores.index(max(scores))
    assert 0 < best < len(grid) - 1
    assert float(tuned.prior.precision) == pytest.approx(grid[best])
    assert tuned.trace is not None and tuned.trace.best == best


@pytest.mark.parametrize("scored", ["evidence", "validation"])
def test_a_grid_in_regression_scores_the_variance_too(scored: str) -> None:
    """The mean is the same at every value; the score is not, and another than the first value is taken."""
    model = built(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)))
    x = normal(30, 3)
    y = model(x).detach() + 0.3 * normal(30, 1, seed=4)
    la = fitted(model, x, y, pw.Gaussian(0.25))
    grid = [10.0 ** (place / 2) for place in range(-8, 13)]
    new = normal(60, 3, seed=6)
    data = (moved(new), moved(model(new).detach() + 0.3 * normal(60, 1, seed=7))) if scored == "validation" else None
    tuned = la.tune("grid", grid=grid, validation=data)
    assert tuned.trace is not None
    network_itself = scored == "validation"  # it is one more candidate
    assert len(set(tuned.trace.values)) == len(grid) + network_itself
    assert 0 < tuned.trace.best < len(grid) - 1
    assert float(tuned.prior.precision) == pytest.approx(grid[tuned.trace.best])


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
@pytest.mark.parametrize("curvature", ["ggn", "empirical"])
def test_the_gradient_in_the_noise(structure: str, curvature: str) -> None:
    """Through data fit and log-determinant: that of finite differences, for both degrees of the noise precision."""
    case = table("mlp_regression")
    la = case.fit(structure, curvature)
    noise = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(la.log_evidence(noise=noise), noise)
    above, below = (float(la.log_evidence(noise=0.4 + step)) for step in (1e-6, -1e-6))
    assert float(slope) == pytest.approx((above - below) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("name", ["mlp", "conv2d_groups", "token_classifier", "tied_gpt"])
@pytest.mark.parametrize("bias", ["separate", "joint"])
def test_damping(name: str, bias: str) -> None:
    """The prior is added to the Kronecker product itself, never `(A + sqrt(delta) I) (x) (G + sqrt(delta) I)`."""
    case = table(name)
    la = case.fit(pw.Kron(bias=bias), prior=0.4)
    index = case.index(la)
    factored = case.kron(bias=bias)[index][:, index]
    identity = torch.eye(la.D, dtype=torch.float64)
    exact = torch.linalg.inv(factored + 0.4 * identity)
    assert relative(la.precision.solve(moved(identity)), exact) < EXACT
    assert relative(la.precision.logdet(), -torch.logdet(exact)) < EXACT
    cov = la.functional(moved(case.x), joint=True).cov
    expected = dense.joint_functional_covariance(case.jacobian[:, :, index], exact)
    assert relative(cov.reshape(expected.shape), expected) < EXACT


def test_damping_is_not_split_between_the_factors() -> None:
    """The split form differs on this network, so the test above could fail."""
    model = built(nn.Linear(3, 2, bias=False))
    x, y = normal(6, 3), classes(2, 6)
    la = fitted(model, x, y, "classification", prior=0.4)
    f = dense.outputs(model, x)
    inputs, gradients = x.T @ x / 6, dense.output_hessian("classification", f, y).sum(0)
    exact = torch.linalg.inv(torch.kron(gradients, inputs) + 0.4 * torch.eye(6, dtype=torch.float64))
    root = 0.4**0.5 * torch.eye(3, dtype=torch.float64)
    split = torch.linalg.inv(torch.kron(gradients + root[:2, :2], inputs + root))
    made = la.precision.solve(torch.eye(6).to(la.weights))
    assert relative(made, exact) < EXACT
    assert relative(made, split) > 0.05


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_grouped_convolutions(groups: int, approx: str) -> None:
    """Where Kronecker factors are exact, those of a grouped convolution are, and not too small by its groups."""
    # One example, and a kernel that covers the image: no shared positions.
    model = built(nn.Sequential(nn.Conv2d(4, 8, 2, groups=groups), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)))
    x, y = normal(1, 4, 2, 2), classes(3, 1)
    exact = dense.ggn(model, x, y, "classification", names_of(model))
    la = fitted(model, x, y, "classification", pw.Kron(approx=approx))
    size = model[0].weight.numel()
    group = torch.arange(groups).repeat_interleave(size // groups)
    expected = exact[:size, :size] * (group[:, None] == group)
    assert relative(curvature_of(la)[:size, :size], expected) < EXACT


@pytest.mark.parametrize("name", ["conv2d_groups", "depthwise", "inverted_residual", "conv_transpose2d"])
def test_grouped_convolutions_of_the_table(name: str) -> None:
    """Equal to one Kronecker product per group, made by loops over positions."""
    case = table(name)
    assert relative(curvature_of(case.fit("kron")), case.kron()) < EXACT


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
def test_empirical_fisher_in_regression(structure: str) -> None:
    """`sum g g^T / sigma^4` with g the gradient of half the squared error: no factor 2, and no sigma^-2."""
    case = table("mlp_regression")
    sigma = 0.3
    model = case.case.make()[0].to(DEVICE)
    data = moved(case.x), moved(case.y)
    la = pw.fit(model, data, pw.Gaussian(noise=sigma), structure=structure, curvature="empirical")
    exact = dense.empirical(case.model, case.x, case.y, "regression", case.names)
    made = curvature_of(la)
    if structure == "kron":
        expected = case.kron(curvature="empirical") / sigma**4
        assert relative(made, expected) < EXACT
    elif structure == "full":
        assert relative(made, exact / sigma**4) < EXACT
    elif structure == "diag":
        assert relative(made.diagonal(), exact.diagonal() / sigma**4) < EXACT
    else:  # the correction keeps the trace
        assert relative(made.trace(), exact.trace() / sigma**4) < EXACT


@pytest.mark.parametrize("curvature", ["empirical", "ggn", pw.MonteCarlo(3)], ids=str)
def test_last_layer_diagonal_curvature_is_not_zero(curvature: object) -> None:
    """The last layer alone has the entries that it has among all layers."""
    case = table("mlp")
    la = case.fit("diag", curvature, weights="last_layer")
    every = case.fit("diag", curvature)
    assert la.space.names == ("4.weight", "4.bias")
    made = curvature_of(la).diagonal()
    assert float(made.min()) > 1e-6
    assert relative(made, curvature_of(every).diagonal()[-la.D :]) < EXACT
    if curvature == "empirical":
        exact = dense.empirical(case.model, case.x, case.y, "classification", case.names).diagonal()
        assert relative(made, exact[-la.D :]) < EXACT


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_examples_are_what_was_seen(structure: str) -> None:
    """Samplers and `drop_last` change N, the curvature and the evidence to those of the examples handed out."""
    model = built(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))).to(DEVICE)
    x, y = normal(11, 4), classes(3, 11)
    data = TensorDataset(x, y)
    chosen = [0, 3, 4, 7]
    loaders = {
        4: DataLoader(data, batch_size=3, sampler=SubsetRandomSampler(chosen)),
        8: DataLoader(data, batch_size=4, drop_last=True),
    }
    for number, loader in loaders.items():
        index = torch.tensor(chosen) if number == 4 else torch.arange(8)
        la = pw.fit(model, loader, "classification", structure=structure, curvature="ggn")
        assert number == la.N
        exact = dense.ggn(model.cpu(), x[index], y[index], "classification", names_of(model))
        model.to(DEVICE)
        assert relative(curvature_of(la).trace(), exact.trace()) < EXACT or structure == "kron"
        if structure == "full":
            energy = dense.energy(model.cpu(), x[index], y[index], "classification")
            model.to(DEVICE)
            ones = torch.ones(la.D, dtype=torch.float64)
            expected = dense.log_evidence(-energy, exact, la.weights.cpu(), 0 * ones, ones)
            assert relative(la.log_evidence(), expected) < EXACT


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full"])
def test_function_samples_over_several_inputs(structure: str) -> None:
    """The correlation of function samples between inputs is the posterior's, not one."""
    case = table("scalar_output")
    la = case.fit(structure)
    covariance = torch.linalg.inv(curvature_of(la) + torch.eye(la.D, dtype=torch.float64))
    expected = dense.joint_functional_covariance(case.jacobian, covariance)
    samples = la.functional_samples(moved(case.x), 20_000, generator=torch.Generator().manual_seed(3))
    assert samples.shape == (20_000, 5)
    assert relative(torch.cov(samples.T), expected) < 0.05
    correlation = torch.corrcoef(samples.T).cpu()
    scale = expected.diagonal().rsqrt()
    assert float((correlation - scale[:, None] * expected * scale).abs().max()) < 0.05
    assert float(correlation[~torch.eye(5, dtype=torch.bool)].abs().min()) < 0.9


def test_generators_are_used() -> None:
    """The same seed gives the same draws, another seed others, in samples and in the Monte Carlo Fisher."""
    case = table("mlp")
    x = moved(case.x)
    la = case.fit("kron")

    def seeded(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    for draw in (lambda g: la.sample(4, generator=g), lambda g: la.functional_samples(x, 4, generator=g)):
        first = draw(seeded(1))
        assert torch.equal(first, draw(seeded(1)))
        assert not torch.allclose(first, draw(seeded(2)))
        generator = seeded(1)
        assert torch.equal(first, draw(generator)) and not torch.equal(first, draw(generator))
    fits = [curvature_of(case.fit("full", "fisher", generator=seeded(seed))) for seed in (1, 1, 2)]
    assert torch.equal(fits[0], fits[1])
    assert not torch.allclose(fits[0], fits[2])
    generator = seeded(1)
    assert torch.equal(fits[0], curvature_of(case.fit("full", "fisher", generator=generator)))
    assert not torch.allclose(fits[0], curvature_of(case.fit("full", "fisher", generator=generator)))


def test_labels_differ_between_batches() -> None:
    """The same inputs in two batches get their own labels: draws are not repeated in every batch."""
    case = table("mlp")
    model = case.case.make()[0].to(DEVICE)
    batch = cut(case.x, case.y, [5])[0]
    once, twice = (
        curvature_of(pw.fit(model, [batch] * times, "classification", structure="full", curvature="fisher"))
        for times in (1, 2)
    )
    assert relative(twice, 2 * once) > 0.05
    # Repeating the data more often than that tends to the exact curvature, which repeated draws would not.
    many = curvature_of(pw.fit(model, [batch] * 1000, "classification", structure="full", curvature="fisher")) / 1000
    assert relative(many, case.ggn) < 0.1 < relative(once, case.ggn)


TIED = ("tied_linears", "tied_autoencoder", "tied_gpt", "tied_functional", "same_module_twice", "called_twice")


@pytest.mark.parametrize("name", TIED)
def test_tied_weights(name: str) -> None:
    """A tied weight is one block with the curvature of all its uses, cross terms included."""
    case = table(name)
    assert relative(curvature_of(case.fit("full")), case.ggn) < EXACT
    assert relative(curvature_of(case.fit("diag")).diagonal(), case.ggn.diagonal()) < EXACT
    assert relative(curvature_of(case.fit("ekfac")).trace(), case.ggn.trace()) < EXACT
    assert relative(curvature_of(case.fit("kron")), case.kron()) < EXACT
    assert sum(parameter.numel() for parameter in case.model.parameters()) == case.fit("kron").D


def test_tied_weights_are_not_doubled() -> None:
    """Untying the weights changes the curvature: two uses are not two parameters."""
    model = built(tied_linears())
    assert [name for name, _ in model.named_parameters()].count("0.weight") == 1
    assert "2.weight" not in fitted(model, normal(4, 4), classes(3, 4), "classification").space.names


class Conv(nn.Module):
    """A convolution as head, with pooling and a temperature after it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 3, 1)
        self.body = nn.Conv2d(2, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 2, H, W) to (B, 3)."""
        return torch.tanh(self.head(torch.tanh(self.body(x))).mean((2, 3))) * 2.5


def softened(self: Network, x: Tensor) -> Tensor:
    """Log probabilities behind a nonlinear function of the head."""
    return torch.log_softmax(3.4 * torch.sin(self.head(torch.tanh(self.first(x)))), -1)


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
@pytest.mark.parametrize("which", ["linear", "conv"])
def test_operations_after_the_head(which: str, structure: str) -> None:
    """Whatever follows the last layer is part of its Jacobian."""
    if which == "linear":
        model, x = built(Network(softened, head=nn.Linear(5, 3), first=nn.Linear(4, 5))), normal(6, 4)
    else:
        model, x = built(Conv()), normal(6, 2, 3, 3)
    y = classes(3, 6)
    names = ["head.weight", "head.bias"]
    la = fitted(model, x, y, "classification", structure, weights="last_layer")
    assert la.space.names == tuple(names)
    exact = dense.ggn(model, x, y, "classification", names)
    if structure == "full":
        assert relative(curvature_of(la), exact) < EXACT
    elif structure == "diag":
        assert relative(curvature_of(la).diagonal(), exact.diagonal()) < EXACT
    covariance = torch.linalg.inv(curvature_of(la) + torch.eye(la.D, dtype=torch.float64))
    expected = dense.functional_covariance(dense.jacobian(model, x, names), covariance)
    assert relative(la.functional(moved(x)).cov, expected) < EXACT


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
def test_asking_for_the_evidence_sets_nothing(structure: str) -> None:
    """The evidence at another prior or noise leaves the posterior as it was, and equals that of a fit with it."""
    case = table("mlp_regression")
    x = moved(case.x)
    la = case.fit(structure, prior=0.5)
    before = la.log_evidence(), la.precision.variance(), la.functional(x).cov, la.precision.logdet()
    other = la.log_evidence(prior=7.0, noise=0.4)
    layered = la.log_evidence(prior=pw.Prior.layerwise(torch.rand(len(case.names), dtype=torch.float64) + 0.5))
    assert not torch.allclose(other, before[0]) and not torch.allclose(layered, before[0])
    after = la.log_evidence(), la.precision.variance(), la.functional(x).cov, la.precision.logdet()
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))
    assert la.prior.precision.item() == 0.5 and float(la.likelihood.noise_precision) == 1.0
    model = case.case.make()[0].to(DEVICE)
    again = pw.fit(model, (x, moved(case.y)), pw.Gaussian(noise=0.4), structure=structure, curvature="ggn", prior=7.0)
    assert relative(other, again.log_evidence().cpu()) < 1e-10
    tuned = la.tune()
    assert tuned.prior.precision.item() != 0.5 and la.trace is None
    assert torch.equal(la.log_evidence(), before[0])
    moved_on = la.with_prior(7.0)
    assert la.prior.precision.item() == 0.5 and moved_on.prior.precision.item() == 7.0


def test_there_is_no_posterior_before_a_fit() -> None:
    """A `Laplace` comes from data alone: there is none that would answer with its prior."""
    model = built(nn.Linear(3, 2))
    with pytest.raises(TypeError, match=r"peewit\.fit\(model, data, likelihood\)"):
        pw.Laplace(model)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        pw.Laplace(model, "classification").predict(normal(2, 3))  # type: ignore[call-arg,arg-type]


ELSEWHERE = {
    "sigma_noise": ("la.likelihood.noise", "la.with_noise(...)"),
    "prior_precision": ("la.prior.precision", "la.with_prior(...)"),
    "posterior_covariance": ("la.precision.solve", "la.precision.variance()"),
    "posterior_variance": ("la.precision.variance()", "la.precision.solve"),
    "mean": ("la.weights",),
    "mode": ("la.weights", "la.predict(x).mode"),
    "kind": ("la.curvature",),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_names_of_others_lead_to_the_right_place(name: str) -> None:
    """What another library's posterior holds under a name is said to be where it is here."""
    la = fitted(built(nn.Linear(3, 2)), normal(5, 3), normal(5, 2, seed=2), pw.Gaussian(0.5), "diag")
    with pytest.raises(AttributeError) as caught:
        getattr(la, name)
    assert all(place in str(caught.value) for place in ELSEWHERE[name]) and "did you mean" not in str(caught.value)
    assert la.likelihood.noise == 0.5 and float(la.prior.precision) == 1.0  # type: ignore[attr-defined]
    assert la.precision.solve(la.weights).shape == la.precision.variance().shape == la.weights.shape == (la.D,)


def test_a_posterior_lists_public_names_alone() -> None:
    """`dir` has what users may ask for, and each of these names is there."""
    la = fitted(built(nn.Linear(3, 2)), normal(5, 3), classes(2, 5), "classification", "diag")
    names = dir(la)
    assert {"predict", "tune", "weights", "with_prior"} <= set(names) and "state" not in names
    assert not [name for name in names if name.startswith("_") or not hasattr(la, name)]


@pytest.mark.parametrize("structure", ["kron", "diag", "block", "full"])
def test_repeated_updates_add_up(structure: str) -> None:
    """The same data three times is three times the curvature, for convolutions with many positions too."""
    model = built(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2)))
    x, y = normal(5, 1, 5, 5), classes(2, 5)
    once = fitted(model, x, y, "classification", structure)
    thrice = once.update((moved(x), moved(y))).update((moved(x), moved(y)))
    assert thrice.N == 15
    assert relative(curvature_of(thrice), 3 * curvature_of(once)) < EXACT
    exact = dense.ggn(model, x, y, "classification", names_of(model))
    if structure in ("full", "diag"):
        assert relative(curvature_of(once).diagonal(), exact.diagonal()) < EXACT


def test_corrected_eigenvalues_have_the_scale_of_the_data() -> None:
    """Rotations keep traces: the corrected eigenvalues of every weight add up to those of its exact block."""
    model = built(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2)))
    x, y = normal(7, 1, 5, 5), classes(2, 7)
    la = fitted(model, x, y, "classification", "ekfac")
    exact = dense.ggn(model, x, y, "classification", names_of(model)).diagonal()
    ours = curvature_of(la).diagonal()
    for place in la.space.slices().values():
        assert relative(ours[place].sum(), exact[place].sum()) < EXACT


def test_the_evidence_of_adapters() -> None:
    """Low-rank pairs: the evidence by its definition, with the norm of the adapters alone and the right signs."""
    base = built(nn.Linear(4, 3))
    model = Network(
        lambda net, x: net.base(x) + x @ net.lora_A.T @ net.lora_B.T,
        base=base,
        lora_A=nn.Parameter(normal(2, 4, seed=3)),
        lora_B=nn.Parameter(normal(3, 2, seed=4)),
    )
    x, y = normal(8, 4), classes(3, 8)
    la = fitted(model, x, y, "classification", "full", weights="lora", prior=0.7)
    names = ["lora_A", "lora_B"]
    theta = torch.cat([model.get_parameter(name).detach().flatten() for name in names])
    curvature = dense.ggn(model, x, y, "classification", names)
    eye = torch.eye(len(theta), dtype=torch.float64)
    likelihood = -nn.functional.cross_entropy(model(x).detach(), y, reduction="sum")
    volume = torch.logdet(curvature + 0.7 * eye) - len(theta) * torch.tensor(0.7, dtype=torch.float64).log()
    expected = likelihood - 0.5 * 0.7 * theta @ theta - 0.5 * volume
    assert len(theta) == la.D
    assert relative(la.log_evidence(), expected) < EXACT
