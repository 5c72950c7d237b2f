"""RowSources: maps the source numbers in the rows of a queue to topics and sources."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from umstack.errors import Unsupported

if TYPE_CHECKING:
    import pyarrow


class RowOwner(Protocol):
    """The subscription that delivers the rows."""

    closed: bool


class RowSources:
    """Topics and names of the sources mapped to receivers of the queue, by number.

    A number is never reused for another source, because rows with that number may be read at any time. A source that
    returns gets its old number. Any thread may add sources and look up numbers.
    """

    __slots__ = ("_adding", "_encoded", "_numbers", "names", "owners", "topics")

    def __init__(self) -> None:
        self._adding = threading.Lock()
        self.topics: list[str] = []
        self.names: list[str] = []
        self.owners: list[RowOwner | None] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._encoded: tuple[int, pyarrow.DictionaryArray, pyarrow.DictionaryArray] | None = None

    def number(self, topic: str, name: str, owner: RowOwner | None = None) -> int:
        """Return the number for rows of this topic and source name. `owner` delivers them from now on."""
        with self._adding:
            number = self._numbers.setdefault((topic, name), len(self.names))
            if number == len(self.names):
                self.owners.append(owner)
                self.topics.append(topic)
                self.names.append(name)
            if owner is not None:
                self.owners[number] = owner
            return number

    def as_arrow(self) -> tuple[pyarrow.DictionaryArray, pyarrow.DictionaryArray]:
        """Return topics and names as Arrow dictionary arrays with one entry per number."""
        try:
            import pyarrow as pa
        except ImportError:
            raise Unsupported("to_arrow needs pyarrow", hint="pip install 'umstack[arrow]'") from None
        count = len(self.names)
        if self._encoded is None or self._encoded[0] != count:
            topics, names = (
                pa.array(column[:count], pa.string()).dictionary_encode()
                for column in (self.topics, self.names)
            )
            self._encoded = (count, topics, names)
        return self._encoded[1:]
