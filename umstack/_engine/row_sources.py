"""RowSources: maps the source numbers in the rows of a queue to topics and sources."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from umstack.errors import Unsupported

if TYPE_CHECKING:
    import pyarrow

_RECYCLED_TOGETHER = 256
"""Numbers that wait until their rows are read, before the first look for those that need not wait any more."""


@dataclass(slots=True)
class RowOwner:
    """The state of the subscription that delivers the rows. It refers to nothing: a reference to the subscription would
    keep a closed queue, its memory and its descriptor, until the next collection of cycles."""

    closed: bool = False


class SourceTable:
    """Topics, names and owners by number. A batch keeps the table that was in force when it was read."""

    __slots__ = ("_encoded", "changes", "names", "owners", "topics")

    def __init__(self, topics: list[str], names: list[str], owners: list[RowOwner | None]) -> None:
        self.topics, self.names, self.owners = topics, names, owners
        self.changes = 0
        self._encoded: tuple[int, pyarrow.DictionaryArray, pyarrow.DictionaryArray] | None = None

    def set(self, number: int, topic: str, name: str, owner: RowOwner | None) -> None:
        """Set the entry of a number that no row in memory has; the number may be the next new one."""
        if number == len(self.names):
            self.owners.append(owner)
            self.topics.append(topic)
            self.names.append(name)
        else:
            self.owners[number], self.topics[number], self.names[number] = owner, topic, name
        self.changes += 1

    def as_arrow(self) -> tuple[pyarrow.DictionaryArray, pyarrow.DictionaryArray]:
        """Return topics and names as Arrow dictionary arrays with one entry per number."""
        try:
            import pyarrow as pa
        except ImportError:
            raise Unsupported("to_arrow needs pyarrow", hint="pip install 'umstack[arrow]'") from None
        changes, count = self.changes, len(self.names)
        if self._encoded is None or self._encoded[0] != changes:
            topics, names = (
                pa.array(column[:count], pa.string()).dictionary_encode()
                for column in (self.topics, self.names)
            )
            self._encoded = (changes, topics, names)
        return self._encoded[1:]


class RowSources:
    """The numbers of the sources mapped to receivers of a queue.

    A number is used again only if no row with it can be read any more: at once if the source delivered none, otherwise
    after the queue's reader has taken the last one, and then in a new table, because batches may outlive that. Until
    then a source that returns gets its old number. Any thread may add sources and look up numbers.
    """

    __slots__ = (
        "_free",
        "_last_rows",
        "_lock",
        "_numbers",
        "_retired",
        "_uses",
        "is_due",
        "recycles",
        "table",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.table = SourceTable([], [], [])
        self.recycles = True
        """False: numbers with rows are never used again, because rows do not leave the queue in order."""
        self.is_due = False
        """True if the reader should call recycle()."""
        self._numbers: dict[tuple[str, str], int] = {}
        self._uses: dict[int, int] = {}
        self._last_rows: dict[int, int] = {}
        self._retired: set[int] = set()
        self._free: list[int] = []

    def number(self, topic: str, name: str, owner: RowOwner | None = None) -> int:
        """Return the number for rows of this topic and source name, which retire() ends. `owner` delivers them now."""
        with self._lock:
            number = self._numbers.get((topic, name))
            if number is None:
                number = self._free.pop() if self._free else len(self.table.names)
                self._numbers[topic, name] = number
                self.table.set(number, topic, name, owner)
            elif owner is not None:
                self.table.owners[number] = owner
            self._retired.discard(number)
            self._uses[number] = self._uses.get(number, 0) + 1
            return number

    def retire(self, number: int, rows: int = 0) -> str:
        """Undo one number() and return the source's name.

        Args:
            number: The number.
            rows: How many rows the queue had when the last row of the source was in it. 0: the source delivered none.
        """
        with self._lock:
            name = self.table.names[number]
            self._last_rows[number] = rows = max(rows, self._last_rows.get(number, 0))
            self._uses[number] -= 1
            if self._uses[number] == 0 and rows == 0:
                self._release(number)
            elif self._uses[number] == 0 and self.recycles:
                self._retired.add(number)
                self.is_due = len(self._retired) >= max(_RECYCLED_TOGETHER, len(self.table.names) // 4)
            return name

    def recycle(self, taken_rows: int) -> None:
        """Make numbers available whose rows are among the first `taken_rows`; for the reader of the queue."""
        with self._lock:
            self.is_due = False
            read = [one for one in self._retired if self._last_rows[one] <= taken_rows]
            if not read:
                return
            old = self.table
            self.table = SourceTable([*old.topics], [*old.names], [*old.owners])
            for number in read:
                self._retired.remove(number)
                self._release(number)

    def _release(self, number: int) -> None:
        del self._numbers[self.table.topics[number], self.table.names[number]]
        del self._uses[number], self._last_rows[number]
        self.table.set(number, "", "", None)
        self._free.append(number)
