"""HotFailoverReceiver: merges the copies of a stream that several sources send, over one interface or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umstack._engine.engine import Engine
from umstack._engine.queue_memory import QueueMemory
from umstack.config import EventQueueOptions, ReceiverOptions
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.receiver import MakeReceiver
from umstack.telemetry.reading import Counters, hot_failover_counters

Line = tuple[Engine, MakeReceiver]
"""The engine of a context that receives the stream, and what opens its receiver."""


class HotFailoverReceiver(EventQueue):
    """Merge copies of one stream. Made by Context.hot_failover_receiver().

    Delivers the first copy of each message, in order of the numbers given to Source.send_hot_failover(). A number that
    arrives from no source is an UnrecoverableLoss with that number. Messages without a number are delivered as they
    arrive. It is read like any event queue, by one thread at a time.

    Attributes:
        topic: Name of the topic.
        options: Receiver options in force at every line.
        queue_options: Options of scope event_queue in force.
        closed: True once close() was called.

    Example:
        ```python
        with ctx.hot_failover_receiver("orders") as receiver:
            print(receiver.poll(timeout=0.1))
        ```
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
        """Open the receiver; called by Context.hot_failover_receiver(). The first line's context owns the queue."""
        self.topic = topic
        """The topic's name."""
        engine = lines[0][0]
        self._lines = list(lines)
        self._queues: list[EventQueue] = []
        super().__init__(engine, options, queue_options, on_message, prepare=self._make_stream)
        try:
            for (_, make_receiver), queue in zip(lines, [self, *self._queues], strict=True):
                make_receiver(topic, queue, options)
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
        """Read its counters (docs/counters.md, groups event_queue and hot_failover). Any thread.

        Returns:
            Counters by name.

        Raises:
            Closed: The receiver is closed.

        Example:
            ```python
            with ctx.hot_failover_receiver("orders") as receiver:
                print(receiver.stats())
            ```
        """
        return {**super().stats(), **hot_failover_counters(self._memory)}

    def close(self) -> None:
        """Stop receiving at every line. Batches already taken stay readable.

        Any thread may call it, callbacks included; a second call does nothing.

        Example:
            ```python
            ctx.hot_failover_receiver("orders").close()
            ```
        """
        super().close()
        for queue in self._queues:
            queue.close()


__all__ = ["HotFailoverReceiver"]
