"""Kinds of curvature, the stream over the data, and the operators that a posterior is made of."""

from .contracts import Structure

__all__ = ["Structure"]
