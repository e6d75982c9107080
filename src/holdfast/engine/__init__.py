"""The only loop, and what stands around it: text in, text out, handles, the offline `LLM`."""
