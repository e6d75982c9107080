"""Shares of the engine between tenants, as pure decisions. With one tenant nothing is limited.

The time of a pass of n tokens is about that of reference_tokens + n tokens: below the reference's
batch size a pass takes as long as reading the weights does. Shares are fair in this measure, not in
seconds: no clock decides a plan. A token whose settings cost more than the model does counts as
several (`sampled_cost`, `prompt_cost`).

Of N tenants, the one with the least work in a step has w tokens in it. Every other one adds at most
reference_tokens + w, so the step takes at most N times as long as without them; and each of these is
computed at no less than 1/N of the speed it would have alone. So k hostile tenants slow another one
down by a factor of at most k + 1.
"""

from collections.abc import Collection, Mapping

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.shares import equal_level

MAX_COST = 8  # half a reference pass on a CPU: a tenant's prompts go on beside its dearest token
_LISTED = 512  # biases, bad words and listed ids that cost as much as a token
_STOP_CHARS = 4096  # of all stop strings
_ALTERNATIVES = 10  # top logprobs


def sampled_cost(params: SamplingParams) -> int:
    """The tokens that a sampled token counts as."""
    num_listed = len(params.biases) + len(params.bad_ids) + len(params.bad_texts)
    num_listed += len(params.allowed_ids or ())
    cost = 1 + params.penalises + (params.structured is not None)
    cost += -(-num_listed // _LISTED) + -(-sum(map(len, params.stop_strings)) // _STOP_CHARS)
    return min(MAX_COST, cost + -(-(params.logprobs or 0) // _ALTERNATIVES))


def prompt_cost(*, num_logprobs: int | None, is_pooled: bool) -> int:
    """The tokens that a prompt's token counts as. num_logprobs: alternatives that are asked for;
    None: its logprob is not."""
    scored = 0 if num_logprobs is None else 1 + -(-num_logprobs // _ALTERNATIVES)
    return min(MAX_COST, 1 + scored + is_pooled)


def token_quota(demands: Collection[int], budget: int, reference_tokens: int, *, is_padded: bool) -> int:
    """The tokens that each tenant may add to a step, if the tenants have so many to compute.

    is_padded: a pass of the step is padded to a multiple of the reference's batch size, so a quota
    that is not a multiple would cost as much as the next one that is.
    """
    if len(demands) < 2:
        return budget
    most = reference_tokens + min(demands)
    if is_padded:
        most -= most % reference_tokens
    return max(1, min(equal_level(demands, budget), most))


class TokenShares:
    """What each tenant may still add to the step that is being planned."""

    def __init__(
        self, demands: Mapping[str, int], budget: int, reference_tokens: int, *, is_padded: bool
    ) -> None:
        self.is_shared = len(demands) > 1
        self._unlimited = budget
        quota = token_quota(demands.values(), budget, reference_tokens, is_padded=is_padded)
        self._left = dict.fromkeys(demands, quota) if self.is_shared else {}

    def left(self, tenant: str) -> int:
        return self._left.get(tenant, 0) if self.is_shared else self._unlimited

    def num_left(self, tenant: str, cost: int) -> int:
        """How many tokens of this cost the tenant may add: at least one if anything is left."""
        left = self.left(tenant)
        return max(left // cost, min(left, 1)) if self.is_shared else left

    def take(self, tenant: str, num_tokens: int, cost: int = 1) -> None:
        if self.is_shared:
            self._left[tenant] -= num_tokens * cost


def num_decode_tokens(quota: int, *, has_prefill: bool) -> int:
    """How much of its quota a tenant spends on decoding first: a quarter is left for its prompts."""
    return quota - quota // 4 if has_prefill else quota
