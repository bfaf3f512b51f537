"""Choosing prior precisions, noise and temperature; `search` is what `tune` does."""
