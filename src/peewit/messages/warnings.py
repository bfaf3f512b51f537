"""Warnings that users may filter by their class, and how they are given."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

# Files of frames that no warning points at: the package's own, and those that stand between two of its functions.
# Folders end in a separator: a user's own may begin with the same letters.
FOLDERS = (Path(__file__).parents[1], Path(torch.__file__).parent)
PASSED_OVER = (*(f"{folder}{os.sep}" for folder in FOLDERS), contextlib.__file__)


class PeewitWarning(UserWarning):
    """Something needs a look; the base class of all warnings of the library's own.

    The message says what was seen and what to do. Warnings of other packages, such as scikit-learn's
    `ConvergenceWarning`, keep their class.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", pw.PeewitWarning)
        ...     again = pw.fit(model, (x, y), "classification")
    """


def warn(text: str, category: type[Warning] = PeewitWarning) -> None:
    """Warn at the line of the user's that led here, however deep inside the package this is."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PASSED_OVER):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


class FitWarning(PeewitWarning):
    """A fit may not be of what was meant: of the labels, the loss or the weights of the training.

    For example, the network's own loss differs from the likelihood's, outputs look like probabilities where logits are
    expected, or a weight beside the last layer is held fixed.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     twice = pw.fit(torch.nn.Sequential(model, torch.nn.Softmax(1)), (x, y), "classification")
        >>> caught[0].category is pw.FitWarning
        True
    """


class RoundingWarning(PeewitWarning):
    """Rounding is above the prior precision: variances and evidence are partly rounding.

    The warning names the weight and what to do: standardise the inputs, fit in float64, or use a larger prior
    precision.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", pw.RoundingWarning)
        ...     vague = pw.fit(model, (x, y), "classification", prior=1e-12)
    """


class TuningWarning(PeewitWarning):
    """The outcome of tuning, or of the search for the linear model's mode, needs a look.

    For example, the search did not converge, the noise ended at its limit, the data are not those of the fit, or
    predictions use a mode that belongs to another prior.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", pw.TuningWarning)
        ...     tuned = la.tune(steps=1)
        >>> tuned.trace.converged
        False
    """


class UnderconfidenceWarning(TuningWarning):
    """Predictions of the tuned posterior may be much less sure than they should be.

    `la.tune` gives it where the evidence alone chose prior and noise and the posterior shows a sign of it, such as
    more effective dimensions than half of the labels. The warning names the ways out. It does not concern the evidence
    itself: ignore it where models are compared.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", pw.UnderconfidenceWarning)
        ...     evidence = la.tune().log_evidence()
    """


class Silence:
    """Warnings that begin with certain words are not shown while any thread is inside.

    `warnings.catch_warnings` is for one thread: of two, the one that leaves last would leave its filters behind.
    """

    def __init__(self, *beginnings: str) -> None:
        self.beginnings = beginnings
        self.threads = 0
        self.lock = threading.Lock()
        self.filters = warnings.catch_warnings()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Go inside, and leave."""
        with self.lock:
            self.threads += 1
            if self.threads == 1:
                self.filters = warnings.catch_warnings()
                self.filters.__enter__()
                for words in self.beginnings:
                    warnings.filterwarnings("ignore", message=words)
        try:
            yield
        finally:
            with self.lock:
                self.threads -= 1
                if not self.threads:
                    self.filters.__exit__(None, None, None)
