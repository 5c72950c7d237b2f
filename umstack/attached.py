"""Sources and receivers of a context that is attached to a driver (docs/driver.md).

The messages pass through shared logs. The driver sends and receives them on the network, and reports the state there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from umstack._core import lib
from umstack._engine.conditions import wait
from umstack._engine.endpoint import Endpoint
from umstack._engine.engine import Engine
from umstack._engine.host_identity import host_id
from umstack._engine.publication import Publication
from umstack._engine.registry import Registry
from umstack._engine.sessions import longest_message_bytes
from umstack._engine.source_events import Drained, ReceiverEvent
from umstack._engine.subscription import LateMapping, Subscription
from umstack._engine.transport_address import LbtipcAddress, LbtrmAddress, TransportAddress, address_of_name
from umstack.config import ContextOptions, ReceiverOptions, SourceOptions
from umstack.driver import DriverClient, SharedLog
from umstack.driver.client import AttachedObject, SourceState, published_of
from umstack.driver.protocol import NAK_CUTOFF, STALE_TAGS, log_of, stores_of, text_of
from umstack.errors import DriverError, NotConnected, OptionError, UmError
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.foreign_text import displayed
from umstack.persistence.advertised import Stored, store_topic_options
from umstack.receiver import Receiver
from umstack.recovery import RecoveryService, endpoint_option
from umstack.requests import RequestService
from umstack.resolution import Resolver
from umstack.source import Source
from umstack.telemetry.reading import publication_counters

_ATTACHED_SECONDS = 2.0
_SESSIONS_MAX = 4096
_ROWS = {NAK_CUTOFF: lib.UM_ROW_NAK_CUTOFF, STALE_TAGS: lib.UM_ROW_STALE_TAGS}
_log = logging.getLogger("umstack.driver")


def unsupported(what: str, why: str) -> OptionError:
    """Return the error for something that a context with a driver does not have."""
    return OptionError(
        f"{what}: not through a driver, {why}",
        hint="open a context with driver='none' for it (docs/driver.md)",
    )


def options_of_attached(options: ContextOptions) -> ContextOptions:
    """Return the options of a context with a driver, which has the link."""
    return replace(options, link="socket")


def check_keys(engine: Engine, topic: str, answer: Mapping[str, Any], driver: DriverClient) -> None:
    """Raise DriverError if this context has keys for a topic, and its driver would do without."""
    if engine.keyring.number_of(topic) and answer.get("keyed") is not True:
        raise DriverError(
            f"the driver at {driver.path} has no keys for {topic!r}, and this context has",
            hint="give the key file to `umstack driver`, too",
        )


def network_sessions(registry: Registry, logs: set[TransportAddress]) -> set[TransportAddress]:
    """Return the sessions on the network whose messages came through logs that have ended."""
    return {one for receiver in registry.of(AttachedReceiver) for one in receiver.take_sessions(logs)}


def leave_driver(registry: Registry, resolver: Resolver) -> None:
    """Continue without a driver with every source and receiver of a context, whose lifecycle lock the caller holds."""
    for source in registry.of(AttachedSource):
        try:
            source.leave_driver()
        except UmError as error:
            _log.error("%r is not published any more: %s", source.topic, displayed(str(error)))
    resolver.forget_sessions(None)
    for receiver in registry.of(AttachedReceiver):
        receiver.leave_driver()
    resolver.request_resolution()


class AttachedSource(Source):
    """A source whose messages a driver publishes. Made by Context.source()."""

    __slots__ = (
        "_driver",
        "_former",
        "_network_events_read",
        "_number",
        "_published",
        "_refusal",
        "_sent_before",
        "_stored",
    )

    def __init__(
        self,
        engine: Engine,
        resolver: Resolver,
        driver: DriverClient,
        topic: str,
        topic_index: int,
        options: SourceOptions,
        requests: RequestService,
        recovery: RecoveryService,
        stored: Stored | None,
    ) -> None:
        """Open the source and let the driver, and the receivers of this host, attach to its log."""
        self._driver = driver
        self._stored = stored
        self._refusal: UmError | None = None
        self._former: Publication | None = None
        self._sent_before = self._network_events_read = 0
        session = engine.sessions.open_own(_log_options(options), longest_message_bytes(options))
        self._number = 0
        try:
            fragment_bytes = stored.fragment_bytes if stored else 0
            super().__init__(engine, resolver, session, topic, topic_index, options, requests, fragment_bytes)
        except BaseException:
            engine.sessions.release(session)
            raise
        try:
            address = cast("LbtipcAddress", session.address)
            log = SharedLog(address.session_id, address.transport_id, topic_index, session.log_key)
            if (
                options.late_join
            ):  # for the receivers of this host; the driver retains messages for the network
                endpoint = self._offer_late_join(recovery)
                log = replace(log, request_ip=endpoint.ip, request_port=endpoint.port)
            self._number, self._published = driver.publish(topic, log, options, self, stored)
            lib.um_publication_hold(self._handle, False)  # an earlier driver may have ended meanwhile
            self.topic_index = self._published.topic_index
            if self._published.message_max_bytes < super().message_maximum_bytes:
                raise unsupported(
                    "a transmission window this small",
                    f"where a message has up to {super().message_maximum_bytes} bytes",
                )
            # Receivers with a session id attach once the Stores know the source: _await_receivers() waits for them.
            wait(engine, self._has_readers if stored else self._is_attached, _ATTACHED_SECONDS)
            if not self._has_readers():
                raise DriverError(f"the driver at {driver.path} did not attach to the log of {topic!r}")
        except BaseException:
            self.close()
            raise

    def _await_receivers(self) -> None:
        wait(self._engine, self._is_attached, _ATTACHED_SECONDS)

    def _log_readers(self) -> float:
        return publication_counters(self._publication)["num_clients"] or 0

    def _has_readers(self) -> bool:
        return self._log_readers() > 0

    def _is_attached(self) -> bool:
        return self._log_readers() >= self._published.readers

    # ---- the end of the driver; on the client's thread ----

    def check_answer(self, answer: Mapping[str, Any]) -> None:
        """Raise DriverError for a driver without the keys of the topic."""
        check_keys(self._engine, self.topic, answer, self._driver)

    def on_driver_lost(self) -> None:
        """Refuse new messages: no driver would publish them."""
        lib.um_publication_hold(self._handle, True)

    def update_request(self, fields: dict[str, Any]) -> None:
        """With Stores, the next session on the network begins with the number of the next message."""
        if self._stored is not None:
            fields["options"]["initial_sequence_number"] = str(self._next_number())

    def on_driver_back(self, answer: Mapping[str, Any]) -> None:
        """Send again. The log, and its readers of this host, are the same; the session on the network is new."""
        published = published_of(answer)
        self.topic_index = published.topic_index
        self._published = (
            published  # last: another thread that sees a new session registers it with this topic index
        )
        self._sent_before = self._sent()
        self._network_events_read = 0
        lib.um_publication_hold(self._handle, False)

    def on_driver_gone(self, error: UmError) -> None:
        """Refuse every later send with this error."""
        self._refusal = error
        lib.um_publication_disown(self._handle)

    def on_announced(
        self, fields: Mapping[str, Any], objects: Sequence[AttachedObject]
    ) -> Sequence[AttachedObject]:
        """Sources are announced to receivers only."""
        return []

    def on_event(self, source: str, kind: str) -> None:
        """Events are those of receivers."""

    def leave_driver(self) -> None:
        """Publish in this process from now on, in a new session, which retains messages from its beginning.

        The caller holds the lifecycle lock.

        Raises:
            UmError: As Context.source(); the source is as after on_driver_gone().
        """
        engine, former = self._engine, self._publication
        try:
            session = engine.sessions.acquire(self.options, engine.keyring.number_of(self.topic))
            try:
                options, fragment_bytes = self.options, 0
                if self._stored is not None:
                    fragment_bytes = self._stored.fragment_bytes
                    options = replace(options, initial_sequence_number=self._next_number())
                publication = Publication(
                    engine.core, session, self.topic, former.topic_index, options, fragment_bytes
                )
            except BaseException:
                engine.sessions.release(session)
                raise
        except UmError as error:
            self.on_driver_gone(error)
            raise
        self._number = self._events_read = 0
        self._former = former  # a thread may still be about to call its handle
        self.topic_index = former.topic_index
        self._publication, self._handle = publication, publication.handle
        engine.registry.add(self, publication)
        topic_options = store_topic_options(self._stored.stores) if self._stored else ()
        if self._recovery is not None:
            self._recovery.stop_serving(former)
            topic_options += (endpoint_option(self._offer_late_join(self._recovery)),)
        former.close()
        engine.sessions.release(former.session)
        self._resolver.advertise(self.topic, self.topic_index, session.address, self.options, topic_options)

    def _error(self, result: int, doing: str) -> UmError:
        if result == lib.UM_CLOSED and self._refusal is not None and not self.closed:
            return self._refusal
        if result == lib.UM_NOT_CONNECTED and self._number and self._driver.lost:
            return NotConnected(
                f"{doing} on {self.topic!r}: {self._driver.lost}", hint="start the driver again"
            )
        return super()._error(result, doing)

    def _sent(self) -> int:
        return int(publication_counters(self._publication)["fragments_sent"] or 0) % 2**32

    def _next_number(self) -> int:
        """Return the number of the next message. Valid while sends are held."""
        return (self.options.initial_sequence_number + self._sent()) % 2**32

    def _state(self) -> SourceState:
        if self._refusal is not None:
            raise self._refusal
        return self._driver.state(self._number)

    @property
    def is_connected(self) -> bool:
        """True if the driver's sends need not wait for a receiver. Raises Closed, DriverError."""
        if not self._number:
            return super().is_connected
        self._check_open()
        return self._state().is_connected

    @property
    def known_receivers(self) -> int:
        """The receivers that wait_connected() counts: those of the network and those of this driver's applications.
        The latter count once all of their processes have attached to the log.

        Raises:
            DriverError: The driver has ended.
            Closed: The source is closed.
        """
        if not self._number:
            return super().known_receivers
        self._check_open()
        state = self._state()
        return state.receivers + (state.local if self._log_readers() >= state.readers else 0)

    def wait_drained(self, timeout: float | None = None) -> Drained:
        """Wait as Source.wait_drained() does: for the driver, and for every receiver known to it.

        Args:
            timeout: Maximum wait in seconds; None: no timeout.

        Returns:
            Drained, as Source.wait_drained().

        Raises:
            DriverError: The driver has ended.
            Closed: The source is closed.

        Example:
            ```python
            ctx.source("orders").wait_drained(timeout=1)
            ```
        """
        drained = super().wait_drained(timeout)
        return Drained(drained.is_complete, self._state().given_up) if self._number else drained

    async def wait_drained_async(self, timeout: float | None = None) -> Drained:
        """Wait as wait_drained() does, in the running event loop.

        Args:
            timeout: Maximum wait in seconds; None: no timeout.

        Returns:
            Drained, as Source.wait_drained().

        Raises:
            DriverError: The driver has ended.
            Closed: The source is closed.

        Example:
            ```python
            await ctx.source("orders").wait_drained_async(timeout=1)
            ```
        """
        drained = await super().wait_drained_async(timeout)
        return Drained(drained.is_complete, self._state().given_up) if self._number else drained

    def receiver_events(self) -> list[ReceiverEvent]:
        """Return the events since the last call: of the receivers of this host, then of those of the network.

        Returns:
            At most the 64 newest of each, as Source.receiver_events(). Those of this host are of the log of this source
            (LBT-IPC), the driver's process among them; those of the network are of the driver's session.

        Raises:
            DriverError: The driver has ended.
            Closed: The source is closed.

        Example:
            ```python
            for event in ctx.source("orders").receiver_events():
                print(event.kind, event.receiver)
            ```
        """
        of_the_host = super().receiver_events()
        if not self._number:
            return of_the_host
        of_the_network, self._network_events_read = self._driver.events(
            self._number, self._network_events_read
        )
        return of_the_host + of_the_network

    def nak_cutoff(self, receiver: str, enabled: bool = True) -> None:
        """Raise OptionError while a driver publishes: sources of other applications share its session.

        Args:
            receiver: As Source.nak_cutoff().
            enabled: As Source.nak_cutoff().

        Raises:
            OptionError: A driver publishes the source.
            InvalidArgument: As Source.nak_cutoff(), after the driver has ended.

        Example:
            ```python
            ctx.source("orders").nak_cutoff("10.0.0.7:40211")
            ```
        """
        if self._number:
            raise unsupported("nak_cutoff", "because sources of other applications may share its session")
        super().nak_cutoff(receiver, enabled)

    def _is_drained(self) -> bool:
        if not super()._is_drained() or not self._number:
            return super()._is_drained()
        state, sent = self._state(), self._sent()
        return state.is_drained and (state.reached == self._next_number() or sent == self._sent_before)

    @property
    def transport(self) -> str:
        """The driver's session on the network, as Source.transport names it."""
        return self._published.name if self._number else super().transport

    def close(self) -> None:
        """Flush and end the source; the driver publishes what it has not published yet.

        Any thread may call it; a second call does nothing.

        Example:
            ```python
            source = ctx.source("orders")
            source.close()
            ```
        """
        was_closed = self.closed
        super().close()
        if not was_closed and self._number:
            self._driver.end(self._number)


def _log_options(options: SourceOptions) -> SourceOptions:
    """Return the options of the log of a source: a send waits for the driver and for the receivers of this host."""
    return replace(
        options,
        transport="lbtipc",
        transport_lbtipc_behavior="receiver_paced",
        transport_lbtipc_id=0,
        late_join=False,
    )


class AttachedReceiver(Receiver):
    """A receiver whose topic a driver receives. Made by Context.receiver()."""

    __slots__ = ("_driver", "_former", "_number", "_recovery", "_sessions")

    def __init__(
        self,
        engine: Engine,
        resolver: Resolver,
        topic: str,
        options: ReceiverOptions,
        on_message: Callable[[Event], None] | None,
        queue: EventQueue | None,
        takes_group: Callable[[str], bool] | None = None,
        *,
        driver: DriverClient,
        recovery: RecoveryService,
    ) -> None:
        """Open the receiver and have the driver receive the topic."""
        self._driver = driver
        self._recovery = recovery
        self._sessions: dict[TransportAddress, str] = {}
        """The logs that it is attached to, and the sessions on the network of their sources."""
        self._former: set[TransportAddress] = set()
        """Logs that a former driver announced, and the present one has not announced."""
        self._number = 0
        super().__init__(engine, resolver, topic, options, on_message, queue, takes_group)
        # For wildcard receivers and NoSource. The driver looks for sources by itself.
        self._resolver.query(topic, options)
        try:
            self._number = driver.receive(topic, options, self)
            if driver.is_searching:
                self._subscription.report_driver_lost()
        except BaseException:
            self.close()
            raise

    # ---- what the driver sends, and its end; on the client's thread ----

    def on_announced(
        self, fields: Mapping[str, Any], objects: Sequence[AttachedObject]
    ) -> Sequence[AttachedObject]:
        """Attach receivers of the topic to the log of a source. One that still reads a former log has to wait."""
        name, log = text_of(fields, "name"), log_of(fields)
        address = LbtipcAddress(host_id(), log.session_id, log.transport_id)
        session = address_of_name(name.rpartition("[")[0])
        group = session.group if isinstance(session, LbtrmAddress) else None
        stores = stores_of(fields)
        receivers = [one for one in objects if isinstance(one, AttachedReceiver) and one._wants(group)]
        current = {one: one._subscription.log_of(name) for one in receivers}
        later = [one for one in receivers if current[one] not in (None, address)]
        shared: list[AttachedReceiver] = []
        for one in receivers:
            is_mapped = one._map_registered(name, log, stores) if stores and current[one] is None else None
            if is_mapped is None:
                shared.append(one)
            elif not is_mapped:
                later.append(one)
        endpoint = log.request_endpoint
        if endpoint is not None and not self._engine.tcp_peers.admits_of_session(
            endpoint.ip, name, f"late join of {self.topic!r}"
        ):
            endpoint = None

        def join_late(subscription: Subscription, session: Any, mapping: LateMapping) -> None:
            self._recovery.join(subscription, session, log.topic_index, mapping)

        ready = [one for one in shared if current[one] is None]
        try:
            if endpoint is not None and ready:
                self._recovery.expect()
            for one in ready:
                one._note_log(address, name)
            subscriptions = [one._subscription for one in ready]
            self._engine.map_shared_log(
                subscriptions, address, log.topic_index, log.key, name, endpoint, join_late
            )
        except UmError as error:
            _log.warning("%s is not received: %s", displayed(name), displayed(str(error)))
        return later

    def _map_registered(self, name: str, log: SharedLog, stores: tuple[Endpoint, ...]) -> bool | None:
        """Attach to the log of a source with Stores, if the receiver registers there. Returns None if it does not, and
        false while it is not known where it begins.
        """

    def _wants(self, group: str | None) -> bool:
        """Return true if it receives sources on this group. An error of takes_group, which is the application's, ends
        no other receiver.
        """
        try:
            return self._subscription.wants(self.topic, group)
        except Exception:
            _log.exception("takes_group of %s failed", displayed(self.topic))
            return False

    def _note_log(self, address: LbtipcAddress, name: str) -> None:
        if len(self._sessions) == _SESSIONS_MAX:  # the ends of some were not reported
            del self._sessions[next(iter(self._sessions))]
        self._sessions[address] = name.rpartition("[")[0]
        self._former.discard(address)

    def check_answer(self, answer: Mapping[str, Any]) -> None:
        """Raise DriverError for a driver without the keys of the topic."""
        check_keys(self._engine, self.topic, answer, self._driver)

    def take_sessions(self, logs: set[TransportAddress]) -> list[TransportAddress]:
        """Return the sessions on the network that these logs were of, which have ended. Once for each."""
        names = [self._sessions.pop(log) for log in logs & self._sessions.keys()]
        return [one for name in names if (one := address_of_name(name)) is not None]

    def on_driver_lost(self) -> None:
        """Report it, and stop counting the sources of its logs, whose ends may be noticed later."""
        self._former = set(self._sessions)
        self._subscription.report_driver_lost()

    def update_request(self, fields: dict[str, Any]) -> None:
        """A receiver asks for the same again."""

    def on_driver_back(self, answer: Mapping[str, Any]) -> None:
        """Continue: the driver announces the sources."""

    def on_driver_gone(self, error: UmError) -> None:
        """Nothing comes any more, as DriverLost has reported."""
        _log.error("%r is not received any more: %s", self.topic, displayed(str(error)))

    def on_event(self, source: str, kind: str) -> None:
        """Report an event of a source."""
        self._subscription.report_event(source, _ROWS[kind])

    def leave_driver(self) -> None:
        """Receive in this process from now on, what topic resolution finds again."""
        self._number = 0

    def _known_sources(self) -> int:
        """Return how many sources reach it: their logs are attached, and they reach the driver."""
        attached = super()._known_sources()
        if not attached or not self._number:
            return attached
        present = sum(log not in self._former for log in [*self._sessions]) + self._subscription.direct_count
        return max(0, min(attached, present) - self._driver.unconnected(self._number))

    @property
    def sources(self) -> list[str]:
        """The sources it receives, as `Message.source` names them, in alphabetical order. Raises Closed.

        One that has ended is listed until its last message is read.
        """
        self._check_open()
        return self._subscription.sources

    def nak_cutoff(self, enabled: bool = True) -> None:
        """Let the driver send no NAKs for this receiver, or resume. It sends them for other receivers of the topic.

        Args:
            enabled: True stops NAKs, False resumes them.

        Raises:
            DriverError: The driver has ended.
            Closed: The receiver is closed.

        Example:
            ```python
            ctx.receiver("orders").nak_cutoff()
            ```
        """
        super().nak_cutoff(enabled)
        if self._number:
            self._driver.nak_cutoff(enabled, self._number)

    def close(self) -> None:
        """Stop receiving, as Receiver.close().

        Example:
            ```python
            ctx.receiver("orders").close()
            ```
        """
        was_closed = self.closed
        super().close()
        if not was_closed and self._number:
            self._driver.end(self._number)
