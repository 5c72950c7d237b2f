"""In-frame payloads: payloads that stay in their UMEM frames until they are read.

They are the same for every way of reading, with and without another receiver of the topic, as long as a batch
with them exists.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.netns.contexts import members
from umstack import Receiver, Source
from umstack.batch import Batch
from umstack.lab import Lab
from umstack_xdp.xsk import unavailable

RINGS = {"link": "xdp"}
COUNT = 4000
ROUNDS = 5

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def large_messages(count: int, seed: int = 7) -> list[bytes]:
    """Return messages whose payloads stay in their frames: each fills more than half of a datagram."""
    print(f"seed {seed}")
    chosen = random.Random(seed)
    return [b"%08d" % number + chosen.randbytes(chosen.randrange(700, 1392)) for number in range(count)]


@contextmanager
def sending(source: Source, messages: list[bytes]) -> Iterator[None]:
    """Send the messages in another thread."""
    source.wait_connected(timeout=10)
    sender = threading.Thread(target=lambda: source.send_many(messages, flush=True))
    sender.start()
    yield
    sender.join()


def batches_of(receiver: Receiver, count: int) -> Iterator[Batch]:
    """Yield batches until they have `count` messages together, without events."""
    while count > 0:
        batch = receiver.poll(timeout=20)
        assert batch, f"{count} messages did not come"
        count -= len(batch) - batch.event_count
        yield batch


def by_payload(batch: Batch) -> list[bytes]:
    """Return the payloads from the column."""
    payload, offsets = bytes(batch.payload), batch.offsets
    return [payload[offsets[i] : offsets[i + 1]] for i in range(len(batch))]


def by_heads(batch: Batch) -> list[bytes]:
    """Return the payloads as heads that are longer than any message, cut to the lengths of the columns."""
    size, offsets = 1500, batch.offsets
    heads = bytes(batch.heads(size))
    lengths = [offsets[i + 1] - offsets[i] for i in range(len(batch))]
    for i, length in enumerate(lengths):
        assert heads[i * size + length : (i + 1) * size] == bytes(size - length)
    return [heads[i * size : i * size + length] for i, length in enumerate(lengths)]


def by_both(batch: Batch) -> list[bytes]:
    """Read heads, then the column, then heads again."""
    first = bytes(batch.heads(8))
    found = by_payload(batch)
    assert first == b"".join(data[:8].ljust(8, b"\0") for data in found)
    assert by_heads(batch) == found
    return found


READINGS: list[Callable[[Batch], list[bytes]]] = [
    by_payload,
    by_heads,
    by_both,
    lambda batch: batch.payloads(),
    lambda batch: [bytes(view) for view in batch.views()],
    lambda batch: [event.data if hasattr(event, "data") else b"" for event in batch.events()],
    lambda batch: batch.to_arrow()["payload"].to_pylist(),
]


def test_payloads_are_the_same_however_they_are_read(shared_lab: Lab) -> None:
    """W5, W9: heads, views, copies, Arrow and single messages all return the same payloads."""
    messages = large_messages(COUNT)
    with members(*shared_lab.hosts[:2], **RINGS) as (publisher, subscriber):
        for number, read in enumerate(READINGS):
            topic = f"in-frame/{number}"
            with subscriber.receiver(topic) as receiver, publisher.source(topic) as source:
                found: list[bytes] = []
                with sending(source, messages):
                    for batch in batches_of(receiver, COUNT):
                        found += [data for data in read(batch) if data]
                assert found == messages
        with (
            subscriber.receiver("in-frame/one") as receiver,
            publisher.source("in-frame/one") as source,
            sending(source, messages),
        ):
            assert [receiver.receive(timeout=20) for _ in range(COUNT)] == messages
        assert subscriber.link("ring_kept") > COUNT


def test_what_does_not_fill_a_datagram_is_copied(shared_lab: Lab) -> None:
    """W5: a small message, one of several in a datagram, and a fragment of a large one do not pin a frame."""
    with members(*shared_lab.hosts[:2], **RINGS) as (publisher, subscriber):
        for size, most in (
            (64, 0),
            (500, 0),
            (5000, 0),
            (600, 50),
        ):  # a batch may end with a single one in a datagram
            messages = [b"%08d" % number + bytes(size - 8) for number in range(500)]
            with subscriber.receiver(f"{size}") as receiver, publisher.source(f"{size}") as source:
                found: list[bytes] = []
                with sending(source, messages):
                    for batch in batches_of(receiver, len(messages)):
                        found += [data for data in batch.payloads() if data]
                assert found == messages
            assert subscriber.link("ring_kept") <= most


def test_two_receivers_of_a_topic_have_it_each(shared_lab: Lab) -> None:
    """W5: one receiver reads the frame and the other a copy; closing one receiver does not affect the
    other.
    """
    messages = large_messages(COUNT)
    with members(*shared_lab.hosts[:2], **RINGS) as (publisher, subscriber):
        with (
            subscriber.receiver("both") as receiver,
            subscriber.receiver("both") as other,
            publisher.source("both") as source,
        ):
            with sending(source, messages):
                held = list(batches_of(other, COUNT // 2))
            other.close()
            found = [data for batch in batches_of(receiver, COUNT) for data in by_both(batch) if data]
        assert found == messages
        have = [data for batch in held for data in batch.payloads() if data]
        assert have == messages[: len(have)]
        assert len(have) >= COUNT // 2


@pytest.mark.parametrize("closed", ["receiver", "context"])
def test_batches_outlive_the_rings(shared_lab: Lab, closed: str) -> None:
    """W9: messages stay readable after their receiver, or the rings, are closed."""
    messages = large_messages(1000)
    with members(*shared_lab.hosts[:2], **RINGS) as (publisher, subscriber):
        receiver, source = subscriber.receiver("outlive"), publisher.source("outlive")
        for _ in range(ROUNDS):  # a busy machine may deliver all of a round by other ways
            with sending(source, messages):
                batches = list(batches_of(receiver, len(messages)))
            if subscriber.link("ring_kept") > 0:
                break
        assert subscriber.link("ring_kept") > 0, subscriber.context.stats()["link_counters"]
        arrow = batches[-1].to_arrow()
        if closed == "receiver":
            receiver.close()
        subscriber.context.close()
        readings = (by_payload, by_heads, Batch.payloads)
        found = [data for i, batch in enumerate(batches) for data in readings[i % 3](batch) if data]
        assert found == messages
        assert arrow["payload"].to_pylist()[-1] == messages[-1]


def test_a_reader_that_releases_nothing_pins_half_of_the_frames(shared_lab: Lab) -> None:
    """W5: beyond the limit, payloads are copied and the stream continues; after batches are released,
    frames are pinned again.
    """
    frames = 128
    messages = large_messages(1500)
    with (
        members(shared_lab.hosts[0], **RINGS) as (publisher,),
        members(shared_lab.hosts[1], **RINGS, link_xdp_receive_frames=frames) as (subscriber,),
        subscriber.receiver("held", transport_lbtrm_nak_initial_backoff_interval=2) as receiver,
        publisher.source("held") as source,
    ):
        with sending(source, messages):
            held = list(batches_of(receiver, len(messages)))
        assert subscriber.link("ring_kept") <= frames // 2
        assert [data for batch in held for data in batch.payloads() if data] == messages
        held.clear()
        pinned_before = subscriber.link("ring_kept")
        for _ in range(30):
            source.send_many(messages[:10], flush=True)
            for batch in batches_of(receiver, 10):
                batch.release()
        # More than half of the frames, and no block of the queue was filled twice.
        assert subscriber.link("ring_kept") - pinned_before > 2 * frames
        found: list[bytes] = []
        with sending(source, messages):
            for batch in batches_of(receiver, len(messages)):
                found += [data for data in by_heads(batch) if data]
        assert found == messages
