"""asyncio: reading and sending inside a running event loop, which goes on turning meanwhile."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loopback import SMALL_QUEUE, collect_events, connect, open_context, payloads
from tests.unit.ways import SMALL_WINDOW, alone
from tests.waiting import SECONDS, wait_for
from umstack import BackPressured, Closed, Context, NotConnected, Receiver
from umstack.async_closing import AsyncClosing
from umstack.errors import OptionError

pytestmark = pytest.mark.usefixtures("way")

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def context(way: str) -> Iterator[Context]:
    with open_context() as context:
        yield context


def run(coroutine: Awaitable[Any]) -> Any:
    """Run it in a new event loop, for as long as a test may take."""
    return asyncio.run(asyncio.wait_for(coroutine, SECONDS))  # type: ignore[arg-type]


async def turns_while(awaited: Awaitable[Any]) -> tuple[Any, int]:
    """Return the result, and how often another task of the loop ran meanwhile."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.005)

    other = asyncio.create_task(turn())
    try:
        return await awaited, turns
    finally:
        other.cancel()


def test_messages_are_iterated_in_the_loop(context: Context) -> None:
    """`async for` gives messages as they come; the loop turns while it waits."""
    source, receiver = connect(context, "async for")

    async def read() -> list[bytes]:
        found = []
        async for message in receiver:
            found.append(message.data)
            if len(found) == 3000:
                break
        return found

    async def both() -> tuple[list[bytes], int]:
        asyncio.get_running_loop().call_later(
            0.1, lambda: source.send_many([b"%d" % i for i in range(3000)], flush=True)
        )
        return await turns_while(read())

    with source, receiver:
        found, turns = run(both())
    assert found == [b"%d" % i for i in range(3000)]
    assert turns >= 5


def test_poll_async_gives_batches(context: Context) -> None:
    """One await, many messages (W9); max_rows bounds it as it does poll()."""
    source, receiver = connect(context, "poll_async")

    async def read() -> list[bytes]:
        found: list[bytes] = []
        while len(found) < 100:
            batch = await receiver.poll_async(10)
            assert 0 < len(batch) <= 10
            found += payloads(batch.messages())
        return found

    with source, receiver:
        source.send_many([b"%d" % i for i in range(100)], flush=True)
        assert run(read()) == [b"%d" % i for i in range(100)]


def test_many_receivers_wait_in_one_loop(context: Context) -> None:
    """Each receiver has a descriptor of its own; they wait side by side in one thread."""
    pairs = [connect(context, f"side by side {i}") for i in range(10)]

    async def first(receiver: Receiver) -> bytes:
        async for message in receiver:
            return message.data
        raise AssertionError

    async def everything() -> list[bytes]:
        readers = [asyncio.create_task(first(receiver)) for _, receiver in pairs]
        await asyncio.sleep(0.02)
        for number, (source, _) in enumerate(pairs):
            source.send(b"%d" % number, flush=True)
        return list(await asyncio.gather(*readers))

    assert run(everything()) == [b"%d" % i for i in range(10)]
    for source, receiver in pairs:
        source.close()
        receiver.close()


def test_one_task_at_a_time_waits(context: Context) -> None:
    """A second task that awaits the same receiver gets an error, instead of both waiting forever."""
    source, receiver = connect(context, "two tasks")

    async def both() -> bytes:
        first = asyncio.create_task(receiver.poll_async())
        await asyncio.sleep(0.02)
        with pytest.raises(OptionError, match="one task at a time"):
            await receiver.poll_async()
        source.send(b"to the first", flush=True)
        return (await first).messages()[0].data

    with source, receiver:
        collect_events(receiver, 1)
        assert run(both()) == b"to the first"


def test_a_wait_may_be_cancelled(context: Context) -> None:
    """Cancelling leaves the receiver as it was: nothing is lost and it can be awaited again."""
    source, receiver = connect(context, "cancel")

    async def cancelled() -> list[bytes]:
        found: list[bytes] = []
        for number in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await receiver.poll_async()
            source.send(b"%d" % number, flush=True)
            found += payloads((await receiver.poll_async()).messages())
        return found

    with source, receiver:
        collect_events(receiver, 1)
        assert run(cancelled()) == [b"0", b"1", b"2", b"3", b"4"]


def test_closing_ends_an_async_iteration(context: Context) -> None:
    """When it is closed from the loop or from elsewhere, `async for` ends and poll_async raises the reason."""

    async def read(receiver: Receiver) -> None:
        async for _ in receiver:
            pass

    async def close_while(wait: Callable[[Receiver], Awaitable[Any]]) -> Any:
        receiver = context.receiver("async close")
        asyncio.get_running_loop().call_later(0.05, receiver.close)
        return await wait(receiver)

    assert run(close_while(read)) is None
    with pytest.raises(Closed):
        run(close_while(lambda receiver: receiver.poll_async()))


@alone(SMALL_WINDOW)
def test_send_async_waits_in_the_loop() -> None:
    """UX-2: what a refused send waits for is a descriptor; the loop turns until the window opens again."""
    with open_context() as own:
        source, receiver = connect(
            own,
            "send_async",
            transport_lbtrm_transmission_window_size=1 << 18,
            **SMALL_QUEUE,
        )
        collect_events(receiver, 1)
        messages = [b"%04d" % i + bytes(1000) for i in range(1500)]

        async def send() -> list[int]:
            return [await source.send_async(message, flush=True) for message in messages]

        async def read() -> list[bytes]:
            await asyncio.sleep(0.1)
            found: list[bytes] = []
            while len(found) < len(messages):
                found += payloads((await receiver.poll_async()).messages())
            return found

        async def both() -> tuple[list[int], list[bytes]]:
            sent, found = await asyncio.gather(send(), read())
            return sent, found

        (sent, found), turns = run(turns_while(both()))
        assert sent == list(range(1500))
        assert found == messages
        assert turns >= 5
        assert own.stats()["context"]["send_would_block"] > 0


def test_the_descriptors_work_in_any_event_loop(context: Context) -> None:
    """fileno() and arm(): a selector of one's own is woken by the next row, and only then."""
    source, receiver = connect(context, "selector")
    with source, receiver, selectors.DefaultSelector() as selector:
        collect_events(receiver, 1)
        selector.register(receiver, selectors.EVENT_READ)
        assert not receiver.arm()
        assert not selector.select(0.05)
        source.send(b"wake", flush=True)
        assert selector.select(SECONDS)
        assert payloads(receiver.poll().messages()) == [b"wake"]
        source.send(b"there", flush=True)
        wait_for(lambda: receiver.stats()["queued_messages"] == 1)
        assert receiver.arm(), "rows wait already: do not sleep"


@alone(SMALL_WINDOW)
def test_closing_a_source_ends_send_async() -> None:
    """A task that waits to send gets Closed when its source is closed."""
    with open_context() as own:
        source = own.source("nobody", flow_control="min")

        async def send() -> None:
            asyncio.get_running_loop().call_later(0.05, source.close)
            await source.send_async(b"never")

        started = time.monotonic()
        with pytest.raises(Closed):
            run(send())
        assert time.monotonic() - started < 2


def test_sequential_contexts_are_refused() -> None:
    """UM-15: in sequential mode nothing runs the protocol while the event loop sleeps: the error names the right mode,
    and the guide names it, as it does for the statistics.
    """
    guide = (REPOSITORY / "docs" / "guides" / "sequential-mode.md").read_text()
    assert "asyncio needs the embedded mode" in guide
    assert "`Context(statistics=True)`" in guide
    with open_context("sequential") as own, own.receiver("x") as receiver, own.source("x") as source:
        with pytest.raises(OptionError, match="mode='embedded'"):
            run(receiver.poll_async())
        with pytest.raises(OptionError, match="mode='embedded'"):
            run(source.send_async(b"x"))
        with pytest.raises(OptionError, match="mode='embedded'"):
            run(source.wait_drained_async())


def test_async_with_closes_in_the_loop() -> None:
    """`async with` closes a context, its source and its receiver, and the loop runs while close() waits."""

    async def use() -> list[Any]:
        async with open_context() as own, own.source("x") as source, own.receiver("x") as receiver:
            assert not any(one.closed for one in (own, source, receiver))
        return [own, source, receiver]

    assert all(one.closed for one in run(use()))


def test_async_with_does_not_block_the_loop(context: Context) -> None:
    """close() waits for a callback that needs the loop: on the loop's thread, neither would end."""

    async def use() -> bool:
        loop = asyncio.get_running_loop()
        is_called, is_released = asyncio.Event(), threading.Event()

        def on_message(_: object) -> None:
            loop.call_soon_threadsafe(is_called.set)
            is_released.wait(SECONDS)

        async with context.source("callback", flow_control="min") as source:
            async with context.receiver("callback", on_message) as receiver:
                await source.wait_connected_async(timeout=SECONDS)
                source.send(b"x", flush=True)
                await is_called.wait()
                loop.call_later(0.05, is_released.set)
            return receiver.closed and is_released.is_set()

    assert run(use())


def test_async_with_closes_when_its_task_is_cancelled(context: Context) -> None:
    """A cancellation that arrives while the block ends does not leave the object open."""

    async def use() -> bool:
        receiver = context.receiver("cancelled")
        close = AsyncClosing.__aexit__(receiver, None, None, None)
        task = asyncio.ensure_future(close)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return receiver.closed

    assert run(use())


def test_waiting_for_receivers_turns_the_loop(context: Context) -> None:
    """wait_connected_async() and wait_drained_async() have the results of their blocking forms."""
    receivers: list[Receiver] = []

    async def wait() -> bool:
        with context.source("awaited", flow_control="min") as source:
            with pytest.raises(NotConnected, match="0 of 1 receivers"):
                await source.wait_connected_async(timeout=0.05)
            asyncio.get_running_loop().call_later(
                0.05, lambda: receivers.append(context.receiver("awaited", **SMALL_QUEUE))
            )
            await source.wait_connected_async(timeout=SECONDS)
            source.send(b"data")
            drained = await source.wait_drained_async(timeout=SECONDS)
            unread = receivers[0].receive(timeout=SECONDS)
            return bool(drained) and unread == b"data"

    found, turns = run(turns_while(wait()))
    receivers[0].close()
    assert found
    assert turns >= 5


def test_waiting_without_flow_control_is_refused(context: Context) -> None:
    with (
        context.source("unknown", flow_control="none") as source,
        pytest.raises(OptionError, match="does not know its receivers"),
    ):
        run(source.wait_connected_async(timeout=0))


@alone(SMALL_WINDOW)
def test_back_pressure_is_an_exception_without_waiting() -> None:
    """AE-13: the same send with timeout=0 raises at once that it would wait."""
    with open_context() as own:
        source, receiver = connect(own, "full", transport_lbtrm_transmission_window_size=1 << 16)

        def fill() -> None:
            for _ in range(100_000):
                source.send(bytes(1000), timeout=0)

        with pytest.raises(BackPressured):
            fill()
        receiver.close()
