"""Shared set-up."""
