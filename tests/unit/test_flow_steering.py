"""xdp/flow_steering.py against a NIC that is made up: filters, spread, and all of it undone.

The NIC reads and writes requests by offsets of its own, taken from <linux/ethtool.h>, not by the layouts under test.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from dataclasses import dataclass, field

import pytest

from umstack_xdp import FlowSteering, FlowSteeringError, FlowSteeringUnsupportedError, Interface

COMMAND, DATA, FILTER, COUNT, LOCATIONS, END = 0, 8, 16, 184, 188, 192
TYPE, VALUE, MASK, QUEUE, LOCATION = FILTER, FILTER + 4, FILTER + 76, FILTER + 152, FILTER + 160
UDP_IPV4, UDP_IPV6 = 2, 6
ANY_LOCATION = 0xFFFFFFFF
SPECIAL = 0x80000000
NIC = Interface(1, "nic0", 1500, "", (), True, True, True, False)


@dataclass
class FakeNic:
    """Filters in a table, a spread of eight entries, and refusals on request."""

    chooses_locations: bool = True
    table_size: int = 4
    queues: int = 4
    can_switch: bool = True
    filters_on: bool = False
    filters: dict[int, bytes] = field(default_factory=dict)
    spread: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 0, 1, 2, 3])
    refusals: dict[int, int] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def call(self, request: ctypes.Array[ctypes.c_char] | ctypes.Structure) -> None:
        """Carry out a request as a driver would."""
        memory = memoryview(request).cast("B")
        (command,) = struct.unpack_from("=I", memory, COMMAND)
        if command in self.refusals:
            raise OSError(self.refusals[command], os.strerror(self.refusals[command]))
        acts = {
            0x2D: self._count_queues,
            0x2E: self._count_filters,
            0x2F: self._read_filter,
            0x30: self._list_filters,
            0x31: self._delete_filter,
            0x32: self._insert_filter,
            0x38: self._read_spread,
            0x39: self._write_spread,
        }
        acts[command](memory)

    def is_on(self, feature: str) -> bool:
        """Know of one feature."""
        assert feature == "rx-ntuple-filter"
        return self.filters_on

    def switch(self, feature: str, is_on: bool) -> None:
        """Switch it, if it can be."""
        if self.can_switch:
            self.filters_on = is_on
            self.log.append(f"{feature} {'on' if is_on else 'off'}")

    def _count_queues(self, memory: memoryview) -> None:
        struct.pack_into("=Q", memory, DATA, self.queues)

    def _count_filters(self, memory: memoryview) -> None:
        struct.pack_into("=Q", memory, DATA, self.table_size | (SPECIAL if self.chooses_locations else 0))
        struct.pack_into("=I", memory, COUNT, len(self.filters))

    def _list_filters(self, memory: memoryview) -> None:
        (space,) = struct.unpack_from("=I", memory, COUNT)
        assert space >= len(self.filters)
        assert len(memory) >= LOCATIONS + 4 * space
        struct.pack_into("=Q", memory, DATA, self.table_size)
        struct.pack_into(f"={len(self.filters)}I", memory, LOCATIONS, *self.filters)

    def _insert_filter(self, memory: memoryview) -> None:
        assert len(memory) == END
        (location,) = struct.unpack_from("=I", memory, LOCATION)
        if location == ANY_LOCATION:
            assert self.chooses_locations
            location = 1000 + len(self.filters)
            struct.pack_into("=I", memory, LOCATION, location)
        assert location not in self.filters
        assert self.filters_on
        self.filters[location] = bytes(memory[FILTER:LOCATION])
        self.log.append(f"insert {location}")

    def _read_filter(self, memory: memoryview) -> None:
        (location,) = struct.unpack_from("=I", memory, LOCATION)
        if location not in self.filters:
            raise OSError(errno.ENOENT, "no such filter")
        memory[FILTER:LOCATION] = self.filters[location]

    def _delete_filter(self, memory: memoryview) -> None:
        (location,) = struct.unpack_from("=I", memory, LOCATION)
        del self.filters[location]
        self.log.append(f"delete {location}")

    def _read_spread(self, memory: memoryview) -> None:
        (size,) = struct.unpack_from("=I", memory, 4)
        struct.pack_into("=I", memory, 4, len(self.spread))
        if size:
            struct.pack_into(f"={size}I", memory, 8, *self.spread)

    def _write_spread(self, memory: memoryview) -> None:
        (size,) = struct.unpack_from("=I", memory, 4)
        self.spread = list(struct.unpack_from(f"={size}I", memory, 8))
        self.log.append(f"spread {self.spread}")


def test_a_filter_reports_its_request() -> None:
    """Only destination address and UDP port are matched, whole, in network order, in both families."""
    nic = FakeNic()
    with FlowSteering(NIC, device=nic) as steering:
        four = steering.steer("239.77.1.2", 14400, 3)
        six = steering.steer("ff15::1", 9, 1)
        spec = nic.filters[four]
        expected = bytes(4) + socket.inet_aton("239.77.1.2") + bytes(2) + (14400).to_bytes(2, "big")
        mask = bytes(4) + b"\xff" * 4 + bytes(2) + b"\xff\xff"
        assert struct.unpack_from("=I", spec)[0] == UDP_IPV4
        assert spec[VALUE - FILTER : MASK - FILTER] == expected.ljust(72, b"\0")
        assert spec[MASK - FILTER : MASK - FILTER + 72] == mask.ljust(72, b"\0")
        assert struct.unpack_from("=Q", spec, QUEUE - FILTER)[0] == 3
        spec = nic.filters[six]
        expected = (
            bytes(16) + socket.inet_pton(socket.AF_INET6, "ff15::1") + bytes(2) + (9).to_bytes(2, "big")
        )
        assert struct.unpack_from("=I", spec)[0] == UDP_IPV6
        assert spec[VALUE - FILTER : MASK - FILTER] == expected.ljust(72, b"\0")
        assert spec[MASK - FILTER : MASK - FILTER + 36] == bytes(16) + b"\xff" * 16 + bytes(2) + b"\xff\xff"


def test_everything_is_undone_newest_first() -> None:
    """Undo: filters go, the spread and the feature are what they were; a second undo does nothing."""
    nic = FakeNic()
    with FlowSteering(NIC, device=nic) as steering:
        steering.steer("239.77.1.2", 14400, 3)
        steering.spread([1, 0])
        steering.steer("239.77.1.3", 14400, 2)
        assert nic.spread == [0, 1] * 4
    steering.undo()
    assert nic.log[3:] == [
        "insert 1001",
        "delete 1001",
        "spread [0, 1, 2, 3, 0, 1, 2, 3]",
        "delete 1000",
        "rx-ntuple-filter off",
    ]
    assert not nic.filters


def test_filters_that_were_on_stay_on() -> None:
    """Undo restores what was, not what one would like."""
    nic = FakeNic(filters_on=True)
    with FlowSteering(NIC, device=nic) as steering:
        steering.steer("239.77.1.2", 14400, 3)
    assert nic.log == ["insert 1000", "delete 1000"]


def test_a_driver_that_does_not_choose_gets_the_last_free_place() -> None:
    """Places: where the driver does not choose, others' filters are left where they are; a full table is an error."""
    nic = FakeNic(chooses_locations=False, filters_on=True, filters={3: b"theirs", 0: b"theirs"})
    with FlowSteering(NIC, device=nic) as steering:
        assert steering.steer("239.77.1.2", 14400, 3) == 2
        assert steering.steer("239.77.1.3", 14400, 3) == 1
        with pytest.raises(FlowSteeringError, match=r"No space.*ethtool -n nic0 lists them"):
            steering.steer("239.77.1.4", 14400, 3)
    assert nic.filters == {3: b"theirs", 0: b"theirs"}


def test_undo_leaves_others_filters_alone() -> None:
    """Undo: a filter of ours that others removed is no error, and one they put in its place is theirs."""
    nic = FakeNic()
    with FlowSteering(NIC, device=nic) as steering:
        gone, replaced = steering.steer("239.77.1.2", 1, 0), steering.steer("239.77.1.2", 2, 0)
        theirs = nic.filters.pop(gone)
        nic.filters[replaced] = theirs
    assert nic.filters == {replaced: theirs}


def test_undo_tries_everything() -> None:
    """Undo: what cannot be undone is reported, and does not keep the rest from being undone."""
    nic = FakeNic()
    steering = FlowSteering(NIC, device=nic)
    steering.steer("239.77.1.2", 1, 0)
    steering.spread([0])
    nic.refusals[0x31] = errno.EIO
    with pytest.raises(FlowSteeringError, match="removing filter 1000 on nic0"):
        steering.undo()
    assert nic.spread == [0, 1, 2, 3, 0, 1, 2, 3]
    assert not nic.filters_on


@pytest.mark.parametrize(
    ("nic", "kind", "message"),
    [
        (
            FakeNic(refusals={0x2E: errno.EOPNOTSUPP}),
            FlowSteeringUnsupportedError,
            "ethtool -L nic0 combined 1",
        ),
        (FakeNic(can_switch=False), FlowSteeringUnsupportedError, "not supported by nic0"),
        (FakeNic(refusals={0x32: errno.EPERM}), FlowSteeringError, "CAP_NET_ADMIN"),
        (FakeNic(refusals={0x32: errno.EINVAL}), FlowSteeringError, "may not filter on these fields"),
        (FakeNic(queues=3), FlowSteeringError, "there is no queue 3; use 0 to 2, or more queues"),
    ],
)
def test_a_refusal_contains_the_next_step(nic: FakeNic, kind: type[FlowSteeringError], message: str) -> None:
    """Not supported, not allowed and not possible are different errors, and nothing is left behind."""
    with FlowSteering(NIC, device=nic) as steering, pytest.raises(kind, match=message):
        steering.steer("239.77.1.2", 14400, 3)
    assert not nic.filters
    assert not nic.filters_on


def test_a_spread_over_nothing_is_refused() -> None:
    """Errors: traffic must go somewhere, and to a queue there is."""
    nic = FakeNic()
    with FlowSteering(NIC, device=nic) as steering:
        with pytest.raises(FlowSteeringError, match="name at least one queue"):
            steering.spread([])
        with pytest.raises(FlowSteeringError, match="there is no queue 7"):
            steering.spread([0, 7])
    assert nic.log == []
