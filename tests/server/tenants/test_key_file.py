"""Files of named keys: what they may hold, and that errors never quote a key."""

import logging
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.server.config import ServerConfig
from holdfast.server.tenants.directory import TenantDirectory, read_key_file
from holdfast.server.tenants.tenant import TenantLimits

KEYS = """
[default]
max_waiting = 64

[[tenant]]
name = "alice"
key = ["new-secret", "old-secret"]
max_running = 16
tokens_per_minute = 100_000

[[tenant]]
name = "operator"
key = "admin-secret"
max_waiting = 0
requests_per_minute = 60
admin = true
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "keys.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def directory(path: Path, *keys: str) -> TenantDirectory:
    return TenantDirectory(ServerConfig(key_file=str(path), api_keys=keys))


def test_tenants_have_names_and_limits(tmp_path: Path) -> None:
    tenants = read_key_file(write(tmp_path, KEYS))
    alice, operator = tenants["new-secret"], tenants["admin-secret"]
    assert alice is tenants["old-secret"]
    assert (alice.id, alice.name, alice.has_key, alice.is_admin) == ("key:alice", "alice", True, False)
    assert alice.limits == TenantLimits(max_running=16, max_waiting=64, tokens_per_minute=100_000)
    assert operator.is_admin and operator.limits == TenantLimits(max_waiting=0, requests_per_minute=60)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "tenant"),
        ("[[tenant]]\nname = 'a'", "key"),
        ("[[tenant]]\nname = 'a b'\nkey = 'SECRET'", "name"),
        ("[[tenant]]\nname = 'a'\nkey = ' SECRET'", "key of a"),
        ("[[tenant]]\nname = 'a'\nkey = 'SECRETé'", "key of a"),
        ("[[tenant]]\nname = 'a'\nkey = 'SECRET'\nmax_runing = 3", "max_runing"),
        ("[[tenant]]\nname = 'a'\nkey = 'SECRET'\nmax_running = 0", ">= 1"),
        ("[[tenant]]\nname = 'a'\nkey = 'SECRET'\n[[tenant]]\nname = 'a'\nkey = 'b'", "two tenants"),
        ("[[tenant]]\nname = 'a'\nkey = 'SECRET'\n[[tenant]]\nname = 'b'\nkey = 'SECRET'", "a and for b"),
        ("[[tenant]]\nname = 'a'\nkey = SECRET", "line 3"),
        ("SECRET-1 = 'alice'", "unknown field"),
        ("a = " + "[" * 100_000, "nested|not TOML"),
    ],
    ids=range(12),
)
def test_errors_say_what_is_wrong_and_quote_no_key(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        directory(write(tmp_path, text))
    assert "SECRET" not in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the key file .* cannot be read"):
        directory(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"the key file .* cannot be read"):
        directory(tmp_path)
    path = write(tmp_path, "")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no valid UTF-8"):
        directory(path)


def test_keys_of_the_option_are_numbered_and_the_file_names_its_own(tmp_path: Path) -> None:
    tenants = directory(write(tmp_path, KEYS), "plain", "new-secret", "other")
    names = {key: tenants.by_key(key.encode()) for key in ("plain", "new-secret", "other", "wrong")}
    assert [one.name if one else None for one in names.values()] == ["api-key-1", "alice", "api-key-3", None]
    assert set(tenants.keys) == {"plain", "other", "new-secret", "old-secret", "admin-secret"}
    with pytest.raises(ConfigError, match="api-key-1"):
        directory(write(tmp_path, "[[tenant]]\nname = 'api-key-1'\nkey = 'x'"), "plain")


def test_reload_takes_new_keys_and_keeps_the_old_ones_if_the_file_is_bad(tmp_path: Path) -> None:
    path = write(tmp_path, KEYS)
    tenants = directory(path)
    config = ServerConfig(key_file=str(path))
    write(tmp_path, "[[tenant]]\nname = 'bob'\nkey = 'SECRET")
    with pytest.raises(ConfigError) as refused:
        tenants.reload(config)
    assert tenants.by_key(b"new-secret") is not None and "SECRET" not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot go on without any"):
        tenants.reload(ServerConfig())
    write(tmp_path, "[[tenant]]\nname = 'bob'\nkey = 'bobs-secret'")
    tenants.reload(config)
    bob = tenants.by_key(b"bobs-secret")
    assert bob is not None and bob.name == "bob" and tenants.by_key(b"new-secret") is None


def test_file_that_others_can_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, KEYS)
    with caplog.at_level(logging.WARNING):
        directory(path)
        assert not caplog.records
        path.chmod(0o640)
        directory(path)
    assert "mode 0640" in caplog.text
