"""A tenant: the clients that share one API key, or one address if there are no keys."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, cast

from msgspec import Meta, Struct

from holdfast.core.shares import Share

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import Scope

_STATE = "tenant"
_GIVEN = "holdfast.tenant"


_AtLeast0 = Annotated[int, Meta(ge=0)]
_AtLeast1 = Annotated[int, Meta(ge=1)]


class TenantLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of one tenant. None: the server's own limits and the fair share are the only
    ones.

    max_running and max_waiting count answers: a request for n answers to k prompts counts n k.
    tokens_per_minute counts the tokens of prompts and answers.
    """

    max_running: _AtLeast1 | None = None
    max_waiting: _AtLeast0 | None = None
    tokens_per_minute: _AtLeast1 | None = None
    requests_per_minute: _AtLeast1 | None = None


@dataclass(frozen=True)
class Tenant:
    """Two tenants are equal if they have the same id. Neither id nor name contains the key."""

    id: str
    name: str = field(compare=False)
    has_key: bool = field(default=False, compare=False)
    is_admin: bool = field(default=False, compare=False)
    is_background: bool = field(default=False, compare=False)
    limits: TenantLimits = field(default=TenantLimits(), compare=False)

    @property
    def share(self) -> Share:
        return Share(self.id, self.limits.max_running, self.is_background)

    def salt(self, cache_salt: str | None) -> str:
        """Return the salt of a request in the prefix cache, so that keys share no cached page.

        `cached_tokens` and the time of an answer tell which prefixes are cached. Without keys clients
        are not told apart. No bit of an answer depends on it.
        """
        return json.dumps([self.id, cache_salt or ""]) if self.has_key else cache_salt or ""


def key_tenant(name: str, *, is_admin: bool = False, limits: TenantLimits | None = None) -> Tenant:
    """Return the tenant of the API keys with this name."""
    return Tenant(f"key:{name}", name, has_key=True, is_admin=is_admin, limits=limits or TenantLimits())


def address_tenant(network: str) -> Tenant:
    """Return the tenant of an address, see `addresses.network_of`."""
    return Tenant(f"address:{network}", network)


UNKNOWN_TENANT = address_tenant("unknown")


def tenant_of(request: "HTTPConnection | Scope") -> Tenant:
    """Who sent the request."""
    scope = cast("Scope", getattr(request, "scope", request))
    tenant = scope.get("state", {}).get(_STATE, UNKNOWN_TENANT)
    assert isinstance(tenant, Tenant)
    return tenant


def set_tenant(scope: "Scope", tenant: Tenant) -> None:
    """For the middleware that identifies clients."""
    scope.setdefault("state", {})[_STATE] = tenant


def give_tenant(scope: "Scope", tenant: Tenant) -> None:
    """For requests that this process makes itself: they need no key."""
    scope[_GIVEN] = tenant


def given_tenant(scope: "Scope") -> Tenant | None:
    found: Tenant | None = scope.get(_GIVEN)
    return found
