"""A training run: its loop, state, validation and export."""
