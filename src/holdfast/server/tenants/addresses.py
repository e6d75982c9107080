"""The address of a client, also behind trusted proxies.

A proxy appends the address of its client to X-Forwarded-For, or to Forwarded (RFC 7239). Everything
left of what a trusted proxy appended may be forged by the client. So hops are read from the right:
the first address that is not a trusted proxy is the client's.

uvicorn's `ProxyHeadersMiddleware` does not read Forwarded, takes any text for an address, and
rewrites the scheme as well.
"""

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from holdfast.errors import ConfigError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Headers = Sequence[tuple[bytes, bytes]]

_IPV6_PREFIX = 64  # a client has a whole /64: it can change the other bits at will
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PAIR = rf'{_TOKEN}=(?:{_TOKEN}|"[^"\\]*")'
_FORWARDED_HOP = re.compile(rf"\s*{_PAIR}(?:\s*;\s*{_PAIR})*\s*", re.ASCII)
_FOR = re.compile(rf'(?:^|;)\s*for=(?:({_TOKEN})|"([^"]*)")', re.ASCII | re.IGNORECASE)
_BRACKETED = re.compile(r"\[([^\]]*)\](?::[0-9]+)?")
_WITH_PORT = re.compile(r"([0-9.]+):[0-9]+")


def parse_proxies(given: Sequence[str]) -> tuple[Network, ...]:
    """The networks of trusted proxies: addresses, or addresses with a prefix length."""
    try:
        return tuple(ip_network(one.strip(), strict=False) for one in given)
    except ValueError as error:
        raise ConfigError(
            f"a trusted proxy must be an IP address or a network such as 10.0.0.0/8: {error}"
        ) from None


def parse_address(text: str) -> Address | None:
    """An IP address, with or without brackets and port; None if it is none. An IPv4 address in IPv6
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
    """Whether a host is this machine by an address that no other machine can reach."""
    address = parse_address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def network_of(address: Address) -> str:
    """What identifies the client: an IPv4 address, or the /64 of an IPv6 address."""
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, _IPV6_PREFIX), strict=False))


def client_address(peer: str, headers: Headers, proxies: Sequence[Network]) -> Address | None:
    """The client's address: the peer's, unless the peer is a trusted proxy.

    If a trusted proxy sends both headers and they disagree, the client may have forged one of them,
    and the proxy's own address counts. None: the peer has no IP address.
    """
    address = parse_address(peer)
    if address is None or not is_trusted(address, proxies):
        return address
    found = {
        _first_untrusted(address, hops, proxies)
        for hops in (_x_forwarded_for(headers), _forwarded(headers))
        if hops
    }
    return found.pop() if len(found) == 1 else address


def is_trusted(address: Address, proxies: Sequence[Network]) -> bool:
    """Whether this is the address of a trusted proxy."""
    return any(address in network for network in proxies if network.version == address.version)


def _first_untrusted(peer: Address, hops: Sequence[str], proxies: Sequence[Network]) -> Address:
    """The rightmost hop that is not a trusted proxy. If a hop is not an address, the proxy that
    reported it."""
    last = peer
    for hop in reversed(hops):
        address = parse_address(hop)
        if address is None:
            return last
        last = address
        if not is_trusted(address, proxies):
            return last
    return last


def _x_forwarded_for(headers: Headers) -> list[str]:
    return list(_fragments(headers, b"x-forwarded-for"))


def _forwarded(headers: Headers) -> list[str]:
    """The `for` parameter of each hop; empty for a hop without a valid one.

    Hops are split at every comma: no address has one, and an open quote that a client sent must not
    swallow what a proxy appended.
    """
    hops = []
    for fragment in _fragments(headers, b"forwarded"):
        found = _FOR.findall(fragment) if _FORWARDED_HOP.fullmatch(fragment) else []
        hops.append("".join(found[0]) if len(found) == 1 else "")
    return hops


def _fragments(headers: Headers, name: bytes) -> Iterator[str]:
    for one, value in headers:
        if one == name:
            yield from value.decode("latin-1").split(",")
