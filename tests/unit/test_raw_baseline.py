"""The raw kernel-socket baselines of `umstack bench`, over loopback: they send, count and check as documented.

A baseline that missed a loss, or counted a datagram twice, would make all ratios against it worthless.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import random
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from umstack._sim_bench import ffi, lib
from umstack.bench import raw
from umstack.bench.children import BenchError, ThisMachine
from umstack.bench.raw import PingPongPlan, RawThroughput, ThroughputPlan

LOOPBACK = "127.0.0.1"
LOOPBACK_IP = 0x7F000001
END_MARKER = bytes(4)
HERE = ThisMachine()
Address = tuple[str, int]


@pytest.fixture
def group() -> Address:
    """Return a group and a port that are otherwise unused; the next port is free too."""
    chosen = f"239.254.{random.randrange(256)}.{random.randrange(1, 255)}"
    while True:
        with contextlib.ExitStack() as stack:
            first, second = (stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(2))
            first.bind(("", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("", port + 1))
                return chosen, port


@contextlib.contextmanager
def opened(fd: int) -> Iterator[int]:
    """A socket opened by the core, closed at the end."""
    assert fd >= 0, f"errno {-fd}"
    with socket.socket(fileno=fd):
        yield fd


def ip_of(address: str) -> int:
    """Return the address in the format of the core."""
    return int.from_bytes(socket.inet_aton(address), "big")


def message(counter: int, size: int = 64) -> bytes:
    """Return a message as the senders build it: a counter in host byte order, then filler."""
    return struct.pack("=Q", counter) + bytes(size - 8)


def receive(
    group: Address, datagrams: Sequence[bytes], *, wait: int | None = None, **options: Any
) -> dict[str, Any]:
    """Return the receiver's result for these datagrams, which are already in its socket buffer."""
    gro = bool(options.get("gro", False))
    config = ffi.new(
        "um_raw_receive_config *",
        {
            "message_bytes": 64,
            "max_datagram_bytes": 1408,
            "batch_count": 8,
            "wait": lib.UM_RAW_WAIT_BLOCK if wait is None else wait,
            "coalesce_ns": 1_000_000,
            "first_timeout_ns": 50_000_000,
            "idle_timeout_ns": 50_000_000,
            **options,
        },
    )
    result = ffi.new("um_raw_receive_result *")
    with opened(lib.um_raw_open_receiver(LOOPBACK_IP, ip_of(group[0]), group[1], gro, 8 << 20)) as fd:
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
            for datagram in datagrams:
                sender.sendto(datagram, group)
        status = lib.um_raw_receive(fd, config, result)
    return {"status": status, **raw.fields_of(ffi, result)}


def send(group: Address, **options: Any) -> tuple[dict[str, Any], list[bytes]]:
    """Return the sender's result, and the datagrams that a plain socket received, end markers included."""
    config = ffi.new(
        "um_raw_send_config *",
        {
            "group_ip": ip_of(group[0]),
            "group_port": group[1],
            "message_bytes": 64,
            "messages_per_datagram_count": 1,
            "segments_per_send_count": 1,
            "batch_count": 16,
            "duration_ns": 10_000_000_000,
            "max_message_count": 1000,
            **options,
        },
    )
    segment_bytes = config.message_bytes * config.messages_per_datagram_count
    result = ffi.new("um_raw_send_result *")
    received = []
    with socket.socket(type=socket.SOCK_DGRAM) as receiver:
        receiver.bind(group)
        membership = socket.inet_aton(group[0]) + socket.inet_aton(LOOPBACK)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        gso = config.segments_per_send_count > 1
        with opened(lib.um_raw_open_sender(LOOPBACK_IP, segment_bytes if gso else 0, 1 << 20)) as fd:
            assert lib.um_raw_send(fd, config, result) == 0
        receiver.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                received.append(receiver.recv(65536))
    return raw.fields_of(ffi, result), received


def counters_of(datagrams: Sequence[bytes], size: int = 64) -> list[int]:
    """Return the counters of the messages in these datagrams, in order of arrival."""
    messages = b"".join(datagram for datagram in datagrams if datagram != END_MARKER)
    return [struct.unpack_from("=Q", messages, at)[0] for at in range(0, len(messages), size)]


@pytest.mark.parametrize(
    ("packing", "lengths"),
    [
        ({}, [64] * 100),
        ({"messages_per_datagram_count": 22}, [1408] * 4 + [12 * 64]),
        ({"segments_per_send_count": 40}, [64] * 100),
        ({"messages_per_datagram_count": 3, "segments_per_send_count": 4}, [192] * 33 + [64]),
    ],
)
def test_the_sender_sends_every_counter_once_in_datagrams_of_the_given_size(
    group: Address, packing: dict[str, int], lengths: list[int]
) -> None:
    """Messages are sent one per datagram, packed, and as super-datagrams; the traffic equals the result
    exactly.
    """
    result, datagrams = send(group, max_message_count=100, **packing)
    data = [datagram for datagram in datagrams if datagram != END_MARKER]
    assert counters_of(datagrams) == list(range(100))
    assert [len(datagram) for datagram in data] == lengths
    assert datagrams[-1] == END_MARKER
    assert (result["message_count"], result["datagram_count"], result["byte_count"]) == (100, len(data), 6400)


def test_the_sender_keeps_its_duration_and_pace(group: Address) -> None:
    """A paced sender is at most one batch ahead of its pace, and stops when its time is over."""
    result, _ = send(group, max_message_count=0, duration_ns=100_000_000, pace_messages_per_second=10_000)
    allowed = 10_000 * result["elapsed_ns"] / 1e9 + 16
    assert 0 < result["message_count"] <= allowed
    assert result["elapsed_ns"] >= 100_000_000


@pytest.mark.parametrize("gro", [False, True])
@pytest.mark.parametrize("wait", ["UM_RAW_WAIT_BLOCK", "UM_RAW_WAIT_BUSY", "UM_RAW_WAIT_COALESCE"])
def test_the_receiver_counts_a_complete_stream(group: Address, wait: str, gro: bool) -> None:
    """Packed and single datagrams in order are all counted, without faults, in each way of waiting."""
    datagrams = [b"".join(message(n) for n in range(first, first + 22)) for first in range(0, 440, 22)]
    datagrams += [message(n) for n in range(440, 500)]
    found = receive(group, [*datagrams, END_MARKER], wait=getattr(lib, wait), gro=gro)
    assert found["status"] == 0
    assert found["end_marker_seen"]
    assert (found["message_count"], found["datagram_count"]) == (500, 80)
    assert found["byte_count"] == 500 * 64
    for amiss in ("lost", "out_of_order", "duplicate", "malformed", "socket_drop"):
        assert found[f"{amiss}_count"] == 0, amiss


@pytest.mark.parametrize(
    ("counters", "lost", "out_of_order", "duplicates"),
    [
        ([0, 1, 4, 5], 2, 0, 0),
        ([3, 4], 3, 0, 0),
        ([0, 2, 1, 3], 0, 1, 0),
        ([0, 5, 3, 2, 6], 2, 2, 0),
        ([0, 5, 1, 4, 2, 3, 6], 0, 4, 0),
        ([0, 1, 1, 2], 0, 0, 1),
        ([0, 3, 1, 1, 3, 0], 1, 1, 3),
        ([0, 2, 5, 1, 4, 3, 3], 0, 3, 1),
        ([0, *range(2, 4002, 2), 3], 2000, 0, 1),
        ([0, *range(2, 4002, 2), 3999, 4001], 1999, 1, 0),
    ],
)
def test_the_receiver_distinguishes_lost_late_and_duplicate(
    group: Address, counters: list[int], lost: int, out_of_order: int, duplicates: int
) -> None:
    """Every message is checked and none is sampled; a gap beyond the table's limit remains lost."""
    found = receive(group, [*(message(n) for n in counters), END_MARKER])
    kinds = ("lost_count", "out_of_order_count", "duplicate_count")
    assert tuple(found[kind] for kind in kinds) == (lost, out_of_order, duplicates)
    assert found["message_count"] == len(counters)


def test_the_receiver_counts_datagrams_without_a_whole_message(group: Address) -> None:
    """Messages that are truncated, too long for the buffer, or empty are counted as malformed and never read
    beyond the end.
    """
    found = receive(group, [message(0) + b"odd", message(1)[:20], bytes(4000), message(1), END_MARKER])
    assert found["status"] == 0
    assert (found["message_count"], found["malformed_count"], found["lost_count"]) == (2, 3, 0)


@pytest.mark.parametrize("wait", ["UM_RAW_WAIT_BLOCK", "UM_RAW_WAIT_BUSY", "UM_RAW_WAIT_COALESCE"])
def test_the_receiver_ends_without_an_end_marker(group: Address, wait: str) -> None:
    """An idle timeout ends the run. The result is a timeout if nothing arrived, otherwise the data without a
    marker.
    """
    assert receive(group, [], wait=getattr(lib, wait))["status"] == -errno.ETIMEDOUT
    found = receive(group, [message(0), message(1)], wait=getattr(lib, wait))
    assert (found["status"], found["message_count"], found["end_marker_seen"]) == (0, 2, False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_bytes": 7},
        {"batch_count": 0},
        {"batch_count": 1 << 20},
        {"segments_per_send_count": 65},
        {"messages_per_datagram_count": 2000},
    ],
)
def test_sizes_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    """Sizes are bounded, so no buffer exceeds the size that the core expects."""
    sizes = {"message_bytes": 64, "messages_per_datagram_count": 1, "segments_per_send_count": 1}
    config = ffi.new("um_raw_send_config *", {**sizes, "batch_count": 1, "duration_ns": 1, **wrong})
    assert lib.um_raw_send(-1, config, ffi.new("um_raw_send_result *")) == -errno.EINVAL


@pytest.mark.parametrize("wait", ["block", "busy"])
@pytest.mark.parametrize("what", ["raw-udp", "raw-udp-packed", "raw-udp-gso"])
def test_a_throughput_measurement_between_two_processes(
    group: Address, what: raw.What, wait: raw.Wait
) -> None:
    """The bench uses two child processes; the receiver is ready before the sender starts. At an easy pace
    everything arrives.
    """
    plan = ThroughputPlan(what, 64, wait=wait, seconds=20, group=group[0], port=group[1])
    count, pace = 6000 * plan.messages_per_datagram, 20_000 * plan.messages_per_datagram
    plan = dataclasses.replace(plan, max_messages=count, pace_messages_per_second=pace)
    found = raw.measure_throughput(HERE, HERE, plan)
    assert found.sent_messages == count
    assert found.lost == count - found.received_messages
    assert found.lost == 0 or found.socket_drops > 0, "lost although the socket buffer had space"
    assert (found.out_of_order, found.duplicates, found.malformed) == (0, 0, 0)
    # At most one batch ahead of the pace.
    assert 0 < found.sent_messages_per_second < pace * 1.1
    assert found.messages_per_second > 0
    assert found.messages_per_second == pytest.approx(found.datagrams_per_second * plan.messages_per_datagram)
    assert found.publisher_cpu_seconds > 0
    assert found.subscriber_cpu_seconds > 0


@pytest.mark.parametrize("wait", ["block", "busy"])
@pytest.mark.parametrize("groups", [(), ("239.254.1.1", "239.254.1.2")])
def test_a_ping_pong_between_two_processes(group: Address, groups: tuple[str, ...], wait: raw.Wait) -> None:
    """Every requested round trip is measured, over unicast and over one group per direction."""
    plan = PingPongPlan(wait=wait, seconds=30, samples=500, warmup=10, port=group[1])
    if groups:
        plan = dataclasses.replace(plan, to_server_group=groups[0], to_client_group=groups[1])
    found = raw.measure_ping_pong(HERE, HERE, plan)
    assert (found.samples, found.lost) == (500, 0)
    assert 0 < found.min_us <= found.p50_us <= found.p99_us <= found.p999_us <= found.max_us
    # The median times the count is at most twice the total of all round trips.
    assert found.p50_us * found.round_trips_per_second <= 2e6


@pytest.mark.parametrize("wait", ["block", "busy"])
def test_a_ping_pong_has_a_sample_in_any_time(group: Address, wait: raw.Wait) -> None:
    """The warm-up does not count as measuring time: on a busy machine it would use all of it."""
    plan = PingPongPlan(wait=wait, seconds=0, samples=500, warmup=10, port=group[1])
    found = raw.measure_ping_pong(HERE, HERE, plan)
    assert (found.samples, found.lost) == (1, 0)


def test_a_measurement_has_the_keys_of_the_bench(group: Address) -> None:
    """The keys of `umstack bench --json` are present with the measured figures."""
    plan = ThroughputPlan("raw-udp-packed", 64, max_messages=2200, group=group[0], port=group[1])
    found = raw.measure_throughput(HERE, HERE, plan).as_result()
    named = ("what", "link", "mode", "size", "lost", "out_of_order", "duplicates", "wait")
    assert [found[name] for name in named] == ["raw-udp-packed", "socket", "socket", 64, 0, 0, 0, "block"]
    assert {"messages_per_second", "datagrams_per_second"} <= found.keys()
    assert found["cpu_seconds"].keys() == {"publisher", "subscriber"}
    assert found["detail"]["messages_per_datagram"] == 22
    trips = raw.measure_ping_pong(HERE, HERE, PingPongPlan(samples=10, port=group[1])).as_result()
    assert trips["round_trip_us"].keys() == {"p50", "p99", "p999"}
    assert trips["wait"] == "block"


def test_percentiles_match_the_samples() -> None:
    """Figures are measured in nanoseconds and printed in microseconds; p999 is in the tail."""
    samples = np.arange(1, 100_001, dtype=np.uint64)
    np.random.default_rng(7).shuffle(samples)
    found = raw.percentiles_us(samples)
    assert found["p50_us"] == pytest.approx(50.0, rel=1e-3)
    assert found["p99_us"] == pytest.approx(99.0, rel=1e-3)
    assert found["p999_us"] == pytest.approx(99.9, rel=1e-3)
    assert (found["min_us"], found["max_us"]) == (0.001, 100.0)


def fake_result(plan: ThroughputPlan, rate: float, lost: int) -> RawThroughput:
    """Return a measurement with this rate and loss per thousand messages."""
    return RawThroughput(plan, rate, rate, rate, 1000, 1000 - lost, lost, 0, 0, 0, 0, 1.0, 1.0, 0)


def test_the_fastest_way_is_measured_for_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest probe is chosen; the figure is that of the long run, even if it is below the probe's."""

    def measured(_sender: object, _receiver: object, plan: ThroughputPlan) -> RawThroughput:
        return fake_result(plan, {0: 10.0, 100: 30.0, 300: 20.0}[plan.coalesce_us] / plan.seconds, 0)

    monkeypatch.setattr(raw, "measure_throughput", measured)
    found = raw.measure_strongest(HERE, HERE, ThroughputPlan("raw-udp", 64, seconds=2.0), probe_seconds=0.5)
    assert (found.plan.coalesce_us, found.plan.seconds, found.messages_per_second) == (100, 2.0, 15.0)
    assert [probe.messages_per_second for probe in found.probes] == [20.0, 60.0, 40.0]


def test_a_sender_that_overruns_its_receiver_is_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the best probe loses datagrams, pacing near the received rate is tried, and used if its throughput is
    higher."""

    def measured(_sender: object, _receiver: object, plan: ThroughputPlan) -> RawThroughput:
        if not plan.pace_messages_per_second:
            return fake_result(plan, 1000.0, 200)
        return fake_result(plan, 1200.0 if plan.pace_messages_per_second > 1000 else 900.0, 0)

    monkeypatch.setattr(raw, "measure_throughput", measured)
    found = raw.measure_strongest(HERE, HERE, ThroughputPlan("raw-udp", 64))
    assert found.plan.pace_messages_per_second == 1050
    assert found.messages_per_second == 1200.0


@pytest.mark.parametrize(
    "spec",
    [
        raw.send_spec(ThroughputPlan("raw-udp-gso", 1024, pace_messages_per_second=5), LOOPBACK),
        raw.receive_spec(ThroughputPlan("raw-udp", 64, coalesce_us=100), LOOPBACK),
    ],
)
def test_a_child_gets_the_spec(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec survives the command line with all its types."""
    received_specs: list[Any] = []
    monkeypatch.setattr(raw, "_send", received_specs.append)
    monkeypatch.setattr(raw, "_receive", received_specs.append)
    role = "send" if isinstance(spec, raw.SendSpec) else "receive"
    assert raw.main([role, *raw.to_arguments(spec)]) == 0
    assert received_specs == [spec]


def test_a_failing_child_is_an_error_with_its_reason(group: Address) -> None:
    """With an address of no local interface, the child's own error reaches the caller."""
    plan = ThroughputPlan("raw-udp", 64, group=group[0], port=group[1])
    with pytest.raises(BenchError, match=r"ip -br address"):
        raw.measure_throughput(HERE, ThisMachine("203.0.113.7"), plan)


def test_a_failing_sender_leaves_no_receiver_behind(group: Address) -> None:
    """If the sender cannot start, the receiver is ended immediately instead of by its timeout."""
    started: list[Any] = []

    class Watched(ThisMachine):
        def run(self, argv: Sequence[str], **options: Any) -> Any:
            started.append(ThisMachine.run(self, argv, **options))
            return started[-1]

    plan = ThroughputPlan("raw-udp", 64, group=group[0], port=group[1])
    with pytest.raises(BenchError):
        raw.measure_throughput(ThisMachine("203.0.113.7"), Watched(), plan)
    assert [process.poll() is not None for process in started] == [True]
