"""Notices to the service manager that started this process, as sd_notify(3) defines them."""

from __future__ import annotations

import os
import socket

_ADDRESS = "NOTIFY_SOCKET"


class ServiceManager:
    """The manager of a unit with `Type=notify`; without one, notices are not sent.

    It connects when it is made, because a process that has confined itself may no longer be allowed to.
    """

    def __init__(self) -> None:
        # Removed, so that no program that this process starts sends notices in its name.
        address = os.environ.pop(_ADDRESS, "")
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            # An address in the abstract namespace begins with a zero byte, which the environment cannot hold.
            self._socket.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)

    def announce_readiness(self) -> None:
        """Report that the service does its work from now on; the first call counts."""
        if self._socket is not None:
            self._socket.sendall(b"READY=1")
            self._socket.close()
            self._socket = None
