"""Datagram sizes: from the interface MTU, the configured size and what the rings carry (W4). Pure functions.

Sizes are bytes of UDP payload. The C half of the same arithmetic is `ffi/core/wire/datagram_size.h`.
"""

from __future__ import annotations

from umstack._core import lib

IP_UDP_HEADER_BYTES: int = lib.UM_IPV4_UDP_HEADER_BYTES
"""An IPv4 header without options, and a UDP header."""
IPV6_UDP_HEADER_BYTES: int = lib.UM_IPV6_UDP_HEADER_BYTES
"""The same over IPv6, without extension headers."""
UDP_PAYLOAD_MAXIMUM_BYTES: int = lib.UM_DATAGRAM_BYTES_MAX
"""The longest UDP payload over IPv4: 65535 bytes less the headers."""
JUMBO_MTU_BYTES = 9000
"""Datagram memory is sized for this MTU at least, so that a link that is given jumbo frames can use them."""


def udp_payload_bytes(mtu_bytes: int, header_bytes: int = IP_UDP_HEADER_BYTES) -> int:
    """Return the longest UDP payload that IP does not fragment at this MTU; 0 if the MTU is below the headers."""
    return min(max(mtu_bytes - header_bytes, 0), UDP_PAYLOAD_MAXIMUM_BYTES)


def datagram_size(
    mtu_bytes: int, configured_bytes: int = 0, *, limit_bytes: int | None = None, minimum_bytes: int = 0
) -> int:
    """Return the size of datagrams to send: the smallest of the configured size, the MTU's payload and the limit.

    `configured_bytes` 0 follows the MTU. `limit_bytes` is the limit of the rings or the memory, None for no limit.
    If the MTU carries less than `minimum_bytes`, that size is used and IP fragments the datagrams.
    """
    fits = max(udp_payload_bytes(mtu_bytes), minimum_bytes)
    size = min(configured_bytes or fits, fits)
    return size if limit_bytes is None else min(size, limit_bytes)


def memory_size(datagram_bytes: int) -> int:
    """Return the datagram size to allocate memory for if datagrams start with this size."""
    return max(datagram_bytes, udp_payload_bytes(JUMBO_MTU_BYTES))
