"""EventQueue: one queue that the receivers of many topics deliver into and one thread reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from umstack._core import lib
from umstack.errors import Closed, OptionError
from umstack.events import Event
from umstack.reader import QueueMemory, Reader

if TYPE_CHECKING:
    from umstack.config import ReceiverOptions
    from umstack.context import Context


class EventQueue(Reader):
    """Rows of many topics in the order they were delivered. Made by Context.event_queue().

    A receiver made with `queue=` delivers into it and has no queue of its own, so that a thousand topics cost the
    memory, the polling and the waking of one. Messages and events say which topic they are of. Closing a receiver
    leaves what it has delivered in the queue; closing the queue closes its receivers.
    """

    __slots__ = ("options",)

    def __init__(
        self, context: Context, options: ReceiverOptions, on_message: Callable[[Event], None] | None
    ) -> None:
        self.options = options
        super().__init__(context, QueueMemory(context, options, "event queue"), "event queue", on_message)

    def memory_for(self, options: ReceiverOptions, name: str) -> QueueMemory:
        """The queue's memory, for a receiver with these options (called by it)."""
        if self.closed:
            raise Closed("the event queue is closed")
        longest = self.options.receiver_maximum_message_length_bytes
        if options.receiver_maximum_message_length_bytes != longest:
            raise OptionError(
                f"{name}: receiver_maximum_message_length is {options.receiver_maximum_message_length_bytes}, "
                f"that of its event queue {longest}",
                hint="a shared queue has one: give the option to event_queue() and leave it out here",
            )
        return self._memory

    def close(self) -> None:
        """Close the receivers that deliver into it and stop reading. Batches already taken stay readable."""
        if self._context.begin_closing_queue(self):
            for receiver in self._context.receivers_into(self):
                receiver.close()
            self._context.forget_queue(self)
            lib.um_event_queue_close(self._memory.handle)


__all__ = ["EventQueue"]
