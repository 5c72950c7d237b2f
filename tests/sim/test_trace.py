"""The trace of a simulation shows forged and damaged datagrams, too."""

from __future__ import annotations

import struct

import pytest

from umstack.sim.trace import Datagram, DropReason, Fate, NcfReason, Type

WHOLE = struct.pack(">BBHII", 0, 0, 16, 7, 3) + b"data"
ENDLESS = struct.pack(">BBHII", 0, 9, 16, 7, 4) + struct.pack(">BBH", 9, 0, 0)
"""An option without a length, which is followed by another one."""


@pytest.mark.parametrize(
    "rest", [b"\0\0", WHOLE[:8], bytes(4), ENDLESS], ids=["head", "message", "zeros", "option"]
)
def test_a_datagram_that_ends_anywhere_shows_what_it_has(rest: bytes) -> None:
    """The messages before the damage are shown, and the trace goes on."""
    datagram = Datagram(
        time_ns=0,
        fate=Fate.RECEIVED,
        drop_reason=DropReason.NONE,
        type=Type.DATA,
        sender=0,
        receiver=1,
        session_id=1,
        sqn=1,
        trail=1,
        lead=1,
        retransmission=False,
        ncf_reason=NcfReason.NO_RETRY,
        source=("10.0.0.1", 14390),
        destination=("224.9.10.11", 14400),
        serial=1,
        data=bytes(20) + WHOLE + rest,
    )
    assert [(found.topic_index, found.sqn, found.payload) for found in datagram.fragments][:1] == [
        (7, 3, b"data")
    ]
