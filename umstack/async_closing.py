"""Base class of public objects with close(): `with` and `async with` close them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from umstack_xdp.closing import Closing


class AsyncClosing(Closing):
    """Closed at the end of its `with` or `async with` block."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        """Return self; it is open from its creation on."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it on another thread, because close() may wait; the event loop continues meanwhile."""
        import asyncio  # a third of the time that importing a context takes

        closing = asyncio.ensure_future(asyncio.to_thread(self.close))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing])  # the block ends closed, also when its task is cancelled
            raise
