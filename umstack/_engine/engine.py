"""Engine: the services of one context: link, core, registry, sessions, dispatch and duty cycle."""

from __future__ import annotations

import errno
import logging
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import umstack_xdp as xdp
from umstack._core import ffi, lib
from umstack._engine.core_address import UNKNOWN_IP, ip_text, is_ipv6
from umstack._engine.core_context import CoreContext
from umstack._engine.dispatch import Dispatch, DispatchThreads, DonatedDispatch
from umstack._engine.duty_cycle import DutyCycle
from umstack._engine.endpoint import Endpoint
from umstack._engine.group_members import members_of_groups
from umstack._engine.host_identity import host_id
from umstack._engine.interface_changes import interface_change_number
from umstack._engine.keyring import Keyring
from umstack._engine.link import DataLink, Group, LinkStep
from umstack._engine.queue_memory import QueueMemory
from umstack._engine.receiver_sessions import receiver_session_config
from umstack._engine.registry import Registry
from umstack._engine.session_options import ignored_receiver_options
from umstack._engine.sessions import SessionPool
from umstack._engine.source_events import note_interface
from umstack._engine.subscription import LateMapping, Mapped, MappingRequest, Subscription, map_sources
from umstack._engine.tcp_peers import TcpPeers
from umstack._engine.transport_address import (
    LbtipcAddress,
    LbtrmAddress,
    LbtruAddress,
    TcpAddress,
    TransportAddress,
    address_of,
    transport_name,
)
from umstack._engine.waiting import SEQUENTIAL_SLICE_NS, SLICE_NS, timeout_ns
from umstack.config import ContextOptions, LintWarning, ReceiverOptions, lint_datagram_size
from umstack.errors import InterfaceError, OptionError, UmError
from umstack.repeated_records import RepeatedRecords
from umstack.sizing import udp_payload_bytes
from umstack_xdp.modes import Mode, Wanted

_GROUPS_MAX: int = lib.UM_RECEIVING_GROUPS_MAX

_SOURCE_SPECIFIC_PREFIXES = ("232.", "ff3")
"""Groups for source-specific multicast (RFC 4607): 232.0.0.0/8 and ff3x::/32."""

_log = logging.getLogger("umstack.resolution")
_records = RepeatedRecords(_log)
_ignored_records = RepeatedRecords(logging.getLogger("umstack.receiver"))


# The child of a fork has none of a context's threads, and its sockets, rings and sequence numbers are the parent's.
_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _disown_all() -> None:
    for engine in list(_open_engines):
        engine.disown()


os.register_at_fork(after_in_child=_disown_all)


def _open_link(options: ContextOptions, interface: xdp.Interface, fragmented: LintWarning | None) -> DataLink:
    """Open the link. Rings are not tried if IP has to fragment datagrams.

    The module that opens rings is imported only when needed: its import is slower than the rest."""
    if options.link == Wanted.SOCKET:
        return DataLink([LinkStep(Mode.SOCKET)])
    if fragmented is not None:
        remedy = f"set {fragmented.options[0]} to {udp_payload_bytes(interface.mtu_bytes)} or less, or to 0"
        steps = [
            LinkStep(mode, reason=f"rings do not fragment: {fragmented}", tried=False, remedy=remedy)
            for mode in (Mode.ZERO_COPY, Mode.NATIVE, Mode.GENERIC)
        ]
        return DataLink([*steps, LinkStep(Mode.SOCKET)])
    from umstack._engine.ring_link import open_context_link

    return open_context_link(options, interface)


class MappedStart(NamedTuple):
    """Where one subscription begins to receive a source."""

    subscription: Subscription
    sqn: int | None
    """The first message; None: where its last session ended."""


class Engine:
    """Owns the link and the core's context. Sources, receivers and event queues refer to it.

    `slice_ns`, `is_sequential` and `unblock_count` are attributes because every read of a queue uses them.
    """

    __slots__ = (
        "__weakref__",
        "_duty_cycle",
        "_ephemeral_ports_seen",
        "_options_seen",
        "_unblocks_seen",
        "core",
        "dispatch",
        "is_sequential",
        "keyring",
        "link",
        "on_unmapped",
        "registry",
        "sessions",
        "slice_ns",
        "tcp_peers",
        "unblock_count",
    )

    def __init__(
        self, options: ContextOptions, interface: xdp.Interface, duty_work: Callable[[int], None]
    ) -> None:
        """Open the link and the core's context. In sequential mode, the duty cycle runs `duty_work`."""
        self.is_sequential = options.operational_mode == "sequential"
        self.slice_ns = SEQUENTIAL_SLICE_NS if self.is_sequential else SLICE_NS
        self.unblock_count = 0
        self._unblocks_seen = 0
        self._ephemeral_ports_seen = 0
        self._options_seen = list[ReceiverOptions]()
        """At most two different options of receivers that were mapped to sources."""
        fragmented = lint_datagram_size(options, interface.name, interface.mtu_bytes)
        self.link = _open_link(options, interface, fragmented)
        try:
            self.core = CoreContext(options, interface, self.link, is_fragmented=fragmented is not None)
            self.keyring = self._open_keyring()
        except BaseException:
            self.link.close()
            raise
        self.tcp_peers = TcpPeers(options, interface.address)
        self.registry = Registry()
        self.sessions = SessionPool(self.core, self.registry.listing)
        self.dispatch: Dispatch = (
            DonatedDispatch() if self.is_sequential else DispatchThreads(self._wait_readable)
        )
        self.on_unmapped: Callable[[TransportAddress], None] = lambda _address: None
        """Called with the session of a source that could not be mapped."""
        self._duty_cycle = DutyCycle(duty_work)
        _open_engines.add(self)

    def _open_keyring(self) -> Keyring:
        try:
            return Keyring(self.core)
        except BaseException:
            self.core.closed = True
            self.core.close()
            raise

    def start(self) -> None:
        """Start the context thread. Used in embedded mode only."""
        if not self.is_sequential:
            self.core.check(lib.um_context_start(self.core.handle), "starting the context thread")

    def disown(self) -> None:
        """Give up ownership, in a forked child: every use then raises Forked, and the parent's resources survive."""
        self.core.disown()
        self.registry.disown()

    def close(self) -> None:
        """End the core's context, then close the link. All objects are already closed."""
        self.core.close()
        self.link.close()

    # Sources of receivers

    def map_source(
        self,
        topic: str,
        topic_index: int,
        address: TransportAddress,
        request_port: Endpoint | None = None,
        join_late: Callable[[Subscription, Any, LateMapping], None] | None = None,
        advertiser: str = UNKNOWN_IP,
        *,
        is_taken: Callable[[Subscription, Any], bool] | None = None,
        start: MappedStart | None = None,
    ) -> bool:
        """Map a source that topic resolution found to the receivers of its topic, or note a new advertiser.

        Returns false if a receiver cannot be mapped now, for example because the interface has lost its address. That
        is logged and reported to `on_unmapped`.

        `request_port` accepts requests for the messages that the source retains. `join_late` is called with each
        subscription that fetches some of them first, and its session. `advertiser` is the address that advertised the
        source. A subscription for which `is_taken` returns true is not mapped now. `start` names the only subscription
        to map, and the first message that it wants.
        """
        name = transport_name(address)
        group = address.group if isinstance(address, LbtrmAddress) else None
        if not self._can_join(topic, address, advertiser):
            return True
        is_mapped = True
        wanting = [
            one
            for one in self.registry.parts_of_topic(Subscription, topic)
            if one.wants(topic, group) and (start is None or one is start.subscription)
        ]
        # Steer before joining the group, so that its first datagrams do not arrive through the kernel.
        if wanting and isinstance(address, LbtrmAddress):
            self.steer((address.group, address.destination_port))
        core = self.core
        key_set = self.keyring.number_of(topic)
        source = f"{name}[{topic_index}]"
        requests: list[MappingRequest] = []
        for subscription in wanting:
            config = receiver_session_config(address, subscription.options, core, key_set, advertiser)
            if is_taken is None or not is_taken(subscription, config):
                request = MappingRequest(
                    subscription, config, topic_index, source, request_port, start and start.sqn
                )
                requests.append(request)
        for one in self._map(requests, join_late):
            if self._have_receivers_differed(one.request.subscription.options) and one.result == 0:
                self._warn_of_ignored(one.request.session, topic, name)
            is_mapped &= self._note_result(one.result, topic, name)
        # Steer again: before the join, another thread may have steered only the groups joined by then.
        self.steer()
        if isinstance(address, LbtruAddress):
            self._warn_of_ephemeral_ports()
        if not is_mapped:
            self.on_unmapped(address)
        return is_mapped

    def _note_result(self, result: int, topic: str, name: str) -> bool:
        """Log why a source was not mapped. Return false if the next attempt may succeed."""
        if result in (0, -errno.EEXIST, lib.UM_CLOSED):  # -EEXIST: mapped already; UM_CLOSED: closing
            return True
        if result == -errno.ENOSPC:
            _records.write(
                "full", logging.WARNING, "no space to receive %s: every session there is receives", name
            )
            return True
        if result == -errno.EKEYREJECTED:
            _records.write(
                "keys", logging.WARNING, "%s is not received: other topics of it have other keys", name
            )
            return True
        try:
            self.core.check(result, f"joining {name} for {topic!r}")
        except UmError as error:
            text = "%s; it is tried again when the source is advertised again"
            _records.write(("unmapped", name), logging.ERROR, text, error)
        return False

    def _can_join(self, topic: str, address: TransportAddress, advertiser: str) -> bool:
        """Return true if sources of the session can be received here and the options allow it."""
        if isinstance(address, LbtipcAddress):
            return address.host_id == host_id()  # only receivers of the source's host attach to it
        if isinstance(address, TcpAddress):
            return self.tcp_peers.admits_advertised(address.source_ip, advertiser, f"TCP source of {topic!r}")
        return isinstance(address, LbtruAddress) or self._is_joined(address)

    def map_shared_log(
        self,
        subscriptions: Sequence[Subscription],
        address: LbtipcAddress,
        topic_index: int,
        log_key: int,
        source: str,
        request_port: Endpoint | None = None,
        join_late: Callable[[Subscription, Any, LateMapping], None] | None = None,
        start_sqn: int | None = None,
    ) -> None:
        """Map a source that reaches receivers through a shared log of this host, under the source's name.

        `request_port` and `join_late` are as those of map_source(). `start_sqn` is the first message wanted; None:
        where its last log ended.
        """
        requests: list[MappingRequest] = []
        for one in subscriptions:
            config = receiver_session_config(address, one.options, self.core, log_key=log_key)
            requests.append(
                MappingRequest(one, config, topic_index, source, request_port, start_sqn, address)
            )
        for mapped in self._map(requests, join_late):
            if mapped.result not in (0, -errno.EEXIST, lib.UM_CLOSED):
                self.core.check(mapped.result, f"attaching to the log of {source}")

    @staticmethod
    def _map(
        requests: Sequence[MappingRequest],
        join_late: Callable[[Subscription, Any, LateMapping], None] | None,
    ) -> list[Mapped]:
        """Map sources, and let those join late that fetch messages first."""
        outcomes = map_sources(requests)
        for request, _, late in outcomes:
            if late is not None and join_late is not None:
                join_late(request.subscription, request.session, late)
        return outcomes

    def _is_joined(self, address: LbtrmAddress) -> bool:
        """Return true if the source can be joined and the options allow it; warn if no router forwards its group to an
        any-source join, and of what IPv6 is missing."""
        allowed = self.core.options.multicast_sources
        if allowed is None and address.group.startswith(_SOURCE_SPECIFIC_PREFIXES):
            _records.write(
                ("ssm", address.group),
                logging.WARNING,
                "%s is in 232.0.0.0/8 or ff3x::/32, whose datagrams routers forward only to source-specific joins: set "
                "transport_lbtrm_multicast_sources to discovered",
                address.group,
            )
        if allowed and address.source_ip not in allowed:
            return False
        if is_ipv6(address.group):
            try:
                self.core.ipv6_address(address.group)
            except (InterfaceError, OptionError) as error:
                _records.write(
                    "IPv6", logging.WARNING, "%s is not received: %s", transport_name(address), error
                )
                return False
        return True

    def _warn_of_ephemeral_ports(self) -> None:
        count = lib.um_context_ephemeral_ports(self.core.handle)
        if count > self._ephemeral_ports_seen:
            self._ephemeral_ports_seen = count
            _log.warning(
                "every UDP port of transport_lbtru_port_low to transport_lbtru_port_high is taken: %d sessions receive "
                "at others, which a firewall may not let through",
                count,
            )

    def _have_receivers_differed(self, options: ReceiverOptions) -> bool:
        """Return true if receivers with different options were mapped to sources, these included.

        While all are alike, a session need not be compared, which costs a wait for the core's lock.
        """
        if len(self._options_seen) < 2 and options not in self._options_seen:
            self._options_seen.append(options)
        return len(self._options_seen) > 1

    def _warn_of_ignored(self, wanted: Any, topic: str, name: str) -> None:
        """Warn of the options of a receiver that differ from those of the first receiver of its session."""
        in_force = ffi.new("um_receiver_session_config *")
        if not lib.um_context_session_config(self.core.handle, ffi.addressof(wanted, "id"), in_force):
            return
        ignored = ignored_receiver_options(in_force, wanted)
        if ignored:
            _ignored_records.write(
                (topic, name),
                logging.WARNING,
                "receiver %r: %s was joined with other options, which stay in force; without effect: %s",
                topic,
                name,
                ", ".join(ignored),
            )

    def report_no_source(self, topic: str, queries: int) -> None:
        """Report unanswered queries for a topic to the receivers that have this threshold."""
        for one in self.registry.parts(Subscription):
            threshold = one.options.resolution_no_source_notification_threshold
            if one.topic == topic and threshold and queries % threshold == 0:
                one.report_no_source(queries)

    def report_interface(self, interface: str, change: str, is_followed: bool) -> None:
        """Report a change of the interface to every reader, once, and to every source session."""
        number = interface_change_number(change, is_followed)
        shared = set(self.registry.parts(QueueMemory))
        for queue in shared:
            queue.report_interface("", interface, number)
        for one in self.registry.parts(Subscription):
            if one.queue not in shared:
                one.queue.report_interface(one.topic, interface, number)
        with self.registry.listing:
            for session in self.sessions.sessions:
                note_interface(session, interface, number)

    def find_subscription(self, handle: Any) -> Subscription | None:
        """Return the open subscription with a handle of the core."""
        wanted = ffi.cast("um_subscription *", handle)
        return next((one for one in self.registry.parts(Subscription) if one.handle == wanted), None)

    def ended_sessions(self) -> set[TransportAddress] | None:
        """Return the receiving sessions that timed out or freed space since the last call, None if too many did."""
        identity = ffi.new("um_session_id *")
        ended: set[TransportAddress] = set()
        while result := lib.um_context_take_ended(self.core.handle, identity):
            if result == -errno.EOVERFLOW:
                return None
            ended.add(address_of(identity))
        return ended

    def steer(self, *coming: Group) -> None:
        """Steer the groups that are joined, or about to be, into the rings. Does nothing without rings.

        Groups that other sockets of this host have joined are left to the kernel, which serves both.
        """
        if self.link.kind != "xdp":
            return
        # Read before our groups, so that a group that is joined meanwhile does not count as joined by others.
        members = members_of_groups(self.core.interface.name)
        groups = ffi.new("um_address[]", _GROUPS_MAX)
        count = lib.um_context_groups(self.core.handle, groups, _GROUPS_MAX)
        joined = [(ip_text(one.ip), one.port) for one in groups[0:count]]
        of_others = members - Counter(group for group, _ in joined)
        sent_to = {
            one.address.group for one in self.sessions.sessions if isinstance(one.address, LbtrmAddress)
        }
        self.link.steer([*joined, *coming], set(of_others), sent_to)

    # Waiting and sequential mode

    def process(self, timeout: float | None) -> int:
        """Run the protocol on this thread, in sequential mode; see Context.process_events."""
        end_ns = None if timeout is None else time.monotonic_ns() + timeout_ns(timeout)
        handled = 0
        while True:
            left_ns = self.slice_ns if end_ns is None else max(0, end_ns - time.monotonic_ns())
            result = lib.um_context_process(self.core.handle, min(left_ns, self.slice_ns))
            handled += self.core.check(result, "process_events")
            self._duty_cycle.run()
            self.dispatch.run()
            if self._unblocks_seen != self.unblock_count:
                self._unblocks_seen = self.unblock_count
                return handled
            if end_ns is not None and time.monotonic_ns() >= end_ns:
                return handled

    def count_poll(self) -> None:
        """Count a poll of a queue in sequential mode. Every 64th poll may run the duty cycle."""
        self._duty_cycle.count_poll()

    def between_slices(self) -> None:
        """Run the duty cycle, in sequential mode, while a call of the application continues to wait."""
        if self.is_sequential and not self.core.closed:
            self._duty_cycle.run()

    def unblock(self) -> None:
        """End the current waits, and the next process()."""
        self.unblock_count += 1
        lib.um_context_unblock(self.core.handle)

    def _wait_readable(self, fd: int) -> None:
        """Wait until a descriptor is readable. The caller receives meanwhile in place of the context's thread."""
        lib.um_context_wait(self.core.handle, fd, -1)

    def idle(self, seconds: float) -> None:
        """Let the protocol run for a moment, while the caller waits for a condition."""
        if self.is_sequential:
            self.core.check_open()
            self.process(seconds)
        else:
            time.sleep(seconds)
