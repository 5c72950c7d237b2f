"""ByteWindow: bytes of a stream between the socket and the core, in one buffer that neither side copies."""

from __future__ import annotations

import socket
from typing import Any

from umstack._core import ffi


class ByteWindow:
    """A fixed buffer of which [begin, end) is filled. One thread."""

    __slots__ = ("_begin", "_capacity", "_end", "_memory", "_view")

    def __init__(self, capacity: int) -> None:
        self._memory = ffi.new("char[]", capacity)
        self._view = memoryview(ffi.buffer(self._memory, capacity))
        self._capacity = capacity
        self._begin = self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def held(self) -> int:
        """All bytes in it, seen or not."""
        return self._end - self._begin

    @property
    def pointer(self) -> Any:
        """The first byte."""
        return self._memory + self._begin

    @property
    def space(self) -> Any:
        """Where the next byte goes; `free_bytes` bytes are free there."""
        return self._memory + self._end

    @property
    def free_bytes(self) -> int:
        """Bytes free behind the filled ones, which move to the beginning when they leave little space."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin > self._capacity // 2:
            count = self._end - self._begin
            ffi.memmove(self._memory, self._memory + self._begin, count)
            self._begin, self._end = 0, count
        return self._capacity - self._end

    def show_next(self) -> bool:
        """Show what follows once all that is seen is used: whether it did. Here everything is seen at once."""
        return False

    def peek(self, count: int) -> bytes:
        """The first bytes, as many of them as there are."""
        return bytes(self._view[self._begin : min(self._begin + count, self._end)])

    @property
    def filled(self) -> memoryview:
        """The filled bytes, in place: valid until the next call that changes the window."""
        return self._view[self._begin : self._end]

    def consume(self, count: int) -> None:
        """The first bytes are used."""
        self._begin += count

    def fill(self, count: int) -> None:
        """So many bytes were written at `space`."""
        self._end += count

    def append(self, data: bytes) -> None:
        """Add bytes, for which there must be space."""
        self._view[self._end : self._end + len(data)] = data
        self._end += len(data)

    def receive(self, peer: socket.socket) -> int | None:
        """Receive once: bytes, 0 at the end of the stream or without space, None when nothing waits."""
        if self.free_bytes == 0:
            return None
        try:
            count = peer.recv_into(self._view[self._end :])
        except (BlockingIOError, InterruptedError):
            return None
        self._end += count
        return count

    def send(self, peer: socket.socket) -> None:
        """Send what the socket takes."""
        while self._begin < self._end:
            try:
                self._begin += peer.send(self._view[self._begin : self._end])
            except (BlockingIOError, InterruptedError):
                return
