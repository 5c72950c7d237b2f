"""ReceivedDatagrams: receives many topic resolution datagrams from a UDP socket per system call.

With a hundred advertising contexts, each receives a few thousand datagrams per second. Received one by one, each
would cost a system call and two acquisitions of the interpreter lock.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
from collections.abc import Iterator

from umstack._core import ffi, lib
from umstack._engine.core_address import ip_text
from umstack.sizing import UDP_PAYLOAD_MAXIMUM_BYTES

Address = tuple[str, int]
BATCH = 32
_STRIDE_BYTES = UDP_PAYLOAD_MAXIMUM_BYTES + 1


class ReceivedDatagrams:
    """The buffer of one receiver. One thread at a time."""

    __slots__ = ("_buffer", "_headers", "_view")

    def __init__(self) -> None:
        # Mapped memory, so that of several megabytes only the pages in use occupy memory.
        self._view = memoryview(mmap.mmap(-1, BATCH * _STRIDE_BYTES))
        self._buffer = ffi.from_buffer("uint8_t[]", self._view)
        self._headers = ffi.new("um_received_datagram[]", BATCH)

    def take(self, receiver: socket.socket) -> Iterator[tuple[bytes, Address]]:
        """Receive at most BATCH datagrams; they are valid until the next call. Raises OSError."""
        found = lib.um_datagram_receive(receiver.fileno(), self._buffer, _STRIDE_BYTES, self._headers, BATCH)
        if found < 0:
            if found in (-errno.EAGAIN, -errno.EINTR):
                return iter(())
            raise OSError(-found, os.strerror(-found))
        return (self._datagram(number) for number in range(found))

    def _datagram(self, number: int) -> tuple[bytes, Address]:
        header = self._headers[number]
        start = number * _STRIDE_BYTES
        return bytes(self._view[start : start + header.bytes]), (
            ip_text(header.source.ip),
            header.source.port,
        )
