"""Faults that users of other messaging systems reported in public, tried here. Each test names the report."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loopback import OWN_ADDRESSES, SHARED, configuration_file, open_context, payloads
from tests.unit.ways import LONG, alone
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context

MIN: dict[str, Any] = {"flow_control": "min"}


def test_a_receiver_made_again_receives_while_another_topic_keeps_the_session(
    sending: Context, receiving: Context
) -> None:
    """aeron-io/aeron#466: after its subscription was closed and made again, it received nothing, because another
    stream kept the channel open."""
    with (
        sending.source("again/kept", **MIN, **SHARED) as kept,
        sending.source("again/new", **MIN, **SHARED) as source,
        receiving.receiver("again/kept"),
    ):
        assert kept.transport == source.transport
        for number in range(3):
            with receiving.receiver("again/new") as receiver:
                receiver.wait_connected(timeout=SECONDS)
                wait_for(lambda: source.is_connected, "a receiver")
                source.send(b"%d" % number, flush=True)
                assert payloads(collect(receiver, 1)) == [b"%d" % number]


@alone(LONG)
def test_four_hundred_topics_of_one_session_are_all_connected(sending: Context, receiving: Context) -> None:
    """aeron-io/aeron#194: with 400 streams on one channel, some publications stayed NOT_CONNECTED."""
    topics = [f"crowd/{number}" for number in range(400)]
    with ExitStack() as stack:
        receivers = [stack.enter_context(receiving.receiver(topic)) for topic in topics]
        sources = [stack.enter_context(sending.source(topic, **MIN)) for topic in topics]
        for receiver in receivers:
            receiver.wait_connected(timeout=SECONDS)
        for source in sources:
            source.wait_connected(timeout=SECONDS)
            source.send(source.topic.encode(), flush=True)
        assert len({source.transport for source in sources}) < len(topics)
        for topic, receiver in zip(topics, receivers, strict=True):
            assert payloads(collect(receiver, 1)) == [topic.encode()]


def test_a_receiver_that_is_never_read_does_not_deafen_others(sending: Context, receiving: Context) -> None:
    """aeron-io/aeron#1145: one dead subscriber of a host eventually made the other applications there deaf."""
    limits: dict[str, Any] = {
        "receiver_queue_block_length": 65536,
        "receiver_queue_block_count": 4,
        "receiver_maximum_message_length": 1000,
        "receiver_full_queue_hold_interval": 200,
    }
    with (
        sending.source("deaf", **MIN) as source,
        receiving.receiver("deaf", **limits) as dead,
        receiving.receiver("deaf") as alive,
    ):
        for receiver in (dead, alive):
            receiver.wait_connected(timeout=SECONDS)
        source.wait_connected(timeout=SECONDS)
        messages = [b"%06d" % number * 100 for number in range(3000)]
        got: list[bytes] = []
        for at in range(0, len(messages), 100):
            source.send_many(messages[at : at + 100], flush=True, timeout=SECONDS)
            got += payloads(collect(alive, 100))
        assert got == messages
        assert dead.stats()["cut_loose"] == 1


def test_contexts_on_one_port_receive_their_own_groups_only(sending: Context) -> None:
    """zeromq/libzmq#2056: receivers of different groups on the same port received each other's data."""
    block = str(OWN_ADDRESSES["resolver_multicast_address"]).rpartition(".")[0]
    with open_context() as first, open_context() as second, ExitStack() as stack:
        for number, context in enumerate((first, second)):
            group = {**MIN, "transport_lbtrm_multicast_address": f"{block}.{40 + number}"}
            receiver = stack.enter_context(context.receiver(f"groups/{number}"))
            source = stack.enter_context(sending.source(f"groups/{number}", **group))
            source.wait_connected(timeout=SECONDS)
            source.send(b"%d" % number, flush=True)
            assert payloads(collect(receiver, 1)) == [b"%d" % number]
        for context in (first, second):
            assert context.stats()["context"]["lbtrm_unknown_msgs_rcved"] == 0


@pytest.mark.parametrize("is_source_first", [True, False])
def test_the_order_of_starting_does_not_matter(is_source_first: bool) -> None:
    """zeromq/libzmq#4331 (NORM): a subscriber that was started after its publisher received nothing, ever."""
    with ExitStack() as stack:
        contexts = [stack.enter_context(open_context()) for _ in range(2)]
        if is_source_first:
            source = stack.enter_context(contexts[0].source("order"))
            source.send(b"before", flush=True)
            receiver = stack.enter_context(contexts[1].receiver("order"))
        else:
            receiver = stack.enter_context(contexts[1].receiver("order"))
            source = stack.enter_context(contexts[0].source("order"))
        receiver.wait_connected(timeout=SECONDS)
        wanted = [b"%d" % number for number in range(100)]
        source.send_many(wanted, flush=True)
        got: list[bytes] = []

        def has_the_last() -> bool:
            got.extend(payloads(receiver.poll(1000, 0.05).messages()))
            return got[-1:] == wanted[-1:]

        wait_for(has_the_last, "the last message")
        assert got[-100:] == wanted


_PUBLISHER = """
    import sys, umstack
    with umstack.Context("lo", config=sys.argv[1], statistics=False) as context:
        with context.source("killed", late_join=1) as source:
            source.send(sys.argv[2].encode(), flush=True)
            print("sent", flush=True)
            sys.stdin.read()
"""


def test_a_publisher_that_was_killed_is_received_again(tmp_path: Path) -> None:
    """zeromq/libzmq#1245: after a hard power-off of the publisher, subscribers did not reconnect to the new one."""
    config = configuration_file(tmp_path)
    with (
        open_context() as context,
        context.receiver("killed", transport_lbtrm_activity_timeout=1000) as receiver,
    ):
        for number in range(3):
            command = [sys.executable, "-c", textwrap.dedent(_PUBLISHER), str(config), str(number)]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as publisher:
                try:
                    assert publisher.stdout is not None
                    assert publisher.stdout.readline() == "sent\n"
                    assert payloads(collect(receiver, 1)) == [b"%d" % number]
                finally:
                    publisher.send_signal(signal.SIGKILL)


def test_the_second_receiver_gets_the_same_past_as_the_first(sending: Context) -> None:
    """aeron-io/aeron#34: the first subscriber got all messages from the start, those after it a part."""
    with sending.source("past/all", late_join=1) as source:
        messages = [b"%d" % number for number in range(1000)]
        source.send_many(messages, flush=True)
        with open_context() as first, open_context() as second:
            for context in (first, second):
                with context.receiver("past/all") as receiver:
                    assert payloads(collect(receiver, len(messages))) == messages
