"""HTTP protocol limits, JSON bodies and event streams."""
