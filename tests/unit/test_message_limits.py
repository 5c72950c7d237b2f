"""A source learns which receivers drop a message that it sends, because the message is too long for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.loopback import FIXED_PORT, SHARED, open_context
from tests.waiting import SECONDS, wait_for
from umstack import Source
from umstack._engine.source_events import ReceiverEvent

pytestmark = pytest.mark.usefixtures("way")
LIMIT, LONG = 70_000, bytes(70_001)
SENDS: dict[str, Callable[[Source, bytes], Any]] = {
    "send": lambda source, data: source.send(data, flush=True),
    "send_many": lambda source, data: source.send_many([b"short", data], flush=True),
    "properties": lambda source, data: source.send(data[:-30], properties={"name": 1}, flush=True),
}
"""Every way to send a long message; properties count for its length."""
OPTIONS: dict[str, dict[str, Any]] = {
    "lbtrm": SHARED,
    "lbtru": {"transport_lbtru_port": FIXED_PORT},
    "tcp": {"transport_tcp_port": FIXED_PORT},
    "lbtipc": {"transport_lbtipc_id": 45679},
}
"""Options of each transport with which two sources share a session."""


def _too_long(source: Source) -> list[ReceiverEvent]:
    return [event for event in source.receiver_events() if event.kind == "message_too_long"]


@pytest.mark.parametrize("call", SENDS)
@pytest.mark.parametrize("transport", OPTIONS)
def test_a_message_too_long_for_a_receiver_is_an_event_that_names_it(
    transport: str, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 41: the receiver with the default limit gets the message, and the source sends it without an exception."""
    options = OPTIONS[transport]
    with open_context() as publisher, open_context() as small, open_context() as large:
        source = publisher.source("topic", transport=transport, flow_control="min", **options)
        other = publisher.source("other", transport=transport, flow_control="min", **options)
        assert source.transport == other.transport
        limited = small.receiver("topic", receiver_maximum_message_length=LIMIT)
        receivers = [limited, small.receiver("other"), large.receiver("topic"), large.receiver("other")]
        for receiver in receivers:
            receiver.wait_connected(timeout=SECONDS)
        wait_for(lambda: (source.known_receivers, other.known_receivers) == (2, 2), "the receivers")
        source.send(bytes(LIMIT), flush=True)
        assert limited.receive(SECONDS) == bytes(LIMIT)
        assert len(receivers[2].receive(SECONDS) or b"") == LIMIT
        other.send(LONG, flush=True)
        assert receivers[1].receive(SECONDS) == LONG
        assert not _too_long(source)
        with caplog.at_level(logging.WARNING, "umstack.source"):
            SENDS[call](source, LONG)
            (event,) = _too_long(source)
            wait_for(lambda: "message_too_long" in caplog.text, "the warning")
        assert event.amount == LIMIT
        known = {one.receiver for one in other.receiver_events() if one.kind in ("receiver_known", "connect")}
        assert event.receiver in known
        assert f"message_too_long {event.receiver} ({LIMIT})" in caplog.text
        wait_for(
            lambda: any(len(m.data) > 60_000 for m in receivers[2].poll(10, 0.05).messages()), "the message"
        )
        source.send(LONG, flush=True)
        assert not _too_long(source)  # at most one event per receiver in 10 s


@pytest.mark.parametrize("transport", ["tcp", "lbtipc"])
def test_a_limit_over_a_connection_follows_the_receivers_of_the_topic(transport: str) -> None:
    """Issue 41: a receiver that closes takes its limit with it, and one that is added brings its own."""
    options = OPTIONS[transport]
    with open_context() as publisher, open_context() as subscriber:
        source, *others = (publisher.source(name, transport=transport, **options) for name in "tuv")
        limited = subscriber.receiver("t", receiver_maximum_message_length=LIMIT)
        plain = subscriber.receiver("t")
        for receiver in (limited, plain):
            receiver.wait_connected(timeout=SECONDS)
        limited.close()
        for other in others:
            follower = subscriber.receiver(other.topic)  # behind the report on the connection
            other.wait_connected(timeout=SECONDS)
            source.send(LONG, flush=True)
            assert plain.receive(SECONDS) == LONG
            assert len(_too_long(source)) == (other is others[1])
            limited = subscriber.receiver("t", receiver_maximum_message_length=LIMIT)
            limited.wait_connected(timeout=SECONDS)
            follower.close()
