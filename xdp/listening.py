"""Listening sockets of programs that serve processes of their host, at a path or as systemd passed them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from umstack_xdp.errors import BrokerError

_BACKLOG = 64
_FIRST_INHERITED = 3  # systemd's SD_LISTEN_FDS_START


@contextlib.contextmanager
def listen_at(path: Path) -> Iterator[socket.socket]:
    """Create the socket at the path, replacing one without a listener, and remove it afterwards.

    Every process may connect; the policy decides by its user whether it is served.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        _remove_stale(path)
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(_BACKLOG)
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
        with contextlib.suppress(PermissionError):  # another user's directory: the next listener replaces it
            path.unlink(missing_ok=True)


def inherited_listener() -> socket.socket | None:
    """Return the listening socket that systemd passed (LISTEN_FDS); None if there is none."""
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
        f"a process listens at {path} already", hint="end it, or name another --path", errno=errno.EADDRINUSE
    )
