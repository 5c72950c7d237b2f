"""Sources and receivers of a context that is attached to a driver (docs/driver.md).

The messages pass through shared logs. The driver sends and receives them on the network, and reports the state there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from umstack._core import lib
from umstack._engine.conditions import wait, wait_async
from umstack._engine.engine import Engine
from umstack._engine.source_events import Drained
from umstack._engine.transport_address import LbtipcAddress
from umstack.config import ReceiverOptions, SourceOptions
from umstack.driver import DriverClient, SharedLog
from umstack.errors import DriverError, OptionError, UmError
from umstack.event_queue import EventQueue
from umstack.events import Event
from umstack.receiver import Receiver
from umstack.requests import RequestService
from umstack.resolution import Resolver
from umstack.source import Source
from umstack.telemetry.reading import publication_counters

_ATTACHED_SECONDS = 2.0


def unsupported(what: str, why: str) -> OptionError:
    """Return the error for something that a context with a driver does not have."""
    return OptionError(
        f"{what}: not through a driver, {why}",
        hint="open a context with driver='none' for it (docs/driver.md)",
    )


class AttachedSource(Source):
    """A source whose messages a driver publishes. Made by Context.source()."""

    __slots__ = ("_driver", "_number", "_published")

    def __init__(
        self,
        engine: Engine,
        resolver: Resolver,
        driver: DriverClient,
        topic: str,
        topic_index: int,
        options: SourceOptions,
        requests: RequestService,
    ) -> None:
        """Open the source and let the driver, and the receivers of this host, attach to its log."""
        if options.transport == "lbtipc":
            raise unsupported("transport lbtipc", "because it needs none")
        if options.late_join:
            raise unsupported("late_join", "because the receivers of this host could not request messages")
        self._driver = driver
        session = engine.sessions.open_own(_log_options(options))
        self._number = 0
        try:
            super().__init__(engine, resolver, session, topic, topic_index, options, requests)
        except BaseException:
            engine.sessions.release(session)
            raise
        try:
            address = cast("LbtipcAddress", session.address)
            log = SharedLog(address.session_id, address.transport_id, topic_index, session.log_key)
            self._number, self._published = driver.publish(topic, log, options, self._on_driver_lost)
            self.topic_index = self._published.topic_index
            if self._published.message_max_bytes < super().message_maximum_bytes:
                raise unsupported(
                    "a transmission window this small",
                    f"where a message has up to {super().message_maximum_bytes} bytes",
                )
            wait(engine, self._is_attached, _ATTACHED_SECONDS)
            if not self._log_readers():
                raise DriverError(f"the driver at {driver.path} did not attach to the log of {topic!r}")
        except BaseException:
            self.close()
            raise

    def _log_readers(self) -> float:
        return publication_counters(self._publication)["num_clients"] or 0

    def _is_attached(self) -> bool:
        return self._log_readers() >= self._published.readers

    def _on_driver_lost(self) -> None:
        """Refuse every later send. On the thread that reads the driver's messages."""
        lib.um_publication_disown(self._handle)

    def _error(self, result: int, doing: str) -> UmError:
        if result == lib.UM_CLOSED and self._driver.lost and not self.closed:
            return self._driver.lost_error()
        return super()._error(result, doing)

    @property
    def is_connected(self) -> bool:
        """True if the driver's sends need not wait for a receiver. Raises Closed, DriverError."""
        self._check_open()
        return self._driver.state(self._number).is_connected

    @property
    def known_receivers(self) -> int:
        """The receivers that wait_connected() counts: those of the network, and those of this driver's applications.

        Raises:
            DriverError: The driver has ended.
            Closed: The source is closed.
        """
        self._check_open()
        return self._driver.state(self._number).receivers

    def wait_drained(self, timeout: float | None = None) -> Drained:
        """Wait as Source.wait_drained() does: for the driver, and for every receiver known to it.

        Args:
            timeout: Maximum wait in seconds; None: no timeout.

        Returns:
            Drained, as Source.wait_drained().

        Raises:
            DriverError: The driver has ended.
            Closed: The source is closed.

        Example:
            ```python
            ctx.source("orders").wait_drained(timeout=1)
            ```
        """
        self.flush()
        is_complete = wait(self._engine, self._is_drained, timeout)
        return Drained(is_complete, self._driver.state(self._number).given_up)

    async def wait_drained_async(self, timeout: float | None = None) -> Drained:
        """Wait as wait_drained() does, in the running event loop.

        Args:
            timeout: Maximum wait in seconds; None: no timeout.

        Returns:
            Drained, as Source.wait_drained().

        Raises:
            DriverError: The driver has ended.
            Closed: The source is closed.

        Example:
            ```python
            await ctx.source("orders").wait_drained_async(timeout=1)
            ```
        """
        await wait_async(self._engine, self._flushes, None)
        is_complete = await wait_async(self._engine, self._is_drained, timeout)
        return Drained(is_complete, self._driver.state(self._number).given_up)

    def _is_drained(self) -> bool:
        if not super()._is_drained():
            return False
        state = self._driver.state(self._number)
        return state.is_drained and state.reached == int(self.stats()["fragments_sent"] or 0) % 2**32

    @property
    def transport(self) -> str:
        """The driver's session on the network, as Source.transport names it."""
        return self._published.name

    def close(self) -> None:
        """Flush and end the source; the driver publishes what it has not published yet.

        Any thread may call it; a second call does nothing.

        Example:
            ```python
            source = ctx.source("orders")
            source.close()
            ```
        """
        was_closed = self.closed
        super().close()
        if not was_closed and self._number:
            self._driver.end(self._number)


def _log_options(options: SourceOptions) -> SourceOptions:
    """Return the options of the log of a source: a send waits for the driver and for the receivers of this host."""
    return replace(
        options,
        transport="lbtipc",
        transport_lbtipc_behavior="receiver_paced",
        transport_lbtipc_id=0,
        late_join=False,
    )


class AttachedReceiver(Receiver):
    """A receiver whose topic a driver receives. Made by Context.receiver()."""

    __slots__ = ("_driver", "_number")

    def __init__(
        self,
        engine: Engine,
        resolver: Resolver,
        driver: DriverClient,
        topic: str,
        options: ReceiverOptions,
        on_message: Callable[[Event], None] | None,
        queue: EventQueue | None,
    ) -> None:
        """Open the receiver and have the driver receive the topic."""
        if options.use_late_join and "use_late_join" in options.given:
            raise unsupported("use_late_join", "because its log begins with the next message")
        self._driver = driver
        self._number = 0
        super().__init__(engine, resolver, topic, options, on_message, queue)
        try:
            self._number = driver.receive(self._subscription, options)
        except BaseException:
            self.close()
            raise

    @property
    def sources(self) -> list[str]:
        """The sources it receives, as `Message.source` names them, in alphabetical order. Raises Closed."""
        self._check_open()
        return self._subscription.sources

    def nak_cutoff(self, enabled: bool = True) -> None:
        """Raise OptionError: the driver sends the NAKs, for all receivers of the topic.

        Args:
            enabled: Has no effect.

        Raises:
            OptionError: Always.

        Example:
            ```python
            ctx.receiver("orders").nak_cutoff()
            ```
        """
        raise unsupported("nak_cutoff", "because it sends the NAKs of all receivers of the topic")

    def close(self) -> None:
        """Stop receiving, as Receiver.close().

        Example:
            ```python
            ctx.receiver("orders").close()
            ```
        """
        was_closed = self.closed
        super().close()
        if not was_closed and self._number:
            self._driver.end(self._number)
