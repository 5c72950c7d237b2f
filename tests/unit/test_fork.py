"""A forked child owns nothing of its parent's contexts: using them raises at once, leaving them takes nothing down."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.unit.loopback import connect, open_context
from tests.waiting import collect
from umstack import Forked
from umstack.context import Context
from umstack.receiver import Receiver
from umstack.source import Source

CHILD_SECONDS = 20


def in_child(function: Callable[[], object]) -> str:
    """Return the result of a function, or its error, in a forked child that then exits."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(CHILD_SECONDS)
        try:
            said = str(function())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(pid, 0)[1] == 0, "the child hung"
    return said


USES: dict[str, Callable[[Context, Source, Receiver], object]] = {
    "send": lambda _, source, __: source.send(b"child", flush=True),
    "send_many": lambda _, source, __: source.send_many([b"child"] * 3),
    "flush": lambda _, source, __: source.flush(),
    "claim": lambda _, source, __: source.claim(5).__enter__(),
    "source statistics": lambda _, source, __: source.stats(),
    "poll": lambda _, __, receiver: receiver.poll(),
    "iterate": lambda _, __, receiver: next(iter(receiver)),
    "receive": lambda _, __, receiver: receiver.receive(0),
    "receiver statistics": lambda _, __, receiver: receiver.stats(),
    "source": lambda context, _, __: context.source("more"),
    "receiver": lambda context, _, __: context.receiver("more"),
    "statistics": lambda context, _, __: context.stats(),
}


@pytest.mark.parametrize("use", USES)
def test_use_of_the_parents_objects_in_a_child_raises(use: str) -> None:
    """It raises at once with the next step; the parent's stream continues without loss."""
    with open_context() as context:
        source, receiver = connect(context, "orders")
        source.send(b"before", flush=True)
        assert [message.data for message in collect(receiver, 1)] == [b"before"]
        said = in_child(lambda: USES[use](context, source, receiver))
        assert said.startswith("Forked: "), said
        assert "make a Context in the child" in said
        for number in range(100):
            source.send(b"%d" % number, flush=True)
        assert [message.data for message in collect(receiver, 100)] == [b"%d" % n for n in range(100)]
        assert receiver.stats()["unrecoverable_loss_events"] == 0


def test_a_child_that_leaves_the_block_takes_nothing_down() -> None:
    """Closing, and collecting what was opened, leave the parent's context as it is."""

    def leave() -> str:
        nonlocal source, receiver, context
        for opened in (source, receiver, context):
            opened.close()
            opened.close()
        del source, receiver, context, opened
        return "left"

    with open_context() as kept:
        context = kept
        source, receiver = connect(kept, "orders")
        sender, reader = source, receiver
        assert in_child(leave) == "left"
        sender.send(b"after", flush=True)
        assert [message.data for message in collect(reader, 1)] == [b"after"]


def test_a_child_may_open_its_own() -> None:
    """A context that the child makes works, beside the parent's."""

    def own() -> bytes:
        with open_context() as context:
            source, receiver = connect(context, "child")
            source.send(b"own", flush=True)
            return bytes(collect(receiver, 1)[0].data)

    with open_context() as context:
        source, receiver = connect(context, "orders")
        assert in_child(own) == "b'own'"
        source.send(b"parent", flush=True)
        assert [message.data for message in collect(receiver, 1)] == [b"parent"]


def test_it_is_closed_to_those_who_catch_that() -> None:
    """Forked is a kind of Closed."""
    with open_context() as context:
        assert in_child(lambda: context.closed) == "True"
        assert not context.closed
    assert Forked.__mro__[1].__name__ == "Closed"
