"""Wildcard receivers: topics join when they appear and leave after their sources have ended, in one event queue."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

import pytest

from tests.bench.measure_wildcard import WildcardPlan, measure
from tests.unit.loopback import SHARED, open_context
from tests.unit.ways import EVERY_WAY, ITS_SESSION, LONG, alone
from tests.waiting import SECONDS, wait_for
from umstack import Closed, Context, Message, WildcardReceiver
from umstack.errors import OptionError, TopicNameError
from umstack.events import Event

pytestmark = pytest.mark.usefixtures("way")


def take(receiver: WildcardReceiver, count: int) -> dict[str, list[bytes]]:
    """Return the payloads of the next `count` messages, by topic."""
    found: dict[str, list[bytes]] = defaultdict(list)
    while sum(map(len, found.values())) < count:
        batch = receiver.poll(timeout=SECONDS)
        assert batch, f"only {sum(map(len, found.values()))} of {count}"
        for event in batch.events():
            if isinstance(event, Message):
                found[event.topic].append(event.data)
    return found


def controllers(context: Context) -> dict[str, int]:
    """Return the number of sources of each topic that the context receives."""
    return {row["topic"]: row["delivery_controllers"] for row in context.stats()["receivers"]}


def publish(publishing: Context, receiving: Context, topic: str, *payloads: bytes) -> Any:
    """Return a source that has found its receiver and sent these payloads."""
    source = publishing.source(topic, flow_control="min", **SHARED)
    wait_for(lambda: controllers(receiving).get(topic), f"a receiver of {topic}")
    source.wait_connected(timeout=SECONDS)
    source.send_many(list(payloads), flush=True)
    return source


@EVERY_WAY
def test_topics_join_as_they_appear() -> None:
    """Known topics join first, then new ones; others are ignored; all share one queue."""
    with open_context() as context, open_context() as publishing:
        first = publishing.source("orders.eu", flow_control="min", **SHARED)
        other = publishing.source("prices.eu", **SHARED)
        wait_for(lambda: set(context.topics()) == {"orders.eu", "prices.eu"}, "the cache")
        with context.wildcard_receiver(r"^orders\.(eu|us)$") as receiver:
            wait_for(lambda: receiver.topics() == ["orders.eu"], "the known topic")
            wait_for(lambda: controllers(context).get("orders.eu"), "its source")
            first.wait_connected(timeout=SECONDS)
            first.send(b"1", flush=True)
            other.send(b"not for this one", flush=True)
            publish(publishing, context, "orders.us", b"2", b"3")
            publishing.source("orders.jp", **SHARED).send(b"nor this", flush=True)
            assert take(receiver, 3) == {"orders.eu": [b"1"], "orders.us": [b"2", b"3"]}
            assert receiver.topics() == ["orders.eu", "orders.us"]
            assert context.stats()["context"]["tr_wildcard_topics"] == 2
        wait_for(
            lambda: context.stats()["context"]["tr_wildcard_topics"] == 0, "topic resolution to hear of it"
        )
        with pytest.raises(Closed):
            receiver.poll(timeout=0)


@alone(ITS_SESSION)
def test_an_idle_topic_is_found_by_a_wildcard_query() -> None:
    """A source that has stopped advertising answers the wildcard query."""
    silent = {
        "resolver_advertisement_minimum_initial_duration": 20,
        "resolver_advertisement_sustain_interval": 0,
    }
    with open_context() as publishing:
        publishing.source("quiet.one", **silent)
        wait_for(lambda: publishing.stats()["context"]["tr_advertisements_sent"] >= 1)
        publishing.idle(0.1)
        with open_context() as context, context.wildcard_receiver(prefix="quiet.") as receiver:
            wait_for(lambda: receiver.topics() == ["quiet.one"], "an answer")
            assert context.stats()["context"]["tr_wildcard_queries_sent"] >= 1
            assert publishing.stats()["context"]["tr_wildcard_queries_rcved"] >= 1


@EVERY_WAY
def test_a_topic_leaves_after_its_last_source() -> None:
    """resolver_no_source_linger_timeout: delivered messages stay, and the topic joins again when it returns."""
    with (
        open_context() as context,
        open_context() as publishing,
        context.wildcard_receiver(prefix="come.", resolver_no_source_linger_timeout=20) as receiver,
    ):
        source = publishing.source(
            "come.and.go", flow_control="min", resolver_send_final_advertisements=1, **SHARED
        )
        source.wait_connected(timeout=SECONDS)
        source.send(b"before", flush=True)
        assert source.wait_drained(timeout=SECONDS)
        source.close()
        wait_for(lambda: receiver.topics() == [], "the topic's removal")
        publish(publishing, context, "come.and.go", b"after")
        assert take(receiver, 2) == {"come.and.go": [b"before", b"after"]}


def test_callbacks_asyncio_and_sequential_mode() -> None:
    """A wildcard receiver is read like every queue: by callback, in an event loop, and on a donated thread."""
    seen: list[tuple[str, bytes]] = []

    def note(event: Event) -> None:
        if isinstance(event, Message):
            seen.append((event.topic, event.data))

    with open_context() as publishing, open_context() as context:
        context.wildcard_receiver(r"\.called$", note)
        publish(publishing, context, "one.called", b"1")
        publish(publishing, context, "two.called", b"2")
        wait_for(lambda: sorted(seen) == [("one.called", b"1"), ("two.called", b"2")], "the callbacks")

        async def first(receiver: WildcardReceiver) -> tuple[str, bytes]:
            async for message in receiver:
                return message.topic, message.data
            raise AssertionError("the queue ended")

        awaited = context.wildcard_receiver(prefix="awaited.")
        sender = threading.Thread(target=publish, args=(publishing, context, "awaited.topic", b"3"))
        sender.start()
        assert asyncio.run(asyncio.wait_for(first(awaited), SECONDS)) == ("awaited.topic", b"3")
        sender.join()
    with open_context("sequential") as context, context.wildcard_receiver(prefix="alone.") as receiver:
        source = context.source("alone.too", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        source.send(b"4", flush=True)
        assert take(receiver, 1) == {"alone.too": [b"4"]}


def test_invalid_arguments_are_refused() -> None:
    """No pattern, two patterns, one that does not compile, an unknown option and a disabled cache are errors
    that state the remedy.
    """
    with open_context() as context:
        for arguments in (
            {},
            {"pattern": "a", "prefix": "b"},
            {"pattern": "("},
            {"prefix": "a", "no_such": 1},
        ):
            with pytest.raises(OptionError):
                context.wildcard_receiver(**arguments)  # type: ignore[arg-type]
        with pytest.raises(TopicNameError):
            context.wildcard_receiver(prefix="x" * 300)
    with open_context(resolver_cache=0) as context, pytest.raises(OptionError, match="resolver_cache"):
        context.wildcard_receiver(prefix="a")


def test_closing_in_any_order_and_while_topics_appear() -> None:
    """Faults: a context is closed while topics appear by the hundred; nothing deadlocks."""
    with open_context() as publishing:
        for number in range(200):
            publishing.source(f"many.{number}", **SHARED)
        for _ in range(3):
            context = open_context()
            receiver = context.wildcard_receiver(prefix="many.")
            wait_for(lambda: receiver.topics(), "a topic")  # noqa: B023
            context.close()
            assert receiver.closed


@alone(LONG)
def test_a_thousand_topics_share_one_queue() -> None:
    """Each topic of a wildcard receiver costs a delivery controller, not a queue."""
    topics = [f"wide.{number}" for number in range(1000)]
    with (
        open_context(
            resolver_initial_advertisements_per_second=0, resolver_initial_advertisement_bps=0
        ) as publishing,
        open_context() as context,
        context.wildcard_receiver(prefix="wide.") as receiver,
    ):
        sources = [publishing.source(topic, flow_control="min", **SHARED) for topic in topics]
        wait_for(lambda: len(receiver.topics()) == len(topics), "all topics", seconds=60)
        sources[0].wait_connected(timeout=SECONDS)
        wait_for(lambda: sum(controllers(context).values()) == len(topics), "their sources", seconds=60)
        for source in sources:
            source.send(source.topic.encode())
        sources[-1].flush()
        assert take(receiver, len(topics)) == {topic: [topic.encode()] for topic in topics}


def test_the_cost_of_a_wildcard_receiver_is_measured_in_turns() -> None:
    """Both receivers read every message of every round, and each ratio compares the same round."""
    said: list[str] = []
    found = measure(WildcardPlan(topics=30, messages=640, rounds=3), said.append)
    assert len(found["detail"]["rounds"]) == 3
    assert found["detail"]["wildcard_ns"] > 0 < found["detail"]["plain_ns"]
    assert 0.2 < found["ratios"]["plain"] < 5
    assert [line for line in said if "round 3" in line] == ["round 3 of 3: plain", "round 3 of 3: wildcard"]


def test_a_pattern_that_matches_everything_is_bounded() -> None:
    """wildcard_maximum_topics topics join; the others are refused and counted; nothing else stops."""
    with open_context() as context, open_context() as publishing:
        wildcard = context.wildcard_receiver(r".*", wildcard_maximum_topics=20)
        for number in range(50):
            publishing.source(f"everything/{number}", **SHARED)
        wait_for(lambda: len(context.topics()) == 50, "the topics to be known")
        wait_for(lambda: len(wildcard.topics()) >= 20, "the topics that join")
        wait_for(lambda: context.stats()["context"]["tr_wildcard_topics_refused"] >= 30, "the refusals")
        assert len(wildcard.topics()) == 20
        assert context.stats()["context"]["tr_wildcard_topics"] == 20
