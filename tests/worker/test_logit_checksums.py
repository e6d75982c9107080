"""The checksum of a row of logits sees every single bit, and does not depend on the batch."""

import pytest
import torch
from torch import Tensor

from holdfast.worker.spot_check import logits_checksums


def checksums(logits: Tensor) -> list[int]:
    found: list[int] = logits_checksums(logits).tolist()
    return found


@pytest.mark.parametrize("vocab", [1, 7, 200])
def test_every_bit_counts(vocab: int) -> None:
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(1))
    before = checksums(logits)
    for place in {0, vocab // 2, vocab - 1}:
        for bit in range(32):
            changed = logits.clone()
            changed.view(torch.int32)[0, place] ^= 1 << bit if bit < 31 else -(1 << 31)
            assert checksums(changed) != before, (place, bit)


def test_small_differences_do_not_cancel() -> None:
    """One logit a last bit up and another one down, as another order of summation makes them."""
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(1))
    before = checksums(logits)
    for place in range(199):
        changed = logits.clone()
        changed.view(torch.int32)[0, place] += 1
        changed.view(torch.int32)[0, place + 1] -= 1
        assert checksums(changed) != before


def test_a_row_is_summed_alone() -> None:
    logits = torch.randn(9, 333, generator=torch.Generator().manual_seed(1))
    assert checksums(logits) == [checksums(row[None].clone())[0] for row in logits]


def test_zeros_differ_and_a_nan_equals_itself() -> None:
    assert checksums(torch.zeros(1, 8)) != checksums(-torch.zeros(1, 8))
    assert checksums(torch.full((1, 8), torch.nan)) == checksums(torch.full((1, 8), torch.nan))
