"""Driver: serves the applications of a host over a control socket. One thread answers them; relays move the data.

One file, because each request changes the tables of applications, topics and sources, which one lock guards.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from umstack._engine.host_identity import host_id
from umstack.config import Scope
from umstack.driver.protocol import (
    MESSAGE_MAX_BYTES,
    VERSION_HIGH,
    VERSION_LOW,
    common_version,
    decode,
    encode,
    flag_of,
    log_of,
    malformed,
    number_of,
    options_of,
    refusal_fields,
    stored_of,
    topic_of,
)
from umstack.driving.topics import DriverContext, PublishedTopic, ReceivedTopic, SharedSource, key_of
from umstack.errors import DriverError, UmError
from umstack_xdp.broker_policy import Peer, Policy, peer_of

_LOOK_SECONDS = 0.2
_DRAIN_SECONDS = 60.0
_UNANSWERED_SECONDS = 2.0
_REPAIR_SECONDS = 2.0
"""How long the source of a killed application serves NAKs after its last message, and after each of them."""
_SEND_BUFFER_BYTES = 1 << 20
_ANNOUNCED_MAX = 1000
"""Receivers in one announcement, which has to fit a message of the control protocol."""
_LOGGED = {"receive": "receives", "publish": "publishes"}


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """How much one application may have."""

    sources_max: int = 256
    """Sources per application."""
    receivers_max: int = 256
    """Receivers per application."""


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """Something that happened, for the log."""

    what: str
    """`attached`, `detached`, `refused`; `receives` or `publishes`, with the topic as the reason."""
    peer: Peer
    interface: str
    reason: str = ""


@dataclass(slots=True, eq=False)
class _Application:
    connection: socket.socket
    peer: Peer
    since_s: float
    is_attached: bool = False
    is_gone: bool = False
    receivers: dict[int, ReceivedTopic] = field(default_factory=dict)
    cut_off: set[int] = field(default_factory=set)
    """Receivers for which no NAKs are wanted."""
    sources: dict[int, PublishedTopic] = field(default_factory=dict)


@dataclass(slots=True)
class _Ending:
    """A source whose application has ended it: the rest of its log is published first."""

    source: PublishedTopic
    uid: int
    since_s: float
    was_killed: bool
    """True if the application could not wait until the receivers of the network have every message."""
    progress: tuple[int, int] = (0, 0)
    moved_s: float = 0.0
    """When its progress last changed."""

    def is_over(self, now_s: float) -> bool:
        """Return true if the log is read to its end and repaired, or its application never let the driver attach."""
        progress = self.source.reached, self.source.naks
        if progress != self.progress or not self.source.is_idle or self.moved_s == 0:
            self.progress, self.moved_s = progress, now_s
        if now_s - self.since_s >= _DRAIN_SECONDS:
            return True
        still_s = now_s - self.moved_s
        if not self.source.ended.is_set():
            return still_s >= _UNANSWERED_SECONDS
        return not self.was_killed or (still_s >= _REPAIR_SECONDS and self.source.is_drained)


class Driver:
    """Serves applications over a listening socket. serve() runs until stop(); close() ends everything."""

    __slots__ = (
        "_applications",
        "_context",
        "_ending",
        "_limits",
        "_listener",
        "_lock",
        "_on_event",
        "_policy",
        "_selector",
        "_stopping",
        "_topics",
        "_wake",
    )

    def __init__(
        self,
        context: DriverContext,
        listener: socket.socket,
        policy: Policy,
        limits: DriverLimits,
        on_event: Callable[[DriverEvent], None],
    ) -> None:
        """Use a context, which the caller closes after the driver, and a listener (umstack_xdp.listening)."""
        self._context, self._listener = context, listener
        self._policy, self._limits, self._on_event = policy, limits, on_event
        self._applications: set[_Application] = set()
        self._topics: dict[tuple[object, ...], ReceivedTopic] = {}
        self._ending: list[_Ending] = []
        self._lock = threading.Lock()
        """Guards the applications and their receivers, which the threads of relays read."""
        self._stopping, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._stopping, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until stop(), or an exception such as KeyboardInterrupt."""
        while True:
            has_timers = self._ending or any(not one.is_attached for one in self._applications)
            timeout = _LOOK_SECONDS if has_timers else None
            for key, _ in self._context.relay_threads.wait(self._selector, timeout):
                if key.fileobj is self._stopping:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif not key.data.is_gone:
                    self._serve_one(key.data)
            self._drop_gone()
            self._finish_ending()

    def stop(self) -> None:
        """End serve(). Any thread."""
        self._wake.send(b"\0")

    def close(self) -> None:
        """End every source, receiver and connection."""
        for application in list(self._applications):
            self._drop(application, "the driver ends")
        for one in self._ending:
            one.source.close()
        self._ending.clear()
        self._selector.close()
        for end in (self._stopping, self._wake):
            end.close()

    # ---- connections ----

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the application disconnected before the accept, or no descriptors are left
            return
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        peer = peer_of(connection)
        refusal = self._refusal(peer)
        if refusal is not None:
            self._report("refused", peer, refusal.message)
            with contextlib.suppress(OSError):
                connection.send(encode(refusal_fields(refusal)))
            connection.close()
            return
        application = _Application(connection, peer, time.monotonic())
        with self._lock:
            self._applications.add(application)
        self._selector.register(connection, selectors.EVENT_READ, application)

    def _refusal(self, peer: Peer) -> DriverError | None:
        if not self._policy.admits(peer):
            return DriverError(
                f"user {peer.uid} may not attach",
                hint="start the driver with --allow-user or --allow-group for it",
                errno=errno.EACCES,
            )
        own = sum(one.peer.uid == peer.uid for one in self._applications)
        if own >= self._policy.user_connections_max and not self._policy.is_privileged(peer):
            return DriverError(
                f"user {peer.uid} has {own} applications attached, which is all that one may have",
                hint="end some of them, or start the driver with a larger --user-clients-max",
                errno=errno.EUSERS,
            )
        if len(self._applications) >= self._policy.connections_max:
            return DriverError(
                f"{self._policy.connections_max} applications are attached, which is all the driver takes",
                hint="end some of them, or start the driver with a larger --clients-max",
                errno=errno.EUSERS,
            )
        return None

    def _serve_one(self, application: _Application) -> None:
        """Read one message. An application that breaks the protocol is cut off."""
        try:
            data = application.connection.recv(MESSAGE_MAX_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(application, "")
            return
        try:
            fields = decode(data)
            if not application.is_attached:
                self._attach(application, fields)
                return
            number = number_of(fields, "request")
        except DriverError as error:
            self._send(application, refusal_fields(error))
            self._drop(application, error.message)
            return
        try:
            answer = self._answer(application, fields)
        except UmError as error:
            answer = refusal_fields(error)
        if fields.get("do") == "receive" and "error" not in answer:
            self._announce_known(application, number_of(fields, "id"))
        if "error" not in answer and fields["do"] in _LOGGED:
            self._report(_LOGGED[fields["do"]], application.peer, topic_of(fields))
        self._send(application, {"reply": number, **answer})

    def _attach(self, application: _Application, fields: Mapping[str, Any]) -> None:
        if fields.get("do") != "attach":
            raise malformed("the first request is not attach")
        low, high = number_of(fields, "low"), number_of(fields, "high")
        version = common_version(low, high)
        if version is None:
            raise DriverError(
                f"the driver speaks versions {VERSION_LOW} to {VERSION_HIGH} of the protocol, the application {low} to "
                f"{high}",
                hint="use the same version of umstack for both",
            )
        if number_of(fields, "host") != host_id():
            raise DriverError(
                "the driver is in another network namespace",
                hint="start a driver in the network namespace of the application",
            )
        application.is_attached = True
        interface, link = self._context.interface.name, self._context.link
        self._send(application, {"version": version, "interface": interface, "link": link})
        self._report("attached", application.peer)

    def _send(self, application: _Application, fields: Mapping[str, Any]) -> None:
        """Send a message. An application that does not read its socket is cut off. Any thread."""
        try:
            application.connection.send(encode(fields))
        except (OSError, DriverError):
            application.is_gone = True
            with contextlib.suppress(OSError):
                application.connection.shutdown(socket.SHUT_RDWR)  # the serving thread then drops it

    def _report(self, what: str, peer: Peer, reason: str = "") -> None:
        self._on_event(DriverEvent(what, peer, self._context.interface.name, reason))

    def _drop_gone(self) -> None:
        """Drop applications that do not read, and connections that have not attached in time."""
        oldest_s = time.monotonic() - self._policy.idle_timeout_s
        for one in list(self._applications):
            if one.is_gone or (not one.is_attached and one.since_s < oldest_s):
                self._drop(one, "it does not read its control socket")

    def _drop(self, application: _Application, reason: str) -> None:
        application.is_gone = True
        self._selector.unregister(application.connection)
        with self._lock:
            self._applications.discard(application)
            receivers, application.receivers = application.receivers, {}
        for topic in receivers.values():
            self._release(topic)
        for source in application.sources.values():
            self._ending.append(_Ending(source, application.peer.uid, time.monotonic(), was_killed=True))
        application.connection.close()
        if application.is_attached:
            self._report("detached", application.peer, reason)

    # ---- requests ----

    def _answer(self, application: _Application, fields: Mapping[str, Any]) -> dict[str, Any]:
        number = number_of(fields, "id")
        match fields.get("do"):
            case "receive":
                topic = topic_of(fields)
                self._receive(application, number, topic, options_of(fields, Scope.RECEIVER))
                self._cut_off(application, number, fields.get("cut_off") is True)
                return {"keyed": self._is_keyed(topic)}
            case "nak_cutoff":
                is_cut_off = flag_of(fields, "enabled")
                self._cut_off(application, number, is_cut_off)
                if not is_cut_off:  # ends the cutoff of a session, too
                    self._received_of(application, number).nak_cutoff(False)
                return {}
            case "unconnected":
                return {"unconnected": self._received_of(application, number).unconnected()}
            case "publish":
                return self._publish(application, number, fields)
            case "state":
                return self._source_of(application, number).state()
            case "events":
                events, count = self._source_of(application, number).events(number_of(fields, "after"))
                return {"events": events, "count": count}
            case "end":
                self._end(application, number)
                return {}
        raise malformed("it is no known request")

    def _check_new(self, application: _Application, number: int, count: int, most: int, option: str) -> None:
        if number in application.receivers or number in application.sources:
            raise malformed(f"id {number} is in use")
        if count >= most:
            raise DriverError(
                f"the application has {count} of them, which is all that one may have",
                hint=f"close some, or start the driver with a larger {option}",
                errno=errno.EUSERS,
            )

    def _receive(
        self, application: _Application, number: int, topic: str, options: Mapping[str, str]
    ) -> None:
        most = self._limits.receivers_max
        self._check_new(application, number, len(application.receivers), most, "--receivers-max")
        key = key_of(topic, options)
        found = self._topics.get(key)
        with self._lock:
            if found is not None:
                application.receivers[number] = found
        if found is not None:
            self._count_local(topic)
            return
        made = ReceivedTopic(self._context, topic, options, self._announce, self._report_event)
        with self._lock:
            application.receivers[number] = made
        try:
            made.start()
        except BaseException:
            with self._lock:
                del application.receivers[number]
            raise
        self._topics[key] = made
        self._count_local(topic)

    def _cut_off(self, application: _Application, number: int, is_cut_off: bool) -> None:
        """Note whether NAKs are wanted for a receiver."""
        topic = self._received_of(application, number)
        (application.cut_off.add if is_cut_off else application.cut_off.discard)(number)
        self._review_cutoff(topic)

    def _review_cutoff(self, topic: ReceivedTopic) -> None:
        """Send NAKs for a topic if one of its receivers wants them."""
        is_cut_off = all(number in one.cut_off for one, number in self._receivers_of(topic))
        if is_cut_off != topic.is_cut_off:
            topic.nak_cutoff(is_cut_off)

    def _receivers_of(self, topic: ReceivedTopic) -> list[tuple[_Application, int]]:
        with self._lock:
            return [
                (one, number)
                for one in self._applications
                for number, received in one.receivers.items()
                if received is topic
            ]

    def _report_event(self, topic: ReceivedTopic, name: str, kind: str) -> None:
        """Report an event of a source of a topic. On the relay's thread."""
        self._send_each(self._receivers_of(topic), {"do": "event", "name": name, "kind": kind})

    def _announce(self, topic: ReceivedTopic, source: SharedSource) -> int:
        """Announce a source of a topic that the driver receives. On the relay's thread."""
        return self._announce_to(self._receivers_of(topic), source)

    def _announce_to(self, wanting: Iterable[tuple[_Application, int]], source: SharedSource) -> int:
        """Announce a source to receivers of applications. Returns the number of applications.

        An application attaches all its receivers at once, so that they get the same messages.
        """
        return self._send_each(
            wanting,
            {"do": "source", "name": source.name, **asdict(source.log), "stores": source.stores},
        )

    def _send_each(self, wanting: Iterable[tuple[_Application, int]], fields: Mapping[str, Any]) -> int:
        """Send a message about receivers to their applications. Returns the number of applications."""
        numbers: dict[_Application, list[int]] = {}
        for application, number in wanting:
            numbers.setdefault(application, []).append(number)
        for application, of in numbers.items():
            for first in range(0, len(of), _ANNOUNCED_MAX):
                self._send(application, {**fields, "ids": of[first : first + _ANNOUNCED_MAX]})
        return len(numbers)

    def _announce_known(self, application: _Application, number: int) -> None:
        """Announce the sources that a topic already has to a new receiver: remote ones, and those of this host."""
        with self._lock:
            topic = application.receivers.get(number)
            local = [
                source.shared
                for one in self._applications
                for source in one.sources.values()
                if topic is not None and source.topic == topic.topic
            ]
        if topic is not None:
            for source in [*topic.sources(), *local]:
                self._announce_to([(application, number)], source)

    def _publish(self, application: _Application, number: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        most = self._limits.sources_max
        self._check_new(application, number, len(application.sources), most, "--sources-max")
        ending = sum(one.uid == application.peer.uid for one in self._ending)
        if ending >= most * self._policy.user_connections_max:
            raise DriverError(
                f"user {application.peer.uid} has {ending} sources whose last messages are still published",
                hint="end fewer sources at once; each takes at most a minute",
                errno=errno.EUSERS,
            )
        topic = topic_of(fields)
        options, log = options_of(fields, Scope.SOURCE), log_of(fields)
        source = PublishedTopic(self._context, topic, options, log, stored_of(fields))
        with self._lock:
            application.sources[number] = source
            wanting = [
                (one, received_number)
                for one in self._applications
                for received_number, received in one.receivers.items()
                if received.topic == topic
            ]
        processes = self._announce_to(wanting, source.shared)
        self._count_local(topic)
        return {
            "keyed": self._is_keyed(topic),
            "name": source.transport,
            "topic_index": source.network_topic_index,
            "readers": 1 + processes,
            "message_max": source.message_max_bytes,
        }

    def _count_local(self, topic: str) -> None:
        """Count the receivers of this host for the sources of a topic: they read the sources' logs."""
        with self._lock:
            counts = [
                sum(received.topic == topic for received in one.receivers.values())
                for one in self._applications
            ]
            sources = [
                source
                for one in self._applications
                for source in one.sources.values()
                if source.topic == topic
            ]
        for source in sources:
            source.set_local_receivers(sum(counts), sum(count > 0 for count in counts))

    def _is_keyed(self, topic: str) -> bool:
        return self._context.engine.keyring.number_of(topic) != 0

    def _source_of(self, application: _Application, number: int) -> PublishedTopic:
        source = application.sources.get(number)
        if source is None:
            raise malformed(f"id {number} is no source")
        return source

    def _received_of(self, application: _Application, number: int) -> ReceivedTopic:
        topic = application.receivers.get(number)
        if topic is None:
            raise malformed(f"id {number} is no receiver")
        return topic

    def _end(self, application: _Application, number: int) -> None:
        with self._lock:
            topic = application.receivers.pop(number, None)
            source = application.sources.pop(number, None)
        application.cut_off.discard(number)
        if topic is not None:
            self._release(topic)
        if source is not None:
            self._ending.append(_Ending(source, application.peer.uid, time.monotonic(), was_killed=False))

    def _release(self, topic: ReceivedTopic) -> None:
        """A receiver of the topic has ended. Close the driver's if no application has another."""
        if self._receivers_of(topic):
            self._review_cutoff(topic)
        elif self._topics.pop(topic.key, None) is not None:
            topic.close()
        self._count_local(topic.topic)

    def _finish_ending(self) -> None:
        now_s = time.monotonic()
        for one in list(self._ending):
            if one.is_over(now_s):
                self._ending.remove(one)
                one.source.close()
