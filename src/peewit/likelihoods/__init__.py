"""Likelihoods, one file each, and the names that `fit` takes for them."""

from typing import Literal, TypeAlias

from .bernoulli import Bernoulli
from .categorical import Categorical
from .comparison import EQUAL, ConstantComparison, Decisions, Energies
from .contract import Likelihood, WithNatural, WithNoise, score
from .custom import Custom
from .form import ALL, Form
from .gaussian import RESIDUALS, Gaussian
from .heteroscedastic import HeteroscedasticGaussian
from .labelled import Labelled
from .own_loss import like_own_loss, warn_of_copied_labels
from .poisson import Poisson
from .preference import Preference
from .probabilities import warn_of_probabilities

LikelihoodName: TypeAlias = Literal["classification", "binary", "regression", "heteroscedastic", "count", "preference"]
"""How targets are distributed: the classes are `pw.Categorical`, `pw.Bernoulli`, `pw.Gaussian`,
`pw.HeteroscedasticGaussian`, `pw.Poisson` and `pw.Preference`."""
NAMES: dict[LikelihoodName, type[Likelihood]] = {
    "classification": Categorical,
    "binary": Bernoulli,
    "regression": Gaussian,
    "heteroscedastic": HeteroscedasticGaussian,
    "count": Poisson,
    "preference": Preference,
}
NAMES_BY_CLASS: dict[str, LikelihoodName] = {kind.__name__: name for name, kind in NAMES.items()}

__all__ = [
    "ALL",
    "EQUAL",
    "NAMES",
    "NAMES_BY_CLASS",
    "RESIDUALS",
    "Bernoulli",
    "Categorical",
    "ConstantComparison",
    "Custom",
    "Decisions",
    "Energies",
    "Form",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Labelled",
    "Likelihood",
    "LikelihoodName",
    "Poisson",
    "Preference",
    "WithNatural",
    "WithNoise",
    "like_own_loss",
    "score",
    "warn_of_copied_labels",
    "warn_of_probabilities",
]
