"""The Python API: `LLM`, `AsyncLLM`, their prompts and streams."""
