"""`umstack bench` without a network: the account a subscriber keeps, how rounds become a result, what is a target met.

A check that overlooked a loss would make every figure of the bench worthless, so each is given faults to find.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import struct
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("polars")

from rich.console import Console

from tests.bench import measure_capture, measure_upkeep
from tests.unit.capture_bytes import RECEIVER, pcap, stalled_session
from umstack.bench import (
    capture,
    compare,
    driver,
    flow,
    ipc,
    isolation,
    latency,
    recovery,
    scale,
    standing,
    targets,
    throughput,
)
from umstack.bench.children import BenchError, ThisMachine, running
from umstack.bench.compare import ComparePlan, Row
from umstack.bench.plot import check_plot, draw_comparison
from umstack.bench.result import Result, faults, merged, p50, rate, ratio, result
from umstack.bench.stream_check import StreamCheck, end_message
from umstack.bench.targets import AllPlan, Target
from umstack.cli.bench import command
from umstack.cli.bench_tables import comparison_table, recovery_tables
from umstack.errors import OptionError, UmError, Unsupported
from umstack.events import Message
from umstack.facts.facts import facts_of

SIZE = 64


def payload(counter: int) -> bytes:
    """A message as the publisher makes it."""
    return struct.pack("<Q", counter).ljust(SIZE, b".")


def message(data: bytes, sqn: int = 0) -> Message:
    """A message as a receiver delivers it."""
    return Message(data, "bench.0", "source", sqn, sqn, 0, 0, 0, len(data))


class Rows:
    """The part of a batch that the check needs."""

    def __init__(self, payloads: Sequence[bytes], sqns: Sequence[int]) -> None:
        self._payloads = payloads
        self.sequence_numbers = memoryview(array("I", sqns))
        self._messages = [message(data, sqn) for data, sqn in zip(payloads, sqns, strict=True) if data]

    def __len__(self) -> int:
        return len(self.sequence_numbers)

    @property
    def payload_bytes(self) -> int:
        """Of all together."""
        return sum(map(len, self._payloads))

    def heads(self, size: int) -> bytes:
        """The first bytes of each."""
        return b"".join(data[:size].ljust(size, b"\0") for data in self._payloads)

    def messages(self) -> list[Message]:
        """The rows that are not events."""
        return self._messages


def rows(counters: Iterable[int], step: int = 1, first_sqn: int = 0) -> Any:
    """Rows with these counters and the sequence numbers that belong to them."""
    found = list(counters)
    return Rows([payload(n) for n in found], [(first_sqn + n * step) % 2**32 for n in found])


def account(check: StreamCheck) -> tuple[int, int, int, int]:
    """Received, lost, out of order, twice."""
    return check.received, check.lost, check.out_of_order, check.duplicates


@pytest.mark.parametrize("step", [1, 3])
def test_a_whole_stream_is_in_order(step: int) -> None:
    """Batches that follow each other, fragmented messages included, across the wrap of sequence numbers."""
    check = StreamCheck(SIZE)
    for first, last in ((0, 1), (1, 500), (500, 501), (501, 1000)):
        taken = check.take_batch(rows(range(first, last), step, first_sqn=2**32 - 700))
        assert taken == last - first
    assert check.take_batch(Rows([end_message(1000, SIZE)], [7])) == 0  # type: ignore[arg-type]
    assert (check.total, account(check)) == (1000, (1000, 0, 0, 0))


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ([0, 1, 3, 4], (4, 1, 0, 0)),
        ([2, 3], (2, 2, 0, 0)),
        ([0, 2, 1, 3], (4, 0, 1, 0)),
        ([0, 1, 1, 2], (4, 0, 0, 1)),
        ([0, 1, 2, 9, 5], (5, 5, 1, 0)),
    ],
)
def test_lost_late_and_duplicate_are_distinguished(
    counters: list[int], expected: tuple[int, int, int, int]
) -> None:
    """However the messages are read, and whether a fault lies within a batch or between two."""
    whole, split, single = (StreamCheck(SIZE) for _ in range(3))
    whole.take_batch(rows(counters))
    for counter in counters:
        split.take_batch(rows([counter]))
    assert not single.take_each(message(payload(n)) for n in counters)
    assert [account(check) for check in (whole, split, single)] == [expected] * 3


def test_what_is_missing_at_the_end_is_lost() -> None:
    """The end of the stream contains the number of messages."""
    batched, single = StreamCheck(SIZE), StreamCheck(SIZE)
    batched.take_batch(rows(range(10)))
    batched.take_batch(Rows([end_message(12, SIZE)], [12]))  # type: ignore[arg-type]
    messages = [*(payload(n) for n in range(10)), end_message(12, SIZE)]
    assert single.take_each(map(message, messages))
    assert (batched.lost, single.lost) == (2, 2)


def test_sequence_numbers_that_do_not_follow_are_seen() -> None:
    """Payloads in order whose topic sequence numbers are not: within a batch, and from one batch to the next."""
    within, between = StreamCheck(SIZE), StreamCheck(SIZE)
    within.take_batch(rows(range(10)))
    within.take_batch(Rows([payload(n) for n in (10, 11, 12)], [10, 12, 11]))  # type: ignore[arg-type]
    between.take_batch(rows(range(10)))
    between.take_batch(rows(range(10, 20), first_sqn=5))
    assert (within.out_of_order, between.out_of_order) == (1, 1)


def test_events_among_messages_are_no_fault() -> None:
    """A batch with the beginning of the session in it is read row by row."""
    check = StreamCheck(SIZE)
    check.take_batch(Rows([b"", payload(0), payload(1)], [0, 0, 1]))  # type: ignore[arg-type]
    check.take_batch(rows(range(2, 9)))
    assert account(check) == (9, 0, 0, 0)


# Results


def stream(per_second: float = 1e6, **changed: Any) -> dict[str, Any]:
    """The result of a stream that went well."""
    counts = dict.fromkeys(("lost", "out_of_order", "duplicates", "retransmissions", "unrecoverable"), 0)
    cpu_seconds = {"publisher": 1.0, "subscriber": 0.5}
    found = {"what": "umstack", "size": SIZE, "messages_per_second": per_second, "datagrams_per_second": 1e5}
    return result(**{**found, **counts, "cpu_seconds": cpu_seconds, "detail": {}, **changed})


def test_rounds_become_the_one_in_the_middle_with_all_their_faults() -> None:
    """The median by rate; what went wrong in any round is not hidden by it."""
    found = merged([stream(3e6, lost=1), stream(1e6), stream(2e6, duplicates=4)], rate)
    assert (found["messages_per_second"], found["lost"], found["duplicates"]) == (2e6, 1, 4)
    assert found["detail"]["rounds"] == [3e6, 1e6, 2e6]


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """A machine that slows down for a round slows both down."""
    own, other = [stream(4e6), stream(1e6), stream(4e6)], [stream(2e6), stream(1e6), stream(2e6)]
    assert ratio(own, other, rate) == 2.0


def test_a_result_has_every_key_and_no_other() -> None:
    """All required fields exist, and are null if they do not apply."""
    keys = result(what="umstack").keys()
    assert {"what", "link", "mode", "size", "api", "messages_per_second", "datagrams_per_second"} <= keys
    assert {"lost", "out_of_order", "duplicates", "retransmissions", "unrecoverable"} <= keys
    assert {"cpu_seconds", "wait", "loop", "round_trip_us"} <= keys
    with pytest.raises(KeyError, match="speed"):
        result(speed=1)


def test_a_broken_promise_is_a_fault_of_the_stack_only() -> None:
    """Raw sockets may lose; the stack may retransmit."""
    found = [stream(what="raw-udp", lost=5), stream(retransmissions=3), stream(lost=2, out_of_order=1)]
    assert faults(found) == ["umstack size 64: 2 lost", "umstack size 64: 1 out of order"]


def test_stalls_and_repairs_are_read_from_a_capture(tmp_path: Path) -> None:
    """Shares of the time from the first sending to the last, by subscriber, and in the table of the command."""
    capture_path = tmp_path / "port.pcap"
    capture_path.write_bytes(pcap(stalled_session()))
    found = standing.recovery_of(facts_of([str(capture_path)]))
    still_ms, span_ms = 30.01 + 40.01 + 50.01, 123.99
    assert found["standing_share"] == pytest.approx(still_ms / span_ms)
    assert (found["losses"], found["repairs_per_loss"]) == (3, 2.0)
    assert found["nak_to_repair_ms"] == {"p50": 38.0, "p99": 48.0, "p999": 48.0}
    [one] = found["subscribers"]
    assert (one["address"], one["losses"], one["naks_per_loss"]) == (RECEIVER, 3, 2.0)
    assert one["holding_share"] == found["standing_share"]
    lossy = stream(detail={"loss": 0.01, "recovery": found | {"not_captured": 4}})
    console = Console(file=io.StringIO(), width=160)
    console.print(recovery_tables([stream(), lossy]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"1\.00% +all +3 +2\.00 +38\.00 +48\.00 +48\.00 +96\.81% +4", shown)
    assert re.search(rf"{RECEIVER} +3 +2\.00 +38\.00 +48\.00 +48\.00 +96\.81%", shown)


# Targets


@pytest.mark.parametrize(
    ("measured", "sense", "is_met", "is_aim_met"),
    [
        (1.5, "at least", False, False),
        (2.0, "at least", True, False),
        (3.0, "at least", True, True),
        (2.5, "at most", False, False),
        (2.0, "at most", True, False),
        (None, "at most", False, False),
    ],
)
def test_a_target_is_met_when_its_bound_is_reached(
    measured: float | None, sense: Any, is_met: bool, is_aim_met: bool
) -> None:
    """At the bound, on the right side of it, never without a figure."""
    target = Target("x", measured, 2.0, sense, aim=3.0 if sense == "at least" else 1.0)
    assert (target.is_met, target.is_aim_met) == (is_met, is_aim_met)
    assert target.as_json()["met"] is is_met


def measured(monkeypatch: pytest.MonkeyPatch, *, per_second: float = 6e6, lost: int = 0) -> None:
    """Put made-up results in the place of every measurement."""
    everything = {"raw-udp": 3.0, "raw-udp-packed": 1.0, "raw-udp-gso": 0.9}
    memory = {"publisher": {"early": 1 << 20, "end": 2 << 20}, "subscriber": {"early": 0, "end": 9 << 20}}
    costs = {"sent": 100, "receivers": 1, "publisher_cpu_seconds_until_sent": 1.0}
    trip = {"p50": 1.0, "p99": 900.0, "p999": 2000.0}

    def streams(plan: throughput.ThroughputPlan, _progress: Any) -> list[Any]:
        detail = {"memory_bytes": memory}
        found = [stream(per_second, size=spec.size, lost=lost, detail=detail) for spec in plan.specs]
        return [{**one, "ratios": everything} for one in found]

    def trips(plan: latency.LatencyPlan, _progress: Any) -> list[Any]:
        found = [stream(wait=spec.wait, loop=spec.loop, round_trip_us=trip) for spec in plan.specs]
        return [{**one, "ratios": {"raw-udp": 1.5}} for one in found]

    def recovered(_plan: Any, _progress: Any) -> list[Any]:
        lossy = stream(detail={"naks_per_datagram_dropped": 1.2}, ratios={"lossless": 0.8})
        return [stream(), lossy, stream(round_trip_us=trip)]

    def scaled(plan: scale.ScalePlan, _progress: Any) -> list[Any]:
        topics = [stream(detail=costs, ratios={"publisher_cost_to_1_topic": 1.1}) for _ in plan.topics]
        fanout = [stream(detail=costs, ratios={"raw-udp-gso_sender_cost": 2.0}) for _ in plan.receivers]
        return [*topics, *fanout]

    def captured(plan: capture.CapturePlan, _progress: Any) -> list[Any]:
        kept = {"publisher": 0.95, "subscriber": 0.85}[plan.place]
        return [
            one for _ in plan.specs for one in (stream(ratios={"without_capture": kept}), stream(ratios=None))
        ]

    monkeypatch.setattr(capture, "measure", captured)
    monkeypatch.setattr(throughput, "measure", streams)
    monkeypatch.setattr(latency, "measure", trips)
    monkeypatch.setattr(recovery, "measure", recovered)
    monkeypatch.setattr(scale, "measure", scaled)
    monkeypatch.setattr(flow, "measure", lambda *_: [stream(ratios={"own_maximum": 0.85})])


def test_every_target_of_the_project_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up figures reach the targets they belong to."""
    measured(monkeypatch)
    _, reached = targets.measure_all(AllPlan(""), lambda _: None)
    met = {target.what: target.is_met for target in reached}
    assert met["64 B, batch API"]
    assert met["1400 B, batch API, to raw-udp-gso"]
    assert met["round trip p50, busy, in the core, to raw"]
    assert met["round trip, 1% lost each way, p99"]
    assert not met["round trip p50, blocking, Python, to raw"]
    assert not met["64 B, 1% lost, NAKed per datagram lost"]
    assert not met["flow control min: settled rate, off the slowest's own"]
    assert met["growth over 10 M messages, publisher"]
    assert not met["growth over 10 M messages, subscriber"]
    assert met["1400 B beside a capture at the publisher, to without"]
    assert not met["64 B beside a capture at the subscriber, to without"]
    assert len(met) == len(reached) == 28


# The command line


def run(*arguments: str) -> Any:
    """Run `umstack bench`."""
    return CliRunner().invoke(command, arguments)


def test_decoding_is_measured_next_to_tshark() -> None:
    """Every packet is decoded, and the figures of both are there where tshark is."""
    done = run("decode", "--packets", "5000", "--rounds", "2", "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["results"]
    assert (found["packets"], len(found["rounds"])) == (5000, 2)
    assert found["packets_per_second"] == pytest.approx(sum(found["rounds"]) / 2)
    if shutil.which("tshark") is None:
        assert found["ratios"] is None
    else:
        assert found["ratios"]["tshark"] == found["packets_per_second"] / found["tshark_packets_per_second"]
    assert "packets/s" in run("decode", "--packets", "1000", "--rounds", "1").stdout


def test_all_prints_one_object_with_results_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--json`: environment, results and targets, and nothing else on standard output."""
    measured(monkeypatch)
    done = run("all", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found.keys() == {"environment", "results", "targets"}
    assert {"kernel", "cpus", "python", "versions", "mtu", "segmentation", "governor"} <= found[
        "environment"
    ].keys()
    assert {"what", "measured", "bound", "met"} <= found["targets"][0].keys()


@pytest.mark.parametrize(
    "name", ["throughput", "latency", "recovery", "flow", "ipc", "isolation", "scale", "all"]
)
def test_a_table_is_printed_for_people(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every sub-command has a table, an example in its help, and the options it names."""
    monkeypatch.setattr(
        {
            "throughput": throughput,
            "latency": latency,
            "recovery": recovery,
            "flow": flow,
            "ipc": ipc,
            "isolation": isolation,
            "scale": scale,
        }.get(name, throughput),
        "measure",
        lambda *_: [],
    )
    if name == "all":
        measured(monkeypatch)
    done = run(name)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip()
    assert "Example: umstack bench" in run(name, "--help").output


def test_the_driver_is_compared_with_its_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """`umstack bench driver` prints a table, or the targets as JSON, and passes its options on."""
    plans: list[driver.DriverPlan] = []

    def measure(plan: driver.DriverPlan, _progress: object) -> tuple[list[Result], list[Target]]:
        plans.append(plan)
        return [], [Target("attaching a context", 9.0, 50, "at most", unit="ms")]

    monkeypatch.setattr(driver, "measure", measure)
    done = run("driver", "--contexts", "3", "--link", "xdp", "--no-pin")
    assert done.exit_code == 0, done.output
    assert "attaching a context" in done.stdout
    assert (plans[0].attached_contexts, plans[0].link, plans[0].is_pinned) == (3, "xdp", False)
    assert json.loads(run("driver", "--json").stdout)["targets"][0]["met"]
    assert "Example: umstack bench" in run("driver", "--help").output


def test_the_capture_measurement_prints_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script beside the tests, like a sub-command, has a table and an example in its help."""
    monkeypatch.setattr(capture, "measure", lambda *_: [])
    done = CliRunner().invoke(measure_capture.command, [])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip()
    helped = CliRunner().invoke(measure_capture.command, ["--help"]).output
    assert "Example: python -m tests.bench.measure_capture" in " ".join(helped.split())


@pytest.mark.parametrize(
    "name", ["upkeep", "wildcard", "resolution", "monitor", "capture", "late-join", "request"]
)
def test_a_measurement_beside_the_tests_is_no_command(name: str) -> None:
    """Measurements for maintainers are not part of the product."""
    assert run(name).exit_code == 2


def test_lost_messages_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1 and a line on standard error; the figures are printed all the same."""
    measured(monkeypatch, lost=3)
    done = run("throughput", "--size", "64", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["results"][0]["lost"] == 3
    assert "umstack size 64: 3 lost" in done.stderr


def test_options_reach_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-o scope.option=value` comes after the bench's own settings, and so wins."""
    plans: list[throughput.ThroughputPlan] = []
    monkeypatch.setattr(throughput, "measure", lambda plan, _: plans.append(plan) or [])
    done = run(
        "throughput", "-o", "context.transport_lbtrm_data_rate_limit=5000000", "--segmentation", "none"
    )
    assert done.exit_code == 0, done.output
    lines = plans[0].specs[0].config.splitlines()
    assert lines[-1] == "context transport_lbtrm_data_rate_limit 5000000"
    assert "context link_gso 0" in lines


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("flow_control=min", "scope.option=value"),
        ("source.flow_contrl=min", "did you mean flow_control"),
        ("source.flow_control=fast", "flow_control"),
        ("receiver.transport_lbtrm_data_rate_limit=1", "its scope is context"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_measured(text: str, reason: str) -> None:
    """The message shows the correct value."""
    done = run("throughput", "-o", text)
    assert done.exit_code == 2
    assert reason in done.stderr


# Children


def test_a_child_that_reports_nothing_is_not_waited_for_forever() -> None:
    """The error names the command; the child is gone afterwards."""
    with pytest.raises(BenchError, match="said nothing"), running(ThisMachine(), "json.tool", []) as child:
        child.receive(0.2)
    assert child.process.poll() is not None


def test_a_spec_survives_the_command_line() -> None:
    """A child receives its plan."""
    spec = throughput.StreamSpec(size=SIZE, config='source flow_control "min"\n# x', topics=3, cpu=1)
    role, text = spec.as_arguments("publish")
    assert (role, throughput.StreamSpec.from_json(text)) == ("publish", spec)


def test_what_is_compared_with_sockets_runs_over_sockets() -> None:
    """Issue: `bench all` judges the kernel-socket link, whatever the lab's interfaces could do."""
    assert AllPlan("").stream(SIZE).link == "socket"


def test_round_trips_are_judged_by_their_median() -> None:
    """The middle round of the round trips is the one reported."""
    trips = [stream(round_trip_us={"p50": us, "p99": 9.0, "p999": 9.0}) for us in (3.0, 1.0, 2.0)]
    assert merged(trips, p50)["round_trip_us"]["p50"] == 2.0


# ---- compare ----


def test_both_links_are_compared_alike() -> None:
    """The contenders of a comparison differ in their link, or in their offloads, and in nothing else."""
    plan = ComparePlan(options=["source implicit_batching_minimum_length 1000"])
    rings, sockets, plain, read = plan.streams(1400).values()
    assert (rings.link, sockets.link, plain.link) == ("xdp", "socket", "socket")
    assert rings.config == sockets.config == read.config
    assert (read.link, read.reads) == ("xdp", "payload")
    assert {rings.reads, sockets.reads, plain.reads} == {"counter"}
    assert len(plan.streams(64)) == 3  # what is small is read where it is copied
    assert "link_gso 0" in plain.config
    assert "link_gro 0" in plain.config
    trips = plan.trips(64, "busy")
    assert [trip.link for trip in trips.values()] == ["xdp", "socket"]
    for reported in (rings, sockets, plain, *trips.values()):
        assert "implicit_batching_minimum_length 1000" in reported.config


ROWS = [
    Row(64, compare.RINGS, 2e6, 1e5, 1.4, 400.0, 180.0, {"busy": {"p50": 10.0, "p99": 30.0}}),
    Row(64, compare.SOCKETS, 1.4e6, 7e4, 1.0, 280.0, 120.0),
    Row(1400, compare.RINGS, 1e5, 1e5, 0.9, 4000.0, 1800.0),
]


@pytest.mark.parametrize(("name", "begins"), [("links.svg", b"<?xml"), ("links.png", b"\x89PNG")])
def test_a_comparison_is_drawn_in_the_format_of_its_name(tmp_path: Path, name: str, begins: bytes) -> None:
    """Issue: one plot, PNG or SVG."""
    check_plot(tmp_path / name)
    draw_comparison(ROWS, ["busy"], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong name, a directory that is not there, and matplotlib missing: with what to do about it."""

    def refused(path: Path, kind: type[UmError], wanted_text: str) -> None:
        with pytest.raises(kind, match=wanted_text):
            check_plot(path)

    refused(tmp_path / "links.gif", OptionError, r"\.svg or \.png")
    refused(tmp_path / "nowhere" / "links.svg", OptionError, "no directory")
    monkeypatch.setattr("umstack.bench.plot.find_spec", lambda name: None)
    refused(tmp_path / "links.svg", Unsupported, r"pip install 'umstack\[plot\]'")


def test_the_comparison_is_one_table() -> None:
    """Sizes are shown once; missing measurements are left out."""
    table = comparison_table(ROWS, ["busy"])
    assert table.row_count == 3
    assert list(table.columns[0].cells) == ["64", "", "1400"]
    assert list(table.columns[-1].cells) == ["30.0", "", ""]
    assert list(table.columns[4].cells) == ["1.40", "1.00", "0.90"]


def test_upkeep_is_measured_and_in_its_bounds() -> None:
    """Each figure of the time that starting and watching takes; the bounds are those of a machine that is busy."""
    figures = {
        one["what"]: one["median"]
        for one in measure_upkeep.measure(
            measure_upkeep.UpkeepPlan(rounds=3, seconds=2.0), lambda _text: None
        )
    }
    bounds = {
        "interpreter alone": 500,
        "import umstack": 600,
        "umstack --help": 900,
        "first message": 1500,
        "first scrape of 1000 topics": 400,
        "later scrapes of 1000 topics": 200,
        "a stream scraped once a second, to one that is not": 2,
        "umstack top": 20,
    }
    assert figures.keys() == bounds.keys()
    assert {what: figure for what, figure in figures.items() if not 0 <= figure < bounds[what]} == {}
    assert figures["import umstack"] < figures["first message"]
