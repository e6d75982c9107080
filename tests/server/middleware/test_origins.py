"""Web pages of other origins are refused, allowed ones get CORS headers, programs are unaffected."""

from typing import Any

import pytest

from holdfast.server.config import ServerConfig
from holdfast.server.errors import ApiError
from holdfast.server.middleware.exceptions import ExceptionMiddleware
from holdfast.server.middleware.origins import OriginMiddleware
from support.asgi import call_app, ok
from support.raw_http import HttpResponse

OURS = "127.0.0.1:8000"


def response(
    *origins: str | bytes,
    host: str | bytes | None = OURS,
    allowed: tuple[str, ...] = (),
    method: str = "POST",
    more: list[tuple[str, str]] | None = None,
    app: Any = ok,
    **settings: Any,
) -> HttpResponse:
    headers: list[tuple[str, str | bytes]] = [("Origin", origin) for origin in origins]
    headers += [] if host is None else [("Host", host)]
    config = ServerConfig(allowed_origins=allowed, **settings)
    return call_app(OriginMiddleware(app, config), method, "/v1/models", [*headers, *(more or [])])


def marks(answer: HttpResponse) -> list[str]:
    return [name for name in answer.headers if name.startswith("access-control")]


def test_request_without_origin_gets_no_cors_headers() -> None:
    answer = response()
    assert answer.status == 200
    assert not marks(answer)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://localhost:8000", "LOCALHOST:8000"),
        ("http://localhost", "localhost"),
        ("https://localhost", "localhost"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_same_origin_gets_no_cors_headers(origin: str, host: str) -> None:
    answer = response(origin, host=host)
    assert answer.status == 200
    assert not marks(answer)


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:8001",
        "ftp://127.0.0.1:8000",
        "http://localhost:8000",
        "http://127.0.0.1:8000.evil.example",
        "http://127.0.0.1:8000@evil.example",
        "http://127.0.0.1:x",
        "null",
        "",
        b"\xff\xfe",
        "http://evil.example, http://127.0.0.1:8000",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
def test_other_origins_are_refused(origin: str | bytes, method: str) -> None:
    answer = response(origin, method=method)
    assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
    assert not marks(answer)


def test_origin_without_host_is_refused() -> None:
    assert response("http://127.0.0.1:8000", host=None).status == 403


def test_two_origin_headers_are_refused() -> None:
    assert response("http://127.0.0.1:8000", "http://127.0.0.1:8000").status == 403
    assert response("http://a.example", "http://a.example", allowed=("*",)).status == 403


@pytest.mark.parametrize("origin", ["https://App.example", "https://app.example"])
def test_allowed_origin_gets_cors_headers(origin: str) -> None:
    answer = response(origin, allowed=("https://app.example/",))
    assert answer.body == b"yes"
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["vary"] == "Origin"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    assert response("https://other.example", allowed=("https://app.example",)).status == 403
    assert response("http://app.example", allowed=("https://app.example",)).status == 403


def test_allowed_origin_gets_cors_headers_on_errors() -> None:
    async def refuse(*_: Any) -> None:
        raise ApiError(401, "no")

    answer = response(
        "https://app.example", allowed=("https://app.example",), app=ExceptionMiddleware(refuse)
    )
    assert answer.status == 401
    assert answer.headers["access-control-allow-origin"] == "https://app.example"


def test_star_allows_every_origin() -> None:
    assert response("https://any.example", allowed=("*",)).headers["access-control-allow-origin"] == "*"
    assert response("null", allowed=("*",)).status == 200


def preflight(origin: str, wanted: str, **settings: Any) -> HttpResponse:
    async def unreachable(*_: Any) -> None:
        raise AssertionError("a preflight carries no key, so no route may see it")

    more = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", wanted)]
    return response(origin, method="OPTIONS", more=more, app=unreachable, **settings)


def test_preflight_is_answered_for_allowed_origins_only() -> None:
    answer = preflight(
        "https://app.example", "authorization, x-stainless-os", allowed=("https://app.example",)
    )
    assert answer.status == 200
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert preflight("https://other.example", "x", allowed=("https://app.example",)).status == 403


def test_options_without_preflight_reaches_the_routes() -> None:
    assert response("https://app.example", method="OPTIONS", allowed=("https://app.example",)).body == b"yes"
    assert response(method="OPTIONS").body == b"yes"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        b"\xff",
        "a@127.0.0.1",
    ],
)
def test_dns_rebinding_is_refused(host: str | bytes) -> None:
    """The page's host name resolves to this server, so the browser regards it as the same origin."""
    answer = response(b"http://" + (host if isinstance(host, bytes) else host.encode()), host=host)
    assert answer.error["code"] == "host_not_allowed"
    assert response(host=host, method="GET").status == 403


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "localhost", "app.localhost", "[::1]:8000", "192.168.1.7:8000", None],
)
def test_addresses_and_localhost_are_accepted_hosts(host: str | None) -> None:
    assert response(host=host).status == 200


def test_host_is_checked_only_on_loopback_without_keys() -> None:
    assert response(host="llm.example").status == 403
    assert response(host="llm.example", allowed=("https://llm.example",)).status == 200
    assert response(host="llm.example", allowed=("*",)).status == 200
    assert response(host="llm.example", api_keys=("k",)).status == 200
    app = OriginMiddleware(ok, ServerConfig(host="0.0.0.0"))
    assert call_app(app, headers=[("Host", "llm.example")]).status == 200
    assert call_app(app, headers=[("Host", "llm.example"), ("Origin", "https://llm.example")]).status == 200


IMAGE = [("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "image")]
LINK = [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")]
FRAME = [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe")]


def fetched(
    site: str, how: list[tuple[str, str]], path: str, method: str = "GET", **settings: Any
) -> HttpResponse:
    headers = [("Host", OURS), ("Sec-Fetch-Site", site), *how]
    return call_app(OriginMiddleware(ok, ServerConfig(**settings)), method, path, headers)


@pytest.mark.parametrize("path", ["/inspector/events", "/", "/v1/completions", "/metrics"])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "unheard-of"])
def test_request_that_another_site_caused_is_refused_without_origin(site: str, path: str) -> None:
    for how, method in ((IMAGE, "GET"), (FRAME, "GET"), (LINK, "POST"), ([], "GET")):
        answer = fetched(site, how, path, method)
        assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
        assert fetched(site, how, path, method, api_keys=("k",)).status == 403


def test_link_of_another_site_opens_a_page_but_watches_nothing() -> None:
    assert fetched("cross-site", LINK, "/").status == 200
    assert fetched("cross-site", LINK, "/docs").status == 200
    assert fetched("cross-site", LINK, "/inspector/events").status == 403


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_own_page_and_typed_address_are_accepted(site: str) -> None:
    for how in (IMAGE, LINK):
        assert fetched(site, how, "/inspector/events").status == 200


def test_star_allows_requests_without_origin() -> None:
    assert fetched("cross-site", IMAGE, "/inspector/events", allowed_origins=("*",)).status == 200
    assert fetched("cross-site", IMAGE, "/", allowed_origins=("https://app.example",)).status == 403
