"""Measurements: speed against peers, the determinism needle, plots."""
