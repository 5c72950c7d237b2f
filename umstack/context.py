"""Context: one instance of the stack on one network interface; makes sources, receivers and event queues.

One file, because what makes and what ends these objects shares the context's lifecycle lock.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from typing import Any

import xdp
from umstack._core import lib
from umstack._engine.engine import Engine
from umstack._engine.interface_follower import InterfaceFollower
from umstack._engine.link import rings_of_others
from umstack._engine.source_events import log_receiver_events
from umstack._engine.subscription import LateMapping, Subscription
from umstack._engine.transport_address import TransportAddress
from umstack.capture.writing.tap import TAP_RING_BYTES, Tap, TapSettings, datagram_observer
from umstack.config import (
    OPTIONS,
    Config,
    ContextOptions,
    OptionValue,
    ReceiverOptions,
    Scope,
    SourceOptions,
)
from umstack.errors import InterfaceError, OptionError, UmError
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.foreign_text import displayed
from umstack.hot_failover_receiver import HotFailoverReceiver
from umstack.receiver import Receiver
from umstack.recovery import RecoveryService, endpoint_of, endpoint_option
from umstack.requests import RequestService
from umstack.resolution import (
    DonatedResolver,
    ResolutionAgent,
    ResolutionInterface,
    Resolver,
    ResolverThread,
    TopicPattern,
    encode_topic_name,
)
from umstack.resolution.codec import WireOption
from umstack.source import Source
from umstack.streams import Streams
from umstack.telemetry import serve_metrics
from umstack.telemetry.counter_log import CounterLog
from umstack.telemetry.reading import context_report, latencies, recovery_times
from umstack.telemetry.time_histogram import LatencyHistogram, RecoveryHistogram
from umstack.wildcard_receiver import TopicListener, WildcardReceiver
from xdp.closing import Closing

_log = logging.getLogger("umstack.context")

_TOPIC_INDEX_START_MAX = 2**20
_RECEIVER_LOG_SECONDS = 0.5
_LIFECYCLE_POLL_S = 0.05


class ReceiveBufferWarning(UserWarning):
    """The kernel granted a smaller receive buffer than transport_lbtrm_receiver_socket_buffer."""


class OccupiedInterfaceWarning(UserWarning):
    """Another process receives over rings on the interface, and this context is on sockets."""


class Context(Closing):
    """One instance of the stack: usually one a process. Close it, or use it as a context manager.

    In embedded mode any thread may call any method. In sequential mode the thread that calls process_events() or
    polls runs the protocol; stats(), unblock() and close() may be called from any thread.
    """

    def __init__(
        self,
        interface: str | None = None,
        *,
        link: str | None = None,
        mode: str | None = None,
        config: Config | str | Path | None = None,
        statistics: bool | None = None,
        tap: str | Path | None = None,
        metrics: str | None = None,
        **options: OptionValue,
    ) -> None:
        """Open a context on an interface (a name, an address or a network; None: the first that does multicast).

        `link` is `auto`, `socket`, `xdp` or one of the modes of AF_XDP (docs/options.md). `mode` "embedded" runs the
        protocol on a thread of its own; "sequential" on the thread that calls process_events() or polls (UM-14).
        `config` is a Config or the path of a configuration file; `options` are context options by name, which
        override it. `statistics` lets `umstack stat` read the counters from outside the process: by default in
        embedded mode, where the directory for it can be had (the log says where not); with True it must be, which
        takes a thread in sequential mode, too; with False it is not done.
        `tap` is a pcapng file that gets what the context sends and receives, as with tap(). `metrics` is an
        address such as ":9464", where Prometheus can scrape the counters; the contexts of a process may share one.

        Raises OptionError (ConfigError with a file and line) for options, InterfaceError for the interface,
        PermissionNeeded or Unsupported for a link that cannot be had, LinkError or ResourceLimit for sockets.
        """
        self._config = config if isinstance(config, Config) else Config.load(config) if config else Config()
        overrides: dict[str, OptionValue] = dict(options)
        overrides |= {"operational_mode": mode} if mode is not None else {}
        overrides |= {"link": link} if link is not None else {}
        chosen = self._config.context_options(**overrides)
        found = _find_interface(interface or chosen.interface or None)
        self._next_topic_index = SystemRandom().randrange(_TOPIC_INDEX_START_MAX) + 1
        self._counter_log = CounterLog(self.stats)
        self._warned_buffer = False
        self._next_receiver_log = 0.0
        self._tap: Tap | None = None
        self._wildcards: dict[int, TopicListener] = {}
        self._next_wildcard_key = 1
        with ExitStack() as undo:
            self._engine = Engine(chosen, found, self._duty_work)
            self._core = self._engine.core
            undo.callback(self._close_engine)
            self._warn_occupied(found)
            if tap is not None:
                self.tap(tap)
            self._streams = Streams(chosen, found.address or "", is_threaded=not self._engine.is_sequential)
            undo.callback(self._streams.close)
            self._recovery = RecoveryService(
                chosen,
                self._streams,
                self._core.handle,
                self._engine.find_subscription,
                self._engine.keyring.keys_of,
            )
            undo.callback(self._recovery.close)
            self._requests = RequestService(
                chosen,
                self._streams,
                self._engine.keyring,
                (lambda: self._engine.process(0.0)) if self._engine.is_sequential else None,
                lambda: self._core.check_owned("a request"),
            )
            undo.callback(self._requests.close)
            self._core.responder = self._requests.responder
            self._resolver = self._open_resolver()
            undo.callback(self._resolver.close)
            self._follower = InterfaceFollower(
                found,
                self._on_mtu,
                self._engine.link.follow,
                self._resolver.request_resolution,
                self._forget_ended_sessions,
            )
            undo.callback(self._follower.close)
            if not self.is_sequential:
                self._follower.start()
            self._engine.start()
            self._serving = undo.enter_context(ExitStack())
            if statistics or (statistics is None and not self.is_sequential):
                self._serve_statistics(is_required=statistics is True)
            if metrics is not None:
                self._serving.callback(serve_metrics(metrics, self.stats).close)
            self._ending = undo.pop_all()

    def _serve_statistics(self, *, is_required: bool) -> None:
        from umstack.telemetry.statistics_server import StatisticsServer

        try:
            server = StatisticsServer(self.stats)
        except UmError as error:
            if is_required:
                raise
            _log.warning("umstack stat will not find this context: %s", displayed(str(error)))
        else:
            self._serving.callback(server.close)

    def _warn_occupied(self, interface: xdp.Interface) -> None:
        rings = rings_of_others(interface) if self._engine.link.kind == "socket" else None
        if rings is None:
            return
        text = (
            f"{interface.name} is used by rings of another context: {rings}; the groups it receives do not reach this "
            "context, which is on sockets: use another interface, or link=socket in both"
        )
        logging.getLogger("umstack.link").warning(
            "%s", displayed(text), extra={"umstack_interface": interface.name}
        )
        warnings.warn(displayed(text), OccupiedInterfaceWarning, stacklevel=3)

    def _open_resolver(self) -> Resolver:
        interface = self.interface
        agent = ResolutionAgent(
            self.options,
            ResolutionInterface(
                interface.name, interface.index, interface.address or "", interface.mtu_bytes
            ),
            time.monotonic_ns(),
            self._on_source,
            on_datagram=datagram_observer(self._core),
            keys=self._engine.keyring.resolution,
            on_topic=self._on_topic,
            on_unanswered=self._on_unanswered,
        )
        return DonatedResolver(agent) if self.is_sequential else ResolverThread(agent)

    # What it is

    @property
    def options(self) -> ContextOptions:
        """The options in force."""
        return self._core.options

    @property
    def interface(self) -> xdp.Interface:
        """The network interface, as it was when the context was opened."""
        return self._core.interface

    @property
    def is_sequential(self) -> bool:
        """Whether the application's thread runs the protocol."""
        return self._engine.is_sequential

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._core.closed

    @property
    def datagram_bytes(self) -> int:
        """The largest UDP payload sent now, in bytes; follows the MTU (W4)."""
        return self._core.datagram_bytes

    @property
    def link(self) -> str:
        """The link of the data path: `xdp` or `socket`."""
        return self._engine.link.kind

    @property
    def link_mode(self) -> str:
        """The mode of the link: `zero-copy`, `native`, `generic` or `socket` (W7)."""
        return str(self._engine.link.mode)

    # Sources, receivers and event queues

    def source(self, topic: str, **options: OptionValue) -> Source:
        """Create a source for a topic. `options` are source options by name. Any thread.

        Raises TopicNameError, OptionError, Closed; InterfaceError where the interface does not do multicast;
        LinkError or ResourceLimit when its transport session cannot be opened.
        """
        encode_topic_name(topic)
        chosen = self._config.source_options(**options)
        with self._core.lifecycle:
            self._core.check_open()
            return self._make_source(topic, chosen)

    def _make_source(self, topic: str, chosen: SourceOptions) -> Source:
        if chosen.transport == "lbtrm":
            _check_multicast(self.interface, chosen.transport_lbtrm_multicast_address)
        session = self._engine.sessions.acquire(chosen, self._engine.keyring.number_of(topic))
        try:
            source = Source(
                self._engine, self._resolver, session, topic, self._next_topic_index, chosen, self._requests
            )
        except BaseException:
            self._engine.sessions.release(session)
            raise
        self._next_topic_index += 1
        topic_options: tuple[WireOption, ...] = ()
        if chosen.late_join:
            try:
                topic_options = (endpoint_option(source._offer_late_join(self._recovery)),)
            except BaseException:
                source.close()
                raise
        self._resolver.advertise(topic, source.topic_index, session.address, chosen, topic_options)
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
        """Create a receiver for a topic. `options` are receiver options by name. Any thread.

        With `on_message`, every message and event goes to the callback: on a dispatch thread in embedded mode,
        inside process_events() in sequential mode. With `queue`, it goes into that event queue, which is read instead.
        `takes_group` gets the multicast group of each source of the topic, as a dotted IPv4 address, and returns
        whether to receive that source; it is called on the topic resolution thread.

        Raises TopicNameError, OptionError, ResourceLimit, Closed.
        """
        encode_topic_name(topic)
        chosen = self._config.receiver_options(**options)
        if queue is not None and on_message is not None:
            raise OptionError(
                f"receiver {topic!r} has both an event queue and a callback",
                hint="give on_message to event_queue(), which calls it for all of its receivers",
            )
        with self._core.lifecycle:
            self._core.check_open()
            return self._make_receiver(topic, on_message, queue, takes_group, chosen)

    def _make_receiver(
        self,
        topic: str,
        on_message: Callable[[Event], None] | None,
        queue: EventQueue | None,
        takes_group: Callable[[str], bool] | None,
        chosen: ReceiverOptions,
    ) -> Receiver:
        if queue is not None and not queue.closed and not self._engine.registry.has(queue):
            raise OptionError(
                f"receiver {topic!r}: its event queue is another context's",
                hint="make one with this context's event_queue()",
            )
        receiver = Receiver(self._engine, self._resolver, topic, chosen, on_message, queue, takes_group)
        self._resolver.query(topic, chosen)
        return receiver

    def event_queue(
        self, on_message: Callable[[Event], None] | None = None, **options: OptionValue
    ) -> EventQueue:
        """Create an event queue: receivers made with `queue=` deliver into it.

        `options` are, by name, options of scope event_queue, and receiver options: those of them that size a queue are
        the queue's, whatever its receivers have. With `on_message`, every message and
        event of all of them goes to the callback, as with a receiver. Raises OptionError, ResourceLimit, Closed.
        """
        own = _of_scope(Scope.EVENT_QUEUE, options)
        chosen = self._config.receiver_options(**options)
        queue_options = self._config.event_queue_options(**own)
        with self._core.lifecycle:
            self._core.check_open()
            return EventQueue(self._engine, chosen, queue_options, on_message)

    def wildcard_receiver(
        self,
        pattern: str | None = None,
        on_message: Callable[[Event], None] | None = None,
        *,
        prefix: str | None = None,
        **options: OptionValue,
    ) -> WildcardReceiver:
        r"""Create a receiver of every topic whose name `pattern` matches, or begins with `prefix`. Any thread.

        `pattern` is a regular expression that is searched for in the name, such as r"^orders\.(eu|us)\."; it needs
        the package regex (umstack[wildcard]). Topics join as they are advertised and leave when their sources have
        gone; all deliver into one event queue, which the result is. `options` are receiver options, which every topic
        has, and options of scopes wildcard_receiver and event_queue, by name. `on_message` is as with event_queue().

        Raises OptionError (a wrong pattern or option, resolver_cache 0), TopicNameError, ResourceLimit, Closed.
        """
        if (pattern is None) == (prefix is None):
            raise OptionError("a wildcard receiver takes a pattern or a prefix", hint="give one of them")
        if not self.options.resolver_cache:
            raise OptionError(
                "with resolver_cache 0 no topics are known to match", hint="leave resolver_cache at 1"
            )
        compiled = (
            TopicPattern.of_expression(pattern)
            if pattern is not None
            else TopicPattern.of_prefix(prefix or "")
        )
        own = _of_scope(Scope.WILDCARD_RECEIVER, options)
        queue_options = self._config.event_queue_options(**_of_scope(Scope.EVENT_QUEUE, options))
        chosen = self._config.receiver_options(**options)
        wildcard_options = self._config.wildcard_receiver_options(**own)
        with self._core.lifecycle:
            self._core.check_open()
            key = self._next_wildcard_key
            self._next_wildcard_key += 1
            receiver = WildcardReceiver(
                self._engine,
                self._resolver,
                compiled,
                key,
                self._wildcards,
                chosen,
                wildcard_options,
                queue_options,
                on_message,
            )
            self._resolver.match(key, compiled, wildcard_options)
            return receiver

    def hot_failover_receiver(
        self,
        topic: str,
        on_message: Callable[[Event], None] | None = None,
        *,
        others: Sequence[Context] = (),
        **options: OptionValue,
    ) -> HotFailoverReceiver:
        """Create a receiver of a topic that several sources send copies of, each message under a number of its own.

        The first copy of each number is delivered, in their order. `others` are further contexts, of other interfaces
        (A/B lines): what they receive is of the same stream. Contexts in sequential mode run their protocol as ever:
        reading this runs only this one's. `options` are receiver options and options of scope event_queue, by name, for
        every line. `on_message` is as with event_queue(). Any thread.

        Raises TopicNameError, OptionError, ResourceLimit, Closed.
        """
        encode_topic_name(topic)
        if len(others) >= lib.UM_HF_INPUTS_MAX or self in others or len(set(others)) < len(others):
            raise OptionError(
                f"hot failover receiver {topic!r}: others= names a context twice, or too many",
                hint=f"give each context once, {lib.UM_HF_INPUTS_MAX} with this one at most",
            )
        queue_options = self._config.event_queue_options(**_of_scope(Scope.EVENT_QUEUE, options))
        chosen = self._config.receiver_options(**options)
        lines = [(one._engine, one._resolver) for one in (self, *others)]
        with self._core.lifecycle, ExitStack() as locks:
            for one in (self, *others):
                locks.enter_context(one._core.lifecycle)
                one._core.check_open()
            return HotFailoverReceiver(topic, lines, chosen, queue_options, on_message)

    def _on_topic(self, key: int, topic: str, appeared: bool) -> None:
        """Topic resolution found a topic for a wildcard receiver, or its last source has gone."""
        lifecycle = self._core.lifecycle
        while True:
            if self.closed:  # the thread that closes holds the lock, and waits for this one
                return
            if lifecycle.acquire(timeout=_LIFECYCLE_POLL_S):
                break
        try:
            if key in self._wildcards and not self.closed:
                self._wildcards[key].on_topic(topic, appeared)
        finally:
            lifecycle.release()

    def _on_unanswered(self, topic: str, key: int | None, queries: int) -> None:
        """Topic resolution has sent so many queries, and there is no source."""
        if key is None:
            self._engine.tell_no_source(topic, queries)
            return
        listener = self._wildcards.get(key)
        if listener is not None:
            listener.on_unanswered(queries)

    def _on_source(self, topic: str, topic_index: int, address: TransportAddress) -> None:
        """Topic resolution found a source."""
        endpoint = endpoint_of(self._resolver.topic_options(topic, topic_index, address))

        def join_late(subscription: Subscription, session: Any, mapping: LateMapping) -> None:
            self._recovery.join(subscription, session, topic_index, mapping)

        if endpoint is not None:
            self._recovery.expect()
        self._engine.map_source(topic, topic_index, address, endpoint, join_late)
        self._warn_small_buffer()

    def _warn_small_buffer(self) -> None:
        asked = self.options.transport_lbtrm_receiver_socket_buffer_bytes
        granted = lib.um_context_receive_buffer(self._core.handle)
        if granted and granted < asked and not self._warned_buffer:
            self._warned_buffer = True
            warnings.warn(
                f"the kernel granted a receive buffer of {granted} bytes where {asked} were asked for: "
                f"bursts may be lost; run `sysctl -w net.core.rmem_max={asked}` or give the process CAP_NET_ADMIN",
                ReceiveBufferWarning,
                stacklevel=2,
            )

    def topics(self) -> list[str]:
        """Topics that have a source, as far as this context's topic resolution knows (UX-16). Any thread.

        A topic becomes known when it is advertised; discover_topics() requests that at once. Raises Closed.
        """
        self._core.check_open()
        return self._resolver.topics()

    def discover_topics(self) -> None:
        """Request that every source advertises itself now, so that topics() soon has them all. Raises Closed."""
        self._core.check_open()
        self._resolver.request_resolution()

    # Following the interface

    def _on_mtu(self, mtu_bytes: int) -> None:
        self._core.set_mtu(mtu_bytes)
        self._resolver.set_mtu(mtu_bytes)

    def _forget_ended_sessions(self) -> None:
        """Have the sources of sessions that timed out reported again when they are advertised again."""
        ended = self._engine.ended_sessions()
        if ended is None or ended:
            self._resolver.forget_sessions(ended)
        self._engine.steer()
        if self._engine.keyring.refresh():
            self._resolver.set_keys(self._engine.keyring.resolution)
        self._log_receivers()
        self._counter_log.update()

    def _log_receivers(self) -> None:
        now = time.monotonic()
        if now < self._next_receiver_log:
            return
        self._next_receiver_log = now + _RECEIVER_LOG_SECONDS
        with self._engine.registry.listing:
            for session in self._engine.sessions.sessions:
                log_receiver_events(session)

    # Sequential mode

    def process_events(self, timeout: float | None = 0.0) -> int:
        """Run the protocol on this thread for `timeout` seconds; 0 is one pass that does not sleep (UM-14).

        None runs it until unblock(), which also ends a call with a timeout. Returns how many datagrams were handled.
        Callbacks of receivers run inside. Raises OptionError in embedded mode, Closed, LinkError.
        """
        self._core.check_open()
        if not self.is_sequential:
            raise OptionError(
                "process_events is for sequential mode", hint="create the context with mode='sequential'"
            )
        return self._engine.process(timeout)

    def _duty_work(self, now_ns: int) -> None:
        """Topic resolution and interface changes, on the donated thread."""
        self._resolver.process(now_ns)
        self._streams.process(now_ns)
        self._follower.poll()
        self._forget_ended_sessions()

    def unblock(self) -> None:
        """Make process_events() return, the one under way or the next, and every poll() that waits now. Any thread."""
        self._engine.unblock()

    def idle(self, seconds: float) -> None:
        """Let the protocol run for `seconds` while the caller waits for a condition.

        Sleeps in embedded mode, calls process_events() in sequential mode and raises as that does.
        """
        self._engine.idle(seconds)

    # Statistics

    def stats(self) -> dict[str, Any]:
        """Every counter by UM's name (docs/counters.md): context, link, transports, sources, receivers. Any thread.

        Raises Closed.
        """
        self._core.check_open()
        own = {**self._resolver.stats(), **self._streams.stats(), **self._requests.stats()}
        return {**context_report(self._engine, own), "resolution": self._resolver.report()}

    def nak_cutoff(self, enabled: bool = True) -> None:
        """Send no NAKs for any receiver of this context, or again with `enabled` False (UX-21).

        As Receiver.nak_cutoff(), for all receivers at once, those that are made later included; one that has a
        cutoff of its own keeps it. Any thread. Raises Closed.
        """
        self._engine.core.check_open()
        lib.um_context_set_nak_cutoff(self._engine.core.handle, enabled)

    def recovery_times(self) -> RecoveryHistogram:
        """How long the recovery of lost datagrams took, over all receiving sessions open now. Raises Closed."""
        self._core.check_open()
        return recovery_times(self._engine)

    def latencies(self) -> LatencyHistogram:
        """One-way latencies of the messages of sources with `send_timestamps`, over all receiving sessions open now.

        They are as good as the clocks of the two hosts agree: `umstack.telemetry.host_clock` says how far this one is
        known to be right. Raises Closed.
        """
        self._core.check_open()
        return latencies(self._engine)

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
        `snap_bytes` limits the bytes written of a datagram, headers included; 0 is no limit. With `rotate_bytes` or
        `rotate_seconds` the path is a directory, and a file of that size or age is followed by another; of those,
        the last `keep_files` stay. Raises TapRunning when there is a tap, InvalidArgument for limits, Closed, and
        the error of the operating system when the file cannot be opened.
        """
        settings = TapSettings(snap_bytes, ring_bytes, rotate_bytes, rotate_seconds, keep_files)
        with self._core.lifecycle:
            self._core.check_open()
            self._tap = Tap(self._core, path, settings)
            self._core.set_tap(self._tap)
            return self._tap

    # Ending

    def close(self) -> None:
        """Close every source, receiver and event queue, stop the threads and the tap, leave the groups.

        Any thread may call it, callbacks included; a second call does nothing. Raises CaptureError when the tap
        could not write its file; the context is closed then, too. In a forked child it does nothing.
        """
        if self._core.forked:
            return
        self._engine.dispatch.close()  # without the lock: the callback it waits for may be making an object
        with self._core.lifecycle:
            if not self.closed:
                self._close()

    def _close(self) -> None:
        self._serving.close()
        registry = self._engine.registry
        for opened in [*registry.of(Receiver), *registry.of(EventQueue), *registry.of(Source)]:
            opened.close()
        self._core.closed = True
        self._ending.close()

    def _close_engine(self) -> None:
        self._core.closed = True
        try:
            if self._tap is not None:
                self._tap.stop()
        finally:
            self._engine.close()

    def __repr__(self) -> str:
        return f"<Context {self.interface.name} {self.options.operational_mode} {self.link}>"


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


def _of_scope(scope: Scope, options: dict[str, OptionValue]) -> dict[str, OptionValue]:
    """Takes the options of this scope out of the others."""
    return {name: options.pop(name) for name in list(options) if name in OPTIONS[scope]}


def _check_multicast(interface: xdp.Interface, group: str) -> None:
    """The socket names its interface, so no route matters, only whether the interface does multicast."""
    if not (interface.is_multicast or interface.is_loopback):
        raise InterfaceError(
            f"interface {interface.name} does not do multicast ({group})",
            hint=f"ip link set {interface.name} multicast on",
        )


__all__ = ["Context", "OccupiedInterfaceWarning", "ReceiveBufferWarning"]
