"""Topic resolution on kernel sockets: runs the machine on its owner's thread.

One socket listens to the group; the other sends from the interface's own address, because receivers and dissectors
use that address as the topic's source. Every process of a host that uses the same group receives every datagram,
including those sent by the same host.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from umstack._engine.transport_address import TransportAddress
from umstack.config import ContextOptions, ReceiverOptions, SourceOptions, WildcardReceiverOptions
from umstack.errors import OptionError, error_from_os
from umstack.key_file import Key
from umstack.resolution.codec import WireOption
from umstack.resolution.daemons import DaemonClient
from umstack.resolution.datagrams import BATCH, ReceivedDatagrams
from umstack.resolution.fair_intake import FairIntake
from umstack.resolution.machine import ResolutionEvent, ResolutionMachine, SourceFound, Unanswered
from umstack.resolution.pattern import TopicPattern
from umstack.resolution.tags import TRAILER_BYTES, ResolutionTags
from umstack.resolution.wildcards import TopicLeft, TopicMatched
from umstack.sizing import datagram_size
from umstack_xdp.closing import Closing

DATAGRAM_MINIMUM_BYTES = 500
HANDLED_TOGETHER = 8
"""Maximum number of datagrams handled before the socket is read again."""
_log = logging.getLogger("umstack.resolution")

_IP_MULTICAST_ALL = 49
_SO_RCVBUFFORCE = 33

OnSource = Callable[[str, int, TransportAddress, str], None]
"""Called with a topic, a topic index, a session's address and the address that advertised it."""
OnSourceGone = Callable[[str, int, TransportAddress], None]
OnTopic = Callable[[int, str, bool], None]
"""Called with a wildcard receiver's key, a topic, and true if the topic joined, false if it left."""
OnUnanswered = Callable[[str, int | None, int], None]
"""Called with a topic, or with a wildcard receiver's key, and the number of unanswered queries."""
OnDatagram = Callable[[bool, tuple[str, int], tuple[str, int], bytes], None]
"""Called with each datagram: true if sent, its source, its destination and its payload."""


@dataclass(frozen=True, slots=True)
class ResolutionInterface:
    """The network interface used for topic resolution."""

    name: str
    index: int
    address: str
    mtu_bytes: int


def resolver_datagram_size(options: ContextOptions, mtu_bytes: int) -> int:
    """Return the largest UDP payload for topic resolution. IP fragments datagrams above the MTU."""
    follows = datagram_size(mtu_bytes, minimum_bytes=DATAGRAM_MINIMUM_BYTES)
    return options.resolver_datagram_max_size_bytes or follows


def _ignore_source(_topic: str, _index: int, _address: TransportAddress) -> None:
    """Ignore the event, for owners that do not follow withdrawn sources."""


def _ignore_topic(_key: int, _topic: str, _appeared: bool) -> None:
    """Ignore the event, for owners without wildcard receivers."""


def _ignore_unanswered(_topic: str, _key: int | None, _queries: int) -> None:
    """Ignore the event, for owners that do not report it to receivers."""


def _ignore_datagram(_sent: bool, _source: tuple[str, int], _to: tuple[str, int], _data: bytes) -> None:
    """Ignore the datagram, for owners without a tap."""


class ResolutionAgent(Closing):
    """Topic resolution of one context. One thread at a time; callbacks run in the call that causes them."""

    def __init__(
        self,
        options: ContextOptions,
        interface: ResolutionInterface,
        now_ns: int,
        on_source: OnSource,
        on_source_gone: OnSourceGone = _ignore_source,
        on_datagram: OnDatagram = _ignore_datagram,
        keys: tuple[Key, ...] = (),
        on_topic: OnTopic = _ignore_topic,
        on_unanswered: OnUnanswered = _ignore_unanswered,
    ) -> None:
        """Open the sockets; raises a UmError with the reason on failure.

        With `keys`, every sent datagram carries a tag, and received ones without a valid tag are dropped.
        """
        self._options = options
        self._interface = interface
        self._on_source = on_source
        self._on_source_gone = on_source_gone
        self._on_datagram = on_datagram
        self._on_topic = on_topic
        self._on_unanswered = on_unanswered
        self._destinations = [options.resolver_outgoing]
        self._daemons = DaemonClient(options, now_ns) if options.resolver_daemons else None
        self._trailer_bytes = TRAILER_BYTES if keys else 0
        if keys and self._daemons is not None:
            raise OptionError(
                "resolution daemons forward datagrams from an address that a tag does not cover",
                hint="remove the `resolution` lines from the key file, or do not set resolver_unicast_daemon",
            )
        size = resolver_datagram_size(options, interface.mtu_bytes)
        self.machine = ResolutionMachine(options, size - self._trailer_bytes, now_ns)
        self.last_error: OSError | None = None
        with contextlib.ExitStack() as stack:
            if self._daemons is None:
                self._receiver = stack.enter_context(self._open_receiver())
                self._sender = stack.enter_context(self._open_sender())
            else:
                self._receiver = self._sender = stack.enter_context(self._open_unicast())
            self._local: tuple[str, int] = self._sender.getsockname()
            self._tags: ResolutionTags | None = None
            if keys:
                tolerance_ns = options.authentication_time_tolerance_ns
                self._tags = stack.enter_context(ResolutionTags(keys, tolerance_ns, self._local))
            self._sockets = stack.pop_all()
        self._received = ReceivedDatagrams()
        self._intake = FairIntake()

    def fileno(self) -> int:
        """Return a descriptor that is readable when process() has data to receive."""
        return self._receiver.fileno()

    def advertise(
        self,
        topic: str,
        index: int,
        address: TransportAddress,
        options: SourceOptions,
        now_ns: int,
        topic_options: tuple[WireOption, ...] = (),
    ) -> None:
        """Announce a source, immediately if its options allow that."""
        self.machine.advertise(topic, index, address, options, now_ns, topic_options)
        self._send_due(now_ns)

    def move_sources(self, moved: Mapping[TransportAddress, TransportAddress], now_ns: int) -> None:
        """Announce the sources of sessions whose address has changed at the new one."""
        self.machine.move_sources(moved, now_ns)
        self._send_due(now_ns)

    def withdraw(self, topic: str, index: int, address: TransportAddress, now_ns: int) -> None:
        """Stop announcing a source."""
        self.machine.withdraw(topic, index, address)
        self._send_due(now_ns)

    def query(self, topic: str, options: ReceiverOptions, now_ns: int) -> None:
        """Look for sources of a topic; those already known are reported before this returns."""
        self._deliver(self.machine.query(topic, options, now_ns))
        self._send_due(now_ns)

    def stop_query(self, topic: str) -> None:
        """Remove one receiver of the topic."""
        self.machine.stop_query(topic)

    def match(self, key: int, pattern: TopicPattern, options: WildcardReceiverOptions, now_ns: int) -> None:
        """Look for topics that a pattern matches; those already known are reported before this returns."""
        self._deliver(self.machine.match(key, pattern, options, now_ns))
        self._send_due(now_ns)

    def stop_matching(self, key: int) -> None:
        """Remove a wildcard receiver that has ended."""
        self.machine.stop_matching(key)

    def forget_sessions(self, ended: Collection[TransportAddress] | None, now_ns: int) -> None:
        """Forget ended sessions (None: all) so that their sources are reported again when advertised again."""
        self.machine.forget_sessions(ended, now_ns)

    def request_resolution(self, now_ns: int) -> None:
        """Request that all processes advertise and query again."""
        self.machine.request_resolution()
        self._send_due(now_ns)

    def topics(self) -> list[str]:
        """Return the topics of received advertisements. Any thread."""
        return self.machine.topics()

    def set_mtu(self, mtu_bytes: int) -> None:
        """Follow the interface's MTU, if no size is configured."""
        size = resolver_datagram_size(self._options, mtu_bytes)
        self.machine.datagram_maximum_bytes = size - self._trailer_bytes

    def follow_interface(self, interface: ResolutionInterface) -> None:
        """Join the group again on an interface that was made again or renamed, and send from its address.

        With a daemon it stays at its address, and logs an error. Raises a UmError if a socket cannot follow.
        """
        former, self._interface = self._interface, interface
        if self._daemons is not None:
            if interface.address != self._local[0]:
                _log.error(
                    "topic resolution stays at %s, which %s no longer has; open the context again",
                    self._local[0],
                    interface.name,
                )
            return
        group, _ = self._options.resolver_incoming
        with contextlib.suppress(OSError):  # the kernel may have dropped the membership with the interface
            request = self._membership(group)[:-4] + struct.pack("i", former.index)
            self._receiver.setsockopt(socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP, request)
        try:
            self._receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, self._membership(group))
            if interface.address == former.address:
                self._sender.setsockopt(
                    socket.IPPROTO_IP, socket.IP_MULTICAST_IF, self._membership("0.0.0.0")
                )
        except OSError as error:
            raise error_from_os(error, f"following {interface.name} with topic resolution") from error
        if interface.address != former.address:
            self._sender.close()
            self._sender = self._sockets.enter_context(self._open_sender())
            self._local = self._sender.getsockname()

    def set_keys(self, keys: tuple[Key, ...]) -> None:
        """Replace the keys. Allowed only if there were keys at the start."""
        if self._tags is not None and keys:
            self._tags.set_keys(keys)

    def process(self, now_ns: int) -> bool:
        """Handle received datagrams (a bounded number) and send due ones. Return true if more may be waiting."""
        for _ in range(BATCH // HANDLED_TOGETHER):
            more = self._receive()
            self._handle(now_ns)
            if not self._intake:
                break
        self._deliver(self.machine.left_topics(now_ns))
        self._send_due(now_ns)
        self._deliver(self.machine.take_unanswered())
        return more or bool(self._intake)

    def next_deadline_ns(self) -> int | None:
        """Return when process() must be called even if no datagram arrives; None for never."""
        deadline_ns = self.machine.next_deadline_ns()
        if self._daemons is None:
            return deadline_ns
        keepalive_ns = self._daemons.deadline_ns()
        return keepalive_ns if deadline_ns is None else min(deadline_ns, keepalive_ns)

    def stats(self) -> dict[str, int]:
        """Return the tr_* counters by name."""
        return self.machine.stats()

    def domain(self, now_ns: int) -> dict[str, Any]:
        """Return where topics are resolved: either addresses, or the daemons, which of them respond, and the one in
        use. Any thread."""
        if self._daemons is None:
            (to, to_port), (group, port) = self._options.resolver_outgoing, self._options.resolver_incoming
            return {"by": "multicast", "sends_to": f"{to}:{to_port}", "listens_to": f"{group}:{port}"}
        states = self._daemons.states(now_ns)
        used = next((address for address, is_alive in states if is_alive), None)
        return {
            "by": "daemons",
            "daemons": [
                {"address": f"{ip}:{port}", "answers": is_alive, "used": (ip, port) == used}
                for (ip, port), is_alive in states
            ],
        }

    def close(self) -> None:
        """Close the sockets. Sources that were not withdrawn time out at their receivers."""
        self._sockets.close()

    def _receive(self) -> bool:
        """Receive one batch of datagrams; return true if more may be waiting in the socket."""
        try:
            received = list(self._received.take(self._receiver))
        except OSError as error:
            # Reading a pending asynchronous error (the interface went down) clears it.
            self.last_error = error
            return False
        for data, source in received:
            self._intake.put(data, source)
        self.machine.counters.tr_dgrams_dropped_overload = self._intake.dropped
        return len(received) == BATCH

    def _handle(self, now_ns: int) -> None:
        """Handle a few datagrams, even if a callback raises; then raise the first exception."""
        failure: Exception | None = None
        for _ in range(HANDLED_TOGETHER):
            if not self._intake:
                break
            try:
                self._take_in(*self._intake.take(), now_ns)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _take_in(self, data: bytes, source: tuple[str, int], now_ns: int) -> None:
        if self._daemons is not None and not self._daemons.note_received(source, data, now_ns):
            self.machine.counters.tr_dgrams_dropped_stranger += 1
            return
        to = self._local if self._daemons is not None else self._options.resolver_incoming
        self._on_datagram(False, source, to, data)
        authentic = self._verified(data, source)
        if authentic is not None:
            self._deliver(self.machine.datagram_received(authentic, now_ns, source[0]))

    def _verified(self, data: bytes, source: tuple[str, int]) -> bytes | None:
        if self._tags is None:
            return data
        return self._tags.verified(data, source, self.machine.counters)

    def _deliver(self, events: list[ResolutionEvent]) -> None:
        """Report every event, even if a callback raises; then raise the first exception."""
        failure: Exception | None = None
        for event in events:
            try:
                self._report(event)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _report(self, event: ResolutionEvent) -> None:
        if isinstance(event, TopicMatched | TopicLeft):
            self._on_topic(event.key, event.topic, isinstance(event, TopicMatched))
            return
        if isinstance(event, Unanswered):
            self._on_unanswered(event.topic, event.key, event.queries)
            return
        if isinstance(event, SourceFound):
            self._on_source(event.topic, event.index, event.address, event.advertiser)
            return
        self._on_source_gone(event.topic, event.index, event.address)

    def _send_due(self, now_ns: int) -> None:
        if self._daemons is not None:
            if self._daemons.has_returned(now_ns):
                self.machine.resend_all(now_ns)
            self.machine.counters.tr_daemon_changes = self._daemons.change_count
            for daemon, keepalive in self._daemons.keepalives(now_ns):
                self._send(keepalive, daemon)
        plain = self.machine.datagrams_to_send(now_ns)
        if not plain:
            return
        if self._daemons is not None:
            self._destinations = self._daemons.destinations(now_ns)
        for datagram in plain:
            tagged = datagram if self._tags is None else self._tags.tagged(datagram)
            for destination in self._destinations:
                self._send(tagged, destination)

    def _send(self, datagram: bytes, destination: tuple[str, int]) -> None:
        counters = self.machine.counters
        try:
            self._sender.sendto(datagram, destination)
        except OSError as error:
            # Resolution repeats its records, so a datagram that cannot be sent is dropped and counted.
            counters.tr_dgrams_send_failed += 1
            self.last_error = error
        else:
            counters.tr_dgrams_sent += 1
            counters.tr_bytes_sent += len(datagram)
            self._on_datagram(True, self._local, destination, datagram)

    def _membership(self, group: str) -> bytes:
        return struct.pack(
            "4s4si", socket.inet_aton(group), socket.inet_aton(self._interface.address), self._interface.index
        )

    def _open_receiver(self) -> socket.socket:
        group, port = self._options.resolver_incoming
        where = f"listening for topic resolution on {group}:{port}, interface {self._interface.name}"
        with contextlib.ExitStack() as stack:
            try:
                receiver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                receiver.setblocking(False)
                receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                receiver.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
                _size_receive_buffer(receiver, self._options.resolver_multicast_receiver_socket_buffer_bytes)
                receiver.bind((group, port))
                receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, self._membership(group))
            except OSError as error:
                raise error_from_os(error, where) from error
            stack.pop_all()
        return receiver

    def _open_unicast(self) -> socket.socket:
        """Open the socket for resolution daemons on the first free port of the range, else on any."""
        low, high = self._options.resolver_unicast_port_low, self._options.resolver_unicast_port_high
        where = f"topic resolution from {self._interface.address}, ports {low} to {high}"
        with contextlib.ExitStack() as stack:
            both = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            both.setblocking(False)
            both.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self._options.traffic_class)
            _size_receive_buffer(both, self._options.resolver_multicast_receiver_socket_buffer_bytes)
            for port in (*range(low, high + 1), 0):
                try:
                    both.bind((self._interface.address, port))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE or port == 0:
                        raise error_from_os(error, where) from error
                else:
                    break
            if port == 0:
                _log.warning(
                    "every UDP port of resolver_unicast_port_low to resolver_unicast_port_high (%d-%d) is taken: port "
                    "%d is used, which a firewall may not let through",
                    low,
                    high,
                    both.getsockname()[1],
                )
            stack.pop_all()
        return both

    def _open_sender(self) -> socket.socket:
        where = f"sending topic resolution from {self._interface.address}, interface {self._interface.name}"
        with contextlib.ExitStack() as stack:
            try:
                sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                sender.setblocking(False)
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, self._membership("0.0.0.0"))
                sender.setsockopt(
                    socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, self._options.resolver_multicast_ttl
                )
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self._options.traffic_class)
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
                sender.bind((self._interface.address, 0))
            except OSError as error:
                raise error_from_os(error, where) from error
            stack.pop_all()
        return sender


def _size_receive_buffer(receiver: socket.socket, size_bytes: int) -> None:
    """Set the buffer size beyond the system's limit; without the privilege, up to that limit."""
    try:
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size_bytes)
    except PermissionError:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
