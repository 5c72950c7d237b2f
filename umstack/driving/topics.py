"""The two directions of the driver: topics that it receives for applications, and sources that it publishes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from umstack._core import lib
from umstack._engine.endpoint import Endpoint
from umstack._engine.host_identity import host_id
from umstack._engine.publication import Publication
from umstack._engine.queue_memory import QueueMemory
from umstack._engine.receiver_sessions import receiver_session_config
from umstack._engine.sessions import fixed_fragment_bytes
from umstack._engine.source_events import ReceiverEvent, given_up, receiver_events
from umstack._engine.subscription import MappingRequest, Subscription, map_sources
from umstack._engine.transport_address import LbtipcAddress, address_of_name
from umstack.config import Config, ReceiverOptions, Scope
from umstack.context import Context
from umstack.driver import SharedLog
from umstack.driving.relay import NOT_READY, Relay, RelayThreads
from umstack.driving.threads import DedicatedThreads, SharedThread
from umstack.errors import OptionError
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.persistence.advertised import Stored, stores_of
from umstack.receiver import Receiver
from umstack.telemetry.reading import publication_counters, session_counters

if TYPE_CHECKING:
    from umstack._engine.engine import Engine
    from umstack._engine.sessions import SourceSession
    from umstack._engine.transport_address import TransportAddress
    from umstack.config.keywords import SourceKeywords
    from umstack.resolution import DonatedResolver
    from umstack.source import Source

_ATTACHED_SECONDS = 1.0
_REPORTED_RECEIVERS_MAX = 128
"""As many as fit a message of the control protocol."""
_LOCAL_OPTIONS = frozenset(
    {
        "ordered_delivery",
        "receiver_full_queue",
        "receiver_full_queue_hold_interval",
        "receiver_conflation_key_length",
        "receiver_queue_block_count",
        "receiver_queue_block_length",
        "use_late_join",
        "late_join_info_request_interval",
        "late_join_info_request_maximum",
        "retransmit_request_maximum",
        "retransmit_request_bytes_maximum",
        "retransmit_request_age_maximum",
        "retransmit_request_low_sequence_number",
        "retransmit_request_outstanding_maximum",
        "retransmit_request_interval",
        "retransmit_request_message_timeout",
        "retransmit_message_caching_proximity",
        "source_notification",
        "resolution_no_source_notification_threshold",
    }
)
"""Receiver options that apply in the application's process only. The driver receives in order and holds."""


class DriverContext(Context):
    """The context of a driver. Its receivers do not receive its own sources, whose messages are in memory already."""

    def __init__(
        self,
        interface: str | None = None,
        *,
        config: Config | None = None,
        is_shared: bool = False,
        **options: Any,
    ) -> None:
        """Open it. `is_shared` runs everything on the thread that serves the applications (docs/driver.md).

        Raises:
            UmError: As Context(), and if the option operational_mode contradicts `is_shared`.
        """
        mode = "sequential" if is_shared else "embedded"
        configured = (config or Config()).context_options(**options).operational_mode
        if configured == "sequential" and not is_shared:
            raise OptionError(
                "a driver chooses operational_mode itself", hint="start it with --threading-mode shared"
            )
        super().__init__(interface, config=config, **{**options, "mode": mode})
        self.relay_threads: RelayThreads = (
            SharedThread(self._engine, cast("DonatedResolver", self._resolver), self._streams)
            if is_shared
            else DedicatedThreads()
        )
        """Runs the relays of the driver."""
        if is_shared:  # a context in sequential mode writes no file of itself
            self._serve_statistics(is_required=False)

    def _on_source(self, topic: str, topic_index: int, address: TransportAddress, advertiser: str) -> None:
        is_in_memory = isinstance(address, LbtipcAddress)  # applications attach to it themselves
        if not is_in_memory and all(one.address != address for one in self._engine.sessions.sessions):
            super()._on_source(topic, topic_index, address, advertiser)

    def _make_receiver(
        self,
        topic: str,
        on_message: Callable[[Event], None] | None,
        queue: EventQueue | None,
        takes_group: Callable[[str], bool] | None,
        chosen: ReceiverOptions,
    ) -> Receiver:
        receiver = Receiver(
            self._engine, self._resolver, topic, chosen, on_message, queue, takes_group, is_relayed=True
        )
        self._resolver.query(topic, chosen)
        return receiver

    def _report(self, *, repeats_sessions: bool = True) -> dict[str, Any]:
        return {**super()._report(repeats_sessions=repeats_sessions), "driver": "serves"}

    def stores_of(self, topic: str, name: str) -> tuple[Endpoint, ...]:
        """Return the Stores of a source that was found, by its name. Any thread."""
        session, _, index = name.rpartition("[")
        address = address_of_name(session)
        return (
            ()
            if address is None
            else stores_of(self._resolver.topic_options(topic, int(index[:-1]), address))
        )

    def stored_source(self, topic: str, options: Mapping[str, str], stored: Stored) -> Source:
        """Open the source of an application that registers it at its Stores itself.

        Raises:
            UmError: As source(); also for fragments that do not fit the datagrams of this context.
        """
        chosen = self._config.of_topic(Scope.SOURCE, topic).source_options(**cast("SourceKeywords", options))
        longest = fixed_fragment_bytes(self._core, chosen.transport)
        if not 0 < stored.fragment_bytes <= longest:
            raise OptionError(
                f"fragments of {stored.fragment_bytes} bytes do not fit the driver's datagrams, which carry {longest}",
                hint="give the application and the driver the same datagram sizes",
            )
        with self._core.lifecycle:
            self._core.check_open()
            return self._make_source(topic, chosen, stored)

    @property
    def engine(self) -> Engine:
        """The engine, for the driver's queues and logs."""
        return self._engine


@dataclass(frozen=True, slots=True)
class SharedSource:
    """A source that applications of this host attach to, in a shared log."""

    name: str
    log: SharedLog
    stores: tuple[Endpoint, ...] = ()


@dataclass(slots=True)
class _Output:
    session: SourceSession
    publication: Publication
    shared: SharedSource
    invited: int = 0
    """Applications to which the source was announced."""
    attached_until_s: float = 0.0
    """How long the first message waits for them."""


class ReceivedTopic:
    """One receiver of the driver. The messages of each of its sources go to a shared log, which all applications that
    receive the topic with the same options attach to."""

    __slots__ = (
        "_announce",
        "_context",
        "_lock",
        "_options",
        "_outputs",
        "_receiver",
        "_relay",
        "_report",
        "hold_ms",
        "is_cut_off",
        "key",
        "topic",
    )

    def __init__(
        self,
        context: DriverContext,
        topic: str,
        options: Mapping[str, str],
        announce: Callable[[ReceivedTopic, SharedSource], int],
        report: Callable[[ReceivedTopic, str, str], None],
    ) -> None:
        """Prepare it. `announce` announces a new source to the applications, and returns how many there are; `report`
        reports an event of a source to them, by the source's name and the kind.
        """
        self.topic = topic
        self.key = key_of(topic, options)
        self.hold_ms = options.get("receiver_full_queue_hold_interval")
        self._context = context
        self._announce = announce
        self._report = report
        self.is_cut_off = False
        """True if no application wants NAKs for it."""
        self._lock = threading.Lock()
        self._outputs: dict[str, _Output] = {}
        self._options: dict[str, Any] = {
            name: value for name, value in options.items() if name not in _LOCAL_OPTIONS
        }

    def start(self) -> None:
        """Begin to receive, once the first application is registered for the announcements.

        Raises:
            UmError: As Context.receiver().
        """
        options = {**self._options, "source_notification": 1}
        self._receiver = self._context.receiver(self.topic, **options)
        self._relay = Relay(
            self._receiver._memory,
            self._context.relay_threads,
            keeps_numbers=True,
            on_unknown=self._on_unknown,
            on_ended=self._on_ended,
            on_event=lambda name, kind: self._report(self, name, kind),
        )

    def _on_unknown(self, name: str) -> Any:
        """Return the log of a source, once the applications had time to attach: before its first message is written."""
        output = self._outputs.get(name)
        if output is None:
            output = self._open(name)
            with self._lock:
                self._outputs[name] = output
            output.invited = self._announce(self, output.shared)
            output.attached_until_s = time.monotonic() + _ATTACHED_SECONDS
        is_late = time.monotonic() >= output.attached_until_s
        is_ready = is_late or clients_of(output.publication) >= output.invited
        return output.publication.handle if is_ready else NOT_READY

    def _open(self, name: str) -> _Output:
        """Open the log of a source."""
        engine = self._context.engine
        options = Config().source_options(
            transport="lbtipc", transport_lbtipc_behavior="receiver_paced", **cast("Any", self._stall())
        )
        session = engine.sessions.open_own(options, self._longest_message_bytes())
        try:
            # The number that the source gave the topic: an application names it when it fetches messages of the source.
            topic_index = int(name[name.rindex("[") + 1 : -1])
            publication = Publication(engine.core, session, self.topic, topic_index, options)
        except BaseException:
            engine.sessions.release(session)
            raise
        address = session.address
        transport_id = cast("LbtipcAddress", address).transport_id
        log = SharedLog(address.session_id, transport_id, topic_index, session.log_key)
        if (endpoint := self._receiver._subscription.request_port_of(name)) is not None:
            log = replace(log, request_ip=endpoint.ip, request_port=endpoint.port)
        return _Output(
            session, publication, SharedSource(name, log, self._context.stores_of(self.topic, name))
        )

    def _longest_message_bytes(self) -> int:
        """Return the limit that applications have set, 0 without one."""
        is_set = "receiver_maximum_message_length" in self._options
        return self._receiver.options.receiver_maximum_message_length_bytes if is_set else 0

    def _stall(self) -> dict[str, str]:
        """An application that releases nothing for as long as a full queue may hold is cut off."""
        hold = self.hold_ms or str(self._receiver.options.receiver_full_queue_hold_interval_ns // 1_000_000)
        return {"flow_control_stall_timeout": hold}

    def _on_ended(self, name: str) -> None:
        with self._lock:
            output = self._outputs.pop(name, None)
        if output is not None:
            self._end(output)

    def _end(self, output: _Output) -> None:
        output.publication.close()
        self._context.engine.sessions.release(output.session)

    def nak_cutoff(self, is_cut_off: bool) -> None:
        """Stop sending NAKs, or resume."""
        self.is_cut_off = is_cut_off
        self._receiver.nak_cutoff(is_cut_off)

    def unconnected(self) -> int:
        """Return how many of its sources would not reach it yet."""
        found = self._receiver.stats()["delivery_controllers"]
        return int(max(0, found - self._receiver._known_sources()))

    def sources(self) -> list[SharedSource]:
        """Return the sources that it has now."""
        with self._lock:
            return [output.shared for output in self._outputs.values()]

    def close(self) -> None:
        """Stop receiving, and end the logs."""
        self._receiver.close()
        self._relay.stop()
        with self._lock:
            outputs, self._outputs = list(self._outputs.values()), {}
        for output in outputs:
            self._end(output)
        self._relay.close()


class PublishedTopic:
    """One source of an application: its messages come in the application's shared log, and leave by a source of the
    driver."""

    __slots__ = (
        "_local_processes",
        "_local_receivers",
        "_log_name",
        "_memory",
        "_relay",
        "_source",
        "_subscription",
        "ended",
        "shared",
        "topic",
    )

    def __init__(
        self,
        context: DriverContext,
        topic: str,
        options: Mapping[str, str],
        log: SharedLog,
        stored: Stored | None = None,
    ) -> None:
        """Begin to publish the messages of a log. Those of a source with Stores keep their numbers.

        Raises:
            UmError: As Context.source().
        """
        self.topic = topic
        self.ended = threading.Event()
        """Set when the application's session has ended and all of its messages were published."""
        engine = context.engine
        self._source = (
            context.source(topic, **cast("SourceKeywords", options))
            if stored is None
            else context.stored_source(topic, options, stored)
        )
        self._local_receivers = self._local_processes = 0
        try:
            chosen = Config().receiver_options()
            longest = max(chosen.receiver_maximum_message_length_bytes, self.message_max_bytes)
            chosen = replace(chosen, receiver_maximum_message_length_bytes=longest)
            self._log_name = f"log of {topic!r}"
            self._memory = QueueMemory(engine.core, chosen, self._log_name)
            self._subscription = Subscription(engine.core, self._memory, topic, chosen, None, is_relayed=True)
            name = f"{self._source.transport}[{self._source.topic_index}]"
            if (endpoint := log.request_endpoint) is not None and not engine.tcp_peers.admits_advertised(
                endpoint.ip, context.interface.address or "", f"late join of {topic!r}"
            ):
                log = replace(log, request_ip="", request_port=0)
            self.shared = SharedSource(name, log, stored.stores if stored else ())
            self._relay = Relay(
                self._memory,
                context.relay_threads,
                keeps_numbers=stored is not None,
                on_unknown=lambda _name: self._source._publication.handle,
                on_ended=lambda _name: self.ended.set(),
            )
            address = LbtipcAddress(host_id(), log.session_id, log.transport_id)
            session = receiver_session_config(address, chosen, engine.core, log_key=log.key)
        except BaseException:
            self._source.close()
            raise
        try:
            request = MappingRequest(self._subscription, session, log.topic_index, self._log_name)
            for mapped in map_sources([request]):
                engine.core.check(mapped.result, self._log_name)
        except BaseException:
            self.close()
            raise

    @property
    def transport(self) -> str:
        """The session on the network."""
        return self._source.transport

    @property
    def network_topic_index(self) -> int:
        """The number of the topic in that session."""
        return self._source.topic_index

    @property
    def message_max_bytes(self) -> int:
        """The longest message that the source takes."""
        return self._source.message_maximum_bytes

    @property
    def reached(self) -> int:
        """The topic sequence number after the last message that was published, at first that of the first message."""
        reached = self._relay.reached(self._log_name)
        return self._source.options.initial_sequence_number if reached is None else reached

    @property
    def is_idle(self) -> bool:
        """True if no message waits for the network."""
        return self._relay.is_idle

    @property
    def naks(self) -> int:
        """The datagrams with NAKs that the session on the network has received."""
        return int(session_counters(self._source._publication.session).get("nak_pckts_rcved") or 0)

    @property
    def is_drained(self) -> bool:
        """True if the session on the network has sent everything, and its receivers have reported it."""
        return self._source._is_drained()

    def set_local_receivers(self, count: int, processes: int) -> None:
        """Set how many receivers of this host read the log, in how many processes: flow control min and max need no
        other then."""
        self._local_processes = processes
        change, self._local_receivers = count - self._local_receivers, count
        if change:
            lib.um_publication_session_add_local(self._source._publication.session.handle, change)

    def state(self) -> dict[str, Any]:
        """Return the fields of a reply to a `state` request."""
        return {
            "attached": self._subscription.connected() > 0,
            "connected": self._source.is_connected,
            "receivers": self._source.known_receivers,
            "local": self._local_receivers,
            "readers": 1 + self._local_processes,
            "drained": self.is_drained,
            "reached": self.reached,
            "given_up": self._given_up(),
        }

    def events(self, after: int) -> tuple[list[ReceiverEvent], int]:
        """Return the events about receivers on the network after the first `after`, and how many there were."""
        return receiver_events(self._source._publication.session, after)

    def _given_up(self) -> dict[str, int]:
        found = dict(islice(given_up(self._source._publication.session).items(), _REPORTED_RECEIVERS_MAX))
        lost = self._relay.counters().lost
        return {**found, "driver": lost} if lost else found

    def close(self) -> None:
        """End the source on the network. Messages that were not published yet are dropped."""
        self._subscription.close()
        self._memory.close()
        self._relay.stop()
        self.set_local_receivers(0, 0)
        self._source.close()
        self._relay.close()


def key_of(topic: str, options: Mapping[str, str]) -> tuple[object, ...]:
    """Return what receivers must have in common to share a receiver of the driver."""
    shared = {name: value for name, value in options.items() if name not in _LOCAL_OPTIONS}
    return topic, options.get("receiver_full_queue_hold_interval"), frozenset(shared.items())


def clients_of(publication: Publication) -> int:
    """Return how many processes have attached to the log of a publication."""
    return int(publication_counters(publication)["num_clients"] or 0)
