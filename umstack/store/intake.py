"""Intake: passes the messages that a Store has received to its protocol, as far as there is space."""

from __future__ import annotations

from umstack._core import lib
from umstack.batch import Batch
from umstack.store.protocol import StoreSide
from umstack.store.repository import ReceivedRows


class Intake:
    """Stages received messages in order. One thread.

    Messages and fragments of a source that follow its newest one are staged in C, many at a time; others one by one.

    Args:
        side: The protocol of the Store.
    """

    def __init__(self, side: StoreSide) -> None:
        self._side = side
        self._batch: Batch | None = None
        self._rows: ReceivedRows | None = None
        self._at = 0
        """The next row."""
        self._names: dict[int, tuple[str, int]] = {}
        """Transport session and topic index by the batch's number of the source."""

    @property
    def is_waiting(self) -> bool:
        """True if rows wait for space."""
        return self._rows is not None

    def take(self, batch: Batch) -> None:
        """The next batch. None may be waiting."""
        if batch:
            self._batch, self._rows, self._at = batch, ReceivedRows(batch), 0

    def keep(self) -> bool:
        """Stage what waits, as far as there is space. Returns true if any was staged or left out."""
        rows, begin = self._rows, self._at
        if rows is None:
            return False
        while self._at < rows.count:
            kept = self._keep_some(rows, self._at)
            if not kept:
                break
            self._at += kept
        is_progress = self._at > begin
        if self._at == rows.count:
            self._batch = self._rows = None
            self._names.clear()
        return is_progress

    def _session(self, source: int) -> tuple[str, int]:
        found = self._names.get(source)
        if found is None:
            assert self._batch is not None
            transport, _, rest = self._batch.source_of(source).rpartition("[")
            found = self._names[source] = transport, int(rest[:-1])
        return found

    def _keep_some(self, rows: ReceivedRows, at: int) -> int:
        """Stage messages from a row on, or leave out an event. Returns how many rows; 0: no space now."""
        if lib.um_row_kind_of(rows.flags[at]) != lib.UM_ROW_MESSAGE:
            return 1  # the source of an event may be no transport session
        transport, topic_index = self._session(rows.sources[at])
        if kept := self._side.rows(transport, topic_index, rows, at):
            return kept
        data = rows.message(at, topic_index)
        return int(self._side.data(transport, topic_index, data, rows.received_ns[at]))


__all__ = ["Intake"]
