"""Numerics: the operations of a decoder, their backends (C, torch, Triton), and the recipe that
fixes their bits."""
