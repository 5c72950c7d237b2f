"""The broker: a small privileged process that opens AF_XDP rings for unprivileged processes.

It loads and attaches the steering program, opens, binds and tunes the sockets, puts them into the program's map,
passes their descriptors and that of the frames' memory, and closes its own. The application maps rings and frames and
needs no privilege to use them; it requests rules from the broker. When its connection ends in any way, the broker
detaches the program; when the broker ends, the kernel detaches all programs.

An interface is lent to one application at a time, because the program is attached once and its sockets occupy all
named queues. One thread serves all clients and never blocks: busy queues are retried. After each round of messages
it tries one open request, that of the next user. The broker works on the network namespace of the serving thread, and
only for clients of that namespace.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from umstack_xdp.broker_policy import FRAMES_MAX_BYTES, Peer, Policy, peer_of
from umstack_xdp.broker_protocol import (
    MESSAGE_MAX_BYTES,
    AskRequest,
    AttachedRequest,
    OpenRequest,
    Request,
    RuleRequest,
    decode_request,
    encode,
    encode_error,
    network_namespace,
)
from umstack_xdp.capabilities import held_capabilities
from umstack_xdp.closing import Closing
from umstack_xdp.errors import BrokerError, RingError, XdpError
from umstack_xdp.facts import Unknown
from umstack_xdp.interface import Interface, find_interface, lies_on_others
from umstack_xdp.loan import SLOT, Loan
from umstack_xdp.probe import memlock_limit_bytes
from umstack_xdp.ring_place import RingPlace, ring_places_now
from umstack_xdp.steering import Steering
from umstack_xdp.xsk import RingSet, ring_bytes

__all__ = ["FRAMES_MAX_BYTES", "Broker", "BrokerEvent", "Peer", "Policy"]

_BUSY_TIMEOUT_S = 1.0  # a queue stays busy briefly after its last user
_BUSY_RETRY_S = 0.02
_LOOK_S = 0.5  # interval of checks of idle connections and of loans with open sockets


@dataclass(frozen=True, slots=True)
class BrokerEvent:
    """An action of the broker, for its log."""

    what: str
    """`lent`, `returned` or `refused`."""
    peer: Peer
    interface: str | None
    reason: str = ""


@dataclass(slots=True, eq=False)
class _Application:
    connection: socket.socket
    peer: Peer
    last_message_s: float
    loan: Loan | None = None
    opening: _Opening | None = None
    is_gone: bool = False


@dataclass(slots=True, eq=False)
class _Opening:
    """An open request without a response so far."""

    request: OpenRequest
    deadline_s: float
    place: RingPlace
    steering: Steering | None = field(default=None)
    """The program, attached once and reused by retries."""


class Broker(Closing):
    """Serves applications over a listening socket. Context manager: closing it ends all loans."""

    __slots__ = (
        "_applications",
        "_confinement",
        "_last_opener",
        "_listener",
        "_on_event",
        "_policy",
        "_revoked",
        "_selector",
        "_stopping",
        "_wake",
    )

    def __init__(
        self,
        listener: socket.socket,
        policy: Policy,
        on_event: Callable[[BrokerEvent], None],
        confinement: dict[str, str] | None = None,
    ) -> None:
        """Use a listener of `umstack_xdp.listening`.

        `confinement` describes the restrictions of this process and is reported on request (`umstack_xdp.confinement`).
        """
        self._listener, self._policy, self._on_event = listener, policy, on_event
        self._confinement = confinement or {}
        self._applications: set[_Application] = set()
        self._revoked: list[Loan] = []
        self._last_opener = -1
        self._stopping, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._stopping, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until `stop`, or an exception such as KeyboardInterrupt."""
        while True:
            for key, _ in self._selector.select(self._select_timeout_s()):
                if key.fileobj is self._stopping:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif not key.data.is_gone:
                    self._serve_one(key.data)
            self._try_next_opening()
            self._settle_revoked()
            self._drop_idle()

    def _select_timeout_s(self) -> float | None:
        if any(one.opening for one in self._applications):
            return _BUSY_RETRY_S
        return _LOOK_S if self._revoked or any(one.loan is None for one in self._applications) else None

    def stop(self) -> None:
        """End `serve`. Any thread, and signal handlers."""
        self._wake.send(b"\0")

    def close(self) -> None:
        """Detach every program and close all connections; a second call does nothing."""
        for application in list(self._applications):
            self._drop(application)
        while self._revoked:
            self._revoked.pop().close()
        self._selector.close()
        for one in (self._listener, self._stopping, self._wake):
            one.close()

    # ---- connections ----

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client disconnected before the accept, or no descriptors are left
            return
        connection.setblocking(False)
        peer = peer_of(connection)
        refusal = self._refusal(peer)
        if refusal is not None:
            self._on_event(BrokerEvent("refused", peer, None, refusal.message))
            with contextlib.suppress(OSError):
                connection.send(encode_error(refusal))
            connection.close()
            return
        application = _Application(connection, peer, time.monotonic())
        self._applications.add(application)
        self._selector.register(connection, selectors.EVENT_READ, application)

    def _refusal(self, peer: Peer) -> BrokerError | None:
        if not self._policy.admits(peer):
            return BrokerError(
                f"user {peer.uid} may not have rings",
                hint="start the broker with --allow-user or --allow-group for it",
                errno=errno.EACCES,
            )
        most = self._policy.user_connections_max
        own = sum(one.peer.uid == peer.uid for one in self._applications)
        if own >= most and not self._policy.is_privileged(peer):
            return BrokerError(
                f"user {peer.uid} has {most} connections, which is all that one may have",
                hint="end some of its clients",
                errno=errno.EUSERS,
            )
        if len(self._applications) < self._policy.connections_max or self._made_space(peer):
            return None
        return BrokerError(
            f"it serves {self._policy.connections_max} connections, which is all it takes",
            hint="end some of its clients",
            errno=errno.EUSERS,
        )

    def _made_space(self, peer: Peer) -> bool:
        """Close the longest idle connection to serve root or the broker's own user; return true if one was closed."""
        idle = [one for one in self._applications if one.loan is None]
        if not self._policy.is_privileged(peer) or not idle:
            return False
        self._drop(min(idle, key=lambda one: (self._policy.is_privileged(one.peer), one.last_message_s)))
        return True

    def _drop_idle(self) -> None:
        oldest_s = time.monotonic() - self._policy.idle_timeout_s
        for one in list(self._applications):
            if one.loan is None and one.opening is None and one.last_message_s < oldest_s:
                self._drop(one)

    def _serve_one(self, application: _Application) -> None:
        """Answer one message. The kernel closes descriptors that came along, because none are received."""
        try:
            message = application.connection.recv(MESSAGE_MAX_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._drop(application)
            return
        application.last_message_s = time.monotonic()
        try:
            request = decode_request(message)
        except XdpError as error:
            self._refuse(application, error)
            self._drop(application)
            return
        try:
            self._answer(application, request)
        except (XdpError, OSError) as error:
            self._refuse(application, error)

    def _refuse(self, application: _Application, error: Exception) -> None:
        name = None if application.loan is None else application.loan.place.interface.name
        self._on_event(BrokerEvent("refused", application.peer, name, str(error)))
        self._send(application, encode_error(error))

    def _send(self, application: _Application, message: bytes, descriptors: Iterable[int] = ()) -> None:
        """Send without waiting: a client that does not read its responses is dropped."""
        try:
            socket.send_fds(application.connection, [message], list(descriptors))
        except OSError:
            self._drop(application)

    def _drop(self, application: _Application) -> None:
        """Disconnect and detach the program. The application still has its sockets: see `umstack_xdp.loan`."""
        if application.is_gone:
            return
        application.is_gone = True
        self._applications.discard(application)
        self._end_opening(application)
        self._selector.unregister(application.connection)
        if (loan := application.loan) is not None:
            loan.revoke()
            self._revoked.append(loan)
            self._on_event(BrokerEvent("returned", application.peer, loan.place.interface.name))
        application.connection.close()

    # ---- requests ----

    def _answer(self, application: _Application, request: Request) -> None:
        match request:
            case OpenRequest():
                self._begin_opening(application, request)
            case RuleRequest():
                loan = _loan_of(application)
                if request.is_added:
                    self._policy.check_port(request.port)
                    loan.steering.add_rule(request.address, request.port, SLOT, loan.place.vlan)
                else:
                    loan.steering.remove_rule(request.address, request.port, loan.place.vlan)
                self._send(application, encode({}))
            case AttachedRequest():
                self._send(application, encode({"attached": _loan_of(application).steering.attached()}))
            case AskRequest():
                self._send(application, encode(self._facts()))

    def _facts(self) -> dict[str, Any]:
        held = held_capabilities()
        return {
            "capabilities": None if isinstance(held, Unknown) else sorted(held),
            "memlock_limit_bytes": memlock_limit_bytes(),
            "namespace": network_namespace(),
            "lent": {one.place.device.name: str(one.peer) for one in self._loans() if not one.is_revoked},
            "confinement": self._confinement,
        }

    def _loans(self) -> Iterator[Loan]:
        """Yield the loans of connected applications, and ended loans whose sockets are still open."""
        yield from (one.loan for one in self._applications if one.loan is not None)
        yield from self._revoked

    # ---- lending ----

    def _begin_opening(self, application: _Application, request: OpenRequest) -> None:
        peer = application.peer
        if application.loan is not None:
            raise BrokerError(
                "this connection has its rings already",
                hint="connect again for others",
                errno=errno.EALREADY,
            )
        if peer.namespace != network_namespace():
            raise BrokerError(
                "the broker is in another network namespace",
                hint="start one in the application's, and name its socket in link_xdp_broker",
                errno=errno.EXDEV,
            )
        waiting = sum(one.peer.uid == peer.uid for one in self._applications if one.opening)
        if waiting >= self._policy.user_opens_max and not self._policy.is_privileged(peer):
            raise BrokerError(
                f"user {peer.uid} has {waiting} open requests waiting, which is all that one may have",
                hint="wait for their answers",
                errno=errno.EUSERS,
            )
        self._policy.check_interface(request.interface)
        place = _place(request)
        self._policy.check_interface(place.device.name)
        # Further requests are read after the response; a disconnect is detected when the request is next tried.
        self._selector.unregister(application.connection)
        application.opening = _Opening(request, time.monotonic() + _BUSY_TIMEOUT_S, place)

    def _end_opening(self, application: _Application, *, is_lent: bool = False) -> None:
        opening, application.opening = application.opening, None
        if opening is None:
            return
        self._selector.register(application.connection, selectors.EVENT_READ, application)
        if opening.steering is not None and not is_lent:
            opening.steering.close()

    def _try_next_opening(self) -> None:
        """Try one open request, of the user after the one tried before."""
        waiting = [one for one in self._applications if one.opening]
        if not waiting:
            return
        application = min(
            waiting,
            key=lambda one: (one.peer.uid <= self._last_opener, one.peer.uid, one.last_message_s),
        )
        self._last_opener = application.peer.uid
        application.last_message_s = time.monotonic()  # tried last among its user's from now on
        if _has_hung_up(application.connection):
            self._drop(application)
            return
        try:
            self._try(application)
        except (XdpError, OSError) as error:
            self._end_opening(application)
            self._refuse(application, error)

    def _try(self, application: _Application) -> None:
        opening = application.opening
        assert opening is not None
        place, request = opening.place, opening.request
        is_last = time.monotonic() >= opening.deadline_s
        if (occupant := self._occupant(application, place.device)) is not None:
            if occupant.errno == errno.EAGAIN and not is_last:
                return
            raise occupant
        self._check_quota(application.peer, ring_bytes(place.device, request.settings))
        if opening.steering is None:
            opening.steering = Steering.attach(
                place.device, request.attach_mode, max_slots=1, frame_times=request.settings.frame_times
            )
        settings = replace(request.settings, busy_timeout=0.0).for_program(opening.steering.frame_times)
        try:
            with RingSet(place, request.ring_mode, settings, lent=True) as ring_set:
                self._lend(application, opening.steering, ring_set)
        except RingError as error:
            if error.errno != errno.EBUSY or is_last:
                raise

    def _lend(self, application: _Application, steering: Steering, ring_set: RingSet) -> None:
        loan = Loan(application.peer, steering, ring_set)
        self._end_opening(application, is_lent=True)
        application.loan = loan
        self._on_event(BrokerEvent("lent", application.peer, loan.place.interface.name))
        reply = encode({"shape": asdict(loan.rings.shape), "frame_times": steering.frame_times.value})
        self._send(application, reply, (loan.rings.memory, *loan.rings.sockets))

    def _occupant(self, application: _Application, device: Interface) -> BrokerError | None:
        """Return an error that names the holder of the NIC, with EAGAIN if its use may end soon."""
        for one in list(self._applications):
            other = one.loan.place if one.loan else one.opening.place if one.opening else None
            if one is application or other is None or other.device.index != device.index:
                continue
            if one.opening is not None and one.opening.steering is None:
                continue
            if _has_hung_up(one.connection):
                self._drop(one)
                continue
            return BrokerError(
                f"{device.name} is lent to {one.peer}",
                hint="end that process, or use another interface, or the socket link",
                errno=errno.EBUSY,
            )
        self._settle_revoked()
        for loan in self._revoked:
            if loan.place.device.index == device.index:
                return BrokerError(
                    f"{loan.peer} hung up and keeps the sockets of {device.name} open",
                    hint="end that process, and those it passed them to, or use another interface",
                    errno=errno.EAGAIN,
                )
        return None

    def _settle_revoked(self) -> None:
        """Remove ended loans whose sockets are closed and which therefore no longer count."""
        for loan in [one for one in self._revoked if one.is_over()]:
            self._revoked.remove(loan)
            loan.free_frames()
            loan.close()

    def _check_quota(self, peer: Peer, wanted: int) -> None:
        held = sum(loan.bytes for loan in self._loans() if loan.peer.uid == peer.uid)
        if held + wanted > self._policy.frames_max_bytes:
            kept = sum(loan.bytes for loan in self._revoked if loan.peer.uid == peer.uid)
            has = f" and has {held} ({kept} of them returned, their sockets still open)" if held else ""
            raise BrokerError(
                f"user {peer.uid} wants frames of {wanted} bytes{has}; it lends {self._policy.frames_max_bytes}",
                hint="use fewer frames or queues, end processes that keep rings, or start the broker with more "
                "--frames-max-mib",
                errno=errno.ENOBUFS,
            )


def _place(request: OpenRequest) -> RingPlace:
    """Return the requested NIC if the interface has its rings there; the devices below it are read from the kernel."""
    interface = find_interface(request.interface)
    if request.device == request.interface and not lies_on_others(request.interface):
        return RingPlace(interface, interface)
    for place in ring_places_now(interface):
        if place.device.name == request.device:
            return place
    raise BrokerError(
        f"{request.interface} has no rings on {request.device}",
        hint="`umstack doctor` shows the devices below the interface",
        errno=errno.ENODEV,
    )


def _has_hung_up(connection: socket.socket) -> bool:
    """Return true if the peer has disconnected, even if its last messages are unread."""
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _loan_of(application: _Application) -> Loan:
    if application.loan is None:
        raise BrokerError("this connection has no rings", hint="open some first", errno=errno.ENOTCONN)
    return application.loan
