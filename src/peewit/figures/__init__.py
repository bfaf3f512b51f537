"""Interactive figures of posteriors, predictions and reports, drawn by plotly.

Functions that draw return a plotly figure; they import plotly when they first run. The others (`curvature_matrices`,
`layer_spectra`, `kronecker_factors`, `approximations`, `landscape`, `prediction_draws`) return the numbers behind a
figure. Figures work in notebooks, and `save` writes them as pages or pictures. `figure.layout.meta["alt"]` describes a
figure in a sentence or two.
"""

from typing import TYPE_CHECKING, Any

from ..messages.names import nearest, spell_functions
from .comparisons import evidence_against_test
from .curvature import (
    Approximations,
    CurvatureMatrices,
    KroneckerFactors,
    LayerSpectrum,
    approximations,
    curvature_matrices,
    kronecker_factors,
    layer_spectra,
)
from .gaussian import gaussian_sliders
from .images import specimens
from .landscapes import landscape_1d, landscape_2d, landscape_3d
from .losses import Landscape, landscape
from .matrices import block_approximations, hessian_blocks, kronecker, spectra
from .posterior import effective_dimensions, evidence_trace, marginal_variances, prior_posterior
from .prediction import decision_map, regression_band
from .sampling import PredictionDraws, monte_carlo, prediction_draws
from .saving import save
from .scores import compare, pit, reliability, risk_coverage, shift_curves
from .sweeps import sweep
from .unknown import detection, uncertainty_histogram

__all__ = [
    "Approximations",
    "CurvatureMatrices",
    "KroneckerFactors",
    "Landscape",
    "LayerSpectrum",
    "PredictionDraws",
    "approximations",
    "block_approximations",
    "compare",
    "curvature_matrices",
    "decision_map",
    "detection",
    "effective_dimensions",
    "evidence_against_test",
    "evidence_trace",
    "gaussian_sliders",
    "hessian_blocks",
    "kronecker",
    "kronecker_factors",
    "landscape",
    "landscape_1d",
    "landscape_2d",
    "landscape_3d",
    "layer_spectra",
    "marginal_variances",
    "monte_carlo",
    "pit",
    "prediction_draws",
    "prior_posterior",
    "regression_band",
    "reliability",
    "risk_coverage",
    "save",
    "shift_curves",
    "specimens",
    "spectra",
    "sweep",
    "uncertainty_histogram",
]
spell_functions(globals())

RENAMED = {
    "Draws": "PredictionDraws",
    "Factors": "KroneckerFactors",
    "Spectrum": "LayerSpectrum",
    "Whole": "CurvatureMatrices",
    "draws": "prediction_draws",
    "factors": "kronecker_factors",
    "whole": "curvature_matrices",
}


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)


if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Refuse an unknown name, with the nearest one or the new name of an old one."""
        renamed = {old: f"it is {new} now" for old, new in RENAMED.items()}
        near = "" if name.startswith("_") else nearest(name, __all__, 0.6, renamed)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near and '; ' + near.strip()}")
