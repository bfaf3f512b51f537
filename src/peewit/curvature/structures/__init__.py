"""How curvature is stored: one file per structure."""

from .dense import Block, Full
from .diag import Diag
from .kron import EKFAC, Kron

NAMES = {"diag": Diag, "block": Block, "full": Full, "kron": Kron, "ekfac": EKFAC}

__all__ = ["EKFAC", "NAMES", "Block", "Diag", "Full", "Kron"]
