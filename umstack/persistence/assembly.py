"""Assembly: joins the fragments of messages that a Store has sent, and separates their properties."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from umstack.message_properties import NO_PROPERTIES, MessageProperties, is_sound, read_block
from umstack.persistence.reader_side import LostRange, ReadMessage

MESSAGE_BYTES_MAX = 64 << 20
"""Longer messages count as lost: no source can send one."""
FRAGMENTS_MAX = 1 << 18
"""The same for messages with more fragments: the shortest datagrams hold about 400 bytes."""


class RecoveredMessage(NamedTuple):
    """A message from a Store."""

    source_reg_id: int
    """Registration id of its source at the Store."""
    source_session_id: int
    """Session id of its source, the same at all Stores."""
    sqn: int
    """Number of its last fragment."""
    data: bytes
    first_sqn: int
    """Number of its first fragment; the same if it has only one."""
    properties: MessageProperties


Item = RecoveredMessage | LostRange


class Assembly:
    """The messages of one topic, whose fragments arrive in order of each source. One thread.

    A message of which a fragment is missing is dropped: the LostRange of that fragment reports it. One that its source
    did not finish, because it was killed, is reported as a LostRange of what there is.
    """

    def __init__(self) -> None:
        self._parts: dict[int, list[ReadMessage]] = {}
        """By session id of a source, the fragments of its unfinished message."""

    @property
    def unfinished(self) -> dict[int, int]:
        """By session id of a source, the number of the first fragment of its unfinished message."""
        return {session_id: parts[0].sqn for session_id, parts in self._parts.items()}

    def abandon(self) -> None:
        """Forget the unfinished messages: they are read again from their first fragments."""
        self._parts.clear()

    def take(self, items: Iterable[ReadMessage | LostRange]) -> list[Item]:
        """Return the messages and losses that are complete with these items, in order."""
        joined: list[Item] = []
        for item in items:
            if isinstance(item, LostRange):
                self._parts.pop(item.source_session_id, None)
                joined.append(item)
            elif item.stored.fragment is None and not self._parts:
                joined.append(_joined([item]))  # the path of nearly every message
            else:
                self._add(item, joined)
        return joined

    def _add(self, item: ReadMessage, joined: list[Item]) -> None:
        session_id, fragment = item.source_session_id, item.stored.fragment
        parts = self._parts.get(session_id)
        if parts and not _continues(parts, item):
            joined.append(LostRange(session_id, parts[0].sqn, parts[-1].sqn))
            del self._parts[session_id]
            parts = None
        if fragment is None:
            joined.append(_joined([item]))
        elif parts is None and (fragment.offset or fragment.total > MESSAGE_BYTES_MAX):
            return  # its first fragment was lost, or is before the start
        else:
            parts = self._parts.setdefault(session_id, [])
            parts.append(item)
            if fragment.offset + len(item.stored.payload) == fragment.total:
                joined.append(_joined(self._parts.pop(session_id)))


def _continues(parts: list[ReadMessage], item: ReadMessage) -> bool:
    """Return true if the item is the next fragment of the message, which may have another one."""
    last, fragment = parts[-1].stored, item.stored.fragment
    assert last.fragment is not None
    end = last.fragment.offset + len(last.payload)
    return len(parts) < FRAGMENTS_MAX and fragment == last.fragment._replace(offset=end)


def _joined(parts: list[ReadMessage]) -> RecoveredMessage:
    first, last = parts[0], parts[-1]
    data = first.stored.payload if len(parts) == 1 else b"".join(part.stored.payload for part in parts)
    properties, properties_bytes = NO_PROPERTIES, first.stored.properties_bytes
    if 0 < properties_bytes <= len(data):
        data, block = data[:-properties_bytes], data[-properties_bytes:]
        properties = read_block(block) if is_sound(block) else NO_PROPERTIES
    return RecoveredMessage(
        first.source_reg_id, first.source_session_id, last.sqn, data, first.sqn, properties
    )


__all__ = ["MESSAGE_BYTES_MAX", "Assembly", "Item", "RecoveredMessage"]
