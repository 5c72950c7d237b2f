"""The broker: a small privileged process that opens AF_XDP rings for processes that may not.

It loads and attaches the steering program, opens, binds and tunes the sockets, puts them into the program's map and
passes their descriptors and that of the frames' memory; then it closes its own. The application maps rings and frames
and needs no privilege for anything it does with them. Rules it asks the broker for. When its connection ends, in
whatever way, the program is off the interface; when the broker ends, the kernel takes every program off.

One interface is lent to one application at a time: the program is on it once, and its sockets take every queue named.
One thread serves all, one request after another. Works on the network namespace of the thread that serves.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xdp.broker_protocol import (
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
from xdp.capabilities import held_capabilities
from xdp.closing import Closing
from xdp.errors import BrokerError, XdpError
from xdp.facts import Unknown
from xdp.interface import Interface, find_interface
from xdp.probe import memlock_limit_bytes
from xdp.steering import Steering
from xdp.xsk import RingSet, RingSettings, queue_count

_SLOT = 0
_CONNECTIONS_MAX = 64
_FRAME_BYTES_MAX = 4096
_FIRST_INHERITED = 3  # systemd's SD_LISTEN_FDS_START
_SO_PEERGROUPS = 59
_GROUPS_BYTES = 1024  # of 256 groups; Python reads no more of an option
FRAMES_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as it was when it connected."""

    pid: int
    uid: int
    groups: frozenset[int]

    def __str__(self) -> str:
        """Name it as messages do."""
        name = "a process"
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{self.pid}/comm").read_text().strip()
        return f"{name} (pid {self.pid}, user {self.uid})"


@dataclass(frozen=True, slots=True)
class Policy:
    """Which users may have rings, and how large. Root and the broker's own user always may."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    frames_max_bytes: int = FRAMES_MAX_BYTES
    """Of all queues of one application: memory that is locked."""

    def admits(self, peer: Peer) -> bool:
        """Whether the process may be served."""
        return peer.uid in self.users | {0, os.geteuid()} or bool(self.groups & peer.groups)


@dataclass(frozen=True, slots=True)
class BrokerEvent:
    """Something the broker did, for its log."""

    what: str
    """`lent`, `returned` or `refused`."""
    peer: Peer
    interface: str | None
    reason: str = ""


@dataclass(slots=True, eq=False)
class _Application:
    connection: socket.socket
    peer: Peer
    interface: Interface | None = None
    steering: Steering | None = None
    is_gone: bool = False


class Broker(Closing):
    """Serves applications over a listening socket. Context manager: closing it takes everything back."""

    __slots__ = ("_applications", "_listener", "_on_event", "_policy", "_selector", "_stopping", "_wake")

    def __init__(
        self, listener: socket.socket, policy: Policy, on_event: Callable[[BrokerEvent], None]
    ) -> None:
        """Take over the listener, which `listen_at` or `inherited_listener` made."""
        self._listener, self._policy, self._on_event = listener, policy, on_event
        self._applications: set[_Application] = set()
        self._stopping, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._stopping, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until `stop`, or an exception such as KeyboardInterrupt."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stopping:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif not key.data.is_gone:
                    self._serve_one(key.data)

    def stop(self) -> None:
        """Have `serve` return. Any thread, and signal handlers."""
        self._wake.send(b"\0")

    def close(self) -> None:
        """Take every program off, and hang up; a second call does nothing."""
        for application in list(self._applications):
            self._drop(application)
        self._selector.close()
        for one in (self._listener, self._stopping, self._wake):
            one.close()

    # ---- connections ----

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it hung up before it was answered, or there are no descriptors left for now
            return
        connection.setblocking(False)
        peer = _peer_of(connection)
        refusal = self._refusal(peer)
        if refusal is not None:
            self._on_event(BrokerEvent("refused", peer, None, refusal.message))
            with contextlib.suppress(OSError):
                connection.send(encode_error(refusal))
            connection.close()
            return
        application = _Application(connection, peer)
        self._applications.add(application)
        self._selector.register(connection, selectors.EVENT_READ, application)

    def _refusal(self, peer: Peer) -> BrokerError | None:
        if not self._policy.admits(peer):
            return BrokerError(
                f"user {peer.uid} may not have rings",
                hint="start the broker with --allow-user or --allow-group for it",
                errno=errno.EACCES,
            )
        if len(self._applications) >= _CONNECTIONS_MAX:
            return BrokerError(
                f"it serves {_CONNECTIONS_MAX} connections, which is all it takes",
                hint="end some of its clients",
                errno=errno.EUSERS,
            )
        return None

    def _serve_one(self, application: _Application) -> None:
        """Answer one message. Descriptors that came along are the kernel's to close: none are asked for."""
        try:
            message = application.connection.recv(MESSAGE_MAX_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._drop(application)
            return
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
        name = None if application.interface is None else application.interface.name
        self._on_event(BrokerEvent("refused", application.peer, name, str(error)))
        self._send(application, encode_error(error))

    def _send(self, application: _Application, message: bytes, descriptors: Iterable[int] = ()) -> None:
        """A client that does not read what it asked for is not waited for."""
        try:
            socket.send_fds(application.connection, [message], list(descriptors))
        except OSError:
            self._drop(application)

    def _drop(self, application: _Application) -> None:
        """Take back what it had. The sockets are its own by now, and end with it."""
        if application.is_gone:
            return
        application.is_gone = True
        self._applications.discard(application)
        self._selector.unregister(application.connection)
        if application.steering is not None and application.interface is not None:
            application.steering.close()
            self._on_event(BrokerEvent("returned", application.peer, application.interface.name))
        application.connection.close()

    # ---- requests ----

    def _answer(self, application: _Application, request: Request) -> None:
        match request:
            case OpenRequest():
                self._lend(application, request)
            case RuleRequest():
                steering = _steering_of(application)
                if request.is_added:
                    steering.add_rule(request.address, request.port, _SLOT)
                else:
                    steering.remove_rule(request.address, request.port)
                self._send(application, encode({}))
            case AttachedRequest():
                self._send(application, encode({"attached": _steering_of(application).attached()}))
            case AskRequest():
                self._send(application, encode(self._facts()))

    def _facts(self) -> dict[str, Any]:
        held = held_capabilities()
        return {
            "capabilities": None if isinstance(held, Unknown) else sorted(held),
            "memlock_limit_bytes": memlock_limit_bytes(),
            "namespace": network_namespace(),
            "lent": {one.interface.name: str(one.peer) for one in self._applications if one.interface},
        }

    def _lend(self, application: _Application, request: OpenRequest) -> None:
        if application.steering is not None:
            raise BrokerError(
                "this connection has its rings already",
                hint="connect again for others",
                errno=errno.EALREADY,
            )
        interface = _interface(request)
        self._refuse_if_lent(interface)
        settings = request.settings
        self._check_size(interface, settings)
        steering = Steering.attach(interface, request.attach_mode, max_slots=1)
        try:
            with RingSet(interface, request.ring_mode, settings, lent=True) as ring_set:
                for queue, descriptor in ring_set.sockets.items():
                    steering.put_socket(_SLOT, queue, descriptor)
                rings = ring_set.lend()
                application.interface, application.steering = interface, steering
                self._on_event(BrokerEvent("lent", application.peer, interface.name))
                reply = encode({"shape": asdict(rings.shape)})
                self._send(application, reply, (rings.memory, *rings.sockets))
        except BaseException:
            application.interface = application.steering = None
            steering.close()
            raise

    def _refuse_if_lent(self, interface: Interface) -> None:
        for one in list(self._applications):
            if one.interface is None or one.interface.index != interface.index:
                continue
            if _has_hung_up(one.connection):
                self._drop(one)
                continue
            raise BrokerError(
                f"{interface.name} is lent to {one.peer}",
                hint="end that process, or use another interface, or the socket link",
                errno=errno.EBUSY,
            )

    def _check_size(self, interface: Interface, settings: RingSettings) -> None:
        queues = settings.queues or queue_count(interface) - settings.first_queue
        wanted = queues * (settings.receive_frames + settings.send_frames) * _FRAME_BYTES_MAX
        if wanted > self._policy.frames_max_bytes:
            raise BrokerError(
                f"{queues} queues of {settings.receive_frames} and {settings.send_frames} frames can take {wanted} "
                f"bytes, it lends {self._policy.frames_max_bytes}",
                hint="use fewer frames or queues, or start the broker with more --frames-max-mib",
                errno=errno.ENOBUFS,
            )


# ---- the listening socket ----


@contextlib.contextmanager
def listen_at(path: Path) -> Iterator[socket.socket]:
    """Make the socket at the path, over one that nobody listens at any more, and remove it afterwards.

    Every process may connect; the policy decides by its user whether it is served.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        _remove_stale(path)
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(_CONNECTIONS_MAX)
    except OSError as error:
        listener.close()
        raise BrokerError(
            f"listening at {path}: {os.strerror(error.errno or 0)}",
            hint="name another --path, in a directory that this user may write to",
            errno=error.errno or 0,
        ) from error
    except BaseException:
        listener.close()
        raise
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def inherited_listener() -> socket.socket | None:
    """Return the socket systemd listened at for us (LISTEN_FDS); None if it did not."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not os.environ.get("LISTEN_FDS"):
        return None
    if (count := os.environ["LISTEN_FDS"]) != "1":
        raise BrokerError(
            f"systemd passed {count} sockets", hint="give its unit exactly one ListenSequentialPacket="
        )
    listener = socket.socket(fileno=_FIRST_INHERITED)
    os.set_inheritable(_FIRST_INHERITED, False)
    if (listener.family, listener.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        raise BrokerError(
            "the socket systemd passed is of another kind", hint="use ListenSequentialPacket= in its unit"
        )
    return listener


def _remove_stale(path: Path) -> None:
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise BrokerError(
        f"a broker listens at {path} already", hint="end it, or name another --path", errno=errno.EADDRINUSE
    )


def _peer_of(connection: socket.socket) -> Peer:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("=iII"))
    pid, uid, gid = struct.unpack("=iII", credentials)
    others: Iterable[int] = ()
    with contextlib.suppress(OSError):
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
        others = (number for (number,) in struct.iter_unpack("=I", packed))
    return Peer(pid, uid, frozenset({gid, *others}))


def _has_hung_up(connection: socket.socket) -> bool:
    """Whether the other end is gone, though what it said before may still be unread."""
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _interface(request: OpenRequest) -> Interface:
    if request.namespace != network_namespace():
        raise BrokerError(
            "the broker is in another network namespace",
            hint="start one in the application's, and name its socket in link_xdp_broker",
            errno=errno.EXDEV,
        )
    return find_interface(request.interface)


def _steering_of(application: _Application) -> Steering:
    if application.steering is None:
        raise BrokerError("this connection has no rings", hint="open some first", errno=errno.ENOTCONN)
    return application.steering
