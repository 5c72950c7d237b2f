"""Receiver: a subscription to one topic, with a queue of its own or one that it shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from umstack._core import ffi, lib
from umstack.errors import Closed, OptionError
from umstack.events import Event
from umstack.reader import QueueMemory, Reader

if TYPE_CHECKING:
    from umstack.config import ReceiverOptions
    from umstack.context import Context
    from umstack.event_queue import EventQueue


class SubscriptionMemory:
    """The core's side of a receiver, which writes into its queue's memory."""

    __slots__ = ("_queue", "handle")

    def __init__(self, handle: Any, queue: QueueMemory) -> None:
        self.handle = handle
        self._queue = queue

    def __del__(self) -> None:
        lib.um_subscription_free(self.handle)


class Receiver(Reader):
    """A subscription. Made by Context.receiver(). One thread at a time reads it.

    With an event queue, it is the queue that is read: reading the receiver is refused.
    """

    __slots__ = ("_subscription", "_takes_group", "options", "queue", "topic")

    def __init__(
        self,
        context: Context,
        topic: str,
        options: ReceiverOptions,
        on_message: Callable[[Event], None] | None,
        queue: EventQueue | None,
        takes_group: Callable[[str], bool] | None = None,
    ) -> None:
        self.topic = topic
        self._takes_group = takes_group
        self.options = options
        self.queue = queue
        """The event queue it delivers into; None: a queue of its own."""
        name = f"receiver {topic!r}"
        memory = QueueMemory(context, options, name) if queue is None else queue.memory_for(options, name)
        super().__init__(context, memory, name, on_message)
        if queue is not None:
            self._reading = None
        try:
            handle = self._open()
        except BaseException:
            self._close_own_queue()
            raise
        self._subscription = SubscriptionMemory(handle, memory)

    def _open(self) -> Any:
        context, options = self._context, self.options
        config = ffi.new("um_receiver_config *")
        config.ordered_delivery = options.ordered_delivery
        config.map_entries_max = context.options.delivery_control_maximum_total_map_entries
        config.burst_loss_max = options.delivery_control_maximum_burst_loss
        config.loss_check_interval_ns = options.delivery_control_loss_check_interval_ns
        handle = ffi.new("um_subscription **")
        context.check(lib.um_subscription_open(self._memory.handle, config, handle), self._name)
        return handle[0]

    # Reading

    def _refusal(self) -> OptionError:
        return self._shared_refusal() if self.queue is not None else super()._refusal()

    def _shared_refusal(self) -> OptionError:
        return OptionError(
            f"{self._name} delivers into an event queue",
            hint="read the queue, or make the receiver without queue=",
        )

    def fileno(self) -> int:
        """Readable when rows wait, once armed: for an event loop of your own call arm() first."""
        if self.queue is not None:
            raise self._shared_refusal()
        return super().fileno()

    def arm(self) -> bool:
        """Ask for fileno() to become readable at the next row; True when rows wait already."""
        if self.queue is not None:
            raise self._shared_refusal()
        return super().arm()

    # Sources (called by the context)

    def wants(self, topic: str, group: str) -> bool:
        """Whether a source of this topic on this multicast group is to be mapped to it."""
        if self.closed or topic != self.topic:
            return False
        return self._takes_group is None or self._takes_group(group)

    def map(self, session: Any, topic_index: int, source: str) -> int:
        """Map a session's topic, a source of this name, to this receiver; the core's result."""
        if self.closed:
            return 0
        number = self._memory.sources.number(self.topic, source)
        return int(lib.um_subscription_map(self._subscription.handle, session, topic_index, number))

    def stats(self) -> dict[str, int | float | None]:
        """This receiver's counters."""
        if self.closed:
            raise Closed(f"{self._name} is closed")
        return self.counters()

    def counters(self) -> dict[str, int | float | None]:
        """The same while the receiver is being closed (called by the context)."""
        handle = self._subscription.handle
        return self._context.read_counters("receiver", lib.um_statistics_receiver, handle)

    # Ending

    def close(self) -> None:
        """Stop receiving. Batches already taken stay readable, and so does what waits in an event queue."""
        if self._context.begin_closing(self):
            self._context.forget_receiver(self)
            lib.um_subscription_close(self._subscription.handle)
            self._close_own_queue()

    def _close_own_queue(self) -> None:
        if self.queue is None:
            lib.um_event_queue_close(self._memory.handle)


__all__ = ["Receiver"]
