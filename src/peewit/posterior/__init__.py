"""The posterior as a value, its evidence, and how it is measured, updated and moved."""
