"""Gaussian priors, and sets of weights whose common scale does not matter."""
