"""Requests without a valid API key are refused."""

import base64
import json

import pytest

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.middleware.api_keys import ApiKeyMiddleware
from holdfast.server.middleware.exceptions import ExceptionMiddleware
from holdfast.server.tenants.directory import TenantDirectory
from support.asgi import call_app, ok
from support.raw_http import HttpResponse

KEYS = ("first-key", "second:key")


def response(
    *authorization: str | bytes, path: str = "/v1/models", keys: tuple[str, ...] = KEYS
) -> HttpResponse:
    app = ExceptionMiddleware(ApiKeyMiddleware(ok, TenantDirectory(ServerConfig(api_keys=keys))))
    return call_app(app, path=path, headers=[("Authorization", value) for value in authorization])


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "given",
    [
        "Bearer first-key",
        "bearer first-key",
        "BEARER  first-key ",
        "Bearer second:key",
        basic("anybody:first-key"),
        basic(":second:key"),
        basic("ü:first-key"),
    ],
)
def test_valid_key_is_accepted(given: str) -> None:
    assert response(given).body == b"yes"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer first",
        "Bearer first-keyx",
        "Bearer FIRST-KEY",
        "Bearer first-key second:key",
        "Bearer first-key,",
        "Bearer \x00first-key",
        "Bearer ключ".encode(),
        b"Bearer \xff\xfe\xfd",
        "first-key",
        "Token first-key",
        "Digest username=first-key",
        "Basic first-key",
        "Basic %%%",
        "Basic ====",
        "Basic Zg",
        b"Basic \xff\xff\xff\xff",
        basic("first-key"),
        basic("first-key:"),
        basic("first-key:x"),
        basic("a:b:first-key"),
        "Bearer " + "x" * 30_000,
        basic("a:" + "x" * 20_000),
    ],
)
def test_invalid_authorization_is_refused(given: str | bytes) -> None:
    answer = response(given)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.error["type"] == "authentication_error"
    assert "key" not in answer.headers["www-authenticate"]


def test_two_authorization_headers_are_refused() -> None:
    assert response("Bearer first-key", "Bearer first-key").status == 401


def test_missing_key_error_says_how_to_send_it() -> None:
    answer = response()
    assert (answer.status, answer.error["code"]) == (401, "missing_api_key")
    assert "Bearer" in answer.error["message"]


@pytest.mark.parametrize("path", ["/", "/docs", "/inspector/events", "/inspector/app.js"])
def test_inspector_routes_ask_for_basic_authentication(path: str) -> None:
    assert response(path=path).headers["www-authenticate"] == 'Basic realm="holdfast"'


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/metrics",
        "/openapi.json",
        "/nothing",
        "/health/",
        "/healthz",
        "//health",
        "/health/../v1",
    ],
)
def test_every_other_route_requires_a_key(path: str) -> None:
    answer = response(path=path)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_health_is_public_and_no_keys_means_no_check() -> None:
    assert response(path="/health").status == 200
    assert response("Bearer wrong", path="/health").status == 200
    assert response(keys=()).status == 200


def test_error_does_not_quote_the_key() -> None:
    with pytest.raises(ApiError) as caught:
        ApiKeyMiddleware(ok, TenantDirectory(ServerConfig(api_keys=KEYS)))._require_key(
            {"path": "/x", "headers": [(b"authorization", b"Bearer mine")]}
        )
    assert "mine" not in caught.value.message


@pytest.mark.parametrize(
    ("headers", "is_accepted"),
    [
        ([("X-Api-Key", "first-key")], True),
        ([("x-api-key", " second:key ")], True),
        ([("X-Api-Key", "wrong"), ("Authorization", "Bearer first-key")], True),
        ([("X-Api-Key", "first-key"), ("Authorization", "Bearer wrong")], True),
        ([("X-Api-Key", "Bearer first-key")], False),
        ([("X-Api-Key", "")], False),
        ([("X-Api-Key", "first")], False),
        ([("X-Api-Key", "wrong"), ("Authorization", "Bearer wrong")], False),
        ([("X-Api-Key", "wrong"), ("X-Api-Key", "first-key")], False),
    ],
)
def test_key_in_the_header_of_anthropics_clients(headers: list[tuple[str, str]], is_accepted: bool) -> None:
    app = ExceptionMiddleware(ApiKeyMiddleware(ok, TenantDirectory(ServerConfig(api_keys=KEYS))))
    for path in ("/v1/messages", "/v1/chat/completions"):
        answer = call_app(app, path=path, headers=headers)
        assert answer.status == (200 if is_accepted else 401)


def test_missing_key_of_a_message_names_its_header() -> None:
    answer = response(path="/v1/messages")
    error = json.loads(answer.body)
    assert answer.status == 401 and error["type"] == "error"
    assert error["error"]["type"] == "authentication_error" and "X-Api-Key" in error["error"]["message"]
