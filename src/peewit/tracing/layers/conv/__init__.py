"""The rule for convolutions, the sums over their patches, and their gradients on a GPU."""
