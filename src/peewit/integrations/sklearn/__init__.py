"""Networks that say how sure they are, as scikit-learn estimators: numpy arrays in, intervals and probabilities out.

`pw.sklearn` needs scikit-learn: `pip install scikit-learn`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...messages.errors import MissingPackageError

if TYPE_CHECKING:
    from .base import Uncertainty
    from .classifier import LaplaceClassifier
    from .regressor import LaplaceRegressor

__all__ = ["LaplaceClassifier", "LaplaceRegressor", "Uncertainty"]
SOURCES = {"LaplaceClassifier": ".classifier", "LaplaceRegressor": ".regressor", "Uncertainty": ".base"}

if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """The estimators, loaded when they are asked for: `pw.sklearn` alone does not import scikit-learn."""
        if name not in SOURCES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
        try:
            import_module("sklearn")
        except ImportError as error:
            raise MissingPackageError(
                f"pw.sklearn.{name} needs scikit-learn, which is not installed: pip install scikit-learn"
            ) from error
        globals()[name] = getattr(import_module(SOURCES[name], __name__), name)
        return globals()[name]

    def __dir__() -> list[str]:
        """What is for users."""
        return sorted(__all__)
