"""Selects the NIC receive queue of a datagram: filters for flows, and the spread (RSS) of all other traffic.

`steer` adds a filter to the NIC (n-tuple: destination address and UDP port) that directs a group to one queue;
`spread` limits the queues over which other traffic is hashed (RSS). Both outlive the process, unlike everything else in
this package: the NIC records no owner. So `FlowSteering` is a context manager that undoes its changes, newest first.
After a crash, `ethtool -n IFACE` lists filters, `ethtool -N IFACE delete N` removes one, and `ethtool -X IFACE default`
restores the spread.

Uses the ethtool ioctl, which every driver with such filters supports. One thread at a time; works on the network
namespace of the calling thread.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import ipaddress
import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Protocol, TypeVar

from pyroute2.ethtool.ioctl import IoctlEthtool, NoSuchDevice, NotSupportedError

from umstack_xdp.closing import Closing
from umstack_xdp.errors import FlowSteeringError, FlowSteeringUnsupportedError
from umstack_xdp.interface import Interface, find_interface

T = TypeVar("T")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_SIOCETHTOOL = 0x8946
_GET_QUEUE_COUNT, _GET_FILTER_COUNT, _GET_FILTER, _GET_FILTERS = 0x2D, 0x2E, 0x2F, 0x30
_DELETE_FILTER, _INSERT_FILTER = 0x31, 0x32
_GET_SPREAD, _SET_SPREAD = 0x38, 0x39
_UDP_IPV4, _UDP_IPV6 = 0x02, 0x06
_LOCATION_SPECIAL = 0x80000000  # set in a filter count if the driver chooses locations
_LOCATION_ANY = 0xFFFFFFFF
_FILTER_FEATURE = "rx-ntuple-filter"
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOTTY)
_HINTS = {
    errno.EPERM: "run as root, or give the process CAP_NET_ADMIN",
    errno.ENOSPC: "the NIC has no space for more filters: ethtool -n IFACE lists them",
    errno.EEXIST: "such a filter is there already: ethtool -n IFACE lists them",
    errno.ENODEV: "the interface is gone: name another",
}


class _Ipv4Match(ctypes.Structure):
    """struct ethtool_tcpip4_spec."""

    _fields_: ClassVar = [
        ("source", ctypes.c_uint8 * 4),
        ("destination", ctypes.c_uint8 * 4),
        ("source_port", ctypes.c_uint16),
        ("destination_port", ctypes.c_uint16),
        ("type_of_service", ctypes.c_uint8),
    ]


class _Ipv6Match(ctypes.Structure):
    """struct ethtool_tcpip6_spec."""

    _fields_: ClassVar = [
        ("source", ctypes.c_uint8 * 16),
        ("destination", ctypes.c_uint8 * 16),
        ("source_port", ctypes.c_uint16),
        ("destination_port", ctypes.c_uint16),
        ("traffic_class", ctypes.c_uint8),
    ]


class _Match(ctypes.Union):
    """union ethtool_flow_union, the members used here; followed by struct ethtool_flow_ext, which is not used."""

    _fields_: ClassVar = [("ipv4", _Ipv4Match), ("ipv6", _Ipv6Match), ("raw", ctypes.c_uint8 * 72)]


class _Filter(ctypes.Structure):
    """struct ethtool_rx_flow_spec."""

    _fields_: ClassVar = [
        ("flow_type", ctypes.c_uint32),
        ("value", _Match),
        ("mask", _Match),
        ("queue", ctypes.c_uint64),
        ("location", ctypes.c_uint32),
    ]


class _FilterRequest(ctypes.Structure):
    """struct ethtool_rxnfc."""

    _fields_: ClassVar = [
        ("command", ctypes.c_uint32),
        ("flow_type", ctypes.c_uint32),
        ("data", ctypes.c_uint64),
        ("filter", _Filter),
        ("count", ctypes.c_uint32),
    ]


class _Envelope(ctypes.Structure):
    """struct ifreq for the ethtool ioctl."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char * 16),
        ("request", ctypes.c_void_p),
        ("unused", ctypes.c_uint8 * 16),
    ]


class Device(Protocol):
    """The NIC operations used here."""

    def call(self, request: ctypes.Array[ctypes.c_char] | ctypes.Structure) -> None:
        """Make one ethtool request, which the response overwrites; OSError if it is refused."""

    def is_on(self, feature: str) -> bool:
        """Return true if a feature is on."""

    def switch(self, feature: str, is_on: bool) -> None:
        """Turn a feature on or off; one that cannot be changed stays as it is."""


class EthtoolDevice:
    """The NIC of a named interface."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Store the name; opens nothing."""
        self._name = name

    def call(self, request: ctypes.Array[ctypes.c_char] | ctypes.Structure) -> None:
        """Make one ethtool request by ioctl."""

        envelope = _Envelope(self._name.encode(), ctypes.addressof(request))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_in:
            fcntl.ioctl(way_in, _SIOCETHTOOL, envelope)

    def is_on(self, feature: str) -> bool:
        """Return true if the feature exists and is on."""
        with self._ethtool() as ethtool:
            features = ethtool.get_features()
            return feature in features and bool(features[feature])

    def switch(self, feature: str, is_on: bool) -> None:
        """Turn a feature on or off."""
        with self._ethtool() as ethtool:
            features = ethtool.get_features()
            if feature in features:
                features[feature] = is_on
                ethtool.set_features(features)

    @contextmanager
    def _ethtool(self) -> Iterator[Any]:
        """Open pyroute2's ethtool access; convert its exceptions to OSError."""
        ethtool = IoctlEthtool(self._name)
        try:
            yield ethtool
        except NotSupportedError as error:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)) from error
        except NoSuchDevice as error:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from error
        finally:
            ethtool.close()


class FlowSteering(Closing):
    """Filters and spread of one NIC.

    Context manager. Leaving it undoes the changes, newest first.

    Example:
        ```python
        with xdp.FlowSteering("eth0") as nic:
            try:
                nic.steer("239.1.2.3", 14400, queue=0)
            except xdp.FlowSteeringUnsupportedError as error:
                print(error)
        ```
    """

    __slots__ = ("_device", "_name", "_undo")

    def __init__(self, interface: Interface | str, *, device: Device | None = None) -> None:
        """Select the NIC; changes nothing.

        Args:
            interface: The interface, or its name, address or network.
            device: Access to the NIC; by default the kernel's, other ones serve tests.
        """
        self._name = (interface if isinstance(interface, Interface) else find_interface(interface)).name
        self._device = device or EthtoolDevice(self._name)
        self._undo = ExitStack()

    def queue_count(self) -> int:
        """Return the number of receive queues that the NIC can use.

        Returns:
            The number of queues.

        Raises:
            FlowSteeringUnsupportedError: The NIC or its driver has no such function.
            FlowSteeringError: The NIC refuses; the hint names the next step.

        Example:
            ```python
            with xdp.FlowSteering("eth0") as nic:
                try:
                    print(nic.queue_count())
                except xdp.FlowSteeringUnsupportedError as error:
                    print(error)
            ```
        """
        return int(self._ask(_GET_QUEUE_COUNT, "reading the number of queues").data)

    def steer(self, address: Address | str, port: int, queue: int) -> int:
        """Receive UDP datagrams to that address and port on that queue.

        Args:
            address: Destination address: a group, or an address of the host.
            port: UDP destination port.
            queue: Receive queue, from 0.

        Returns:
            The filter's location in the NIC's table.

        Raises:
            FlowSteeringUnsupportedError: The NIC or its driver has no such function.
            FlowSteeringError: The NIC refuses; the hint names the next step.

        Example:
            ```python
            with xdp.FlowSteering("eth0") as nic:
                try:
                    print(nic.steer("239.1.2.3", 14400, queue=0))
                except xdp.FlowSteeringUnsupportedError as error:
                    print(error)
            ```
        """
        where = ipaddress.ip_address(address)
        what = f"steering {where} port {port} to queue {queue}"
        table = self._ask(_GET_FILTER_COUNT, what)
        self._check_queues([queue], what)
        self._turn_filters_on(what)
        wanted = _filter(where, port, queue, self._location(table, what))
        inserted = self._request(what, _FilterRequest(command=_INSERT_FILTER, filter=wanted))
        location = int(inserted.filter.location)
        wanted.location = location
        self._undo.callback(self._remove, wanted)
        return location

    def spread(self, queues: Collection[int]) -> None:
        """Hash traffic without a filter evenly over these queues only.

        Args:
            queues: Receive queues, at least one.

        Raises:
            FlowSteeringUnsupportedError: The NIC or its driver has no such function.
            FlowSteeringError: The NIC refuses; the hint names the next step.

        Example:
            ```python
            with xdp.FlowSteering("eth0") as nic:
                try:
                    nic.spread([0])
                except xdp.FlowSteeringUnsupportedError as error:
                    print(error)
            ```
        """
        what = f"spreading over queues {', '.join(map(str, queues)) or 'none'}"
        if not queues:
            raise FlowSteeringError(f"{what} on {self._name} is not possible", hint="name at least one queue")
        before = self._read_spread(what)
        self._check_queues(queues, what)
        order = sorted(queues)
        self._write_spread([order[i % len(order)] for i in range(len(before))], what)
        self._undo.callback(self._write_spread, before, "restoring the spread")

    def undo(self) -> None:
        """Undo all changes, newest first; a second call does nothing.

        All changes are tried, then the last error is raised.

        Example:
            ```python
            with xdp.FlowSteering("eth0") as nic:
                try:
                    nic.undo()
                except xdp.FlowSteeringUnsupportedError as error:
                    print(error)
            ```
        """
        self._undo.close()

    def close(self) -> None:
        """Undo all changes.

        Example:
            ```python
            xdp.FlowSteering("eth0").close()
            ```
        """
        self.undo()

    def _turn_filters_on(self, what: str) -> None:
        def is_on() -> bool:
            return self._device.is_on(_FILTER_FEATURE)

        if self._guarded(what, is_on):
            return
        self._guarded(what, lambda: self._device.switch(_FILTER_FEATURE, True))
        if not self._guarded(what, is_on):
            raise self._unsupported(what)
        self._undo.callback(
            self._guarded, "turning filters off", lambda: self._device.switch(_FILTER_FEATURE, False)
        )

    def _location(self, table: _FilterRequest, what: str) -> int:
        """Let the driver choose, or take the last free location as `ethtool` does: the first ones have priority."""
        if table.data & _LOCATION_SPECIAL:
            return _LOCATION_ANY
        taken = self._taken_locations(int(table.count), what)
        free = next((n for n in reversed(range(int(table.data))) if n not in taken), None)
        if free is None:
            raise self._refusal(what, errno.ENOSPC)
        return free

    def _taken_locations(self, count: int, what: str) -> set[int]:
        space = ctypes.create_string_buffer(ctypes.sizeof(_FilterRequest) + 4 * count)
        request = _FilterRequest.from_buffer(space)
        request.command, request.count = _GET_FILTERS, count
        self._guarded(what, lambda: self._device.call(space))
        # The locations start directly after the count, in padding of the struct.
        start = _FilterRequest.count.offset + 4
        return set((ctypes.c_uint32 * min(count, int(request.count))).from_buffer(space, start))

    def _remove(self, filter_: _Filter) -> None:
        """Remove our filter, unless others have removed or replaced it."""
        what = f"removing filter {filter_.location}"
        there = _FilterRequest(command=_GET_FILTER)
        there.filter.location = filter_.location
        try:
            self._device.call(there)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL, errno.ENODEV):
                return
            raise self._refusal(what, error.errno or 0) from error
        if _identity(there.filter) == _identity(filter_):
            self._request(what, _FilterRequest(command=_DELETE_FILTER, filter=filter_))

    def _read_spread(self, what: str) -> list[int]:
        size = (ctypes.c_uint32 * 2)(_GET_SPREAD, 0)
        self._guarded(what, lambda: self._device.call(_as_bytes(size)))
        table = (ctypes.c_uint32 * (2 + size[1]))(_GET_SPREAD, size[1])
        self._guarded(what, lambda: self._device.call(_as_bytes(table)))
        return list(table[2:])

    def _write_spread(self, queues: list[int], what: str) -> None:
        table = (ctypes.c_uint32 * (2 + len(queues)))(_SET_SPREAD, len(queues), *queues)
        self._guarded(what, lambda: self._device.call(_as_bytes(table)))

    def _check_queues(self, queues: Collection[int], what: str) -> None:
        count = self.queue_count()
        if wrong := [queue for queue in queues if not 0 <= queue < count]:
            raise FlowSteeringError(
                f"{what} on {self._name}: there is no queue {wrong[0]}",
                hint=f"use 0 to {count - 1}, or more queues: ethtool -L {self._name} combined N",
            )

    def _ask(self, command: int, what: str) -> _FilterRequest:
        return self._request(what, _FilterRequest(command=command))

    def _request(self, what: str, request: _FilterRequest) -> _FilterRequest:
        self._guarded(what, lambda: self._device.call(request))
        return request

    def _guarded(self, what: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except OSError as error:
            raise self._refusal(what, error.errno or 0) from error

    def _refusal(self, what: str, error_number: int) -> FlowSteeringError:
        if error_number in _UNSUPPORTED:
            return self._unsupported(what)
        hint = _HINTS.get(error_number, "the driver may not filter on these fields: ethtool -n IFACE")
        return FlowSteeringError(
            f"{what} on {self._name}: {os.strerror(error_number)}", hint=hint.replace("IFACE", self._name)
        )

    def _unsupported(self, what: str) -> FlowSteeringUnsupportedError:
        return FlowSteeringUnsupportedError(
            f"{what}: not supported by {self._name}",
            hint=f"put a socket on every receive queue, or have one queue: ethtool -L {self._name} combined 1",
        )


def _filter(address: Address, port: int, queue: int, location: int) -> _Filter:
    found = _Filter(
        flow_type=_UDP_IPV4 if address.version == 4 else _UDP_IPV6, queue=queue, location=location
    )
    for match, destination, wire_port in (
        (found.value, address.packed, socket.htons(port)),
        (found.mask, b"\xff" * len(address.packed), 0xFFFF),
    ):
        part = match.ipv4 if address.version == 4 else match.ipv6
        part.destination[:] = destination
        part.destination_port = wire_port
    return found


def _identity(filter_: _Filter) -> tuple[int, bytes, int]:
    return int(filter_.flow_type), bytes(filter_.value), int(filter_.queue)


def _as_bytes(numbers: ctypes.Array[ctypes.c_uint32]) -> ctypes.Array[ctypes.c_char]:
    """Return the same memory as bytes."""
    return (ctypes.c_char * ctypes.sizeof(numbers)).from_buffer(numbers)
