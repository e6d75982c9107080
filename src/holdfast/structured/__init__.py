"""Structured output: grammar compiler, matcher and spec."""
