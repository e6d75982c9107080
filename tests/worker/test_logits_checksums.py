"""Checksums of logits change with every single bit, and do not depend on the batch."""

import pytest
import torch
from torch import Tensor

from holdfast.worker.spot_check import logits_checksums


def checksums(logits: Tensor) -> list[int]:
    found: list[int] = logits_checksums(logits).tolist()
    return found


@pytest.mark.parametrize("vocab", [1, 7, 200])
def test_checksum_changes_with_every_bit(vocab: int) -> None:
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(1))
    before = checksums(logits)
    for place in {0, vocab // 2, vocab - 1}:
        for bit in range(32):
            changed = logits.clone()
            changed.view(torch.int32)[0, place] ^= 1 << bit if bit < 31 else -(1 << 31)
            assert checksums(changed) != before, (place, bit)


def test_checksum_differences_of_opposite_sign_do_not_cancel() -> None:
    """One logit is one unit in the last place higher, another one lower, as after another order of
    summation.
    """
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(1))
    before = checksums(logits)
    for place in range(199):
        changed = logits.clone()
        changed.view(torch.int32)[0, place] += 1
        changed.view(torch.int32)[0, place + 1] -= 1
        assert checksums(changed) != before


def test_checksum_does_not_depend_on_the_batch() -> None:
    logits = torch.randn(9, 333, generator=torch.Generator().manual_seed(1))
    assert checksums(logits) == [checksums(row[None].clone())[0] for row in logits]


def test_checksum_distinguishes_zeros_and_equals_for_nan() -> None:
    assert checksums(torch.zeros(1, 8)) != checksums(-torch.zeros(1, 8))
    assert checksums(torch.full((1, 8), torch.nan)) == checksums(torch.full((1, 8), torch.nan))
