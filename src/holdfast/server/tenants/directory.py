"""The tenants of one server: those with an API key, else those of addresses."""

import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping, Sequence

from holdfast.errors import ConfigError
from holdfast.server.config import ServerConfig
from holdfast.server.tenants.addresses import Address, Headers, client_address, network_of, parse_proxies
from holdfast.server.tenants.key_file import read_key_file, warn_if_readable_by_others
from holdfast.server.tenants.tenant import UNKNOWN_TENANT, Tenant, address_tenant, key_tenant

_log = logging.getLogger("holdfast.server")


class TenantDirectory:
    """Finds the tenant of a key or of an address. Raises `ConfigError` if the key file is wrong.

    Keys are looked up by an HMAC with a secret of this process: how long a look-up takes says
    nothing about the keys.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.has_keys = config.has_keys
        self._proxies = parse_proxies(config.trusted_proxies)
        self._secret = secrets.token_bytes(32)
        self._by_digest: Mapping[bytes, Tenant] = {}
        self._keys: tuple[str, ...] = ()
        self._load(config)

    @property
    def keys(self) -> Sequence[str]:
        """All keys, to redact them in logs."""
        return self._keys

    @property
    def tenants(self) -> Sequence[Tenant]:
        """The tenants that have keys."""
        return tuple(dict.fromkeys(self._by_digest.values()))

    def reload(self, config: ServerConfig) -> None:
        """Take the keys of this configuration, and read its key file. Raises `ConfigError`; the old keys stay."""
        if config.has_keys != self.has_keys:
            raise ConfigError("a server with keys cannot go on without any, nor one without keys get some")
        self._load(config)
        _log.info("read the keys again: %d tenants", len(self.tenants))

    def by_key(self, key: bytes) -> Tenant | None:
        return self._by_digest.get(self._digest(key))

    def address(self, peer: str, headers: Headers) -> Address | None:
        """Return the address of the client, which may be behind trusted proxies."""
        return client_address(peer, headers, self._proxies)

    def by_address(self, address: Address | None) -> Tenant:
        """Return the tenant of an address: of the /64 if it is IPv6."""
        return UNKNOWN_TENANT if address is None else address_tenant(network_of(address))

    def _load(self, config: ServerConfig) -> None:
        given = dict.fromkeys(config.api_keys)
        # A name made from the key itself would reveal a part of it.
        keys = {key: key_tenant(f"api-key-{number}") for number, key in enumerate(given, 1)}
        path = config.key_file
        if path is not None:
            named = read_key_file(path)
            clash = {one.name for one in named.values()} & {one.name for one in keys.values()}
            if clash:
                raise ConfigError(
                    f"the key file {path} has a tenant {min(clash)}; this name is that of an --api-key"
                )
            keys |= named
            warn_if_readable_by_others(path)
        self._by_digest = {self._digest(key.encode("ascii")): tenant for key, tenant in keys.items()}
        self._keys = tuple(keys)

    def _digest(self, key: bytes) -> bytes:
        return hmac.digest(self._secret, key, hashlib.sha256)
