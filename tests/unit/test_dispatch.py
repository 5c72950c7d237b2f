"""Callbacks: each queue has a thread, so a slow callback delays no other (docs/event-queues.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.unit.loopback import open_context
from tests.waiting import SECONDS, wait_for
from umstack import Context, Event, EventQueue, Message, Receiver

pytestmark = pytest.mark.usefixtures("way")

MESSAGES = 20


def by_receiver(context: Context, topic: str, on_message: Callable[[Event], None]) -> Receiver:
    return context.receiver(topic, on_message)


def by_queue(context: Context, topic: str, on_message: Callable[[Event], None]) -> EventQueue:
    queue = context.event_queue(on_message)
    context.receiver(topic, queue=queue)
    return queue


@pytest.mark.parametrize("make", [by_receiver, by_queue])
def test_a_callback_that_does_not_return_delays_no_other(
    make: Callable[[Context, str, Callable[[Event], None]], Receiver | EventQueue],
) -> None:
    """W8: every message of another receiver reaches its callback while the first callback blocks."""
    may_return, blocked, came = threading.Event(), threading.Event(), []

    def block(event: Event) -> None:
        if isinstance(event, Message):
            blocked.set()
            may_return.wait(10 * SECONDS)

    def note(event: Event) -> None:
        if isinstance(event, Message):
            came.append(event.data)

    with open_context() as context:
        make(context, "slow", block)
        make(context, "fast", note)
        slow, fast = (context.source(topic, flow_control="min") for topic in ("slow", "fast"))
        for source in (slow, fast):
            source.wait_connected(timeout=SECONDS)
        slow.send(b"x", flush=True)
        assert blocked.wait(SECONDS)
        try:
            for number in range(MESSAGES):
                fast.send(b"%d" % number, flush=True)
            wait_for(lambda: len(came) == MESSAGES, "every message of the other receiver")
        finally:
            may_return.set()
    assert came == [b"%d" % number for number in range(MESSAGES)]


def test_callbacks_that_close_each_other_do_not_wait_forever() -> None:
    """Closing from a callback does not wait for another callback, which may be closing this one."""
    both_run = threading.Barrier(2)
    receivers: list[Receiver] = []
    closed: list[str] = []

    def close_the_other(event: Event) -> None:
        if isinstance(event, Message):
            both_run.wait(SECONDS)
            next(other for other in receivers if other.topic != event.topic).close()
            closed.append(event.topic)

    with open_context() as context:
        receivers += [context.receiver(topic, close_the_other) for topic in ("one", "two")]
        sources = [context.source(topic, flow_control="min") for topic in ("one", "two")]
        for source in sources:
            source.wait_connected(timeout=SECONDS)
        for source in sources:
            source.send(b"x", flush=True)
        wait_for(lambda: sorted(closed) == ["one", "two"], "both callbacks")
        assert all(receiver.closed for receiver in receivers)


def test_a_callback_closes_its_context_while_others_wait() -> None:
    """The threads of the other queues end before the context does."""
    done = threading.Event()

    def close(event: Event) -> None:
        if isinstance(event, Message):
            context.close()
            done.set()

    context = open_context()
    context.receiver("one", close)
    others = [context.receiver(f"other{n}", lambda event: None) for n in range(8)]
    source = context.source("one", flow_control="min")
    source.wait_connected(timeout=SECONDS)
    source.send(b"x", flush=True)
    assert done.wait(SECONDS)
    assert context.closed
    assert all(other.closed for other in others)
    wait_for(
        lambda: not any(thread.name == "umstack-dispatch" for thread in threading.enumerate()),
        "the threads to end",
    )
