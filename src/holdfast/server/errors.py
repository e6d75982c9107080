"""Errors as clients receive them: an HTTP status and OpenAI's nested error object, or Anthropic's on
its routes.

Internals are never exposed.

400 invalid_request_error   a field or the prompt is invalid               404 not_found_error      no such route or model
401 authentication_error    no API key, or a wrong one                     413, 415                 too large, not JSON
429 rate_limit_error        too many requests; see Retry-After             500 server_error         a pass failed
503 overloaded_error        starting or shutting down                      504 timeout_error        it took too long
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from holdfast.errors import (
    AnswerEnded,
    AnswerFailed,
    DeterminismRefused,
    EngineCrashed,
    EngineStopped,
    GuaranteeLost,
    NotFinite,
    NoTokenAllowed,
    NotReady,
    PassFailed,
    RequestError,
    TemplateError,
    TooBusy,
)

_PARAMS = {
    AnswerEnded.code: "token_ids",
    DeterminismRefused.code: "deterministic",
    TemplateError.code: "messages",
}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = {**_TYPES, 408: "timeout_error", 413: "request_too_large", 500: "api_error"}
_ANTHROPIC_ROUTES = "/v1/messages"

# Regular expressions of field names in messages, and the names another API has for them.
ErrorWords = Sequence[tuple[str, str]]


def is_anthropic(path: str) -> bool:
    return path == _ANTHROPIC_ROUTES or path.startswith(f"{_ANTHROPIC_ROUTES}/")


class ApiError(Exception):
    """Ends a request with this status and message."""

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
        self.message = _escape_surrogates(message)
        self.param = None if param is None else _escape_surrogates(param)
        self.code = code
        self.headers = dict(headers)

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic_body(self, request_id: str | None) -> dict[str, Any]:
        """The JSON body of the response of a route of Anthropic's API."""
        kind = _ANTHROPIC_TYPES.get(
            self.status, "api_error" if self.status >= 500 else "invalid_request_error"
        )
        error: dict[str, Any] = {"type": kind, "message": self.message}
        if self.code is not None:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error, "request_id": request_id}

    def body_for(self, path: str, request_id: str | None) -> dict[str, Any]:
        return self.anthropic_body(request_id) if is_anthropic(path) else self.body()

    def in_words(self, words: "ErrorWords") -> "ApiError":
        """The same error with the field names of another API."""
        message, param = self.message, self.param
        for pattern, name in words:
            message = re.sub(pattern, name, message)
            param = None if param is None else re.sub(pattern, name, param)
        return ApiError(self.status, message, param=param, code=self.code, headers=self.headers)


def invalid_value(param: str, why: str) -> ApiError:
    """A value of this field that cannot be used."""
    return ApiError(400, f"Invalid '{param}': {why}", param=param, code="invalid_value")


@contextmanager
def errors_in_words(words: ErrorWords) -> Iterator[None]:
    """Errors from inside have the field names of another API."""
    try:
        yield
    except (ApiError, RequestError) as error:
        raise to_api_error(error).in_words(words) from None


def _escape_surrogates(text: str) -> str:
    """Messages quote input of clients; a lone surrogate in it cannot be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def to_api_error(error: BaseException) -> ApiError:
    """What a client is sent for any error. One that is no `HoldfastError` is a bug in the server."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=_PARAMS.get(error.code), code=error.code)
    if isinstance(error, NotReady | TooBusy):
        headers = {"Retry-After": str(error.retry_after)}
        if error.code == "shutting_down":
            headers["Connection"] = "close"
        status = 503 if isinstance(error, NotReady) else 429
        return ApiError(status, str(error), code=error.code, headers=headers)
    if isinstance(error, EngineStopped):
        return ApiError(
            503, "the engine stopped; send the request again", code=error.code, headers={"Retry-After": "5"}
        )
    if isinstance(error, GuaranteeLost):
        message = (
            "the determinism guarantee was lost: tokens that were already sent differ from the verified ones; "
            "send the request again"
        )
        return ApiError(500, message, code=error.code)
    if isinstance(error, EngineCrashed | NotFinite):
        return ApiError(500, str(error), code=error.code)
    if isinstance(error, NoTokenAllowed):  # what the request itself caused
        return ApiError(400, str(error), code=error.code)
    if isinstance(error, AnswerFailed):  # the message is for the log only
        message = "the completion could not be computed; see the server's log"
        return ApiError(500, message, code=PassFailed.code)
    return internal_error()


def internal_error() -> ApiError:
    """For a bug in the server. The log has the traceback."""
    return ApiError(500, "internal server error; see the server's log", code="internal_error")
