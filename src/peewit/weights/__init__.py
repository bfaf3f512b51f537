"""The selected weights as one vector, its ranges and its groups."""
