"""The trace of a simulated world as Python objects: datagrams on the wire and rows that applications read."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

_DATA_BYTES = 20
_NAK_BYTES = 12
_NCF_BYTES = 16
_RETRANSMISSION = 0x20
_LBTRU_OPTION_BYTES = 8


class Type(IntEnum):
    """The type of a datagram; STATUS is a DATA datagram sent to a NAK port."""

    DATA = 0
    SM = 2
    NAK = 3
    NCF = 4
    ACK = 5
    CREQ = 6
    RST = 7
    STATUS = 16
    UNKNOWN = 17


class Fate(IntEnum):
    """The fate of a datagram in a trace entry."""

    SENT = 0
    RECEIVED = 1
    DROPPED = 2


class DropReason(IntEnum):
    """The reason why a datagram did not arrive."""

    NONE = 0
    RULE = 1
    LOSS = 2
    CHECKSUM = 3
    PARTITION = 4
    INBOX = 5
    NO_PORT = 6
    NETWORK = 7


class NcfReason(IntEnum):
    """The reason why a source refuses a NAK (UM-132)."""

    NO_RETRY = 0
    IGNORED = 1
    RX_DELAY = 2
    SHED = 3
    UNKNOWN = 4
    """Any other number, for example of a corrupted datagram."""

    @classmethod
    def _missing_(cls, value: object) -> NcfReason:
        return cls.UNKNOWN


class Kind(IntEnum):
    """The kind of a row."""

    MESSAGE = 0
    BEGINNING_OF_SESSION = 1
    END_OF_SESSION = 2
    UNRECOVERABLE_LOSS = 3
    BURST_LOSS = 4
    CUT_LOOSE = 10


@dataclass(frozen=True, slots=True)
class Fragment:
    """A message of the topic layer in a datagram: an application message or a fragment of one."""

    topic_index: int
    sqn: int
    payload: bytes
    fragment: tuple[int, int, int] | None  # first sqn, offset, total length
    batch: int  # START 1, END 2


@dataclass(frozen=True, slots=True)
class Datagram:
    """A trace entry. All entries of a datagram have the same `serial`; `source` and `destination` are addresses
    and ports."""

    time_ns: int
    fate: Fate
    drop_reason: DropReason
    type: Type
    sender: int
    receiver: int
    session_id: int
    sqn: int
    trail: int
    lead: int
    retransmission: bool
    ncf_reason: NcfReason
    source: tuple[str, int]
    destination: tuple[str, int]
    serial: int
    data: bytes

    @property
    def sqns(self) -> list[int]:
        """The sqns listed in a NAK or NCF."""
        if self.type not in (Type.NAK, Type.NCF):
            return []
        is_nak = self.type is Type.NAK
        start, options = (_NAK_BYTES if is_nak else _NCF_BYTES), 0
        if self.data[1] != 0:  # only LBT-RU has options, behind the list
            start, options = start - 4, (2 if is_nak else 1) * _LBTRU_OPTION_BYTES
        whole = max(len(self.data) - start - options, 0) // 4 * 4  # forged datagrams may end anywhere
        return [n for (n,) in struct.iter_unpack(">I", self.data[start : start + whole])]

    @property
    def fragments(self) -> list[Fragment]:
        """The topic messages of a DATA datagram."""
        return [message for message in self._messages() if isinstance(message, Fragment)]

    @property
    def tsnis(self) -> list[tuple[int, int]]:
        """The (topic index, topic sqn) records of its TSNIs."""
        return [message for message in self._messages() if isinstance(message, tuple)]

    def _messages(self) -> list[Fragment | tuple[int, int]]:
        if self.type is not Type.DATA:
            return []
        found: list[Fragment | tuple[int, int]] = []
        at = _DATA_BYTES
        with suppress(struct.error):  # forged and damaged datagrams may end anywhere
            while at < len(self.data):
                kind, option, length = struct.unpack_from(">BBH", self.data, at)
                message = self.data[at : at + length]
                found.extend(_control(message, option) if kind == 8 else [_fragment(message, option)])
                at += max(length, 1)
        return found


def _control(message: bytes, option: int) -> list[tuple[int, int]]:
    if option != 32:
        return []
    return [(topic, sqn) for topic, sqn in struct.iter_unpack(">II", message[8:])]


def _fragment(message: bytes, option: int) -> Fragment:
    topic_index, sqn = struct.unpack_from(">II", message, 4)
    at, part, batch = 12, None, 0
    while option != 0:
        following, length, value = struct.unpack_from(">BBH", message, at)
        if option == 1:
            part = struct.unpack_from(">III", message, at + 4)
        elif option == 2:
            batch = (1 if value & 2 else 0) | (2 if value & 1 else 0)
        option, at = following, at + max(length, 1)
    return Fragment(topic_index, sqn, message[at:], part, batch)


@dataclass(frozen=True, slots=True)
class Row:
    """A row that the application of a receiver read."""

    time_ns: int
    kind: Kind
    receiver: int
    join: int
    sequence_number: int
    first_sequence_number: int
    fragment_offset: int
    message_length: int
    flags: int
    payload: bytes
