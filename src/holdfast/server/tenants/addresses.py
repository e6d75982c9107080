"""The address of a client, also behind trusted proxies.

A proxy appends the address of its client to X-Forwarded-For. Everything left of what a trusted proxy
appended may be forged by the client. So hops are read from the right: the first address that is not a
trusted proxy is the client's.

uvicorn's `ProxyHeadersMiddleware` takes any text for an address, and rewrites the scheme as well.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from holdfast.errors import ConfigError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Headers = Sequence[tuple[bytes, bytes]]

_IPV6_PREFIX = 64  # a client has a whole /64: it can change the other bits at will
_BRACKETED = re.compile(r"\[([^\]]*)\](?::[0-9]+)?")
_WITH_PORT = re.compile(r"([0-9.]+):[0-9]+")


def parse_proxies(given: Sequence[str]) -> tuple[Network, ...]:
    """Return the networks of trusted proxies: addresses, or addresses with a prefix length."""
    try:
        return tuple(ip_network(one.strip(), strict=False) for one in given)
    except ValueError as error:
        raise ConfigError(
            f"a trusted proxy must be an IP address or a network such as 10.0.0.0/8: {error}"
        ) from None


def parse_address(text: str) -> Address | None:
    """Return an IP address, with or without brackets and port; None if it is none. An IPv4 address in IPv6
    form becomes IPv4."""
    text = text.strip()
    match = _BRACKETED.fullmatch(text) or _WITH_PORT.fullmatch(text)
    try:
        address = ip_address((match[1] if match else text).partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by an address that no other machine can reach."""
    address = parse_address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def network_of(address: Address) -> str:
    """Return what identifies the client: an IPv4 address, or the /64 of an IPv6 address."""
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, _IPV6_PREFIX), strict=False))


def client_address(peer: str, headers: Headers, proxies: Sequence[Network]) -> Address | None:
    """Return the client's address: the peer's, unless the peer is a trusted proxy.

    Then it is the rightmost hop that is not a trusted proxy. If a hop is not an address, it is the
    proxy that reported it. None: the peer has no IP address.
    """
    address = parse_address(peer)
    if address is None or not is_trusted(address, proxies):
        return address
    given = (value.decode("latin-1").split(",") for name, value in headers if name == b"x-forwarded-for")
    for hop in reversed([hop for value in given for hop in value]):
        reported = parse_address(hop)
        if reported is None:
            return address
        address = reported
        if not is_trusted(address, proxies):
            break
    return address


def is_trusted(address: Address, proxies: Sequence[Network]) -> bool:
    """Return whether this is the address of a trusted proxy."""
    return any(address in network for network in proxies if network.version == address.version)
