"""Steering: the XDP program that redirects datagrams to chosen (address, UDP port) pairs into AF_XDP sockets.

`bpf/steering_judge.h` defines what the programs do, `bpf/steering.h` the layout of the maps and the verdicts.
Datagrams without a rule or a socket are passed to the kernel unchanged. Nothing is pinned: when a `Steering` is closed
or its process ends, the program is detached and its maps are freed.

One thread at a time changes rules and sockets; any thread may read the counters.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

from umstack_xdp.attachment import Attachment, AttachMode
from umstack_xdp.closing import Closing
from umstack_xdp.errors import BpfError, SteeringError
from umstack_xdp.interface import Interface, find_interface
from umstack_xdp.loader import BpfMap, BpfObject, BpfProgram, libbpf

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LINEAR = "_linear"
"""Suffix of the name of the program for kernels without multi-buffer frames."""
# Entries of the hash map per rule: one for the rule and, at worst, one for its address.
_ENTRIES_PER_RULE = 2
_ANY_PORT = 0
_AF_XDP = 44
_PORT_MAX = 65535
_FRAME_HEADERS_BYTES = 18
"""An Ethernet header with a VLAN tag."""
_NO_LIMIT = 2**32 - 1
_VLAN_MAX = 4094


class FrameTimes(StrEnum):
    """The times that the program stores in front of redirected frames.

    bpf/steering_time.h has their layout.

    Example:
        ```python
        with xdp.Steering(frame_times=xdp.FrameTimes.KERNEL) as program:
            print(program.frame_times)
        ```
    """

    NONE = "none"
    KERNEL = "kernel"
    """The kernel's time when the program runs."""
    NIC = "nic"
    """Also the NIC's, if its driver provides it: needs a program for this one interface in native mode."""


@dataclass(frozen=True, slots=True)
class RuleCounters:
    """One rule, and the counts of its datagrams.

    Example:
        ```python
        for rule in steering.counters().rules:
            print(rule.address, rule.port, rule.redirected)
        ```
    """

    address: Address
    port: int
    vlan: int
    """The VLAN whose datagrams it matches; 0: datagrams without a tag."""
    slot: int
    redirected: int
    """Redirected to a socket."""
    no_socket: int
    """Passed to the kernel because the slot and receive queue had no socket."""
    fragments: int
    """Passed IP fragments to the address. If several rules have the address, the oldest counts them all, because only
    the first fragment of a datagram contains a port."""
    joined: int
    """Passed frames longer than the interface carries: datagrams joined by GSO or GRO, in generic mode."""


@dataclass(frozen=True, slots=True)
class SteeringCounters:
    """Counters of the program since it was attached.

    Example:
        ```python
        counters = steering.counters()
        print(counters.frames, counters.verdicts["redirected"])
        ```
    """

    verdicts: dict[str, int]
    """Frames by verdict; the names are those of `enum steering_verdict` in bpf/steering.h in lower case."""
    rules: tuple[RuleCounters, ...]
    """The current rules in the order in which they were added."""

    @property
    def frames(self) -> int:
        """Number of frames received; each has exactly one verdict."""
        return sum(self.verdicts.values())


class _Destination(NamedTuple):
    address: Address
    port: int
    vlan: int


@dataclass(frozen=True, slots=True)
class _Rule:
    slot: int
    number: int


class Steering(Closing):
    """The steering program on one interface.

    Context manager. Closing it detaches the program and frees it with its maps.

    Example:
        ```python
        with xdp.Steering.attach("eth0", xdp.AttachMode.NATIVE) as program:
            program.add_rule("239.1.2.3", 14400, slot=0)
            with xdp.RingSet("eth0", xdp.RingMode.COPY) as rings:
                for queue, socket_fd in rings.sockets.items():
                    program.put_socket(0, queue, socket_fd)
        ```
    """

    __slots__ = (
        "_attachment",
        "_frame_bytes_max",
        "_max_rules",
        "_max_slots",
        "_object",
        "_rules",
        "frame_times",
        "has_frags",
        "program",
    )

    def __init__(
        self,
        *,
        max_slots: int = 64,
        max_rules: int = 256,
        frame_times: FrameTimes = FrameTimes.NONE,
        device_index: int = 0,
        frame_bytes_max: int = _NO_LIMIT,
    ) -> None:
        """Load the program without attaching it; most callers use `Steering.attach`.

        With FrameTimes.NIC the program is bound to one interface. If the kernel cannot load a program with
        these times, the
        next simpler one is loaded; `frame_times` is the result.

        Args:
            max_slots: Number of slots, each with a socket per queue.
            max_rules: Maximum number of rules.
            frame_times: The times to store in front of frames.
            device_index: Index of the interface, for FrameTimes.NIC.
            frame_bytes_max: Longest redirected frame; longer ones hold joined datagrams and are passed.

        Raises:
            SteeringError: A maximum is below 1.
            BpfError: The kernel refuses.
        """
        if max_slots < 1 or max_rules < 1:
            raise SteeringError(
                "no space for a slot or for a rule", hint="use max_slots and max_rules of at least 1"
            )
        self._max_slots, self._max_rules = max_slots, max_rules
        self._frame_bytes_max = frame_bytes_max
        self._rules: dict[_Destination, _Rule] = {}
        self._attachment: Attachment | None = None
        self._object, self.program, self.frame_times = _load_with_times(
            frame_times,
            device_index,
            {
                "rules": max_rules * _ENTRIES_PER_RULE,
                "rule_hits": max_rules,
                "sockets": max_slots * queues_max(),
            },
        )
        self.has_frags = not self.program.name.endswith(_LINEAR)
        """True if frames of several buffers (jumbo frames) can be received; false on kernels before 5.18."""

    @classmethod
    def attach(
        cls,
        interface: Interface | str,
        mode: AttachMode,
        *,
        max_slots: int = 64,
        max_rules: int = 256,
        frame_times: FrameTimes = FrameTimes.NONE,
    ) -> Self:
        """Load the program and attach it to the interface.

        Args:
            interface: The interface, or its name, address or network. It must have no other XDP program.
            mode: Where the program runs. No other mode is tried.
            max_slots: Number of slots, each with a socket per queue.
            max_rules: Maximum number of rules.
            frame_times: The times to store in front of frames; in generic mode the NIC has none.

        Returns:
            The attached program.

        Raises:
            OccupiedError: The interface has an XDP program; the error names it.
            AttachError: The kernel or the driver refuses.
            BpfError: The program cannot be loaded.

        Example:
            ```python
            with xdp.Steering.attach("eth0", xdp.AttachMode.GENERIC) as program:
                print(program.attachment.mode)
            ```
        """
        interface = interface if isinstance(interface, Interface) else find_interface(interface)
        if mode is AttachMode.GENERIC and frame_times is FrameTimes.NIC:
            frame_times = FrameTimes.KERNEL  # this mode does not involve the driver
        steering = cls(
            max_slots=max_slots,
            max_rules=max_rules,
            frame_times=frame_times,
            device_index=interface.index,
            frame_bytes_max=(
                interface.mtu_bytes + _FRAME_HEADERS_BYTES if mode is AttachMode.GENERIC else _NO_LIMIT
            ),
        )
        try:
            steering._attachment = Attachment(steering.program, interface, mode)
        except BaseException:
            steering.close()
            raise
        return steering

    @property
    def attachment(self) -> Attachment | None:
        """The attachment of the program to its interface."""
        return self._attachment

    def attached(self) -> bool:
        """Return true if the program is attached now.

        Others may detach it or remove the interface.

        Returns:
            True while it is attached.

        Example:
            ```python
            print(steering.attached())
            ```
        """
        return self._attachment is not None and self._attachment.is_held

    def reattach(self) -> None:
        """Attach the program again after someone detached it.

        Rules, sockets and counters are unchanged. Does nothing if it is still attached.

        Raises:
            SteeringError: The program was never attached.
            OccupiedError: The interface has another XDP program.

        Example:
            ```python
            with xdp.Steering.attach("eth0", xdp.AttachMode.NATIVE) as program:
                program.reattach()
            ```
        """
        if self._attachment is None:
            raise SteeringError("the program was attached to nothing", hint="use Steering.attach")
        if not self._attachment.is_held:
            self._attachment.close()
            self._attachment = Attachment(
                self.program, self._attachment.interface.name, self._attachment.mode
            )

    def map(self, name: str) -> BpfMap:
        """Return one of the program's maps.

        Args:
            name: Its name in bpf/steering.bpf.c.

        Returns:
            The map; valid until `close`.

        Raises:
            BpfError: There is no such map.

        Example:
            ```python
            print(steering.map("rules").max_entries)
            ```
        """
        return self._object.map(name)

    def add_rule(self, address: Address | str, port: int, slot: int, vlan: int = 0) -> None:
        """Redirect UDP datagrams to an address and port into the sockets of a slot.

        A NIC that strips tags (rx-vlan-hw-parse) hides them from the program.

        Args:
            address: Destination address, IPv4 or IPv6.
            port: UDP destination port, 1 to 65535.
            slot: Slot, below `max_slots`.
            vlan: The VLAN (802.1Q) of matching datagrams; 0: datagrams without a tag.

        Raises:
            SteeringError: The address, port or slot is invalid, a rule for it exists, or the table is full.
            BpfError: The kernel refuses.

        Example:
            ```python
            steering.add_rule("239.1.2.3", 14400, slot=0)
            steering.remove_rule("239.1.2.3", 14400)
            ```
        """
        where = _destination(address, port, vlan)
        self._check_slot(slot)
        if (there := self._rules.get(where)) is not None:
            raise SteeringError(
                f"{_shown(where)} is steered to slot {there.slot} already", hint="remove that rule first"
            )
        rule = _Rule(slot, self._free_number())
        self._clear_hits(rule.number)
        self._rules[where] = rule
        try:
            self._write_rule(where, rule)
            self._claim_fragments(where)
        except BpfError:
            self._erase_rule(where)
            raise

    def remove_rule(self, address: Address | str, port: int, vlan: int = 0) -> None:
        """Pass datagrams to that address and port to the kernel again.

        Args:
            address: Address of an existing rule.
            port: Its port.
            vlan: Its VLAN; 0: none.

        Raises:
            SteeringError: There is no such rule; the hint lists the rules.

        Example:
            ```python
            steering.add_rule("239.1.2.4", 14400, slot=0)
            steering.remove_rule("239.1.2.4", 14400)
            ```
        """
        where = _destination(address, port, vlan)
        if where not in self._rules:
            raise SteeringError(f"{_shown(where)} is not steered", hint=f"use one of {self._list()}")
        self._erase_rule(where)

    def put_socket(self, slot: int, queue: int, xsk_fd: int) -> None:
        """Redirect matches of a slot's rules on one receive queue to an AF_XDP socket.

        The socket replaces any other there. The kernel removes it when it is closed.

        Args:
            slot: Slot, below `max_slots`.
            queue: Receive queue.
            xsk_fd: Descriptor of the AF_XDP socket.

        Raises:
            SteeringError: The slot or queue does not exist, or the descriptor is not an AF_XDP socket.
            BpfError: The kernel refuses for another reason.

        Example:
            ```python
            with xdp.RingSet("eth0", xdp.RingMode.COPY) as rings:
                queue, socket_fd = next(iter(rings.sockets.items()))
                steering.put_socket(0, queue, socket_fd)
                steering.remove_socket(0, queue)
            ```
        """
        what = f"putting descriptor {xsk_fd} at slot {slot}, queue {queue}"
        try:
            self.map("sockets").write(_number_bytes(xsk_fd), self._socket_index(slot, queue))
        except BpfError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOTSOCK, errno.EBADF):
                raise SteeringError(f"{what}: it is no AF_XDP socket", hint="open one first") from error
            raise

    def has_socket(self, slot: int, queue: int) -> bool:
        """Return true while a socket is in the slot.

        It stays until every process that holds the socket has closed it. The kernel does not allow reading
        the entry, but it
        refuses to add one where there is one already.

        Args:
            slot: Slot, below `max_slots`.
            queue: Receive queue.

        Returns:
            True if there is a socket.

        Raises:
            SteeringError: The slot or queue does not exist.

        Example:
            ```python
            with xdp.RingSet("eth0", xdp.RingMode.COPY) as rings:
                queue, socket_fd = next(iter(rings.sockets.items()))
                steering.put_socket(0, queue, socket_fd)
                assert steering.has_socket(0, queue)
            ```
        """
        with socket.socket(_AF_XDP, socket.SOCK_RAW) as probe:
            index = self._socket_index(slot, queue)
            if not self.map("sockets").insert(_number_bytes(probe.fileno()), index):
                return True
            self.map("sockets").erase(index)
            return False

    def detach(self) -> None:
        """Detach the program; program and maps stay until `close`.

        Example:
            ```python
            with xdp.Steering.attach("eth0", xdp.AttachMode.NATIVE) as program:
                program.detach()
            ```
        """
        if self._attachment is not None:
            self._attachment.close()
            self._attachment = None

    def remove_socket(self, slot: int, queue: int) -> None:
        """Remove a socket; its datagrams are then passed to the kernel.

        Args:
            slot: Slot, below `max_slots`.
            queue: Receive queue.

        Raises:
            SteeringError: The slot or queue does not exist.

        Example:
            ```python
            with xdp.RingSet("eth0", xdp.RingMode.COPY) as rings:
                queue, socket_fd = next(iter(rings.sockets.items()))
                steering.put_socket(0, queue, socket_fd)
                steering.remove_socket(0, queue)
            ```
        """
        self.map("sockets").erase(self._socket_index(slot, queue))

    def counters(self) -> SteeringCounters:
        """Return all counters, each summed over the CPUs.

        Any thread may call it.

        Returns:
            Frames by verdict, and the counts of each rule.

        Example:
            ```python
            print(steering.counters().verdicts)
            ```
        """
        verdicts = self.map("verdicts")
        return SteeringCounters(
            {
                name: sum(
                    int.from_bytes(count, sys.byteorder)
                    for count in verdicts.read_per_cpu(_number_bytes(index))
                )
                for index, name in enumerate(verdict_names())
            },
            tuple(self._rule_counters()),
        )

    def close(self) -> None:
        """Detach and free the program and its maps; a second call does nothing.

        Example:
            ```python
            xdp.Steering().close()
            ```
        """
        if self._attachment is not None:
            self._attachment.close()
        self._object.close()

    def _rule_counters(self) -> Iterator[RuleCounters]:
        hits, from_buffer = self.map("rule_hits"), libbpf().ffi.from_buffer
        for (address, port, vlan), rule in self._rules.items():
            values = hits.read_per_cpu(_number_bytes(rule.number))
            found = [from_buffer("struct steering_rule_hits *", value) for value in values]
            yield RuleCounters(
                address,
                port,
                vlan,
                rule.slot,
                redirected=sum(int(one.redirected) for one in found),
                no_socket=sum(int(one.no_socket) for one in found),
                fragments=sum(int(one.fragments) for one in found),
                joined=sum(int(one.joined) for one in found),
            )

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self._max_slots:
            raise SteeringError(
                f"there is no slot {slot}", hint=f"use 0 to {self._max_slots - 1}, or more max_slots"
            )

    def _socket_index(self, slot: int, queue: int) -> bytes:
        self._check_slot(slot)
        if not 0 <= queue < queues_max():
            raise SteeringError(
                f"queue {queue} cannot be steered to",
                hint=f"use 0 to {queues_max() - 1}: fewer queues with ethtool -L IFACE combined N",
            )
        return _number_bytes(slot * queues_max() + queue)

    def _free_number(self) -> int:
        taken = {rule.number for rule in self._rules.values()}
        if len(taken) == self._max_rules:
            raise SteeringError(
                f"there are {self._max_rules} rules, which is all there is space for",
                hint="remove one, or attach with more max_rules",
            )
        return next(number for number in range(self._max_rules) if number not in taken)

    def _clear_hits(self, number: int) -> None:
        self.map("rule_hits").clear(_number_bytes(number))

    def _write_rule(self, where: _Destination, rule: _Rule) -> None:
        value = libbpf().ffi.new("struct steering_rule *", (rule.slot, rule.number, self._frame_bytes_max))
        self.map("rules").write(bytes(libbpf().ffi.buffer(value)), rule_key(*where))

    def _claim_fragments(self, where: _Destination) -> None:
        """Make the oldest rule of the address in that VLAN count its fragments."""
        whole = where._replace(port=_ANY_PORT)
        oldest = next(
            (rule for one, rule in self._rules.items() if one._replace(port=_ANY_PORT) == whole), None
        )
        if oldest is not None:
            self._write_rule(whole, oldest)
        else:
            self._erase(whole)

    def _erase_rule(self, where: _Destination) -> None:
        del self._rules[where]
        self._erase(where)
        self._claim_fragments(where)

    def _erase(self, where: _Destination) -> None:
        try:
            self.map("rules").erase(rule_key(*where))
        except BpfError as error:
            if error.errno != errno.ENOENT:
                raise

    def _list(self) -> str:
        return ", ".join(map(_shown, self._rules)) or "none: there are no rules"


def queues_max() -> int:
    """Return the number of receive queues that a slot supports."""
    return int(libbpf().lib.STEERING_QUEUES_MAX)


def verdict_names() -> tuple[str, ...]:
    """Return the names of the verdicts, in the order of their numbers: `redirected` first."""
    elements: dict[int, str] = libbpf().ffi.typeof("enum steering_verdict").elements
    return tuple(elements[n].removeprefix("STEERING_").lower() for n in range(libbpf().lib.STEERING_VERDICTS))


def rule_key(address: Address, port: int, vlan: int = 0) -> bytes:
    """Return a key of the map `rules`; port 0 stands for fragments to the address, VLAN 0 for no tag."""
    packed = address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
    key = libbpf().ffi.new("struct steering_rule_key *", (packed, socket.htons(port), vlan))
    return bytes(libbpf().ffi.buffer(key))


_TIMES_DOWNWARDS = (FrameTimes.NIC, FrameTimes.KERNEL, FrameTimes.NONE)
_PROGRAMS = {
    FrameTimes.NIC: ("steering_timed", "steering_nic_timed"),
    FrameTimes.KERNEL: ("steering_timed", "steering_timed"),
    FrameTimes.NONE: ("steering", "steering"),
}
"""The object file and the program in it."""


def _load_with_times(
    wanted: FrameTimes, device_index: int, map_entries: dict[str, int]
) -> tuple[BpfObject, BpfProgram, FrameTimes]:
    """Load the program for these times or, if this kernel cannot, the next simpler one."""
    for times in _TIMES_DOWNWARDS[_TIMES_DOWNWARDS.index(wanted) :]:
        try:
            if times is FrameTimes.NIC:
                file, name = _PROGRAMS[times]
                loaded = BpfObject(file, program=name, map_entries=map_entries, device_index=device_index)
                return loaded, loaded.program(name), times
            return (*_load(*_PROGRAMS[times], map_entries), times)
        except BpfError as refusal:
            # A missing privilege affects all of them; a verifier error may affect only this one.
            if times is FrameTimes.NONE or refusal.errno == errno.EPERM:
                raise
    raise AssertionError("the last one was either loaded or refused")


def _load(file: str, name: str, map_entries: dict[str, int]) -> tuple[BpfObject, BpfProgram]:
    """Load the program with multi-buffer frames or, on a kernel without them, the other one."""
    try:
        loaded = BpfObject(file, program=name, map_entries=map_entries)
    except BpfError as refusal:
        # The error of kernels that do not know the multi-buffer flag; it has other causes too.
        if refusal.errno != errno.EINVAL:
            raise
        name += _LINEAR
        try:
            loaded = BpfObject(file, program=name, map_entries=map_entries)
        except BpfError as second:
            raise (refusal if second.errno == errno.EINVAL else second) from None
    return loaded, loaded.program(name)


def _number_bytes(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)


def _destination(address: Address | str, port: int, vlan: int) -> _Destination:
    try:
        parsed = ipaddress.ip_address(address) if isinstance(address, str) else address
    except ValueError as error:
        raise SteeringError(
            f"{address} is not an IP address", hint="use one like 239.1.2.3 or ff15::1234"
        ) from error
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.scope_id is not None:
            parsed = ipaddress.IPv6Address(parsed.packed)
        if parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
    if not 1 <= port <= _PORT_MAX:
        raise SteeringError(f"port {port} cannot be steered", hint=f"use 1 to {_PORT_MAX}")
    if not 0 <= vlan <= _VLAN_MAX:
        raise SteeringError(f"there is no VLAN {vlan}", hint=f"use 1 to {_VLAN_MAX}, or 0 for no VLAN")
    return _Destination(parsed, port, vlan)


def _shown(where: _Destination) -> str:
    shown = (
        f"{where.address}:{where.port}" if where.address.version == 4 else f"[{where.address}]:{where.port}"
    )
    return f"{shown} of VLAN {where.vlan}" if where.vlan else shown
