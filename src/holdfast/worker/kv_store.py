"""The tensors of the KV cache. Which page holds what is decided in `kv_cache`."""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from holdfast.errors import ConfigError
from holdfast.models.config import DecoderConfig
from holdfast.numerics.arrays import DType, arrays_on
from holdfast.numerics.forward_batch import KVLayer, StateLayer
from holdfast.numerics.ops import Backend
from holdfast.worker.transfer import send_array

DEFAULT_LOG_LEN = 64


NUM_SCRATCH_STATES = 4  # slots that certification uses, after those of requests


def page_bytes(config: DecoderConfig, dtype: DType, page_size: int, *, extra: int = 0) -> int:
    """Return the bytes of one page: keys and values in every layer with attention, and `extra` bytes a slot."""
    slot = config.num_attention_layers * 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
    return (slot + extra) * page_size


def state_bytes(config: DecoderConfig, dtype: DType, log_len: int) -> int:
    """Return the bytes of the recurrent states of one request: in fp32, and the log of their inputs."""
    if config.mixer is None:
        return 0
    layer = 4 * prod(config.mixer.state_shape) + log_len * config.mixer.log_width * dtype.itemsize
    return config.num_recurrent_layers * layer


def log_len_for(config: DecoderConfig, num_uncertain: int) -> int:
    """Return the entries of a recurrent layer's log: the positions that may be rolled back, and those that the
    convolution reads before."""
    return 0 if config.mixer is None else -(-(num_uncertain + config.mixer.kernel) // 8) * 8


def num_pages_in(budget: int, config: DecoderConfig, dtype: DType, page_size: int, *, extra: int = 0) -> int:
    """Return how many pages fit in a budget of bytes."""
    one = page_bytes(config, dtype, page_size, extra=extra)
    num_pages = budget // max(1, one)
    if num_pages < 1:
        raise ConfigError(
            f"kv_memory of {budget} bytes does not hold one page of {page_size} positions, "
            f"which takes {one} bytes for this model; raise kv_memory"
        )
    return num_pages


class KVStore:
    """Keys and values of all layers with attention, and the states of recurrent layers, in the backend's
    layout. Slots are zero until written.

    `kv` holds the pages of the first layer with attention, then those of the next one, and so on; `states`
    likewise the slots of recurrent layers: those of requests, then NUM_SCRATCH_STATES others. `layers` are views
    of both, one for each layer of the decoder.
    """

    def __init__(
        self,
        num_pages: int,
        config: DecoderConfig,
        backend: Backend,
        num_states: int = 1,
        log_len: int = DEFAULT_LOG_LEN,
    ) -> None:
        heads, dim = config.num_kv_heads, config.head_dim
        self.num_pages, self.num_states = num_pages, num_states
        self.num_kv_layers = config.num_attention_layers
        self._num_slots = num_states + NUM_SCRATCH_STATES
        self.states: StateLayer | None = None
        # Positions after a checkpoint that a log holds, beside those that the convolution reads before it.
        self.num_uncertain = 0 if config.mixer is None else log_len - config.mixer.kernel + 1
        try:
            self.kv = backend.new_kv_layer(num_pages * max(1, self.num_kv_layers), heads, dim)
            if config.mixer is not None:
                count = self._num_slots * config.num_recurrent_layers
                self.states = backend.new_state_layer(count, log_len, config.mixer)
        except (MemoryError, arrays_on(backend.device).OutOfMemoryError) as error:
            raise ConfigError(
                f"the KV cache of {num_pages} pages of {backend.page_size} positions cannot be allocated; lower kv_memory"
            ) from error
        self.layers = tuple(self._views(config))

    @property
    def scratch_states(self) -> tuple[int, ...]:
        """The slots of states that no request uses; none if no layer is recurrent."""
        return () if self.states is None else tuple(range(self.num_states, self._num_slots))

    def _views(self, config: DecoderConfig) -> Iterator[KVLayer]:
        page = slot = 0
        for layer in range(config.num_layers):
            keys, values, states = self.kv.keys[:0], self.kv.values[:0], None
            if config.has_attention(layer):
                some = slice(page, page + self.num_pages)
                keys, values = self.kv.keys[some], self.kv.values[some]
                page += self.num_pages
            if config.mixer_sizes(layer) is not None and self.states is not None:
                some = slice(slot, slot + self._num_slots)
                states = StateLayer(self.states.state[some], self.states.log[some])
                slot += self._num_slots
            yield KVLayer(keys, values, states)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the states of slots, (from, to) each, in every layer."""
        if self.states is None or not pairs:
            return
        sources, targets = send_array(np.array(pairs, np.int64).T.copy(), self.states.state.device)
        for tensor in (self.states.state, self.states.log):
            of_layers = tensor.view(len(tensor) // self._num_slots, self._num_slots, *tensor.shape[1:])
            of_layers[:, targets] = of_layers[:, sources]
