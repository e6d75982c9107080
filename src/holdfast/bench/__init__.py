"""Benchmarks: speed on CPU and GPU, load on a server, determinism stress tests, a demo."""
