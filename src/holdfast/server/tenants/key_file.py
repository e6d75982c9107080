"""Reads a file of named API keys and their limits (`--key-file`).

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

import logging
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from holdfast.errors import ConfigError
from holdfast.server.config import is_valid_key
from holdfast.server.tenants.tenant import Tenant, TenantLimits, key_tenant

_log = logging.getLogger("holdfast.server")
_MAX_BYTES = 4 << 20
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
        with Path(path).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"the key file {path} is larger than {_MAX_BYTES} bytes")
        return msgspec.convert(tomllib.loads(data.decode("utf-8")), _KeyFile)
    except OSError as error:
        raise ConfigError(f"cannot read the key file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the key file {path} is not UTF-8") from None
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
