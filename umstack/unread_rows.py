"""UnreadRows: rows that a reader took from its queue and has not yet given to the application."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint

from umstack.batch import Batch, event_of
from umstack.events import Event, Message


class UnreadRows:
    """A position in a batch, shared by every iterator of the reader.

    The iterators consume one another's rows, so that a row is yielded once, and a row that no iterator reached is
    returned by rest(). The rows become objects when the first iterator starts.
    """

    __slots__ = ("_batch", "_payloads", "_rows")

    def __init__(self, batch: Batch) -> None:
        """Start before the first row."""
        self._batch = batch
        self._payloads: Iterator[bytes] = iter(())
        self._rows: Iterator[Message] | None = None

    @property
    def batch(self) -> Batch:
        """The whole batch."""
        return self._batch

    def is_message_only(self) -> bool:
        """Return True if no row of the batch is an event."""
        return self._batch.event_count == 0

    def rows(self) -> Iterator[Message]:
        """Return the iterator over the rows not yet yielded, events included as the messages they are stored as.

        It is no generator: closing a generator that delegates to it does not end it.
        """
        if self._rows is None:
            self._payloads = iter(self._batch.payloads())
            self._rows = self._batch._rows_of(self._payloads)
        return self._rows

    def events(self) -> Iterator[Event]:
        """Return an iterator over the same rows, each as its typed object."""
        return self.rows() if self.is_message_only() else map(event_of, self.rows())

    def has_rows(self) -> bool:
        """Return True if a row is left."""
        return self._left() > 0

    def yielded(self) -> int:
        """Return how many rows of the batch iterators have yielded."""
        return len(self._batch) - self._left()

    def _left(self) -> int:
        # The hint of a list iterator is the exact number.
        return len(self._batch) if self._rows is None else length_hint(self._payloads)

    def rest(self) -> Batch:
        """Return the rows not yet yielded as a batch, and end every iterator over them."""
        if self._rows is None:
            count = len(self._batch)
            self._rows = iter(())
        else:
            # One step of the interpreter, so that no other thread gets a row meanwhile.
            count = len(list(self._payloads))
        return self._batch._split(len(self._batch) - count)
