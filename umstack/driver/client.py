"""DriverClient: the connection of a context to the driver of its interface."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from umstack._engine.engine import Engine
from umstack._engine.host_identity import host_id
from umstack._engine.subscription import Subscription
from umstack._engine.transport_address import LbtipcAddress
from umstack.config import OPTIONS, ReceiverOptions, Scope, SourceOptions
from umstack.config.option import shown
from umstack.driver.protocol import (
    MESSAGE_MAX_BYTES,
    VERSION_HIGH,
    VERSION_LOW,
    SharedLog,
    common_version,
    decode,
    default_path,
    encode,
    log_of,
    number_of,
    text_of,
)
from umstack.errors import DriverError, UmError
from umstack.foreign_text import displayed

_ANSWER_SECONDS = 10.0
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
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        if stat.S_ISSOCK(path.stat().st_mode):
            probe.connect(str(path))
            return path
    return None


def attach(path: Path, interface: str) -> DriverClient:
    """Connect to the driver at a path and agree on a version.

    Args:
        path: The control socket.
        interface: Name of the context's interface, which the driver must serve.

    Returns:
        The connection.

    Raises:
        DriverError: No driver listens there, it refuses this process, or it serves another interface.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
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
                f"the driver at {path} speaks version {version}",
                hint="use the same version of umstack for both",
            )
        served = text_of(answer, "interface")
        if served != interface:
            raise DriverError(
                f"the driver at {path} serves {displayed(served)}, and the context is on {interface}",
                hint="open the context on that interface, or name the driver of this one",
            )
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return DriverClient(connection, path, text_of(answer, "link"))


def _first_answer(connection: socket.socket) -> bytes:
    try:
        return connection.recv(MESSAGE_MAX_BYTES + 1)
    except ConnectionResetError:
        # The driver refused without reading the request: the kernel reports that before the earlier refusal.
        return connection.recv(MESSAGE_MAX_BYTES + 1)


def _raise_refusal(answer: Mapping[str, Any], path: Path) -> None:
    refusal = answer.get("error")
    if isinstance(refusal, dict):
        number = refusal.get("errno")
        raise DriverError(
            f"the driver at {path}: {displayed(str(refusal.get('message')))}",
            hint=displayed(str(refusal.get("hint"))),
            errno=number if type(number) is int else 0,
        )


class DriverClient:
    """The connection to a driver. Requests from any thread; a thread of its own reads what the driver sends."""

    __slots__ = (
        "_answers",
        "_connection",
        "_engine",
        "_is_closing",
        "_lock",
        "_next",
        "_on_lost",
        "_subscriptions",
        "_thread",
        "link",
        "lost",
        "path",
    )

    def __init__(self, connection: socket.socket, path: Path, link: str) -> None:
        self.path = path
        self.link = link
        """The link of the driver: `xdp` or `socket`."""
        self.lost = ""
        """Why the driver is not there any more; empty while it is."""
        self._connection = connection
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._next = itertools.count(1)
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._on_lost: dict[int, Callable[[], None]] = {}
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def start(self, engine: Engine) -> None:
        """Begin to read what the driver sends, for the receivers of this engine."""
        self._engine = engine
        self._thread = threading.Thread(target=self._read, name="umstack driver", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnect: the driver then ends the sources and receivers of this process."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._connection.close()

    # ---- requests ----

    def receive(self, subscription: Subscription, options: ReceiverOptions) -> int:
        """Have a receiver's topic received. Returns its number, for end(). Raises DriverError."""
        number = next(self._next)
        with self._lock:
            self._subscriptions[number] = subscription
        fields = {"id": number, "topic": subscription.topic, "options": _as_text(Scope.RECEIVER, options)}
        try:
            self._ask("receive", fields)
        except BaseException:
            self._forget(number)
            raise
        return number

    def publish(
        self,
        topic: str,
        log: SharedLog,
        options: SourceOptions,
        on_lost: Callable[[], None],
    ) -> tuple[int, PublishedSource]:
        """Have the messages of a source's shared log published. Returns its number. Raises DriverError.

        `on_lost` is called if the driver ends.
        """
        number = next(self._next)
        with self._lock:
            self._on_lost[number] = on_lost
        fields = {
            "id": number,
            "topic": topic,
            "options": _as_text(Scope.SOURCE, options),
            **asdict(log),
        }
        try:
            answer = self._ask("publish", fields)
            opened = PublishedSource(
                text_of(answer, "name"),
                number_of(answer, "readers"),
                number_of(answer, "topic_index"),
                number_of(answer, "message_max"),
            )
        except BaseException:
            self._forget(number)
            raise
        return number, opened

    def state(self, number: int) -> SourceState:
        """Return the state of a source. Raises DriverError."""
        answer = self._ask("state", {"id": number})
        return SourceState(
            answer.get("connected") is True,
            number_of(answer, "receivers"),
            answer.get("drained") is True,
            number_of(answer, "reached"),
            {name: number for name, number in answer["given_up"].items() if type(number) is int}
            if isinstance(answer.get("given_up"), dict)
            else {},
        )

    def end(self, number: int) -> None:
        """End a source or receiver in the driver. Does nothing if the driver is not there any more."""
        self._forget(number)
        with contextlib.suppress(DriverError):
            self._ask("end", {"id": number})

    def _forget(self, number: int) -> None:
        with self._lock:
            self._subscriptions.pop(number, None)
            self._on_lost.pop(number, None)

    def _ask(self, do: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._next)
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
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
            raise self.lost_error() from error
        finally:
            with self._lock:
                self._answers.pop(number, None)
        _raise_refusal(found, self.path)
        return found

    def lost_error(self) -> DriverError:
        """Return the error for use of a source or receiver whose driver has ended."""
        return DriverError(
            self.lost or f"the driver at {self.path} has ended",
            hint="open a new context; driver='auto' finds a driver that was started again, or works without one",
            errno=errno.EPIPE,
        )

    # ---- what the driver sends ----

    def _read(self) -> None:
        try:
            while data := self._connection.recv(MESSAGE_MAX_BYTES + 1):
                self._on_message(decode(data))
        except (OSError, DriverError) as error:
            _log.debug("the driver at %s: %s", self.path, displayed(str(error)))
        self._on_end()

    def _on_message(self, fields: dict[str, Any]) -> None:
        if fields.get("do") != "source":
            with self._lock:
                answer = self._answers.get(number_of(fields, "reply"))
            if answer is not None:
                answer.set_result(fields)
            return
        with self._lock:
            subscription = self._subscriptions.get(number_of(fields, "id"))
        engine = self._engine
        if subscription is None or engine is None:
            return
        log = log_of(fields)
        address = LbtipcAddress(host_id(), log.session_id, log.transport_id)
        name = text_of(fields, "name")
        try:
            engine.map_shared_log(subscription, address, log.topic_index, log.key, name)
        except UmError as error:
            _log.warning("%s is not received: %s", displayed(name), displayed(str(error)))

    def _on_end(self) -> None:
        """Report the end of the driver to everything that depends on it."""
        with self._lock:
            if not self._is_closing:
                self.lost = f"the driver at {self.path} has ended"
            answers, self._answers = list(self._answers.values()), {}
            subscriptions, self._subscriptions = list(self._subscriptions.values()), {}
            on_lost, self._on_lost = list(self._on_lost.values()), {}
        for answer in answers:
            answer.set_exception(self.lost_error())
        if self._is_closing:
            return
        _log.error("%s: its sources send no more, and its receivers get no more", self.lost)
        for call in on_lost:
            call()
        for subscription in subscriptions:
            subscription.report_driver_lost()


def _as_text(scope: Scope, options: ReceiverOptions | SourceOptions) -> dict[str, str]:
    """Return the options that were set, as text by name."""
    found = {name: OPTIONS[scope][name] for name in options.given}
    return {name: shown(one.spec, getattr(options, one.field)) for name, one in found.items()}
