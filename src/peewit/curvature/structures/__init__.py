"""How curvature is stored: one file per structure."""

from typing import Literal, TypeAlias

from .dense import Block, Full
from .diag import Diag
from .kron import EKFAC, Kron

StructureName: TypeAlias = Literal["diag", "block", "full", "kron", "ekfac"]
"""How curvature is stored: the classes are `pw.Diag`, `pw.Block`, `pw.Full`, `pw.Kron` and `pw.EKFAC`."""
NAMES: dict[StructureName, type[Diag | Block | Full | Kron | EKFAC]] = {
    "diag": Diag,
    "block": Block,
    "full": Full,
    "kron": Kron,
    "ekfac": EKFAC,
}

__all__ = ["EKFAC", "NAMES", "Block", "Diag", "Full", "Kron", "StructureName"]
