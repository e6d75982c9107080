"""What a client is told when something is wrong: a status, and OpenAI's nested error object. Never our insides.

400 invalid_request_error   a field, a prompt or a setting is wrong        404 not_found_error      no such route or model
401 authentication_error    no key, or a wrong one                         413, 415                 too large, not JSON
429 rate_limit_error        too many requests; Retry-After says when       500 server_error         a pass failed
503 overloaded_error        not up yet, or going down                      504 timeout_error        it took too long
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from holdfast.errors import (
    DeterminismRefused,
    EngineStopped,
    HoldfastError,
    PromptTooLong,
    RequestError,
    TemplateError,
)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """Ends a request with this status and this message."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _writable(message)
        self.param = None if param is None else _writable(param)
        self.code = code
        self.headers = dict(headers)

    def body(self) -> dict[str, Any]:
        """The JSON a client gets."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def said(self, message: str) -> "ApiError":
        """The same error in other words."""
        return ApiError(self.status, message, param=self.param, code=self.code, headers=self.headers)


def _writable(text: str) -> str:
    """Messages quote what clients sent, and half of a surrogate pair cannot be sent back."""
    return text.encode("utf-8", "backslashreplace").decode()


def to_api_error(error: HoldfastError) -> ApiError:
    """An error of the engine's, as a client is told of it."""
    message = str(error)
    if isinstance(error, PromptTooLong):
        return ApiError(400, message, code="context_length_exceeded")
    if isinstance(error, DeterminismRefused):
        return ApiError(400, message, param="deterministic", code="determinism_refused")
    if isinstance(error, TemplateError):
        return ApiError(400, message, param="messages", code="chat_template_failed")
    if isinstance(error, RequestError):
        return ApiError(400, message, code="invalid_value")
    if isinstance(error, EngineStopped):
        return ApiError(
            503, "the engine stopped; ask again", code="engine_stopped", headers={"Retry-After": "5"}
        )
    return internal_error()


def failed_answer(reason: str) -> ApiError:
    """An answer that ended in an error. What a pass raised is for the log, what the request itself did for the client."""
    if reason.startswith("guarantee_lost"):
        return ApiError(
            500,
            "the guarantee was lost: tokens that were sent already are not those of a verified pass; ask again",
            code="guarantee_lost",
        )
    if reason.startswith("a pass failed"):
        return ApiError(
            500, "the answer could not be computed; the server's log says why", code="pass_failed"
        )
    return ApiError(400, reason, code="answer_impossible")


def internal_error() -> ApiError:
    """For what must not happen. The log says what it was."""
    return ApiError(500, "something went wrong on the server; its log says what", code="internal_error")
