"""Context: one instance of the stack on one network interface; makes sources, receivers and event queues.

One file, because making and closing these objects share the context's lifecycle lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Unpack, overload
from weakref import WeakSet

import umstack_xdp as xdp
from umstack._core import lib
from umstack._engine.endpoint import Endpoint
from umstack._engine.engine import Engine
from umstack._engine.interface_addresses import check_multicast, context_interface
from umstack._engine.interface_follower import InterfaceFollower
from umstack._engine.sessions import fixed_fragment_bytes
from umstack._engine.source_events import log_receiver_events
from umstack._engine.subscription import LateMapping, Subscription
from umstack._engine.transport_address import LbtipcAddress, TransportAddress
from umstack.async_closing import AsyncClosing
from umstack.capture.writing.tap import TAP_RING_BYTES, Tap, TapSettings, datagram_observer
from umstack.config import (
    Config,
    ContextOptions,
    ReceiverOptions,
    Scope,
    SourceOptions,
)
from umstack.context_keywords import conflating, of_scope
from umstack.context_warnings import (
    warn_fragmented,
    warn_generic,
    warn_occupied,
    warn_small_buffer,
)
from umstack.driver import DriverClient, attach, listening_path
from umstack.errors import OptionError, UmError
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.foreign_text import displayed
from umstack.hot_failover_receiver import HotFailoverReceiver
from umstack.interface_moves import InterfaceMoves
from umstack.persistence.advertised import Stored, store_topic_options, stores_of
from umstack.persistence.registrations import ReceiverSession, StoreRegistrations
from umstack.persistence.session_ids import session_id_of
from umstack.persistence.store_replay import StoreAddress
from umstack.persistent_receiver import PersistentReceiver
from umstack.persistent_source import PersistentSource
from umstack.receiver import Receiver
from umstack.recovery import RecoveryService, endpoint_of, endpoint_option
from umstack.replay_receiver import ReplayReceiver, check_replay, open_replay, receiver_start
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
from umstack.source import Source
from umstack.streams import Streams
from umstack.telemetry import serve_metrics
from umstack.telemetry.counter_file import CounterFile
from umstack.telemetry.counter_log import CounterLog
from umstack.telemetry.reading import context_report, latencies, recovery_times
from umstack.telemetry.time_histogram import LatencyHistogram, RecoveryHistogram
from umstack.wildcard_receiver import TopicListener, WildcardReceiver

if TYPE_CHECKING:
    from umstack.config.keywords import (
        ContextKeywords,
        QueueKeywords,
        ReceiverKeywords,
        SourceKeywords,
        WildcardReceiverKeywords,
    )

_log = logging.getLogger("umstack.context")

_TOPIC_INDEX_START_MAX = 2**20
_RECEIVER_LOG_SECONDS = 0.5
_LIFECYCLE_POLL_S = 0.05


class Context(AsyncClosing):
    """Run one instance of the stack on one network interface.

    Usually one per process. Close it, or use it as a context manager. In embedded mode any thread may call any method.
    In sequential mode the thread that calls process_events() or poll() runs the protocol; stats(), unblock() and
    close() may be called from any thread.

    Example:
        ```python
        with umstack.Context("lo") as context:
            context.source("orders").send(b"hello", flush=True)
        ```
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
        driver: str | Path = "none",
        **options: Unpack[ContextKeywords],
    ) -> None:
        """Open a context on an interface.

        Args:
            interface: Name, IPv4 address or network of the interface. None: option `interface`, or else the first
                interface that supports multicast.
            link: `auto`, `socket`, `xdp` or one AF_XDP mode (docs/options.md). None: the configured link.
            mode: `embedded` runs the protocol on its own thread; `sequential` on the thread that calls
                process_events() or poll() (UM-14). None: the configured mode.
            config: Config, or the path of a configuration file. None: defaults.
            statistics: Write the counters into a file for `umstack stat`, which stays if the process is killed. None:
                in embedded mode, if the file can be created (otherwise logged). True: required; in sequential mode,
                process_events() writes it.
            tap: pcapng file for the datagrams sent and received, as with tap().
            metrics: Address such as ":9464" where Prometheus scrapes the counters. Contexts of a process may share one.
            driver: `none`: the context has its own link. A path: attach to the driver that listens there. `auto`:
                attach to the driver of the interface if one is running, else `none`; if the driver ends and does not
                come back within driver_search_timeout, continue as with `none` (docs/driver.md).
            **options: Context options by name; they override `config`.

        Raises:
            DriverError: The driver cannot be reached, or refuses the process.
            OptionError: An option does not exist or has a wrong value (ConfigError: with file and line).
            InterfaceError: The interface does not exist, is down or has no IPv4 address.
            PermissionNeeded: The link requires a privilege that the process does not have.
            Unsupported: This host cannot provide the link.
            LinkError: A socket or ring could not be opened (ResourceLimit: a limit of the system is reached).
        """
        self._config = config if isinstance(config, Config) else Config.load(config) if config else Config()
        overrides: dict[str, Any] = {**options}
        overrides |= {"operational_mode": mode} if mode is not None else {}
        overrides |= {"link": link} if link is not None else {}
        chosen = self._config.context_options(**overrides)
        found = context_interface(interface or chosen.interface or None)
        self._next_topic_index = SystemRandom().randrange(_TOPIC_INDEX_START_MAX) + 1
        self._counter_log = CounterLog(self.stats)
        self._counter_file: CounterFile | None = None
        self._warned_buffer = False
        self._next_receiver_log = 0.0
        self._tap: Tap | None = None
        self._wildcards: dict[int, TopicListener] = {}
        self._next_wildcard_key = 1
        self._persistent_sources: WeakSet[PersistentSource] = WeakSet()
        self._driver: DriverClient | None = None
        with ExitStack() as undo:
            if (path := listening_path(driver, found.name)) is not None:
                from umstack.attached import options_of_attached

                chosen = options_of_attached(chosen)
                self._driver = attach(path, found.name, chosen.driver_search_timeout_ns / 1e9)
                undo.callback(self._driver.close)
            self._engine = Engine(chosen, found, self._duty_work)
            self._core = self._engine.core
            undo.callback(self._close_engine)
            if self._driver is None:
                warn_occupied(self._engine.link, found)
            warn_generic(self._engine.link, found)
            warn_fragmented(chosen, found)
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
            self._registrations = StoreRegistrations(self._engine, self._streams, self._recovery)
            self._requests = RequestService(
                chosen,
                self._streams,
                self._engine.keyring,
                self._engine.tcp_peers,
                (lambda: self._engine.process(0.0)) if self._engine.is_sequential else None,
                lambda: self._core.check_owned("a request"),
            )
            undo.callback(self._requests.close)
            self._core.responder = self._requests.responder
            self._resolver = self._open_resolver()
            undo.callback(self._resolver.close)
            self._engine.on_unmapped = partial(_try_again, self._resolver)
            moves = InterfaceMoves(self._engine, self._resolver, self._streams, self._unless_closing)
            self._follower = InterfaceFollower(
                found,
                moves.on_mtu,
                moves.on_moved,
                self._engine.link.follow,
                self._resolver.request_resolution,
                self._forget_ended_sessions,
            )
            undo.callback(self._follower.close)
            if not self.is_sequential:
                self._follower.start()
            self._engine.start()
            if self._driver is not None:
                self._driver.start(
                    self._leave_driver if driver == "auto" else None,
                    (lambda: self._engine.idle(0.0)) if self.is_sequential else None,
                )
            self._serving = undo.enter_context(ExitStack())
            if statistics or (statistics is None and not self.is_sequential):
                self._serve_statistics(is_required=statistics is True)
            if metrics is not None:
                self._serving.callback(serve_metrics(metrics, self.stats).close)
            self._ending = undo.pop_all()

    def _serve_statistics(self, *, is_required: bool) -> None:
        try:
            kept = self.options.statistics_ended_maximum, self.options.statistics_ended_interval_ns / 1e9
            self._counter_file = CounterFile(lambda: self._report(repeats_sessions=False), None, *kept)
        except UmError as error:
            if is_required:
                raise
            _log.warning("umstack stat will not find this context: %s", displayed(str(error)))
        else:
            self._serving.callback(self._counter_file.close)
            self._counter_file.begin()

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

    # Properties

    @property
    def options(self) -> ContextOptions:
        """The options in force."""
        return self._core.options

    @property
    def interface(self) -> xdp.Interface:
        """The network interface, as it was when the context was opened or last followed a change of it."""
        return self._core.interface

    @property
    def is_sequential(self) -> bool:
        """True if the application's thread runs the protocol."""
        return self._engine.is_sequential

    @property
    def closed(self) -> bool:
        """True once close() was called."""
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

    @overload
    def source(self, topic: str, **options: Unpack[SourceKeywords]) -> Source: ...
    @overload
    def source(
        self,
        topic: str,
        *,
        store: Sequence[str | tuple[str, int]],
        session_id: int | str,
        registration_timeout: float = 30.0,
        **options: Unpack[SourceKeywords],
    ) -> PersistentSource: ...
    def source(
        self,
        topic: str,
        *,
        store: Sequence[str | tuple[str, int]] | None = None,
        session_id: int | str = 0,
        registration_timeout: float = 30.0,
        **options: Unpack[SourceKeywords],
    ) -> Source | PersistentSource:
        """Create a source for a topic. Any thread.

        Args:
            topic: Name of 1 to 246 bytes of UTF-8 without NUL.
            store: Stores that keep its messages (docs/store.md), each as "address:port" or a pair. None: no Stores.
            session_id: Identifies the source at the Stores, so that a restarted one continues its numbering: a number,
                or a name such as "desk7".
            registration_timeout: Maximum wait in seconds until enough Stores have registered the source.
            **options: Source options by name; they override the configuration.

        Returns:
            The source; close() it, or close the context.

        Raises:
            TopicNameError: The name cannot be sent.
            OptionError: An option does not exist or has a wrong value.
            InterfaceError: The interface does not support multicast.
            LinkError: The transport session could not be opened (ResourceLimit: a limit is reached).
            NotConnected: Too few Stores registered the source within the timeout.
            InvalidArgument: A Store's address, the session id or the number of Stores is wrong.
            Closed: The context is closed.

        Example:
            ```python
            ctx.source("orders", late_join=1).send(b"hello", flush=True)
            ```
        """
        encode_topic_name(topic)
        config = self._config.of_topic(Scope.SOURCE, topic)
        chosen = config.source_options(**options)
        with self._core.lifecycle:
            self._core.check_open()
            if store is None:
                return self._make_source(topic, chosen)

        def make_source(first_sqn: int, stores: tuple[Endpoint, ...]) -> Source:
            named: SourceKeywords = {**options, "initial_sequence_number": first_sqn}
            with self._core.lifecycle:
                self._core.check_open()
                fragment_bytes = fixed_fragment_bytes(self._core, chosen.transport)
                return self._make_source(
                    topic, config.source_options(**named), Stored(stores, fragment_bytes)
                )

        source = PersistentSource(
            make_source, self._engine.keyring, topic, store, session_id, chosen, registration_timeout
        )
        self._persistent_sources.add(source)
        return source

    def _make_source(
        self,
        topic: str,
        chosen: SourceOptions,
        stored: Stored | None = None,
    ) -> Source:
        """`stored`: its Stores, and the length of its fragments."""
        if self._driver is not None and chosen.transport != "lbtipc":  # LBT-IPC is in memory already
            from umstack.attached import AttachedSource

            index, self._next_topic_index = self._next_topic_index, self._next_topic_index + 1
            return AttachedSource(
                self._engine,
                self._resolver,
                self._driver,
                topic,
                index,
                chosen,
                self._requests,
                self._recovery,
                stored,
            )
        if chosen.transport == "lbtrm":
            check_multicast(self.interface, chosen.transport_lbtrm_multicast_address)
        session = self._engine.sessions.acquire(chosen, self._engine.keyring.number_of(topic))
        try:
            source = Source(
                self._engine,
                self._resolver,
                session,
                topic,
                self._next_topic_index,
                chosen,
                self._requests,
                stored.fragment_bytes if stored else 0,
            )
        except BaseException:
            self._engine.sessions.release(session)
            raise
        self._next_topic_index += 1
        topic_options = store_topic_options(stored.stores) if stored else ()
        if chosen.late_join:
            try:
                topic_options += (endpoint_option(source._offer_late_join(self._recovery)),)
            except BaseException:
                source.close()
                raise
        self._resolver.advertise(topic, source.topic_index, session.address, chosen, topic_options)
        return source

    @overload
    def receiver(
        self,
        topic: str,
        on_message: Callable[[Event], None] | None = None,
        *,
        queue: EventQueue | None = None,
        takes_group: Callable[[str], bool] | None = None,
        conflate: bool = False,
        **options: Unpack[ReceiverKeywords],
    ) -> Receiver: ...
    @overload
    def receiver(
        self,
        topic: str,
        on_message: Callable[[Event], None] | None = None,
        *,
        conflate: bool = False,
        session_id: int | str,
        start: int | None = None,
        **options: Unpack[ReceiverKeywords],
    ) -> PersistentReceiver: ...
    @overload
    def receiver(
        self,
        topic: str,
        *,
        conflate: bool = False,
        from_store: Sequence[StoreAddress],
        start: int | str | datetime | None = None,
        session_id: int | str | None = None,
        **options: Unpack[ReceiverKeywords],
    ) -> ReplayReceiver: ...
    def receiver(
        self,
        topic: str,
        on_message: Callable[[Event], None] | None = None,
        *,
        queue: EventQueue | None = None,
        takes_group: Callable[[str], bool] | None = None,
        conflate: bool = False,
        session_id: int | str | None = None,
        from_store: Sequence[StoreAddress] = (),
        start: int | str | datetime | None = None,
        **options: Unpack[ReceiverKeywords],
    ) -> Receiver | ReplayReceiver:
        """Create a receiver for a topic. Any thread.

        Args:
            topic: Name of 1 to 246 bytes of UTF-8 without NUL.
            on_message: Callback for every message and event: on a thread of its own in embedded mode, so callbacks of
                several receivers run at the same time; inside process_events() in sequential mode. None: the
                application reads the receiver.
            queue: Event queue of this context to deliver into; the application then reads that queue.
            takes_group: Called with the multicast group of each source of the topic (dotted IPv4 address), on the
                thread that finds sources; returns True if that source is to be received. None: every source.
            conflate: Short for `receiver_full_queue="conflate"`: deliver the newest message per source only, or per
                source and first bytes of the payload (receiver_conflation_key_length), and never hold a source back.
            session_id: Registers the receiver at the Stores of its sources (docs/store.md), to continue after the last
                message that this session id acknowledged: a number, or a name such as "risk3".
            from_store: Stores, as "address:port" or pairs, whose messages are played again before the live ones; the
                sources may have ended.
            start: With `from_store`: first message of each source, by sequence number or by the time of reception at
                the Store (a datetime, or text as in ISO 8601). None: the first that `session_id` has not acknowledged;
                without one the oldest. A number also holds for the live messages of sources with Stores. With
                `session_id` alone: a number; earlier messages are not delivered.
            **options: Receiver options by name; they override the configuration.

        Returns:
            The receiver; close() it, or close the context.

        Raises:
            TopicNameError: The name cannot be sent.
            OptionError: An option is wrong, both `queue` and `on_message` are given, or the queue is another context's.
            InvalidArgument: The address of a Store, the start or the session id is wrong.
            ResourceLimit: A bounded table or the memory is used up.
            Closed: The context is closed.

        Example:
            ```python
            with ctx.receiver("orders") as receiver:
                print(receiver.receive(timeout=0.1))
            ```
        """
        encode_topic_name(topic)
        chosen = self._config.of_topic(Scope.RECEIVER, topic).receiver_options(
            **conflating(options, conflate)
        )
        if queue is not None and on_message is not None:
            raise OptionError(
                f"receiver {topic!r} has both an event queue and a callback",
                hint="give on_message to event_queue(), which calls it for all of its receivers",
            )
        first = receiver_start(topic, start, session_id, from_store)
        if from_store:
            check_replay(topic, chosen, on_message, queue, takes_group)

            def open_live(number: int, sqn: int | None) -> Receiver:
                return self.receiver(topic, conflate=conflate, session_id=number, start=sqn, **options)

            return open_replay(topic, from_store, first, session_id, self._engine.keyring, open_live)
        with self._core.lifecycle:
            self._core.check_open()
            if session_id is None:
                return self._make_receiver(topic, on_message, queue, takes_group, chosen)
            session = ReceiverSession(session_id_of(session_id), None if first is None else first.sqn)
            named = self._engine, self._resolver, self._registrations, topic, chosen, session, on_message
            if self._driver is not None:
                from umstack.attached_persistent_receiver import AttachedPersistentReceiver

                return AttachedPersistentReceiver(*named, driver=self._driver, recovery=self._recovery)
            receiver = PersistentReceiver(*named)
            self._resolver.query(topic, chosen)
            return receiver

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
        named = self._engine, self._resolver, topic, chosen, on_message, queue, takes_group
        if self._driver is not None:
            from umstack.attached import AttachedReceiver

            return AttachedReceiver(*named, driver=self._driver, recovery=self._recovery)
        receiver = Receiver(*named)
        self._resolver.query(topic, chosen)
        return receiver

    def _receive_into(self, topic: str, queue: EventQueue, chosen: ReceiverOptions) -> Receiver:
        return self._make_receiver(topic, None, queue, None, chosen)

    def _leave_driver(self) -> None:
        """Continue with sockets of this process, after no driver came back. On the thread that looked for one, or, in
        sequential mode, on the one that runs the protocol."""
        with self._unless_closing() as is_open:
            if is_open:
                from umstack.attached import leave_driver

                self._driver = None
                warn_occupied(self._engine.link, self.interface)
                leave_driver(self._engine.registry, self._resolver)

    def event_queue(
        self,
        on_message: Callable[[Event], None] | None = None,
        *,
        conflate: bool = False,
        **options: Unpack[QueueKeywords],
    ) -> EventQueue:
        """Create an event queue that receivers made with `queue=` deliver into. Any thread.

        Args:
            on_message: Callback for every message and event of its receivers, as with receiver().
            conflate: Deliver the newest messages only, as with receiver().
            **options: Options of scope event_queue and receiver options, by name. Receiver options that size a
                queue apply to this queue and are ignored in its receivers.

        Returns:
            The event queue; close() it, or close the context.

        Raises:
            OptionError: An option does not exist or has a wrong value.
            ResourceLimit: The memory is used up.
            Closed: The context is closed.

        Example:
            ```python
            with ctx.event_queue() as shared:
                receivers = [ctx.receiver(topic, queue=shared) for topic in ("orders", "trades")]
                print(shared.poll(timeout=0.1))
            ```
        """
        given: dict[str, Any] = {**options}
        own = of_scope(Scope.EVENT_QUEUE, given)
        chosen = self._config.receiver_options(**conflating(given, conflate))
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
        conflate: bool = False,
        **options: Unpack[WildcardReceiverKeywords],
    ) -> WildcardReceiver:
        """Create a receiver of every topic whose name matches. Any thread.

        Topics join when they are advertised and leave when their sources have ended. All deliver into one event
        queue: the result.

        Args:
            pattern: Regular expression searched in the name, such as `^orders[.](eu|us)`; needs the package regex
                (umstack[wildcard]). Give either this or `prefix`.
            on_message: Callback for every message and event, as with receiver().
            prefix: Start of the names to receive; needs no package.
            conflate: Deliver the newest messages only, as with receiver().
            **options: Receiver options, which apply to every topic, and options of scopes wildcard_receiver and
                event_queue.

        Returns:
            The wildcard receiver; close() it, or close the context.

        Raises:
            OptionError: The pattern or an option is wrong, or resolver_cache is 0.
            TopicNameError: The prefix cannot be part of a topic name.
            ResourceLimit: The memory is used up.
            Closed: The context is closed.

        Example:
            ```python
            with ctx.wildcard_receiver(prefix="ord") as receiver:
                print(receiver.poll(timeout=0.1).messages(), receiver.topics())
            ```
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
        given: dict[str, Any] = {**options}
        own = of_scope(Scope.WILDCARD_RECEIVER, given)
        queue_options = self._config.event_queue_options(**of_scope(Scope.EVENT_QUEUE, given))
        config = self._config.of_topic(
            Scope.WILDCARD_RECEIVER, pattern if pattern is not None else f"^{prefix}"
        )
        chosen = config.receiver_options(**conflating(given, conflate))
        wildcard_options = config.wildcard_receiver_options(**own)
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
                self._receive_into,
            )
            self._resolver.match(key, compiled, wildcard_options)
            return receiver

    def hot_failover_receiver(
        self,
        topic: str,
        on_message: Callable[[Event], None] | None = None,
        *,
        others: Sequence[Context] = (),
        **options: Unpack[QueueKeywords],
    ) -> HotFailoverReceiver:
        """Create a receiver of a topic that several sources send copies of. Any thread.

        The first copy of each message number is delivered, in order of the numbers.

        Args:
            topic: Name of the topic.
            on_message: Callback for every message and event, as with receiver().
            others: Further contexts on other interfaces (A/B lines) that receive the same stream. A sequential
                context among them still needs its own process_events() calls: reading the result runs only this
                context.
            **options: Receiver options and options of scope event_queue, by name; they apply to every line.

        Returns:
            The hot failover receiver; close() it, or close the context.

        Raises:
            TopicNameError: The name cannot be sent.
            OptionError: An option is wrong, or `others` names a context twice or too many contexts.
            ResourceLimit: The memory is used up.
            Closed: A context is closed.

        Example:
            ```python
            with ctx.hot_failover_receiver("orders") as receiver:
                src.send_hot_failover(b"hello", 1, flush=True)
                print(receiver.receive(timeout=0.1))
            ```
        """
        encode_topic_name(topic)
        if len(others) >= lib.UM_HF_INPUTS_MAX or self in others or len(set(others)) < len(others):
            raise OptionError(
                f"hot failover receiver {topic!r}: others= names a context twice, or too many",
                hint=f"give each context once, {lib.UM_HF_INPUTS_MAX} with this one at most",
            )
        given: dict[str, Any] = {**options}
        queue_options = self._config.event_queue_options(**of_scope(Scope.EVENT_QUEUE, given))
        chosen = self._config.of_topic(Scope.RECEIVER, topic).receiver_options(**given)
        if chosen.receiver_full_queue == "conflate":
            raise OptionError(
                f"hot failover receiver {topic!r}: it delivers every message",
                hint="leave receiver_full_queue at hold or lose",
            )
        lines = [(one._engine, one._receive_into) for one in (self, *others)]
        with self._core.lifecycle, ExitStack() as locks:
            for one in (self, *others):
                locks.enter_context(one._core.lifecycle)
                one._core.check_open()
            return HotFailoverReceiver(topic, lines, chosen, queue_options, on_message)

    def _on_topic(self, key: int, topic: str, appeared: bool) -> None:
        """Topic resolution found a topic for a wildcard receiver, or its last source ended."""
        with self._unless_closing() as is_open:
            if is_open and key in self._wildcards:
                self._wildcards[key].on_topic(topic, appeared)

    @contextmanager
    def _unless_closing(self) -> Iterator[bool]:
        """Hold the lifecycle lock and yield true; false without it once the context is closed.

        The closing thread holds the lock and waits for the threads that call this.
        """
        lifecycle = self._core.lifecycle
        while not self.closed:
            if lifecycle.acquire(timeout=_LIFECYCLE_POLL_S):
                try:
                    yield not self.closed
                finally:
                    lifecycle.release()
                return
        yield False

    def _on_unanswered(self, topic: str, key: int | None, queries: int) -> None:
        """Topic resolution has sent `queries` queries without finding a source."""
        if key is None:
            self._engine.report_no_source(topic, queries)
            return
        listener = self._wildcards.get(key)
        if listener is not None:
            listener.on_unanswered(queries)

    def _on_source(self, topic: str, topic_index: int, address: TransportAddress, advertiser: str) -> None:
        """Topic resolution found a source. With a driver, the driver receives it, unless it is in memory already."""
        if self._driver is not None and not isinstance(address, LbtipcAddress):
            return
        if self._resolver.has_withdrawn(topic, topic_index, address):
            return
        topic_options = self._resolver.topic_options(topic, topic_index, address)
        endpoint = endpoint_of(topic_options)
        is_taken = self._registrations.takes(
            topic, topic_index, address, advertiser, stores_of(topic_options)
        )

        def join_late(subscription: Subscription, session: Any, mapping: LateMapping) -> None:
            self._recovery.join(subscription, session, topic_index, mapping)

        if endpoint is not None and not self._engine.tcp_peers.admits_advertised(
            endpoint.ip, advertiser, f"late join of {topic!r}"
        ):
            endpoint = None
        if endpoint is not None:
            self._recovery.expect()
        self._engine.map_source(
            topic, topic_index, address, endpoint, join_late, advertiser, is_taken=is_taken
        )
        self._warn_small_buffer()

    def _warn_small_buffer(self) -> None:
        granted = lib.um_context_receive_buffer(self._core.handle)
        self._warned_buffer = self._warned_buffer or warn_small_buffer(self.options, granted)

    def topics(self) -> list[str]:
        """List the topics that topic resolution knows a source of. Any thread.

        A topic becomes known when it is advertised; discover_topics() requests that at once.

        Returns:
            The names of the topics.

        Raises:
            Closed: The context is closed.

        Example:
            ```python
            print(ctx.topics())
            ```

        Requirement: UX-16.
        """
        self._core.check_open()
        return self._resolver.topics()

    def sources_of(self, topic: str) -> list[str]:
        """List the known sources of a topic, in the order of their first advertisements. Any thread.

        A source that has ended is listed until its final advertisement arrives, or newer sources take its space.

        Args:
            topic: Name of the topic.

        Returns:
            The names of the sources, as `Message.source` has them: transport session and topic index.

        Raises:
            TopicNameError: The name cannot be a topic's.
            OptionError: resolver_cache is 0.
            Closed: The context is closed.

        Example:
            ```python
            for topic in ctx.topics():
                print(topic, ctx.sources_of(topic))
            ```
        """
        self._core.check_open()
        return self._resolver.sources_of(topic)

    def discover_topics(self) -> None:
        """Request an advertisement from every source, which fills topics(). Any thread.

        Raises:
            Closed: The context is closed.

        Example:
            ```python
            ctx.discover_topics()
            ```
        """
        self._core.check_open()
        self._resolver.request_resolution()

    # Following the interface

    def _forget_ended_sessions(self) -> None:
        """Make topic resolution report the sources of timed-out sessions again when they are advertised."""
        ended = self._engine.ended_sessions()
        if ended and self._driver is not None:
            from umstack.attached import network_sessions

            ended = ended | network_sessions(self._engine.registry, ended)
        if ended is None or ended:
            self._resolver.forget_sessions(ended)
        self._engine.steer()
        if self._engine.keyring.refresh():
            self._resolver.set_keys(self._engine.keyring.resolution)
        self._follow_clock()
        self._log_receivers()
        self._counter_log.update()
        if self._counter_file is not None:
            self._counter_file.update()

    def _follow_clock(self) -> None:
        """With keys, begin sessions again if the clock was set back: receivers would refuse their tags."""
        if not self._engine.keyring.is_loaded:
            return
        with self._unless_closing() as is_open:
            moved = self._engine.sessions.follow_clock() if is_open else {}
            if moved:
                self._resolver.move_sources(moved)
                self._next_receiver_log = 0.0  # logs the event

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
        """Run the protocol on this thread; for sequential mode.

        Callbacks of receivers run inside the call.

        Args:
            timeout: How many seconds to run; 0 is one pass that does not sleep, None runs until unblock().
                unblock() ends a call with a timeout, too.

        Returns:
            The number of datagrams handled.

        Raises:
            OptionError: The context is in embedded mode.
            Closed: The context is closed.
            LinkError: The link failed.

        Example:
            ```python
            with umstack.Context("lo", mode="sequential") as context:
                context.process_events(timeout=0.01)
            ```

        Requirement: UM-14.
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
        if self._driver is not None:
            self._driver.process()
        self._follower.poll()
        self._forget_ended_sessions()

    def unblock(self) -> None:
        """Make the current or next process_events() and every waiting poll() return.

        Any thread.

        Example:
            ```python
            ctx.unblock()
            ```
        """
        self._engine.unblock()

    def idle(self, seconds: float) -> None:
        """Let the protocol run while the caller waits for a condition.

        Sleeps in embedded mode, calls process_events() in sequential mode and raises the errors of that call.

        Args:
            seconds: How long.

        Example:
            ```python
            ctx.idle(0.01)
            ```
        """
        self._engine.idle(seconds)

    # Statistics

    def stats(self) -> dict[str, Any]:
        """Read every counter by its UM name (docs/counters.md). Any thread.

        Returns:
            A dictionary by group: context, link, transports, sources, receivers, resolution.

        Raises:
            Closed: The context is closed.

        Example:
            ```python
            print(ctx.stats()["resolution"])
            ```
        """
        return self._report()

    def _report(self, *, repeats_sessions: bool = True) -> dict[str, Any]:
        self._core.check_open()
        own = {**self._resolver.stats(), **self._streams.stats(), **self._requests.stats()}
        own |= self._engine.tcp_peers.stats()
        report = context_report(self._engine, own, repeats_sessions=repeats_sessions)
        report["driver"] = "none" if self._driver is None else "attached"
        return {**report, "resolution": self._resolver.report()}

    def nak_cutoff(self, enabled: bool = True) -> None:
        """Stop sending NAKs for all receivers of this context, or resume.

        Includes receivers made later. A receiver with its own cutoff keeps it. Any thread.

        Args:
            enabled: True stops NAKs, False resumes them.

        Raises:
            DriverError: The context is attached to a driver, which has ended.
            Closed: The context is closed.

        Example:
            ```python
            ctx.nak_cutoff()
            ctx.nak_cutoff(False)
            ```

        Requirement: UX-21.
        """
        self._engine.core.check_open()
        lib.um_context_set_nak_cutoff(self._engine.core.handle, enabled)
        if self._driver is not None:
            self._driver.nak_cutoff(enabled)

    def recovery_times(self) -> RecoveryHistogram:
        """Measure how long lost datagrams took to recover. Any thread.

        Returns:
            A histogram in nanoseconds over all receiving sessions open now.

        Raises:
            Closed: The context is closed.

        Example:
            ```python
            print(ctx.recovery_times())
            ```
        """
        self._core.check_open()
        return recovery_times(self._engine)

    def latencies(self) -> LatencyHistogram:
        """Measure one-way latencies of messages from sources with `send_timestamps`.

        They are only as accurate as the clocks of both hosts: `umstack.telemetry.host_clock` reports the error of
        this one.

        Returns:
            A histogram in nanoseconds over all receiving sessions open now.

        Raises:
            Closed: The context is closed.

        Example:
            ```python
            print(ctx.latencies())
            ```
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
        """Write the datagrams sent and received from now on to a pcapng file.

        The data path never waits for the file: datagrams that the ring cannot hold are omitted and counted.

        Args:
            path: The file; with rotation, a directory.
            snap_bytes: Maximum bytes written per datagram, headers included; 0: no limit.
            ring_bytes: Size of the ring before the file, a power of two.
            rotate_bytes: Start the next file at this size; 0: never.
            rotate_seconds: Start the next file at this age; 0: never.
            keep_files: Number of rotated files to keep; 0: all.

        Returns:
            The tap; its stop() ends the file.

        Raises:
            TapRunning: The context already has a tap.
            InvalidArgument: A limit is out of range.
            Closed: The context is closed.
            UmError: The file cannot be opened.

        Example:
            ```python
            tap = ctx.tap("orders.pcapng")
            tap.stop()
            ```
        """
        settings = TapSettings(snap_bytes, ring_bytes, rotate_bytes, rotate_seconds, keep_files)
        with self._core.lifecycle:
            self._core.check_open()
            self._tap = Tap(self._core, path, settings)
            self._core.set_tap(self._tap)
            return self._tap

    # Ending

    def close(self) -> None:
        """Close every source, receiver and event queue, the threads and the tap.

        Any thread may call it, callbacks included; a second call does nothing. Does nothing in a forked child.

        Raises:
            CaptureError: The tap could not write its file; the context is closed anyway.

        Example:
            ```python
            context = umstack.Context("lo")
            context.close()
            ```
        """
        if self._core.forked:
            return
        for source in list(self._persistent_sources):
            source.close(0)
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


def _try_again(resolver: Resolver, address: TransportAddress) -> None:
    """Make topic resolution report the sources of a session that could not be joined when they are advertised again."""
    with suppress(UmError):  # it is closed
        resolver.forget_sessions([address])


__all__ = ["Context"]
