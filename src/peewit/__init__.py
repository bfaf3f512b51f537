"""Peewit turns a trained PyTorch network into a Bayesian one with the Laplace approximation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .curvature.kinds import GGN, Auto, Empirical, Hessian, MonteCarlo
from .curvature.products import Products
from .curvature.structures import EKFAC, Block, Diag, Full, Kron
from .diagnostics.diagnosis import Diagnosis
from .diagnostics.findings import Finding
from .fit import fit, products
from .laplace import Laplace, load, validation_nll
from .likelihoods import Bernoulli, Categorical, Custom, Gaussian, HeteroscedasticGaussian, Poisson
from .messages.elsewhere import PACKAGE
from .messages.errors import ArgumentTypeError, MismatchError, MissingPackageError, NotFiniteError, PeewitError
from .messages.names import nearest
from .messages.warnings import RoundingWarning, TuningWarning, UnderconfidenceWarning
from .posterior.coverage import Coverage
from .posterior.evidence import Evidence
from .posterior.linear_mode import LinearMode
from .posterior.trace import Trace
from .predictions.bare_outputs import Outputs
from .predictions.binary import Binary
from .predictions.classes import Classes
from .predictions.covariance import Functional
from .predictions.mixture import Mixture
from .predictions.prediction import Prediction
from .predictions.regression import Regression
from .priors.prior import Prior
from .runtime.version import __version__
from .tracing.selection import Subnetwork

if TYPE_CHECKING:
    from . import figures, metrics
    from .evaluation.call import evaluate
    from .evaluation.report import Report
    from .evaluation.sweeps import Sweep, sweep
    from .recommendation.call import recommend
    from .recommendation.result import Recommendation

__all__ = [
    "EKFAC",
    "GGN",
    "ArgumentTypeError",
    "Auto",
    "Bernoulli",
    "Binary",
    "Block",
    "Categorical",
    "Classes",
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
    "MismatchError",
    "MissingPackageError",
    "Mixture",
    "MonteCarlo",
    "NotFiniteError",
    "Outputs",
    "PeewitError",
    "Poisson",
    "Prediction",
    "Prior",
    "Products",
    "Recommendation",
    "Regression",
    "Report",
    "RoundingWarning",
    "Subnetwork",
    "Sweep",
    "Trace",
    "TuningWarning",
    "UnderconfidenceWarning",
    "__version__",
    "evaluate",
    "figures",
    "fit",
    "load",
    "metrics",
    "products",
    "recommend",
    "sweep",
    "validation_nll",
]

# Loaded when they are asked for, since fitting needs none of them: the module, and the name in it.
LAZY = {
    "Recommendation": (".recommendation", "Recommendation"),
    "Report": (".evaluation", "Report"),
    "Sweep": (".evaluation", "Sweep"),
    "evaluate": (".evaluation", "evaluate"),
    "figures": (".figures", ""),
    "metrics": (".metrics", ""),
    "recommend": (".recommendation", "recommend"),
    "sweep": (".evaluation", "sweep"),
}

if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Parts of the package that are not loaded with it."""
        if name not in LAZY:
            near = "" if name.startswith("_") else nearest(name, __all__, 0.6, PACKAGE)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near and '; ' + near.strip()}")
        module, inside = LAZY[name]
        found = import_module(module, __name__)
        globals()[name] = getattr(found, inside) if inside else found
        return globals()[name]

    def __dir__() -> list[str]:
        """What is for users."""
        return sorted(__all__)
