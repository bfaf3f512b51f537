"""The linear model `f(theta_hat) + J (theta - theta_hat)` and the mode of its own loss, matrix-free."""
