"""Interactive figures of posteriors, predictions and reports, drawn by plotly.

Functions that draw return a plotly figure and need plotly, which is imported when the first figure is made. The others
(`whole`, `layer_spectra`, `factors`, `approximations`, `landscape`, `draws`) return the numbers behind a figure. Every
figure works in a notebook, and `save` writes it as a page or a picture. `figure.layout.meta["alt"]` describes a figure
in a sentence or two.
"""

from .curvature import Approximations, Factors, Spectrum, Whole, approximations, factors, layer_spectra, whole
from .gaussian import gaussian_sliders
from .images import specimens
from .landscapes import landscape_1d, landscape_2d, landscape_3d
from .losses import Landscape, landscape
from .matrices import block_approximations, hessian_blocks, kronecker, spectra
from .posterior import effective_dimensions, evidence_trace, marginal_variances, prior_posterior
from .prediction import decision_map, regression_band
from .sampling import Draws, draws, monte_carlo
from .saving import save
from .scores import compare, pit, reliability, risk_coverage, shift_curves
from .sweeps import sweep
from .unknown import detection, uncertainty_histogram

__all__ = [
    "Approximations",
    "Draws",
    "Factors",
    "Landscape",
    "Spectrum",
    "Whole",
    "approximations",
    "block_approximations",
    "compare",
    "decision_map",
    "detection",
    "draws",
    "effective_dimensions",
    "evidence_trace",
    "factors",
    "gaussian_sliders",
    "hessian_blocks",
    "kronecker",
    "landscape",
    "landscape_1d",
    "landscape_2d",
    "landscape_3d",
    "layer_spectra",
    "marginal_variances",
    "monte_carlo",
    "pit",
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
    "whole",
]
