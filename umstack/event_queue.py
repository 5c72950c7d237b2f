"""EventQueue: one queue that the receivers of many topics deliver into and one thread reads."""

from __future__ import annotations

from collections.abc import Callable

from umstack._engine.engine import Engine
from umstack._engine.queue_memory import QueueMemory
from umstack.config import EventQueueOptions, ReceiverOptions
from umstack.events import Event
from umstack.reader import Reader
from umstack.telemetry.reading import Counters, queue_counters


class EventQueue(Reader):
    """Read many topics from one queue, in order of delivery. Made by Context.event_queue().

    A receiver made with `queue=` delivers into it and has no queue, so a thousand topics cost the memory, the
    polling and the wake-ups of one. Messages and events carry the name of their topic. Closing a receiver leaves
    its rows in the queue; closing the queue closes its receivers. One thread at a time reads it.

    Attributes:
        options: Receiver options it was made with; those that size a queue apply to it.
        queue_options: Options of scope event_queue in force.
        closed: True once close() was called.

    Example:
        ```python
        receiver = ctx.receiver("orders", queue=queue)
        print(queue.poll(timeout=0.1).messages())
        ```
    """

    __slots__ = ("options", "queue_options")

    def __init__(
        self,
        engine: Engine,
        options: ReceiverOptions,
        queue_options: EventQueueOptions,
        on_message: Callable[[Event], None] | None,
        *,
        prepare: Callable[[QueueMemory], None] | None = None,
    ) -> None:
        """Open the queue; called by Context.event_queue()."""
        self.options = options
        """The receiver options it was made with; those that size a queue are in force."""
        self.queue_options = queue_options
        """The options of scope event_queue in force."""
        memory = QueueMemory(engine.core, options, engine.registry.name_queue(), queue_options)
        if prepare is not None:
            prepare(memory)
        super().__init__(
            engine,
            memory,
            "event queue",
            on_message,
            times_callbacks=queue_options.queue_service_time_enabled,
        )
        engine.registry.add(self, self._memory)
        self._start_dispatch()

    def stats(self) -> Counters:
        """Read this queue's counters (docs/counters.md, group event_queue). Any thread.

        Returns:
            Counters by name.

        Raises:
            Closed: The queue is closed.

        Example:
            ```python
            print(queue.stats())
            ```
        """
        if self.closed:
            raise self._engine.core.closed_error(self._name)
        return queue_counters(self._memory)

    def close(self) -> None:
        """Close the receivers that deliver into it and stop reading.

        Batches already taken stay readable. Any thread may call it, callbacks included; a second call does nothing.

        Example:
            ```python
            ctx.event_queue().close()
            ```
        """
        registry = self._engine.registry
        with self._engine.core.lifecycle:  # no receiver is made on it any more once it is marked closed
            is_first = registry.begin_closing(self)
        if is_first:
            for receiver in registry.owned_by(self):
                receiver.close()
            registry.remove(self)
            self._stop_dispatch()
            self._memory.close()


__all__ = ["EventQueue"]
