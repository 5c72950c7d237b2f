"""The reader's side of persistence: gets the messages of a topic from a Store, oldest first, from its last ack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from umstack.persistence.messages import StoredData, data_of, extended
from umstack.persistence.pacing import REPLAY_NAME
from umstack.persistence.replay_start import ReplayStart
from umstack.store.wire import (
    RECOVERED,
    ConfigurationValue,
    ConsumptionAck,
    Keepalive,
    KeepaliveSender,
    MalformedMessage,
    Registration,
    RegistrationError,
    RegistrationResponse,
    RetainedRange,
    RetransmissionRequest,
    RetransmissionRequests,
    SourceRegistrationInformation,
    decode,
)

_SPACE = 1 << 32
_WINDOW = 1024
"""Maximum number of messages requested and not yet answered."""
RETRY_NS = 200_000_000
"""Time after which a message that the Store does not have yet is requested again."""
_INDEX_BITS = 20
"""Lower bits of a request index: those of the sqn. The upper bits are the number of the source."""
_INDEX_MASK = (1 << _INDEX_BITS) - 1


class ReadMessage(NamedTuple):
    """A message from a Store, or a fragment of one."""

    source_reg_id: int
    """Registration id of its source at the Store."""
    source_session_id: int
    """Session id of its source, the same at all Stores."""
    sqn: int
    stored: StoredData


class LostRange(NamedTuple):
    """Messages that the Store can never get: it has dropped them, or marked them lost."""

    source_session_id: int
    """Session id of their source."""
    first_sqn: int
    last_sqn: int


@dataclass(slots=True)
class _Source:
    """One source of the topic, and how far its messages have been read."""

    reg_id: int
    """At the Store."""
    index: int
    """Its number in this reader's requests."""
    receiver_reg_id: int = 0
    session_id: int = 0
    is_registered: bool = False
    is_empty: bool = True
    """The Store has no message of it."""
    has_messages: bool = False
    """The Store had messages to deliver when it answered."""
    begins_at_ack: bool = False
    """Its first message is the one after the last acknowledgement, not one that the reader named or the oldest."""
    next_sqn: int = 0
    """The next message to deliver."""
    asked_sqn: int = 0
    """The next message to request."""
    high_sqn: int = -1
    acknowledged_sqn: int | None = None
    """The last one acknowledged over this connection."""
    waiting: dict[int, StoredData | int] = field(default_factory=dict)
    """Answers from `next_sqn` on: a message, or the end of the lost ones that begin here."""
    expected: dict[int, int] = field(default_factory=dict)
    """Messages that the Store does not have yet, and when to request each again."""


class ReaderSide:
    """Reads what a Store has of a topic, until the newest message at the time of registration. One thread.

    Messages of one source are returned in the order of their numbers. One that the Store expects is requested again
    until it arrives; only those that the Store can never get are skipped, and returned as LostRange.
    """

    def __init__(
        self,
        topic: str,
        session_id: int,
        start: ReplayStart | None = None,
        only: LostRange | None = None,
        positions: Mapping[int, int] | None = None,
    ) -> None:
        """Register for every source of a topic.

        Args:
            topic: Name of the topic.
            session_id: Identifies the reader at the Store.
            start: First message; None: the one after its last acknowledgement.
            only: Read only these messages, which another Store has lost.
            positions: By session id, the next number of sources that have been read from another Store.
        """
        self.topic = topic
        self._start = start
        self._only = only
        self._positions = positions or {}
        self.session_id = session_id
        self._sources: dict[int, _Source] = {}
        self._is_listed = False
        self.error: RegistrationError | None = None
        """Why the Store refused the reader; SOURCE_NOT_FOUND: it has no source of the topic."""
        self._output: list[bytes] = [self._registration(0, 0)]
        self._items: list[ReadMessage | LostRange] = []
        self.is_confirmed = False
        """The Store has received the acknowledgements before confirm()."""

    def take_output(self) -> bytes:
        """Return and forget the bytes to send to the Store."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def take(self) -> list[ReadMessage | LostRange]:
        """Return and forget the messages that can be delivered and those that are lost, in order; request more."""
        items, self._items = self._items, []
        self._request()
        return items

    @property
    def expected(self) -> LostRange | None:
        """The message for which the reader waits, because the Store does not have it yet."""
        for source in self._sources.values():
            if source.next_sqn in source.expected:
                return LostRange(source.session_id, source.next_sqn % _SPACE, source.next_sqn % _SPACE)
        return None

    def acknowledged(self) -> dict[int, int]:
        """Return where the next Store continues, by session id of each source that this reader acknowledged before.

        A source that it did not acknowledge has no place here: this Store may have nothing of it to deliver.
        """
        return {one.session_id: one.next_sqn % _SPACE for one in self._sources.values() if one.begins_at_ack}

    def tick(self, now_ns: int) -> None:
        """Request again what the Store did not have a while ago."""
        for source in self._sources.values():
            due = [sqn for sqn, at_ns in source.expected.items() if now_ns >= at_ns]
            for sqn in due:
                del source.expected[sqn]
            self._ask(source, due)

    @property
    def is_complete(self) -> bool:
        """True once every message was returned, or the Store refused the reader."""
        return self.error is not None or (self.is_registered and self._is_read and not self._items)

    @property
    def _is_read(self) -> bool:
        """True if nothing is left to request of the sources that are registered."""
        return all(one.next_sqn > one.high_sqn for one in self._sources.values() if one.is_registered)

    @property
    def is_registered(self) -> bool:
        """True once the Store has answered for each source of the topic."""
        return self._is_listed and all(one.is_registered for one in self._sources.values())

    def acknowledge(self, taken: Mapping[int, int]) -> None:
        """Acknowledge each source that the Store has, as far as the application took its messages from any Store.

        A source without a message to deliver is acknowledged, too: a reader with the same session id that follows
        then begins with the next message, and not with the oldest.

        Args:
            taken: By session id of a source, the number behind the last message or lost range that was taken.
        """
        for source in self._sources.values():
            if not source.is_registered or source.is_empty:
                continue
            next_sqn = taken.get(source.session_id, None if source.has_messages else source.next_sqn)
            if next_sqn is None:
                continue
            sqn = (next_sqn - 1) % _SPACE
            if sqn == source.acknowledged_sqn:
                continue
            source.acknowledged_sqn = sqn
            ack = ConsumptionAck(
                transport_index=source.index,
                source_reg_id=source.reg_id,
                receiver_reg_id=source.receiver_reg_id,
                sqn=sqn,
                store_index=0,
            )
            self._output.append(ack.encode())

    def confirm(self) -> None:
        """Ask the Store for an answer to all acknowledgements so far; `is_confirmed` becomes true with it."""
        asked = Keepalive(
            sender=KeepaliveSender.RECEIVER,
            transport_index=0,
            topic_index=0,
            reg_id=0,
            store_index=0,
            needs_response=True,
        )
        self._output.append(asked.encode())

    def received(self, message: bytes, now_ns: int) -> None:
        """A message of the Store arrived. Raises MalformedMessage."""
        if message[0] == RECOVERED:
            self._on_recovered(message)
            return
        control = decode(message)
        if isinstance(control, SourceRegistrationInformation):
            self._on_sources(control)
        elif isinstance(control, RegistrationResponse):
            self._on_response(control)
        elif isinstance(control, RetainedRange):
            self._on_missing(control, now_ns)
        elif isinstance(control, Keepalive):
            self.is_confirmed = True

    def _registration(self, source_reg_id: int, index: int) -> bytes:
        return Registration(
            is_source=False,
            transport_index=index,
            topic_index=0,
            source_reg_id=source_reg_id,
            session_id=self.session_id,
            topic=self.topic,
            configuration=(
                ConfigurationValue(REPLAY_NAME, "1", 2),
                *(() if self._start is None else self._start.values()),
            ),
        ).encode()

    def forget(self) -> None:
        """Let the Store delete what it knows of this reader."""
        for source in self._sources.values():
            if source.is_registered:
                wanted = Registration(
                    is_source=False,
                    transport_index=source.index,
                    topic_index=0,
                    reg_id=source.receiver_reg_id,
                    source_reg_id=source.reg_id,
                    session_id=self.session_id,
                    topic=self.topic,
                    is_deregistration=True,
                )
                self._output.append(wanted.encode())

    def _on_sources(self, listed: SourceRegistrationInformation) -> None:
        if self._is_listed:
            raise MalformedMessage("a second list of sources")
        self._is_listed = True
        for entry in listed.stores:
            self._sources[entry.source_reg_id] = _Source(entry.source_reg_id, len(self._sources))
        for source in self._sources.values():
            self._output.append(self._registration(source.reg_id, source.index))

    def _on_response(self, response: RegistrationResponse) -> None:
        if response.is_deregistration:
            return
        if response.error is not None:
            self.error = response.error
            return
        source = self._source_at(response.transport_index)
        if source.is_registered:
            raise MalformedMessage("a second answer to a registration")
        source.is_registered, source.receiver_reg_id = True, response.reg_id
        high = response.high_sqn + _SPACE
        low = extended(response.low_sqn, high)
        source.session_id = response.terms.source_session_id
        source.high_sqn = high if low <= high + 1 else low - 1
        source.is_empty = low == high + 1 == 2 * _SPACE  # a Store without a message answers 0 and -1
        source.begins_at_ack = response.is_known and self._start is None and not source.is_empty
        if source.session_id in self._positions:
            position = extended(self._positions[source.session_id], high)
            low = max(low, position) if source.begins_at_ack else position
        source.has_messages = low <= source.high_sqn
        if self._only is not None:
            low = extended(self._only.first_sqn, high)
            last = extended(self._only.last_sqn, high)
            is_meant = source.session_id == self._only.source_session_id
            source.high_sqn = min(source.high_sqn, last) if is_meant else low - 1
        source.next_sqn = source.asked_sqn = low
        self._request()

    def _source_at(self, index: int) -> _Source:
        for source in self._sources.values():
            if source.index == index:
                return source
        raise MalformedMessage(f"an answer for source {index}, which was not requested")

    def _reading(self) -> _Source:
        """Return the source that is read: one at a time, because a recovered message does not name its source."""
        for source in self._sources.values():
            if source.is_registered and source.next_sqn <= source.high_sqn:
                return source
        raise MalformedMessage("a message that was not requested")

    def _request(self) -> None:
        """Request messages of the source that is read, once half of the window is free."""
        if not self.is_registered or self._is_read:
            return
        source = self._reading()
        end = min(source.high_sqn + 1, source.next_sqn + _WINDOW)
        if (
            end - source.asked_sqn < min(_WINDOW // 2, source.high_sqn + 1 - source.asked_sqn)
            or end == source.asked_sqn
        ):
            return
        sqns = range(source.asked_sqn, end)
        source.asked_sqn = end
        self._ask(source, sqns)

    def _ask(self, source: _Source, sqns: Sequence[int]) -> None:
        if not sqns:
            return
        upper = source.index << _INDEX_BITS
        requests = tuple(RetransmissionRequest(upper | sqn & _INDEX_MASK, sqn % _SPACE) for sqn in sqns)
        asked = RetransmissionRequests(
            transport_index=source.index, source_reg_id=source.reg_id, requests=requests
        )
        self._output.append(asked.encode())

    def _on_recovered(self, message: bytes) -> None:
        data = data_of(message)
        source = self._reading()
        self._take(source, extended(data.sqn, source.next_sqn), data)

    def _on_missing(self, answer: RetainedRange, now_ns: int) -> None:
        source = self._source_at(answer.request_index >> _INDEX_BITS)
        distance = (answer.request_index - source.next_sqn) & _INDEX_MASK
        if distance > _INDEX_MASK >> 1:
            return  # it was skipped since it was requested
        sqn = source.next_sqn + distance
        end = extended(answer.low_sqn, sqn)
        if end > sqn:
            self._take(source, sqn, end)
        elif sqn < source.asked_sqn:
            source.expected[sqn] = now_ns + RETRY_NS

    def _take(self, source: _Source, sqn: int, answer: StoredData | int) -> None:
        if sqn >= source.asked_sqn:
            raise MalformedMessage(f"an answer for message {sqn}, which was not requested")
        if sqn == source.next_sqn and not source.waiting and not isinstance(answer, int):
            self._deliver(source, answer)
        elif sqn >= source.next_sqn:
            source.waiting[sqn] = answer
        while (found := source.waiting.pop(source.next_sqn, None)) is not None:
            if isinstance(found, int):
                self._skip(source, min(found, source.high_sqn + 1))
            else:
                self._deliver(source, found)
        if source.next_sqn > source.high_sqn:
            self._request()

    def _deliver(self, source: _Source, data: StoredData) -> None:
        sqn = source.next_sqn % _SPACE
        self._items.append(ReadMessage(source.reg_id, source.session_id, sqn, data))
        source.next_sqn += 1

    def _skip(self, source: _Source, end: int) -> None:
        """Continue behind lost messages."""
        self._items.append(LostRange(source.session_id, source.next_sqn % _SPACE, (end - 1) % _SPACE))
        for sqn in [sqn for sqn in source.expected if sqn < end]:
            del source.expected[sqn]
        for sqn in [sqn for sqn in source.waiting if sqn < end]:
            del source.waiting[sqn]
        source.next_sqn, source.asked_sqn = end, max(end, source.asked_sqn)
