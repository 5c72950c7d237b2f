"""The client state of a repository: sources, receivers and what they acknowledged, in SQLite.

It is small, changes at random places and must be transactional and open to inspection, so a database keeps it. The
messages are in the log. A change is on the disk when its method returns.

One file, because the tables of sources and receivers change in the same transactions.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from umstack._core import lib
from umstack.errors import ResourceLimit
from umstack.persistence.pacing import Pacing
from umstack.store.repository.errors import DiskFull, RepositoryDamaged, RepositoryEnded, RepositoryError

FILE_NAME = "clients.db"
_SCHEMA_VERSION = 2
_REGISTRATION_IDS = 1 << 32
_PRIMARY_CODE = 0xFF
"""Bits of an error code of SQLite that name the kind of error."""
_SCHEMA = """
CREATE TABLE store (store_id INTEGER NOT NULL, next_registration_id INTEGER NOT NULL);
CREATE TABLE sources (
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, session_id TEXT NOT NULL, registration_id INTEGER NOT NULL,
    low_sqn INTEGER NOT NULL, retention_bytes INTEGER NOT NULL, activity_timeout_ns INTEGER NOT NULL,
    state_lifetime_ns INTEGER NOT NULL, active_ns INTEGER NOT NULL, forgotten_position INTEGER
);
CREATE TABLE receivers (
    source INTEGER NOT NULL REFERENCES sources(number), registration_id INTEGER NOT NULL, session_id TEXT NOT NULL,
    acknowledged_sqn INTEGER, activity_timeout_ns INTEGER NOT NULL, state_lifetime_ns INTEGER NOT NULL,
    active_ns INTEGER NOT NULL, PRIMARY KEY (source, registration_id)
) WITHOUT ROWID;
"""
_ADDED = """
ALTER TABLE sources ADD COLUMN is_receiver_paced INTEGER NOT NULL DEFAULT 0;
ALTER TABLE receivers ADD COLUMN pacing INTEGER NOT NULL DEFAULT 0;
ALTER TABLE receivers ADD COLUMN first_sqn INTEGER;
ALTER TABLE receivers ADD COLUMN is_confirming INTEGER NOT NULL DEFAULT 0
"""
"""The columns that version 2 added to version 1."""
_SOURCE = (
    "number, topic, session_id, registration_id, low_sqn, retention_bytes, activity_timeout_ns, "
    "state_lifetime_ns, active_ns, is_receiver_paced"
)
_RECEIVER = (
    "source, registration_id, session_id, acknowledged_sqn, activity_timeout_ns, state_lifetime_ns, active_ns, "
    "pacing, first_sqn, is_confirming"
)


@dataclass(frozen=True, slots=True)
class SourceState:
    """A registered source."""

    number: int
    """Its number in the records of this Store."""
    topic: str
    session_id: int
    registration_id: int
    low_sqn: int
    """Messages below were dropped."""
    retention_bytes: int
    """Most bytes of its records; 0: the repository's limit."""
    activity_timeout_ns: int
    state_lifetime_ns: int
    active_ns: int
    """When it was last active, by the wall clock."""
    is_receiver_paced: bool
    """Its messages are kept until all of its receivers have acknowledged them."""


@dataclass(frozen=True, slots=True)
class ReceiverState:
    """A receiver registered for one source."""

    source: int
    registration_id: int
    session_id: int
    acknowledged_sqn: int | None
    """It consumed every message up to this one; None: none."""
    activity_timeout_ns: int
    state_lifetime_ns: int
    active_ns: int
    pacing: Pacing
    """NONE also if a receiver-paced source is only replayed."""
    first_sqn: int | None
    """First message for it, if it is new and the source is receiver-paced."""
    is_confirming: bool
    """Its acknowledgements may be forwarded to the source."""

    @property
    def next_sqn(self) -> int | None:
        """The first message that it has not acknowledged; None: all of them."""
        return self.first_sqn if self.acknowledged_sqn is None else self.acknowledged_sqn + 1


class Pace(NamedTuple):
    """How far the receivers of a receiver-paced source are."""

    source: int
    """Number of the source."""
    acknowledged_sqn: int | None
    """All of its receivers have acknowledged this message, and all before it; None: it has no receivers."""
    blocking_sqn: int | None
    """All of its blocking receivers have; None: there are none."""


class ClientState:
    """Sources and receivers of one repository. Any thread.

    Args:
        path: The database; None: in memory only.
        needs_existing: Refuse to create the database, because messages of its clients exist.
        is_read_only: Open an existing database for inspection.

    Raises:
        RepositoryDamaged: The database is missing, or of another version.
    """

    def __init__(
        self, path: Path | None, *, needs_existing: bool = False, is_read_only: bool = False
    ) -> None:
        if path is not None and not path.exists() and (needs_existing or is_read_only):
            raise RepositoryDamaged(f"{path} is missing, but the directory holds messages of its clients")
        self._lock = threading.RLock()
        self._is_grouped = False
        location = (
            ":memory:"
            if path is None
            else f"{path.resolve().as_uri()}?mode={'ro' if is_read_only else 'rwc'}"
        )
        try:
            self._database = sqlite3.connect(
                location, isolation_level=None, check_same_thread=False, uri=path is not None
            )
            if not is_read_only:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
            self._prepare(is_read_only)
        except sqlite3.DatabaseError as error:
            raise RepositoryDamaged(f"{path}: {error}") from error
        self.store_id: int = self._database.execute("SELECT store_id FROM store").fetchone()[0]

    def _prepare(self, is_read_only: bool) -> None:
        version = self._database.execute("PRAGMA user_version").fetchone()[0]
        if 0 < version < _SCHEMA_VERSION and is_read_only:  # migrate a copy
            copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._database.backup(copy)
            self._database.close()
            self._database = copy
            is_read_only = False
        if version < _SCHEMA_VERSION and not is_read_only:
            with self._transaction() as database:
                for statement in (_SCHEMA if version == 0 else "").split(";") + _ADDED.split(";"):
                    database.execute(statement)
                if version == 0:
                    database.execute(
                        "INSERT INTO store VALUES (?, ?)",
                        (secrets.randbits(63), secrets.randbelow(_REGISTRATION_IDS)),
                    )
                database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        elif version != _SCHEMA_VERSION:
            raise RepositoryDamaged(
                f"client state of version {version}: this program reads {_SCHEMA_VERSION}"
            )

    @contextmanager
    def grouped(self) -> Iterator[None]:
        """Within the block changes are on the disk only when it ends, with one sync for all of them.

        Raises:
            DiskFull: None of the changes was made.
            RepositoryEnded: The disk failed.
        """
        with self._lock:
            self._is_grouped = True
            try:
                yield
            finally:
                self._is_grouped = False
                if self._database.in_transaction:
                    self._end_transaction()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if not self._database.in_transaction:
                    self._database.execute("BEGIN IMMEDIATE")
                self._database.execute("SAVEPOINT change")
                try:
                    yield self._database
                except BaseException:
                    if self._database.in_transaction:
                        self._database.execute("ROLLBACK TO change")
                    raise
                finally:
                    if self._database.in_transaction:
                        self._database.execute("RELEASE change")
                        if not self._is_grouped:
                            self._end_transaction()
            except sqlite3.OperationalError as error:
                raise _failed(error) from error

    def _end_transaction(self) -> None:
        try:
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise _failed(error) from error

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    # ---- sources ----

    def register_source(
        self,
        topic: str,
        session_id: int,
        *,
        registration_id: int = 0,
        retention_bytes: int = 0,
        activity_timeout_ns: int = 0,
        state_lifetime_ns: int = 0,
        is_receiver_paced: bool = False,
        now_ns: int,
        accepts_new: bool = True,
    ) -> SourceState:
        """Register a source, or update the state of a known one.

        Args:
            topic: Topic of the source.
            session_id: Session id of the source, 1 to 2^64 - 2; 0: it is known by its registration id only.
            registration_id: Wanted registration id; 0: the known one, or the next free one.
            retention_bytes: Most bytes to keep; 0: the repository's limit.
            activity_timeout_ns: Idle time after which its registration id is free; 0: the Store's.
            state_lifetime_ns: Idle time after which its messages are deleted; 0: the Store's.
            is_receiver_paced: Keep messages until all receivers have acknowledged them. A known source stays as it is.
            now_ns: Wall clock.
            accepts_new: False: only a known source may register, because the disk is full.

        Returns:
            The state, with the low sqn that it had if the source is known.

        Raises:
            ResourceLimit: The Store has its maximum number of sources.
            RepositoryError: The registration id belongs to another client.
            DiskFull: The source is not known, and new ones are not accepted.
        """
        limits = (retention_bytes, activity_timeout_ns, state_lifetime_ns, now_ns)
        with self._transaction() as database:
            known = self._known_source(database, topic, session_id, registration_id)
            if known is not None:
                database.execute(
                    "UPDATE sources SET retention_bytes = ?, activity_timeout_ns = ?, state_lifetime_ns = ?, "
                    "active_ns = ? WHERE number = ?",
                    (*limits, known),
                )
            elif not accepts_new:
                raise DiskFull("there is no space for the messages of another source")
            else:
                used = {row[0] for row in database.execute("SELECT number FROM sources")}
                known = next((n for n in range(lib.UM_STORE_SOURCES_MAX) if n not in used), None)
                if known is None:
                    raise ResourceLimit(
                        f"the Store has {len(used)} sources", hint="delete sources that ended"
                    )
                chosen = self._free_registration_id(database, registration_id)
                database.execute(
                    f"INSERT INTO sources ({_SOURCE}) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?)",
                    (known, topic, str(session_id), chosen, *limits, is_receiver_paced),
                )
            found = database.execute(f"SELECT {_SOURCE} FROM sources WHERE number = ?", (known,)).fetchone()
        return _source(found)

    @staticmethod
    def _known_source(
        database: sqlite3.Connection, topic: str, session_id: int, registration_id: int
    ) -> int | None:
        """Return the number of the source that has this session id or, without one, this registration id."""
        condition, value = _identity(session_id, registration_id)
        row = database.execute(
            f"SELECT number FROM sources WHERE topic = ? AND {condition} AND forgotten_position IS NULL",
            (topic, value),
        ).fetchone()
        return None if row is None else int(row[0])

    @staticmethod
    def _free_registration_id(database: sqlite3.Connection, wanted: int) -> int:
        used = (
            "SELECT 1 FROM sources WHERE registration_id = ?1 AND forgotten_position IS NULL "
            "UNION SELECT 1 FROM receivers WHERE registration_id = ?1"
        )
        if wanted:
            if database.execute(used, (wanted,)).fetchone():
                raise RepositoryError(
                    f"registration id {wanted} belongs to another client", hint="use a session id instead"
                )
            return wanted
        chosen = int(database.execute("SELECT next_registration_id FROM store").fetchone()[0])
        while chosen == 0 or database.execute(used, (chosen,)).fetchone():
            chosen = (chosen + 1) % _REGISTRATION_IDS
        database.execute("UPDATE store SET next_registration_id = ?", ((chosen + 1) % _REGISTRATION_IDS,))
        return chosen

    def sources(self, topic: str | None = None) -> list[SourceState]:
        """Return all registered sources, or those of a topic, by number."""
        with self._lock:
            rows = self._database.execute(
                f"SELECT {_SOURCE} FROM sources "
                "WHERE forgotten_position IS NULL AND (?1 IS NULL OR topic = ?1) ORDER BY number",
                (topic,),
            ).fetchall()
        return [_source(row) for row in rows]

    def counts(self) -> tuple[int, int]:
        """Return the numbers of registered sources and receivers."""
        with self._lock:
            found = self._database.execute(
                "SELECT (SELECT count(*) FROM sources WHERE forgotten_position IS NULL), "
                "(SELECT count(*) FROM receivers)"
            ).fetchone()
        return found[0], found[1]

    def source(self, number: int) -> SourceState | None:
        """Return a registered source, or None."""
        with self._lock:
            row = self._database.execute(
                f"SELECT {_SOURCE} FROM sources WHERE number = ? AND forgotten_position IS NULL", (number,)
            ).fetchone()
        return None if row is None else _source(row)

    def raise_low_sqns(self, low_sqns: Mapping[int, int]) -> None:
        """Store the lowest sqn to keep of these sources; it never falls."""
        with self._transaction() as database:
            database.executemany(
                "UPDATE sources SET low_sqn = max(low_sqn, ?) WHERE number = ?",
                [(low, number) for number, low in low_sqns.items()],
            )

    def forget_source(self, number: int, position: int) -> None:
        """Delete a source and its receivers. Its number stays taken while the log may contain it.

        Args:
            number: Number of the source.
            position: The log contains its messages only before this position, and in the segment that begins there.
        """
        with self._transaction() as database:
            database.execute("DELETE FROM receivers WHERE source = ?", (number,))
            database.execute("UPDATE sources SET forgotten_position = ? WHERE number = ?", (position, number))

    def forgotten_sources(self) -> list[int]:
        """Return the numbers of forgotten sources that are still taken."""
        with self._lock:
            rows = self._database.execute(
                "SELECT number FROM sources WHERE forgotten_position IS NOT NULL"
            ).fetchall()
        return [int(row[0]) for row in rows]

    def free_numbers(self, oldest_position: int) -> None:
        """Make the numbers of forgotten sources available again if the log begins behind their messages."""
        with self._transaction() as database:
            database.execute("DELETE FROM sources WHERE forgotten_position < ?", (oldest_position,))

    # ---- lifetimes ----

    def touch(self, sources: Iterable[int], receivers: Iterable[tuple[int, int]], now_ns: int) -> None:
        """Store that these clients were active.

        Args:
            sources: Numbers of sources.
            receivers: Source number and registration id of receivers.
            now_ns: Wall clock.
        """
        sources, receivers = list(sources), list(receivers)
        if not sources and not receivers:
            return
        with self._transaction() as database:
            database.executemany(
                "UPDATE sources SET active_ns = ? WHERE number = ?", [(now_ns, number) for number in sources]
            )
            database.executemany(
                "UPDATE receivers SET active_ns = ? WHERE source = ? AND registration_id = ?",
                [(now_ns, *receiver) for receiver in receivers],
            )

    def touch_all(self, now_ns: int) -> None:
        """Begin the lifetimes of all clients again, because the time in which the Store did not run does not count.

        Args:
            now_ns: Wall clock.
        """
        with self._transaction() as database:
            for table in ("sources", "receivers"):
                database.execute(f"UPDATE {table} SET active_ns = ?", (now_ns,))

    def expired(self, lifetime_ns: int, now_ns: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the sources and receivers whose state lifetime has ended.

        Args:
            lifetime_ns: Lifetime at this Store. The shorter of it and the client's counts.
            now_ns: Wall clock.

        Returns:
            Numbers of sources; source number and registration id of receivers.
        """
        with self._lock:
            sources = self._database.execute(
                f"SELECT number FROM sources WHERE forgotten_position IS NULL AND {_EXPIRED}",
                (lifetime_ns, now_ns),
            ).fetchall()
            receivers = self._database.execute(
                f"SELECT source, registration_id FROM receivers WHERE {_EXPIRED}", (lifetime_ns, now_ns)
            ).fetchall()
        return [int(row[0]) for row in sources], [(int(row[0]), int(row[1])) for row in receivers]

    # ---- receivers ----

    def register_receiver(
        self,
        source: int,
        session_id: int,
        *,
        registration_id: int = 0,
        activity_timeout_ns: int = 0,
        state_lifetime_ns: int = 0,
        pacing: Pacing = Pacing.NONE,
        first_sqn: int | None = None,
        is_confirming: bool = False,
        now_ns: int,
    ) -> ReceiverState:
        """Register a receiver of a source, or update the state of a known one.

        Args:
            source: Number of the source.
            session_id: Session id of the receiver; 0: it is known by its registration id only.
            registration_id: Wanted registration id; 0: the known one, or the next free one.
            activity_timeout_ns: Idle time after which its registration id is free; 0: the Store's.
            state_lifetime_ns: Idle time after which its state is deleted; 0: the Store's.
            pacing: Its kind, if the source is receiver-paced; NONE: that of a known one.
            first_sqn: First message for it, if it is new; None: all of them.
            is_confirming: Its acknowledgements may be forwarded to the source.
            now_ns: Wall clock.

        Returns:
            The state, with what it acknowledged if the receiver is known.

        Raises:
            RepositoryError: The source is not registered, or the registration id belongs to another client.
        """
        limits = (activity_timeout_ns, state_lifetime_ns, now_ns)
        with self._transaction() as database:
            if not database.execute(
                "SELECT 1 FROM sources WHERE number = ? AND forgotten_position IS NULL", (source,)
            ).fetchone():
                raise RepositoryError(f"source {source} is not registered", hint="register the source first")
            condition, value = _identity(session_id, registration_id)
            known = database.execute(
                f"SELECT registration_id FROM receivers WHERE source = ? AND {condition}", (source, value)
            ).fetchone()
            if known is not None:
                chosen = int(known[0])
                database.execute(
                    "UPDATE receivers SET activity_timeout_ns = ?, state_lifetime_ns = ?, active_ns = ?, "
                    "pacing = max(pacing, ?), first_sqn = ifnull(first_sqn, ?), is_confirming = ? "
                    "WHERE source = ? AND registration_id = ?",
                    (*limits, pacing, first_sqn, is_confirming, source, chosen),
                )
            else:
                chosen = self._free_registration_id(database, registration_id)
                database.execute(
                    f"INSERT INTO receivers ({_RECEIVER}) VALUES (?, ?, ?, NULL, ?, ?, ?, ?, ?, ?)",
                    (source, chosen, str(session_id), *limits, pacing, first_sqn, is_confirming),
                )
            found = database.execute(
                f"SELECT {_RECEIVER} FROM receivers WHERE source = ? AND registration_id = ?",
                (source, chosen),
            ).fetchone()
        return _receiver(found)

    def receivers(self, source: int) -> list[ReceiverState]:
        """Return the receivers of a source, by registration id."""
        with self._lock:
            rows = self._database.execute(
                f"SELECT {_RECEIVER} FROM receivers WHERE source = ? ORDER BY registration_id", (source,)
            ).fetchall()
        return [_receiver(row) for row in rows]

    def receiver(self, source: int, session_id: int) -> ReceiverState | None:
        """Return the receiver of a source with this session id, or None."""
        with self._lock:
            row = self._database.execute(
                f"SELECT {_RECEIVER} FROM receivers WHERE source = ? AND session_id = ?",
                (source, str(session_id)),
            ).fetchone()
        return None if row is None else _receiver(row)

    def paces(self) -> list[Pace]:
        """Return how far the receivers of each receiver-paced source are."""
        with self._lock:
            rows = self._database.execute(_PACES).fetchall()
        return [Pace(*row) for row in rows]

    def acknowledge(self, acknowledged: Mapping[tuple[int, int], int], now_ns: int) -> None:
        """Store acknowledgements, cumulative: an older one changes nothing but the time of activity.

        Args:
            acknowledged: Highest consumed sqn by (source number, registration id of the receiver).
            now_ns: Wall clock.
        """
        with self._transaction() as database:
            database.executemany(
                "UPDATE receivers SET acknowledged_sqn = max(ifnull(acknowledged_sqn, ?1), ?1), active_ns = ?2 "
                "WHERE source = ?3 AND registration_id = ?4",
                [(sqn, now_ns, source, receiver) for (source, receiver), sqn in acknowledged.items()],
            )

    def begin(self, first_sqns: Mapping[tuple[int, int], int]) -> None:
        """Store where receivers begin that are new at one Store, but not at another one.

        Args:
            first_sqns: First message by (source number, registration id). Those who acknowledged one stay as they are.
        """
        with self._transaction() as database:
            database.executemany(
                "UPDATE receivers SET first_sqn = ? WHERE source = ? AND registration_id = ? "
                f"AND acknowledged_sqn IS NULL AND pacing <> {Pacing.NONE:d}",
                [(sqn, *receiver) for receiver, sqn in first_sqns.items()],
            )

    def forget_receiver(self, source: int, registration_id: int) -> None:
        """Delete the state of a receiver."""
        with self._transaction() as database:
            database.execute(
                "DELETE FROM receivers WHERE source = ? AND registration_id = ?", (source, registration_id)
            )


_PACES = f"""
SELECT number, min(reached), min(CASE pacing WHEN {Pacing.BLOCKING:d} THEN reached END)
FROM sources LEFT JOIN (
    SELECT source, pacing, ifnull(acknowledged_sqn, first_sqn - 1) AS reached
    FROM receivers WHERE pacing <> {Pacing.NONE:d}
) ON source = number
WHERE is_receiver_paced AND forgotten_position IS NULL GROUP BY number
"""
_EXPIRED = "active_ns + CASE state_lifetime_ns WHEN 0 THEN ?1 ELSE min(state_lifetime_ns, ?1) END < ?2"
"""Condition of a client that was idle for longer than its lifetime, or the Store's if that is shorter."""


def _failed(error: sqlite3.OperationalError) -> RepositoryError:
    """Return the error to raise for a failed change of the database."""
    if error.sqlite_errorcode & _PRIMARY_CODE == sqlite3.SQLITE_FULL:
        return DiskFull(f"the client state was not changed: {error}")
    return RepositoryEnded(f"the client state cannot be written: {error}")


def _identity(session_id: int, registration_id: int) -> tuple[str, str | int]:
    """Return the condition by which a client is known, and its value."""
    return ("session_id = ?", str(session_id)) if session_id else ("registration_id = ?", registration_id)


def _source(row: tuple[int, str, str, int, int, int, int, int, int, int]) -> SourceState:
    number, topic, session_id, *rest, is_receiver_paced = row
    return SourceState(number, topic, int(session_id), *rest, bool(is_receiver_paced))  # type: ignore[arg-type,call-arg]


def _receiver(row: tuple[int, int, str, int | None, int, int, int, int, int | None, int]) -> ReceiverState:
    source, registration_id, session_id, *rest, pacing, first_sqn, is_confirming = row
    last = Pacing(pacing), first_sqn, bool(is_confirming)
    return ReceiverState(source, registration_id, int(session_id), *rest, *last)  # type: ignore[arg-type,call-arg]
