"""The access log: one line a request, when it is over. It never holds a prompt, an answer or a key."""

import logging
from dataclasses import asdict, dataclass

_log = logging.getLogger("holdfast.access")


@dataclass
class Access:
    """What is known of a request; filled in as it becomes known, and what stays None is left out.

    route is the route's own pattern, or the path where there is none, without the query. mode is how the answer was made:
    certified, verified or none.
    """

    route: str
    status: int = 0
    request_id: str | None = None
    client: str | None = None  # the address alone
    deterministic: bool | None = None
    mode: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_token_ms: float | None = None
    total_ms: float | None = None
    finish_reason: str | None = None
    error: str | None = None  # its code

    def write(self) -> None:
        """Log it; what went wrong on our side is a warning."""
        fields = asdict(self)
        for name in ("first_token_ms", "total_ms"):
            if fields[name] is not None:
                fields[name] = round(fields[name], 1)
        level = logging.WARNING if self.status >= 500 else logging.INFO
        _log.log(level, "request", extra=fields)
