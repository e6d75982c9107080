"""OpenAI's files and batches: what is kept of them, the work on them, their routes."""
