"""The linear model `f(theta~) + J (theta - theta~)` and the mode of its own loss, matrix-free."""
