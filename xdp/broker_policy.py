"""Decides which processes, as identified by the kernel, the broker serves, and with which limits.

Nothing here relies on the client's messages: the kernel reports user, groups, process and network namespace of its
socket.
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

from umstack_xdp.errors import BrokerError

FRAMES_MAX_BYTES = 1 << 30
_SO_PEERGROUPS = 59
_GROUPS_BYTES = 1024  # 256 groups; Python reads no more of a socket option
_SIOCGSKNS = 0x894C
_UNPRIVILEGED = range(1024, 65536)


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as of its connect."""

    pid: int
    uid: int
    groups: frozenset[int]
    namespace: int | None
    """The network namespace of its socket, by inode; None if the kernel does not report it to this process."""
    name: str = "a process"
    """The process's own name: arbitrary bytes; escape it before display."""

    def __str__(self) -> str:
        """Return the name used in messages."""
        return f"{self.name} (pid {self.pid}, user {self.uid})"


def peer_of(connection: socket.socket) -> Peer:
    """Return the peer as the kernel reports it: the process that connected, even if it passed its socket on."""
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
    """Return the namespace of the accepted socket: the one in which its peer's socket was created."""
    try:
        descriptor = fcntl.ioctl(connection, _SIOCGSKNS)
    except OSError:  # this process lacks CAP_NET_ADMIN over that namespace, so it is not its own
        return None
    try:
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Policy:
    """The users that may have rings, their interfaces, ports and limits. Root and the broker's user always may."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    frames_max_bytes: int = FRAMES_MAX_BYTES
    """Locked memory of all rings of one user, until their sockets are closed."""
    interfaces: frozenset[str] | None = None
    """The interfaces that may be lent; None: all."""
    ports: tuple[range, ...] = (_UNPRIVILEGED,)
    """The UDP ports that may be steered; default: those that a user may bind."""
    connections_max: int = 64
    user_connections_max: int = 16
    """Maximum connections per user, except root and the broker's own user."""
    user_opens_max: int = 4
    """Maximum open requests per user that wait for a busy queue."""
    idle_timeout_s: float = 10.0
    """How long a connection without rings may be idle."""

    def admits(self, peer: Peer) -> bool:
        """Return true if the process may be served."""
        return peer.uid in self.users or self.is_privileged(peer) or bool(self.groups & peer.groups)

    def is_privileged(self, peer: Peer) -> bool:
        """Return true for root and the broker's own user, whom other users cannot displace."""
        return peer.uid in (0, os.geteuid())

    def check_interface(self, name: str) -> None:
        """Raise if the interface may not be lent."""
        if self.interfaces is not None and name not in self.interfaces:
            raise BrokerError(
                f"{name} is not lent",
                hint="start the broker with --interface for it, or use another",
                errno=errno.EACCES,
            )

    def check_port(self, port: int) -> None:
        """Raise if the port may not be steered."""
        if not any(port in ports for ports in self.ports):
            raise BrokerError(
                f"port {port} may not be steered",
                hint="use a port from 1024 on, or start the broker with --steer-ports for it",
                errno=errno.EACCES,
            )
