"""How scarce things are shared between holders: the one formula for what is held (places, pages, tokens of a
step), and what a token counts as."""

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.core.sampling_params import SamplingParams

MAX_COST = 8  # half a reference pass on a CPU: a holder's prompts go on beside its dearest token
_LISTED = 512  # biases, bad words and listed ids that cost as much as a token
_STOP_CHARS = 4096  # of all stop strings
_ALTERNATIVES = 10  # top logprobs


@dataclass(frozen=True)
class Share:
    """Whose share of the engine a request uses. Holders get equal shares while it is busy.

    holder is an opaque name. max_running: how many requests of this holder may run at once. is_background:
    its requests use what those of other holders leave, such as those of a batch.
    """

    holder: str = ""
    max_running: int | None = None
    is_background: bool = False


def equal_level(demands: Collection[int], total: int) -> int:
    """Return the max-min fair level: a demand up to it is met in full, a larger one gets the level."""
    left, num = total, len(demands)
    for demand in sorted(demands):
        if demand * num > left:
            return left // num
        left -= demand
        num -= 1
    return total


def sampled_cost(params: SamplingParams) -> int:
    """Return the tokens that a sampled token counts as: more than one if its settings cost more than the
    model does."""
    num_listed = len(params.biases) + len(params.bad_ids) + len(params.bad_texts)
    num_listed += len(params.allowed_ids or ())
    cost = 1 + params.penalises + (params.structured is not None)
    cost += -(-num_listed // _LISTED) + -(-sum(map(len, params.stop_strings)) // _STOP_CHARS)
    return min(MAX_COST, cost + -(-(params.logprobs or 0) // _ALTERNATIVES))


def prompt_cost(*, num_logprobs: int | None, is_pooled: bool) -> int:
    """Return the tokens that a prompt's token counts as. num_logprobs: the alternatives that are asked
    for; None: its logprob is not."""
    scored = 0 if num_logprobs is None else 1 + -(-num_logprobs // _ALTERNATIVES)
    return min(MAX_COST, 1 + scored + is_pooled)
