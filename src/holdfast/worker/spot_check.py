"""Spot checks of a certificate: a reference pass computes tokens of a certified pass again.

The second pass writes into scratch pages, so the request is not disturbed. Keys and values in every
layer, the checksums of the logits, and what a `PassExtension` keeps must have the same bits. There is
no tolerance. The comparison runs on the device and is read later.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from holdfast.core.step_plan import Pass
from holdfast.models.decoder import Decoder
from holdfast.numerics.arrays import Device, Tensor, arrays_on
from holdfast.numerics.bits import bits_of
from holdfast.worker.extension import PassExtension
from holdfast.worker.kv_store import KVStore
from holdfast.worker.logits import max_logits_tokens
from holdfast.worker.transfer import HostCopies, send_array


class SpotCheck:
    """One check: where its tokens' keys and values were written, and where they are written again."""

    def __init__(
        self, pass_: Pass, store: KVStore, page_size: int, extension: PassExtension | None = None
    ) -> None:
        (span,) = pass_.spans
        assert len(pass_.logits_checksums) == span.num_sampled
        num_shared = len(span.pages) - len(pass_.original_pages)
        assert num_shared * page_size <= span.start < span.stop <= len(span.pages) * page_size
        self._pass, self._span, self._num_layers = pass_, span, store.num_kv_layers
        self._kv = store.kv
        self._extra = None if extension is None else extension.check(pass_, page_size)
        positions = np.arange(span.start, span.stop)
        pages = positions // page_size - num_shared
        scratch, original = np.array(span.pages[num_shared:]), np.array(pass_.original_pages)
        layers = np.arange(self._num_layers)[:, None] * store.num_pages  # where the pages of each layer begin
        device = self._kv.keys.device
        whole_pages = np.stack([(layers + each).reshape(-1) for each in (scratch, original)])
        self._scratch_pages, self._original_pages = send_array(whole_pages, device)  # [layers * pages]
        slots = [np.broadcast_to(positions % page_size, (self._num_layers, len(positions)))]
        slots += [layers + scratch[pages], layers + original[pages]]
        numbers = np.stack([each.reshape(-1) for each in slots])
        self._offsets, self._scratch, self._originals = send_array(numbers, device)  # [layers * tokens]

    def prepare(self) -> None:
        """Copy whole pages, for the slots before the first token. In the tokens' own slots flip one bit of
        every number, so that a slot the pass does not write is found."""
        for tensor in (self._kv.keys, self._kv.values):
            tensor[self._scratch_pages] = tensor[self._original_pages]
        if self._extra is not None:
            self._extra.prepare()
        keys, values = bits_of(self._kv.keys), bits_of(self._kv.values)
        keys[self._scratch, :, :, self._offsets] ^= 1
        values[self._scratch, :, self._offsets] ^= 1

    def compare(self, decoder: Decoder, hidden: Tensor, copies: HostCopies) -> Callable[[], str | None]:
        """Compare after the pass, by the hidden states of its sampled tokens. Return a function that reads
        where the bits differ first, or None."""
        span = self._span
        extra = None if self._extra is None else self._extra.compare(copies)
        differs = copies.add(self._differences())  # bool [2, layers, tokens]
        xp = arrays_on(hidden.device)
        found = [
            copies.add(logits_checksums(decoder.logits(some, canonical=True)))
            for some in (xp.split(hidden, max_logits_tokens(hidden.device)) if len(hidden) else ())
        ]

        def read() -> str | None:
            for layer, kind, index in np.argwhere(differs.numpy().swapaxes(0, 1))[:1].tolist():
                return f"{('keys', 'values')[kind]} of layer {layer} at position {span.start + index}"
            if extra is not None and (problem := extra()) is not None:
                return problem
            checksums = [number for some in found for number in some.tolist()]
            pairs = zip(checksums, self._pass.logits_checksums, strict=True)
            for index, (again, first) in enumerate(pairs, span.sample_from):
                if again != first:
                    return f"logits at position {span.start + index}"
            return None

        return read

    def _differences(self) -> Tensor:
        keys, values = bits_of(self._kv.keys), bits_of(self._kv.values)
        pairs = (  # each [layers * tokens, kv_heads, head_dim]
            (keys[self._scratch, :, :, self._offsets], keys[self._originals, :, :, self._offsets]),
            (values[self._scratch, :, self._offsets], values[self._originals, :, self._offsets]),
        )
        differs = arrays_on(keys.device).stack([(again != first).flatten(1).any(1) for again, first in pairs])
        return differs.view(2, self._num_layers, -1)


def logits_checksums(logits: Tensor) -> Tensor:
    """Return one number for each row of the logits, contiguous fp32 [n, vocab]: int64 [n].

    It is the same in any order of summation, and another one if any single bit differs: each bit pattern
    is multiplied by an odd number of its column, modulo 2^32, which loses no bit; pairs of products are
    summed modulo 2^64. Different factors keep differences of opposite sign from cancelling.
    """
    xp = arrays_on(logits.device)
    products = logits.view(xp.int32) * _factors(logits.shape[1], logits.device)  # [n, vocab]
    if products.shape[1] % 2:
        products = xp.cat((products, products[:, :1] * 0), 1)
    return products.view(xp.int64).sum(1)


@lru_cache(maxsize=4)
def _factors(count: int, device: Device) -> Tensor:
    """Return pseudo-random odd int32 numbers, [count]."""
    places = np.arange(1, count + 1)
    mixed = (places * 0x9E3779B1) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x85EBCA6B) & 0xFFFFFFFF
    odd = (mixed ^ (mixed >> 13)) | 1
    return arrays_on(device).from_numpy(odd.astype(np.uint32).view(np.int32))
