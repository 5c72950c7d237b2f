"""Receiver: a subscription to one topic, with a queue of its own or one that it shares."""

from __future__ import annotations

from collections.abc import Callable

from umstack._core import lib
from umstack._engine.conditions import wait, wait_async
from umstack._engine.engine import Engine
from umstack._engine.queue_memory import QueueMemory
from umstack._engine.subscription import Subscription
from umstack.config import ReceiverOptions
from umstack.errors import NotConnected, OptionError
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.reader import Reader
from umstack.resolution import Resolver
from umstack.telemetry.reading import Counters, subscription_counters

MakeReceiver = Callable[[str, EventQueue, ReceiverOptions], "Receiver"]
"""Opens a receiver of a topic that delivers into an event queue, as its context does. With the lifecycle lock."""


class Receiver(Reader):
    """Receive one topic. Made by Context.receiver(). One thread at a time reads it.

    With an event queue, the application reads the queue: reading the receiver raises OptionError.

    Attributes:
        topic: Name of the topic.
        options: Receiver options in force.
        queue: Event queue it delivers into; None: its own.
        closed: True once close() was called.

    Example:
        ```python
        print(rcv.receive(timeout=0.1))
        ```
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
        *,
        is_relayed: bool = False,
    ) -> None:
        """Open the receiver; called by Context.receiver(). The driver relays its own to applications."""
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
            self._reading.clear()
        try:
            self._subscription = Subscription(
                engine.core, memory, topic, options, takes_group, is_relayed=is_relayed
            )
        except BaseException:
            self._close_own_queue()
            raise
        self._register()
        engine.registry.add(self, self._subscription, queue, topic)
        self._start_dispatch()

    def _register(self) -> None:
        """Register at the Stores of sources, which may be found from now on."""

    # Reading

    def _refusal(self) -> OptionError:
        return self._shared_refusal() if self.queue is not None else super()._refusal()

    def _shared_refusal(self) -> OptionError:
        return OptionError(
            f"{self._name} delivers into an event queue",
            hint="read the queue, or make the receiver without queue=",
        )

    def fileno(self) -> int:
        """Return a descriptor that is readable when rows wait: call arm() before each wait.

        The receiver owns it: do not close it.

        Returns:
            The file descriptor.

        Raises:
            OptionError: The receiver delivers into an event queue.

        Example:
            ```python
            rcv.arm() or select.select([rcv.fileno()], [], [], 0.01)
            ```
        """
        if self.queue is not None:
            raise self._shared_refusal()
        return super().fileno()

    def arm(self) -> bool:
        """Make fileno() readable at the next row.

        Returns:
            True if rows already wait.

        Raises:
            OptionError: The receiver delivers into an event queue.

        Example:
            ```python
            rcv.arm() or select.select([rcv.fileno()], [], [], 0.01)
            ```
        """
        if self.queue is not None:
            raise self._shared_refusal()
        return super().arm()

    # Sources

    @property
    def sources(self) -> list[str]:
        """The sources it receives, as `Message.source` names them, in the order of their first advertisements.

        Requires resolver_cache 1, the default (OptionError). Raises Closed.
        """
        self._check_open()
        return [name for name in self._resolver.sources_of(self.topic) if self._subscription.is_mapped(name)]

    def wait_connected(self, sources: int = 1, timeout: float | None = None) -> None:
        """Wait until the receiver has found enough sources and receives them.

        Every message that these sources send later is received, or reported as lost: their sessions are joined, and
        connections that a transport needs are accepted. An Ultra Messaging source that sends nothing to a receiver that
        has joined is taken to have accepted it after a second.

        Args:
            sources: Number of sources.
            timeout: Maximum wait in seconds; None: no timeout.

        Raises:
            NotConnected: The timeout ended.
            Closed: The receiver is closed.

        Example:
            ```python
            source = ctx.source("quotes")
            receiver = ctx.receiver("quotes")
            receiver.wait_connected(timeout=5)
            print(receiver.sources)
            ```
        """
        if not wait(self._engine, lambda: self._known_sources() >= sources, timeout):
            raise self._not_connected(sources, timeout)

    async def wait_connected_async(self, sources: int = 1, timeout: float | None = None) -> None:
        """Wait as wait_connected() does, in the running event loop.

        Args:
            sources: Number of sources.
            timeout: Maximum wait in seconds; None: no timeout.

        Raises:
            NotConnected: The timeout ended.
            OptionError: The context is in sequential mode.
            Closed: The receiver is closed.

        Example:
            ```python
            source = ctx.source("quotes")
            receiver = ctx.receiver("quotes")
            await receiver.wait_connected_async(timeout=5)
            ```
        """
        if not await wait_async(self._engine, lambda: self._known_sources() >= sources, timeout):
            raise self._not_connected(sources, timeout)

    def _known_sources(self) -> int:
        self._check_open()
        return self._subscription.connected()

    def _not_connected(self, sources: int, timeout: float | None) -> NotConnected:
        return NotConnected(
            f"{self._known_sources()} of {sources} sources of {self.topic!r} came within {timeout} s",
            hint="start a source of the topic; interface and resolver_multicast_address must be those of the source",
        )

    def _check_open(self) -> None:
        if self.closed:
            raise self._engine.core.closed_error(self._name)

    def stats(self) -> Counters:
        """Read this receiver's counters (docs/counters.md, group receiver). Any thread.

        Returns:
            Counters by name.

        Raises:
            Closed: The receiver is closed.

        Example:
            ```python
            print(rcv.stats())
            ```
        """
        self._check_open()
        return subscription_counters(self._subscription)

    def nak_cutoff(self, enabled: bool = True) -> None:
        """Stop sending NAKs for this receiver, or resume. Any thread.

        A transport session NAKs while any of its receivers needs it. Meanwhile, missing messages are recovered off the
        transport if the source offers that, or by retransmissions that others NAK for; otherwise they are lost when
        the NAK generation interval ends. Resuming also ends cutoffs that sessions of this receiver imposed on
        themselves.

        Args:
            enabled: True stops NAKs, False resumes them.

        Raises:
            Closed: The receiver is closed.

        Example:
            ```python
            rcv.nak_cutoff()
            rcv.nak_cutoff(False)
            ```

        Requirement: UX-21.
        """
        self._check_open()
        lib.um_subscription_set_nak_cutoff(self._subscription.handle, enabled)

    # Ending

    def close(self) -> None:
        """Stop receiving. Batches already taken and rows in an event queue stay readable.

        Any thread may call it, callbacks included; a second call does nothing.

        Example:
            ```python
            receiver = ctx.receiver("orders")
            receiver.close()
            ```
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
