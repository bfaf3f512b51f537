"""Likelihoods, one file each, and the names that `fit` takes for them."""

from .bernoulli import Bernoulli
from .categorical import Categorical
from .contract import Likelihood, WithNatural, WithNoise, score
from .custom import Custom
from .form import ALL, Form
from .gaussian import RESIDUALS, Gaussian
from .heteroscedastic import HeteroscedasticGaussian
from .labelled import Labelled
from .poisson import Poisson
from .probabilities import warn_of_probabilities

NAMES: dict[str, type[Likelihood]] = {
    "classification": Categorical,
    "binary": Bernoulli,
    "regression": Gaussian,
    "heteroscedastic": HeteroscedasticGaussian,
    "count": Poisson,
}

__all__ = [
    "ALL",
    "NAMES",
    "RESIDUALS",
    "Bernoulli",
    "Categorical",
    "Custom",
    "Form",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Labelled",
    "Likelihood",
    "Poisson",
    "WithNatural",
    "WithNoise",
    "score",
    "warn_of_probabilities",
]
