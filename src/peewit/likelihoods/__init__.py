"""Likelihoods, one file each, and the names that `fit` takes for them."""

from .base import ALL, Form, Likelihood, score, widened
from .bernoulli import Bernoulli
from .categorical import Categorical
from .custom import Custom
from .gaussian import RESIDUALS, Gaussian
from .heads import warn_of_probabilities
from .heteroscedastic import HeteroscedasticGaussian
from .poisson import Poisson

NAMES = {
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
    "Likelihood",
    "Poisson",
    "score",
    "warn_of_probabilities",
    "widened",
]
