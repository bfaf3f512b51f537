"""The numbers behind figures of weights and predictions, against plain loops, dense matrices and closed forms."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy
import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import peewit as pw
import reference
import reference_dense as dense
from environment import DEVICE
from figure_cases import Small, case
from figure_checks import checked, compared
from fitting import Gained, normal, seeded
from peewit import figures
from peewit.figures import directions, gaussian, losses, prediction, sampling, unknown
from peewit.figures import summary as summaries
from peewit.figures.landscapes import in_plane, ring


def loss_at(small: Small, step: Tensor) -> tuple[float, float | None]:
    """The mean loss and accuracy of a copy whose weights were moved by hand, one example at a time."""
    model = copy.deepcopy(small.model).eval()
    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += step[start : start + parameter.numel()].view_as(parameter).to(parameter)
            start += parameter.numel()
        total, right = 0.0, 0
        for x, y in zip(small.x, small.y, strict=True):
            f = model(x[None])[0]
            total += loss_of(small, f, y)
            right += int(hit(small, f, y))
    return total / len(small.x), None if small.words == "regression" else right / len(small.x)


def loss_of(small: Small, f: Tensor, y: Tensor) -> float:
    """Of one example."""
    if small.words == "regression":
        return 0.5 * float((f - y).square().sum())
    if small.words == "binary":
        return float(F.binary_cross_entropy_with_logits(f, y, reduction="sum"))
    return float(F.cross_entropy(f[None], y[None]))


def hit(small: Small, f: Tensor, y: Tensor) -> bool:
    """Whether the class is right."""
    return bool((f > 0) == (y > 0.5)) if small.words == "binary" else bool(f.argmax() == y)


def linear_loss_at(small: Small, step: Tensor) -> float:
    """The mean loss of f + J d by forward mode."""
    weights = {name: p.detach() for name, p in small.model.named_parameters()}
    pieces, start = {}, 0
    for name, weight in weights.items():
        pieces[name] = step[start : start + weight.numel()].view_as(weight).to(weight)
        start += weight.numel()
    f, change = jvp(lambda w: functional_call(small.model, w, (small.x,)), (weights,), (pieces,))
    return sum(loss_of(small, a, y) for a, y in zip(f + change, small.y, strict=True)) / len(small.y)


def precision_of(small: Small, delta: float | Tensor, scale: float = 1.0) -> Tensor:
    """(D, D): the posterior precision by its definition."""
    ggn = dense.ggn(small.plain, small.x.cpu(), small.y.cpu(), small.words, small.names)
    return scale * ggn + torch.diag(torch.as_tensor(delta, dtype=torch.float64).cpu().expand(len(ggn)))


def axes_of(la: pw.Laplace, count: int = 2) -> Tensor:
    """Directions of the test's own."""
    return 0.3 * normal(count, la.D, seed=11).to(DEVICE)


@pytest.mark.parametrize("name", ["classes", "batch_norm", "regression", "binary", "images"])
def test_landscape_is_the_loss_at_moved_weights(name: str) -> None:
    small = case(name)
    la = small.fit("kron", prior=2.0)
    axes = axes_of(la)
    made = figures.landscape(la, small.data, directions=axes, reach=1.2, points=5)
    assert made.a.tolist() == pytest.approx([-1.2, -0.6, 0.0, 0.6, 1.2])
    for row, column in ((0, 0), (2, 2), (4, 1), (1, 3)):
        step = (made.a[column] * axes[0].cpu() + made.b[row] * axes[1].cpu()).to(DEVICE)
        loss, accuracy = loss_at(small, step)
        assert float(made.loss[row, column]) == pytest.approx(loss, rel=1e-10)
        assert float(made.linear[row, column]) == pytest.approx(linear_loss_at(small, step), rel=1e-9)
        if accuracy is None:
            assert made.accuracy is None
        else:
            assert made.accuracy is not None
            assert float(made.accuracy[row, column]) == pytest.approx(accuracy, abs=1e-12)
        moved = la.weights + step
        assert float(made.penalty[row, column]) == pytest.approx(float(moved.square().sum()), rel=1e-10)
    assert made.examples == len(small.x)


def test_landscape_counts_noise_prior_mean_and_temperature() -> None:
    small = case("regression")
    la = small.fit("full", prior=pw.Prior.layerwise([1.0, 2.0, 3.0, 4.0], mean=0.25)).with_temperature(2.0)
    axes = axes_of(la)
    made = figures.landscape(la, small.data, directions=axes, points=3, reach=0.7)
    delta = torch.tensor([1.0] * 5 + [2.0] * 5 + [3.0] * 5 + [4.0], dtype=torch.float64)
    assert made.data_weight == pytest.approx(25 / 0.4**2 / 2.0)
    precision = precision_of(small, delta, 1 / 0.4**2 / 2.0)
    for row, column in ((0, 2), (1, 0), (1, 1)):
        step = made.a[column] * axes[0].cpu() + made.b[row] * axes[1].cpu()
        off = la.weights.cpu() + step - 0.25
        assert float(made.penalty[row, column]) == pytest.approx(0.5 * float((delta * off**2).sum()), rel=1e-10)
        assert float(made.quadratic[row, column]) == pytest.approx(0.5 * float(step @ precision @ step), rel=1e-8)
        whole = made.data_weight * loss_at(small, step.to(DEVICE))[0] + float(made.penalty[row, column])
        assert float(made.objective[row, column]) == pytest.approx(whole, rel=1e-10)


def test_gaussian_is_the_dense_posterior_and_density_is_its_target() -> None:
    small = case("classes")
    la = small.fit("full", prior=3.0)
    made = figures.landscape(la, small.data, points=7)
    covariance = torch.linalg.inv(precision_of(small, 3.0))
    normal_ = scipy.stats.multivariate_normal(numpy.zeros(la.D), covariance.numpy())
    flat = made.density.flatten()
    losses_ = []
    for row in range(7):
        for column in range(7):
            step = made.a[column] * made.directions[0] + made.b[row] * made.directions[1]
            ratio = math.exp(normal_.logpdf(step.numpy()) - normal_.logpdf(numpy.zeros(la.D)))
            assert float(made.gaussian[row, column]) == pytest.approx(ratio, rel=1e-7)
            penalty = 1.5 * float((la.weights.cpu() + step).square().sum())
            losses_.append(30 * loss_at(small, step.to(DEVICE))[0] + penalty)
    expected = (min(losses_) - torch.tensor(losses_, dtype=torch.float64)).exp()
    torch.testing.assert_close(flat, expected, rtol=1e-8, atol=1e-12)
    shape = made.directions @ precision_of(small, 3.0) @ made.directions.T
    torch.testing.assert_close(in_plane(made), shape, rtol=1e-7, atol=1e-9)
    x, y = (torch.tensor(each, dtype=torch.float64) for each in ring(made, 2.0))
    around = torch.stack([x, y], 1)
    torch.testing.assert_close(((around @ shape) * around).sum(1), torch.full_like(x, 4.0), rtol=1e-7, atol=0)


def test_linear_density_is_gaussian_for_a_linear_network() -> None:
    model = nn.Linear(2, 1).double().to(DEVICE)
    x, y = normal(30, 2).to(DEVICE), normal(30, 1, seed=2).to(DEVICE)
    with torch.no_grad():  # the mode: then all three are one function
        design = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        best = torch.linalg.solve(design.T @ design + torch.eye(3, dtype=x.dtype, device=DEVICE), design.T @ y)
        model.weight.copy_(best[:2].T)
        model.bias.copy_(best[2])
    la = pw.fit(model, (x, y), "regression", structure="full")
    made = figures.landscape(la, (x, y), points=9)
    torch.testing.assert_close(made.density, made.gaussian, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(made.linear_density, made.gaussian, rtol=1e-8, atol=1e-12)


def test_landscape_over_batches_and_over_the_first_examples() -> None:
    small = case("classes")
    la = small.fit("diag")
    axes = axes_of(la)
    whole = figures.landscape(la, small.data, directions=axes, points=3)
    loader = DataLoader(TensorDataset(small.x, small.y), batch_size=7)
    torch.testing.assert_close(figures.landscape(la, loader, directions=axes, points=3).loss, whole.loss)
    some = figures.landscape(la, loader, directions=axes, points=3, examples=10)
    alone = figures.landscape(la, (small.x[:10], small.y[:10]), directions=axes, points=3)
    torch.testing.assert_close(some.loss, alone.loss)
    torch.testing.assert_close(some.linear, alone.linear)
    assert (some.examples, some.data_weight) == (10, 30.0)  # the posterior's own N: the Gaussian is of all data


def test_landscape_of_some_weights_moves_those_alone() -> None:
    small = case("classes")
    mask = torch.zeros(27, dtype=torch.bool)
    mask[[0, 5, 13, 20]] = True
    la = small.fit("full", weights=mask)
    axes = axes_of(la)
    made = figures.landscape(la, small.data, directions=axes, points=3, reach=2.0)
    step = torch.zeros(27, dtype=torch.float64)
    step[mask] = 2.0 * axes[0].cpu() - 2.0 * axes[1].cpu()
    assert float(made.loss[0, 2]) == pytest.approx(loss_at(small, step.to(DEVICE))[0], rel=1e-10)
    random = figures.landscape(la, small.data, directions="random", points=3)
    assert random.directions.shape == (2, 4)


def test_single_numbers_are_weights_too() -> None:
    small = case("classes")
    own = Small(
        model=Gained().double().to(DEVICE), x=small.x, y=small.y, likelihood="classification", words="classification"
    )
    la = own.fit("full")
    axes = axes_of(la)
    made = figures.landscape(la, [{"x": own.x, "labels": own.y}], directions=axes, points=3)
    assert float(made.loss[2, 0]) == pytest.approx(loss_at(own, axes[1] - axes[0])[0], rel=1e-10)
    assert float(made.linear[2, 0]) == pytest.approx(linear_loss_at(own, axes[1] - axes[0]), rel=1e-10)
    same = figures.landscape(la, own.data, directions=torch.stack([axes[0], axes[0]]), points=3)
    assert ring(same, 1.0) == ([], [])


class Counting(nn.Module):
    """A network that counts its calls in a buffer, in evaluation mode too, and answers by it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.inner(x) * self.calls


def test_points_do_not_depend_on_those_before_them() -> None:
    model = Counting().double().to(DEVICE).eval()
    x, y = normal(10, 2).to(DEVICE), (torch.arange(10) % 2).to(DEVICE)
    la = pw.fit(model, (x, y), "classification", structure="full")
    assert float(model.calls) == 0
    axes = axes_of(la)
    made = figures.landscape(la, (x, y), directions=axes, points=3)
    step = axes[0] + axes[1]
    with torch.no_grad():
        f = F.linear(x, model.inner.weight + step[:4].view(2, 2), model.inner.bias + step[4:])
    assert float(made.loss[2, 2]) == pytest.approx(float(F.cross_entropy(f, y)), rel=1e-10)
    drawn = figures.prediction_draws(la, x, 3, method="sampled")
    eps = la.state.deviations(3, torch.Generator().manual_seed(0))[2]
    with torch.no_grad():
        f = F.linear(x, model.inner.weight + eps[:4].view(2, 2), model.inner.bias + eps[4:])
    torch.testing.assert_close(drawn.predictions[2], f.softmax(1).cpu(), rtol=1e-9, atol=1e-12)
    assert float(model.calls) == 0


def test_line_is_the_middle_of_the_plane() -> None:
    small = case("classes")
    la = small.fit("kron")
    plane = figures.landscape(la, small.data, points=9)
    line = figures.landscape(la, small.data, points=9, dimensions=1)
    for name in ("loss", "linear", "penalty", "quadratic"):
        torch.testing.assert_close(getattr(line, name)[0], getattr(plane, name)[4], msg=name)
    assert not line.plane and plane.plane
    assert plane.contrast is not None and float(plane.contrast.abs().max()) <= 1.0


def test_random_directions_have_filters_as_long_as_the_trained_ones() -> None:
    small = case("images")
    la = small.fit("kron")
    drawn = directions.filter_normalised(la, 2, seeded(0))
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn, directions.filter_normalised(la, 2, seeded(0)))
    assert not torch.equal(drawn, directions.filter_normalised(la, 2, seeded(1)))
    conv, head = small.model[0], small.model[3]
    first = drawn[0]
    for number in range(2):
        own = first[number * 9 : (number + 1) * 9]
        assert float(own.norm()) == pytest.approx(float(conv.weight[number].detach().norm()))
    assert float(first[18:20].abs().sum()) == 0.0  # biases stay
    rows = first[20 : 20 + 96].view(3, 32)
    torch.testing.assert_close(rows.norm(dim=1), head.weight.detach().norm(dim=1))
    biases = small.fit("full", weights=["0.bias"])
    alone = directions.filter_normalised(biases, 1, seeded(0))[0]
    assert float(alone.norm()) == pytest.approx(float(conv.bias.detach().norm()))


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("largest", [2_000, 5])
def test_eigen_directions_are_the_dense_ones(structure: str, largest: int) -> None:
    la = case("classes").fit(structure)
    identity = torch.eye(la.D, dtype=torch.float64, device=DEVICE)
    values, vectors = torch.linalg.eigh(la.precision.mv(identity))
    found = directions.eigen(la, 2, seeded(0), dense=largest)
    for number in range(2):
        wanted = vectors[:, -1 - number] / values[-1 - number].sqrt()
        sign = torch.sign(wanted @ found[number])
        torch.testing.assert_close(found[number], sign * wanted, rtol=1e-6, atol=1e-8)
        assert float(found[number] @ la.precision.mv(found[number])) == pytest.approx(1.0)


def hessian_by_torch(small: Small) -> Tensor:
    """(D, D): of the summed loss, by torch.func.hessian."""
    parameters = {name: p.detach() for name, p in small.model.named_parameters()}
    sizes = [p.numel() for p in parameters.values()]

    def total(flat: Tensor) -> Tensor:
        pieces = {n: v.view_as(parameters[n]) for n, v in zip(parameters, flat.split(sizes), strict=True)}
        f = functional_call(small.model, pieces, (small.x,))
        if small.words == "regression":
            return 0.5 * (f - small.y).square().sum()
        return F.cross_entropy(f, small.y, reduction="sum")

    flat = torch.cat([p.flatten() for p in parameters.values()])
    return torch.func.hessian(total)(flat).cpu()


@pytest.mark.parametrize(("name", "noise"), [("classes", 1.0), ("regression", 0.4)])
def test_whole_matrices_are_second_derivatives(name: str, noise: float) -> None:
    small = case(name)
    la = small.fit("diag")
    made = figures.curvature_matrices(la, small.data)
    torch.testing.assert_close(made.hessian, hessian_by_torch(small) / noise**2, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(made.ggn, precision_of(small, 0.0, 1 / noise**2), rtol=1e-8, atol=1e-9)
    assert made.names == tuple(small.names) and made.ends[-1] == la.D
    some = figures.curvature_matrices(la, small.data, most=8)
    assert len(some.chosen) <= la.D // 2 and len(some.ends) == len(small.names)
    torch.testing.assert_close(some.hessian, made.hessian[some.chosen][:, some.chosen])


@pytest.mark.parametrize("structure", ["full", "block", "diag", "kron", "ekfac", pw.Kron(bias="joint")])
def test_spectra_are_eigenvalues_of_each_tensor(structure: Any) -> None:
    small = case("regression")
    la = small.fit(structure, prior=2.0)
    identity = torch.eye(la.D, dtype=torch.float64, device=DEVICE)
    curvature = la.precision.mv(identity).cpu() - 2.0 * torch.eye(la.D, dtype=torch.float64)
    found = figures.layer_spectra(la)
    slices = la.space.slices()
    joint = isinstance(structure, pw.Kron)
    for each in found:
        places = torch.cat([torch.arange(la.D)[slices[name]] for name in each.name.split(" and ")])
        own = curvature[places][:, places]
        wanted = torch.linalg.eigvalsh(own).clamp(min=0).flip(0)
        torch.testing.assert_close(each.values, wanted, rtol=1e-7, atol=1e-8)
        assert each.prior == pytest.approx(2.0)
        assert each.determined == pytest.approx(float((wanted / (wanted + 2.0)).sum()), rel=1e-7)
    assert [each.name for each in found] == (["0.weight and 0.bias", "2.weight and 2.bias"] if joint else small.names)


def test_kronecker_factors_make_the_block() -> None:
    small = case("classes")
    la = small.fit("kron")
    made = figures.kronecker_factors(la, "2.weight", most=10)
    block = reference.kron(small.plain, small.x.cpu(), small.y.cpu(), small.words, small.names)
    start = 2 * 4 + 4
    torch.testing.assert_close(made.product, block[start : start + 12, start : start + 12], rtol=1e-8, atol=1e-10)
    cut = figures.kronecker_factors(la, "2.weight", most=2)
    torch.testing.assert_close(cut.rows, made.rows[:2, :2])
    assert cut.product.shape == (4, 4) and cut.shape == (3, 4)
    assert figures.kronecker_factors(la).name == "0.weight"


def test_approximations_are_compared_with_the_exact_block() -> None:
    small = case("classes")
    la = small.fit("kron", prior=1.5)
    made = figures.approximations(la, small.data, "2.weight")
    place = slice(12, 24)
    ggn = precision_of(small, 0.0)[place, place]
    torch.testing.assert_close(made.true, ggn, rtol=1e-8, atol=1e-10)
    by_name = {each.name: each for each in made.versions}
    assert list(by_name) == ["diagonal", "KFAC", "EKFAC"]
    torch.testing.assert_close(by_name["diagonal"].matrix, torch.diag(ggn.diagonal()), rtol=1e-8, atol=1e-10)
    arguments = small.plain, small.x.cpu(), small.y.cpu(), small.words, small.names
    kron = reference.kron(*arguments)[place, place]
    torch.testing.assert_close(by_name["KFAC"].matrix, kron, rtol=1e-8, atol=1e-10)
    for each in made.versions:
        assert each.error == pytest.approx(float((each.matrix - ggn).norm() / ggn.norm()))
        ridge = 1.5 * torch.eye(12, dtype=torch.float64)
        true, own = torch.linalg.inv(ggn + ridge), torch.linalg.inv(each.matrix + ridge)
        assert each.inverse_error == pytest.approx(float((own - true).norm() / true.norm()))
    # EKFAC has the best eigenvalues for KFAC's eigenvectors.
    assert by_name["EKFAC"].error <= by_name["KFAC"].error + 1e-9
    scaled = figures.approximations(la.with_temperature(4.0), small.data, "2.weight")
    torch.testing.assert_close(scaled.true, ggn / 4.0, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", ["linearised", "sampled"])
@pytest.mark.parametrize("name", ["classes", "regression", "binary"])
def test_draws_are_predictions_at_drawn_weights(name: str, method: str) -> None:
    small = case(name)
    la = small.fit("kron", prior=4.0)
    x = small.x[:3]
    made = figures.prediction_draws(la, x, 5, method=method, generator=seeded(3))
    eps = la.state.deviations(5, seeded(3))
    weights = {each: p.detach() for each, p in small.model.named_parameters()}
    expected = []
    for row in eps:
        pieces, start = {}, 0
        for each, weight in weights.items():
            pieces[each] = row[start : start + weight.numel()].view_as(weight)
            start += weight.numel()
        if method == "linearised":
            f, change = jvp(lambda w: functional_call(small.model, w, (x,)), (weights,), (pieces,))
            f = f + change
        else:
            f = functional_call(small.model, {each: weights[each] + pieces[each] for each in weights}, (x,))
        final = {"classification": lambda f: f.softmax(1), "binary": torch.sigmoid, "regression": lambda f: f}
        expected.append(final[small.words](f).detach().cpu())
    torch.testing.assert_close(made.predictions, torch.stack(expected), rtol=1e-8, atol=1e-10)
    for number in range(5):
        torch.testing.assert_close(made.averages[number], made.predictions[: number + 1].mean(0))
    places, names = sampling.least_certain(la)
    variance = la.precision.variance()
    assert {float(variance[place]) for place in places} == set(variance.sort().values[-2:].tolist())
    torch.testing.assert_close(made.weights, (la.weights + eps)[:, places].cpu())
    assert all("[" in each for each in names)


def test_the_first_of_equally_uncertain_weights_are_drawn() -> None:
    """Inputs that are always zero leave their weights to the prior, all alike."""
    x = torch.zeros(5, 40)
    x[:, 0] = 1.0
    la = pw.fit(
        nn.Linear(40, 1).to(DEVICE), (x.to(DEVICE), torch.zeros(5, 1, device=DEVICE)), "regression", structure="diag"
    )
    assert sampling.least_certain(la) == ([1, 2], ("weight[0, 1]", "weight[0, 2]"))


def test_averages_come_to_the_closed_form() -> None:
    small = case("regression")
    la = small.fit("full", prior=4.0)
    made = figures.prediction_draws(la, small.x[:4], 4000)
    deviation = la.functional(small.x[:4], variance_only=True).cov.sqrt().cpu()
    assert bool(((made.averages[-1] - made.exact).abs() < 5 * deviation / math.sqrt(4000)).all())
    own = case("classes")
    classes_ = own.fit("full", prior=4.0)
    drawn = figures.prediction_draws(classes_, own.x[:2], 4000)
    torch.testing.assert_close(drawn.averages[-1], drawn.exact, atol=0.02, rtol=0)
    torch.testing.assert_close(drawn.exact.sum(1), torch.ones(2, dtype=torch.float64))


def test_band_is_mean_and_dense_covariance() -> None:
    small = case("regression")
    la = small.fit("full", prior=2.0)
    made = prediction.band(la, small.data, extend=0.5, points=7, level=0.9)
    low, high = float(small.x.min()), float(small.x.max())
    assert made.x[0] == pytest.approx(low - 0.5 * (high - low)) and made.x[-1] == pytest.approx(1.5 * high - 0.5 * low)
    jacobian = dense.jacobian(small.plain, made.x[:, None], small.names)[:, 0]
    covariance = torch.linalg.inv(precision_of(small, 2.0, 1 / 0.4**2))
    variance = ((jacobian @ covariance) * jacobian).sum(1)
    width = scipy.stats.norm.ppf(0.95)
    torch.testing.assert_close(made.epistemic, width * variance.sqrt(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(made.total, width * (variance + 0.16).sqrt(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(made.mean, small.model(made.x[:, None].to(DEVICE))[:, 0].detach().cpu())
    other = case("two_outputs")
    second = prediction.band(other.fit("full"), other.data, points=5, output=1)
    grid = second.x[:, None].to(DEVICE)
    torch.testing.assert_close(second.mean, other.model(grid)[:, 1].detach().cpu())
    torch.testing.assert_close(second.points[1], other.y[:, 1].cpu())


@pytest.mark.parametrize("name", ["classes", "binary"])
def test_map_is_the_prediction_at_every_point(name: str) -> None:
    small = case(name)
    la = small.fit("full")
    made = prediction.decisions(la, small.data, extend=0.1, points=4)
    for row, column in ((0, 0), (1, 3), (3, 2)):
        point = torch.stack([made.a[column], made.b[row]])[None].to(DEVICE)
        predicted = la.predict(point)
        probs = predicted.probs[0].cpu()
        plain = small.model(point)[0].detach().cpu()
        if name == "binary":
            probs, plain = torch.cat([1 - probs, probs]), torch.cat([torch.zeros(1, dtype=plain.dtype), plain])
        layers = {each: float(values[row, column]) for each, values in made.layers.items()}
        assert layers["confidence"] == pytest.approx(float(probs.max()))
        assert layers["confidence of the plain network"] == pytest.approx(float(plain.softmax(0).max()))
        assert layers["entropy"] == pytest.approx(float(predicted.entropy))
        assert layers["what the weights leave open"] == pytest.approx(float(predicted.epistemic), abs=1e-9)
        for number, value in enumerate(probs.tolist()):
            assert layers[f"probability of class {number}"] == pytest.approx(value)
    assert made.classes == (2 if name == "binary" else 3)
    assert made.points[1].tolist() == small.y.flatten().long().cpu().tolist()


def test_maps_and_bands_pass_over_the_data_once() -> None:
    small = case("classes")
    la = small.fit("diag")
    whole = prediction.decisions(la, small.data, points=3)
    parts = iter([(small.x[:13], small.y[:13]), (small.x[13:], small.y[13:])])
    made = prediction.decisions(la, parts, points=3)
    torch.testing.assert_close(made.layers["confidence"], whole.layers["confidence"])
    torch.testing.assert_close(made.points[0], whole.points[0])
    many = torch.arange(1200, dtype=torch.float64, device=DEVICE)[:, None]
    seen = prediction.extent_of(DataLoader(TensorDataset(many, many), batch_size=100), many.device, 1, False)
    assert len(seen.x) == prediction.KEPT and (float(seen.low), float(seen.high)) == (0.0, 1199.0)


def test_summary_of_a_posterior() -> None:
    small = case("regression")
    la = small.fit("full", prior=pw.Prior.layerwise([1.0, 2.0, 3.0, 4.0]))
    made = summaries.summary(la)
    delta = torch.tensor([1.0] * 5 + [2.0] * 5 + [3.0] * 5 + [4.0], dtype=torch.float64)
    variance = torch.linalg.inv(precision_of(small, delta, 1 / 0.4**2)).diagonal()
    for layer, place in zip(made.layers, (slice(0, 5), slice(5, 10), slice(10, 15), slice(15, 16)), strict=True):
        wanted = numpy.quantile(variance[place].numpy(), summaries.LEVELS)
        assert layer.quantiles == pytest.approx(wanted.tolist(), rel=1e-8)
        assert layer.prior == pytest.approx(1 / float(delta[place][0]))
        assert layer.size == place.stop - place.start
    shares = 1 - delta * variance
    assert made.dimensions == pytest.approx([float(part.sum()) for part in shares.split([5, 5, 5, 1])], rel=1e-7)
    assert made.precisions == (1.0, 2.0, 3.0, 4.0) and made.sizes == (5, 5, 5, 1)
    masked = case("classes").fit("diag", weights=torch.arange(27) % 2 == 0)
    assert sum(layer.size for layer in summaries.summary(masked).layers) == 14


@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.6])
def test_density_of_two_weights(correlation: float) -> None:
    made = gaussian.relative_density(correlation)
    u = gaussian.grid().numpy()
    normal_ = scipy.stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]])
    first, second = numpy.meshgrid(u, u)
    wanted = normal_.pdf(numpy.stack([first, second], -1)) / normal_.pdf([0, 0])
    numpy.testing.assert_allclose(made.numpy(), wanted, rtol=1e-10, atol=1e-300)


def test_histogram_is_numpys() -> None:
    values = normal(500).abs().tolist()
    width = max(values) / 12
    shares, edges = unknown.histogram(values, 0.0, width, 12)
    wanted, places = numpy.histogram(values, bins=12, range=(0.0, max(values)))
    assert shares == pytest.approx((wanted / 500).tolist())
    assert edges == pytest.approx(places.tolist())


def test_points_of_a_comparison_are_its_numbers() -> None:
    """Evidence and test log-likelihood per example, by the closed forms of a made-up comparison."""
    widths = [1, 2, 3, 4, 5, 6]
    evidence = {f"width {w}": (-40 / w - 1.5 * w) / 20 for w in widths}
    fits = {f"width {w}": -abs(w - 4) for w in widths}
    names = list(evidence)
    expected = scipy.stats.spearmanr([evidence[name] for name in names], [fits[name] for name in names]).statistic
    figure = figures.evidence_against_test(compared(6))
    points, best = figure.data
    assert (best.name, best.x, best.y) == ("best by evidence", points.x[:1], points.y[:1])
    assert list(points.text) == sorted(names, key=lambda name: -evidence[name])
    assert list(points.x) == pytest.approx([evidence[name] for name in points.text])
    assert list(points.y) == [fits[name] for name in points.text]
    assert figure.layout.meta["title"] == f"Evidence and test data: rank correlation {expected:.2f}"
    assert (
        f"6 points. Rank correlation {expected:.2f}. The best evidence is that of width 5." in figure.layout.meta["alt"]
    )
    assert "log evidence -15.5 = fit -8.0 and complexity -7.5<br>2.5 of 5 weights" in points.customdata[0]


def test_several_comparisons_share_a_figure() -> None:
    """Of many points those alone have names that are best by evidence or by test data."""
    checked(figures.evidence_against_test({"trained": compared(6), "linear": compared(6)}))
    figure = figures.evidence_against_test({"trained": compared(6), "linear <mode>": compared(8)})
    first, second = figure.data
    assert [name for name in first.text if name] == ["width 5", "width 4"]
    assert first.name.startswith("trained, rank correlation ") and first.showlegend and len(second.x) == 8
    assert second.name.startswith("linear &lt;mode>, rank")
    checked(figures.evidence_against_test(compared(1)))
    without = compared(2)
    bare = replace(without, rows=tuple(replace(row, test_log_likelihood=None) for row in without.rows))
    for given, error, words in (
        (bare, pw.PeewitError, "no test data; give it some"),
        ({}, pw.PeewitError, "An empty dict was given"),
        ([without], pw.ArgumentTypeError, "A list was given; expected a comparison, which peewit.compare returns"),
    ):
        with pytest.raises(error, match=words):
            figures.evidence_against_test(given)


def test_what_cannot_be_looked_at_is_refused() -> None:
    small = case("classes")
    la = small.fit("diag")
    for settings, words in (
        ({"directions": "eigne"}, "did you mean 'eigen'"),
        ({"directions": torch.zeros(2, 27)}, "no row of zeros"),
        ({"directions": torch.ones(1, 27)}, r"\(2, 27\)"),
        ({"dimensions": 3}, "expected 1, a line, or 2, a plane"),
        ({"points": 1}, "at least 3"),
        ({"reach": -1.0}, "positive"),
        ({"examples": 0}, "positive whole number"),
    ):
        with pytest.raises(ValueError, match=words):
            losses.landscape(la, small.data, **settings)
    with pytest.raises(TypeError, match="has no option 'direction'; did you mean 'directions'"):
        figures.landscape(la, small.data, direction="eigen")
    with pytest.raises(ValueError, match="structure='kron'"):
        figures.kronecker_factors(la)
    kron = small.fit("kron")
    with pytest.raises(ValueError, match="Known"):
        figures.kronecker_factors(kron, "7.weight")
    with pytest.raises(ValueError, match="is not an uncertain weight"):
        figures.approximations(kron, small.data, "7.weight")
    moved = Small(
        model=copy.deepcopy(small.model), x=small.x, y=small.y, likelihood="classification", words="classification"
    )
    stale = moved.fit("kron")
    with torch.no_grad():
        moved.model[0].weight.add_(1.0)
    for ask in (figures.landscape, figures.curvature_matrices, figures.approximations):
        with pytest.raises(ValueError, match="fit again"):
            ask(stale, small.data)
    with pytest.raises(ValueError, match="one-shot"):
        figures.curvature_matrices(la, iter([small.data]))
    with pytest.raises(ValueError, match="Known: linearised, sampled"):
        figures.prediction_draws(la, small.x, 3, method="exact")
    with pytest.raises(ValueError, match="has only 1 uncertain weight"):
        losses.landscape(small.fit("full", weights=torch.arange(27) == 3), small.data, directions="random")
    with pytest.raises(ValueError, match="no bands"):
        prediction.band(la, small.data)
    with pytest.raises(ValueError, match="expects 2 per example"):
        prediction.decisions(case("images").fit("diag"), case("images").data)
    with pytest.raises(ValueError, match="expected classification or binary"):
        prediction.decisions(case("regression").fit("diag"), case("regression").data)
