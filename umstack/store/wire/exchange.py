"""Keepalives, and the requests of a receiver that recovers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from umstack._engine.endpoint import Endpoint
from umstack.store.wire import option_types as layout
from umstack.store.wire.chain import (
    MalformedMessage,
    Option,
    ReceivedOptions,
    decode_alike,
    encode_alike,
    encode_chain,
    pack_endpoint,
    unpack_endpoint,
)
from umstack.store.wire.option_types import OptionType
from umstack.store.wire.registration import NO_TERMS, StoreTerms, decode_store_index
from umstack.store.wire.stores import (
    ConfigurationValue,
    configuration_options,
    decode_configuration,
    decode_number,
)

_NEEDS_RESPONSE, _TOPIC_NOT_SEEN = 0x40, 0x20
_OLDEST_SQN, _IS_LAST = "umstack_oldest_sqn", "umstack_is_last"

REQUESTS_MAXIMUM = 2000
"""Maximum number of retransmission requests in one message, so that they fit."""


class KeepaliveSender(IntEnum):
    """The party that sends a keepalive."""

    STORE = 0
    RECEIVER = 1
    SOURCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """The sender is alive; sent when it had nothing else to send for an interval."""

    sender: KeepaliveSender
    transport_index: int
    topic_index: int
    reg_id: int
    """Registration id of the client at the Store."""
    store_index: int
    needs_response: bool = False
    has_seen_topic: bool = True
    """From a Store: false if it has not found the source's topic, probably because of a misconfiguration."""
    terms: StoreTerms = NO_TERMS
    oldest_sqn: int | None = None
    """From a source: the oldest message that it may send again; the next one if it keeps none. A configuration value,
    which other implementations ignore."""
    is_last: bool = False
    """From a source: it ends, and sends no message again. A configuration value, too."""

    def encode(self) -> bytes:
        """Return the control message. Raises struct.error if a value is out of range."""
        values = list(self.terms.values(1))
        if self.oldest_sqn is not None:
            values.append(ConfigurationValue(_OLDEST_SQN, str(self.oldest_sqn), 1))
        if self.is_last:
            values.append(ConfigurationValue(_IS_LAST, "1", 1))
        flags = self.needs_response * _NEEDS_RESPONSE | (not self.has_seen_topic) * _TOPIC_NOT_SEEN
        body = layout.KEEPALIVE.pack(flags, self.sender, self.transport_index, self.topic_index, self.reg_id)
        return encode_chain([
            Option(OptionType.KEEPALIVE, body),
            Option(OptionType.STORE_ID, layout.STORE_ID.pack(self.store_index)),
            *configuration_options(values),
        ])  # fmt: skip

    @classmethod
    def decode(cls, received: ReceivedOptions) -> Keepalive:
        """Return the keepalive in these options. Raises MalformedMessage."""
        values = {value.name: value.value for value in decode_configuration(received)}
        oldest = values.get(_OLDEST_SQN)
        fields = received.one(OptionType.KEEPALIVE, layout.KEEPALIVE)
        assert fields is not None
        flags, sender, transport_index, topic_index, reg_id = fields
        if sender > KeepaliveSender.SOURCE:
            raise MalformedMessage(f"keepalive of type {sender}")
        return cls(
            sender=KeepaliveSender(sender),
            transport_index=transport_index,
            topic_index=topic_index,
            reg_id=reg_id,
            store_index=decode_store_index(received),
            needs_response=bool(flags & _NEEDS_RESPONSE),
            has_seen_topic=not flags & _TOPIC_NOT_SEEN,
            terms=StoreTerms.of(received),
            oldest_sqn=None if oldest is None else decode_number(_OLDEST_SQN, oldest),
            is_last=values.get(_IS_LAST) == "1",
        )


class RetransmissionRequest(NamedTuple):
    """A request for one message."""

    request_index: int
    sqn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetransmissionRequests:
    """A receiver requests messages of a source from a Store."""

    transport_index: int
    source_reg_id: int
    requests: tuple[RetransmissionRequest, ...]
    """At least one, at most REQUESTS_MAXIMUM."""
    response: Endpoint | None = None
    """The receiver's request port. Answers go over the connection of the request."""

    def encode(self) -> bytes:
        """Return the control message. Raises ValueError if there are too many, struct.error for other values."""
        ip, port = pack_endpoint(self.response)
        pack = layout.RETRANSMISSION_REQUEST.pack
        bodies = [
            pack(0, index, self.transport_index, self.source_reg_id, sqn, port, 0, ip)
            for index, sqn in self.requests
        ]
        return encode_alike(OptionType.RETRANSMISSION_REQUEST, bodies)

    @classmethod
    def decode(cls, received: ReceivedOptions) -> RetransmissionRequests:
        """Return the requests in these options. Raises MalformedMessage."""
        found = received.every(OptionType.RETRANSMISSION_REQUEST, layout.RETRANSMISSION_REQUEST)
        return cls._of(found)

    @classmethod
    def decode_alike(cls, message: bytes | memoryview) -> RetransmissionRequests | None:
        """Return the requests of a message with no other options, in a tenth of the time; None: it is another one.

        Raises MalformedMessage.
        """
        found = decode_alike(message, OptionType.RETRANSMISSION_REQUEST, layout.RETRANSMISSION_REQUEST)
        return cls._of(found) if found else None

    @classmethod
    def _of(cls, found: Sequence[tuple[Any, ...]]) -> RetransmissionRequests:
        if len({(each[2], each[3], each[5], each[7]) for each in found}) > 1:
            raise MalformedMessage("retransmission requests of several sources in one message")
        _, _, transport_index, source_reg_id, _, port, _, ip = found[0]
        return cls(
            transport_index=transport_index,
            source_reg_id=source_reg_id,
            requests=tuple(RetransmissionRequest(each[1], each[4]) for each in found),
            response=unpack_endpoint(ip, port),
        )


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """The range of messages that a Store or source has, in answer to a range request."""

    low_sqn: int
    high_sqn: int
    request_index: int

    def encode(self) -> bytes:
        """Return the control message. Raises struct.error if a value is out of range."""
        body = layout.LATE_JOIN_INFO.pack(0, self.low_sqn, self.high_sqn, self.request_index)
        return encode_chain([Option(OptionType.LATE_JOIN_INFO, body)])

    @classmethod
    def decode(cls, received: ReceivedOptions) -> RetainedRange:
        """Return the range in these options. Raises MalformedMessage."""
        fields = received.one(OptionType.LATE_JOIN_INFO, layout.LATE_JOIN_INFO)
        assert fields is not None
        return cls(*fields[1:])


__all__ = [
    "REQUESTS_MAXIMUM",
    "Keepalive",
    "KeepaliveSender",
    "RetainedRange",
    "RetransmissionRequest",
    "RetransmissionRequests",
]
