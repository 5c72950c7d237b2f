"""Receiver: a subscription to one topic, with a queue of its own or one that it shares."""

from __future__ import annotations

from collections.abc import Callable

from umstack._core import lib
from umstack._engine.engine import Engine
from umstack._engine.queue_memory import QueueMemory
from umstack._engine.subscription import Subscription
from umstack.config import ReceiverOptions
from umstack.errors import OptionError
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.reader import Reader
from umstack.resolution import Resolver
from umstack.telemetry.reading import Counters, subscription_counters


class Receiver(Reader):
    """A subscription to one topic. Made by Context.receiver(). One thread at a time reads it.

    With an event queue, it is the queue that is read: reading the receiver raises OptionError.

    `topic` is the topic's name, `options` are the receiver options in force, `queue` is the event queue that it
    delivers into (None: a queue of its own), and `closed` is whether close() was called.
    """

    __slots__ = ("_resolver", "_subscription", "options", "queue", "topic")

    def __init__(
        self,
        engine: Engine,
        resolver: Resolver,
        topic: str,
        options: ReceiverOptions,
        on_message: Callable[[Event], None] | None,
        queue: EventQueue | None,
        takes_group: Callable[[str], bool] | None = None,
    ) -> None:
        """Open it; called by Context.receiver()."""
        self.topic = topic
        """The topic's name."""
        self.options = options
        """The options in force."""
        self.queue = queue
        """The event queue it delivers into; None: a queue of its own."""
        self._resolver = resolver
        name = f"receiver {topic!r}"
        memory = _memory_of(engine, queue, options, name)
        super().__init__(engine, memory, name, on_message)
        if queue is not None:
            self._reading = None
        try:
            self._subscription = Subscription(engine.core, memory, topic, options, takes_group)
        except BaseException:
            self._close_own_queue()
            raise
        engine.registry.add(self, self._subscription, queue, topic)
        self._start_dispatch()

    # Reading

    def _refusal(self) -> OptionError:
        return self._shared_refusal() if self.queue is not None else super()._refusal()

    def _shared_refusal(self) -> OptionError:
        return OptionError(
            f"{self._name} delivers into an event queue",
            hint="read the queue, or make the receiver without queue=",
        )

    def fileno(self) -> int:
        """A descriptor that is readable when rows wait, once armed: call arm() before each wait on it.

        The receiver owns it. Raises OptionError for a receiver that delivers into an event queue.
        """
        if self.queue is not None:
            raise self._shared_refusal()
        return super().fileno()

    def arm(self) -> bool:
        """Have fileno() become readable at the next row; True when rows wait already.

        Raises OptionError for a receiver that delivers into an event queue.
        """
        if self.queue is not None:
            raise self._shared_refusal()
        return super().arm()

    def stats(self) -> Counters:
        """This receiver's counters by name (docs/counters.md, group receiver). Any thread. Raises Closed."""
        if self.closed:
            raise self._engine.core.closed_error(self._name)
        return subscription_counters(self._subscription)

    def nak_cutoff(self, enabled: bool = True) -> None:
        """Send no NAKs for this receiver any more, or again with `enabled` False (UX-21).

        A transport session NAKs while any receiver on it wants it to. What lacks meanwhile comes off the transport
        where that is offered, and with what others NAK; else it is lost when the NAK generation interval is over.
        Starting again also ends a cutoff that sessions of this receiver have imposed on themselves. Any thread. Raises
        Closed.
        """
        if self.closed:
            raise self._engine.core.closed_error(self._name)
        lib.um_subscription_set_nak_cutoff(self._subscription.handle, enabled)

    # Ending

    def close(self) -> None:
        """Stop receiving. Batches already taken stay readable, and so does what waits in an event queue.

        Any thread may call it, callbacks included; a second call does nothing.
        """
        engine = self._engine
        if engine.registry.begin_closing(self):
            engine.registry.remove(self)
            self._stop_dispatch()
            if not engine.core.closed:
                self._resolver.stop_query(self.topic)
            self._subscription.close()
            self._close_own_queue()

    def _close_own_queue(self) -> None:
        if self.queue is None:
            self._memory.close()


def _memory_of(engine: Engine, queue: EventQueue | None, options: ReceiverOptions, name: str) -> QueueMemory:
    """The queue a new receiver delivers into: one of its own, or that of the event queue."""
    if queue is None:
        return QueueMemory(engine.core, options, name)
    memory = engine.registry.part(queue, QueueMemory)
    if queue.closed or memory is None:
        raise engine.core.closed_error("the event queue")
    memory.check_shareable(options, name)
    return memory


__all__ = ["Receiver"]
