"""Framing of messages in a byte stream: lines, or records with a 4-byte big-endian length."""

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
    """Cuts a stream into messages as its pieces arrive."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that this piece completes."""

    def end(self) -> list[bytes]:
        """Return the remaining data at the end of the stream."""


class LineSplitter:
    """A message is a line without its terminator, which is optional on the last line."""

    def __init__(self, message_max_bytes: int) -> None:
        """Lines longer than this are refused."""
        self._max = message_max_bytes
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that this piece completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._max or any(len(line) > self._max for line in lines):
            raise MessageTooLong(
                f"a line is longer than {self._max} bytes",
                hint="split it, or send it with --files or --records",
            )
        return lines

    def end(self) -> list[bytes]:
        """Return a last line that has no terminator."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class RecordSplitter:
    """A message is a 4-byte length and its payload."""

    def __init__(self, message_max_bytes: int) -> None:
        """Records longer than this are refused."""
        self._max = message_max_bytes
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that this piece completes."""
        data = self._rest + data
        messages, at = [], 0
        while len(data) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data, at)
            if length > self._max:
                raise MessageTooLong(
                    f"a record has {length} bytes, more than the maximum of {self._max}",
                    hint="check that each record starts with its length in 4 bytes, big-endian",
                )
            end = at + LENGTH.size + length
            if end > len(data):
                break
            messages.append(data[at + LENGTH.size : end])
            at = end
        self._rest = data[at:]
        return messages

    def end(self) -> list[bytes]:
        """Raise BrokenStream if a record is incomplete."""
        if self._rest:
            raise BrokenStream(f"the input ends {len(self._rest)} bytes into a record")
        return []


def join_lines(messages: Sequence[bytes]) -> bytes:
    """Return each message as a line."""
    return b"\n".join([*messages, b""])


def join_records(messages: Sequence[bytes]) -> bytes:
    """Return each message as a record."""

    def pieces() -> Iterator[bytes]:
        for message in messages:
            yield LENGTH.pack(len(message))
            yield message

    return b"".join(pieces())
