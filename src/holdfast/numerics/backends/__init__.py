"""Implementations of the operations: C kernels, torch, Triton."""
