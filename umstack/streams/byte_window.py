"""ByteWindow: bytes of a stream between the socket and the core, in one buffer that neither side copies."""

from __future__ import annotations

import socket
from typing import Any

from umstack._core import ffi


class ByteWindow:
    """A fixed buffer; bytes [begin, end) are filled. Used by one thread."""

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
        """Number of bytes in the window, including unverified ones."""
        return self._end - self._begin

    @property
    def pointer(self) -> Any:
        """Pointer to the first byte."""
        return self._memory + self._begin

    @property
    def space(self) -> Any:
        """Pointer to the next free byte; `free_bytes` bytes are free there."""
        return self._memory + self._end

    @property
    def free_bytes(self) -> int:
        """Number of free bytes. Moves the filled bytes to the start if little space is left after them."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin > self._capacity // 2:
            count = self._end - self._begin
            ffi.memmove(self._memory, self._memory + self._begin, count)
            self._begin, self._end = 0, count
        return self._capacity - self._end

    def show_next(self) -> bool:
        """Show the next record once all shown bytes are consumed; return true if shown. Here all bytes are shown."""
        return False

    def peek(self, count: int) -> bytes:
        """Return the first bytes, at most `count`."""
        return bytes(self._view[self._begin : min(self._begin + count, self._end)])

    @property
    def filled(self) -> memoryview:
        """View of the filled bytes, valid until the next call that changes the window."""
        return self._view[self._begin : self._end]

    def consume(self, count: int) -> None:
        """Remove the first `count` bytes."""
        self._begin += count

    def fill(self, count: int) -> None:
        """Account for `count` bytes written at `space`."""
        self._end += count

    def append(self, data: bytes) -> None:
        """Append bytes; the caller has checked that they fit."""
        self._view[self._end : self._end + len(data)] = data
        self._end += len(data)

    def receive(self, peer: socket.socket) -> int | None:
        """Receive once. Return the number of bytes, 0 at the end of the stream or if the window is full, or None if
        no data is waiting."""
        if self.free_bytes == 0:
            return None
        try:
            count = peer.recv_into(self._view[self._end :])
        except (BlockingIOError, InterruptedError):
            return None
        self._end += count
        return count

    def send(self, peer: socket.socket) -> None:
        """Send as much as the socket accepts."""
        while self._begin < self._end:
            try:
                self._begin += peer.send(self._view[self._begin : self._end])
            except (BlockingIOError, InterruptedError):
                return
