"""LBT-IPC: sources that break the rules, in their log, their descriptors or their answers (UX-12)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.held import held, wait_until_released
from tests.unit.lbtipc_ends import (
    CAPACITY,
    HELLO,
    REFUSED,
    WAKE,
    Control,
    RawSource,
    send_with,
)
from tests.unit.loopback import collect_events, payloads
from tests.unit.tcp_peers import message
from tests.waiting import collect, wait_for
from umstack import (
    BeginningOfSession,
    Context,
    EndOfSession,
    Receiver,
)
from umstack._engine.host_identity import host_id
from umstack._engine.transport_address import LbtipcAddress


def _follow(receiving: Context, raw: RawSource, topic: str) -> Receiver:
    """Return a receiver that is mapped to the simulated source as if by an advertisement."""
    receiver = receiving.receiver(topic)
    receiving._engine.map_source(topic, 7, LbtipcAddress(host_id(), raw.session_id, 20001))
    return receiver


def _record(data: bytes) -> bytes:
    """Return a record with a body, padded."""
    return struct.pack("=Q", len(data)) + data + bytes(-len(data) % 8)


def _session_id() -> int:
    return random.SystemRandom().randrange(1, 2**32)


def test_a_source_made_of_a_socket_is_received(receiving: Context) -> None:
    """The layout and the protocol are those of docs/ipc.md: a record written by a test is delivered."""
    with RawSource(_session_id()) as raw, _follow(receiving, raw, "by-hand") as receiver:
        peer = raw.accept()
        record = _record(message(7, 0, b"by hand"))
        raw.write(record, len(record))
        raw.wake(peer)
        assert payloads(collect(receiver, 1)) == [b"by hand"]


_GOOD = _record(message(7, 0, b"good"))
_BAD_LOGS = {
    "end before": (_GOOD, -8),
    "end far": (_GOOD, 2**62),
    "end odd": (_GOOD, 12),
    "length long": (struct.pack("=Q", 65536), 1024),
    "length beyond the end": (struct.pack("=Q", 5000), 64),
    "length huge": (struct.pack("=Q", 2**63), 1024),
    "no message": (_record(b"\xff" * 64), 72),
    "message cut": (_record(message(7, 0, bytes(100))[:50]), 64),
}


@pytest.mark.parametrize("what", _BAD_LOGS)
def test_a_hostile_log_is_given_up(receiving: Context, what: str) -> None:
    """UX-12: the receiver detaches, counts it and tries again; when the source is gone its session ends."""
    record, end = _BAD_LOGS[what]
    raw = RawSource(_session_id(), is_source_paced=False)
    with raw, _follow(receiving, raw, f"hostile {what}") as receiver:
        peer = raw.accept()
        raw.write(record, end)
        raw.wake(peer)
        with contextlib.suppress(ConnectionResetError):  # the receiver has looked at the log by itself
            assert peer.recv(64) == b""
        raw.accept()  # it attaches again
        raw.close()
        rows = collect_events(receiver, 2)
        assert [type(row) for row in rows] == [BeginningOfSession, EndOfSession]


def test_a_source_that_welcomes_and_closes_is_asked_ever_less_often(receiving: Context) -> None:
    """UX-12: it costs its receivers no more than a source that refuses them."""
    with RawSource(_session_id(), is_source_paced=False) as raw, _follow(receiving, raw, "closes"):
        began = time.monotonic()
        attempts = 0
        while time.monotonic() < began + 1.5:
            raw.accept().close()
            attempts += 1
        assert attempts <= 16


def test_an_end_far_ahead_is_a_loss_of_a_source_paced_log(receiving: Context) -> None:
    """UX-12: a hostile source-paced log can only lose messages of its own session."""
    with RawSource(_session_id()) as raw, _follow(receiving, raw, "leaps") as receiver:
        peer = raw.accept()
        for end in (2**40, 2**50):
            raw.write(b"", end)
            raw.wake(peer)
        record = _record(message(7, 9, b"after"))
        at = 2**50 % CAPACITY
        wait_for(lambda: raw.page_memory[:8] == struct.pack("=q", 2**50), "it continues at the end")
        raw.write(record, 2**50 + len(record), at=at)
        raw.wake(peer)
        assert payloads(collect(receiver, 1)) == [b"after"]


@pytest.mark.parametrize(
    ("changes", "seals"),
    [
        ({"capacity": 0}, True),
        ({"capacity": CAPACITY * 2}, True),
        ({"position": -8}, True),
        ({"position": 4}, True),
        ({"version_low": 5, "version_high": 5}, True),
        ({}, False),
    ],
)
def test_a_segment_that_is_not_as_announced_is_not_mapped(
    receiving: Context, changes: dict[str, int], seals: bool
) -> None:
    """UX-12: sizes, seals, positions and versions are checked before the log is used."""
    with RawSource(_session_id(), seals=seals) as raw, _follow(receiving, raw, f"odd-{changes}-{seals}"):
        peer = raw.accept(**changes)
        assert peer.recv(64) == b""


def _memory(size: int, seals: int) -> int:
    """Return a memory file with seals."""
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@contextmanager
def _wrong_descriptors(raw: RawSource, what: str) -> Iterator[list[int]]:
    """Yield descriptors that are not the log and the page of a receiver."""
    with ExitStack() as stack:

        def made(fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        def file() -> int:
            other = stack.enter_context(tempfile.TemporaryFile())
            other.truncate(os.fstat(raw.log).st_size)
            return other.fileno()

        sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        page_bytes = os.fstat(raw.page).st_size
        chosen: dict[str, Callable[[], list[int]]] = {
            "none": list,
            "one": lambda: [raw.log],
            "exchanged": lambda: [raw.page, raw.log],
            "a file": lambda: [file(), raw.page],
            "a device": lambda: [made(os.open("/dev/zero", os.O_RDWR)), raw.page],
            "a directory": lambda: [made(os.open("/", os.O_RDONLY)), raw.page],
            "an event": lambda: [raw.log, made(os.eventfd(0))],
            "a page that may shrink": lambda: [raw.log, made(_memory(page_bytes, fcntl.F_SEAL_GROW))],
            "a page that is too short": lambda: [raw.log, made(_memory(8, sealed))],
            "a page that cannot be written": lambda: [
                raw.log, made(_memory(page_bytes, sealed | fcntl.F_SEAL_WRITE))
            ],
            "more": lambda: [made(_memory(8, sealed)), raw.log, raw.page, raw.log, raw.page],
        }  # fmt: skip
        yield chosen[what]()


@pytest.mark.parametrize(
    "what",
    [
        *(
            "none",
            "one",
            "exchanged",
            "a file",
            "a device",
            "a directory",
            "an event",
            "a page that may shrink",
        ),
        *("a page that is too short", "a page that cannot be written", "more"),
    ],
)
def test_descriptors_of_another_kind_are_not_mapped(receiving: Context, what: str) -> None:
    """UX-12: a WELCOME brings two sealed memory files of the announced sizes, else the receiver closes all that came
    and tries again: a right answer is accepted afterwards."""
    with RawSource(_session_id()) as raw, _follow(receiving, raw, f"odd {what}") as receiver:
        first = raw.greet()
        before = held()
        with _wrong_descriptors(raw, what) as descriptors:
            send_with(first, raw.welcome(), descriptors)
            assert first.recv(64) == b""
        first.close()
        second = raw.accept()
        record = _record(message(7, 0, b"right"))
        raw.write(record, len(record))
        raw.wake(second)
        assert payloads(collect(receiver, 1)) == [b"right"]
        wait_until_released(before)


_ANSWERS: dict[str, Callable[[RawSource], bytes]] = {
    "garbage": lambda _raw: b"\xff" * 40,
    "cut": lambda raw: raw.welcome()[:-1],
    "longer": lambda raw: raw.welcome() + b"\0",
    "empty": lambda _raw: b"\0",
    "of another session": lambda raw: raw.welcome(session_id=raw.session_id ^ 1),
    "a kind of later": lambda raw: Control(99, raw.session_id).encode(),
    "a HELLO": lambda raw: Control(HELLO, raw.session_id).encode(),
    "a WAKE": lambda raw: Control(WAKE, raw.session_id).encode(),
    "an unknown reason": lambda raw: Control(REFUSED, raw.session_id, reason=99).encode(),
    "versions in the wrong order": lambda raw: raw.welcome(version_low=3, version_high=1),
    "a pace of neither kind": lambda raw: raw.welcome(is_source_paced=2),
    "a position far ahead": lambda raw: raw.welcome(position=2**63 - 4),
    "a capacity that is no power of two": lambda raw: raw.welcome(capacity=CAPACITY + 8),
    "a huge capacity": lambda raw: raw.welcome(capacity=2**31),
}


@pytest.mark.parametrize("what", _ANSWERS)
def test_an_answer_that_breaks_the_protocol_is_given_up(receiving: Context, what: str) -> None:
    """UX-12: the receiver closes the connection and the descriptors that came, and tries again."""
    with RawSource(_session_id()) as raw, _follow(receiving, raw, f"answer {what}") as receiver:
        first = raw.greet()
        before = held()
        send_with(first, _ANSWERS[what](raw), [raw.log, raw.page])
        with contextlib.suppress(ConnectionResetError):
            assert first.recv(64) == b""
        first.close()
        second = raw.accept()
        record = _record(message(7, 0, b"right"))
        raw.write(record, len(record))
        raw.wake(second)
        assert payloads(collect(receiver, 1)) == [b"right"]
        wait_until_released(before)


def test_descriptors_after_the_welcome_are_closed(receiving: Context) -> None:
    """UX-12: a source that sends more and more of them fills no table, and is given up after any message but WAKE;
    records that it wrote before are delivered."""
    with RawSource(_session_id()) as raw, _follow(receiving, raw, "flood") as receiver:
        peer = raw.accept()
        first, second = (_record(message(7, number, b"before")) for number in range(2))
        raw.write(first, len(first))
        raw.wake(peer)
        assert payloads(collect(receiver, 1)) == [b"before"]  # so it has closed those of the WELCOME
        before = held()
        raw.write(second, len(first + second), at=len(first))
        for _ in range(20):
            send_with(peer, Control(WAKE, raw.session_id).encode(), [raw.log, raw.page])
        assert payloads(collect(receiver, 1)) == [b"before"]
        send_with(peer, raw.welcome(), [raw.log, raw.page])
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(64) == b""
        peer.close()
        raw.accept()
        wait_until_released(before)
