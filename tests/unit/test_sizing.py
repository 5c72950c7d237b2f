"""Sizes of datagrams from MTU, configuration and rings."""

from __future__ import annotations

import pytest

from umstack.sizing import datagram_size, memory_size, udp_payload_bytes


@pytest.mark.parametrize(
    ("mtu_bytes", "payload_bytes"),
    [
        (0, 0),
        (27, 0),
        (28, 0),
        (29, 1),
        (576, 548),
        (1500, 1472),
        (9000, 8972),
        (65534, 65506),
        (65535, 65507),
        (65536, 65507),
        (1 << 31, 65507),
    ],
)
def test_a_payload_is_the_mtu_minus_headers(mtu_bytes: int, payload_bytes: int) -> None:
    """W4: with the computed size IP never fragments a datagram and UDP can carry it, and the size is never
    negative.
    """
    assert udp_payload_bytes(mtu_bytes) == payload_bytes


@pytest.mark.parametrize(
    ("mtu_bytes", "configured_bytes", "limit_bytes", "size_bytes"),
    [
        (1500, 0, None, 1472),
        (1500, 1400, None, 1400),
        (1500, 1472, None, 1472),
        (1500, 1473, None, 1472),
        (9000, 0, 3710, 3710),
        (9000, 3000, 3710, 3000),
        (1500, 0, 3710, 1472),
        (65536, 65507, None, 65507),
        (20, 0, None, 0),
        (20, 1400, 3710, 0),
    ],
)
def test_the_smallest_of_configuration_mtu_and_limit_applies(
    mtu_bytes: int, configured_bytes: int, limit_bytes: int | None, size_bytes: int
) -> None:
    """W4: a configured size applies as long as the path and the rings can carry it."""
    assert datagram_size(mtu_bytes, configured_bytes, limit_bytes=limit_bytes) == size_bytes


def test_an_mtu_below_the_minimum_counts_as_the_minimum() -> None:
    """Topic resolution has a minimum datagram, which IP fragments if necessary."""
    assert datagram_size(100, minimum_bytes=500) == 500
    assert datagram_size(100, 400, minimum_bytes=500) == 400
    assert datagram_size(1500, minimum_bytes=500) == 1472


def test_memory_fits_jumbo_frames() -> None:
    """A link whose MTU grows to 9000 is fully used; so is a link with a larger MTU at the start."""
    assert memory_size(1472) == memory_size(8972) == 8972
    assert memory_size(8973) == 8973
    assert memory_size(65507) == 65507
