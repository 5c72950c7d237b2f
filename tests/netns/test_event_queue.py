"""Many topics of one session through one event queue, over a lossy network."""

from __future__ import annotations

from collections.abc import Callable

from umstack.bench.recovery import STREAM_OPTIONS
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import Pins, measure_stream, options_text
from umstack.lab import Lab

MakeLab = Callable[..., Lab]

TOPICS = 20
MESSAGES = 60_000


def test_every_topic_is_whole_and_in_order_under_loss(make_lab: MakeLab) -> None:
    """2 % loss: recovered messages come in place in their topic, other topics continue (UM-7, UM-8, UM-115)."""
    lab = make_lab(hosts=2)
    lab.port(1).set(loss=0.02)
    spec = StreamSpec(
        size=100,
        config=STREAM_OPTIONS + options_text("min", "real", []),
        seconds=30.0,
        max_messages=MESSAGES,
        batch_messages=37,
        topics=TOPICS,
    )
    found = measure_stream(lab, spec, Pins())
    detail = found["detail"]
    assert (found["lost"], found["out_of_order"], found["duplicates"], found["unrecoverable"]) == (0, 0, 0, 0)
    assert detail["sent"] >= MESSAGES
    assert (detail["topics"], detail["queue"]) == (TOPICS, "shared")
    assert detail["datagrams_lost"] > 0
    assert found["retransmissions"] > 0
