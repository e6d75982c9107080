"""Token masks: allowed and bad ids, grammar masks, bad words, end tokens before min_tokens.

The logit of a token that is not allowed becomes -inf. The bits of allowed tokens do not change. Grammar
masks are computed by one thread while the device runs the pass.
"""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Span
from holdfast.numerics.arrays import Device, Tensor, arrays_on
from holdfast.worker.logits import LogitsSlice, Masks, PlacedSlices
from holdfast.worker.logits_processors.device_history import is_on_device
from holdfast.worker.transfer import send_array

Ints = NDArray[np.int64]
BadWords = tuple[tuple[int, ...], ...]

_log = logging.getLogger(__name__)
NOTHING_ALLOWED = b""  # a grammar mask without a set bit
_MAX_INDEXED_WORDS = 1 << 17  # of all lists of bad words: about 25 MB
_MAX_SINGLE_IDS = 1024  # of a list of bad ids; a longer one is a limit for the whole row


class GrammarMaskWorker:
    """The thread that computes grammar masks. It starts with the first span that has a grammar."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "grammar-masks")

    @contextmanager
    def computing(self, spans: Sequence[Span]) -> Iterator[Callable[[], list[Masks]]]:
        """Start to compute the masks of the spans' sampled tokens. Yield a function that returns them by
        span. Wait for the thread on exit, even after an error: a grammar is not used after its pass."""
        if all(span.constraint is None or not span.num_sampled for span in spans):
            yield lambda: [()] * len(spans)
            return
        job = self._pool.submit(lambda: [_grammar_masks(span) for span in spans])
        try:
            yield job.result
        finally:
            wait((job,))


def _grammar_masks(span: Span) -> Masks:
    """Return one mask for each sampled token. A grammar that fails allows nothing in its span."""
    if span.constraint is None or span.num_sampled == 0:
        return ()
    constraint, count = span.constraint, span.num_sampled
    try:
        masks = tuple(constraint.grammar.masks(constraint.candidates, count))
        if len(masks) != count:
            raise RuntimeError(f"a grammar gave {len(masks)} masks for {count} tokens")
    except BaseException:  # a panic of compiled code is none; this thread gets no KeyboardInterrupt
        _log.exception("the grammar of request %d failed", span.request_id)
        return (NOTHING_ALLOWED,) * count
    return masks


@dataclass(frozen=True)
class TokenLists:
    """The token lists of a request as tensors: logit bias, allowed and bad token ids. Ids outside the
    vocabulary are ignored. Made once for each `SamplingParams` object and dropped with it."""

    bias_ids: NDArray[np.int64]  # [biased], on the host
    biases: NDArray[np.float32]  # [biased], on the host
    bad_ids: NDArray[np.int64]  # on the host
    # An upper limit of each logit: -inf for tokens that are not allowed, inf for all others. fp32 [vocab],
    # or [0] if all are allowed.
    limit: Tensor
    allowed_bits: int  # the allowed tokens as one number, bit i for token i; -1 if all are


# By identity: comparing two SamplingParams would read their lists. An id may be reused after its
# object has died.
_lists: dict[tuple[int, int, Device], tuple[weakref.ref[SamplingParams], TokenLists]] = {}


def token_lists_of(params: SamplingParams, vocab_size: int, device: Device) -> TokenLists:
    key = (id(params), vocab_size, device)
    known = _lists.get(key)
    if known is not None and known[0]() is params:
        return known[1]
    made = _make_lists(params, vocab_size, device)
    _lists[key] = (weakref.ref(params, lambda _: _lists.pop(key, None)), made)
    return made


def _make_lists(params: SamplingParams, vocab_size: int, device: Device) -> TokenLists:
    biases = [(token_id, bias) for token_id, bias in params.biases if token_id < vocab_size]
    limit = _limit(params, vocab_size)
    return TokenLists(
        bias_ids=np.array([token_id for token_id, _ in biases], np.int64),
        biases=np.array([bias for _, bias in biases], np.float32),
        bad_ids=_inside(params.bad_ids, vocab_size),
        limit=send_array(limit, device),
        allowed_bits=_allowed_bits(limit) if len(limit) else -1,
    )


def _allowed_bits(limit: NDArray[np.float32]) -> int:
    return int.from_bytes(np.packbits(limit > 0, bitorder="little").tobytes(), "little")


def _limit(params: SamplingParams, vocab_size: int) -> NDArray[np.float32]:
    if params.allowed_ids is None and not params.bad_ids:
        return np.empty(0, np.float32)
    limit = np.full(vocab_size, np.inf if params.allowed_ids is None else -np.inf, np.float32)
    if params.allowed_ids is not None:
        limit[_inside(params.allowed_ids, vocab_size)] = np.inf
    limit[_inside(params.bad_ids, vocab_size)] = -np.inf
    return limit


def _inside(token_ids: tuple[int, ...], vocab_size: int) -> Ints:
    ids = np.array(token_ids, np.int64)
    return ids[ids < vocab_size]


def apply_token_masks(logits: Tensor, placed: PlacedSlices) -> None:
    """Change the logits, fp32 [tokens, vocab], in place."""
    vocab_size, device = logits.shape[1], logits.device
    single: list[Ints] = []  # indices of the flattened logits
    grammar_rows: list[int] = []
    grammar_bits = bytearray()
    for at, slice_ in placed:
        if not _has_masks(slice_):
            continue
        params = slice_.span.sampling.params
        if params.allowed_ids is not None or len(params.bad_ids) > _MAX_SINGLE_IDS:
            rows = logits[at : at + slice_.num_tokens]
            limit = token_lists_of(params, vocab_size, device).limit
            arrays_on(device).minimum(rows, limit, out=rows)
        elif params.bad_ids:
            bad_ids = token_lists_of(params, vocab_size, device).bad_ids
            single.extend(row * vocab_size + bad_ids for row in range(at, at + slice_.num_tokens))
        bad_word_ends = _bad_word_ends(slice_)
        if slice_.masks:
            grammar_rows.extend(at + index for index, mask in enumerate(slice_.masks) if mask is not None)
            grammar_bits += _grammar_bits(slice_, bad_word_ends, vocab_size, device)
        for index, token_ids in enumerate(bad_word_ends):
            found = np.concatenate((token_ids, np.array(_early_ends(slice_, index), np.int64)))
            single.append((at + index) * vocab_size + found[found < vocab_size])
    if grammar_rows:
        _apply_grammar_bits(logits, grammar_rows, grammar_bits)
    places = np.concatenate((*single, np.empty(0, np.int64)))
    if len(places):
        logits.view(-1).index_fill_(0, send_array(places, device), -np.inf)


def _has_masks(slice_: LogitsSlice) -> bool:
    """Return False for slices with penalties or biases alone."""
    sampling = slice_.span.sampling
    has_lists = sampling.params.allowed_ids is not None or bool(sampling.params.bad_ids)
    return has_lists or bool(slice_.masks or sampling.bad_words or sampling.suppressed_ids)


def _apply_grammar_bits(logits: Tensor, rows: list[int], bits: bytearray) -> None:
    """Mask the tokens whose bit is 0. bits: whole bytes for each of the rows."""
    packed = np.frombuffer(bits, np.uint8).reshape(len(rows), -1)  # [n, bytes]
    vocab_size = logits.shape[1]
    if not logits.is_cuda:
        is_masked = np.unpackbits(packed, axis=1, count=vocab_size, bitorder="little") == 0
        for row, found in zip(rows, is_masked, strict=True):
            np.copyto(logits[row].numpy(), -np.inf, where=found)
        return
    xp = arrays_on(logits.device)
    shifts = xp.arange(8, dtype=xp.uint8)
    unpacked = send_array(packed.copy(), logits.device)[:, :, None] >> shifts  # [n, bytes, 8]
    is_allowed = unpacked.bitwise_and_(1).view(len(rows), -1)[:, :vocab_size]
    index = send_array(np.array(rows, np.int64), logits.device)
    logits.index_copy_(0, index, logits.index_select(0, index).masked_fill_(is_allowed == 0, -np.inf))


def _grammar_bits(
    slice_: LogitsSlice, bad_word_ends: list[Ints], vocab_size: int, device: Device
) -> bytearray:
    """Return the masks of the slice that are not None, in whole bytes, bit i for token i."""
    everything = (1 << vocab_size) - 1
    num_bytes = -(-vocab_size // 8)
    has_suppressed = bool(slice_.span.sampling.suppressed_ids) and _is_early(slice_, 0)
    listed_bits = everything
    if has_suppressed:
        listed_bits &= token_lists_of(slice_.span.sampling.params, vocab_size, device).allowed_bits
    bits = bytearray()
    for index, mask in enumerate(slice_.masks):
        if mask is None:
            continue
        if len(mask) >= num_bytes and not has_suppressed:
            bits += mask[:num_bytes]
            continue
        allowed = int.from_bytes(mask, "little") & everything
        if has_suppressed and _is_early(slice_, index):
            others = listed_bits & ~_bits(bad_word_ends[index].tolist(), vocab_size)
            allowed = _suppress_ends(slice_, allowed, others, vocab_size)
        bits += allowed.to_bytes(num_bytes, "little")
    return bits


def _suppress_ends(slice_: LogitsSlice, allowed: int, others: int, vocab_size: int) -> int:
    """Return the tokens that a grammar allows before min_tokens. others: those that other settings allow.

    If only the model's own end tokens are left, the answer is complete and min_tokens is waived. A stop id
    of the client may also be text of the grammar, so it stays suppressed.
    """
    sampling = slice_.span.sampling
    going_on = allowed & ~_bits(sampling.suppressed_ids, vocab_size)
    return going_on if going_on & others else allowed & _bits(sampling.eos_ids, vocab_size)


def _bits(token_ids: Iterable[int], vocab_size: int) -> int:
    return sum(1 << token_id for token_id in {*token_ids} if token_id < vocab_size)


def _early_ends(slice_: LogitsSlice, index: int) -> list[int]:
    """Return the end tokens that are suppressed at this token: none if a grammar mask excludes them."""
    has_mask = bool(slice_.masks) and slice_.masks[index] is not None
    return [] if has_mask or not _is_early(slice_, index) else list(slice_.span.sampling.suppressed_ids)


def _is_early(slice_: LogitsSlice, index: int) -> bool:
    """Return whether the answer is still shorter than min_tokens."""
    sampling = slice_.span.sampling
    return slice_.first_position + index < sampling.prompt_len + sampling.params.min_tokens


def _bad_word_ends(slice_: LogitsSlice) -> list[Ints]:
    """Return the ids that would complete a bad word, for each token."""
    span, words = slice_.span, slice_.span.sampling.bad_words
    if not words or is_on_device(slice_):
        return [np.empty(0, np.int64)] * slice_.num_tokens
    index = _index_of(words)
    tokens = span.history + span.token_ids
    found = []
    for end in range(slice_.first_position, slice_.first_position + slice_.num_tokens):
        completed = [
            word[-1]
            for word in index.begun.get(tokens[end - 1], ())
            if tokens[max(0, end + 1 - len(word)) : end] == word[:-1]
        ]
        found.append(np.concatenate((index.single, np.array(completed, np.int64))))
    return found


@dataclass(frozen=True)
class _BadWordIndex:
    words: BadWords
    single: Ints  # words of one token
    begun: dict[int, list[tuple[int, ...]]]  # longer words by the token before the last


# By identity: comparing two lists would read them. The index keeps its list, so that an id is not
# reused.
_indices: dict[int, _BadWordIndex] = {}


def _index_of(words: BadWords) -> _BadWordIndex:
    """Return the index of a request's bad words. All tokens of a request share one list."""
    known = _indices.get(id(words))
    if known is None:
        begun: dict[int, list[tuple[int, ...]]] = {}
        for word in words:
            if len(word) > 1:
                begun.setdefault(word[-2], []).append(word)
        single = np.array([word[0] for word in words if len(word) == 1], np.int64)
        known = _BadWordIndex(words, single, begun)
        while _indices and sum(len(one.words) for one in _indices.values()) + len(words) > _MAX_INDEXED_WORDS:
            del _indices[next(iter(_indices))]
        _indices[id(words)] = known
    return known
