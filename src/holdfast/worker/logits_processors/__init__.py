"""Logits processors: penalties, bias, token and grammar masks."""
