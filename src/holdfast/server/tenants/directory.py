"""The tenants of one server: those with an API key, else those of addresses.

A file of named keys and their limits (`--key-file`):

    [default]                     # limits of tenants that set none of their own; optional
    max_waiting = 64

    [[tenant]]
    name = "alice"
    key = "a-long-random-secret"  # or several: key = ["the-new-one", "the-old-one"]
    max_running = 16
    tokens_per_minute = 100_000

    [[tenant]]
    name = "operator"
    key = "another-secret"
    admin = true                  # may see the requests of all tenants in the inspector

Errors name the line or the tenant, never a key.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from holdfast.core.files import read_text
from holdfast.errors import ConfigError
from holdfast.server.config import ServerConfig, is_valid_key
from holdfast.server.tenants.addresses import Address, Headers, client_address, network_of, parse_proxies
from holdfast.server.tenants.tenant import UNKNOWN_TENANT, Tenant, TenantLimits, address_tenant, key_tenant

_log = logging.getLogger("holdfast.server")
_MAX_CHARS = 4 << 20
_ODD_FIELD = re.compile(r"unknown field `(?![a-z_]{1,32}`)[^`]*`")  # it may be a key


class _Entry(TenantLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
    key: str | tuple[str, ...]
    admin: bool = False


class _KeyFile(Struct, forbid_unknown_fields=True):
    tenant: Annotated[tuple[_Entry, ...], Meta(min_length=1)]
    default: TenantLimits = TenantLimits()


def read_key_file(path: str | os.PathLike[str]) -> Mapping[str, Tenant]:
    """Return the tenant of each key. Raises `ConfigError` if the file cannot be used."""
    content = _parse(path)
    tenants: dict[str, Tenant] = {}
    names: set[str] = set()
    for entry in content.tenant:
        if entry.name in names:
            raise ConfigError(f"the key file {path} has two tenants with the name {entry.name}")
        names.add(entry.name)
        tenant = key_tenant(entry.name, is_admin=entry.admin, limits=_limits(entry, content.default))
        keys = (entry.key,) if isinstance(entry.key, str) else entry.key
        if not keys:
            raise ConfigError(f"the key file {path} has no key for {entry.name}")
        for key in keys:
            if not is_valid_key(key):
                raise ConfigError(
                    f"the key file {path} has a key of {entry.name} that is empty, not ASCII, "
                    "or has spaces around it"
                )
            other = tenants.setdefault(key, tenant)
            if other != tenant:
                raise ConfigError(
                    f"the key file {path} has the same key for {other.name} and for {entry.name}"
                )
    return tenants


def warn_if_readable_by_others(path: str | os.PathLike[str]) -> None:
    """Log a warning if users other than the owner of the key file can read or change it."""
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    if mode & 0o077:
        _log.warning(
            "other users of this machine can read or change the key file %s (mode %04o); run chmod 600",
            path,
            mode,
        )


def _parse(path: str | os.PathLike[str]) -> _KeyFile:
    try:
        text = read_text(path, f"the key file {path}", _MAX_CHARS)
        return msgspec.convert(tomllib.loads(text), _KeyFile)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the key file {path} is not TOML{_where(error)}") from None
    except RecursionError:
        raise ConfigError(f"the key file {path} is nested too deeply") from None
    except msgspec.ValidationError as error:
        message = _ODD_FIELD.sub("unknown field", str(error))
        raise ConfigError(f"the key file {path} is not valid: {message}") from None


def _where(error: tomllib.TOMLDecodeError) -> str:
    """Return the place of the error without its message, which may quote the file."""
    text = str(error)
    return f": {text[text.rindex('(at ') + 1 : -1]}" if "(at " in text and text.endswith(")") else ""


def _limits(entry: _Entry, default: TenantLimits) -> TenantLimits:
    """Return the limits of an entry, those it does not name from the default."""
    own = {name: getattr(entry, name) for name in TenantLimits.__struct_fields__}
    return structs.replace(default, **{name: value for name, value in own.items() if value is not None})


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
