"""CoreContext: a context of the C core, the options and sizes in effect, and the checks of its results."""

from __future__ import annotations

import os
import threading
from random import SystemRandom
from typing import Any, Protocol

import umstack_xdp as xdp
from umstack._core import ffi, lib
from umstack._engine.core_address import core_ip
from umstack._engine.link import DataLink
from umstack.config import ContextOptions
from umstack.errors import Closed, Forked, InterfaceError, OptionError, error_from_result
from umstack.sizing import IPV6_UDP_HEADER_BYTES, datagram_size, memory_size, udp_payload_bytes
from umstack_xdp.modes import Mode

_REORDERED_MESSAGES_MAX = 262144
_COALESCE_NS = 300_000
_SCOPES = {
    "none": lib.UM_AUTHENTICATE_NONE,
    "control": lib.UM_AUTHENTICATE_CONTROL,
    "all": lib.UM_AUTHENTICATE_ALL,
}
_ERRNO_MAX = 1000
"""A result below -_ERRNO_MAX is an error of the core itself, not the errno of a failed system call."""


class _Memory:
    """The memory of the core's context. It is unmapped when nothing refers to it any more."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def disown(self) -> None:
        """Never unmap it."""
        self._handle = None

    def __del__(self) -> None:
        if self._handle is not None:
            lib.um_context_free(self._handle)


class Responds(Protocol):
    """Sends responses to the senders of requests."""

    def respond(
        self,
        topic: str,
        source: str,
        requester: tuple[str, int],
        index: int,
        data: memoryview,
        timeout: float | None,
    ) -> None:
        """Send a response to the request of this number, which came on a topic from the source of this name."""


class CoreContext:
    """Owns the core's context. `close()` ends it; its memory is unmapped when nothing refers to it any more."""

    __slots__ = (
        "_link",
        "_memory",
        "_tap",
        "closed",
        "datagram_bytes",
        "datagram_max_bytes",
        "forked",
        "handle",
        "interface",
        "ipv6_datagram_bytes",
        "is_fragmented",
        "lifecycle",
        "options",
        "receiver_id",
        "responder",
    )

    def __init__(
        self, options: ContextOptions, interface: xdp.Interface, link: DataLink, *, is_fragmented: bool
    ) -> None:
        """Create the core's context on a link. Raises the UmError of the step that failed.

        With `is_fragmented`, datagrams have the configured size whatever the MTU, and IP fragments them.
        """
        self.options = options
        self.interface = interface
        self.closed = False
        self.forked = False
        """True in a child that was forked after the context was opened. The child owns none of it."""
        self.receiver_id = SystemRandom().getrandbits(64)
        self.responder: Responds | None = None
        """Sends responses to the requests that receivers get. Set before the first receiver is made."""
        self.is_fragmented = is_fragmented
        self._link = link
        self.datagram_max_bytes = memory_size(self._size_at(interface.mtu_bytes))
        self.datagram_bytes = self._bounded_by_link(self._size_at(interface.mtu_bytes))
        self.ipv6_datagram_bytes = self._ipv6_size_at(interface.mtu_bytes)
        self.lifecycle = threading.RLock()
        """Held while an object is made or the context is closed, so that any thread may do either."""
        self._tap: object = None
        self.handle = self._create()
        self._memory = _Memory(self.handle)

    def _create(self) -> Any:
        options = self.options
        config = ffi.new("um_context_config *")
        config.interface = self.interface.name.encode()
        config.interface_ip = core_ip(self.interface.address or "0.0.0.0")
        config.interface_ipv6 = core_ip(self.interface.ipv6_address or "0.0.0.0")
        config.ttl = options.resolver_multicast_ttl
        config.traffic_class = options.traffic_class
        config.source_buffer_bytes = options.transport_lbtrm_source_socket_buffer_bytes
        config.receiver_buffer_bytes = options.transport_lbtrm_receiver_socket_buffer_bytes
        config.receive_batch = min(max(options.multiple_receive_maximum_datagrams, 1), 32)
        config.gso = options.link_gso
        # GRO holds datagrams until a poll ends, so busy polling would delay each datagram by the whole poll.
        config.gro = options.link_gro and options.pend_busy_poll_limit == 0
        config.fragments = self.is_fragmented
        config.timestamps = options.transport_lbtrm_receiver_timestamp
        config.is_source_specific = options.multicast_sources is not None
        config.busy_wait = options.file_descriptor_management_behavior == "busy_wait"
        config.ipc_busy_wait = options.transport_lbtipc_receiver_thread_behavior == "busy_wait"
        config.busy_poll_us = options.pend_busy_poll_limit
        config.spin_ns = options.pend_linger_interval_ns
        # On one processor no other thread can send while this one polls.
        config.adaptive_spin_ns = options.pend_adaptive_linger_limit_ns if (os.cpu_count() or 1) > 1 else 0
        config.coalesce_ns = min(_COALESCE_NS, options.pend_coalescing_limit_ns)
        config.coalesce_max_ns = options.pend_coalescing_limit_ns
        config.data_rate_bps = options.transport_lbtrm_data_rate_limit_bits_per_second
        config.retransmit_rate_bps = options.transport_lbtrm_retransmit_rate_limit_bits_per_second
        config.rate_interval_ns = options.transport_lbtrm_rate_interval_ns
        config.lbtru.data_rate_bps = options.transport_lbtru_data_rate_limit_bits_per_second
        config.lbtru.retransmit_rate_bps = options.transport_lbtru_retransmit_rate_limit_bits_per_second
        config.lbtru.rate_interval_ns = options.transport_lbtru_rate_interval_ns
        config.lbtru.source_buffer_bytes = options.transport_lbtru_source_socket_buffer_bytes
        config.lbtru.receiver_buffer_bytes = options.transport_lbtru_receiver_socket_buffer_bytes
        config.hold_datagrams = options.delivery_hold_datagrams
        config.hold_messages = _REORDERED_MESSAGES_MAX
        config.datagram_max_bytes = max(
            self.datagram_max_bytes, options.transport_lbtrm_receiver_datagram_max_size_bytes
        )
        config.random_seed = SystemRandom().getrandbits(64)
        config.authentication_scope = _SCOPES[options.authentication_scope]
        config.authentication_tolerance_ns = options.authentication_time_tolerance_ns
        config.rings = ffi.cast("um_rings *", self._link.rings_address)
        config.joins_datagrams = self._link.mode is Mode.GENERIC
        created = ffi.new("um_context **")
        result = lib.um_context_create(config, created)
        handle = created[0]
        if result < 0:
            step = ffi.string(lib.um_context_failed_step(handle)).decode() if handle else "memory"
            if handle:
                lib.um_context_close(handle)
                lib.um_context_free(handle)
            raise error_from_result(result, f"context on {self.interface.name}: {step}")
        return handle

    def _bounded_by_link(self, datagram_bytes: int) -> int:
        """Return the datagram size in effect if the rings cannot carry the largest that fits the MTU, else None."""
        most = self._link.datagram_max_bytes
        return datagram_bytes if most is None else min(datagram_bytes, most)

    def _size_at(self, mtu_bytes: int) -> int:
        configured = self.options.source_datagram_size_bytes
        return configured if self.is_fragmented else datagram_size(mtu_bytes, configured)

    def _ipv6_size_at(self, mtu_bytes: int) -> int:
        """Return the datagram size to IPv6 groups: a configured size that IP fragments anyway is the same."""
        if self.is_fragmented:
            return self.datagram_bytes
        return min(self.datagram_bytes, udp_payload_bytes(mtu_bytes, IPV6_UDP_HEADER_BYTES))

    def ipv6_address(self, group: str) -> str:
        """Return the address for an IPv6 group. Raises OptionError over rings, InterfaceError if there is none."""
        if self._link.kind == "xdp":
            raise OptionError(
                f"the group {group} is of IPv6, which AF_XDP rings do not carry",
                hint="open the context with link=socket",
            )
        interface = self.interface
        if interface.ipv6_address is None:
            raise InterfaceError(
                f"interface {interface.name} has no IPv6 address, which the group {group} needs",
                hint=f"ip address add ADDRESS/64 dev {interface.name}; sysctl "
                f"net.ipv6.conf.{interface.name}.disable_ipv6=0",
            )
        return interface.ipv6_address

    def set_mtu(self, mtu_bytes: int) -> None:
        """Follow the interface's MTU. A configured size that no longer fits is replaced by one that does."""
        self.datagram_bytes = self._bounded_by_link(min(self._size_at(mtu_bytes), self.datagram_max_bytes))
        self.ipv6_datagram_bytes = self._ipv6_size_at(mtu_bytes)
        lib.um_context_set_datagram_max(self.handle, self.datagram_bytes, self.ipv6_datagram_bytes)

    def follow_interface(self, interface: xdp.Interface, *, has_returned: bool) -> int:
        """Join the groups again, and send by the interface as it is now. Returns the core's result.

        `has_returned`: it was gone, so the kernel has left its groups even if it is the same one.
        """
        self.interface = interface
        ip, ipv6 = (
            ffi.new("um_ip *", core_ip(address or "0.0.0.0"))
            for address in (interface.address, interface.ipv6_address)
        )
        name = interface.name.encode()
        return int(lib.um_context_follow_interface(self.handle, name, ip[0], ipv6[0], has_returned))

    def check(self, result: int, doing: str) -> int:
        """Return a result of the core. Raises the matching UmError if it is negative."""
        if result < 0:
            if result == lib.UM_CLOSED:
                raise self.closed_error(f"{doing}: the context")
            step = ffi.string(lib.um_context_failed_step(self.handle)).decode()
            raise error_from_result(result, f"{doing} ({step})" if step and result > -_ERRNO_MAX else doing)
        return result

    def check_open(self) -> None:
        """Raise Closed once the context is closed."""
        if self.closed:
            raise self.closed_error("the context")

    def check_owned(self, what: str) -> None:
        """Raise Forked in a child that was forked after the context was opened (the fork guard)."""
        if self.forked:
            raise self.closed_error(what)

    def closed_error(self, what: str) -> Closed:
        """Return the error for use of a closed object, or of one that belongs to the parent process."""
        if self.forked:
            return Forked(f"{what} belongs to the process that this one was forked from")
        return Closed(f"{what} is closed")

    def disown(self) -> None:
        """Give up ownership, in a forked child. Locks are replaced because their holders do not exist here."""
        self.closed = self.forked = True
        self.lifecycle = threading.RLock()
        self._tap = None
        self._memory.disown()

    @property
    def has_tap(self) -> bool:
        """True while a tap runs."""
        return self._tap is not None

    def set_tap(self, tap: object) -> None:
        """Remember the running tap, so that end_tap() stops only that one."""
        self._tap = tap

    def end_tap(self, tap: object, counters: Any) -> int:
        """Stop a tap and copy its counters. Returns the core's result, or 0 if the tap has already stopped."""
        with self.lifecycle:
            if self._tap is not tap:
                return 0
            self._tap = None
            return int(lib.um_context_tap_stop(self.handle, counters))

    def close(self) -> None:
        """Leave the groups, stop the context thread and close the sockets. The caller has set `closed`."""
        lib.um_context_close(self.handle)
