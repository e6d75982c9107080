"""Rope tables: as transformers computes them, and a shorter table is a prefix of a longer one, bit
for bit."""

import torch

from holdfast.numerics.rope import rope_tables


def test_tables_are_near_those_of_transformers() -> None:
    inv_freq = 1.0 / (10000.0 ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64))
    cos, sin = rope_tables(inv_freq, 1.5, 3000)
    angles = (inv_freq[:, None] @ torch.arange(3000, dtype=torch.float32)[None, :]).T
    both = torch.cat((angles, angles), dim=-1)
    for found, expected in ((cos, both.cos()), (sin, both.sin())):
        torch.testing.assert_close(found, (expected * 1.5)[:, :32], rtol=0, atol=3e-7)


def test_shorter_table_is_a_prefix_of_a_longer_one() -> None:
    inv_freq = torch.rand(20, generator=torch.Generator().manual_seed(0))
    long = rope_tables(inv_freq, 1.0, 2500)
    for length in (1, 7, 1024, 1025):
        short = rope_tables(inv_freq, 1.0, length)
        assert all(torch.equal(a, b[:length]) for a, b in zip(short, long, strict=True))
        assert short[0].shape == (length, 20)
