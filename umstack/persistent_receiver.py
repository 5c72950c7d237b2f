"""PersistentReceiver: a receiver that its sources' Stores know, and that continues where it stopped (docs/store.md)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from umstack._engine.engine import Engine
from umstack.batch import Batch
from umstack.config import ReceiverOptions
from umstack.errors import InvalidArgument, OptionError
from umstack.events import Event, Message
from umstack.persistence.pacing import Pacing
from umstack.persistence.registrations import ReceiverSession, StoreRegistrations
from umstack.reader import POLL_ROWS
from umstack.receiver import Receiver
from umstack.resolution import Resolver
from umstack.unread_rows import UnreadRows


class PersistentReceiver(Receiver):
    """Receive one topic from where this session id stopped. Made by Context.receiver(session_id=...).

    Messages are acknowledged to the Stores of their sources once the application has consumed them: when it reads
    again, when the callback has returned, or at close(); with the option ume_explicit_ack_only when it calls
    acknowledge(). A receiver that is killed gets the messages again that were not acknowledged.

    Example:
        ```python
        def consume(ctx):
            with ctx.receiver("orders", session_id="risk3") as receiver:
                for message in receiver:
                    print(message.sequence_number, message.data)
        ```
    """

    # No __slots__, because AttachedPersistentReceiver has two bases.

    def __init__(
        self,
        engine: Engine,
        resolver: Resolver,
        registrations: StoreRegistrations,
        topic: str,
        options: ReceiverOptions,
        session: ReceiverSession,
        on_message: Callable[[Event], None] | None,
        **through: Any,
    ) -> None:
        """Open the receiver; called by Context.receiver(). `through` has what AttachedReceiver needs in addition."""
        if options.ordered_delivery != 1:
            raise OptionError(
                f"receiver {topic!r} has a session id and ordered_delivery {options.ordered_delivery}",
                hint="leave ordered_delivery at 1: an acknowledgement covers all earlier messages",
            )
        self._registrations = registrations
        self._is_explicit = options.ume_explicit_ack_only
        self._read: dict[str, int] = {}
        """The last message of each source that the application got and has not consumed yet."""
        self._iterated: UnreadRows | None = None
        """Rows that iterators yield one by one; only those that they have yielded count as read."""
        self._session = session._replace(
            recovered_max=options.retransmit_request_maximum or None,
            pacing=Pacing(options.ume_receiver_paced_persistence),
            is_confirming=options.ume_allow_confirmed_delivery,
        )
        wrapped = on_message and self._acknowledging(on_message)
        super().__init__(engine, resolver, topic, replace(options, use_otr=1), wrapped, None, **through)

    def _register(self) -> None:
        self._registrations.add_receiver(self._subscription, self._session)

    def _acknowledging(self, on_message: Callable[[Event], None]) -> Callable[[Event], None]:
        def call(event: Event) -> None:
            on_message(event)
            if isinstance(event, Message) and not self._is_explicit:
                self.acknowledge(event)

        return call

    def acknowledge(self, message: Message) -> None:
        """Acknowledge a message and all earlier ones of its source. Any thread.

        Args:
            message: A message of this receiver.

        Raises:
            InvalidArgument: The message is of another topic.

        Example:
            ```python
            def consume(receiver):
                for message in receiver.poll(timeout=1).messages():
                    receiver.acknowledge(message)
            ```
        """
        if message.topic != self.topic:
            raise InvalidArgument(
                f"a message of {message.topic!r} was acknowledged by a receiver of {self.topic!r}",
                hint="acknowledge each message with its own receiver",
            )
        self._registrations.acknowledge(self._subscription, {message.source: message.sequence_number})

    # Reading: each read consumes what the reads before it returned

    def _consume(self) -> None:
        if self._iterated is not None:
            self._note(self._iterated.batch, self._iterated.yielded())
            self._iterated = None
        if self._read:
            consumed, self._read = self._read, {}
            self._registrations.acknowledge(self._subscription, consumed)

    def _note(self, batch: Batch, count: int | None = None) -> None:
        """Note the first `count` rows of a batch as read; None: all."""
        if self._is_explicit or not batch:
            return
        if batch.event_count:
            rows = [event for event in batch.events()[:count] if isinstance(event, Message)]
            self._read.update({row.source: row.sequence_number for row in rows})
            return
        last = dict(zip(batch.sources[:count], batch.sequence_numbers[:count], strict=True))
        self._read.update({batch.source_of(number): sqn for number, sqn in last.items()})

    def poll(self, max_rows: int = POLL_ROWS, timeout: float | None = 0.0) -> Batch:
        """Take the rows that wait as one batch, and consume those of earlier reads.

        Args:
            max_rows: Maximum number of rows.
            timeout: Maximum wait for the first row in seconds; 0: do not wait, None: no timeout.

        Returns:
            The batch; empty after the timeout and after Context.unblock().

        Raises:
            OptionError: Another thread reads, or a callback gets the rows.
            Closed: The receiver is closed.

        Example:
            ```python
            def consume(receiver):
                with receiver.poll(timeout=1) as batch:
                    print(batch.payloads())
            ```
        """
        self._consume()
        batch = super().poll(max_rows, timeout)
        self._note(batch)
        return batch

    def receive(self, timeout: float | None = None) -> bytes | None:
        """Take the payload of the next message, and consume those of earlier reads.

        Args:
            timeout: Maximum wait in seconds; None: no timeout, 0: do not wait.

        Returns:
            The payload, or None without a message in time.

        Raises:
            OptionError: Another thread reads, or a callback gets the rows.
            Closed: The receiver is closed.

        Example:
            ```python
            def consume(receiver):
                print(receiver.receive(timeout=1))
            ```
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with self.poll(1, left) as batch:
                for row in batch.events():
                    if isinstance(row, Message):
                        return row.data
                    self._log_event(row)
                if not batch:
                    return None

    def _fetch_unread(self, fetch: Callable[[Any], int]) -> UnreadRows | None:
        self._consume()
        self._iterated = super()._fetch_unread(fetch)
        return self._iterated

    def _look(self, max_rows: int) -> Batch:
        self._consume()
        batch = super()._look(max_rows)
        self._note(batch)
        return batch

    def close(self) -> None:
        """Acknowledge the messages that were read, and stop receiving. A second call does nothing.

        Example:
            ```python
            def consume(receiver):
                receiver.close()
            ```
        """
        if not self.closed:
            self._consume()
        super().close()
        self._registrations.remove_receiver(self._subscription)


__all__ = ["PersistentReceiver"]
