"""How messages lie in a byte stream: as lines, or as records of a 4-byte big-endian length and that many bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Protocol

from umstack.errors import MessageTooLong, UmError

LENGTH = struct.Struct(">I")


class BrokenStream(UmError):
    """The input ends in the middle of a message."""

    default_hint = "each record is a 4-byte big-endian length and that many bytes"


class Splitter(Protocol):
    """Cuts a stream into messages, as its pieces come."""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages complete with this piece."""

    def end(self) -> list[bytes]:
        """Return the remaining data at the end of the stream."""


class LineSplitter:
    """A message is a line without its end; the last one may lack it."""

    def __init__(self, message_max_bytes: int) -> None:
        """Lines longer than this are refused."""
        self._max = message_max_bytes
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines complete with this piece."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._max or any(len(line) > self._max for line in lines):
            raise MessageTooLong(
                f"a line is longer than {self._max} bytes",
                hint="cut it, or send it with --files or --records",
            )
        return lines

    def end(self) -> list[bytes]:
        """A last line without an end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class RecordSplitter:
    """A message is a length and that many bytes."""

    def __init__(self, message_max_bytes: int) -> None:
        """Records longer than this are refused."""
        self._max = message_max_bytes
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The records complete with this piece."""
        data = self._rest + data
        messages, at = [], 0
        while len(data) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data, at)
            if length > self._max:
                raise MessageTooLong(
                    f"a record has {length} bytes, more than the maximum of {self._max}",
                    hint="check that the input is made of 4-byte big-endian lengths and as many bytes",
                )
            end = at + LENGTH.size + length
            if end > len(data):
                break
            messages.append(data[at + LENGTH.size : end])
            at = end
        self._rest = data[at:]
        return messages

    def end(self) -> list[bytes]:
        """Nothing may be left."""
        if self._rest:
            raise BrokenStream(f"the input ends {len(self._rest)} bytes into a record")
        return []


def join_lines(messages: Sequence[bytes]) -> bytes:
    """Each message as a line."""
    return b"\n".join([*messages, b""])


def join_records(messages: Sequence[bytes]) -> bytes:
    """Each message as a record."""

    def pieces() -> Iterator[bytes]:
        for message in messages:
            yield LENGTH.pack(len(message))
            yield message

    return b"".join(pieces())
