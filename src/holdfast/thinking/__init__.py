"""Thinking States: a model that writes a short thought after every chunk and reads on with its state."""
