"""Only a key opens the door, however the door is rattled."""

import base64

import pytest

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.middleware.api_keys import ApiKeyMiddleware
from holdfast.server.middleware.exceptions import ExceptionMiddleware
from support.asgi import ask, ok
from support.raw_http import Reply

KEYS = ("first-key", "second:key")


def reply(*authorization: str | bytes, path: str = "/v1/models", keys: tuple[str, ...] = KEYS) -> Reply:
    app = ExceptionMiddleware(ApiKeyMiddleware(ok, ServerConfig(api_keys=keys)))
    return ask(app, path=path, headers=[("Authorization", value) for value in authorization])


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
def test_a_key_opens(given: str) -> None:
    assert reply(given).body == b"yes"


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
def test_nothing_else_does(given: str | bytes) -> None:
    answer = reply(given)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.error["type"] == "authentication_error"
    assert "key" not in answer.headers["www-authenticate"]


def test_two_keys_at_once_are_none() -> None:
    assert reply("Bearer first-key", "Bearer first-key").status == 401


def test_without_a_key_one_is_told_how_to_send_it() -> None:
    answer = reply()
    assert (answer.status, answer.error["code"]) == (401, "missing_api_key")
    assert "Bearer" in answer.error["message"]


@pytest.mark.parametrize("path", ["/", "/inspector/events", "/inspector/app.js"])
def test_a_browser_is_asked_for_a_password(path: str) -> None:
    assert reply(path=path).headers["www-authenticate"] == 'Basic realm="holdfast"'


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
def test_every_other_route_needs_a_key(path: str) -> None:
    answer = reply(path=path)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_health_needs_none_and_no_keys_mean_nobody_is_asked() -> None:
    assert reply(path="/health").status == 200
    assert reply("Bearer wrong", path="/health").status == 200
    assert reply(keys=()).status == 200


def test_the_refusal_does_not_tell_which_key_was_tried() -> None:
    with pytest.raises(ApiError) as caught:
        ApiKeyMiddleware(ok, ServerConfig(api_keys=KEYS))._require_key(
            {"path": "/x", "headers": [(b"authorization", b"Bearer mine")]}
        )
    assert "mine" not in caught.value.message
