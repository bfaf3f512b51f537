"""How good predictions are."""

from .metrics import accuracy, auroc, brier, ece, nll

__all__ = ["accuracy", "auroc", "brier", "ece", "nll"]
