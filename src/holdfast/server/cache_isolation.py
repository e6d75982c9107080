"""Which cached pages a request may share: those of its tenant, and those of shared prompts.

`cached_tokens` and the time of an answer tell a client which prefixes are in the cache. So with API
keys every tenant has a cache of its own: its id is part of the salt of its requests, whatever
`cache_salt` they have themselves. Prompts that the operator names in a file (`--shared-prompts`) are
shared by all: the salt begins after them. A request with its own `cache_salt` shares nothing but the
pages of its tenant's requests with the same salt. Without keys nobody is told apart, and only
`cache_salt` separates.

No bit of an answer depends on it.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.server.tenants.tenant import Tenant


@dataclass(frozen=True)
class CacheScope:
    """The salt of a request, and how many tokens of its prompt come before the salt."""

    salt: str = ""
    shared_len: int = 0


class SharedPrompts:
    """The token ids of the prompts that all tenants share."""

    def __init__(self, prompts: Iterable[Sequence[int]] = ()) -> None:
        self._prompts = sorted({tuple(ids) for ids in prompts})

    def __len__(self) -> int:
        return len(self._prompts)

    def common_len(self, ids: Sequence[int]) -> int:
        """The length of the longest beginning that a prompt has in common with a shared one."""
        wanted = tuple(ids)
        place = bisect_left(self._prompts, wanted)  # in sorted order it is a neighbour
        return max(
            (common_len(known, wanted) for known in self._prompts[max(place - 1, 0) : place + 1]), default=0
        )


def common_len(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the longest common beginning."""
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)


def cache_scope(
    tenant: Tenant, cache_salt: str | None, prompt_ids: Sequence[int], shared: SharedPrompts
) -> CacheScope:
    """Where in the prefix cache a tenant's request looks for pages, and adds its own."""
    if not tenant.has_key:
        return CacheScope(cache_salt or "")
    salt = json.dumps([tenant.id, cache_salt or ""])
    return CacheScope(salt, 0 if cache_salt else shared.common_len(prompt_ids))
