"""Conversations of `holdfast chat`, with a local model or with a server."""
