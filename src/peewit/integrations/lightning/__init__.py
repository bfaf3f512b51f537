"""Hyperparameters learnt by the evidence while Lightning trains: a callback for its `Trainer`.

`pw.lightning` needs Lightning: `pip install lightning`. Its older package, `pytorch-lightning`, works too.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...messages.errors import MissingPackageError

if TYPE_CHECKING:
    from .callback import LearnerCallback

__all__ = ["LearnerCallback"]
PACKAGES = ("lightning", "pytorch_lightning")

if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """The callback, loaded when it is asked for: `pw.lightning` alone does not import Lightning."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
        if not any(find_spec(package) for package in PACKAGES):
            raise MissingPackageError(
                f"pw.lightning.{name} needs Lightning, which is not installed: pip install lightning"
            )
        globals()[name] = getattr(import_module(".callback", __name__), name)
        return globals()[name]

    def __dir__() -> list[str]:
        """What is for users."""
        return sorted(__all__)
