"""Thinking States: a model that writes a short thought behind every chunk it reads, and reads on with its state."""
