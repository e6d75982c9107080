"""What a frontend and a replica tell each other besides the messages of `server.ipc.messages`.

    through Ray     RoutedRequest    the call of a request; its answer says that the request has ended
    over TCP        Hello            the first message of a frontend; then the messages of server.ipc

Outputs do not travel through Ray: an object a token and stream costs more than the step that made them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import HoldfastError
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


@dataclass
class RoutedRequest:
    """One call of an engine replica.

    message is an encoded `Submit`. fingerprint is what the replica must have; None: any. prefix are
    hashes of growing beginnings of the prompt, which only this process can compare. replica is the one
    that was chosen.
    """

    request_id: int
    message: bytes
    fingerprint: str | None
    prefix: tuple[int, ...] = ()
    avoid: frozenset[str] = frozenset()  # replicas at which the request failed
    replica: str = ""

    def __reduce__(self) -> "tuple[type[RoutedRequest], tuple[int, bytes, str | None]]":
        return RoutedRequest, (self.request_id, self.message, self.fingerprint)  # the replica needs no more


class NotHere(HoldfastError):
    """This replica cannot compute the request now; another one may."""

    code = "not_here"


def frontend_of(request_id: int) -> int:
    """The number of the frontend that sent a request."""
    return request_id >> FRONTEND_SHIFT


def prefix_hashes(prompt_ids: Sequence[int], scope: str) -> tuple[int, ...]:
    """Hashes of the first 64, 128, ... tokens within a cache's scope. Equal beginnings have equal hashes."""
    hashes, last = [], hash(scope)
    for begin in range(0, min(len(prompt_ids) - _BLOCK + 1, _BLOCK * _MAX_BLOCKS), _BLOCK):
        last = hash((last, tuple(prompt_ids[begin : begin + _BLOCK])))
        hashes.append(last)
    return tuple(hashes)
