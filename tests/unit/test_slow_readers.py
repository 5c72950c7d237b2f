"""A reader that does not read delays no other reader, and is cut loose after a bounded time (docs/slow-readers.md)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.unit.loopback import open_context
from tests.unit.ways import OVER_THE_NETWORK
from tests.waiting import SECONDS, wait_for
from umstack import BeginningOfSession, BurstLoss, Context, CutLoose, Message, Receiver, Source

pytestmark = pytest.mark.usefixtures("way")
GROUP = {name: f"239.255.47.{n}" for n, name in enumerate(("slow", "other"), 1)}
SMALL = {"receiver_queue_block_count": 4, "receiver_queue_block_length": 16384}
HEALTHY = 8000
SLOW = ("receiver_slow", "receiver_cut_loose", "receiver_returned")


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context() as opened:
        yield opened


def source(context: Context, topic: str, group: str, **options: object) -> Source:
    made = context.source(
        topic, **{"transport_lbtrm_multicast_address": GROUP[group], "flow_control": "min", **options}
    )
    wait_for(lambda: made.is_connected, f"a receiver of {topic}")
    return made


@contextmanager
def flooded(slow: Source, size: int = 1000) -> Iterator[itertools.count[int]]:
    """Publish on a thread until the end of the block; a source that is held back waits."""
    numbers, is_over = itertools.count(), threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            slow.send(b"%0*d" % (size, next(numbers)), flush=True)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield numbers
    finally:
        is_over.set()
        thread.join()


def is_full(receiver: Receiver) -> bool:
    return int(receiver.stats()["queue_full_time"]) > 0


def rows(receiver: Receiver, sender: Source) -> list[Message | CutLoose | BurstLoss]:
    """Return messages and events, up to one that was sent after everything before had been read."""
    found: list[Message | CutLoose | BurstLoss] = []
    last = None
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        read = [e for e in receiver.poll(timeout=0.1).events() if not isinstance(e, BeginningOfSession)]
        found += read  # type: ignore[arg-type]
        if last is not None and any(isinstance(e, Message) and e.sequence_number >= last for e in read):
            return found
        if not read:
            last = sender.send(b"last", flush=True)
    raise AssertionError(f"message {last} did not come; the last row is {found[-1:]}")


@pytest.mark.parametrize("group", ["other", "slow"])
def test_a_full_queue_does_not_delay_another(context: Context, group: str) -> None:
    """W8: every message of another topic comes, on another session or on the same, while the first is not read."""
    slow = context.receiver("slow", receiver_full_queue_hold_interval=2000, **SMALL)
    healthy = context.receiver("healthy")
    with open_context() as publisher:
        holding = source(publisher, "slow", "slow")
        sending = source(publisher, "healthy", group, flow_control="min" if group == "other" else "none")
        with flooded(holding):
            wait_for(lambda: is_full(slow), "the full queue")
            for _ in range(HEALTHY):
                sending.send(b"x", flush=True)
            got = 0
            end = time.monotonic() + SECONDS
            while got < HEALTHY and time.monotonic() < end:
                got += len(healthy.poll(timeout=0.1))
            is_still_full = is_full(slow)
    assert got >= HEALTHY
    assert is_still_full


def test_a_session_that_begins_on_a_held_group_is_read(context: Context) -> None:
    """A group of which every session is held is not read; a new session on it does not wait for their readers."""
    slow = context.receiver("slow", receiver_full_queue_hold_interval=3_600_000, **SMALL)
    with open_context() as publisher, open_context() as newcomer:
        with flooded(source(publisher, "slow", "slow", flow_control="none"), size=1000):
            wait_for(lambda: slow.stats()["queue_full_pauses"], "the refused row")
            late = context.receiver("late")
            sending = source(newcomer, "late", "slow")
            sending.send(b"x", flush=True)
            assert late.receive(timeout=SECONDS) == b"x"
        assert is_full(slow)


def test_a_full_queue_holds_its_source_for_a_bounded_time(context: Context) -> None:
    """Then one event names the dropped messages, a loss event declares exactly them, and the rest follows."""
    slow = context.receiver("slow", receiver_full_queue_hold_interval=200, use_otr=0, **SMALL)
    with open_context() as publisher:
        holding = source(publisher, "slow", "slow")
        with flooded(holding) as numbers:
            wait_for(lambda: slow.stats()["cut_loose"], "the cut")
            at_cut = next(numbers)
            wait_for(lambda: next(numbers) > at_cut + 2000, "the source to continue")
        found = rows(slow, holding)
    cuts = [(row.first_sequence_number, row.sequence_number) for row in found if isinstance(row, CutLoose)]
    losses = [(row.first_sequence_number, row.sequence_number) for row in found if isinstance(row, BurstLoss)]
    # A second cut follows if this thread does not run for the hold interval while it reads.
    assert cuts == losses
    assert len(cuts) == slow.stats()["cut_loose"] >= 1
    lost = {n for first, last in losses for n in range(first, last + 1)}
    came = [row.sequence_number for row in found if isinstance(row, Message)]
    assert came == [n for n in range(came[0], came[-1] + 1) if n not in lost]
    assert slow.stats()["cut_loose_messages"] == len(lost)


@OVER_THE_NETWORK
@pytest.mark.parametrize("flow_control", ["min", "none"])
def test_the_source_names_a_slow_receiver(way: str, flow_control: str) -> None:
    """It learns that a queue is full, that the receiver was cut loose, and that it reads again."""
    with open_context() as publisher, open_context() as subscriber:
        slow = subscriber.receiver("slow", receiver_full_queue_hold_interval=1000, use_otr=0, **SMALL)
        holding = source(publisher, "slow", "slow", flow_control=flow_control)
        kinds: list[str] = []

        def has(kind: str) -> bool:
            kinds.extend(event.kind for event in holding.receiver_events() if event.kind in SLOW)
            return kind in kinds

        def state() -> tuple[int, int]:
            (account,) = publisher.stats()["source_transports"][0]["nak_accounts"]
            return account["is_slow"], account["is_cut_loose"]

        with flooded(holding):
            wait_for(lambda: has("receiver_cut_loose"), "the cut at the source")
            if way == "alone":  # with a driver, these are in its statistics
                wait_for(lambda: state() == (0, 1), "the state in the statistics")
        rows(slow, holding)
        wait_for(lambda: has("receiver_returned"), "the return at the source")
        assert kinds == list(SLOW)
        if way == "alone":
            counters = publisher.stats()["source_transports"][0]
            assert counters["receivers_slow"] >= 1
            assert counters["receivers_cut_loose"] >= 1


def test_messages_dropped_by_a_full_queue_are_fetched(context: Context) -> None:
    """UM-142: with off-transport recovery and a source that retains them, every message comes in order, once."""
    slow = context.receiver("slow", receiver_full_queue_hold_interval=200, use_otr=1, **SMALL)
    with open_context() as publisher:
        holding = source(publisher, "slow", "slow", late_join=1, retransmit_retention_size_limit=1 << 26)
        with flooded(holding, size=200) as numbers:
            wait_for(lambda: slow.stats()["cut_loose"], "the cut")
            at_cut = next(numbers)
            wait_for(lambda: next(numbers) > at_cut + 500, "the source to continue")
        found = rows(slow, holding)
    came = [row.sequence_number for row in found if isinstance(row, Message)]
    assert came == list(range(came[0], came[-1] + 1))
    assert [type(row) for row in found if not isinstance(row, Message)] == [CutLoose]


def test_a_receiver_that_loses_never_holds_its_source(context: Context) -> None:
    """receiver_full_queue lose: the source is never held, and the reader learns exactly what was dropped."""
    slow = context.receiver("slow", receiver_full_queue="lose", use_otr=0, **SMALL)
    with open_context() as publisher:
        holding = source(publisher, "slow", "slow")
        for n in range(20000):
            holding.send(b"%0*d" % (1000, n), flush=True)
        found = rows(slow, holding)
    came = {row.sequence_number for row in found if isinstance(row, Message)}
    lost = {
        n
        for row in found
        if isinstance(row, BurstLoss)
        for n in range(row.first_sequence_number, row.sequence_number + 1)
    }
    assert not came & lost
    assert came | lost == set(range(min(came), max(came) + 1))
    assert lost
