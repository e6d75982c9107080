"""The engine: its step, its loop, input and output. `start` builds it; `llm` is the Python API."""
