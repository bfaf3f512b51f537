"""A likelihood that a user writes: two methods suffice, and every optional ability has a default."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn

import peewit as pw
from fitting import built, fitted, normal
from peewit.evaluation.scorers import SCORERS
from peewit.likelihoods import (
    ALL,
    NAMES,
    ConstantComparison,
    Energies,
    Form,
    Labelled,
    Likelihood,
    WithNoise,
)
from peewit.predictions.families import FAMILIES
from peewit.predictions.options import PredictOptions
from peewit.runtime.random import Hashed
from tables import moved, relative


class Counts(Likelihood):
    """Counts with rate `exp(f)`, as `pw.Poisson` has them, and not a word more than there has to be."""

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """(N,)."""
        return (f.exp() - y * f).sum((1, 2))

    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        """(N, T, C, R)."""
        return torch.diag_embed((f / 2).exp())[..., probes]


class PoissonAgain(Counts):
    """The same with a family and a distribution."""

    link_family = "poisson"

    def distribution(self, f: Tensor) -> distributions.Poisson:
        """(..., T, C)."""
        return distributions.Poisson(f.exp(), validate_args=False)


class Scaled(WithNoise):
    """Numbers with a noise of one kind."""

    noise = 2.0

    def with_noise(self, noise: float | Tensor) -> Scaled:
        """Another."""
        made = Scaled()
        made.noise = float(noise)
        return made

    @property
    def noise_precision(self) -> Tensor:
        """()."""
        return torch.tensor(self.noise, dtype=torch.float64).pow(-2)

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """(N,)."""
        return 0.5 * (f - y).square().sum((1, 2))

    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        """(N, T, C, R)."""
        return torch.diag_embed(torch.ones_like(f))[..., probes]

    def log_z(self, scalars: float, noise_precision: Tensor) -> Tensor:
        """()."""
        return 0.5 * scalars * (math.log(2 * math.pi) - noise_precision.log())


X, NEW = normal(20, 3), normal(4, 3, seed=5)
Y = (normal(20, 2, seed=3).exp() * 3).floor()
NETWORK = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full"])
@pytest.mark.parametrize("curvature", ["ggn", "empirical"])
def test_two_methods_suffice(structure: str, curvature: str) -> None:
    """Fitted and tuned as the likelihood that ships with the library, but for a constant."""
    own, ours = (fitted(NETWORK, X, Y, each, structure, curvature=curvature) for each in (Counts(), pw.Poisson()))
    constant = float(torch.lgamma(Y + 1).sum())
    assert float(own.log_evidence()) - constant == pytest.approx(float(ours.log_evidence()), rel=1e-10)
    assert relative(own.functional(moved(NEW)).cov, ours.functional(moved(NEW)).cov) < 1e-10
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pw.TuningWarning)  # both say the same
        tuned, theirs = own.tune(), ours.tune()
    assert float(tuned.log_evidence()) > float(own.log_evidence())
    assert relative(tuned.prior.precision, theirs.prior.precision) < 1e-6


def test_predictions_without_a_distribution() -> None:
    """Of the outputs alone; by sampled weights too."""
    la = fitted(NETWORK, X, Y, Counts())
    predicted: Any = la.predict(moved(NEW))
    functional = la.functional(moved(NEW))
    assert relative(predicted.mean, functional.mean) < 1e-12
    assert relative(predicted.epistemic, functional.cov.diagonal(dim1=-2, dim2=-1)) < 1e-12
    assert la.predict(moved(NEW), method="sampled").output_mean.shape == (4, 2)
    with pytest.raises(ValueError, match=r"log_prob needs the distribution of y .* which Counts does not give"):
        predicted.log_prob(moved(Y[:4]))
    with pytest.raises(ValueError, match="Counts does not say how targets are distributed"):
        pw.evaluate(la, (moved(X), moved(Y)), baselines=())


def test_other_questions_are_answered(tmp_path: Path) -> None:
    """A diagnosis, the mode of the linear model, products, and a file that asks for the likelihood again."""
    la, data = fitted(NETWORK, X, Y, Counts(), "full"), (moved(X), moved(Y))
    assert la.diagnose(data)["mode"].sentence
    assert la.at_linear_mode(data).linear_mode is not None
    vector = torch.ones(la.D, dtype=torch.float64, device=la.weights.device)
    for curvature in ("ggn", "hessian"):
        assert pw.products(la.model, data, Counts(), curvature=curvature).mv(vector).shape == (la.D,)
    la.save(tmp_path / "own.safetensors")
    with pytest.raises(ValueError, match="likelihood was 'Counts', which a file cannot hold"):
        pw.load(tmp_path / "own.safetensors", la.model)
    again = pw.load(tmp_path / "own.safetensors", la.model, Counts())
    assert relative(again.log_evidence(), la.log_evidence()) < 1e-10


@pytest.mark.parametrize("link", ["exact", "mc"])
def test_a_family_brings_its_links(link: str) -> None:
    """Predictions, and what they are judged by, are those of the family."""
    own, ours = (fitted(NETWORK, X, Y, each) for each in (PoissonAgain(), pw.Poisson()))
    left, right = (each.predict(moved(NEW), link=link) for each in (own, ours))
    assert repr(left) == repr(right)
    assert relative(left.log_prob(moved(Y[:4])), right.log_prob(moved(Y[:4]))) < 1e-10
    for place in (0, 1):
        assert torch.equal(left.interval(0.9)[place], right.interval(0.9)[place])
    made = [
        pw.evaluate(each, (moved(X), moved(Y)), intervals=10).methods[0].metrics["nll"].value for each in (own, ours)
    ]
    assert made[0] == pytest.approx(made[1], rel=1e-10)


FORM = Form(0, (2,))
FLAT = Y.unsqueeze(1)
DEFAULTS: dict[str, tuple[Any, Any]] = {
    "rank": (lambda own: own.rank(7), 7),
    "title": (lambda own: own.title, "Counts"),
    "caveat": (lambda own: own.caveat, ""),
    "domain": (lambda own: own.domain, ""),
    "prepare": (lambda own: own.prepare(normal(20, 2), Y) is Y, True),
    "form": (lambda own: own.form(normal(20, 2), Y), FORM),
    "check_inputs": (lambda own: own.check_inputs(FLAT) is FLAT, True),
    "for_inputs": (lambda own: own.for_inputs(FLAT) is own, True),
    "bind": (lambda own: own.bind(FORM) is own, True),
    "targets": (lambda own: own.targets(Y, FORM), FLAT),
    "valid": (lambda own: [bool(own.valid(each, FORM)) for each in (FLAT, FLAT / 0)], [True, False]),
    "complaint": (lambda own: own.complaint(FLAT, FORM), "Counts: targets hold NaN or Inf; expected finite numbers."),
    "known": (lambda own: own.known(FLAT), torch.ones(20, 1, 2, dtype=torch.bool)),
    "labelled": (lambda own: own.labelled(FLAT), torch.ones(20, 1, dtype=torch.bool)),
    "labelled: no axis": (lambda own: own.labelled(FLAT[..., 0]), torch.ones(20, 1, dtype=torch.bool)),
    "scalars": (lambda own: own.scalars(FLAT), torch.tensor(40.0, dtype=torch.float64)),
    "noise_precision": (lambda own: own.noise_precision, torch.tensor(1.0, dtype=torch.float64)),
    "rest": (lambda own: own.rest(FLAT), torch.tensor(0.0, dtype=torch.float64)),
    "log_z": (lambda own: own.log_z(40.0, torch.tensor(3.0)), torch.tensor(0.0)),
    "draws": (lambda own: own.draws, False),
    "link_family": (lambda own: own.link_family, "other"),
    "distribution": (lambda own: own.distribution(FLAT), None),
    "decisions": (lambda own: own.decisions(FLAT, FLAT), None),
    "constant": (lambda own: own.constant, None),
    "beside_constant": (
        lambda own: own.beside_constant(FLAT, FLAT, Energies(30.0, 40.0), "here"),
        ConstantComparison(share=0.25, words="energy 30 here, against 40", numbers={}),
    ),
    "beside_constant: a density": (
        lambda own: own.beside_constant(FLAT, FLAT, Energies(-30.0, -10.0), "here"),
        ConstantComparison(share=20 / 30, words="energy -30 here, against -10", numbers={}),
    ),
    "in_target_units": (lambda own: own.in_target_units, False),
    "residual_advice": (lambda own: own.residual_advice.split()[0], "Give"),
    "residual_advice: a noise": (lambda own: Scaled().residual_advice, "Tune it"),
    "uneven_advice": (lambda own: own.uneven_advice.split()[-2:], ["each", "output."]),
    "uneven_advice: a noise": (lambda own: Scaled().uneven_advice.split()[0], "Scale"),
    "same_ratios": (lambda own: Scaled().same_ratios(own), True),
    "awaits_residuals": (lambda own: Scaled().awaits_residuals, False),
    "factor": (lambda own: Scaled().factor, torch.tensor(2.0, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default(name: str) -> None:
    """Of every optional ability."""
    ask, expected = DEFAULTS[name]
    found = ask(Counts())
    if isinstance(expected, Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    else:
        assert found == expected


def test_every_ability_has_a_default() -> None:
    """But the two that are demanded; each is in the table above, or has a test of its own."""
    declared = {name for name in (*vars(Likelihood), *vars(WithNoise)) if not name.startswith("_")}
    demanded = Likelihood.__abstractmethods__
    assert demanded == {"energy", "root"}
    assert WithNoise.__abstractmethods__ == demanded | {"noise", "with_noise"}
    assert declared - demanded - {"noise", "with_noise", "drawn_score"} == {name.split(":")[0] for name in DEFAULTS}


def test_labels_are_not_drawn_unless_it_is_said() -> None:
    """`fisher` is refused, and `auto` never takes it."""
    with pytest.raises(ValueError, match="and Counts has no `drawn_score`; use curvature='ggn' or 'empirical'"):
        fitted(NETWORK, X, Y, Counts(), curvature="fisher")
    with pytest.raises(ValueError, match="has no `drawn_score`"):
        Counts().drawn_score(FLAT, FLAT, Hashed(0, torch.arange(20), 1, 0))
    wide, many = built(nn.Linear(3, 70)), (normal(20, 70, seed=3).exp() * 3).floor()
    assert fitted(wide, X, many, Counts(), "diag", curvature="auto").curvature.name == "ggn"
    assert fitted(wide, X, many, pw.Poisson(), "diag", curvature="auto").curvature.name == "fisher"


def test_a_noise_is_learnt_where_it_is_declared() -> None:
    """As that of `pw.Gaussian`; without the ability it is refused."""
    values = normal(20, 2, seed=3)
    own, ours = (fitted(NETWORK, X, values, each).tune() for each in (Scaled(), pw.Gaussian(2.0)))
    assert float(own.log_evidence()) == pytest.approx(float(ours.log_evidence()), rel=1e-8)
    assert own.likelihood.noise == pytest.approx(ours.likelihood.noise, rel=1e-5)  # type: ignore[attr-defined]
    la = fitted(NETWORK, X, Y, Counts())
    with pytest.raises(ValueError, match="parameters has 'noise', but Counts has none"):
        la.tune(parameters=["noise"])
    with pytest.raises(ValueError, match="Counts has no noise"):
        la.with_noise(0.5)
    with pytest.raises(ValueError, match="Counts has no noise"):
        la.log_evidence(noise=0.5)


def test_targets_are_checked_by_default() -> None:
    """Their shape, and whether they are finite, with the number of the example."""
    broken = Y.clone()
    broken[13, 1] = torch.nan
    with pytest.raises(ValueError, match=r"13.*Counts: targets hold NaN or Inf"):
        fitted(NETWORK, X, broken, Counts())
    with pytest.raises(ValueError, match=r"Counts: outputs \(20, 2\) and targets \(20,\) differ"):
        fitted(NETWORK, X, Y[:, 0], Counts())
    labels = Labelled.of(Counts(), normal(20, 2), broken)
    with pytest.raises(ValueError, match="input number 13: Counts: targets"):
        labels.check()
    with pytest.raises(ValueError, match=r"^Counts: targets"):
        labels.check(numbered=False)
    assert labels.some(slice(0, 13)).check().y.shape == (13, 1, 2)
    assert labels.flat(normal(20, 2).half()).dtype == torch.float32


def test_a_class_that_only_looks_like_one_is_refused() -> None:
    """Defaults come from the base class, so a likelihood has to be derived from it."""

    class Alike:
        energy, root = Counts.energy, Counts.root

    with pytest.raises(TypeError, match="likelihood is a Alike; expected one of the names"):
        fitted(NETWORK, X, Y, Alike())
    with pytest.raises(TypeError, match="abstract"):
        type("Half", (Likelihood,), {"energy": Counts.energy})()


def test_every_likelihood_has_a_row_in_both_tables() -> None:
    """Of links and of what predictions are judged by."""
    assert set(FAMILIES) == set(SCORERS)
    assert {each().link_family for each in NAMES.values()} | {"other"} == set(FAMILIES)
    assert all("mc" in family.links for family in FAMILIES.values())


LINKS = {  # the default first, as docs/predictions.md has them
    "classification": ("probit", "bridge", "bridge_normalised", "mc"),
    "binary": ("probit", "mc"),
    "regression": ("exact", "mc"),
    "heteroscedastic": ("mc", "natural", "mean"),
    "count": ("exact", "mc"),
    "preference": ("probit", "mc"),
}


@pytest.mark.parametrize("name", NAMES)
def test_links_of_a_likelihood(name: str) -> None:
    """The default is the first; all but the delta rule may be joint."""
    likelihood = NAMES[name]()
    assert PredictOptions.of(likelihood, "linearised").link == LINKS[name][0]
    assert PredictOptions.of(likelihood, "sampled", joint=True).link == "mc"
    with pytest.raises(ValueError, match=f"Known there: {', '.join(LINKS[name])}."):
        PredictOptions.of(likelihood, "linearised", "none")
    for link in LINKS[name]:
        if link in ("natural", "mean"):
            with pytest.raises(ValueError, match=f"joint=True with link='{link}'"):
                PredictOptions.of(likelihood, "linearised", link, joint=True)
        else:
            assert PredictOptions.of(likelihood, "linearised", link, joint=True).joint


@pytest.mark.parametrize(("name", "classes"), [("classification", 3), ("binary", 2), ("regression", 0), ("count", 0)])
def test_how_many_classes_there_are(name: str, classes: int) -> None:
    """Names of classes are one each: two of yes-or-no labels, however many labels there are."""
    y = {"classification": torch.arange(20) % 3, "regression": normal(20, 3)}.get(name, torch.ones(20, 3))
    la = fitted(built(nn.Linear(3, 3)), X, y, name)
    data = (moved(X), moved(y))
    if classes:
        words = [f"class {number}" for number in range(classes)]
        assert pw.evaluate(la, data, classes=words, intervals=10).task == "classification"
    with pytest.raises(ValueError, match=f"there are {classes} classes" if classes else "has no classes; leave it out"):
        pw.evaluate(la, data, classes=["a", "b", "c", "d"], intervals=10)


def test_what_is_no_likelihood_is_led_to_the_base_class() -> None:
    """A class with the right methods that is no subclass, and a subclass with a family that nobody knows."""

    class Duck:
        def energy(self) -> None: ...

    class Strange(Counts):
        link_family = "foo"

    with pytest.raises(TypeError, match=r"or of a subclass of peewit\.likelihoods\.Likelihood"):
        fitted(NETWORK, X, Y, Duck())
    la = fitted(NETWORK, X, Y, Strange())
    with pytest.raises(ValueError, match=r"Strange has link_family='foo'; expected one of .*categorical"):
        la.predict(X)
