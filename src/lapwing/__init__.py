"""Lapwing turns a trained PyTorch network into a Bayesian one with the Laplace approximation."""

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
from .selection import Subnetwork
from .structures import EKFAC, Block, Diag, Full, Kron
from .symptoms import Finding
from .tuning.trace import Trace, TuningWarning
from .tuning.validation import validation_nll

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
    "Subnetwork",
    "Trace",
    "TuningWarning",
    "fit",
    "load",
    "products",
    "validation_nll",
]
