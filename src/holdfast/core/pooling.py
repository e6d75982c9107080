"""Pooling: how the hidden states of a prompt become one embedding.

A hidden state is the output of the last norm, which the LM head would read. `last` takes that of the
last token. `mean` is the mean over all tokens: a sum in double precision in the order of positions,
so it does not depend on how the prompt was split into passes. Then the embedding is rounded to fp32,
truncated to `dimensions` and divided by its Euclidean norm.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from holdfast.core.sampling_params import show
from holdfast.errors import InvalidRequest

PoolingType = Literal["last", "mean"]
POOLING_TYPES: tuple[PoolingType, ...] = get_args(PoolingType)


@dataclass(frozen=True)
class Pooling:
    """What an embedding is made of. dimensions: keep only the first ones; None: all."""

    type: PoolingType = "last"
    normalize: bool = True
    dimensions: int | None = None

    def __post_init__(self) -> None:
        if self.type not in POOLING_TYPES:
            raise InvalidRequest(f"pooling must be one of {', '.join(POOLING_TYPES)}, not {show(self.type)}")
        if not isinstance(self.normalize, bool):
            raise InvalidRequest(f"normalize must be true or false, not {show(self.normalize)}")
        if self.dimensions is not None and (type(self.dimensions) is not int or self.dimensions < 1):
            raise InvalidRequest(f"dimensions must be a whole number from 1, not {show(self.dimensions)}")

    def first_position(self, prompt_len: int) -> int:
        """Return the first position whose hidden state is pooled. All later ones of the prompt are, too."""
        return 0 if self.type == "mean" else prompt_len - 1


def truncate_ids(ids: Sequence[int], limit: int | None, max_model_len: int) -> Sequence[int]:
    """Return the first `limit` ids, as vLLM truncates prompts to embed. -1 means as many as fit the context."""
    if limit is None:
        return ids
    if type(limit) is not int or limit < -1 or limit == 0:
        raise InvalidRequest(f"truncate_prompt_tokens must be -1 or a number from 1, not {show(limit)}")
    return ids[: max_model_len if limit == -1 else limit]


class HiddenStates(Protocol):
    """The hidden states of consecutive tokens, as the worker returns them. It computes with them,
    under the numeric settings of a pass."""

    def add_to(self, total: "array[float] | None", num_states: int) -> "array[float]":
        """Add the first num_states of them, one by one, to a running sum in double precision."""

    def finish(self, total: "array[float]", count: int, pooling: Pooling) -> bytes | None:
        """Return the embedding, fp32 in little-endian order, of a sum over count states. None if it has
        infinite or undefined numbers."""
