"""Every way of reading takes the next messages: none is lost and none is delivered twice, however a loop ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count, islice
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.unit.loopback import open_context
from tests.waiting import SECONDS, wait_for
from umstack import Batch, Context, Message
from umstack.events import Event
from umstack.reader import Reader

_topic_numbers = count()
amounts = st.integers(1, 12)

Opener = Callable[[Context, str], Reader]
KINDS: dict[str, Opener] = {
    "receiver": lambda context, topic: context.receiver(topic),
    "event queue": lambda context, topic: _queue_of(context, topic),
    "wildcard": lambda context, topic: context.wildcard_receiver(prefix=topic),
    "hot failover": lambda context, topic: context.hot_failover_receiver(topic),
}


def _queue_of(context: Context, topic: str) -> Reader:
    queue = context.event_queue()
    context.receiver(topic, queue=queue)
    return queue


class HandlerFailed(Exception):
    """An application's error in the body of a loop."""


class Reading(RuleBasedStateMachine):
    """A source sends numbered messages; each rule reads some of those outstanding in another way."""

    context: Context
    kind: str

    @initialize()
    def connect(self) -> None:
        topic = f"reading/{next(_topic_numbers)}"
        self.source = self.context.source(topic, flow_control="min")
        self.reader = KINDS[self.kind](self.context, topic)
        self.source.wait_connected(timeout=SECONDS)
        self.sent: list[bytes] = []
        self.read: list[bytes] = []
        self.open: Iterator[Any] | None = None

    def _outstanding(self) -> int:
        return len(self.sent) - len(self.read)

    def _note(self, found: Any) -> bool:
        """Add a message to those read. Returns false for an event."""
        if isinstance(found, Message):
            self.read.append(found.data)
        return isinstance(found, Message)

    def _take(self, count: int, poll: Callable[[int], Batch]) -> None:
        """Poll until `count` messages were read. One call may return fewer, as many as have arrived.

        The steps of the machine must not depend on it, because Hypothesis repeats them.
        """
        end = len(self.read) + count
        while len(self.read) < end:
            most = end - len(self.read)
            batch = poll(most)
            assert len(batch), f"a message after {len(self.read)} is lost"
            for message in batch:
                self._note(message)

    @contextmanager
    def _limited(self) -> Iterator[int]:
        """Close the reader if the block waits too long for a lost message, which ends its loop."""
        timer = threading.Timer(SECONDS, self.reader.close)
        timer.start()
        try:
            yield self._outstanding()
        finally:
            timer.cancel()
        assert not self.reader.closed, f"a message after {len(self.read)} is lost"

    @rule(amount=amounts)
    def send(self, amount: int) -> None:
        for _ in range(amount):
            self.sent.append(b"%d" % len(self.sent))
            self.source.send_hot_failover(self.sent[-1], len(self.sent))
        self.source.flush()

    @precondition(lambda self: self._outstanding())
    @rule(amount=amounts)
    def break_a_loop(self, amount: int) -> None:
        with self._limited() as left:
            left = min(amount, left)
            for message in self.reader:
                left -= self._note(message)
                if left == 0:
                    break

    @precondition(lambda self: self._outstanding())
    @rule(amount=amounts)
    def fail_in_a_loop(self, amount: int) -> None:
        last = len(self.read) + min(amount, self._outstanding())
        with self._limited(), suppress(HandlerFailed):
            for message in self.reader:
                self._note(message)
                if len(self.read) == last:
                    raise HandlerFailed

    @precondition(lambda self: self._outstanding())
    @rule()
    def take_the_first(self) -> None:
        with self._limited():
            self._note(next(iter(self.reader)))

    @precondition(lambda self: self._outstanding())
    @rule(amount=amounts)
    def continue_an_iterator_left_open(self, amount: int) -> None:
        if self.open is None:
            self.open = iter(self.reader)
        with self._limited() as left:
            for message in islice(self.open, min(amount, left)):
                self._note(message)

    @precondition(lambda self: self._outstanding())
    @rule(amount=amounts)
    def iterate_over_events(self, amount: int) -> None:
        with self._limited() as left:
            left = min(amount, left)
            for event in self.reader.events():
                left -= self._note(event)
                if left == 0:
                    break

    @precondition(lambda self: self._outstanding())
    @rule(amount=amounts)
    def return_from_async_for(self, amount: int) -> None:
        async def read(left: int) -> None:
            async for message in self.reader:
                left -= self._note(message)
                if left == 0:
                    return

        with self._limited() as left:
            asyncio.run(read(min(amount, left)))

    @precondition(lambda self: self._outstanding())
    @rule(amount=amounts)
    def await_a_batch(self, amount: int) -> None:
        with self._limited() as left:
            self._take(min(amount, left), lambda most: asyncio.run(self.reader.poll_async(most)))

    @precondition(lambda self: self._outstanding())
    @rule(amount=amounts, is_whole=st.booleans())
    def poll(self, amount: int, is_whole: bool) -> None:
        left = self._outstanding()
        if is_whole:
            self._take(left, lambda _: self.reader.poll(timeout=SECONDS))
        else:
            self._take(min(amount, left), lambda most: self.reader.poll(most, timeout=SECONDS))

    @precondition(lambda self: self._outstanding())
    @rule()
    def receive(self) -> None:
        data = self.reader.receive(timeout=SECONDS)
        assert data is not None
        self.read.append(data)

    @precondition(lambda self: self._outstanding())
    @rule(amount=amounts)
    def break_a_loop_in_another_thread(self, amount: int) -> None:
        thread = threading.Thread(target=self.break_a_loop, args=(amount,))
        thread.start()
        thread.join()

    @invariant()
    def is_what_was_sent(self) -> None:
        assert self.read == self.sent[: len(self.read)]

    def teardown(self) -> None:
        try:
            while self._outstanding():
                self.receive()
            self.is_what_was_sent()
            assert self.reader.receive(timeout=0) is None
        finally:
            self.source.close()
            self.reader.close()
        assert list(self.reader) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_reading_takes_the_next_messages(kind: str) -> None:
    with open_context() as context:
        run_state_machine_as_test(
            type("Reading", (Reading,), {"context": context, "kind": kind}),
            settings=settings(
                max_examples=15,
                stateful_step_count=25,
                deadline=None,
                phases=[
                    Phase.generate
                ],  # a step that finds a message lost waits for it: shrinking takes minutes
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )


def test_arm_reports_the_messages_that_a_loop_left() -> None:
    with open_context() as context:
        source = context.source("left", flow_control="min")
        receiver = context.receiver("left")
        source.wait_connected(timeout=SECONDS)
        source.send_many([b"1", b"2"], flush=True)
        assert next(iter(receiver)).data == b"1"
        assert receiver.arm()
        assert receiver.receive(timeout=0) == b"2"
        assert not receiver.arm()


def test_a_callback_that_ends_the_program_leaves_the_other_messages() -> None:
    received: list[bytes] = []

    def on_message(event: Event) -> None:
        if isinstance(event, Message):
            received.append(event.data)
            if event.data == b"2":
                raise KeyboardInterrupt

    with closing(open_context("sequential")) as context:
        source = context.source("interrupted", flow_control="min")
        context.receiver("interrupted", on_message)
        source.wait_connected(timeout=SECONDS)
        source.send_many([b"1", b"2", b"3", b"4"], flush=True)
        with suppress(KeyboardInterrupt):
            while len(received) < 4:
                context.process_events(0.1)
        assert received == [b"1", b"2"]
        wait_for(lambda: context.process_events(0.1) or len(received) == 4, "the other messages")
    assert received == [b"1", b"2", b"3", b"4"]
