"""Every sub-command of `umstack bench` runs and delivers on a real lab, at settings too short for meaningful
figures.

All output is checked against the schema, so that the benches cannot break unnoticed.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from umstack.bench.driver import DriverPlan
from umstack.bench.driver import measure as measure_driver
from umstack.bench.stream_ends import Api, StreamSpec
from umstack.bench.tcp_peers import ZMQ_PEERS
from umstack.bench.throughput import Pins, measure_stream, options_text
from umstack.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
RESULT_KEYS = {
    *("what", "transport", "link", "mode", "size", "api", "messages_per_second", "datagrams_per_second"),
    *("lost", "out_of_order", "duplicates", "retransmissions", "unrecoverable"),
    *("cpu_seconds", "wait", "loop", "round_trip_us"),
}
DATAGRAM_BASELINES = {"raw-udp", "raw-udp-packed", "raw-udp-gso"}
BASELINES = {*DATAGRAM_BASELINES, "raw-tcp", "zmq-pair-python", *ZMQ_PEERS}
pytestmark = pytest.mark.timeout(300)
QUICK = ("--seconds", "0.1", "--rounds", "1", "--json")


def bench(*arguments: str) -> list[dict[str, Any]]:
    """Run a sub-command of `umstack bench` and return its results, checked as in `measured`."""
    return measured("umstack", "bench", *arguments)


def measured(*module: str) -> list[dict[str, Any]]:
    """Run a module and return its results. All results follow the schema, and those of the stack report no
    fault.
    """
    command = [sys.executable, "-m", *module, *QUICK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"kernel", "cpus", "python", "versions", "mtu", "segmentation", "governor"} <= found[
        "environment"
    ].keys()
    for one in found["results"]:
        assert one.keys() >= RESULT_KEYS
        assert one["what"] in BASELINES | {"umstack"}
        assert one["link"] == "socket"
        assert one["cpu_seconds"].keys() == {"publisher", "subscriber"}
        if one["round_trip_us"]:
            assert (
                0 < one["round_trip_us"]["p50"] <= one["round_trip_us"]["p99"] <= one["round_trip_us"]["p999"]
            )
        else:
            assert one["messages_per_second"] > 0
        if one["what"] == "umstack":
            assert_clean(one)
    results: list[dict[str, Any]] = found["results"]
    return results


def assert_clean(one: dict[str, Any]) -> None:
    """Assert that no message was lost, reordered, duplicated or given up."""
    counts = ("lost", "out_of_order", "duplicates", "unrecoverable")
    assert {name: one[name] for name in counts} == dict.fromkeys(counts, 0)


def test_throughput_is_compared_with_raw_sockets() -> None:
    """`umstack bench throughput` runs the stack and the three raw baselines in one run, with ratios."""
    own, *raws = bench("throughput", "--size", "64", "--api", "batch", "--link", "socket")
    assert {one["what"] for one in raws} == DATAGRAM_BASELINES
    assert own["ratios"].keys() == DATAGRAM_BASELINES
    assert (own["api"], own["size"], own["wait"], own["loop"]) == ("batch", 64, "block", "python")
    for one in raws:
        assert own["ratios"][one["what"]] == pytest.approx(
            own["messages_per_second"] / one["messages_per_second"]
        )


def test_latency_is_compared_with_raw_sockets() -> None:
    """`umstack bench latency` measures from Python and in the core, together with a raw round trip that waits
    in the same way.
    """
    results = bench("latency", "--link", "socket", "--wait", "block", "--count", "200")
    assert [(one["what"], one["loop"]) for one in results] == [
        ("umstack", "python"),
        ("umstack", "core"),
        ("raw-udp", "core"),
    ]
    assert all(one["wait"] == "block" for one in results)
    assert results[0]["ratios"]["raw-udp"] > 0


def test_requests_are_compared_with_a_tcp_connection() -> None:
    """`tests.bench.measure_requests` measures responses together with a plain TCP round trip."""
    own, tcp = measured("tests.bench.measure_requests", "--count", "200")
    assert (own["what"], tcp["what"]) == ("umstack", "raw-tcp")
    assert own["ratios"]["raw-tcp"] > 0
    assert min(own["detail"]["samples"], tcp["detail"]["samples"]) > 0
    assert own["detail"]["response_connections"] == 1


def test_recovery_repairs_the_losses_at_the_switch() -> None:
    """In `umstack bench recovery` the switch drops datagrams, and the application loses no message."""
    bare, lossless, lossy, raw, trip = bench(
        "recovery", "--loss", "2%", "--size", "1024", "--link", "socket", "--subscribers", "2"
    )
    assert bare["retransmissions"] == lossless["retransmissions"] == 0
    assert bare["detail"]["has_port_program"] is False
    detail = lossy["detail"]
    assert lossy["retransmissions"] >= detail["datagrams_lost"] > 0
    assert detail["datagrams_dropped"] >= detail["datagrams_lost"]
    for baseline, one in {"lossless": lossless, "no program": bare}.items():
        assert lossy["ratios"][baseline] == lossy["messages_per_second"] / one["messages_per_second"]
    assert raw["lost"] > 0, "the switch must lose single datagrams, not super-packets"
    assert trip["detail"]["loss"] == 0.02
    assert lossless["detail"]["recovery"]["losses"] == 0
    found = detail["recovery"]
    assert [one["address"] for one in found["subscribers"]] == ["10.77.0.2", "10.77.0.3"]
    assert sum(one["losses"] for one in found["subscribers"]) == found["losses"] > 0
    assert 0 <= max(one["holding_share"] for one in found["subscribers"]) <= found["standing_share"] < 1
    assert found["repairs_per_loss"] > 0.9
    for one in (found, *found["subscribers"]):
        assert 0 < one["nak_to_repair_ms"]["p50"] <= one["nak_to_repair_ms"]["p999"]


def test_recovery_over_tcp_loses_segments() -> None:
    """A stream and round trips over LBT-TCP under loss are measured together with a plain stream and round
    trip under the same loss, and with ZeroMQ if it is installed.
    """
    peers = ("--peer", "zmq") if find_spec("zmq") else ()
    bare, lossless, lossy, raw, *others = bench(
        *("recovery", "--transport", "tcp", "--loss", "2%", "--size", "1024", *peers)
    )
    assert [one["transport"] for one in (bare, lossless, lossy, raw, *others)] == ["tcp"] * (4 + len(others))
    assert lossy["detail"]["datagrams_dropped"] > 0
    assert (lossy["detail"]["naks_per_datagram_dropped"], lossy["lost"]) == (None, 0)
    assert raw["what"] == "raw-tcp"
    assert lossy["ratios"]["raw-tcp"] == lossy["messages_per_second"] / raw["messages_per_second"]
    streams = [one["what"] for one in others if one["round_trip_us"] is None]
    assert streams == (list(ZMQ_PEERS) if peers else [])
    trips = {one["what"]: one for one in others if one["round_trip_us"] is not None}
    assert list(trips) == ["umstack", "raw-tcp", *(["zmq-pair-python"] if peers else [])]
    assert trips["umstack"]["ratios"].keys() == trips.keys() - {"umstack"}
    assert all(one["detail"]["loss"] == 0.02 for one in (raw, *others))


@pytest.mark.skipif(find_spec("zmq") is None, reason="no pyzmq: pip install pyzmq")
def test_a_datagram_transport_is_compared_with_a_peer() -> None:
    """`--peer zmq` also works with LBT-RU, for streams and for round trips, in the same rounds."""
    own, *others = bench("throughput", "--transport", "lbtru", "--size", "64", "--peer", "zmq")
    assert own["transport"] == "lbtru"
    assert own["ratios"].keys() == {one["what"] for one in others} == {*DATAGRAM_BASELINES, *ZMQ_PEERS}
    wait = ("--wait", "block", "--loop", "python", "--count", "200")
    own, *others = bench("latency", "--transport", "lbtru", *wait, "--peer", "zmq")
    assert own["ratios"].keys() == {one["what"] for one in others} == {"raw-udp", "zmq-pair-python"}
    assert all(one["round_trip_us"]["p50"] > 0 for one in others)


def test_flow_control_settles_at_the_slowest_receiver() -> None:
    """With flow control `min`, a publisher that is faster than its subscribers loses nothing and settles at
    their rate.
    """
    (found,) = bench("flow", "--cost-us", "20")
    assert found["detail"]["sends_held_back"] > 0
    assert found["ratios"]["own_maximum"] == pytest.approx(1, abs=0.5)


def test_isolation_compares_with_a_reader_that_reads() -> None:
    """The reader that never reads is cut loose, and the other topics go on over both sessions."""
    read, stopped = bench("isolation", "--size", "1000", "--topics", "4")
    assert (read["detail"]["cut_loose"], stopped["detail"]["cut_loose"]) == (0, 1)
    assert read["detail"]["sessions"] == stopped["detail"]["sessions"] == 2
    assert stopped["ratios"]["all_read"] > 0
    assert stopped["detail"]["delays_us"]["p99"] > 0


def test_a_stream_with_a_capture_is_compared_with_one_without() -> None:
    """The cost of capturing is measured on a stream that is really captured."""
    captured, alone = measured("tests.bench.measure_capture", "--size", "1400", "--link", "socket")
    report = captured["detail"]["capture"]
    assert report["at"] == "subscriber"
    assert report["packets"] > 0
    assert "capture" not in alone["detail"]
    assert captured["ratios"]["without_capture"] > 0


def test_scale_compares_with_the_first_size() -> None:
    """Several topics on one session are each checked; subscribers of one topic run together with the same
    number of raw receivers.
    """
    one_topic, three_topics, one_receiver, raw_one, two_receivers, raw_two = bench(
        "scale", *("--topics", "1", "--topics", "3", "--receivers", "1", "--receivers", "2")
    )
    assert one_topic["ratios"]["publisher_cost_to_1_topic"] == 1
    assert three_topics["detail"]["topics"] == 3
    assert [one["what"] for one in (raw_one, raw_two)] == ["raw-udp-gso"] * 2
    assert two_receivers["detail"]["receivers"] == 2
    assert one_receiver["ratios"]["raw-udp-gso_sender_cost"] > 0


STREAM = StreamSpec(size=100, seconds=0.1, config=options_text("min", "real", ()))


@pytest.mark.parametrize(
    "changed",
    [
        {"api": "message"},
        {"input": "list"},
        {"input": "arrow"},
        {"mode": "sequential"},
        {"size": 5000},
        {"receivers": 2, "max_messages": 5000, "config": options_text("none", "none", ())},
    ],
)
def test_streams_of_every_kind_arrive_whole(shared_lab: Lab, changed: dict[str, Any]) -> None:
    """The bench runs both APIs, each form of input, both modes, fragmented messages, no flow control and no
    offload.
    """
    found = measure_stream(shared_lab, dataclasses.replace(STREAM, **changed), Pins.apart())
    assert_clean(found)
    assert found["detail"]["sent"] > 0
    assert found["detail"]["drained"]


def test_compare_puts_both_links_and_the_raw_ends_side_by_side(tmp_path: Path) -> None:
    """`umstack bench compare` prints one table, one JSON and one plot of both links at each size, also with jumbo
    frames."""
    plot = tmp_path / "links.svg"
    command = [sys.executable, "-m", "umstack", "bench", "compare", *QUICK, "--plot", str(plot)]
    done = subprocess.run(
        [*command, "--size", "64", "--size", "8900", "--wait", "busy"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    by_size = {size: [row for row in found["comparison"] if row["size"] == size] for size in (64, 8900)}
    own = ["umstack, AF_XDP", "umstack, sockets", "umstack, sockets without GSO"]
    read = {64: [], 8900: ["umstack, AF_XDP, payloads read"]}
    packed = {64: ["raw-udp-packed"], 8900: []}
    for size, rows in by_size.items():
        raw = ["raw-xdp", "raw-udp", *packed[size], "raw-udp-gso"]
        assert [row["what"] for row in rows] == [*own, *read[size], *raw]
        for row in rows:
            figures = (
                "messages_per_second",
                "datagrams_per_second",
                "to_sockets",
                "publisher_ns",
                "subscriber_ns",
            )
            assert all(row[name] > 0 for name in figures), row
        timed = [row["what"] for row in rows if row["round_trip_us"].get("busy", {}).get("p50", 0) > 0]
        assert timed == [*own[:2], "raw-xdp", "raw-udp"]
    for one in found["results"]:
        is_by_rings = one["detail"]["contender"] in ("umstack, AF_XDP", *read[8900], "raw-xdp")
        assert (one["link"], one["mode"]) == (("xdp", "native") if is_by_rings else ("socket", "socket"))
        if one["what"] == "umstack":
            assert_clean(one)
    drawn = plot.read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert "comparison: 8900 B" in done.stderr


def test_the_driver_is_measured_in_every_way() -> None:
    """`umstack.bench.driver` delivers every message through drivers, and has a figure for each target."""
    streams: list[tuple[int, Api, float]] = [(64, "batch", 0.9)]
    config = options_text("min", "real", [])
    plan = DriverPlan(
        config, seconds=0.1, rounds=1, streams=streams, subscribers=2, idle_contexts=2, attached_contexts=2
    )
    results, targets = measure_driver(plan, lambda _: None)
    for one in results:
        assert_clean(one)
    assert [one["detail"]["path"] for one in results[:3]] == [
        "in-process",
        "received by a driver",
        "sent by a driver",
    ]
    assert len(targets) == 2 + 2 + 2 + 1 + 2 + 1
    for target in targets:
        # Only this one is a difference, which a busy machine may reverse.
        assert target.measured is not None
        assert target.measured >= 0 or target.what == "round trip p50, busy: more each way"
    assert results[-2]["detail"]["driver_cpu_seconds"] > 0
