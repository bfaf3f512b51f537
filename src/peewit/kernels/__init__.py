"""Triton kernels, and the operands that they take."""
