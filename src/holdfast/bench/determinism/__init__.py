"""Determinism stress tests: one request repeated inside random loads, fault injection, a demo."""
