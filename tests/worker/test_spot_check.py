"""A spot check detects one wrong bit anywhere, and passes if there is none; so do checksums of logits."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Pass, PassKind, PassResult, Sampling, Span, StepPlan
from holdfast.worker.kv_store import KVStore
from holdfast.worker.model_runner import ModelRunner
from holdfast.worker.spot_check import logits_checksums

TOKENS = tuple(torch.randint(3, 320, (60,), generator=torch.Generator().manual_seed(8)).tolist())
PAGES = (5, 9, 2, 7)
SCRATCH = (11, 3, 6)
SAMPLING = Sampling(SamplingParams(temperature=0.8), 1, 20)
INTEGERS = {2: torch.int16, 4: torch.int32}
START, STOP, SAMPLE_FROM = 21, 43, 4  # positions, in the middle of pages 1 and 2


def write(runner: ModelRunner) -> list[int]:
    """Run a request through certified passes; returns the checksums of the logits at each position."""
    bits: list[int] = []
    for start in range(0, 60, 16):
        tokens = TOKENS[start : start + 16]
        span = Span(1, start, tokens, PAGES, 0, SAMPLING, with_checksums=True)
        (result,) = runner.run(StepPlan((Pass(PassKind.CANONICAL, (span,), 16),)))
        bits += [each.logits_checksum or 0 for each in result.samples[0]]
    return bits


def check(runner: ModelRunner, bits: Sequence[int], start: int = START, stop: int = STOP) -> PassResult:
    first, last = start // 16, (stop - 1) // 16
    originals = PAGES[first : last + 1]
    pages = PAGES[:first] + SCRATCH[: len(originals)]
    span = Span(1, start, TOKENS[start:stop], pages, SAMPLE_FROM, SAMPLING)
    padded = -(-span.num_tokens // 16) * 16
    expected = tuple(bits[start + SAMPLE_FROM : stop])
    one = Pass(PassKind.CHECK, (span,), padded, original_pages=originals, logits_checksums=expected)
    (result,) = runner.run(StepPlan((one,)))
    return result


def as_integers(tensor: Tensor) -> Tensor:
    return tensor.view(INTEGERS[tensor.dtype.itemsize])


def everything(store: KVStore) -> Tensor:
    tables = [
        as_integers(part)[list(PAGES)].flatten()
        for layer in store.layers
        for part in (layer.keys, layer.values)
    ]
    return torch.cat(tables)


@pytest.mark.parametrize(("start", "stop"), [(START, STOP), (0, 16), (16, 60), (31, 36), (32, 48), (20, 26)])
def test_spot_check_passes_for_correct_tokens(
    runner: ModelRunner, store: KVStore, start: int, stop: int
) -> None:
    bits = write(runner)
    for page in SCRATCH:  # as left by an earlier request
        for layer in store.layers:
            layer.keys[page], layer.values[page] = 3.0, -7.0
    before = everything(store)
    assert check(runner, bits, start, stop) == PassResult(((),))
    assert torch.equal(everything(store), before), "the request's own pages were changed"
    assert check(runner, bits, start, stop).mismatch is None


@pytest.mark.parametrize("position", [START, 31, 32, STOP - 1])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", ["keys", "values"])
def test_spot_check_detects_one_bit_of_the_kv(
    runner: ModelRunner, store: KVStore, name: str, layer: int, position: int
) -> None:
    bits = write(runner)
    page, offset = PAGES[position // 16], position % 16
    if name == "keys":
        slot = as_integers(store.layers[layer].keys)[page, :, :, offset]
    else:
        slot = as_integers(store.layers[layer].values)[page, :, offset]
    slot[1, 5] ^= 1
    assert check(runner, bits).mismatch == f"{name} of layer {layer} at position {position}"
    slot[1, 5] ^= 1
    assert check(runner, bits).mismatch is None


@pytest.mark.parametrize("position", [START + SAMPLE_FROM, 33, STOP - 1])
def test_spot_check_detects_one_bit_of_the_logits(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    bits = write(runner)
    logits = runner._decoder.logits

    def disturbed(hidden: Tensor, *, canonical: bool) -> Tensor:
        assert canonical
        out = logits(hidden, canonical=canonical)
        out.view(torch.int32)[position - START - SAMPLE_FROM, 100] ^= 1
        return out

    with monkeypatch.context() as patch:
        patch.setattr(runner._decoder, "logits", disturbed)
        assert check(runner, bits).mismatch == f"logits at position {position}"
    assert check(runner, bits).mismatch is None


def test_spot_check_detects_a_wrong_bit_before_its_tokens(runner: ModelRunner, store: KVStore) -> None:
    """The tokens read the pages before them, and the earlier slots of their first page."""
    bits = write(runner)
    for position in (3, START - 1):
        keys = store.layers[0].keys[PAGES[position // 16], :, :, position % 16]
        before = keys.clone()
        keys += 1.0
        assert "of layer 1 at position 21" in str(check(runner, bits).mismatch)
        keys.copy_(before)


def rows_not_written(hidden: Callable[..., Tensor], row: int) -> Callable[..., Tensor]:
    def lazy(rows: Any, *arguments: Any, **switches: Any) -> Tensor:
        rows.slots[row] = -1
        return hidden(rows, *arguments, **switches)

    return lazy


@pytest.mark.parametrize("row", [0, 11, STOP - START - 1])
def test_spot_check_detects_an_unwritten_slot(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    """Although the scratch page was copied from the right bits."""
    bits = write(runner)
    monkeypatch.setattr(runner._decoder, "forward", rows_not_written(runner._decoder.forward, row))
    assert check(runner, bits).mismatch == f"keys of layer 0 at position {START + row}"


def test_spot_check_runs_in_canonical_form(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = write(runner)
    switches: list[tuple[int, bool]] = []
    hidden = runner._decoder.forward

    def noting(rows: Any, *arguments: Any, canonical: bool, layer_hook: object = None) -> Tensor:
        switches.append((rows.num_tokens, canonical))
        return hidden(rows, *arguments, canonical=canonical)

    monkeypatch.setattr(runner._decoder, "forward", noting)
    check(runner, bits)
    assert switches == [(32, True)]


# Checksums of logits


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
