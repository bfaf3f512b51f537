"""Jacobians of weights: factored, as rows, side by side, and of the last layer."""
