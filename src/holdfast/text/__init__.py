"""Tokenizers, detokenizer and chat templates."""
