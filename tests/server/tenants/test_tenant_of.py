"""Every request has a tenant: that of its key, else that of its address."""

from typing import Any

import pytest
from starlette.requests import Request

from holdfast.server.config import ServerConfig
from holdfast.server.middleware.api_keys import ApiKeyMiddleware
from holdfast.server.middleware.client_address import ClientAddressMiddleware
from holdfast.server.middleware.exceptions import ExceptionMiddleware
from holdfast.server.tenants.directory import TenantDirectory
from holdfast.server.tenants.tenant import UNKNOWN_TENANT, Tenant, tenant_of
from support.asgi import call_app, ok


def tenant(config: ServerConfig, *headers: tuple[str, str], path: str = "/v1/models") -> Tenant | None:
    """The tenant that a route sees; None if the request was refused."""
    seen: list[Tenant] = []

    async def route(scope: Any, receive: Any, send: Any) -> None:
        seen.append(tenant_of(Request(scope)))
        assert seen[0] is tenant_of(scope)
        await ok(scope, receive, send)

    directory = TenantDirectory(config)
    app = ClientAddressMiddleware(ExceptionMiddleware(ApiKeyMiddleware(route, directory)), directory)
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


def test_scope_without_middleware_has_the_unknown_tenant() -> None:
    assert tenant_of({"type": "http"}) is UNKNOWN_TENANT
