"""Requests without a valid API key are refused. Every other one has a tenant: that of its key, else that of its address."""

import base64
import json
from typing import Any

import pytest
from starlette.requests import Request

from holdfast.server.config import ServerConfig
from holdfast.server.middleware.exceptions import ExceptionMiddleware
from holdfast.server.middleware.request_log import RequestLogMiddleware
from holdfast.server.middleware.tenant import TenantMiddleware
from holdfast.server.tenants.directory import TenantDirectory
from holdfast.server.tenants.tenant import Tenant, address_tenant, key_tenant, tenant_of
from support.asgi import call_app, ok
from support.raw_http import HttpResponse

KEYS = ("first-key", "second:key")


def response(
    *authorization: str | bytes, path: str = "/v1/models", keys: tuple[str, ...] = KEYS
) -> HttpResponse:
    app = ExceptionMiddleware(TenantMiddleware(ok, TenantDirectory(ServerConfig(api_keys=keys))))
    return call_app(app, path=path, headers=[("Authorization", value) for value in authorization])


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "given",
    [
        "Bearer first-key",
        "bearer first-key",
        "Bearer second:key",
        basic("anybody:first-key"),
        basic(":second:key"),
    ],
)
def test_valid_key_is_accepted(given: str) -> None:
    assert response(given).body == b"yes"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer first",
        "Bearer \x00first-key",
        "Bearer ключ".encode(),
        "first-key",
        b"Basic \xff\xff\xff\xff",
        basic("first-key:"),
        basic("a:b:first-key"),
        "Bearer " + "x" * 30_000,
    ],
)
def test_invalid_authorization_is_refused(given: str | bytes) -> None:
    answer = response(given)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.error["type"] == "authentication_error"
    assert "key" not in answer.headers["www-authenticate"] and "first" not in answer.error["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/chat/completions", "/metrics", "/v1/health"])
def test_missing_key_error_says_how_to_send_it(path: str) -> None:
    """Also on routes that are open in llama.cpp or vLLM."""
    answer = response(path=path)
    assert (answer.status, answer.error["code"]) == (401, "missing_api_key")
    assert "Bearer" in answer.error["message"] and "every route but /health" in answer.error["message"]


@pytest.mark.parametrize("path", ["/", "/docs", "/inspector/events", "/inspector/app.js"])
def test_inspector_routes_ask_for_basic_authentication(path: str) -> None:
    assert response(path=path).headers["www-authenticate"] == 'Basic realm="holdfast"'


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/metrics",
        "/nothing",
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


@pytest.mark.parametrize(
    ("headers", "is_accepted"),
    [
        ([("X-Api-Key", "first-key")], True),
        ([("X-Api-Key", "wrong"), ("Authorization", "Bearer first-key")], True),
        ([("X-Api-Key", "first-key"), ("Authorization", "Bearer wrong")], True),
        ([("X-Api-Key", "Bearer first-key")], False),
        ([("X-Api-Key", "wrong"), ("Authorization", "Bearer wrong")], False),
        ([("X-Api-Key", "wrong"), ("X-Api-Key", "first-key")], False),
    ],
)
def test_key_in_the_header_of_anthropics_clients(headers: list[tuple[str, str]], is_accepted: bool) -> None:
    app = ExceptionMiddleware(TenantMiddleware(ok, TenantDirectory(ServerConfig(api_keys=KEYS))))
    for path in ("/v1/messages", "/v1/chat/completions"):
        answer = call_app(app, path=path, headers=headers)
        assert answer.status == (200 if is_accepted else 401)


def test_missing_key_of_a_message_names_its_header() -> None:
    answer = response(path="/v1/messages")
    error = json.loads(answer.body)
    assert answer.status == 401 and error["type"] == "error"
    assert error["error"]["type"] == "authentication_error" and "X-Api-Key" in error["error"]["message"]


def tenant(config: ServerConfig, *headers: tuple[str, str], path: str = "/v1/models") -> Tenant | None:
    """The tenant that a route sees; None if the request was refused."""
    seen: list[Tenant] = []

    async def route(scope: Any, receive: Any, send: Any) -> None:
        seen.append(tenant_of(Request(scope)))
        assert seen[0] is tenant_of(scope)
        await ok(scope, receive, send)

    directory = TenantDirectory(config)
    app = RequestLogMiddleware(ExceptionMiddleware(TenantMiddleware(route, directory)), directory)
    status = call_app(app, path=path, headers=headers).status
    assert status == (200 if seen else 401)
    return seen[0] if seen else None


def test_tenant_is_the_address_without_keys() -> None:
    assert tenant(ServerConfig()) == Tenant("address:127.0.0.1", "127.0.0.1")
    behind = ServerConfig(trusted_proxies=("127.0.0.1",))
    found = tenant(behind, ("X-Forwarded-For", "2001:db8::7"), ("Authorization", "Bearer anything"))
    assert found is not None and (found.id, found.has_key) == ("address:2001:db8::/64", False)


def test_tenant_is_the_key_whatever_the_address() -> None:
    config = ServerConfig(api_keys=("one", "two"))
    found = tenant(config, ("X-Api-Key", "two"))
    assert found is not None and (found.id, found.name, found.has_key) == ("key:api-key-2", "api-key-2", True)
    assert not found.is_admin
    health = tenant(config, path="/health")
    assert health is not None and health.id == "address:127.0.0.1"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/messages"])
def test_keys_of_two_tenants_in_one_request_are_refused(path: str) -> None:
    config = ServerConfig(api_keys=("one", "two"))
    assert tenant(config, ("X-Api-Key", "one"), ("Authorization", "Bearer two"), path=path) is None
    assert tenant(config, ("X-Api-Key", "one"), ("Authorization", "Bearer one"), path=path) is not None


def test_salt_of_a_request_names_its_key() -> None:
    alice, bob, address = key_tenant("alice"), key_tenant("bob"), address_tenant("192.0.2.7")
    assert address.salt(None) == "" and address.salt("s") == "s"
    salts = [tenant.salt(salt) for tenant in (alice, bob) for salt in (None, "s", "key:bob")]
    assert len(set(salts)) == 6 and all(salts)
