"""Speed and memory of fits and predictions, beside a plain training pass and beside laplace-torch."""
