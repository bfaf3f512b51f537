"""Peewit turns a trained PyTorch network into a Bayesian one with the Laplace approximation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .coverage import Coverage
from .curvature import GGN, Auto, Empirical, Hessian, MonteCarlo
from .evidence import Evidence
from .files import load
from .fitting import fit, products
from .health import Diagnosis
from .laplace import Laplace
from .likelihoods import Bernoulli, Categorical, Custom, Gaussian, HeteroscedasticGaussian, Poisson
from .linear.mode import LinearMode
from .predictions.functional import Functional
from .predictions.prediction import Prediction
from .priors import Prior
from .resolution import RoundingWarning
from .selection import Subnetwork
from .structures import EKFAC, Block, Diag, Full, Kron
from .symptoms import Finding
from .tuning.trace import Trace, TuningWarning
from .tuning.validation import validation_nll

if TYPE_CHECKING:
    from .evaluate.call import evaluate

__version__ = "0.1.0"

__all__ = [
    "EKFAC",
    "GGN",
    "Auto",
    "Bernoulli",
    "Block",
    "Categorical",
    "Coverage",
    "Custom",
    "Diag",
    "Diagnosis",
    "Empirical",
    "Evidence",
    "Finding",
    "Full",
    "Functional",
    "Gaussian",
    "Hessian",
    "HeteroscedasticGaussian",
    "Kron",
    "Laplace",
    "LinearMode",
    "MonteCarlo",
    "Poisson",
    "Prediction",
    "Prior",
    "RoundingWarning",
    "Subnetwork",
    "Trace",
    "TuningWarning",
    "evaluate",
    "fit",
    "load",
    "products",
    "validation_nll",
]

LAZY = ("evaluate",)  # loaded when they are asked for: fitting needs none of them


if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Parts of the package that are not loaded with it."""
        if name in LAZY:
            return import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
