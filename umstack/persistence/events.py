"""Events of a persistent source."""

from __future__ import annotations

from typing import NamedTuple


class Registered(NamedTuple):
    """Enough Stores accepted the source: it may send."""

    first_sqn: int
    """Number of the first message that it may send."""
    stores: tuple[int, ...]
    """Stores that answered, by their position in the source's list."""


class RegistrationRefused(NamedTuple):
    """A Store refused the source, or the answers of the Stores contradict each other."""

    store: int
    """Position of the Store in the source's list; -1: all Stores together."""
    reason: str


class MessageStable(NamedTuple):
    """Enough Stores acknowledged these messages."""

    first_sqn: int
    last_sqn: int


class NotStable(NamedTuple):
    """A message was given up: too many Stores declared it lost, or its lifetime ended.

    Within its lifetime it must become stable, and be confirmed by as many receivers as the source wants.
    """

    sqn: int


class DeliveryConfirmed(NamedTuple):
    """The application of a receiver has consumed these messages, and all before them."""

    session_id: int
    """The receiver."""
    first_sqn: int
    last_sqn: int


class FlightSize(NamedTuple):
    """The messages in flight reached a limit, or fell below it again."""

    is_over: bool
    """True: sends wait, or exceed the limit if the source's behavior is `notify`."""
    messages: int
    """Messages in flight at that time."""
    bytes: int
    """Bytes of these messages."""


class StoreUnresponsive(NamedTuple):
    """A Store's connection ended, or nothing arrived from it within the activity timeout."""

    store: int
    has_quorum: bool
    """False: the source may not send until a Store comes back."""


class StoreBack(NamedTuple):
    """A Store that was unresponsive registered the source again."""

    store: int


class SourceBlocked(NamedTuple):
    """A Store keeps so many messages for a receiver of a receiver-paced source that it has no space for more."""

    store: int
    """Position of the Store in the source's list."""
    session_id: int
    """The receiver that is furthest behind."""
    since_ns: int
    """When the Store began to wait for it, as time.monotonic_ns() of this host."""


class SourceUnblocked(NamedTuple):
    """A Store has space again for the messages of a receiver-paced source, or its connection ended."""

    store: int


SourceEvent = (
    Registered
    | RegistrationRefused
    | MessageStable
    | NotStable
    | FlightSize
    | StoreUnresponsive
    | StoreBack
    | SourceBlocked
    | SourceUnblocked
    | DeliveryConfirmed
)
"""Events that `PersistentSource.take_events` returns."""
