"""How good predictions are, and how well unknown inputs are noticed, on real tasks."""
