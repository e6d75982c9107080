"""When an answer ends. Pure functions over committed tokens and their text.

A candidate never ends an answer. If it looks like a stop, its window is verified early
(`looks_final`).
"""

from collections.abc import Collection, Sequence
from typing import Literal

from holdfast.core.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


def is_stop_token(token_id: int, params: SamplingParams, eos_ids: Collection[int]) -> bool:
    """Return whether this token ends an answer, min_tokens aside."""
    return token_id in params.stop_ids or (not params.ignore_eos and token_id in eos_ids)


def finish_reason(
    token_id: int, num_output: int, text_stopped: bool, params: SamplingParams, eos_ids: Collection[int]
) -> FinishReason | None:
    """Return why the answer ends with this token, its num_output-th, or None if it continues.

    A stop token before min_tokens is sampled only if the grammar allows no other token. It ends the
    answer, too.
    """
    may_end = num_output >= params.min_tokens or params.structured is not None
    if may_end and is_stop_token(token_id, params, eos_ids):
        return "stop"
    if num_output >= params.min_tokens and text_stopped:
        return "stop"
    return "length" if num_output >= params.max_tokens else None


def looks_final(token_id: int, num_output: int, params: SamplingParams, eos_ids: Collection[int]) -> bool:
    """Return whether a candidate that would be the num_output-th token should be verified early."""
    return num_output + 1 >= params.max_tokens or is_stop_token(token_id, params, eos_ids)


def find_stop(text: str, searched_len: int, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return the earliest stop string in text and where it starts. The first searched_len characters
    contain no whole one. Of two that start together, the first in the list is taken."""
    found: tuple[int, str] | None = None
    for stop in stops:
        at = text.find(stop, max(0, searched_len - len(stop) + 1))
        if at >= 0 and (found is None or at < found[0]):
            found = at, stop
    return found


def held_back_len(text: str, stops: Sequence[str]) -> int:
    """Return how many characters at the end of text may be the start of a stop string, and so cannot be
    shown yet."""
    longest = 0
    for stop in stops:
        first = max(0, len(text) - len(stop) + 1)
        while (at := text.find(stop[0], first, len(text) - longest)) >= 0:
            if stop.startswith(text[at:]):
                longest = len(text) - at
                break
            first = at + 1
    return longest
