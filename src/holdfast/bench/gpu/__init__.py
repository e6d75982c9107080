"""Speed, certificates and determinism on a GPU."""
