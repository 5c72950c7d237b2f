"""LBT-IPC: either side wakes the other by an eventfd that it gets once, and only processes of one user share them."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import Any

import pytest

from tests.held import held, wait_until_released
from tests.unit.lbtipc_ends import (
    CAPACITY,
    HELLO,
    POSITION_AT,
    SLEEPING_AT,
    WAKE,
    WANTED_AT,
    Control,
    RawReceiver,
    RawSource,
    decode,
    payload,
    send_with,
)
from tests.unit.loopback import connect_contexts, open_context, payloads
from tests.unit.tcp_peers import message
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context, Receiver, Source
from umstack._engine.host_identity import host_id
from umstack._engine.transport_address import LbtipcAddress

EVENTS_VERSION = 4
FULL = 2**64 - 2
ATTACHMENTS = 1000
OTHER_USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="connecting as another user needs root")


def _connected(sending: Context, receiving: Context, topic: str, **options: Any) -> tuple[Source, Receiver]:
    return connect_contexts(sending, receiving, topic, transport="lbtipc", **options)


def _is_readable(fd: int, seconds: float = 0.0) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])


def _record(data: bytes) -> bytes:
    return struct.pack("=Q", len(data)) + data + bytes(-len(data) % 8)


# ---- wake-ups arrive ----


def test_a_receiver_that_sleeps_is_woken_by_its_eventfd(sending: Context, receiving: Context) -> None:
    """UX-12: one write per sleep, none while it is awake, and nothing on the control socket."""
    source, receiver = _connected(sending, receiving, "eventfd")
    with source, receiver, RawReceiver(source.transport) as raw:
        assert raw.attach(version=EVENTS_VERSION).version_high == EVENTS_VERSION
        wait_for(lambda: source.stats()["num_clients"] == 2, "both are attached")
        source.send(b"awake", flush=True)
        assert not _is_readable(raw.wakes_receiver, 0.05)
        for number in range(3):
            raw.write_page(SLEEPING_AT, 1)
            source.send(payload(number), flush=True)
            source.send(payload(number), flush=True)
            assert _is_readable(raw.wakes_receiver, SECONDS)
            assert os.eventfd_read(raw.wakes_receiver) == 1
        assert not _is_readable(raw.peer.fileno())


def test_a_source_that_waits_is_woken_by_its_eventfd(sending: Context) -> None:
    """UX-12: a receiver-paced source continues when it is woken, and need not poll the position meanwhile."""
    with (
        open_context() as receiving,
        sending.source(
            "wanted",
            transport="lbtipc",
            transport_lbtipc_behavior="receiver_paced",
            transport_lbtipc_transmission_window_size=CAPACITY,
        ) as source,
        receiving,
        RawReceiver(source.transport) as raw,
    ):
        raw.attach(version=EVENTS_VERSION)
        wait_for(lambda: source.stats()["num_clients"] == 1, "it is attached")
        many = [bytes(1000)] * 3000
        writer = threading.Thread(target=lambda: source.send_many(many, flush=True, timeout=SECONDS))
        writer.start()
        waits = []
        while writer.is_alive():
            with contextlib.suppress(TimeoutError):
                wanted = wait_for_wanted(raw, writer)
                began = time.monotonic()
                raw.write_page(WANTED_AT, -1)
                raw.write_page(POSITION_AT, wanted)
                os.eventfd_write(raw.wakes_source, 1)
                while writer.is_alive() and wanted_of(raw) < 0:
                    time.sleep(0.0005)
                waits.append(time.monotonic() - began)
        writer.join()
        assert len(waits) > 20
        assert sorted(waits)[len(waits) // 2] < 0.02  # polling alone would take up to 50 ms


def wanted_of(raw: RawReceiver) -> int:
    """Return the position from which the source wants to be woken; below 0: it does not wait."""
    (value,) = struct.unpack("=q", os.pread(raw.page, 8, WANTED_AT))
    return int(value)


def wait_for_wanted(raw: RawReceiver, writer: threading.Thread) -> int:
    """Wait until the source waits for space, and return the position that it wants."""
    deadline = time.monotonic() + SECONDS
    while (wanted := wanted_of(raw)) < 0:
        if not writer.is_alive() or time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.0005)
    return wanted


def test_a_receiver_of_an_earlier_version_is_woken_by_the_socket(
    sending: Context, receiving: Context
) -> None:
    """An earlier build gets two descriptors, and its wake-ups by the control socket."""
    source, receiver = _connected(sending, receiving, "earlier")
    with source, receiver, RawReceiver(source.transport) as raw:
        assert raw.attach(version=3).version_high == 3
        assert raw.wakes_receiver == raw.wakes_source == -1
        raw.write_page(SLEEPING_AT, 1)
        source.send(b"wake", flush=True)
        woken = raw.hear()
        assert woken is not None
        assert woken.kind == WAKE


# ---- one user ----


@needs_root
def test_a_receiver_of_another_user_gets_no_eventfds(sending: Context, receiving: Context) -> None:
    """UX-12: it could make one blocking and fill it. It gets version 3, or is refused if it speaks only version 4."""
    source, receiver = _connected(sending, receiving, "other user")
    with source, receiver:
        os.seteuid(OTHER_USER)
        try:
            raws = [RawReceiver(source.transport) for _ in range(2)]
        finally:
            os.seteuid(0)
        with raws[0] as raw, raws[1] as later:
            assert raw.attach(version=EVENTS_VERSION).version_high == 3
            assert raw.wakes_receiver == raw.wakes_source == -1
            later.say(Control(HELLO, later.session_id, version_low=4, version_high=EVENTS_VERSION))
            refused = later.hear()
            assert refused is not None
            assert refused.reason == 1


# ---- descriptors ----


def test_a_thousand_receivers_leave_no_descriptor(sending: Context, receiving: Context) -> None:
    """UX-12: source and receivers are in this process, so nothing that either holds may remain."""
    source, receiver = _connected(sending, receiving, "thousand")
    with source, receiver:
        before = held()
        for _ in range(ATTACHMENTS):
            with RawReceiver(source.transport) as raw:
                raw.attach(version=EVENTS_VERSION)
        wait_for(lambda: source.stats()["num_clients"] == 1, "all have left")
        wait_until_released(before)
        source.send(b"still here", flush=True)
        assert payloads(collect(receiver, 1)) == [b"still here"]


def _event() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK)


def _epoll_set() -> int:
    with select.epoll() as one:
        return os.dup(one.fileno())


_WRONG: dict[str, tuple[int, Callable[[], list[int]]]] = {
    "none": (4, list),
    "one": (4, lambda: [_event()]),
    "two too many": (4, lambda: [_event() for _ in range(4)]),
    "a hundred too many": (4, lambda: [_event() for _ in range(102)]),
    "those of a later version": (3, lambda: [_event(), _event()]),
    "a pipe": (4, lambda: list(os.pipe())),
    "a file": (4, lambda: [_event(), os.memfd_create("eventfd")]),
    "an epoll set": (4, lambda: [_epoll_set(), _event()]),
    "a socket": (4, lambda: [socket.socketpair()[0].detach(), _event()]),
    "eventfds that block": (4, lambda: [os.eventfd(0), os.eventfd(0)]),
}
"""By name: the version of the WELCOME, and the descriptors behind those of the log and the page."""


def _with_wakeups(raw: RawSource, peer: socket.socket, descriptors: Sequence[int], version: int = 4) -> None:
    welcome = raw.welcome(version_low=version, version_high=version)
    send_with(peer, welcome, [raw.log, raw.page, *descriptors])


@pytest.mark.parametrize("what", _WRONG)
def test_a_welcome_with_wrong_eventfds_is_given_up(receiving: Context, what: str) -> None:
    """UX-12: the receiver closes all that came and tries again: a right answer is accepted, and its eventfd wakes."""
    version, make = _WRONG[what]
    with (
        RawSource(SystemRandom().randrange(1, 2**32)) as raw,
        receiving.receiver(f"wrong {what}") as receiver,
    ):
        receiving._engine.map_source(f"wrong {what}", 7, LbtipcAddress(host_id(), raw.session_id, 20001))
        first = raw.greet()
        before = held()
        wrong = make()
        for fd in wrong:
            os.set_blocking(fd, what == "eventfds that block")
        _with_wakeups(raw, first, wrong, version)
        for fd in wrong:
            os.close(fd)
        with contextlib.suppress(ConnectionResetError):
            assert first.recv(64) == b""
        first.close()
        second = raw.greet()
        right = [_event(), _event()]
        _with_wakeups(raw, second, right)
        wait_for(lambda: raw.page_memory[SLEEPING_AT] == 1, "the receiver sleeps")
        record = _record(message(7, 0, b"right"))
        raw.write(record, len(record))
        raw.page_memory[SLEEPING_AT] = 0
        os.eventfd_write(right[0], 1)
        assert payloads(collect(receiver, 1)) == [b"right"]
        for fd in right:
            os.close(fd)
        second.close()
        raw.close()
        wait_until_released(before)


# ---- hostile peers ----


def test_a_full_eventfd_stops_neither_side(sending: Context, receiving: Context) -> None:
    """UX-12: a receiver that fills its eventfds, reads none and always sleeps harms only itself."""
    source, receiver = _connected(sending, receiving, "full eventfd")
    with source, receiver, RawReceiver(source.transport) as raw:
        raw.attach(version=EVENTS_VERSION)
        wait_for(lambda: source.stats()["num_clients"] == 2, "both are attached")
        for fd in (raw.wakes_receiver, raw.wakes_source):
            os.eventfd_write(fd, FULL)
        for number in range(2000):
            raw.write_page(SLEEPING_AT, 1)
            source.send(payload(number), flush=True)
        assert payloads(collect(receiver, 2000)) == [payload(number) for number in range(2000)]
        assert source.stats()["num_clients"] == 2


def test_a_peer_that_never_stops_to_wake_harms_nobody(sending: Context, receiving: Context) -> None:
    """UX-12: wake-ups without a reason cost passes of the loop, and messages arrive meanwhile."""
    source, receiver = _connected(sending, receiving, "spinning")
    with (
        source,
        receiver,
        RawReceiver(source.transport) as raw,
        RawSource(SystemRandom().randrange(1, 2**32)) as hostile,
        receiving.receiver("hostile"),
    ):
        raw.attach(version=EVENTS_VERSION)
        receiving._engine.map_source("hostile", 7, LbtipcAddress(host_id(), hostile.session_id, 20001))
        event, other = _event(), _event()
        _with_wakeups(hostile, hostile.greet(), [event, other])
        is_ended = threading.Event()

        def spin() -> None:
            while not is_ended.is_set():
                for fd in (raw.wakes_source, raw.wakes_receiver, event, other):
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_write(fd, 1)

        spinning = threading.Thread(target=spin)
        spinning.start()
        try:
            for number in range(500):
                source.send(payload(number), flush=True)
            assert payloads(collect(receiver, 500)) == [payload(number) for number in range(500)]
        finally:
            is_ended.set()
            spinning.join()
            os.close(event)
            os.close(other)


def test_a_wake_message_beside_an_eventfd_is_refused(sending: Context, receiving: Context) -> None:
    """UX-12: from version 4 on the control socket has no WAKE, in either direction."""
    source, receiver = _connected(sending, receiving, "both ways")
    with source, receiver, RawReceiver(source.transport) as raw:
        raw.attach(version=EVENTS_VERSION)
        raw.say(Control(WAKE, raw.session_id))
        assert raw.hear() is None
        wait_for(lambda: source.stats()["connections_refused"] == 1, "it is counted")


def test_a_receiver_shares_eventfds_with_a_source_of_its_user(receiving: Context) -> None:
    """The HELLO offers version 4 to a process of the same user."""
    with RawSource(SystemRandom().randrange(1, 2**32)) as raw, receiving.receiver("offers"):
        receiving._engine.map_source("offers", 7, LbtipcAddress(host_id(), raw.session_id, 20001))
        peer, _ = raw._listener.accept()
        with peer:
            hello = decode(peer.recv(64))
            assert (hello.kind, hello.version_low, hello.version_high) == (HELLO, 1, EVENTS_VERSION)
