"""Context: the parent of sources and receivers. Owns the sockets, the timers, the threads and topic resolution."""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xdp
from umstack._core import ffi, lib
from umstack.capturing.tap import TAP_RING_BYTES, Tap, TapSettings, datagram_observer
from umstack.config import Config, ContextOptions
from umstack.counters import schema
from umstack.dispatch import DispatchThread
from umstack.errors import Closed, InterfaceError, OptionError, error_from_result
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.interface_follower import InterfaceFollower
from umstack.link import Group, open_link
from umstack.reader import SLICE_NS, timeout_ns
from umstack.receiver import Receiver
from umstack.recovery_histogram import RecoveryHistogram
from umstack.resolution import (
    LbtrmAddress,
    ResolutionAgent,
    ResolutionInterface,
    ResolverThread,
    encode_topic_name,
)
from umstack.session import (
    IP_UDP_HEADER_BYTES,
    SessionPool,
    SourceSession,
    receiver_session_config,
    transport_name,
)
from umstack.source import Source
from umstack.statistics_server import StatisticsServer
from umstack.telemetry import ServedMetrics, serve_metrics
from umstack.telemetry.counter_log import CounterLog
from xdp.closing import Closing

if TYPE_CHECKING:
    from umstack.config import OptionValue, ReceiverOptions, SourceOptions
    from umstack.reader import Reader

_HOLD_MESSAGES = 262144
_COALESCE_NS = 300_000
_ROOM_FOR_MTU = 9000
"""Datagram memory is sized for this MTU at least, so that a link that is given jumbo frames can use them."""

_GROUPS_MAX = 256
_HOUSEKEEPING_NS = 1_000_000
_SLICE_NS = 10_000_000
_POLLS_PER_LOOK = 64
"""Reading the clock costs about as much as a poll that finds nothing."""


class ReceiveBufferWarning(UserWarning):
    """The kernel granted a smaller receive buffer than was asked for."""


class ContextMemory:
    """The core's side of a context: unmapped when neither the context nor anything made from it is left."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __del__(self) -> None:
        lib.um_context_free(self._handle)


class Context(Closing):
    """One instance of the stack: usually one a process. Close it, or use it as a context manager."""

    def __init__(
        self,
        interface: str | None = None,
        *,
        link: str | None = None,
        mode: str | None = None,
        config: Config | str | Path | None = None,
        statistics: bool = False,
        tap: str | Path | None = None,
        metrics: str | None = None,
        **options: OptionValue,
    ) -> None:
        """Open a context on an interface (a name, an address or a network; None: the first that does multicast).

        `mode` "embedded" runs the protocol on a thread of its own; "sequential" on the thread that calls
        process_events() or polls. `config` is a Config or the path of a configuration file; `options` are context
        options by name. `statistics` lets `umstack stat` read the counters from outside the process. `tap` is a
        pcapng file that gets what the context sends and receives, as with tap(). `metrics` is an address such as
        ":9464" at which Prometheus can scrape the counters; the contexts of a process may share one.
        """
        self._config = config if isinstance(config, Config) else Config.load(config) if config else Config()
        overrides: dict[str, OptionValue] = dict(options)
        overrides |= {"operational_mode": mode} if mode is not None else {}
        overrides |= {"link": link} if link is not None else {}
        self.options: ContextOptions = self._config.context_options(**overrides)
        self.closed = False
        self.is_sequential = self.options.operational_mode == "sequential"
        self.interface = _find_interface(interface or self.options.interface or None)
        self.datagram_bytes = self._datagram_size(self.interface.mtu_bytes)
        self.datagram_max_bytes = max(self.datagram_bytes, _ROOM_FOR_MTU - IP_UDP_HEADER_BYTES)
        self.receiver_id = secrets.randbits(64)
        self._sources: list[Source] = []
        self._receivers: list[Receiver] = []
        self._queues: list[EventQueue] = []
        # Held while an object is made or the context closed, so that any thread may do either.
        self._making = threading.RLock()
        # Held while stats(), which any thread may call, walks the objects, and while one of them is taken off.
        self._listing = threading.Lock()
        self._statistics: StatisticsServer | None = None
        self._metrics: ServedMetrics | None = None
        self._counter_log = CounterLog(self.stats)
        self._tap: Tap | None = None
        self._next_topic_index = secrets.randbelow(2**20) + 1
        self._scratch = ffi.new("uint64_t[]", lib.UM_STATISTICS_FIELDS_MAX)
        self._warned_buffer = False
        self._next_housekeeping_ns = 0
        self._polls = 0
        self.slice_ns = _SLICE_NS if self.is_sequential else SLICE_NS
        self.unblock_count = 0
        self._unblocks_seen = 0
        self._dispatcher: DispatchThread | None = None
        self.sessions = SessionPool(self)
        self._link = open_link(
            self.options.link,
            self.interface,
            self._ring_settings(),
            broker=Path(self.options.link_xdp_broker),
        )
        try:
            self.datagram_bytes = self._bounded_by_rings(self.datagram_bytes)
            self.handle = self._create()
        except BaseException:
            self._link.close()
            raise
        self.memory = ContextMemory(self.handle)
        try:
            if tap is not None:
                self.tap(tap)
            self._start()
            self._statistics = StatisticsServer(self.stats) if statistics else None
            self._metrics = serve_metrics(metrics, self.stats) if metrics is not None else None
        except BaseException:
            self.close()
            raise

    @property
    def link(self) -> str:
        """What data travels on: `xdp` or `socket`."""
        return self._link.kind

    @property
    def link_mode(self) -> str:
        """How: `zero-copy`, `native`, `generic` or `socket`."""
        return str(self._link.mode)

    # Set-up

    def _create(self) -> Any:
        options = self.options
        config = ffi.new("um_context_config *")
        config.interface = self.interface.name.encode()
        config.interface_ip = int(ipaddress.IPv4Address(self.interface.address))
        config.ttl = options.resolver_multicast_ttl
        config.source_buffer_bytes = options.transport_lbtrm_source_socket_buffer_bytes
        config.receiver_buffer_bytes = options.transport_lbtrm_receiver_socket_buffer_bytes
        config.receive_batch = min(max(options.multiple_receive_maximum_datagrams, 1), 32)
        config.gso = options.link_gso
        config.gro = options.link_gro
        config.timestamps = options.transport_lbtrm_receiver_timestamp
        config.busy_wait = options.file_descriptor_management_behavior == "busy_wait"
        config.linger_ns = options.pend_linger_interval_ns
        # A machine with one processor has nobody who could send while this one polls.
        config.adaptive_linger_ns = options.pend_adaptive_linger_limit_ns if (os.cpu_count() or 1) > 1 else 0
        config.coalesce_ns = min(_COALESCE_NS, options.pend_coalescing_limit_ns)
        config.coalesce_max_ns = options.pend_coalescing_limit_ns
        config.data_rate_bps = options.transport_lbtrm_data_rate_limit_bits_per_second
        config.retransmit_rate_bps = options.transport_lbtrm_retransmit_rate_limit_bits_per_second
        config.rate_interval_ns = options.transport_lbtrm_rate_interval_ns
        config.hold_datagrams = options.delivery_hold_datagrams
        config.hold_messages = _HOLD_MESSAGES
        config.datagram_max_bytes = self.datagram_max_bytes
        config.random_seed = secrets.randbits(64)
        config.port = ffi.cast("um_port *", self._link.port_address)
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

    def _ring_settings(self) -> xdp.RingSettings:
        options = self.options
        return xdp.RingSettings(
            receive_frames=1 << (options.link_xdp_receive_frames - 1).bit_length(),
            queues=options.link_xdp_queues,
            verify_checksum=options.link_xdp_checksum,
            busy_poll_us=options.link_xdp_busy_poll,
        )

    def _bounded_by_rings(self, datagram_bytes: int) -> int:
        """The datagram size in force when the rings cannot carry all the MTU allows."""
        most = self._link.datagram_max_bytes
        return datagram_bytes if most is None else min(datagram_bytes, most)

    def _start(self) -> None:
        self._resolver: ResolverThread | None = None
        interface = self.interface
        self._agent = ResolutionAgent(
            self.options,
            ResolutionInterface(
                interface.name, interface.index, interface.address or "", interface.mtu_bytes
            ),
            time.monotonic_ns(),
            self._on_source,
            on_datagram=datagram_observer(self.handle),
        )
        self._follower = InterfaceFollower(interface, self._on_mtu, self._on_link_up, self._forget_ended)
        if not self.is_sequential:
            self._resolver = ResolverThread(self._agent)
            self._follower.start()
            self.check(lib.um_context_start(self.handle), "starting the context thread")

    def _datagram_size(self, mtu_bytes: int) -> int:
        """The datagram size in force: the configured one, or what the MTU takes (design W4)."""
        fits = min(mtu_bytes - IP_UDP_HEADER_BYTES, 65507)
        configured = self.options.source_datagram_size_bytes
        if configured > fits:
            raise OptionError(
                f"transport_lbtrm_datagram_max_size {configured} does not fit {self.interface.name}, "
                f"whose MTU is {mtu_bytes}",
                hint=f"set it to {fits} or less, or to 0 to follow the MTU",
            )
        return configured or fits

    # Sources and receivers

    def source(self, topic: str, **options: OptionValue) -> Source:
        """Create a source for a topic. `options` are source options by name."""
        encode_topic_name(topic)
        chosen = self._config.source_options(**options)
        with self._making:
            self._check_open()
            return self._make_source(topic, chosen)

    def _make_source(self, topic: str, chosen: SourceOptions) -> Source:
        xdp_check_route(self.interface, chosen.transport_lbtrm_multicast_address)
        session = self.sessions.session_for(chosen)
        try:
            source = Source(self, topic, self._next_topic_index, session, chosen)
        except BaseException:
            session.release()
            raise
        self._next_topic_index += 1
        self._sources.append(source)
        if self._resolver is not None:
            self._resolver.advertise(topic, source.topic_index, session.address, chosen)
        else:
            now_ns = time.monotonic_ns()
            self._agent.advertise(topic, source.topic_index, session.address, chosen, now_ns)
        return source

    def receiver(
        self,
        topic: str,
        on_message: Callable[[Event], None] | None = None,
        *,
        queue: EventQueue | None = None,
        takes_group: Callable[[str], bool] | None = None,
        **options: OptionValue,
    ) -> Receiver:
        """Create a receiver for a topic. `options` are receiver options by name.

        With `on_message`, every message and event goes to the callback: on a dispatch thread in embedded mode,
        inside process_events() in sequential mode. With `queue`, it goes into that event queue, which is read instead.
        With `takes_group`, which is told a source's multicast group, it has only the sources that this says yes to.
        """
        encode_topic_name(topic)
        chosen = self._config.receiver_options(**options)
        if queue is not None and on_message is not None:
            raise OptionError(
                f"receiver {topic!r} has both an event queue and a callback",
                hint="give on_message to event_queue(), which calls it for all of its receivers",
            )
        with self._making:
            self._check_open()
            return self._make_receiver(topic, on_message, queue, takes_group, chosen)

    def _make_receiver(
        self,
        topic: str,
        on_message: Callable[[Event], None] | None,
        queue: EventQueue | None,
        takes_group: Callable[[str], bool] | None,
        chosen: ReceiverOptions,
    ) -> Receiver:
        if queue is not None and not queue.closed and queue not in self._queues:
            raise OptionError(
                f"receiver {topic!r}: its event queue is another context's",
                hint="make one with this context's event_queue()",
            )
        receiver = Receiver(self, topic, chosen, on_message, queue, takes_group)
        self._receivers.append(receiver)
        self._dispatch(receiver)
        if self._resolver is not None:
            self._resolver.query(topic, chosen)
        else:
            self._agent.query(topic, chosen, time.monotonic_ns())
        return receiver

    def event_queue(
        self, on_message: Callable[[Event], None] | None = None, **options: OptionValue
    ) -> EventQueue:
        """Create an event queue: receivers made with `queue=` deliver into it. `options` are receiver options by name.

        Those that size a queue are the queue's, whatever its receivers have. With `on_message`, every message and
        event of all of them goes to the callback, as with a receiver.
        """
        chosen = self._config.receiver_options(**options)
        with self._making:
            self._check_open()
            queue = EventQueue(self, chosen, on_message)
            self._queues.append(queue)
            self._dispatch(queue)
            return queue

    def _dispatch(self, reader: Reader) -> None:
        """Have the callback of a new reader called, where it has one and the context a thread for it."""
        if reader.has_callback and not self.is_sequential:
            self._dispatcher = self._dispatcher or DispatchThread()
            self._dispatcher.add(reader)

    def _on_source(self, topic: str, topic_index: int, address: LbtrmAddress) -> None:
        """Resolution found a source: map it to the topic's receivers."""
        name = transport_name(address)
        wanting = [one for one in list(self._receivers) if one.wants(topic, address.group)]
        # Before the group is joined, so that its first datagrams do not come by the kernel.
        if wanting:
            self._steer((address.group, address.destination_port))
        for receiver in wanting:
            config = receiver_session_config(address, receiver.options, self.receiver_id, self.datagram_bytes)
            result = receiver.map(config, topic_index, f"{name}[{topic_index}]")
            if result not in (0, -errno.EEXIST, lib.UM_CLOSED):  # mapped already; being closed
                self.check(result, f"joining {name} for {topic!r}")
        # Once more: another thread may have steered, before the join, by what was joined until then.
        self._steer()
        self._warn_small_buffer()

    def _steer(self, *coming: Group) -> None:
        """Have the groups joined now, and those that will be, come by the rings, where there are some."""
        if self._link.kind == "xdp":
            groups = ffi.new("um_address[]", _GROUPS_MAX)
            joined = groups[0 : lib.um_context_groups(self.handle, groups, _GROUPS_MAX)]
            self._link.steer([*((str(ipaddress.IPv4Address(one.ip)), one.port) for one in joined), *coming])

    def _warn_small_buffer(self) -> None:
        asked = self.options.transport_lbtrm_receiver_socket_buffer_bytes
        granted = lib.um_context_receive_buffer(self.handle)
        if granted and granted < asked and not self._warned_buffer:
            self._warned_buffer = True
            warnings.warn(
                f"the kernel granted a receive buffer of {granted} bytes where {asked} were asked for: "
                f"bursts may be lost; run `sysctl -w net.core.rmem_max={asked}` or give the process CAP_NET_ADMIN",
                ReceiveBufferWarning,
                stacklevel=2,
            )

    def begin_closing(self, thing: Source | Reader) -> bool:
        """Mark a source, receiver or event queue closed; False when another thread was first (called by it)."""
        with self._listing:
            was_closed, thing.closed = thing.closed, True
        return not was_closed

    def begin_closing_queue(self, queue: EventQueue) -> bool:
        """The same of an event queue: no receiver is made on it any more once this has returned (called by it)."""
        with self._making:
            return self.begin_closing(queue)

    def receivers_into(self, queue: EventQueue) -> list[Receiver]:
        """The receivers that deliver into an event queue (asked by it)."""
        with self._listing:
            return [receiver for receiver in self._receivers if receiver.queue is queue]

    def forget_queue(self, queue: EventQueue) -> None:
        """An event queue is being closed (called by it)."""
        with self._listing:
            self._queues.remove(queue)
        if self._dispatcher is not None and queue.has_callback:
            self._dispatcher.remove(queue)

    def release_session(self, session: SourceSession) -> None:
        """A source of the session is gone; the last one ends the session (called by it)."""
        with self._making:
            if not self.closed:
                session.release()

    def forget_source(self, source: Source) -> None:
        """A source is being closed (called by it)."""
        with self._listing:
            self._sources.remove(source)
        session = self.session_of(source)
        if session is None or self.closed:
            return
        if self._resolver is not None:
            self._resolver.withdraw(source.topic, source.topic_index, session.address)
        else:
            self._agent.withdraw(source.topic, source.topic_index, session.address, time.monotonic_ns())

    def session_of(self, source: Source) -> SourceSession | None:
        """The transport session a source is mapped to."""
        return next((s for s in self.sessions.sessions if s.name == source.transport), None)

    def forget_receiver(self, receiver: Receiver) -> None:
        """A receiver is being closed (called by it)."""
        with self._listing:
            self._receivers.remove(receiver)
        if self._dispatcher is not None and receiver.has_callback:
            self._dispatcher.remove(receiver)
        if self.closed:
            return
        if self._resolver is not None:
            self._resolver.stop_query(receiver.topic)
        else:
            self._agent.stop_query(receiver.topic)

    def forget_session(self, session: SourceSession) -> None:
        """A source session ends (called by it)."""
        with self._listing:
            self.sessions.sessions.remove(session)

    def topics(self) -> list[str]:
        """Topics that were heard to have a source, in this context's cache of topic resolution (UX-16).

        What is being published becomes known as it is advertised; discover_topics() asks for that at once.
        """
        self._check_open()
        return (self._resolver or self._agent).topics()

    def discover_topics(self) -> None:
        """Ask every source to advertise itself now, so that topics() soon has them all."""
        self._check_open()
        self._on_link_up()

    # Following the interface

    def _on_mtu(self, mtu_bytes: int) -> None:
        configured = self.options.source_datagram_size_bytes
        fits = mtu_bytes - IP_UDP_HEADER_BYTES
        self.datagram_bytes = self._bounded_by_rings(min(configured or fits, fits, self.datagram_max_bytes))
        lib.um_context_set_datagram_max(self.handle, self.datagram_bytes)
        if self._resolver is not None:
            self._resolver.set_mtu(mtu_bytes)
        else:
            self._agent.set_mtu(mtu_bytes)

    def _on_link_up(self) -> None:
        if self._resolver is not None:
            self._resolver.request_resolution()
        else:
            self._agent.request_resolution(time.monotonic_ns())

    def _forget_ended(self) -> None:
        """Sessions that timed out are to be reported again when they are heard of again."""
        identity = ffi.new("um_session_id *")
        while lib.um_context_take_ended(self.handle, identity):
            address = _address_of(identity)
            if self._resolver is not None:
                self._resolver.forget_session(address)
            else:
                self._agent.forget_session(address, time.monotonic_ns())
        self._steer()
        self._counter_log.update()

    # Sequential mode

    def process_events(self, timeout: float | None = 0.0) -> int:
        """Run the protocol on this thread for `timeout` seconds; 0 is one pass that does not sleep (UM-14).

        None runs it until unblock(), which also ends a call with a timeout. Returns how many datagrams were handled.
        Callbacks of receivers run inside.
        """
        self._check_open()
        if not self.is_sequential:
            raise OptionError(
                "process_events is for sequential mode", hint="create the context with mode='sequential'"
            )
        end_ns = None if timeout is None else time.monotonic_ns() + timeout_ns(timeout)
        handled = 0
        while True:
            left_ns = _SLICE_NS if end_ns is None else max(0, end_ns - time.monotonic_ns())
            handled += self.check(
                lib.um_context_process(self.handle, min(left_ns, _SLICE_NS)), "process_events"
            )
            self._keep_house()
            for reader in [*self._receivers, *self._queues]:
                if reader.has_callback:
                    reader.dispatch()
            if self._unblocks_seen != self.unblock_count:
                self._unblocks_seen = self.unblock_count
                return handled
            if end_ns is not None and time.monotonic_ns() >= end_ns:
                return handled

    def count_poll(self) -> None:
        """A receiver was polled in sequential mode: every so often that is when the house is kept."""
        self._polls += 1
        if self._polls % _POLLS_PER_LOOK == 0:
            self._keep_house()

    def attend(self) -> None:
        """A call of the application goes on waiting: in sequential mode the house is kept meanwhile."""
        if self.is_sequential and not self.closed:
            self._keep_house()

    def _keep_house(self) -> None:
        """Topic resolution and interface changes, on the donated thread, at most once a millisecond."""
        now_ns = time.monotonic_ns()
        if now_ns < self._next_housekeeping_ns:
            return
        self._next_housekeeping_ns = now_ns + _HOUSEKEEPING_NS
        self._agent.process(now_ns)
        self._follower.poll()
        self._forget_ended()

    def unblock(self) -> None:
        """Make process_events() return, the one under way or the next, and every poll() that waits now."""
        self.unblock_count += 1
        lib.um_context_unblock(self.handle)

    def idle(self, seconds: float) -> None:
        """Let the protocol get on for a moment while waiting for something."""
        if self.is_sequential:
            self.process_events(seconds)
        else:
            time.sleep(seconds)

    # Statistics

    def stats(self) -> dict[str, Any]:
        """Every counter by UM's name: context, link, transports, sources and receivers. Any thread may ask."""
        self._check_open()
        with self._listing:
            return self._stats()

    def recovery_times(self) -> RecoveryHistogram:
        """How long lost datagrams took to be recovered, over all receiving sessions open now."""
        self._check_open()
        times = RecoveryHistogram.empty()
        for session in range(len(self._receiver_transports())):
            times = times.merged(RecoveryHistogram.read(self.handle, session))
        return times

    def _stats(self) -> dict[str, Any]:
        resolution = self._resolver.stats() if self._resolver is not None else self._agent.stats()
        return {
            "interface": self.interface.name,
            "link": self.link,
            **self._link.stats(),
            "datagram_bytes": self.datagram_bytes,
            "context": {
                **self.read_counters("context", lib.um_statistics_context, self.handle),
                **resolution,
            },
            "link_counters": self.read_counters("link", lib.um_statistics_link, self.handle),
            "source_transports": [{"transport": s.name, **s.stats()} for s in self.sessions.sessions],
            "receiver_transports": self._receiver_transports(),
            "sources": [{"topic": s.topic, "transport": s.transport, **s.counters()} for s in self._sources],
            "receivers": [{"topic": r.topic, **r.counters()} for r in self._receivers],
        }

    def _receiver_transports(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        identity = ffi.new("um_session_id *")

        def read(handle: Any, out: Any) -> int:
            return int(lib.um_statistics_receiver_transport(handle, len(found), identity, out))

        while counters := self.read_counters("receiver_transport", read, self.handle):
            recovery = RecoveryHistogram.read(self.handle, len(found)).summary()
            found.append({"transport": transport_name(_address_of(identity)), **counters, **recovery})
        return found

    def read_counters(
        self, group: str, read: Callable[[Any, Any], int], handle: Any
    ) -> dict[str, int | float | None]:
        """One group of counters by name; empty when the object is gone."""
        out = ffi.new("uint64_t[]", lib.UM_STATISTICS_FIELDS_MAX)
        count = read(handle, out)
        if count == 0:
            return {}
        counters = schema().group(group).core_counters
        return {c.name: c.value(raw) for c, raw in zip(counters, ffi.unpack(out, count), strict=True)}

    # The tap

    def tap(
        self,
        path: str | Path,
        *,
        snap_bytes: int = 0,
        ring_bytes: int = TAP_RING_BYTES,
        rotate_bytes: int = 0,
        rotate_seconds: float = 0.0,
        keep_files: int = 0,
    ) -> Tap:
        """Write what the context sends and receives from now on to a pcapng file as well; stop() ends that.

        The data path never waits for the file: what `ring_bytes` (a power of two) cannot hold is left out and counted.
        With `rotate_bytes` or `rotate_seconds` the path is a directory, and a file that is so large or so old is
        followed by another; of those, `keep_files` keeps the last.
        """
        settings = TapSettings(snap_bytes, ring_bytes, rotate_bytes, rotate_seconds, keep_files)
        with self._making:
            self._check_open()
            self._tap = Tap(self, path, settings)
            return self._tap

    def end_tap(self, tap: Tap, counters: Any) -> int:
        """A tap is being stopped (called by it). Returns the result of the core."""
        with self._making:
            if self._tap is not tap:
                return 0
            self._tap = None
            return int(lib.um_context_tap_stop(self.handle, counters))

    # Errors and ending

    def check(self, result: int, doing: str) -> int:
        """Raise the UmError of a negative result of the core."""
        if result < 0:
            if result == lib.UM_CLOSED:
                raise Closed(f"{doing}: the context is closed")
            step = ffi.string(lib.um_context_failed_step(self.handle)).decode()
            raise error_from_result(result, f"{doing} ({step})" if step and result > -1000 else doing)
        return result

    def _check_open(self) -> None:
        if self.closed:
            raise Closed("the context is closed")

    def close(self) -> None:
        """Close every source and receiver, stop the threads, leave the groups."""
        if self._dispatcher is not None:
            self._dispatcher.close()  # without the lock: the callback it waits for may be making something
        with self._making:
            if not self.closed:
                self._close()

    def _close(self) -> None:
        if self._statistics is not None:
            self._statistics.close()
        if self._metrics is not None:
            self._metrics.close()
        for reader in [*self._receivers, *self._queues]:
            reader.close()
        for source in list(self._sources):
            source.close()
        self.closed = True
        if follower := getattr(self, "_follower", None):
            follower.close()
        resolver = getattr(self, "_resolver", None)
        if resolver is not None:
            resolver.close()
        elif agent := getattr(self, "_agent", None):
            agent.close()
        try:
            if self._tap is not None:
                self._tap.stop()
        finally:
            lib.um_context_close(self.handle)
            self._link.close()

    def __repr__(self) -> str:
        return f"<Context {self.interface.name} {self.options.operational_mode} {self.link}>"


def _address_of(identity: Any) -> LbtrmAddress:
    return LbtrmAddress(
        source_ip=str(ipaddress.IPv4Address(identity.source.ip)),
        group=str(ipaddress.IPv4Address(identity.group.ip)),
        session_id=identity.session_id,
        destination_port=identity.group.port,
        nak_port=identity.source.port,
    )


def _find_interface(wanted: str | None) -> xdp.Interface:
    try:
        found = xdp.find_interface(None if wanted == "0.0.0.0" else wanted)
    except xdp.NoSuchInterfaceError as error:
        raise InterfaceError(str(error)) from error
    if found.address is None:
        raise InterfaceError(
            f"interface {found.name} has no IPv4 address", hint=f"ip address add ADDRESS/24 dev {found.name}"
        )
    if not found.is_up:
        raise InterfaceError(f"interface {found.name} is down", hint=f"ip link set {found.name} up")
    return found


def xdp_check_route(interface: xdp.Interface, group: str) -> None:
    """Datagrams leave through the interface the socket names, so only its being able to do multicast matters."""
    if not (interface.is_multicast or interface.is_loopback):
        raise InterfaceError(
            f"interface {interface.name} does not do multicast ({group})",
            hint=f"ip link set {interface.name} multicast on",
        )


__all__ = ["Context", "ReceiveBufferWarning"]
