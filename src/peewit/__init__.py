"""Peewit turns a trained PyTorch network into a Bayesian one with the Laplace approximation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .curvature.kinds import GGN, Auto, Empirical, Hessian, MonteCarlo
from .curvature.structures import EKFAC, Block, Diag, Full, Kron
from .diagnostics.checks import Finding
from .diagnostics.diagnosis import Diagnosis
from .fit import fit, products
from .laplace import Laplace, load, validation_nll
from .likelihoods import Bernoulli, Categorical, Custom, Gaussian, HeteroscedasticGaussian, Poisson
from .messages.warnings import RoundingWarning, TuningWarning
from .posterior.coverage import Coverage
from .posterior.evidence import Evidence
from .posterior.linear_mode import LinearMode
from .posterior.trace import Trace
from .predictions.covariance import Functional
from .predictions.prediction import Prediction
from .priors.prior import Prior
from .runtime.version import __version__
from .tracing.selection import Subnetwork

if TYPE_CHECKING:
    from .evaluate.call import evaluate

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
    "__version__",
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
