"""PendingRequest: a request that was sent, and the responses to it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any

from umstack._engine.waiting import timeout_ns
from umstack.async_closing import AsyncClosing
from umstack.errors import Closed, OptionError, ResponsesDropped, ResponseTimeout
from umstack.requests.inbox import Inbox
from umstack.requests.intake import NEVER_NS, ResponseIntake
from umstack.requests.response import Response

if TYPE_CHECKING:
    import asyncio


class PendingRequest(AsyncClosing):
    """Reads the responses to a request. Created by Source.request().

    Iterate it, await it, or call receive(). Responses arrive until close(), until its timeout ends, or until its source
    or context is closed. Later responses are dropped and counted (responses_late), as are those of a request that was
    garbage collected. Several threads may use it at the same time.

    Example:
        ```python
        with src.request(b"price?", timeout=0.1) as request:
            print([response.data for response in request])
        ```
    """

    __slots__ = ("_inbox", "_intake", "_timeout")

    def __init__(self, intake: ResponseIntake, inbox: Inbox, timeout: float | None) -> None:
        """Called by Source.request()."""
        self._intake = intake
        self._inbox = inbox
        self._timeout = timeout

    @property
    def topic(self) -> str:
        """The topic of its source."""
        return self._inbox.topic

    @property
    def index(self) -> int:
        """The request's number, which responses carry."""
        return self._inbox.index

    @property
    def closed(self) -> bool:
        """True once it accepts no more responses."""
        return self._inbox.is_over(time.monotonic_ns())

    # Reading

    def receive(self, timeout: float | None = None) -> Response | None:
        """Take the next response.

        In sequential mode the call runs the protocol.

        Args:
            timeout: Maximum wait in seconds; None: while the request is open, 0: do not wait.

        Returns:
            The response, or None without one in time.

        Raises:
            ResponsesDropped: Responses were dropped for lack of memory; later ones can still be read.
            Closed: The request, its source or its context is closed.

        Example:
            ```python
            with src.request(b"price?") as request:
                print(request.receive(timeout=0.1))
            ```
        """
        if not self._inbox.arrived:
            self._intake.wait(self._inbox, self._end_of_wait_ns(timeout))
        return self._next()

    def first(self, timeout: float | None = None) -> Response:
        """Take the first response and close the request.

        Args:
            timeout: Maximum wait in seconds; None: while the request is open.

        Returns:
            The response.

        Raises:
            ResponseTimeout: No response arrived in time.
            ResponsesDropped: As receive().
            Closed: As receive().

        Example:
            ```python
            print(prices.request(b"price?").first(timeout=5).data)
            ```
        """
        try:
            return self._required(self.receive(timeout), timeout)
        finally:
            self.close()

    def __iter__(self) -> Iterator[Response]:
        """Yield responses as they arrive, until the timeout ends or it is closed. Raises as receive() does."""
        while (response := self._read_on()) is not None:
            yield response

    def _read_on(self) -> Response | None:
        """Like receive(), but return None if the reader has closed the request."""
        if self._is_closed_by_reader():
            return None
        try:
            return self.receive()
        except Closed:
            if self._is_closed_by_reader():
                return None
            raise

    def _is_closed_by_reader(self) -> bool:
        return isinstance(self._inbox.error, _ClosedByReader) and not self._inbox.arrived

    def _end_of_wait_ns(self, timeout: float | None) -> int:
        deadline_ns = self._inbox.deadline_ns
        return deadline_ns if timeout is None else min(deadline_ns, time.monotonic_ns() + timeout_ns(timeout))

    def _next(self) -> Response | None:
        try:
            found = self._inbox.arrived.popleft()
        except IndexError:
            if self._inbox.error is not None:
                raise self._inbox.error.with_traceback(None) from None
            return None
        if isinstance(found, ResponsesDropped):
            raise found
        self._intake.note_read(found)
        return found

    def _required(self, found: Response | None, timeout: float | None) -> Response:
        if found is None:
            seconds = self._timeout if timeout is None else timeout
            raise ResponseTimeout(f"no response to a request on {self.topic!r} within {seconds} s")
        return found

    # Reading in an event loop

    async def receive_async(self, timeout: float | None = None) -> Response | None:
        """Take the next response, waiting in the running event loop.

        Args:
            timeout: Maximum wait in seconds; None: while the request is open, 0: do not wait.

        Returns:
            The response, or None without one in time.

        Raises:
            OptionError: The context is in sequential mode.
            UmError: As receive().

        Example:
            ```python
            with src.request(b"price?") as request:
                print(await request.receive_async(timeout=0.1))
            ```
        """
        if not self._inbox.arrived:
            await self._wait_async(self._end_of_wait_ns(timeout))
        return self._next()

    async def first_async(self, timeout: float | None = None) -> Response:
        """Take the first response and close the request; awaiting the request does this.

        Args:
            timeout: Maximum wait in seconds; None: while the request is open.

        Returns:
            The response.

        Raises:
            OptionError: The context is in sequential mode.
            UmError: As first().

        Example:
            ```python
            print(await prices.request(b"price?").first_async(timeout=5))
            ```
        """
        with self:
            return self._required(await self.receive_async(timeout), timeout)

    def __await__(self) -> Generator[Any, None, Response]:
        """Return the first response; close the request."""
        return self.first_async().__await__()

    async def __aiter__(self) -> AsyncIterator[Response]:
        """Yield responses as they arrive, without blocking the event loop. Ends and raises as iteration does."""
        while not self._is_closed_by_reader():
            try:
                response = await self.receive_async()
            except Closed:
                if self._is_closed_by_reader():
                    return
                raise
            if response is None:
                return
            yield response

    async def _wait_async(self, end_ns: int) -> None:
        """Wait until there is something to read, or until `end_ns`; the event loop receives meanwhile."""
        if self._intake.is_sequential:
            raise OptionError(
                "awaiting a response needs the context's own thread",
                hint="create the context with mode='embedded'",
            )
        import asyncio  # Imported late because it would add a third to the import time.

        inbox, loop = self._inbox, asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def note_ready() -> None:
            if inbox.is_ready and not ready.done():
                ready.set_result(None)

        def waker() -> None:
            loop.call_soon_threadsafe(note_ready)

        left_s = None if end_ns == NEVER_NS else max(0.0, (end_ns - time.monotonic_ns()) / 1e9)
        inbox.wakers.append(waker)
        try:
            with self._intake.attending() as fd:
                loop.add_reader(fd, self._intake.attend)
                try:
                    note_ready()
                    async with asyncio.timeout(left_s):
                        await ready
                except TimeoutError:
                    pass
                finally:
                    loop.remove_reader(fd)
        finally:
            inbox.wakers.remove(waker)

    # Ending

    def close(self) -> None:
        """Accept no more responses; those that arrived stay readable.

        Any thread; a second call does nothing.

        Example:
            ```python
            src.request(b"price?").close()
            ```
        """
        self._intake.end(self._inbox, _ClosedByReader(f"the request on {self.topic!r} is closed"))

    def __del__(self) -> None:
        self._intake.abandon(self._inbox)

    def __repr__(self) -> str:
        return f"<PendingRequest {self.index:#x} on {self.topic!r}{' closed' if self.closed else ''}>"


class _ClosedByReader(Closed):
    """close() was called: an iteration ends without an error."""

    default_hint = "send another request; late responses are dropped"


__all__ = ["PendingRequest"]
