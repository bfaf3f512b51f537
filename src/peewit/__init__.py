"""Peewit turns a trained PyTorch network into a Bayesian one with the Laplace approximation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .runtime.version import __version__

if TYPE_CHECKING:
    from . import data, figures, learning, metrics
    from .comparison.call import compare
    from .comparison.result import ComparedPosterior, Comparison
    from .curvature.blocks import Blocks
    from .curvature.kinds import GGN, Auto, Empirical, Hessian, MonteCarlo
    from .curvature.products import Products
    from .curvature.structures import EKFAC, Block, Diag, Full, Kron
    from .diagnostics.diagnosis import Diagnosis
    from .diagnostics.findings import Finding
    from .evaluation.call import evaluate
    from .evaluation.report import Report
    from .evaluation.sweeps import Sweep, SweepPoint, sweep
    from .fitting import fit, products
    from .integrations import lightning, sklearn, transformers
    from .laplace import Laplace, load, validation_nll
    from .likelihoods import Bernoulli, Categorical, Custom, Gaussian, HeteroscedasticGaussian, Poisson, Preference
    from .messages.errors import ArgumentTypeError, MismatchError, MissingPackageError, NotFiniteError, PeewitError
    from .messages.warnings import (
        FitWarning,
        PeewitWarning,
        RoundingWarning,
        TuningWarning,
        UnderconfidenceWarning,
    )
    from .network.nests import Pair
    from .posterior.coverage import Coverage
    from .posterior.evidence import Evidence
    from .posterior.linear_mode import LinearMode
    from .posterior.schema import Schema
    from .posterior.trace import Trace
    from .predictions.bare_outputs import Outputs
    from .predictions.binary import Binary
    from .predictions.classes import Classes
    from .predictions.covariance import Functional
    from .predictions.mixture import Mixture
    from .predictions.prediction import Prediction
    from .predictions.regression import Regression
    from .priors.prior import Prior
    from .recommendation.call import recommend
    from .recommendation.result import Recommendation
    from .serving.predictor import Predictor
    from .tracing.selection import Subnetwork
    from .weights.space import Space

__all__ = [
    "EKFAC",
    "GGN",
    "ArgumentTypeError",
    "Auto",
    "Bernoulli",
    "Binary",
    "Block",
    "Blocks",
    "Categorical",
    "Classes",
    "ComparedPosterior",
    "Comparison",
    "Coverage",
    "Custom",
    "Diag",
    "Diagnosis",
    "Empirical",
    "Evidence",
    "Finding",
    "FitWarning",
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
    "Pair",
    "PeewitError",
    "PeewitWarning",
    "Poisson",
    "Prediction",
    "Predictor",
    "Preference",
    "Prior",
    "Products",
    "Recommendation",
    "Regression",
    "Report",
    "RoundingWarning",
    "Schema",
    "Space",
    "Subnetwork",
    "Sweep",
    "SweepPoint",
    "Trace",
    "TuningWarning",
    "UnderconfidenceWarning",
    "__version__",
    "compare",
    "data",
    "evaluate",
    "figures",
    "fit",
    "learning",
    "lightning",
    "load",
    "metrics",
    "products",
    "recommend",
    "sklearn",
    "sweep",
    "transformers",
    "validation_nll",
]

# Where each name comes from: it is loaded when it is asked for, so that `peewit --help` need not wait for torch.
SOURCES = {
    "comparison": ("ComparedPosterior", "Comparison", "compare"),
    "curvature.blocks": ("Blocks",),
    "curvature.kinds": ("GGN", "Auto", "Empirical", "Hessian", "MonteCarlo"),
    "curvature.products": ("Products",),
    "curvature.structures": ("EKFAC", "Block", "Diag", "Full", "Kron"),
    "diagnostics.diagnosis": ("Diagnosis",),
    "diagnostics.findings": ("Finding",),
    "evaluation": ("Report", "Sweep", "SweepPoint", "evaluate", "sweep"),
    "fitting": ("fit", "products"),
    "laplace": ("Laplace", "load", "validation_nll"),
    "likelihoods": (
        "Bernoulli",
        "Categorical",
        "Custom",
        "Gaussian",
        "HeteroscedasticGaussian",
        "Poisson",
        "Preference",
    ),
    "messages.errors": ("ArgumentTypeError", "MismatchError", "MissingPackageError", "NotFiniteError", "PeewitError"),
    "messages.warnings": (
        "FitWarning",
        "PeewitWarning",
        "RoundingWarning",
        "TuningWarning",
        "UnderconfidenceWarning",
    ),
    "network.nests": ("Pair",),
    "posterior.coverage": ("Coverage",),
    "posterior.evidence": ("Evidence",),
    "posterior.linear_mode": ("LinearMode",),
    "posterior.schema": ("Schema",),
    "posterior.trace": ("Trace",),
    "predictions.bare_outputs": ("Outputs",),
    "predictions.binary": ("Binary",),
    "predictions.classes": ("Classes",),
    "predictions.covariance": ("Functional",),
    "predictions.mixture": ("Mixture",),
    "predictions.prediction": ("Prediction",),
    "predictions.regression": ("Regression",),
    "priors.prior": ("Prior",),
    "recommendation": ("Recommendation", "recommend"),
    "serving.predictor": ("Predictor",),
    "tracing.selection": ("Subnetwork",),
    "weights.space": ("Space",),
}

if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Public names, loaded when they are asked for."""
        if name in ("data", "figures", "learning", "metrics"):
            return import_module(f".{name}", __name__)
        if name in ("lightning", "sklearn", "transformers"):
            return import_module(f".integrations.{name}", __name__)
        for module, names in SOURCES.items():
            if name in names:
                globals()[name] = getattr(import_module(f".{module}", __name__), name)
                return globals()[name]
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .messages.elsewhere import PACKAGE
        from .messages.names import nearest

        near = nearest(name, __all__, 0.6, PACKAGE)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near and '; ' + near.strip()}")

    def __dir__() -> list[str]:
        """What is for users."""
        return sorted(__all__)
