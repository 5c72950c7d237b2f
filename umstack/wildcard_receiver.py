"""WildcardReceiver: receives every topic whose name a pattern matches, later topics included, in one event queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from umstack._engine.engine import Engine
from umstack.config import EventQueueOptions, ReceiverOptions, WildcardReceiverOptions
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.receiver import MakeReceiver, Receiver
from umstack.resolution import Resolver, TopicPattern


class TopicListener(NamedTuple):
    """Callbacks of a wildcard receiver for its context."""

    on_topic: Callable[[str, bool], None]
    """Called with the context's lifecycle lock when a topic has joined (True) or left."""
    on_unanswered: Callable[[int], None]
    """Called with the number of wildcard queries sent without a matching topic."""


class WildcardReceiver(EventQueue):
    """Receive all matching topics in one queue. Made by Context.wildcard_receiver().

    Each message carries the name of its topic. A topic joins when it is advertised and leaves when it has had no source
    for resolver_no_source_linger_timeout; its delivered messages stay in the queue. It is read like any event
    queue, and receivers made with `queue=` may deliver into it, too. One thread at a time reads it.

    Attributes:
        pattern: The regular expression or prefix.
        options: Receiver options of every topic.
        wildcard_options: Options of scope wildcard_receiver in force.
        queue_options: Options of scope event_queue in force.
        closed: True once close() was called.

    Example:
        ```python
        with ctx.wildcard_receiver(prefix="orders") as receiver:
            print(receiver.poll(timeout=0.1))
        ```
    """

    __slots__ = (
        "_key",
        "_listeners",
        "_make_receiver",
        "_receivers",
        "_resolver",
        "pattern",
        "wildcard_options",
    )

    def __init__(
        self,
        engine: Engine,
        resolver: Resolver,
        pattern: TopicPattern,
        key: int,
        listeners: dict[int, TopicListener],
        options: ReceiverOptions,
        wildcard_options: WildcardReceiverOptions,
        queue_options: EventQueueOptions,
        on_message: Callable[[Event], None] | None,
        make_receiver: MakeReceiver,
    ) -> None:
        """Open the receiver; called by Context.wildcard_receiver().

        `listeners` holds its callbacks under `key` while it is open. `make_receiver` is called for each topic.
        """
        self._make_receiver = make_receiver
        self._resolver = resolver
        self._key = key
        self._listeners = listeners
        self._receivers: dict[str, Receiver] = {}
        self.pattern = pattern.text
        self.wildcard_options = wildcard_options
        super().__init__(engine, options, queue_options, on_message)
        listeners[key] = TopicListener(self._on_topic, self._on_unanswered)

    def topics(self) -> list[str]:
        """List the topics received now, in the order in which they joined. Any thread.

        Returns:
            The names of the topics.

        Example:
            ```python
            with ctx.wildcard_receiver(prefix="orders") as receiver:
                print(receiver.topics())
            ```
        """
        return list(self._receivers)

    def _on_unanswered(self, queries: int) -> None:
        if not self.closed:
            self._memory.report_no_source(self.pattern, queries)

    def _on_topic(self, topic: str, has_joined: bool) -> None:
        if self.closed:
            return
        if not has_joined:
            if (receiver := self._receivers.pop(topic, None)) is not None:  # None: it could not be opened
                receiver.close()
        elif topic not in self._receivers:
            self._receivers[topic] = self._make_receiver(topic, self, self.options)

    def close(self) -> None:
        """Stop receiving every topic and end the queue. Batches already taken stay readable.

        Any thread may call it, callbacks included; a second call does nothing.

        Example:
            ```python
            ctx.wildcard_receiver(prefix="orders").close()
            ```
        """
        engine = self._engine
        if not self.closed and not engine.core.closed:
            self._resolver.stop_matching(self._key)
        super().close()
        self._listeners.pop(self._key, None)
        self._receivers.clear()


__all__ = ["TopicListener", "WildcardReceiver"]
