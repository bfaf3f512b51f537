"""Whether a network is fit for a Laplace approximation."""
