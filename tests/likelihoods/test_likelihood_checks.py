"""Targets, outputs and options that do not fit are refused, or warned of, with what was given and what was expected."""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from fitting import built, classes, cut, fitted, names_of, normal, weights_of
from networks import Network
from peewit.likelihoods import Form
from peewit.likelihoods.probabilities import last_step, sums_to_one, warn_of_probabilities
from tables import curvature_of, moved, relative

NAN, INF = float("nan"), float("inf")
WRONG_VALUE = (ValueError, TypeError)


def row(outputs: int = 3) -> nn.Module:
    """(N, 3) to (N, outputs)."""
    return built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)))


def scalar() -> nn.Module:
    """(N, 3) to (N,)."""
    return built(Network(lambda self, x: self.head(x)[:, 0], head=nn.Linear(3, 1)))


def image(outputs: int = 3) -> nn.Module:
    """(N, 2, 4, 5) to (N, outputs, 4, 5)."""
    return built(nn.Conv2d(2, outputs, 3, padding=1))


def signed(sign: int) -> nn.Module:
    """(N, 3) to (N, 2), all positive or all negative."""
    return built(Network(lambda self, x: self.head(x).tanh() + 2 * sign, head=nn.Linear(3, 2)))


def changed(y: Tensor, value: float) -> Tensor:
    """The same with one number replaced."""
    y = y.clone()
    y.view(-1)[2] = value
    return y


def probabilities(*shape: int) -> Tensor:
    """Rows that sum to one."""
    return normal(*shape, seed=4).softmax(-1)


Row = tuple[Callable[[], nn.Module], Tensor, Any, str]
WEIGHTS = torch.tensor([1.0, 2.0])
REFUSED: dict[str, Row] = {
    # classes
    "class: one too many axes": (row, classes(3, 5, 2), "classification", r"\(5, 3\) and labels \(5, 2\) do not fit"),
    "class: too large": (row, torch.tensor([0, 1, 2, 3, 0]), "classification", r"label 3 is outside 0\.\.2"),
    "class: negative": (row, torch.tensor([0, 1, 2, -1, 0]), "classification", "label -1 is outside.*-100 is ignored"),
    "class: other ignored": (row, torch.tensor([0, -100, 2, 1, 0]), pw.Categorical(ignore_index=-1), "label -100"),
    "class: flat float": (row, normal(5), "classification", r"float64 and shape \(5,\); expected integers"),
    "class: soft, wrong shape": (row, probabilities(5, 2), "classification", r"\(5, 2\).*outputs' shape \(5, 3\)"),
    "class: soft, wrong sum": (
        row,
        2 * probabilities(5, 3),
        "classification",
        "expected probabilities that sum to one",
    ),
    "class: soft, negative": (row, changed(probabilities(5, 3), -0.1), "classification", "probabilities that sum"),
    "class: soft, NaN": (row, changed(probabilities(5, 3), NAN), "classification", "nan.*probabilities that sum"),
    "class: soft, axis of examples": (row, probabilities(5, 3), pw.Categorical(axis=0), "axis 0.*holds the examples"),
    "class: axis of examples": (row, classes(3, 5), pw.Categorical(axis=0), "do not fit"),
    "class: booleans": (row, torch.ones(5, dtype=torch.bool), "classification", "dtype torch.bool; expected integers"),
    "class: complex": (row, torch.ones(5, dtype=torch.complex64), "classification", "complex64; expected integers"),
    "class: weights": (row, classes(3, 5), pw.Categorical(weight=WEIGHTS), "2 numbers, and the network 3 classes"),
    "class: soft, weights": (row, probabilities(5, 3), pw.Categorical(weight=WEIGHTS), "2 numbers, and the network 3"),
    "class: one output": (lambda: row(1), classes(2, 5), "classification", "softmax is always 1.*binary"),
    "class: soft, one output": (lambda: row(1), torch.ones(5, 1), "classification", "softmax is always 1.*binary"),
    "class: no axis": (scalar, classes(2, 5), "classification", r"\(5,\); expected logits.*binary"),
    "class: transposed image": (
        image,
        classes(3, 5, 5, 4),
        "classification",
        r"\(5, 3, 4, 5\).*\(5, 5, 4\) do not fit",
    ),
    # yes or no
    "binary: class numbers": (row, classes(3, 5), "binary", r"\(5, 3\).*\(5,\) differ; expected equal shapes"),
    "binary: two": (row, changed(classes(2, 5, 3), 2), "binary", "target 2 was given; expected 0 or 1"),
    "binary: minus one": (row, changed(classes(2, 5, 3), -1), "binary", r"target -1.*Bernoulli\(ignore_index="),
    "binary: another missing": (row, changed(classes(2, 5, 3), -100), pw.Bernoulli(-1), r"-100.*\(-1 is missing\)"),
    "binary: NaN": (row, changed(probabilities(5, 3), NAN), "binary", "target nan"),
    "binary: NaN, missing allowed": (row, changed(probabilities(5, 3), NAN), pw.Bernoulli(-1), "target nan"),
    "binary: above one": (row, changed(probabilities(5, 3), 1.01), "binary", r"target 1\.01"),
    "binary: complex": (row, torch.ones(5, 3, dtype=torch.complex64), "binary", "complex64; expected 0 and 1"),
    # regression
    "regression: one column": (row, normal(5, 1), "regression", r"\(5, 3\).*\(5, 1\) differ.*nothing is broadcast"),
    "regression: one row": (row, normal(1, 3).expand(5, 1, 3), "regression", "differ"),
    "regression: in a row": (lambda: row(1), normal(1, 5), "regression", "leading axes differ"),
    "regression: too many": (lambda: row(1), normal(5, 2), "regression", r"\(5, 1\).*\(5, 2\) differ.*one output for"),
    "regression: images in a row": (image, normal(5, 60), "regression", r"differ.*Give y\.reshape\(5, 3, 4, 5\)"),
    "regression: transposed image": (image, normal(5, 3, 5, 4), "regression", "differ"),
    "regression: booleans": (
        row,
        classes(2, 5, 3) > 0,
        "regression",
        r"torch\.bool; expected numbers, such as y\.float",
    ),
    "regression: NaN": (row, changed(normal(5, 3), NAN), "regression", "NaN or Inf"),
    "regression: Inf": (row, changed(normal(5, 3), -INF), "regression", "NaN or Inf"),
    "regression: noises": (
        row,
        normal(5, 3),
        pw.Gaussian(WEIGHTS),
        "2 numbers, and the network 3 outputs; expected one",
    ),
    "regression: residuals of NaN": (
        row,
        changed(normal(5, 3), NAN),
        pw.Gaussian("residuals"),
        "targets hold NaN or Inf",
    ),
    "regression: residuals, broadcast": (row, normal(5, 1), pw.Gaussian("residuals"), "differ"),
    # heteroscedastic
    "hetero: odd": (row, normal(5, 3), "heteroscedastic", r"\(5, 3\).*expected an even number of outputs"),
    "hetero: no axis": (scalar, normal(5), "heteroscedastic", r"\(5,\).*expected an even number of outputs"),
    "hetero: as many targets": (lambda: row(4), normal(5, 4), "heteroscedastic", r"targets of shape \(5, 2\): the net"),
    "hetero: flat": (lambda: row(4), normal(5), "heteroscedastic", r"targets of shape \(5, 2\)"),
    "hetero: broadcast": (lambda: row(4), normal(5, 1), "heteroscedastic", r"targets of shape \(5, 2\)"),
    "hetero: one target": (lambda: row(2), normal(5, 2), "heteroscedastic", r"\(5, 1\) or \(5,\)"),
    "hetero: image": (lambda: image(4), normal(5, 4, 4, 5), "heteroscedastic", r"\(5, 2, 4, 5\)"),
    "hetero: booleans": (lambda: row(2), classes(2, 5) > 0, "heteroscedastic", r"torch\.bool; expected numbers"),
    "hetero: NaN": (lambda: row(2), changed(normal(5), NAN), "heteroscedastic", "NaN or Inf"),
    "hetero: natural": (
        lambda: signed(1),
        normal(5),
        pw.HeteroscedasticGaussian("natural"),
        r"not finite.*parameters='natural'.*eta2, must be below zero.*'raw'",
    ),
    "hetero: variance": (
        lambda: signed(-1),
        normal(5),
        pw.HeteroscedasticGaussian("mean_variance"),
        r"not finite.*parameters='mean_variance'.*variances, must be above zero",
    ),
    # counts
    "count: negative": (row, changed(classes(9, 5, 3), -1), "count", "target -1 was given; expected whole numbers"),
    "count: fraction": (row, changed(classes(9, 5, 3).double(), 1.5), "count", r"target 1\.5 was given"),
    "count: NaN": (row, changed(classes(9, 5, 3).double(), NAN), "count", "target nan"),
    "count: Inf": (row, changed(classes(9, 5, 3).double(), INF), "count", "target inf"),
    "count: broadcast": (row, classes(9, 5, 1), "count", "differ"),
    "count: booleans": (row, torch.ones(5, 3, dtype=torch.bool), "count", "bool; expected whole numbers"),
    # custom
    "custom: NaN": (row, changed(normal(5, 3), NAN), pw.Custom(lambda f, y: (f - y).sum(1) ** 2), "NaN or Inf"),
    "custom: a sum": (
        row,
        normal(5, 3),
        pw.Custom(lambda f, y: (f - y).square().sum()),
        r"returned \(\) for 5.*\(5,\)",
    ),
    "custom: per output": (row, normal(5, 3), pw.Custom(lambda f, y: (f - y).square()), r"returned \(5, 3\) for 5"),
    "custom: a number": (row, normal(5, 3), pw.Custom(lambda f, y: 1.0), "returned float"),
    "custom: detached": (row, normal(5, 3), pw.Custom(lambda f, y: (f.detach() - y).sum(1)), "can be differentiated"),
    "custom: not finite": (row, normal(5, 3), pw.Custom(lambda f, y: -(f - 9).log().sum(1)), "energy function is not"),
    "custom: Hessian": (
        row,
        normal(5, 3),
        pw.Custom(lambda f, y: -(f - 9).sqrt().sum(1)),
        "NaN or Inf|function is not",
    ),
}


TAKEN: dict[str, tuple[Callable[[], nn.Module], Tensor, Any, Tensor]] = {
    "class: float": (row, classes(3, 5).float(), "classification", classes(3, 5)),
    "class: a column": (row, classes(3, 5)[:, None], "classification", classes(3, 5)),
    "class: a column of floats": (row, classes(3, 5)[:, None].double(), "classification", classes(3, 5)),
    "class: missing": (row, torch.tensor([0.0, -100, 2, 1, 0]), "classification", torch.tensor([0, -100, 2, 1, 0])),
    "class: two": (lambda: row(2), classes(2, 5) > 0, "classification", classes(2, 5)),
    "class: an image with an axis": (image, classes(3, 5, 1, 4, 5).float(), "classification", classes(3, 5, 4, 5)),
    "regression: whole numbers": (row, classes(9, 5, 3), "regression", classes(9, 5, 3).double()),
    "regression: bytes": (lambda: row(1), classes(9, 5).to(torch.uint8), "regression", classes(9, 5, 1).double()),
    "heteroscedastic": (lambda: row(2), classes(9, 5), "heteroscedastic", classes(9, 5, 1).double()),
}


@pytest.mark.parametrize("what", TAKEN)
def test_targets_that_are_meant_without_doubt(what: str) -> None:
    """They are as those of the usual shape and dtype, in fits and in evaluations."""
    make, y, likelihood, usual = TAKEN[what]
    model = make()
    x = normal(5, 2, 4, 5) if isinstance(model, nn.Conv2d) else normal(5, 3)
    first, second = (fitted(model, x, each, likelihood, "diag") for each in (y, usual))
    assert float(first.log_evidence()) == float(second.log_evidence())
    one, other = (pw.evaluate(first, (moved(x), moved(each))).methods[0] for each in (y, usual))
    assert one.metrics["nll"] == other.metrics["nll"]


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    """By a fit, in any structure, and whatever the batches are."""
    build, y, likelihood, message = REFUSED[what]
    model = build()
    x = normal(5, 2, 4, 5) if isinstance(model, nn.Conv2d) else normal(5, 3)
    before = weights_of(model)
    for structure in ("kron", "full"):
        with pytest.raises(WRONG_VALUE, match=message):
            fitted(model, x, y, likelihood, structure)
    with pytest.raises(WRONG_VALUE, match=message):
        pw.fit(copy.deepcopy(model), [(x, y)], likelihood, structure="diag", curvature="empirical")
    assert torch.equal(weights_of(model), before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pw.Categorical(weight=torch.tensor([1.0, -1.0])), "none negative"),
        (lambda: pw.Categorical(weight=torch.tensor([1.0, NAN])), "finite number per class"),
        (lambda: pw.Categorical(weight=torch.ones(2, 2)), "one finite number per class"),
        (lambda: pw.Categorical(label_smoothing=1.0), "from 0 to 1"),
        (lambda: pw.Categorical(label_smoothing=-0.1), "from 0 to 1"),
        (lambda: pw.Gaussian(0.0), "positive standard deviation"),
        (lambda: pw.Gaussian(NAN), "positive standard deviation"),
        (lambda: pw.Gaussian(torch.tensor([1.0, -1.0])), "or one per output"),
        (lambda: pw.Gaussian(torch.ones(2, 2)), "or one per output"),
        (lambda: pw.Gaussian("resduals"), "'residuals'"),
        (lambda: pw.Gaussian(1.0).with_noise(-1.0), "positive standard deviation"),
        (lambda: pw.Gaussian("residuals").noise_precision, "before it is fitted"),
        (lambda: pw.HeteroscedasticGaussian("variance"), "expected one of.*'mean_variance'"),
        (lambda: pw.Custom(3), r"Custom\(int\): expected a function"),
    ],
)
def test_options_that_make_no_sense(make: Callable[[], Any], message: str) -> None:
    """Refused where they are given."""
    with pytest.raises(WRONG_VALUE, match=message):
        make()


@pytest.mark.parametrize(
    ("noise", "fits"),
    [
        (0.5, True),
        (2, True),
        ([0.5, 3.0], True),
        (torch.tensor(0.5), True),
        (torch.tensor([0.5]), True),
        (torch.tensor([[0.5]]), False),
        (torch.ones(0), False),
        ([0.5, 0.0], False),
        ([0.5, -1.0], False),
        ([0.5, INF], False),
        ([NAN, 0.5], False),
        (-0.5, False),
    ],
)
def test_noises(noise: Any, fits: bool) -> None:
    """Positive and finite, all of them, in one row at most; kept in double precision."""
    if fits:
        assert pw.Gaussian(noise).noise_precision.dtype == torch.float64
        assert pw.Gaussian(2.0).with_noise(noise).noise == pytest.approx(noise)
        return
    words = "noise=.* was given; expected a positive standard deviation, or one per output"
    for make, who in ((pw.Gaussian, "Gaussian"), (pw.Gaussian().with_noise, "with_noise")):
        with pytest.raises(ValueError, match=f"^{who}: {words}"):
            make(noise)


def test_noises_that_are_no_numbers() -> None:
    """Are named by their type, without what torch said of them."""
    for make, who in ((pw.Gaussian, "Gaussian"), (pw.Gaussian().with_noise, "with_noise")):
        with pytest.raises(TypeError, match=f"^{who}: noise is a dict; expected a positive") as raised:
            make({})
        assert raised.value.__suppress_context__


@pytest.mark.parametrize("smoothing", [True, False, "0.1", None, 1, 1.5, -1e-9, NAN])
def test_smoothing_that_makes_no_sense(smoothing: Any) -> None:
    """Anything but a number from 0 to below 1."""
    with pytest.raises(ValueError, match=r"^Categorical\(label_smoothing=.*\): expected a number from 0 to 1"):
        pw.Categorical(label_smoothing=smoothing)


def test_options_that_do() -> None:
    """At their limits; and what they make of the loss is said in full."""
    for smoothing in (0, 0.0, 0.999):
        assert pw.Categorical(label_smoothing=smoothing).label_smoothing == smoothing
    rest = "the loss is not a likelihood of the labels"
    weight = torch.tensor([0.0, 1e-3, 5.0])
    assert pw.Categorical(weight=weight).caveat == f"with class weights {rest}"
    assert pw.Categorical(label_smoothing=0.1).caveat == f"with label smoothing {rest}"
    both = pw.Categorical(weight=weight, label_smoothing=0.1)
    assert both.caveat == f"with class weights and label smoothing {rest}"
    form = pw.Categorical().form(torch.zeros(5, 3), classes(3, 5))
    with pytest.raises(ValueError, match=r"has 3 numbers, and the network 2 classes; expected one weight per class"):
        both.form(torch.zeros(5, 2), classes(2, 5))
    assert both.form(torch.zeros(5, 3), classes(3, 5)) == form


# Targets (N, T) or (N, T, C), of which the last are wrong, and what is said of the first of these
WRONG: list[tuple[Any, list[Any], list[Any], str]] = [
    (pw.Categorical(), [[0, 1], [2, -100]], [[0, 1], [3, 4]], "label 3 is outside 0..2 .*3 outputs; -100 is ignored"),
    (
        pw.Categorical(),
        [[0, 2]],
        [[-1, 1]],
        "label -1 is outside 0..2.*If -1 stands for no label, use pw.Categorical\\(ignore_index=-1\\)",
    ),
    (pw.Categorical(), [[0, 2]], [[1, 3]], "label 3 is outside 0..2.*Number them from 0: y - 1"),
    (pw.Categorical(ignore_index=-7), [[-7, 2]], [[-100, 1]], "label -100 is outside 0..2 .*-7 is ignored"),
    (
        pw.Categorical(),
        [[[0.0, 0.0, 1.0]]],
        [[[0.5, 0.5, 0.0], [-0.25, 0.75, 0.5]]],
        r"\[-0.25, 0.75, 0.5\] were given",
    ),
    (pw.Categorical(), [[[0.25, 0.25, 0.505]]], [[[0.25, 0.25, 0.515]]], "that sum to one"),
    (pw.Categorical(), [[[0.25, 0.25, 0.495]]], [[[0.25, 0.25, 0.485]]], "that sum to one"),
    (pw.Categorical(), [[[1.0, 0.0, 0.0]]], [[[INF, 0.0, 0.0]]], "that sum to one"),
    (pw.Categorical(), [[[1.0, 0.0, 0.0]]], [[[1.0, 0.0, 0.0], [NAN, 0.5, 0.5]]], r"\[nan, 0.5, 0.5\] were given"),
    (
        pw.Bernoulli(),
        [[[0.0, 1.0, 0.3]]],
        [[[0.0, 1.5, -2.0]]],
        "target 1.5 was given; expected 0 or 1, or a probability. ",
    ),
    (pw.Bernoulli(), [[[0.0, 1.0, 0.3]]], [[[0.0, 1.0, -2.0]]], "target -2 was given"),
    (pw.Bernoulli(-7), [[[-7.0, 1.0, 0.3]]], [[[-7.0, 1.0, -2.0]]], r"target -2 .*probability \(-7 is missing\)\. "),
    (pw.Poisson(), [[[0.0, 1.0, 7.0]]], [[[0.0, 1.5, -2.0]]], "target 1.5 was given; expected whole numbers from 0 on"),
    (pw.Poisson(), [[[0.0, 1.0, 7.0]]], [[[0.0, 1.0, -2.0]]], "target -2 was given"),
    (pw.Poisson(), [[[0.0, 1.0, 7.0]]], [[[0.0, 1.0, INF]]], "target inf was given"),
    (pw.Gaussian(), [[[0.0, -1.0, 7.0]]], [[[0.0, 1.0, INF]]], "^regression: targets hold NaN or Inf"),
    (pw.HeteroscedasticGaussian(), [[[0.0, -1.0]]], [[[0.0, NAN]]], "^heteroscedastic: targets hold NaN or Inf"),
]


@pytest.mark.parametrize(("likelihood", "right", "wrong", "words"), WRONG)
def test_targets_without_a_likelihood(likelihood: Any, right: list[Any], wrong: list[Any], words: str) -> None:
    """Up to the limits all are good; one is enough for a complaint, which names it."""
    form = Form(1, (2, 3))
    assert bool(likelihood.valid(torch.tensor(right), form))
    assert not bool(likelihood.valid(torch.tensor(wrong), form))
    assert re.search(words, likelihood.complaint(torch.tensor(wrong), form))


def test_names_and_classes_of_likelihoods() -> None:
    """A name, a class or a value; a name that is nearly right gets a hint."""
    model, x = row(), normal(5, 3)
    for likelihood in ("binary", pw.Bernoulli, pw.Bernoulli()):
        assert isinstance(fitted(model, x, classes(2, 5, 3), likelihood, "diag").likelihood, pw.Bernoulli)
    assert isinstance(fitted(model, x, classes(2, 5, 3), "count", "diag").likelihood, pw.Poisson)
    with pytest.raises(ValueError, match="did you mean 'heteroscedastic'"):
        fitted(model, x, classes(2, 5, 3), "heteroskedastic")
    with pytest.raises(TypeError, match="likelihood is a float"):
        fitted(model, x, classes(2, 5, 3), 1.0)


# Custom energies


def saddle(f: Tensor, y: Tensor) -> Tensor:
    """Convex in all outputs but the first."""
    return (f - y).square().sum(1) - 3 * f[:, 0].square()


def test_energies_that_are_not_convex() -> None:
    """Negative curvature is left out with a warning that says how much; the gradient is not touched."""
    model, x, y = row(), normal(5, 3), normal(5, 3, seed=2)
    with pytest.warns(UserWarning, match=r"not convex.*down to -4"):
        la = fitted(model, x, y, pw.Custom(saddle), "full")
    jacobian = dense.jacobian(model, x, names_of(model))
    kept = torch.diag(torch.tensor([0.0, 2.0, 2.0], dtype=torch.float64))
    assert relative(curvature_of(la), torch.einsum("nfd,fg,nge->de", jacobian, kept, jacobian)) < 1e-8
    fitted(model, x, y, pw.Custom(saddle), "full", curvature="empirical")  # no warning


def test_linear_energies_have_no_curvature() -> None:
    """Not an error: there is nothing to see in the outputs."""
    model, x, y = row(), normal(5, 3), normal(5, 3, seed=2)
    la = fitted(model, x, y, pw.Custom(lambda f, y: (f * y).sum(1)), "diag")
    assert float(curvature_of(la).abs().max()) == 0


def test_custom_energies_cannot_be_drawn_from_without_a_sampler() -> None:
    """Asked for, the Monte Carlo Fisher is refused; left to choose, the exact curvature is taken at any size."""
    energy = pw.Custom(lambda f, y: (f - y).square().sum((1, 2, 3)) / 2)
    model, x, y = image(4), normal(2, 2, 4, 5), normal(2, 4, 4, 5, seed=2)
    with pytest.raises(ValueError, match=r"no `sample`.*sample=.*'ggn' or 'empirical'"):
        fitted(model, x, y, energy, "diag", curvature="fisher")
    la = fitted(model, x, y, energy, "diag", curvature="auto")
    assert "exact GGN: 80 probes per example" in la.state.measurement.reason and "sample" in la.state.measurement.reason
    plain = fitted(model, x, y, "regression", "diag", curvature="ggn")
    assert relative(curvature_of(la), curvature_of(plain)) < 1e-12
    assert "Monte Carlo" in fitted(model, x, y, "regression", "diag", curvature="auto").state.measurement.reason


def test_caveats() -> None:
    """What keeps the evidence from being a marginal likelihood is said by the likelihood."""
    assert "class weights and label smoothing" in pw.Categorical(weight=torch.ones(3), label_smoothing=0.1).caveat
    assert "label smoothing" in pw.Categorical(label_smoothing=0.1).caveat
    assert "constant" in pw.Custom(saddle).caveat
    for plain in (pw.Categorical(), pw.Bernoulli(), pw.Gaussian(), pw.HeteroscedasticGaussian(), pw.Poisson()):
        assert plain.caveat == ""


# Probabilities where logits are expected


def warned(model: nn.Module, x: Tensor, y: Tensor, likelihood: Any) -> list[str]:
    """Warnings of a fit in several batches."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = cut(x, y, [4, 4, 4])
        pw.fit(copy.deepcopy(model).to(batches[0][0].device), batches, likelihood, structure="ekfac")
    return [str(each.message) for each in caught if issubclass(each.category, UserWarning)]


def step_of(make: Callable[[Tensor], Tensor]) -> str:
    """The last step that computed something, of outputs made from logits."""
    return last_step(make(normal(4, 3).requires_grad_() * 2).grad_fn)


def test_the_last_step_of_a_network() -> None:
    """Behind whatever only moves numbers, and no further."""
    assert step_of(lambda f: f.sigmoid()).startswith("Sigmoid")
    assert step_of(lambda f: f.softmax(-1).T.reshape(12)[:, None].squeeze(-1)).startswith("Softmax")
    assert step_of(lambda f: f.sigmoid().float().clone().reshape(3, 4)).startswith("Sigmoid")
    assert step_of(lambda f: f.sigmoid() + 0).startswith("Add")
    assert "AccumulateGrad" in last_step(normal(4, 3).requires_grad_().T.grad_fn)
    assert last_step(None) == ""


@pytest.mark.parametrize(
    ("dtype", "last", "seen"),
    [
        (torch.float64, 0.5 + 0.7e-4, True),
        (torch.float64, 0.5 - 0.7e-4, True),
        (torch.float64, 0.5 + 1.5e-4, False),
        (torch.float32, 0.5 - 1.5e-4, False),
        (torch.float16, 0.5 + 1e-2, True),
        (torch.float16, 0.5 - 3e-2, False),
        (torch.bfloat16, 0.5 - 1e-2, True),
        (torch.bfloat16, 0.5 + 3e-2, False),
    ],
)
def test_sums_near_one(dtype: torch.dtype, last: float, seen: bool) -> None:
    """To the rounding of a dtype, in every row."""
    f = torch.tensor([[[0.25, 0.25, 0.5]], [[0.0, 0.0, 1.0]], [[0.5, 0.0, last]]], dtype=dtype)
    assert sums_to_one(f) == seen
    assert not sums_to_one(torch.cat([f, torch.tensor([[[-0.5, 0.5, 1.0]]], dtype=dtype)]))


def said(likelihood: Any, f: Tensor, node: Any) -> list[tuple[str, str]]:
    """Warnings of outputs, with the files they point at."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_probabilities(likelihood, f, node)
    return [(str(each.message), each.filename) for each in caught]


def test_a_warning_for_probabilities_as_outputs() -> None:
    """Word by word, where the caller is; nothing of logits, though they be between 0 and 1."""
    logits = normal(4, 1, 3).requires_grad_()
    sure, unsure = logits.softmax(-1), logits.sigmoid()
    rest = "These look like probabilities; logits are expected, of which the"
    assert said(pw.Categorical(), sure, sure.grad_fn) == [
        (
            "Categorical: all outputs of the first batch are positive and sum to one over the 3 classes. "
            f"{rest} softmax is taken here. Leave the last Softmax out, or make it a LogSoftmax.",
            __file__,
        )
    ]
    expected = (
        "Bernoulli: the network ends in a Sigmoid or Softmax, with all outputs between 0 and 1. "
        f"{rest} sigmoid is taken here. Leave that last step out."
    )
    limits = torch.tensor([[[0.0, 1.0, 0.5]]])
    for f in (unsure, sure, limits):
        assert (
            said(pw.Bernoulli(), f, unsure.grad_fn) == said(pw.Bernoulli(), f, sure.grad_fn) == [(expected, __file__)]
        )
    for f in (limits - 0.1, limits + 0.1):
        assert not said(pw.Bernoulli(), f, unsure.grad_fn)
    for likelihood, f, node in (
        (pw.Categorical(), unsure, unsure.grad_fn),
        (pw.Bernoulli(), unsure, logits.exp().grad_fn),
        (pw.Bernoulli(), unsure, None),
        (pw.Gaussian(), sure, sure.grad_fn),
        (pw.Poisson(), unsure, unsure.grad_fn),
    ):
        assert not said(likelihood, f, node)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_softmax_at_the_end(dtype: torch.dtype) -> None:
    """Probabilities get one warning that says what to do; logits and their logarithms none."""
    x, y = normal(12, 3).to(dtype), classes(3, 12)
    body = row().to(dtype)
    (message,) = warned(nn.Sequential(body, nn.Softmax(-1)), x, y, "classification")
    assert "sum to one over the 3 classes" in message and "logits are expected" in message and "LogSoftmax" in message
    for model in (body, nn.Sequential(body, nn.LogSoftmax(-1)), nn.Sequential(body, nn.Sigmoid())):
        assert warned(model, x, y, "classification") == []
    assert warned(nn.Sequential(body, nn.Softmax(-1)), x, x.clone(), "regression") == []


def test_a_softmax_over_the_channels_of_images() -> None:
    """The class axis is looked at, wherever it is."""
    x, y = normal(12, 2, 4, 5), classes(3, 12, 4, 5)
    assert len(warned(nn.Sequential(image(), nn.Softmax(1)), x, y, "classification")) == 1
    assert warned(nn.Sequential(image(), nn.Softmax(2)), x, y, "classification") == []


def test_a_sigmoid_at_the_end() -> None:
    """One that is the last thing computed is noticed, also behind a change of shape; logits in (0, 1) are not."""
    x, y = normal(12, 3), classes(2, 12, 3)
    ends = {
        "module": nn.Sequential(row(), nn.Sigmoid()),
        "function": built(Network(lambda self, x: self.head(x).sigmoid(), head=nn.Linear(3, 3))),
        "moved": nn.Sequential(row(), nn.Sigmoid(), nn.Unflatten(1, (3, 1)), nn.Flatten()),
        "softmax": nn.Sequential(row(), nn.Softmax(-1)),
    }
    for model in ends.values():
        (message,) = warned(model, x, y, "binary")
        assert "ends in a Sigmoid or Softmax" in message and "logits are expected" in message
    squeezed = built(Network(lambda self, x: self.head(x).sigmoid().squeeze(-1), head=nn.Linear(3, 1)))
    assert len(warned(squeezed, x, y[:, 0], "binary")) == 1
    small = built(Network(lambda self, x: 0.5 + 0.1 * self.head(x).tanh(), head=nn.Linear(3, 3)))
    scaled = built(Network(lambda self, x: 5 * self.head(x).sigmoid(), head=nn.Linear(3, 3)))
    for model in (row(), small, scaled):
        assert warned(model, x, y, "binary") == []


# What other libraries got wrong without an error, by the row of the failure


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
@pytest.mark.parametrize("kind", ["ggn", "fisher", "empirical"])
def test_ignored_labels_add_no_curvature(structure: str, kind: str) -> None:
    """Examples whose labels are all ignored change neither curvature nor evidence, whatever the index is."""
    model = built(nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))
    x, y = classes(6, 4, 5), classes(3, 4, 5)
    longer = torch.cat([x, classes(6, 3, 5, seed=9)])
    for index in (-100, -1, 255):
        ignored = torch.cat([y, torch.full((3, 5), index)])
        likelihood = pw.Categorical(ignore_index=index)
        few = fitted(model, x, y, likelihood, structure, curvature=kind)
        many = fitted(model, longer, ignored, likelihood, structure, curvature=kind)
        assert relative(curvature_of(many), curvature_of(few)) < 1e-9
        assert relative(many.log_evidence(), few.log_evidence().cpu()) < 1e-9
        assert many.state.totals.scalars == few.state.totals.scalars == 20


def test_ignored_tokens_are_those_of_torch() -> None:
    """With class weights: the GGN of torch's own cross entropy, and not that of all tokens."""
    model = built(nn.Sequential(nn.Embedding(6, 3), nn.Tanh(), nn.Linear(3, 3)))
    x, y = classes(6, 4, 5), classes(3, 4, 5)
    y[0, 2:], y[3] = -100, -100
    weight = torch.tensor([0.2, 3.0, 1.0], dtype=torch.float64)
    la = fitted(model, x, y, pw.Categorical(weight=weight), "full")
    jacobian = dense.jacobian(model, x, names_of(model)).reshape(20, 3, -1)
    total = torch.zeros_like(curvature_of(la))
    for logits, label, j in zip(dense.outputs(model, x).reshape(20, 3), y.flatten(), jacobian, strict=True):
        if label != -100:
            p = logits.softmax(0)
            total += weight[label] * j.T @ (torch.diag(p) - torch.outer(p, p)) @ j
    assert relative(curvature_of(la), total) < 1e-9
    loss = nn.functional.cross_entropy(dense.outputs(model, x).reshape(20, 3), y.flatten(), weight, reduction="sum")
    assert abs(la.state.totals.energy - float(loss)) < 1e-10
    plain = fitted(model, x, y.clamp(min=0), pw.Categorical(weight=weight), "full")
    assert relative(curvature_of(plain), total) > 0.05


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
@pytest.mark.parametrize("axis", [True, False])
def test_networks_with_one_logit(structure: str, axis: bool) -> None:
    """`p (1 - p)` times the outer product of gradients: neither zero nor certain."""
    model = row(1) if axis else scalar()
    x, y = normal(6, 3), classes(2, 6, 1) if axis else classes(2, 6)
    la = fitted(model, x, y, "binary", structure)
    p = dense.outputs(model, x).reshape(-1).sigmoid()
    jacobian = dense.jacobian(model, x, names_of(model))[:, 0]
    exact = torch.einsum("n,nd,ne->de", p * (1 - p), jacobian, jacobian)
    made = curvature_of(la)
    assert float(made.diagonal().min()) > 1e-5
    if structure != "kron":
        assert relative(made.diagonal(), exact.diagonal()) < 1e-9
    with pytest.raises(ValueError, match="binary"):
        fitted(model, x, y.reshape(6), "classification")


def test_one_logit_is_two_classes() -> None:
    """The same curvature and energy as a network whose two logits differ by that one."""
    one = scalar()
    pair = Network(lambda self, x: torch.stack([0 * (f := self.head(x)[:, 0]), f], -1), head=copy.deepcopy(one.head))
    x, y = normal(6, 3), classes(2, 6)
    binary, two = fitted(one, x, y, "binary", "full"), fitted(pair, x, y, "classification", "full")
    assert relative(curvature_of(binary), curvature_of(two)) < 1e-12
    assert relative(binary.log_evidence(), two.log_evidence().cpu()) < 1e-12


@pytest.mark.parametrize("likelihood", ["regression", "binary", "count"])
def test_one_target_for_one_output_needs_no_axis(likelihood: str) -> None:
    """(N,) and (N, 1) are the same targets, and so are outputs with and without the axis; also in predictions."""
    y = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    model, bare = row(1), scalar()
    flat, column = (fitted(model, normal(5, 3), targets, likelihood) for targets in (y, y[:, None]))
    assert torch.equal(flat.log_evidence(), column.log_evidence())
    assert torch.equal(flat.predict(normal(5, 3)).log_prob(y), column.predict(normal(5, 3)).log_prob(y[:, None]))
    assert torch.equal(*(fitted(bare, normal(5, 3), each, likelihood).log_evidence() for each in (y, y[:, None])))


@pytest.mark.parametrize("likelihood", ["regression", "binary", "count", pw.Gaussian("residuals")], ids=str)
@pytest.mark.parametrize("shape", [(5, 1), (5,), (1, 3), (5, 3, 1)], ids=str)
def test_targets_are_never_broadcast(likelihood: Any, shape: tuple[int, ...]) -> None:
    """Whatever would broadcast against outputs (5, 3) is refused."""
    y = torch.ones(shape, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"differ; expected equal shapes|inputs"):
        fitted(row(), normal(5, 3), y, likelihood)


@pytest.mark.parametrize("where", ["target", "input"])
@pytest.mark.parametrize(
    "likelihood",
    [
        "regression",
        "binary",
        "count",
        "heteroscedastic",
        "classification",
        pw.Custom(lambda f, y: (f - y).pow(4).sum(1)),
    ],
    ids=lambda given: given if isinstance(given, str) else "custom",
)
def test_nan_is_an_error(likelihood: Any, where: str) -> None:
    """In a target or an input, in a batch that is not the first: no fit comes out of it."""
    model, x = row(4), normal(8, 3)
    y = torch.ones(8, 2 if likelihood == "heteroscedastic" else 4, dtype=torch.float64)
    if likelihood == "classification":
        y = y / 4
    (y if where == "target" else x)[6, 1] = math.nan
    with pytest.raises(ValueError, match=r"(?i)nan"):
        pw.fit(model.to(moved(x).device), cut(x, y, [4, 4]), likelihood)
