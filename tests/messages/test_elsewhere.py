"""Names of other libraries lead to the right place."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import peewit as pw
from peewit.messages.elsewhere import OPTIONS, PACKAGE, POSTERIOR, VALUES
from peewit.messages.names import OTHERS

X, Y = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0] * 2)


@pytest.fixture(scope="module")
def la() -> pw.Laplace:
    """A small posterior."""
    torch.manual_seed(0)
    return pw.fit(nn.Linear(2, 3), (X, Y), "classification")


@pytest.mark.parametrize(
    "sentence", sorted({*POSTERIOR.values(), *OPTIONS.values(), *PACKAGE.values(), *VALUES.values()})
)
def test_places_exist(sentence: str, la: pw.Laplace) -> None:
    """What a sentence sends users to is there: names of the package, of a posterior, and of what it has."""
    places = {"la": la, "pw": pw}
    paths = re.findall(r"\b(la|pw)\.(\w+)(?:\.(\w+))?", sentence)
    assert paths or re.search(r"\w+=|likelihood|network|DataLoader|labels", sentence)
    for root, first, second in paths:
        found: Any = la.likelihood if (first, second) == ("likelihood", "noise") else getattr(places[root], first)
        assert not second or second == "noise" or hasattr(found, second), (first, second)


@pytest.mark.parametrize("name", POSTERIOR, ids=repr)
def test_names_of_a_posterior(name: str, la: pw.Laplace) -> None:
    """Private names too, which a user may have come to rely on; none of them is one of ours."""
    assert name not in dir(la)
    with pytest.raises(AttributeError) as caught:
        getattr(la, name)
    assert POSTERIOR[name] in str(caught.value)


def test_the_log_density_of_weights(la: pw.Laplace) -> None:
    """That of a normal distribution, by the formula in the message; laplace-torch's `log_prob` is of weights."""
    w = la.sample(1, generator=torch.Generator().manual_seed(0))[0]
    with pytest.raises(AttributeError, match=r"log density of weights w is .*la\.precision\.logdet") as caught:
        la.log_prob(w)
    code = str(caught.value).partition("of weights w is ")[2].partition(", and that of labels")[0]
    density = eval(code, {"la": la, "d": w - la.weights, "math": math})
    normal = torch.distributions.MultivariateNormal(la.weights, precision_matrix=la.precision.mv(torch.eye(la.D)))
    assert math.isclose(density, normal.log_prob(w), rel_tol=1e-4)


@pytest.mark.parametrize("name", PACKAGE, ids=repr)
def test_names_of_the_package(name: str) -> None:
    """Classes that are options here."""
    with pytest.raises(AttributeError) as caught:
        getattr(pw, name)
    assert PACKAGE[name] in str(caught.value)


def test_options_of_before_and_of_others_in_questions() -> None:
    """The option that has the meaning now, and never `self`."""
    la = pw.fit(nn.Linear(2, 3), (X, Y), "classification")
    questions: tuple[tuple[Callable[..., Any], dict[str, Any], str], ...] = (
        (la.tune, {"seed": 1}, "no option 'seed'. It takes method"),
        (partial(la.predict, X), {"mean": "linear_mode"}, "did you mean 'at'?"),
        (la.sample, {"n": 3}, "did you mean 'samples'?"),
        (la.with_noise, {"nois": 1}, "did you mean 'noise'?"),
        (la.with_temperature, {"temp": 2.0}, "It takes temperature."),
        (la.with_arithmetic, {"arithmetics": "float64"}, "did you mean 'arithmetic'?"),
        (partial(pw.sweep, la, (X, Y)), {"scale": (1, 2)}, "did you mean 'data_weight'?"),
        (partial(pw.products, nn.Linear(2, 3), (X, Y)), {"seed": 1}, "did you mean 'generator'?"),
    )
    for question, options, says in questions:
        with pytest.raises(pw.ArgumentTypeError) as caught:
            question(**options)
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (pw.Gaussian, {"sigma_noise": 1}, "Gaussian() has no option 'sigma_noise'; did you mean 'noise'?"),
        (pw.Categorical, {"weights": None}, "Categorical() has no option 'weights'; did you mean 'weight'?"),
        (pw.Bernoulli, {"ignore": 3}, "did you mean 'ignore_index'?"),
        (pw.HeteroscedasticGaussian, {"params": "natural"}, "did you mean 'parameters'?"),
        (pw.Poisson, {"rate": 3}, "Poisson() has no option 'rate'. It takes none."),
        (pw.Custom, {"energy": abs}, "did you mean 'energy_function'?"),
        (pw.MonteCarlo, {"n": 3}, "did you mean 'samples'?"),
        (pw.Hessian, {"clipped": True}, "did you mean 'clip'?"),
        (pw.Kron, {"approximation": "reduce"}, "did you mean 'approx'?"),
        (pw.EKFAC, {"biases": "joint"}, "did you mean 'bias'?"),
        (pw.Diag, {"approx": 1}, "Diag() has no option 'approx'. It takes none."),
        (pw.Block, {"size": 1}, "It takes none."),
        (pw.Full, {"size": 1}, "It takes none."),
        (pw.Prior, {"group": "scalar"}, "did you mean 'grouping'?"),
        (pw.Prior.scalar, {"prior_precision": 1}, "Prior.scalar() has no option 'prior_precision'; did you mean"),
        (pw.Prior.groups, {"precision": {}}, "did you mean 'precisions'?"),
        (pw.Prior.scalar(1.0).with_precision, {"prior_precision": 1}, "did you mean 'precision'?"),
        (pw.Subnetwork, {"seed": 3}, "did you mean 'generator'?"),
        (pw.Subnetwork.random, {"seed": 3}, "Subnetwork.random() has no option 'seed'; did you mean 'generator'?"),
    ],
)
def test_options_of_values(make: Callable[..., Any], options: dict[str, Any], says: str) -> None:
    """Likelihoods, curvatures, structures, priors and subnetworks name the option that was meant."""
    with pytest.raises(pw.ArgumentTypeError) as caught:
        make(**options)
    assert says in str(caught.value)


def test_options_of_figures_and_metrics(la: pw.Laplace) -> None:
    """Every public function of both, but those that hand options on."""
    for module, name, options, says in (
        (pw.metrics, "ece", {"n_bins": 10}, "ece() has no option 'n_bins'; did you mean 'bins'?"),
        (pw.figures, "compare", {"metrics": 1}, "compare() has no option 'metrics'"),
        (pw.figures, "specimens", {"wrong": 3}, "specimens() has no option 'wrong'"),
    ):
        with pytest.raises(pw.ArgumentTypeError, match=re.escape(says)):
            getattr(module, name)(None, **options)
    with pytest.raises(pw.ArgumentTypeError, match=r"shift_curves\(\) has no option 'kind'; did you mean 'variation'"):
        pw.figures.shift_curves(None, kind="attacks")  # type: ignore[call-arg]  # its name before
    with pytest.raises(pw.ArgumentTypeError, match="did you mean 'directions'"):
        pw.figures.landscape_1d(la, (X, Y), direction="random")


def test_options_of_a_prediction(la: pw.Laplace) -> None:
    """Of its methods."""
    pred = la.predict(X)
    with pytest.raises(pw.ArgumentTypeError, match=r"sample\(\) has no option 'n'; did you mean 'samples'\? It takes"):
        pred.sample(n=3)  # type: ignore[call-arg]
    with pytest.raises(pw.ArgumentTypeError, match="did you mean 'level'"):
        pred.interval(levels=0.9)  # type: ignore[call-arg]
    with pytest.raises(pw.ArgumentTypeError, match=r"has no option 'targets'\. It takes y"):
        pred.log_prob(targets=Y)  # type: ignore[call-arg]


def test_options_of_a_validation(la: pw.Laplace) -> None:
    """Its own, and those of the predictions that it scores."""
    with pytest.raises(pw.ArgumentTypeError) as caught:
        pw.validation_nll(la, (X, Y), seed=1)
    assert str(caught.value) == (
        "validation_nll() has no option 'seed'; did you mean 'generator'? It takes memory, progress and the options of "
        "la.predict: method, link, samples, joint, generator, create_graph, at."
    )
    with pytest.raises(pw.ArgumentTypeError, match="validation_nll\\(\\) has no option 'x'"):
        pw.validation_nll(la, (X, Y), x=X)


def test_the_generator_of_a_subnetwork() -> None:
    """It is refused where it is made, as everywhere else."""
    with pytest.raises(pw.ArgumentTypeError, match=r"expected a torch\.Generator"):
        pw.Subnetwork.random(3, generator=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("subset_of_weights", "did you mean 'weights'?"),
        ("hessian_structure", "did you mean 'structure'?"),
        ("prior_precision", "did you mean 'prior'?"),
        ("backend", "did you mean 'curvature'?"),
        ("train_loader", "did you mean 'data'?"),
        ("seed", "did you mean 'generator'?"),
        ("sigma_noise", "pw.Gaussian(noise=...)"),
        ("temperature", "la.with_temperature(...)"),
        ("enable_backprop", "create_graph=True"),
        ("frobnicate", "no option 'frobnicate'. It takes model"),
    ],
)
def test_options_of_a_fit(name: str, says: str) -> None:
    """The option, or where its value goes."""
    with pytest.raises(pw.ArgumentTypeError) as caught:
        pw.fit(nn.Linear(2, 3), (X, Y), "classification", **{name: 1})  # type: ignore[arg-type]
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("n_steps", "did you mean 'steps'?"),
        ("val_loader", "did you mean 'validation'?"),
        ("pred_type", "did you mean 'method'?"),
        ("init_prior_prec", "use start="),
        ("link_approx", "as predict={...}"),
        ("log_prior_prec_min", "limits=(smallest, largest)"),
        ("loss", "use pw.sweep(la, validation, metric=...)"),
        ("lr", "no method= of tuning has a learning rate"),
    ],
)
def test_options_of_tuning(name: str, says: str, la: pw.Laplace) -> None:
    """As those of a fit."""
    with pytest.raises(pw.ArgumentTypeError) as caught:
        la.tune(**{name: 1})  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_what_a_call_needs(la: pw.Laplace) -> None:
    """Data of tuning go in by name, and a fit needs a likelihood."""
    with pytest.raises(pw.ArgumentTypeError, match=r"tune\(train=\(x, y\)\)"):
        la.tune(X, X)  # type: ignore[arg-type, call-arg]  # what is refused
    with pytest.raises(pw.ArgumentTypeError, match=r"fit\(\) is missing likelihood; .*'classification', 'regression'"):
        pw.fit(la.model, (X, X))  # type: ignore[call-arg]
    with pytest.raises(pw.ArgumentTypeError, match="missing model and data and likelihood"):
        pw.fit()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pred_type": "glm"}, "did you mean 'method'?"),
        ({"link_approx": "probit"}, "did you mean 'link'?"),
        ({"n_samples": 3}, "did you mean 'samples'?"),
        ({"method": "nn"}, "did you mean 'sampled'?"),
        ({"method": "glm"}, "did you mean 'linearised'?"),
        ({"link": "bridge_norm"}, "did you mean 'bridge_normalised'?"),
        ({"method": "gp"}, "no posterior over functions; la.functional(x, joint=True)"),
        ({"diagonal_output": True}, "la.functional(x, variance_only=True)"),
        ({"fitting": True}, "leave it out: predictions are the same without it"),
    ],
)
def test_options_of_predictions(options: dict[str, Any], says: str, la: pw.Laplace) -> None:
    """As those of a fit."""
    with pytest.raises(pw.PeewitError) as caught:
        la.predict(X, **options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"likelihood": "reward_modeling"}, "did you mean 'preference'?"),
        ({"structure": "lowrank"}, "no structure is of low rank; structure='kron'"),
        ({"structure": "gp"}, "no posterior over functions"),
        ({"weights": "subnetwork"}, "weights=pw.Subnetwork.largest_variance(100)."),
    ],
)
def test_values_of_options_of_a_fit(options: dict[str, Any], says: str) -> None:
    """Names that laplace-torch takes, and that no spelling leads to."""
    with pytest.raises(pw.PeewitError, match=re.escape(says)):
        pw.fit(nn.Linear(2, 3), (X, Y), **{"likelihood": "classification", **options})


def test_draws_of_outputs_have_one_way(la: pw.Laplace) -> None:
    """laplace-torch draws from the network itself too, and jointly or not."""
    for option, says in (("pred_type", "use la.predict(x, method='sampled')"), ("joint", "are joint over all inputs")):
        with pytest.raises(pw.ArgumentTypeError, match=re.escape(says)):
            la.functional_samples(X, 3, **{option: 1})  # type: ignore[arg-type]


# laplace-torch's calls by ours. Arguments of its other methods are tensors, which users do not have here.
CALLS: dict[str, Callable[..., Any]] = {
    "__init__": pw.fit,
    "fit": pw.fit,
    "optimize_prior_precision": pw.Laplace.tune,
    "__call__": pw.Laplace.predict,
    "predictive": pw.Laplace.predict,
    "predictive_samples": pw.Laplace.functional_samples,
    "functional_samples": pw.Laplace.functional_samples,
    "sample": pw.Laplace.sample,
    "log_marginal_likelihood": pw.Laplace.log_evidence,
}
NO_COUNTERPART = {"curvature", "laplace", "utils"}  # modules of laplace-torch


def laplace_torch() -> Any:
    return pytest.importorskip("laplace", reason="no laplace-torch", exc_type=ImportError)


def leads(name: str, known: list[str], elsewhere: dict[str, str]) -> bool:
    """Whether a name is one of ours, or a table says which one is meant; spelling alone does not count."""
    meant = OTHERS.get(name, ())
    return name in known or name in elsewhere or bool({*([meant] if isinstance(meant, str) else meant)} & {*known})


@pytest.mark.parametrize("kind", ["BaseLaplace", "ParametricLaplace", "BaseFunctionalLaplace"])
def test_every_name_of_laplace_torch_leads_somewhere(kind: str, la: pw.Laplace) -> None:
    """Public methods and properties of its posteriors, ours or with a hint."""
    theirs = [name for name in dir(getattr(laplace_torch(), kind)) if not name.startswith("_")]
    assert len(theirs) > 10
    assert [name for name in theirs if not leads(name, dir(la), POSTERIOR)] == []


def test_every_argument_of_laplace_torch_leads_somewhere() -> None:
    """Those of the calls that we have too."""
    theirs = laplace_torch()
    for call, ours in CALLS.items():
        known = [*inspect.signature(ours).parameters]
        for kind in (theirs.BaseLaplace, theirs.ParametricLaplace, theirs.BaseFunctionalLaplace):
            names = inspect.signature(getattr(kind, call, ours)).parameters.keys() - {"self", "args", "kwargs"}
            assert [name for name in names if not leads(name, known, OPTIONS)] == [], (kind.__name__, call)
    made = inspect.signature(theirs.Laplace).parameters.keys() - {"args", "kwargs"}
    assert [name for name in made if not leads(name, [*inspect.signature(pw.fit).parameters], OPTIONS)] == []


def test_every_class_of_laplace_torch_leads_somewhere() -> None:
    """What the package exports, and its interfaces to curvature."""
    theirs = laplace_torch()
    names = {name for place in (theirs, theirs.curvature) for name in dir(place) if not name.startswith("_")}
    public = {name for name in names if name in vars(theirs) or name[0].isupper()}
    assert {name for name in public if not leads(name, pw.__all__, PACKAGE)} == NO_COUNTERPART
