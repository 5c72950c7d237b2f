"""LBT-IPC: sources and receivers that meet in shared memory, in one process and in several (UX-12)."""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.keyed_peers import write_keys
from tests.unit.lbtipc_ends import (
    CAPACITY,
    HELLO,
    POSITION_AT,
    REFUSED,
    SLEEPING_AT,
    WAKE,
    Control,
    RawReceiver,
    number_of,
    payload,
    result_of,
    start,
    stop,
)
from tests.unit.loopback import SMALL_QUEUE, collect_events, connect_contexts, open_context, payloads
from tests.waiting import SECONDS, collect, wait_for
from umstack import (
    BeginningOfSession,
    BurstLoss,
    Context,
    EndOfSession,
    Message,
    Receiver,
    Source,
    UnrecoverableLoss,
)
from umstack._engine.host_identity import host_id
from umstack._engine.transport_address import LbtipcAddress
from umstack.errors import BackPressured, OptionError

OTHER_USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="connecting as another user needs root")
LONGEST_WHOLE = 65535 - 12
"""Payload of the longest message that LBMC carries in one piece."""
SMALL_LOG = {"transport_lbtipc_transmission_window_size": CAPACITY}


def connected(sending: Context, receiving: Context, topic: str, **options: Any) -> tuple[Source, Receiver]:
    """Return a source over LBT-IPC and a receiver of another context that is attached."""
    return connect_contexts(sending, receiving, topic, transport="lbtipc", **options)


@pytest.mark.parametrize("behavior", ["source_paced", "receiver_paced"])
def test_messages_of_every_length_arrive_whole_and_in_order(behavior: str) -> None:
    """UX-12: from empty to more than one datagram, one at a time, in batches, and by a claim."""
    lengths = [0, 1, 100, 1472, 8192, LONGEST_WHOLE, LONGEST_WHOLE + 1, 300_000]
    with (
        open_context() as context,
        context.receiver("lengths") as receiver,
        context.source("lengths", transport="lbtipc", transport_lbtipc_behavior=behavior) as source,
    ):
        source.wait_connected(timeout=SECONDS)
        sent = [bytes([i]) * length for i, length in enumerate(lengths)]
        for data in sent:
            source.send(data, flush=True)
        assert payloads(collect(receiver, len(sent))) == sent
        many = [b"%d" % i for i in range(20_000)]
        assert source.send_many(many, flush=True, timeout=SECONDS) == len(many)
        assert payloads(collect(receiver, len(many))) == many
        with source.claim(5, flush=True) as view:
            view[:] = b"claim"
        assert payloads(collect(receiver, 1)) == [b"claim"]
        assert source.stats()["num_clients"] == 1
        assert source.wait_drained(SECONDS)
        assert source.transport.startswith("LBTIPC:")
        assert source.transport.endswith(":20001")


def test_one_thread_runs_both_ends_in_sequential_mode() -> None:
    """UM-14: a send that waits for its own receiver runs the loop, so that its condition can come true."""
    with open_context("sequential") as context:
        receiver = context.receiver("sequential")
        source = context.source(
            "sequential", transport="lbtipc", transport_lbtipc_behavior="receiver_paced", **SMALL_LOG
        )
        source.wait_connected(timeout=SECONDS)
        many = [b"%d" % i + bytes(100) for i in range(20_000)]
        assert source.send_many(many, flush=True, timeout=SECONDS) == len(many)
        assert payloads(collect(receiver, len(many))) == many


def test_a_loop_that_never_sleeps_needs_no_wake_up() -> None:
    """With busy_wait the source makes no system call for the receiver, however often its log was empty."""
    with (
        open_context() as sending,
        open_context(transport_lbtipc_receiver_thread_behavior="busy_wait") as receiving,
    ):
        source, receiver = connected(sending, receiving, "busy")
        with source, receiver:
            for number in range(50):
                source.send(b"%d" % number, flush=True)
                assert payloads(collect(receiver, 1)) == [b"%d" % number]
            assert sending.stats()["link_counters"]["syscalls"] == 0


def test_topics_share_a_session_and_sessions_the_pool(sending: Context, receiving: Context) -> None:
    """UX-10: five transport ids, then the sessions in turn; an explicit id outside the pool does not join it."""
    sources = [sending.source(f"pool-{i}", transport="lbtipc") for i in range(6)]
    apart = sending.source("apart", transport="lbtipc", transport_lbtipc_id=7)
    receivers = [receiving.receiver(source.topic) for source in sources]
    try:
        ids = [int(source.transport.rsplit(":", 1)[1]) for source in sources]
        assert sorted(ids[:5]) == [20001, 20002, 20003, 20004, 20005]
        assert ids[5] in ids[:5]
        assert apart.transport.endswith(":7")
        for source in sources:
            source.wait_connected(timeout=SECONDS)
        wait_for(lambda: all(one.stats()["delivery_controllers"] for one in receivers), "every topic")
        for source, receiver in zip(sources, receivers, strict=True):
            source.send(source.topic.encode(), flush=True)
            assert payloads(collect(receiver, 1)) == [source.topic.encode()]
    finally:
        for one in (*sources, apart, *receivers):
            one.close()


def test_a_session_starts_and_ends_with_its_source(sending: Context, receiving: Context) -> None:
    """UM-76, UM-105: the first message delivers BOS, closing the source EOS, and nothing between is lost."""
    source, receiver = connected(sending, receiving, "ends", transport_lbtipc_behavior="receiver_paced")
    with receiver:
        source.send_many([b"%d" % i for i in range(5000)], flush=True)
        source.close()
        rows = collect_events(receiver, 5002)
        assert isinstance(rows[0], BeginningOfSession)
        assert isinstance(rows[-1], EndOfSession)
        assert [row.data for row in rows[1:-1] if isinstance(row, Message)] == [
            b"%d" % i for i in range(5000)
        ]


def test_a_receiver_gets_what_is_sent_after_it_has_attached(sending: Context, receiving: Context) -> None:
    """A receiver starts at the end of the log, and another that leaves is not missed."""
    source, first = connected(
        sending, receiving, "joins", transport_lbtipc_behavior="receiver_paced", **SMALL_LOG
    )
    with source, open_context() as other:
        source.send(b"early", flush=True)
        assert payloads(collect(first, 1)) == [b"early"]
        with other.receiver("joins") as second:
            source.wait_connected(2, SECONDS)
            source.send(b"both", flush=True)
            assert payloads(collect(first, 1)) == payloads(collect(second, 1)) == [b"both"]
        first.close()
        wait_for(lambda: source.stats()["num_clients"] == 0, "both receivers have left")
        events = source.receiver_events()
        assert [event.kind for event in events] == ["connect", "connect", "disconnect", "disconnect"]
        assert {event.receiver for event in events} == {f"process {os.getpid()}"}
        source.send_many([bytes(1000)] * 1000, flush=True, timeout=SECONDS)  # waits for nobody


def test_late_join_recovers_what_was_sent_before(sending: Context, receiving: Context) -> None:
    """UX-12: late join works beside the log."""
    with sending.source("late", transport="lbtipc", late_join=1) as source:
        for i in range(20):
            source.send(b"%d" % i, flush=True)
        with receiving.receiver("late", use_late_join=1) as receiver:
            source.wait_connected(timeout=SECONDS)
            source.send(b"20", flush=True)
            assert payloads(collect(receiver, 21)) == [b"%d" % i for i in range(21)]


# ---- slow receivers ----


def test_a_reader_that_emptied_a_full_queue_gets_the_rest_at_once(
    sending: Context, receiving: Context
) -> None:
    """A reader that waits leads, also if its queue held the session just before: nothing waits for its timeout."""
    source, receiver = connected(
        sending, receiving, "rest", transport_lbtipc_behavior="receiver_paced", **SMALL_QUEUE
    )
    with source, receiver:
        for _ in range(40):
            source.send_many([payload(number) for number in range(2000)], flush=True, timeout=SECONDS)
            started, got = time.monotonic(), 0
            while got < 2000:
                got += len(receiver.poll(4096, 4 * SECONDS))
            assert time.monotonic() - started < 2 * SECONDS


def test_a_thread_that_looks_whether_all_is_read_holds_nothing_back(
    sending: Context, receiving: Context
) -> None:
    """The source continues a full log although another thread has seen the space that the receiver released."""
    options = SMALL_LOG | {"transport_lbtipc_behavior": "receiver_paced"}
    source, receiver = connected(sending, receiving, "looked at", **options)

    def send_and_look() -> None:
        source.send_many([bytes(1024)] * 2000, flush=True, timeout=SECONDS)
        deadline = time.monotonic() + SECONDS
        while not source.wait_drained(0):
            assert time.monotonic() < deadline

    with source, receiver, ThreadPoolExecutor(1) as pool:
        for _ in range(40):
            started, got = time.monotonic(), 0
            drained = pool.submit(send_and_look)
            while got < 2000:
                got += len(receiver.poll(4096, 4 * SECONDS))
            drained.result()
            assert time.monotonic() - started < 2 * SECONDS


def test_receiver_paced_a_slow_receiver_blocks_the_source_and_loses_nothing(
    sending: Context, receiving: Context
) -> None:
    """A send without a timeout is refused while the log is full, and a waiting one continues as space is released."""
    source, receiver = connected(
        sending,
        receiving,
        "held",
        transport_lbtipc_behavior="receiver_paced",
        flow_control_stall_timeout=0,
        **SMALL_LOG,
        **SMALL_QUEUE,
    )
    with source, receiver:
        sent = _send_until_refused(source)
        more = threading.Thread(target=lambda: _send_range(source, sent, sent + 3000))
        more.start()
        for number, one in enumerate(collect(receiver, sent + 3000, 3 * SECONDS)):
            assert number_of(one.data) == number
        more.join(SECONDS)
        assert not more.is_alive()
        assert source.wait_drained(SECONDS)


def _send_until_refused(source: Source) -> int:
    """Return the number of messages accepted before the first refusal."""
    for number in range(200_000):
        try:
            source.send(payload(number), timeout=0)
        except BackPressured:
            return number
    raise AssertionError("the source never blocked")


def _send_range(source: Source, first: int, end: int) -> None:
    for number in range(first, end):
        source.send(payload(number), timeout=SECONDS)
    source.flush()


def test_receiver_paced_a_receiver_that_stalls_is_cut_off(sending: Context, receiving: Context) -> None:
    """flow_control_stall_timeout: it loses what it did not read, by number, attaches again and gets the rest."""
    source, receiver = connected(
        sending,
        receiving,
        "stalls",
        transport_lbtipc_behavior="receiver_paced",
        flow_control_stall_timeout=300,
        **SMALL_LOG,
        **SMALL_QUEUE,
    )
    with source, receiver:
        sent = _send_until_refused(source)
        _send_range(source, sent, sent + 2000)  # continues after the cut
        assert "receiver_stalled" in [event.kind for event in source.receiver_events()]
        rows: list[Any] = []
        while source.stats()["clients_connected"] < 2:
            rows += receiver.poll(1000, 0.05).events()
        assert rows
        source.wait_connected(timeout=SECONDS)
        source.send(payload(sent + 2000), flush=True)
        _check_accounted(receiver, rows, sent + 2000)


def _check_accounted(receiver: Receiver, rows: list[Any], last: int) -> int:
    """Read up to message `last`. Every number is a message or in a loss event, in order. Returns the number lost."""
    deadline = time.monotonic() + SECONDS
    expected = lost = at = 0
    while expected <= last:
        assert time.monotonic() < deadline, f"{expected} of {last}"
        rows += receiver.poll(1000, 0.05).events()
        for row in rows[at:]:
            if isinstance(row, Message):
                assert number_of(row.data) == expected
                expected += 1
            elif isinstance(row, UnrecoverableLoss | BurstLoss):
                first = row.first_sequence_number if isinstance(row, BurstLoss) else row.sequence_number
                count = row.sequence_number - first + 1
                lost += count
                expected += count
        at = len(rows)
    return lost


def test_source_paced_a_slow_receiver_loses_exactly_what_its_events_name(
    sending: Context, receiving: Context
) -> None:
    """UX-12: the source never waits, a receiver that is overtaken gets the lost numbers, another loses nothing."""
    source, slow = connected(sending, receiving, "paced", **SMALL_LOG, **SMALL_QUEUE)
    with source, slow, open_context() as other, other.receiver("paced") as fast:
        source.wait_connected(2, SECONDS)
        rows: list[Any] = []
        sent = 0
        while _transport(receiving, source)["log_overruns"] == 0:
            _send_range(source, sent, sent + 100)
            assert [number_of(one.data) for one in collect(fast, 100)] == list(range(sent, sent + 100))
            sent += 100
            if sent % 2000 == 0:
                # Its queue takes a few rows more, and its context looks at the log.
                rows += slow.poll(64, 0).events()
        while not source.wait_drained(timeout=0):
            rows += slow.poll(1000, 0.05).events()
        source.send(payload(sent), flush=True)
        assert [number_of(one.data) for one in collect(fast, 1)] == [sent]
        assert _check_accounted(slow, rows, sent) > 0
        assert slow.stats()["unrecoverable_loss_events"] + slow.stats()["burst_loss_events"] > 0


def _transport(context: Context, source: Source) -> dict[str, Any]:
    """Return the receiving session's counters."""
    sessions = context.stats()["receiver_transports"]
    return next(
        (one for one in sessions if one["transport"] == source.transport),
        {"log_overruns": 0, "connects": 0, "attachments_refused": 0},
    )


# ---- processes ----


def test_three_unprivileged_processes_receive_one_source() -> None:
    """UX-12: each gets every message of a receiver-paced source, without any privilege."""
    with open_context() as context:
        ends = [start("receive", "three") for _ in range(3)]
        try:
            source = context.source("three", transport="lbtipc", transport_lbtipc_behavior="receiver_paced")
            source.wait_connected(3, SECONDS)
            source.send_many([payload(number) for number in range(30_000)], flush=True, timeout=SECONDS)
            source.close()
            results = [result_of(end) for end in ends]
        finally:
            stop(*ends)
    assert [(one["messages"], one["lost"]) for one in results] == [(30_000, 0)] * 3
    assert {one["capabilities"] for one in results} == {0}


def test_a_killed_source_ends_its_session(receiving: Context) -> None:
    """UX-12: kill -9 at random instants. Committed messages are delivered, in order, then EOS, at once."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    for turn in range(3):
        behavior = choose.choice(["source_paced", "receiver_paced"])
        with receiving.receiver(f"killed-{turn}") as receiver:
            end = start("send", receiver.topic, options={"transport_lbtipc_behavior": behavior})
            try:
                rows: list[Any] = list(collect(receiver, 1))
                kill_at = time.monotonic() + choose.uniform(0, 0.1)
                while time.monotonic() < kill_at:
                    rows += receiver.poll(4096, 0.001).events()
                end.kill()
                deadline = time.monotonic() + SECONDS
                while not isinstance(rows[-1], EndOfSession):
                    assert time.monotonic() < deadline
                    rows += receiver.poll(4096, 0.1).events()
            finally:
                stop(end)
            numbers = [number_of(row.data) for row in rows if isinstance(row, Message)]
            assert numbers == list(range(len(numbers)))


def test_killed_receivers_hold_nothing_back(sending: Context, receiving: Context) -> None:
    """UX-12: kill -9 of receivers at random instants frees their pages; another receiver loses nothing."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    source, receiver = connected(
        sending, receiving, "survives", transport_lbtipc_behavior="receiver_paced", **SMALL_LOG
    )
    ends = [start("receive", "survives") for _ in range(3)]
    with source, receiver:
        try:
            source.wait_connected(4, SECONDS)
            sent = 0
            for end in ends:
                until = time.monotonic() + choose.uniform(0, 0.1)
                while time.monotonic() < until or sent == 0:
                    source.send_many([payload(sent + i) for i in range(50)], flush=True, timeout=SECONDS)
                    assert [number_of(one.data) for one in collect(receiver, 50)] == list(
                        range(sent, sent + 50)
                    )
                    sent += 50
                end.kill()
            wait_for(lambda: source.stats()["num_clients"] == 1, "the source frees dead receivers")
            source.send_many([bytes(1000)] * 500, flush=True, timeout=SECONDS)
            assert len(collect(receiver, 500)) == 500
        finally:
            stop(*ends)


def test_a_source_that_shows_no_life_ends(receiving: Context) -> None:
    """UM-67, UM-68, UX-9: session messages keep an idle session; without them it ends after the activity timeout."""
    with receiving.receiver("stopped", transport_lbtipc_activity_timeout=800) as receiver:
        end = start("send", "stopped", options={"transport_lbtipc_sm_interval": 100}, receivers=2)
        try:
            (row,) = collect_events(receiver, 1)
            assert isinstance(row, BeginningOfSession)
            idle_until = time.monotonic() + 2.0  # it waits for a second receiver, and sends nothing
            while time.monotonic() < idle_until:
                assert receiver.poll(10, 0.1).events() == []
            end.send_signal(signal.SIGSTOP)
            (row,) = collect_events(receiver, 1)
            assert isinstance(row, EndOfSession)
        finally:
            end.send_signal(signal.SIGCONT)
            stop(end)


# ---- peers that break the rules ----


def test_a_receiver_cannot_write_the_log(sending: Context, receiving: Context) -> None:
    """UX-12: the log's descriptor is sealed, so a hostile receiver can only read it."""
    source, receiver = connected(sending, receiving, "sealed")
    with source, receiver, RawReceiver(source.transport) as raw:
        welcome = raw.attach()
        assert welcome.capacity == 25165824
        assert welcome.is_source_paced == 1
        with pytest.raises(PermissionError):
            mmap.mmap(raw.log, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.pwrite(raw.log, b"x", 0)
        for fd in (raw.log, raw.page):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 0)
        os.pread(raw.log, 4096, 0)


@pytest.mark.parametrize("position", [8, -8, 2**62, -(2**63), 2**63 - 1])
def test_a_receiver_with_an_impossible_position_is_cut_off(
    sending: Context, receiving: Context, position: int
) -> None:
    """UX-12: it is disconnected and counted, and the others lose nothing."""
    source, receiver = connected(
        sending, receiving, f"lies-{position}", transport_lbtipc_behavior="receiver_paced", **SMALL_LOG
    )
    with source, receiver, RawReceiver(source.transport) as raw:
        raw.attach()
        source.wait_connected(2, SECONDS)
        raw.write_page(POSITION_AT, position)
        sending_thread = threading.Thread(target=lambda: _send_range(source, 0, 3000))
        sending_thread.start()
        assert [number_of(one.data) for one in collect(receiver, 3000)] == list(range(3000))
        sending_thread.join(SECONDS)
        assert raw.hear() is None
        wait_for(lambda: source.stats()["num_clients"] == 1, "it is cut off")
        assert source.stats()["connections_refused"] == 1


def test_a_receiver_that_always_sleeps_and_never_reads_its_socket_is_cut_off(
    sending: Context, receiving: Context
) -> None:
    """UX-12: a source does not wait for the socket of a receiver that asks to be woken again and again."""
    source, receiver = connected(sending, receiving, "sleeper")
    with source, receiver, RawReceiver(source.transport) as raw:
        raw.attach()
        source.wait_connected(2, SECONDS)
        number = 0
        while source.stats()["num_clients"] == 2:
            raw.write_page(SLEEPING_AT, 1)
            source.send(payload(number), flush=True)
            number += 1
            assert number < 100_000
        assert [number_of(one.data) for one in collect(receiver, number)] == list(range(number))


def test_peers_that_are_no_receivers_are_refused(sending: Context, receiving: Context) -> None:
    """UX-12: a wrong session, garbage and a HELLO too many; each refusal has its reason."""
    source, receiver = connected(sending, receiving, "others")
    with source, receiver:
        with RawReceiver(source.transport) as raw:
            raw.say(Control(HELLO, raw.session_id, version_low=7, version_high=9))
            said = raw.hear()
            assert said == Control(REFUSED, raw.session_id, reason=1, version_low=1, version_high=4)
            assert raw.hear() is None
        with RawReceiver(source.transport) as raw:
            raw.say(Control(HELLO, 1))
            said = raw.hear()
            assert said is not None
            assert (said.kind, said.reason) == (REFUSED, 2)
        for data in (b"x", bytes(40), bytes(100), Control(WAKE, raw.session_id).encode()):
            with RawReceiver(source.transport) as raw:
                raw.peer.send(data)
                assert raw.hear() is None
        with RawReceiver(source.transport) as raw:
            raw.attach()
            raw.say(Control(HELLO, raw.session_id))
            assert raw.hear() is None
        wait_for(lambda: source.stats()["connections_refused"] == 7, "each is counted")
        source.send(b"still here", flush=True)
        assert payloads(collect(receiver, 1)) == [b"still here"]


def test_no_more_receivers_than_the_option_attach(sending: Context, receiving: Context) -> None:
    """transport_lbtipc_maximum_receivers_per_transport: the next one is refused, and attaches once another leaves."""
    source, receiver = connected(
        sending, receiving, "full", transport_lbtipc_maximum_receivers_per_transport=1
    )
    with source, open_context() as other, other.receiver("full") as second:
        wait_for(lambda: _transport(other, source)["attachments_refused"] > 0, "a second receiver is refused")
        receiver.close()
        wait_for(lambda: _transport(other, source)["connects"] == 1, "it attaches")
        source.send(b"to the second", flush=True)
        assert payloads(collect(second, 1)) == [b"to the second"]


SILENT_SECONDS = 5.0
"""Time after which a connection without a HELLO is closed in any case."""


def test_peers_that_say_nothing_do_not_keep_receivers_out(sending: Context, receiving: Context) -> None:
    """Connections without a HELLO take at most 64 places, and the oldest gives way."""
    source, receiver = connected(sending, receiving, "silent")
    with source, receiver:
        took_seconds = SILENT_SECONDS
        while took_seconds >= SILENT_SECONDS:
            begun = time.monotonic()
            with ExitStack() as stack:
                raws = [stack.enter_context(RawReceiver(source.transport)) for _ in range(80)]
                raws[-1].attach()
                assert raws[0].hear() is None
                is_later_kept = not select.select([raws[-2].peer], [], [], 0)[0]
            took_seconds = time.monotonic() - begun
        assert is_later_kept


def test_peers_that_left_without_a_word_displace_nobody(sending: Context, receiving: Context) -> None:
    """Only connections that are still open count for the 64 places of those without a HELLO."""
    source, receiver = connected(sending, receiving, "left")
    with source, receiver:
        for _ in range(70):
            RawReceiver(source.transport).close()
        wait_for(lambda: source.stats()["connections_refused"] == 70, "all are closed")
        with RawReceiver(source.transport) as silent, RawReceiver(source.transport) as other:
            other.attach()
            silent.attach()


@contextmanager
def _other_user() -> Iterator[None]:
    """Connect as another user meanwhile: the kernel notes the user of a connection when it is made."""
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)


@needs_root
def test_the_receivers_of_another_user_leave_places_to_others(sending: Context, receiving: Context) -> None:
    """Another user has at most three quarters of the places; root and the source's user may have all."""
    source, receiver = connected(
        sending, receiving, "share", transport_lbtipc_maximum_receivers_per_transport=8
    )
    with source, receiver, ExitStack() as stack:
        with _other_user():
            raws = [stack.enter_context(RawReceiver(source.transport)) for _ in range(7)]
        for raw in raws[:6]:
            raw.attach()
        refused = raws[6].ask()
        assert (refused.kind, refused.reason) == (REFUSED, 3)
        assert source.stats()["connections_refused"] == 1
        stack.enter_context(RawReceiver(source.transport)).attach()


@needs_root
def test_another_user_without_a_hello_displaces_only_itself(sending: Context, receiving: Context) -> None:
    """At most 16 connections of another user have no HELLO: its oldest gives way, however many it opens."""
    source, receiver = connected(sending, receiving, "other-silent")
    with source, receiver, ExitStack() as stack:
        own = stack.enter_context(RawReceiver(source.transport))
        with _other_user():
            raws = [stack.enter_context(RawReceiver(source.transport)) for _ in range(20)]
        wait_for(lambda: source.stats()["connections_refused"] == 4, "all but 16 are closed")
        assert raws[3].hear() is None
        raws[4].attach()
        own.attach()


# ---- what is refused or ignored ----


def test_a_source_of_another_host_is_ignored(receiving: Context) -> None:
    """UX-12: an advertisement with another host id maps no session."""
    with receiving.receiver("elsewhere") as receiver:
        receiving._engine.map_source("elsewhere", 7, LbtipcAddress(host_id() ^ 1, 5, 20001))
        assert receiver.stats()["delivery_controllers"] == 0


def test_topics_with_keys_are_refused(tmp_path: Path) -> None:
    """Records carry no tags, so a source of a topic with keys has to use another transport."""
    keys = tmp_path / "keys"
    keys.touch(0o600)
    write_keys(keys, "secret", (1, bytes(range(32))))
    with (
        open_context(authentication_scope="all", authentication_key_file=str(keys)) as context,
        pytest.raises(OptionError, match="carry no tags"),
    ):
        context.source("secret", transport="lbtipc")
