"""DriverClient: the connection of a context to the driver of its interface.

One file, because the search for another driver repeats the requests that the connection has made.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from umstack._engine.host_identity import host_id
from umstack._engine.source_events import ReceiverEvent
from umstack.config import OPTIONS, ReceiverOptions, Scope, SourceOptions
from umstack.config.option import shown
from umstack.driver.protocol import (
    MESSAGE_MAX_BYTES,
    NUMBER_MAX,
    VERSION_HIGH,
    VERSION_LOW,
    SharedLog,
    check_announcement,
    common_version,
    decode,
    default_path,
    encode,
    event_of,
    events_of,
    number_of,
    numbers_of,
    refusal_of,
    text_of,
)
from umstack.errors import DriverError, UmError
from umstack.foreign_text import displayed
from umstack.persistence.advertised import Stored

_ANSWER_SECONDS = 10.0
_SEARCH_INTERVAL_SECONDS = 0.1
_ATTACHING_INTERVAL_SECONDS = 0.001
_PENDING_MS = 20
_log = logging.getLogger("umstack.driver")


@dataclass(frozen=True, slots=True)
class PublishedSource:
    """A source of the driver, which publishes the messages of one of this process."""

    name: str
    """The session on the network, in Ultra Messaging's notation."""
    readers: int
    """How many processes were invited to attach to the source's log, the driver included."""
    topic_index: int
    """The number of the topic in that session."""
    message_max_bytes: int
    """The longest message that the session on the network takes."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of a source in the driver."""

    is_connected: bool
    receivers: int
    """Receivers of the network."""
    local: int
    """Receivers of this host."""
    readers: int
    """How many processes attach to the source's log, the driver included."""
    is_drained: bool
    reached: int
    """The topic sequence number after the last message that the driver has published."""
    given_up: dict[str, int]
    """Datagrams that receivers of the session have lost for good, by receiver; "driver": messages that it missed."""


def listening_path(driver: str | os.PathLike[str], interface: str) -> Path | None:
    """Return the driver's socket for the value of Context(driver=), None if the context is to run without one.

    Args:
        driver: `none`, `auto`, or a path.
        interface: Name of the context's interface.

    Returns:
        The path; with `auto` only if a process listens there.
    """
    if driver == "none":
        return None
    if driver != "auto":
        return Path(driver)
    path = Path(default_path(interface))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            if stat.S_ISSOCK(path.stat().st_mode):
                probe.connect(str(path))
                return path
    except PermissionError as error:
        _log.warning("the driver at %s is not used: %s", path, error.strerror)
    except OSError:
        pass  # nobody listens
    return None


def attach(path: Path, interface: str, search_seconds: float) -> DriverClient:
    """Connect to the driver at a path and agree on a version.

    Args:
        path: The control socket.
        interface: Name of the context's interface, which the driver must serve.
        search_seconds: How long to look for a driver at this path again after this one has ended.

    Returns:
        The connection.

    Raises:
        DriverError: No driver listens there, it refuses this process, or it serves another interface.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _greet(connection, path, interface)
    except BaseException:
        connection.close()
        raise
    return DriverClient(connection, path, interface, search_seconds)


def _greet(connection: socket.socket, path: Path, interface: str) -> None:
    """Connect a socket to the driver at a path and agree on a version. Raises DriverError."""
    connection.settimeout(_ANSWER_SECONDS)
    try:
        connection.connect(str(path))
        hello = {"do": "attach", "low": VERSION_LOW, "high": VERSION_HIGH, "host": host_id()}
        with contextlib.suppress(BrokenPipeError):  # a driver that refuses at once has sent the reason
            connection.send(encode(hello))
        answer = decode(_first_answer(connection) or b"{}")
    except OSError as error:
        raise DriverError(
            f"the driver at {path}: {os.strerror(error.errno) if error.errno else error}",
            errno=error.errno or 0,
        ) from error
    _raise_refusal(answer, path)
    version = number_of(answer, "version")
    if common_version(version, version) is None:
        raise DriverError(
            f"the driver at {path} chose version {version} of the protocol, which is not one of {VERSION_LOW} to "
            f"{VERSION_HIGH}",
            hint="use the same version of umstack for both",
        )
    served = text_of(answer, "interface")
    if served != interface:
        raise DriverError(
            f"the driver at {path} serves {displayed(served)}, and the context is on {interface}",
            hint="open the context on that interface, or name the driver of this one",
        )
    connection.settimeout(None)


def _first_answer(connection: socket.socket) -> bytes:
    try:
        return connection.recv(MESSAGE_MAX_BYTES + 1)
    except ConnectionResetError:
        # The driver refused without reading the request: the kernel reports that before the earlier refusal.
        return connection.recv(MESSAGE_MAX_BYTES + 1)


def _raise_refusal(answer: Mapping[str, Any], path: Path) -> None:
    if (refusal := refusal_of(answer, path)) is not None:
        raise refusal


class AttachedObject(Protocol):
    """A source or receiver as the client sees it. Called on the client's thread."""

    def check_answer(self, answer: Mapping[str, Any]) -> None:
        """Check the driver's answer to its request. Raises DriverError if the object cannot use it."""

    def on_driver_lost(self) -> None:
        """Its driver has ended, and the client looks for it."""

    def update_request(self, fields: dict[str, Any]) -> None:
        """Change what the request to the next driver must state."""

    def on_driver_back(self, answer: Mapping[str, Any]) -> None:
        """A driver serves it again."""

    def on_driver_gone(self, error: UmError) -> None:
        """No driver serves it again."""

    def on_event(self, source: str, kind: str) -> None:
        """An event of a source of the network, which a receiver receives."""

    def on_announced(
        self, fields: Mapping[str, Any], objects: Sequence[AttachedObject]
    ) -> Sequence[AttachedObject]:
        """The driver announces a source to objects of this process, of which this is one.

        Returns those to which it has to be announced again later. In sequential mode on the thread that runs the
        protocol.
        """


@dataclass(slots=True)
class _Request:
    """A request that is repeated to the next driver, for an object that is open."""

    do: str
    fields: dict[str, Any]
    object: AttachedObject
    is_cut_off: bool = False
    """True if the receiver itself wants no NAKs."""


class DriverClient:
    """The connection to a driver. Requests from any thread; a thread of its own reads what the driver sends.

    After the end of the driver that thread looks for a driver at the same path, and repeats the requests of the open
    sources and receivers there.

        attached ---- the connection ends ----> searching ---- a driver accepts us ----> attached
                                                    |
                                                    +---- search_seconds ----> gone
    """

    __slots__ = (
        "_answers",
        "_changed",
        "_connection",
        "_has_given_up",
        "_interface",
        "_is_closing",
        "_is_cut_off",
        "_is_searching",
        "_next",
        "_on_gone",
        "_pending",
        "_requests",
        "_run_protocol",
        "_search_seconds",
        "_thread",
        "lost",
        "path",
    )

    def __init__(self, connection: socket.socket, path: Path, interface: str, search_seconds: float) -> None:
        """Use a connection whose driver has accepted this process; see attach()."""
        self.path = path
        self.lost = ""
        """Why the driver is not there; empty while it is."""
        self._connection = connection
        self._interface = interface
        self._search_seconds = search_seconds
        self._changed = threading.Condition()
        """Guards the tables and the state, and is notified when the state changes."""
        self._next = itertools.count(1)
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._requests: dict[int, _Request] = {}
        self._pending: dict[tuple[int, str], dict[str, Any]] = {}
        """Announcements of sources that an earlier driver's log still delivers messages of."""
        self._is_searching = False
        self._is_closing = False
        self._is_cut_off = False
        """True if no receiver of this process wants NAKs."""
        self._has_given_up = False
        """True if process() is to call on_gone."""
        self._on_gone: Callable[[], None] | None = None
        self._run_protocol: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def start(self, on_gone: Callable[[], None] | None, run_protocol: Callable[[], None] | None) -> None:
        """Begin to read what the driver sends.

        `on_gone` is called, on the client's thread, instead of on_driver_gone() of each object, if no driver came back.
        `run_protocol` runs the protocol of a context in sequential mode for a moment. Such a context calls process(),
        which then calls `on_gone` and on_announced().
        """
        self._on_gone, self._run_protocol = on_gone, run_protocol
        self._thread = threading.Thread(target=self._run, name="umstack driver", daemon=True)
        self._thread.start()

    def process(self) -> None:
        """Attach to announced sources, in sequential mode. On the thread that runs the protocol."""
        if self._pending:
            self._map_pending()
        if self._has_given_up and self._on_gone is not None:
            self._has_given_up = False
            self._on_gone()

    def close(self) -> None:
        """Disconnect: the driver then ends the sources and receivers of this process."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._connection.close()

    # ---- requests ----

    def receive(self, topic: str, options: ReceiverOptions, receiver: AttachedObject) -> int:
        """Request a topic for a receiver. Returns the request's number, for end(). Raises DriverError, and the errors
        of Context.receiver().

        While the client searches for a driver, the request is kept for the next one, and the call returns at once.
        """
        fields = {"topic": topic, "options": _as_text(Scope.RECEIVER, options)}
        return self._open("receive", fields, receiver, waits=False)[0]

    def publish(
        self,
        topic: str,
        log: SharedLog,
        options: SourceOptions,
        source: AttachedObject,
        stored: Stored | None = None,
    ) -> tuple[int, PublishedSource]:
        """Have the messages of a source's shared log published. Returns its number. Raises DriverError, and the errors
        of Context.source().
        """
        fields = {
            "topic": topic,
            "options": _as_text(Scope.SOURCE, options),
            **asdict(log),
            "stores": stored.stores if stored else (),
            "fragment_bytes": stored.fragment_bytes if stored else 0,
        }
        number, answer = self._open("publish", fields, source, waits=True)
        try:
            return number, published_of(answer)
        except BaseException:
            self.end(number)
            raise

    def _open(
        self, do: str, fields: dict[str, Any], opened: AttachedObject, *, waits: bool
    ) -> tuple[int, dict[str, Any]]:
        number = next(self._next)
        fields["id"] = number
        while True:
            if waits:
                self._wait_found()
            with self._changed:
                if waits and self._is_searching and not self._is_closing:
                    continue
                self._requests[number] = _Request(do, fields, opened)
                if do == "receive":
                    fields["cut_off"] = self._is_cut_off
                if self._is_searching and not waits:
                    return number, {}
            try:
                answer = self._ask(do, fields)
            except BaseException as error:
                self._forget(number)
                if not (isinstance(error, DriverError) and self._is_searching):
                    raise
                continue
            try:
                opened.check_answer(answer)
            except BaseException:
                self.end(number)
                raise
            return number, answer

    def _wait_found(self) -> None:
        """Wait until a driver is found, or none in time. In sequential mode a driver that is found needs the protocol
        to attach to the logs of sources."""
        if self._run_protocol is None:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_searching or self._is_closing)
            return
        while self._is_searching and not self._is_closing:
            self._run_protocol()
            time.sleep(_ATTACHING_INTERVAL_SECONDS)

    def nak_cutoff(self, is_cut_off: bool, number: int | None = None) -> None:
        """Let the driver send no NAKs for a receiver, or for all of this process (None), or let it resume.

        The driver sends NAKs for a topic as long as one of its receivers wants them. While a driver is looked for, this
        is kept for the next one. Raises DriverError.
        """
        with self._changed:
            if number is None:
                self._is_cut_off = is_cut_off
            elif number in self._requests:
                self._requests[number].is_cut_off = is_cut_off
            changed = {
                n: one.fields
                for n, one in self._requests.items()
                if one.do == "receive" and number in (None, n)
            }
            for n, fields in changed.items():
                fields["cut_off"] = self._is_cut_off or self._requests[n].is_cut_off
        for n, fields in changed.items():
            try:
                self._ask("nak_cutoff", {"id": n, "enabled": fields["cut_off"]})
            except DriverError:
                if not self._is_searching:
                    raise

    def state(self, number: int) -> SourceState:
        """Return the state of a source: not connected while a driver is looked for. Raises DriverError."""
        try:
            answer = self._ask("state", {"id": number})
        except DriverError:
            if not self._is_searching:
                raise
            return SourceState(False, 0, 0, 1, False, 0, {})
        return SourceState(
            answer.get("connected") is True,
            number_of(answer, "receivers"),
            number_of(answer, "local"),
            number_of(answer, "readers"),
            answer.get("drained") is True,
            number_of(answer, "reached"),
            {name: number for name, number in answer["given_up"].items() if type(number) is int}
            if isinstance(answer.get("given_up"), dict)
            else {},
        )

    def unconnected(self, number: int) -> int:
        """Return how many sources of a receiver have not accepted the driver yet; all while a driver is looked for.
        Raises DriverError.
        """
        try:
            return number_of(self._ask("unconnected", {"id": number}), "unconnected")
        except DriverError:
            if not self._is_searching:
                raise
            return NUMBER_MAX

    def events(self, number: int, after: int) -> tuple[list[ReceiverEvent], int]:
        """Return the events about receivers of a source on the network after the first `after`, and how many there
        were: none while a driver is looked for. Raises DriverError.
        """
        try:
            answer = self._ask("events", {"id": number, "after": after})
        except DriverError:
            if not self._is_searching:
                raise
            return [], after
        return events_of(answer), number_of(answer, "count")

    def end(self, number: int) -> None:
        """End a source or receiver in the driver. Does nothing if the driver is not there any more."""
        self._forget(number)
        with contextlib.suppress(DriverError):
            self._ask("end", {"id": number})

    def _forget(self, number: int) -> None:
        with self._changed:
            self._requests.pop(number, None)

    def _ask(self, do: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._next)
        answer: Future[dict[str, Any]] = Future()
        with self._changed:
            if self.lost or self._is_closing:
                raise self.lost_error()
            self._answers[number] = answer
        try:
            self._connection.send(encode({"do": do, "request": number, **fields}))
            found = answer.result(_ANSWER_SECONDS)
        except FutureTimeout:
            raise DriverError(
                f"the driver at {self.path} did not answer within {_ANSWER_SECONDS:g} s"
            ) from None
        except OSError as error:
            with self._changed:  # the thread that reads answers finds the end of the connection, too
                self._changed.wait_for(lambda: self.lost or self._is_closing, _ANSWER_SECONDS)
            raise self.lost_error() from error
        finally:
            with self._changed:
                self._answers.pop(number, None)
        _raise_refusal(found, self.path)
        return found

    @property
    def is_searching(self) -> bool:
        """True while a driver is looked for."""
        return self._is_searching

    def lost_error(self) -> DriverError:
        """Return the error for use of a source or receiver whose driver has ended."""
        return DriverError(
            self.lost or f"the driver at {self.path} has ended",
            hint="start it again, and open a new context; driver_search_timeout is how long a context looks for it",
            errno=errno.EPIPE,
        )

    # ---- the client's thread ----

    def _run(self) -> None:
        while True:
            self._read()
            self._on_end()
            if self._is_closing:
                return
            if not self._search():
                self._give_up()
                return

    def _read(self) -> None:
        """Handle what the driver sends, until the connection ends."""
        arrived = select.poll()
        arrived.register(self._connection, select.POLLIN)
        try:
            while True:
                maps = self._run_protocol is None
                if arrived.poll(_PENDING_MS if self._pending and maps else None):
                    data = self._connection.recv(MESSAGE_MAX_BYTES + 1)
                    if not data:
                        return
                    self._on_message(decode(data))
                if maps:
                    self._map_pending()
        except (OSError, DriverError) as error:
            _log.debug("the driver at %s: %s", self.path, displayed(str(error)))

    def _on_message(self, fields: dict[str, Any]) -> None:
        if fields.get("do") == "source":
            check_announcement(fields)
            # A later log of the same source takes the place of one that its receiver was not ready for.
            name, numbers = text_of(fields, "name"), numbers_of(fields, "ids")
            with self._changed:
                self._pending.update({(number, name): fields for number in numbers})
            return
        if fields.get("do") == "event":
            name, kind = text_of(fields, "name"), event_of(fields)
            with self._changed:
                requests = [self._requests.get(number) for number in numbers_of(fields, "ids")]
            for request in requests:
                if request is not None:
                    request.object.on_event(name, kind)
            return
        with self._changed:
            answer = self._answers.pop(number_of(fields, "reply"), None)
        if answer is not None:
            answer.set_result(fields)

    def _map_pending(self) -> None:
        """Attach to announced sources, for all receivers to which one is announced at once: the source knows them as
        one receiver, and they get the same messages.
        """
        with self._changed:
            announced = {id(fields): fields for fields in self._pending.values()}
        for fields in announced.values():
            with self._changed:
                waiting = [key for key, of in self._pending.items() if of is fields]
                objects = {key: self._requests[key[0]].object for key in waiting if key[0] in self._requests}
            receivers = [*objects.values()]
            again = receivers and receivers[0].on_announced(fields, receivers)
            with self._changed:
                for key in waiting:
                    is_left = key in objects and any(objects[key] is one for one in again)
                    if not is_left and self._pending.get(key) is fields:
                        del self._pending[key]

    def _on_end(self) -> None:
        """Report the end of the driver to everything that depends on it."""
        with self._changed:
            answers, self._answers = list(self._answers.values()), {}
            requests = list(self._requests.values())
            if not self._is_closing:
                self.lost = f"the driver at {self.path} has ended"
                self._is_searching = True
                self._changed.notify_all()
                # Once the loss can be seen, no source accepts a message.
                for request in requests:
                    if request.do == "publish":
                        request.object.on_driver_lost()
            self._pending.clear()
        for answer in answers:
            answer.set_exception(self.lost_error())
        self._connection.close()
        if self._is_closing:
            return
        _log.warning("%s: looking for it for %g s", self.lost, self._search_seconds)
        for request in requests:
            if request.do != "publish":
                request.object.on_driver_lost()

    def _search(self) -> bool:
        """Look for a driver. Returns false if none serves this process again."""
        deadline = time.monotonic() + self._search_seconds
        while time.monotonic() < deadline:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                _greet(self._connection, self.path, self._interface)
                self._restore()
            except (OSError, UmError) as error:
                self._connection.close()
                with self._changed:
                    self._pending.clear()
                    self.lost = f"the driver has ended, and there is no other: {error}"
                    if self._changed.wait_for(lambda: self._is_closing, _SEARCH_INTERVAL_SECONDS):
                        return False
                continue
            _log.warning("attached to the driver at %s again", self.path)
            return True
        return False

    def _restore(self) -> None:
        """Repeat the requests of the open objects, including those opened or closed meanwhile.

        Raises:
            OSError: The connection ended.
        """
        answers: dict[int, dict[str, Any]] = {}
        while not self._finish_search(answers):
            with self._changed:
                missing = {n: one for n, one in self._requests.items() if n not in answers}
                closed = answers.keys() - self._requests.keys()
            for number in closed:
                self._ask_here("end", {"id": number})
                del answers[number]
            for number, request in missing.items():
                try:
                    request.object.update_request(request.fields)
                    answers[number] = self._ask_here(request.do, request.fields)
                    request.object.check_answer(answers[number])
                    if request.do == "publish":
                        self._wait_attached(number)
                except UmError as error:
                    self._forget(number)
                    request.object.on_driver_gone(error)

    def _finish_search(self, answers: Mapping[int, Mapping[str, Any]]) -> bool:
        """End the search if the driver serves exactly the open objects; otherwise return false."""
        with self._changed:
            if answers.keys() != self._requests.keys():
                return False
            for number, request in self._requests.items():
                request.object.on_driver_back(answers[number])
            self.lost, self._is_searching = "", False
            self._changed.notify_all()
            return True

    def _wait_attached(self, number: int) -> None:
        """Wait until the driver reads a source's log, or the source is closed. Raises OSError, DriverError."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while number in self._requests and not self._has_attached(number):
            if time.monotonic() >= deadline:
                raise DriverError(
                    f"the driver at {self.path} did not attach to the source within {_ANSWER_SECONDS:g} s",
                    hint="see the driver's log for the reason",
                )
            time.sleep(_ATTACHING_INTERVAL_SECONDS)

    def _has_attached(self, number: int) -> bool:
        return self._ask_here("state", {"id": number}).get("attached") is True

    def _ask_here(self, do: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request on the thread that reads the answers. Raises OSError; DriverError if it is refused."""
        number = next(self._next)
        self._connection.settimeout(_ANSWER_SECONDS)
        self._connection.send(encode({"do": do, "request": number, **fields}))
        while True:
            data = self._connection.recv(MESSAGE_MAX_BYTES + 1)
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "it disconnected")
            found = decode(data)
            if found.get("reply") == number:
                self._connection.settimeout(None)
                _raise_refusal(found, self.path)
                return found
            self._on_message(found)

    def _give_up(self) -> None:
        with self._changed:
            self._is_searching = False
            requests, self._requests = self._requests, {}
            self._changed.notify_all()
        if self._is_closing:
            return
        if self._on_gone is not None:
            if self._run_protocol is None:
                self._on_gone()
            else:
                self._has_given_up = True
            return
        _log.error("%s: its sources send no more, and its receivers get no more", displayed(self.lost))
        for request in requests.values():
            request.object.on_driver_gone(self.lost_error())


def published_of(answer: Mapping[str, Any]) -> PublishedSource:
    """Return the reply to a publish request. Raises DriverError."""
    return PublishedSource(
        text_of(answer, "name"),
        number_of(answer, "readers"),
        number_of(answer, "topic_index"),
        number_of(answer, "message_max"),
    )


def _as_text(scope: Scope, options: ReceiverOptions | SourceOptions) -> dict[str, str]:
    """Return the options that were set, as text by name."""
    found = {name: OPTIONS[scope][name] for name in options.given}
    return {name: shown(one.spec, getattr(options, one.field)) for name, one in found.items()}
