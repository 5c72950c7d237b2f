"""Resumption: finds messages that sources sent while no recorder ran, by their sequence numbers.

A source numbers the fragments of a topic's messages without a gap. The journals contain the last recorded number of
each source; its first number after a restart of the recorder shows how many are between. Nothing is known about a
source that started or ended in between: a session that no recorder saw has no number to compare with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from umstack.events import BurstLoss, Message, UnrecoverableLoss
from umstack.recorder import tables
from umstack.recorder.errors import JournalError
from umstack.recorder.journal import JournalReader, arrow

if TYPE_CHECKING:
    from umstack.batch import Batch

_LOG = logging.getLogger(__name__)

LOOK_BACK_BYTES = 256 << 20
"""Bytes at a journal's end that are searched for last numbers: opening a recorder takes at most a second."""
_MODULUS, _HALF = 2**32, 2**31


class RecorderGap(NamedTuple):
    """A range of topic sequence numbers that a source sent while no recorder ran."""

    topic: str
    source: str
    first_sequence_number: int
    sequence_number: int

    @property
    def lost(self) -> int:
        """Number of sequence numbers in it."""
        return (self.sequence_number - self.first_sequence_number) % _MODULUS + 1


class Resumption:
    """Compares each source's first number with its last recorded one. One thread at a time."""

    def __init__(self, messages: JournalReader, events: JournalReader) -> None:
        """Read the last numbers. Journals of versions that stored no numbers have none."""
        self._last: dict[tuple[str, str], int] = {}
        for journal in (messages, events):
            for (topic, source), number in _last_numbers(journal).items():
                before = self._last.get((topic, source))
                if before is None or (number - before) % _MODULUS < _HALF:
                    self._last[topic, source] = number

    def gaps(self, batch: Batch) -> list[RecorderGap]:
        """The numbers missing before the first numbers of sources in this batch."""
        if not self._last:
            return []
        found = []
        numbers = list(batch.sources)
        for number in set(numbers):
            key = batch.topic_of(number), batch.source_of(number)
            if key not in self._last:
                continue
            rows = (batch[row] for row, of in enumerate(numbers) if of == number)
            first = next((one for row in rows if (one := _first_number(row)) is not None), None)
            if first is None:
                continue
            last = self._last.pop(key)
            # A number at or before the last one was sent again, for example by late join.
            if 0 < (first - last - 1) % _MODULUS < _HALF:
                found.append(RecorderGap(*key, (last + 1) % _MODULUS, (first - 1) % _MODULUS))
        return found


def _first_number(event: Any) -> int | None:
    if isinstance(event, Message | BurstLoss):
        return event.first_sequence_number
    return event.sequence_number if isinstance(event, UnrecoverableLoss) else None


def _last_numbers(journal: JournalReader) -> dict[tuple[str, str], int]:
    """The number of the last row of each topic and source in a journal."""
    pa = arrow()
    last: dict[tuple[str, str], int] = {}
    for batch in _whole_batches(journal):
        if not {"topic", "source", "sequence_number"} <= set(batch.schema.names):
            return {}
        table = pa.table({name: batch.column(name) for name in ("topic", "source", "sequence_number")})
        # An event without a number, such as the start of a session, must not hide a loss before it.
        numbered = table.filter(table["sequence_number"].is_valid())
        rows = numbered.group_by(["topic", "source"], use_threads=False).aggregate(
            [("sequence_number", "last")]
        )
        for row in rows.to_pylist():
            last[row["topic"], row["source"]] = row["sequence_number_last"]
    return last


def _whole_batches(journal: JournalReader) -> Iterator[Any]:
    """The batches at the end of a journal, up to a damaged one: damage must not keep a recorder from starting."""
    try:
        yield from journal.read(journal.offset_before_end(LOOK_BACK_BYTES))
    except JournalError as error:
        _LOG.warning("cannot determine the messages sent since the last recording: %s", error)


def gap_rows(gaps: list[RecorderGap], now_ns: int) -> Any:
    """The gaps as rows of the table of events."""
    rows = [
        {
            "time_ns": now_ns,
            "topic": gap.topic,
            "source": gap.source,
            "kind": "recorder_gap",
            "first_sequence_number": gap.first_sequence_number,
            "sequence_number": gap.sequence_number,
            "lost": gap.lost,
        }
        for gap in gaps
    ]
    return arrow().RecordBatch.from_pylist(rows, schema=tables.events().schema)
