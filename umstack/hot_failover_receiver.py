"""HotFailoverReceiver: one stream out of the copies that several sources send of it, over one interface or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umstack._engine.engine import Engine
from umstack._engine.queue_memory import QueueMemory
from umstack.config import EventQueueOptions, ReceiverOptions
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.receiver import Receiver
from umstack.resolution import Resolver
from umstack.telemetry.reading import Counters, hot_failover_counters

Line = tuple[Engine, Resolver]
"""A context that receives the stream, by what it is made of."""


class HotFailoverReceiver(EventQueue):
    """The first copy of each message of a topic, in the order of the numbers that its senders gave it.

    Made by Context.hot_failover_receiver(), and read like any event queue. Sources use Source.send_hot_failover(). A
    number that no source brings is an UnrecoverableLoss with that number. What a source sends without a number is
    delivered as it comes. One thread at a time reads it.

    `topic` is the topic's name, `options` are the receiver options in force at every line, `queue_options` those of
    scope event_queue, and `closed` is whether close() was called.
    """

    __slots__ = ("_lines", "_queues", "topic")

    def __init__(
        self,
        topic: str,
        lines: Sequence[Line],
        options: ReceiverOptions,
        queue_options: EventQueueOptions,
        on_message: Callable[[Event], None] | None,
    ) -> None:
        """Open it; called by Context.hot_failover_receiver(). The first line's context is that of the queue."""
        self.topic = topic
        """The topic's name."""
        engine = lines[0][0]
        self._lines = list(lines)
        self._queues: list[EventQueue] = []
        super().__init__(engine, options, queue_options, on_message, prepare=self._make_stream)
        try:
            for at, (line, resolver) in enumerate(lines):
                Receiver(line, resolver, topic, options, None, [self, *self._queues][at])
                resolver.query(topic, options)
        except BaseException:
            self.close()
            raise

    def _make_stream(self, memory: QueueMemory) -> None:
        """Before anything is read or delivered."""
        core = self._lines[0][0].core
        memory.make_hot_failover(core, self.options)
        for line, _ in self._lines[1:]:
            queue = EventQueue(line, self.options, EventQueueOptions(), None)
            self._queues.append(queue)
            joined = line.registry.part(queue, QueueMemory)
            if joined is None:
                raise line.core.closed_error("the context of another line")
            memory.join(core, joined)

    def stats(self) -> Counters:
        """Its counters by name (docs/counters.md, groups event_queue and hot_failover). Any thread. Raises Closed."""
        return {**super().stats(), **hot_failover_counters(self._memory)}

    def close(self) -> None:
        """Stop receiving, at every line. Batches already taken stay readable.

        Any thread may call it, callbacks included; a second call does nothing.
        """
        super().close()
        for queue in self._queues:
            queue.close()


__all__ = ["HotFailoverReceiver"]
