"""The address of a client, direct or behind proxies."""

import pytest

from holdfast.errors import ConfigError
from holdfast.server.config import ServerConfig
from holdfast.server.tenants.addresses import client_address, network_of, parse_address, parse_proxies

PROXIES = parse_proxies(("10.0.0.0/8", "2001:db8:ffff::1"))


def address(peer: str, *headers: tuple[str, str]) -> str:
    given = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return str(client_address(peer, given, PROXIES))


def xff(value: str) -> tuple[str, str]:
    return "X-Forwarded-For", value


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:1234", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]:443", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_ipv6_clients_are_their_64(text: str, network: str) -> None:
    parsed = parse_address(text)
    assert parsed is not None and network_of(parsed) == network


@pytest.mark.parametrize("text", ["", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "[::1", "a:b", "١.٢.٣.٤"])
def test_other_text_is_no_address(text: str) -> None:
    assert parse_address(text) is None


def test_headers_of_a_client_that_is_no_proxy_are_ignored() -> None:
    assert str(client_address("", [], PROXIES)) == "None"


@pytest.mark.parametrize(
    "headers",
    [
        [xff("203.0.113.9")],
        [xff("198.51.100.1, 203.0.113.9")],
        [xff("198.51.100.1"), xff("203.0.113.9")],
        [xff("198.51.100.1, 203.0.113.9, 10.1.1.1, 10.2.2.2")],
        [xff("garbage, , 203.0.113.9:4711")],
        [xff("203.0.113.9, 2001:db8:ffff::1")],
    ],
    ids=str,
)
def test_rightmost_untrusted_hop_is_the_client(headers: list[tuple[str, str]]) -> None:
    assert address("10.9.9.9", *headers) == "203.0.113.9"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [xff("unknown")],
        [xff("203.0.113.9, unknown")],
    ],
    ids=str,
)
def test_proxy_is_the_client_if_its_headers_are_missing_or_no_address(headers: list[tuple[str, str]]) -> None:
    assert address("10.9.9.9", *headers) == "10.9.9.9"


@pytest.mark.parametrize("given", ["proxy.example", "10.0.0.0/33", "", "10.0.0.1:80"])
def test_trusted_proxy_must_be_an_address_or_a_network(given: str) -> None:
    with pytest.raises(ConfigError, match="trusted proxy"):
        ServerConfig(trusted_proxies=(given,))
