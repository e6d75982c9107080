"""Implementations of `numerics.ops.Backend`."""
