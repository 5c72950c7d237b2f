"""Which processes the broker serves, as the kernel identifies them, and its limits.

Nothing here relies on the client's messages: user, groups, process and network namespace are the kernel's facts about
its socket.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from xdp.errors import BrokerError

FRAMES_MAX_BYTES = 1 << 30
_SO_PEERGROUPS = 59
_GROUPS_BYTES = 1024  # of 256 groups; Python reads no more of an option
_SIOCGSKNS = 0x894C
_UNPRIVILEGED = range(1024, 65536)


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as it was when it connected."""

    pid: int
    uid: int
    groups: frozenset[int]
    namespace: int | None
    """The network namespace of its socket, by inode; None where the kernel does not let this process know."""
    name: str = "a process"
    """Its own name: any bytes; escape it before display."""

    def __str__(self) -> str:
        """Name it as messages do."""
        return f"{self.name} (pid {self.pid}, user {self.uid})"


def peer_of(connection: socket.socket) -> Peer:
    """Ask the kernel who connected. A process that has passed its socket on stays the peer."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("=iII"))
    pid, uid, gid = struct.unpack("=iII", credentials)
    others: Iterable[int] = ()
    with contextlib.suppress(OSError):
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
        others = (number for (number,) in struct.iter_unpack("=I", packed))
    name = "a process"
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_bytes().removesuffix(b"\n").decode(errors="backslashreplace")
    return Peer(pid, uid, frozenset({gid, *others}), _namespace_of(connection), name)


def _namespace_of(connection: socket.socket) -> int | None:
    """An accepted socket is of the namespace of the socket that connected, whatever the process is in by now."""
    try:
        descriptor = fcntl.ioctl(connection, _SIOCGSKNS)
    except OSError:  # a namespace over which this process has no CAP_NET_ADMIN, so not its own
        return None
    try:
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Policy:
    """Which users may have rings, of what, and how much. Root and the broker's own user are always served."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    frames_max_bytes: int = FRAMES_MAX_BYTES
    """Of all rings of one user, until their sockets are closed: memory that is locked."""
    interfaces: frozenset[str] | None = None
    """The interfaces that are lent; None: every one."""
    ports: tuple[range, ...] = (_UNPRIVILEGED,)
    """The UDP ports that may be steered: those that a user may bind, by default."""
    connections_max: int = 64
    user_connections_max: int = 16
    """Of a user other than root and the broker's own."""
    user_opens_max: int = 4
    """Open requests of a user that wait for a busy queue."""
    idle_timeout_s: float = 10.0
    """How long a connection without rings may say nothing."""

    def admits(self, peer: Peer) -> bool:
        """True if the process may be served."""
        return peer.uid in self.users or self.is_privileged(peer) or bool(self.groups & peer.groups)

    def is_privileged(self, peer: Peer) -> bool:
        """True if it is root or the broker's own user, whom no other user keeps out."""
        return peer.uid in (0, os.geteuid())

    def check_interface(self, name: str) -> None:
        """Refuse an interface that is not lent."""
        if self.interfaces is not None and name not in self.interfaces:
            raise BrokerError(
                f"{name} is not lent",
                hint="start the broker with --interface for it, or use another",
                errno=errno.EACCES,
            )

    def check_port(self, port: int) -> None:
        """Refuse a port that is not steered."""
        if not any(port in ports for ports in self.ports):
            raise BrokerError(
                f"port {port} may not be steered",
                hint="use a port from 1024 on, or start the broker with --steer-ports for it",
                errno=errno.EACCES,
            )
