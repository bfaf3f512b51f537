"""Warnings that users may filter by their class."""

from __future__ import annotations


class RoundingWarning(UserWarning):
    """Rounding is above the prior precision: variances and evidence are partly rounding.

    The warning names the weight and what to do: standardise the inputs, fit in float64, or use a larger prior
    precision.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", pw.RoundingWarning)
        ...     vague = pw.fit(model, (x, y), "classification", prior=1e-12)
    """


class TuningWarning(UserWarning):
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
