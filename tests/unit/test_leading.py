"""A reader that waits receives for itself, in place of the context's thread (ffi/io/loop_leader.h)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loopback import connect, open_context
from tests.waiting import SECONDS, wait_for
from umstack import Context, Message, Receiver, Source
from umstack.events import Event

ROUND_TRIPS = 200
RUNS_MAX = 3
"""Readers lead where answers come soon: other work on the machine may keep them from it for a run."""


def passes_led(context: Context) -> int:
    """How often a reader has received in place of the context's thread."""
    return int(context.stats()["context"]["loop_passes_led"])


def processor_ticks() -> dict[str, int]:
    """The processor time that each thread of this process has taken, by its number and name, in clock ticks."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name, _, rest = (task / "stat").read_text().rpartition(")")
            found[f"{task.name} {name.partition('(')[2]}"] = sum(map(int, rest.split()[11:13]))
    return found


def is_this(thread: str) -> bool:
    """Whether it is the thread that calls."""
    return thread.split()[0] == str(threading.get_native_id())


def echo_by_receive(source: Source, receiver: Receiver) -> None:
    """Send every message back, until there are enough."""
    for _ in range(ROUND_TRIPS):
        source.send(receiver.receive(SECONDS) or b"nothing came", flush=True)


def ask_by_receive(source: Source, receiver: Receiver) -> list[bytes | None]:
    """One question after the other."""
    answers = []
    for number in range(ROUND_TRIPS):
        source.send(b"%d" % number, flush=True)
        answers.append(receiver.receive(SECONDS))
    return answers


def ask_by_poll(source: Source, receiver: Receiver) -> list[bytes | None]:
    """The same with batches."""
    answers: list[bytes | None] = []
    for number in range(ROUND_TRIPS):
        source.send(b"%d" % number, flush=True)
        while len(answers) == number:
            batch = receiver.poll(timeout=SECONDS)
            assert batch, "nothing came"
            answers += batch.payloads() if not batch.event_count else [one.data for one in batch.messages()]
    return answers


def ask_in_a_loop(source: Source, receiver: Receiver) -> list[bytes | None]:
    """The same in an event loop."""

    async def ask() -> list[bytes | None]:
        answers: list[bytes | None] = []
        answering = aiter(receiver)
        for number in range(ROUND_TRIPS):
            source.send(b"%d" % number, flush=True)
            answers.append((await asyncio.wait_for(anext(answering), SECONDS)).data)
        return answers

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("ask", "options"),
    [(ask_by_receive, {}), (ask_by_poll, {}), (ask_in_a_loop, {"pend_adaptive_linger_limit": 5})],
)
def test_a_reader_that_waits_receives_for_itself(
    ask: Callable[[Source, Receiver], list[bytes | None]], options: dict[str, Any]
) -> None:
    """The reader leads, and every answer is there in order. An event loop leads only while it polls, so answers have
    to come within that time: 0.1 ms by default, which a slow machine exceeds.
    """
    with open_context(**options) as asking, open_context(**options) as answering:
        requests = answering.receiver("requests")
        answers = answering.source("replies", flow_control="min")
        replies = asking.receiver("replies")
        questions = asking.source("requests", flow_control="min")
        for source in (answers, questions):
            source.wait_connected(timeout=SECONDS)
        led: list[int] = []
        for _ in range(RUNS_MAX):
            before = passes_led(asking), passes_led(answering)
            echo = threading.Thread(target=echo_by_receive, args=(answers, requests))
            echo.start()
            found = ask(questions, replies)
            echo.join()
            assert found == [b"%d" % number for number in range(ROUND_TRIPS)]
            led.append(min(passes_led(asking) - before[0], passes_led(answering) - before[1]))
            if led[-1] > ROUND_TRIPS / 4:
                break
        assert led[-1] > ROUND_TRIPS / 4, led


def test_callbacks_are_given_what_their_thread_received() -> None:
    """A dispatch thread for each queue waits, and one of them leads meanwhile."""
    seen: dict[str, list[bytes]] = {"one": [], "two": []}

    def note(event: Event) -> None:
        if isinstance(event, Message):
            seen[event.topic].append(event.data)

    with open_context() as context:
        sources = [context.source(topic, flow_control="min") for topic in seen]
        for topic in seen:
            context.receiver(topic, note)
        for source in sources:
            source.wait_connected(timeout=SECONDS)
        for number in range(ROUND_TRIPS):
            for source in sources:
                source.send(b"%d" % number, flush=True)
            wait_for(lambda: all(len(one) > number for one in seen.values()))  # noqa: B023
        assert passes_led(context) > ROUND_TRIPS / 4
    expected = [b"%d" % number for number in range(ROUND_TRIPS)]
    assert seen == {"one": expected, "two": expected}


def test_what_comes_while_the_reader_works_is_received() -> None:
    """The context's thread takes over when the reader leaves; `queued_messages` grows meanwhile."""
    with open_context() as context:
        source, receiver = connect(context, "left")
        source.send(b"first", flush=True)
        assert receiver.receive(SECONDS) == b"first"
        for _ in range(50):
            source.send(b"more", flush=True)
        wait_for(lambda: receiver.stats()["queued_messages"] == 50)


def test_waiting_takes_no_processor() -> None:
    """Nothing is burnt at rest, whether a reader leads or not."""
    others = processor_ticks().keys() - {thread for thread in processor_ticks() if is_this(thread)}
    with open_context() as context:
        source, receiver = connect(context, "rest")
        for _ in range(100):  # replies that come soon make the reader poll
            source.send(b"soon", flush=True)
            assert receiver.receive(SECONDS) == b"soon"
        before = processor_ticks()
        assert receiver.receive(0.5) is None
        used = {thread: ticks - before.get(thread, 0) for thread, ticks in processor_ticks().items()}
        used = {thread: ticks for thread, ticks in used.items() if thread not in others}
        assert sum(used.values()) < 0.05 * os.sysconf("SC_CLK_TCK"), used


def test_other_threads_of_the_interpreter_run_while_a_reader_leads() -> None:
    """The lock of the interpreter is released while the loop runs."""
    with open_context() as context:
        _, receiver = connect(context, "free")
        turns, stop = 0, threading.Event()

        def turn() -> None:
            nonlocal turns
            while not stop.wait(0.001):
                turns += 1

        other = threading.Thread(target=turn)
        other.start()
        assert receiver.receive(0.2) is None
        stop.set()
        other.join()
        assert turns > 20


def test_a_context_that_polls_is_not_led() -> None:
    """With busy_wait the context's thread is there before any reader."""
    with open_context(file_descriptor_management_behavior="busy_wait") as context:
        source, receiver = connect(context, "busy")
        source.send(b"one", flush=True)
        assert receiver.receive(SECONDS) == b"one"
        assert passes_led(context) == 0


def test_closing_the_context_ends_the_wait_of_the_reader_that_leads() -> None:
    """Close() during a wait, as without a leader."""
    context = open_context()
    source, receiver = connect(context, "closed")
    begun, ended = threading.Event(), threading.Event()

    def read() -> None:
        for _ in receiver:
            begun.set()
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    source.send(b"one", flush=True)
    assert begun.wait(SECONDS)
    context.close()
    assert ended.wait(SECONDS)
    reader.join()
