"""What a frontend and a replica tell each other besides the messages of `server.ipc.messages`.

    over TCP        Hello            the first message of a frontend; then the messages of server.ipc
    through Ray     RoutedRequest    the call of a request that was accepted; it is open until the request ends

Requests and outputs do not travel through Ray: its call takes longer than a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from holdfast.server.ipc import messages as m

FRONTEND_SHIFT = 32  # a request id has the frontend's number in its upper bits; JavaScript keeps 53 bits
FRONTEND_BITS = 20
_BLOCK = 64  # tokens
_MAX_BLOCKS = 256


class Hello(m.Message, frozen=True):
    """A frontend introduces itself. The secret is the replica's, and came through Ray.

    token is random: a frontend that connects again has the same number and the same token.
    """

    secret: str
    frontend: int
    token: str


class RequestHead(msgspec.Struct, frozen=True):
    """As much of a `Request` as a replica reads."""

    request_id: int


class SubmitHead(m.Message, frozen=True, tag="Submit"):
    """A `Submit`, as a replica reads it before it forwards the message."""

    request: RequestHead


@dataclass
class RoutedRequest:
    """The call of a request that a replica has accepted: so Ray counts it there.

    is_routed: this replica has taken the call.
    """

    request_id: int
    replica: str
    is_routed: bool = False


def frontend_of(request_id: int) -> int:
    """Return the number of the frontend that sent a request."""
    return request_id >> FRONTEND_SHIFT


def prefix_hashes(prompt_ids: Sequence[int], scope: str) -> tuple[int, ...]:
    """Hash the first 64, 128, ... tokens within a cache's scope. Equal beginnings have equal hashes."""
    hashes, last = [], hash(scope)
    for begin in range(0, min(len(prompt_ids) - _BLOCK + 1, _BLOCK * _MAX_BLOCKS), _BLOCK):
        last = hash((last, tuple(prompt_ids[begin : begin + _BLOCK])))
        hashes.append(last)
    return tuple(hashes)
