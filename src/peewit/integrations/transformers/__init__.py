"""Hyperparameters learnt by the evidence while the `Trainer` of HuggingFace's transformers trains: a callback for it.

`pw.transformers` needs transformers and accelerate: `pip install transformers accelerate`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...messages.errors import MissingPackageError

if TYPE_CHECKING:
    from .callback import LearnerTrainerCallback

__all__ = ["LearnerTrainerCallback"]
PACKAGES = ("transformers", "accelerate")

if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """The callback, loaded when it is asked for: `pw.transformers` alone does not import transformers."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
        missing = [package for package in PACKAGES if not find_spec(package)]
        if missing:
            raise MissingPackageError(
                f"pw.transformers.{name} needs {' and '.join(missing)}, which is not installed: "
                f"pip install {' '.join(missing)}"
            )
        globals()[name] = getattr(import_module(".callback", __name__), name)
        return globals()[name]

    def __dir__() -> list[str]:
        """What is for users."""
        return sorted(__all__)
