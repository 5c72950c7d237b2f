"""Messages that `umstack recv --from-store` plays again, in the form in which sinks take batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from umstack._engine.endpoint import Endpoint
from umstack.errors import InvalidArgument
from umstack.events import Event, Message
from umstack.persistence.advertised import store_endpoint
from umstack.persistence.assembly import Item
from umstack.persistence.replay_start import ReplayStart, replay_start
from umstack.persistence.session_ids import session_id_of
from umstack.replay_receiver import event_of

Command = TypeVar("Command", bound=Callable[..., Any])


def converted(convert: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a callback that converts the values of an option, and reports wrong ones."""

    def call(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(convert(one) for one in value)
            return None if value is None else convert(value)
        except InvalidArgument as error:
            raise click.BadParameter(str(error)) from None

    return call


def stored_options(command: Command) -> Command:
    """Add --from-store, --start and --session-id."""
    stores = click.option(
        "--from-store", multiple=True, metavar="ADDRESS:PORT", callback=converted(store_endpoint),
        help="First play what this Store has, also without a publisher; repeat it for more Stores.",
    )  # fmt: skip
    start = click.option(
        "--start", metavar="NUMBER|TIME", callback=converted(replay_start),
        help="With --from-store: begin at this sequence number, or at a time such as 2026-11-26T09:30. Default: the "
        "oldest message, or the one after the last that --session-id acknowledged.",
    )  # fmt: skip
    session = click.option(
        "--session-id", metavar="ID", callback=converted(session_id_of),
        help="With --from-store: continue where the last run with this number or name stopped.",
    )  # fmt: skip
    return stores(start(session(command)))


@dataclass(frozen=True, slots=True)
class Stored:
    """The Stores to play from, and the first message."""

    stores: tuple[Endpoint, ...]
    start: ReplayStart | None
    session_id: int | None

    def check(self, *, has_topic: bool, is_hot_failover: bool) -> None:
        """Raise click.UsageError for options that exclude each other."""
        if self.stores and (not has_topic or is_hot_failover):
            raise click.UsageError("--from-store needs a TOPIC, without --hot-failover")
        if not self.stores and (self.start is not None or self.session_id is not None):
            raise click.UsageError("--start and --session-id need --from-store")


class StoredBatch:
    """Messages and losses from a Store."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = list(events)
        self._messages = [event for event in events if isinstance(event, Message)]
        self.event_count = len(self._events) - len(self._messages)

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def messages(self) -> list[Message]:
        """Return the messages."""
        return self._messages

    def payloads(self) -> list[bytes]:
        """Return the payloads of the messages."""
        return [message.data for message in self._messages]

    def events(self) -> list[Event]:
        """Return messages and losses in order."""
        return self._events

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads."""
        return sum(len(message.data) for message in self._messages)

    def release(self) -> None:
        """Nothing is shared with the receiver."""


def stored_batch(topic: str, items: Sequence[Item]) -> StoredBatch:
    """Return what Stores answered as a batch."""
    return StoredBatch([event_of(topic, item) for item in items])


__all__ = ["Stored", "StoredBatch", "converted", "stored_batch", "stored_options"]
