"""Who runs next, and what follows from what a pass said. Pure policy over plain data."""
