"""The figures of papers on deterministic inference, measured on this engine."""
