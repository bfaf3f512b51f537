"""Warnings that users may filter by their class."""

from __future__ import annotations


class RoundingWarning(UserWarning):
    """Rounding is above the prior precision: variances and evidence are partly rounding."""


class TuningWarning(UserWarning):
    """Something about the outcome of tuning that a user should look at."""
