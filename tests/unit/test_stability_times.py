"""Times from a sending to its acknowledgement by a Store, in captures whose truth is known from the script."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

import numpy as np
import polars as pl

from tests.store_messages import STORE_PORT
from tests.unit.capture_bytes import (
    GROUP,
    NAK_PORT,
    RECEIVER,
    SOURCE,
    Packet,
    data,
    ethernet,
    ipv4,
    message,
    pcap,
    udp,
)
from tests.unit.stream_bytes import Connection
from umstack.analysis.stores import stability
from umstack.analysis.tables import tables_of
from umstack.capture import split
from umstack.facts.facts import Facts, facts_of
from umstack.facts.marks import SAMPLES_MAX, SQNS_PER_MARK, MarkPile, acknowledged_marks, sampled
from umstack.facts.schema import frame_schema
from umstack.store.wire import SqnRange, StabilityAck

US, MS = 1_000, 1_000_000
START_NS = 1_700_000_000 * 1_000_000_000
TOPIC, PER_DATAGRAM = 5, 3
AGAIN = 0xA0
SQNS = 1 << 32


def seeded() -> random.Random:
    """Random numbers that UM_SEED repeats."""
    seed = int(os.environ.get("UM_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"UM_SEED={seed}")
    return random.Random(seed)


def datagram(
    at_ns: int, transport_sqn: int, sqns: range, *, flags: int = 0x80, nak_port: int = NAK_PORT
) -> Packet:
    """Messages of the source, which is the Store's client."""
    messages = [message(TOPIC, sqn % SQNS, b"order") for sqn in sqns]
    body = data(transport_sqn, *messages, flags=flags, nak_port=nak_port)
    return Packet(at_ns, ethernet(ipv4(udp(body), RECEIVER, GROUP)))


def acknowledgement(connection: Connection, at_ns: int, first: int, last: int) -> Packet:
    """A Store acknowledges a range."""
    ranges = (SqnRange(first % SQNS, last % SQNS),)
    ack = StabilityAck(transport_index=0, topic_index=TOPIC, store_index=0, ranges=ranges).encode()
    return replace(connection.segment(from_source=True, payload=ack), time_ns=at_ns)


def traffic(numbers: random.Random, first: int, count: int) -> tuple[list[Packet], list[int]]:
    """Packets in order of time, and the true times of every 64th number."""
    connection = Connection(40001, STORE_PORT).open()
    packets = [replace(packet, time_ns=START_NS) for packet in connection.packets]
    sent: dict[int, int] = {}
    begin_ns = START_NS + MS
    for at in range(0, count, PER_DATAGRAM):
        at_ns = begin_ns + at * 10 * US
        sqns = range(first + at, first + min(at + PER_DATAGRAM, count))
        packets.append(datagram(at_ns, at // PER_DATAGRAM, sqns))
        sent.update(dict.fromkeys(sqns, at_ns))
        if numbers.random() < 0.1:
            packets.append(datagram(at_ns + 5 * MS, at // PER_DATAGRAM, sqns, flags=AGAIN))
    times, next_sqn = list[int](), first
    acknowledged: list[tuple[int, int, int]] = []
    while next_sqn < first + count:
        last = min(next_sqn + numbers.randrange(1, 90), first + count) - 1
        at_ns = sent[last] + numbers.randrange(100 * US, 3 * MS)
        acknowledged += [
            (at_ns, next_sqn, last),
            (at_ns + 50 * MS, next_sqn, last),
        ]  # the latter of a repetition
        times += [at_ns - sent[sqn] for sqn in range(next_sqn, last + 1) if sqn % SQNS_PER_MARK == 0]
        next_sqn = last + 1
    packets += [acknowledgement(connection, *one) for one in sorted(acknowledged)]
    return sorted(packets, key=lambda packet: packet.time_ns), sorted(times)


@pytest.mark.parametrize("first", [0, SQNS - 1000])
def test_the_times_are_those_of_the_script(tmp_path: Path, first: int) -> None:
    """First sendings and first acknowledgements count, and parts in any order give the same as the whole."""
    numbers = seeded()
    packets, times = traffic(numbers, first, 3000)
    (tmp_path / "host.pcap").write_bytes(pcap(packets))
    facts = facts_of([str(tmp_path / "host.pcap")])
    parts = split(tmp_path / "host.pcap", 20_000)
    assert len(parts) > 5
    shuffled = numbers.sample(parts, len(parts))
    assert Facts.merged(facts_of([part]) for part in shuffled).equals(facts)
    tables = tables_of(facts)
    (row,) = tables["stores"].to_dicts()
    assert (row["store"], row["store_port"], row["client"]) == (SOURCE, STORE_PORT, RECEIVER)
    assert row["stability_samples"] == len(times) == 3000 // SQNS_PER_MARK + 1
    assert row["stability_max"] == times[-1]
    for name, at in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert times.index(row[f"stability_{name}"]) == pytest.approx(len(times) * at, abs=1)


def test_only_the_clock_of_one_point_measures(tmp_path: Path) -> None:
    """A second point, whose clock is three seconds ahead, saw the acknowledgements only: nothing mixes the clocks."""
    packets, times = traffic(seeded(), 0, 640)
    ahead = [replace(packet, time_ns=packet.time_ns + 3_000 * MS) for packet in packets]
    (tmp_path / "host.pcap").write_bytes(pcap(packets))
    (tmp_path / "store.pcap").write_bytes(pcap([one for one in ahead if one.data[23] == 6]))
    (row,) = tables_of(facts_of([str(tmp_path / name) for name in ("host.pcap", "store.pcap")]))[
        "stores"
    ].to_dicts()
    assert (row["stability_samples"], row["stability_max"]) == (10, times[-1])
    (row,) = tables_of(facts_of([str(tmp_path / "store.pcap")]))["stores"].to_dicts()
    assert (row["stability_samples"], row["stability_p50"]) == (0, None)


def test_numbers_of_two_sessions_are_left_out(tmp_path: Path) -> None:
    """Two processes of a host may have topics of one index: an acknowledgement does not name the session."""
    packets, _ = traffic(seeded(), 0, 640)
    other = datagram(START_NS + 2 * MS, 7, range(64, 66), nak_port=NAK_PORT + 1)
    (tmp_path / "host.pcap").write_bytes(pcap(sorted([*packets, other], key=lambda packet: packet.time_ns)))
    (row,) = tables_of(facts_of([str(tmp_path / "host.pcap")]))["stores"].to_dicts()
    assert row["stability_samples"] == 9


def marks(numbers: random.Random, count: int, **whose: Any) -> Any:
    """Marks of one topic."""
    sqns = numbers.sample(range(0, count * 3 * SQNS_PER_MARK, SQNS_PER_MARK), count)
    rows = {
        "point": "a",
        "client": "c",
        "session": 1,
        "topic_index": 0,
        "store": None,
        "store_port": None,
    } | whose
    return pl.DataFrame(
        {name: [value] * count for name, value in rows.items()} | {"sqn": sqns, "time_ns": range(count)},
        frame_schema("marks"),
    )


def test_a_sample_of_samples_is_the_sample_of_the_whole() -> None:
    """The times of at most 1,024 numbers of a topic are kept, the same for sendings and acknowledgements."""
    numbers = seeded()
    sent = marks(numbers, 3 * SAMPLES_MAX)
    stable = {"session": pl.lit(None, pl.Int64), "store": pl.lit("s"), "store_port": pl.lit(1, pl.Int64)}
    acknowledged = sent.with_columns(time_ns=pl.col("time_ns") + 7, **stable)
    few = marks(numbers, 10, topic_index=1)
    whole = pl.concat([sent, acknowledged, few])
    order = list(range(len(whole)))
    numbers.shuffle(order)
    parts = [whole[order[begin : begin + 5000]] for begin in range(0, len(order), 5000)]
    merged = parts[0]
    for part in parts[1:]:
        merged = sampled(pl.concat([sampled(merged), sampled(part)]))
    keys = ["client", "topic_index", "store", "sqn"]
    kept = sampled(whole)
    assert merged.sort(keys).equals(kept.sort(keys))
    assert len(kept) == 2 * SAMPLES_MAX + 10
    (row,) = stability(kept).to_dicts()
    assert (row["stability_samples"], row["stability_max"]) == (SAMPLES_MAX, 7)


def test_a_forged_range_has_few_marks() -> None:
    """One that covers all numbers; and those of every length begin and end where they should."""
    ranges = [(5, 4)]
    for first in (60, 64, 65, SQNS - 3):
        ranges += [(first, (first + count - 1) % SQNS) for count in (1, 4, 5, 64, 130)]
    rows = [("a", "c", 0, "s", 1, 0, *ends) for ends in ranges]
    names = ("point", "client", "topic_index", "store", "store_port", "time_ns", "first_sqn", "topic_sqn")
    whole = pl.DataFrame(rows, list(names), orient="row")
    assert len(acknowledged_marks(whole[:1])) == 64
    forged = pl.concat([whole[:1]] * 5000).with_columns(first_sqn=pl.int_range(5000) * 4096)
    assert len(acknowledged_marks(forged)) == SAMPLES_MAX
    for at in range(1, len(rows)):
        first, last = rows[at][-2:]
        count = (last - first) % SQNS + 1
        expected = [sqn % SQNS for sqn in range(first, first + count) if sqn % SQNS_PER_MARK == 0]
        assert acknowledged_marks(whole[at : at + 1])["sqn"].to_list() == expected


def test_a_pile_is_sampled_as_its_rows() -> None:
    """By sender and topic, whatever numbers it has twice and however they are added."""
    numbers = seeded()
    tally = np.zeros(60_000, [("time_ns", "i8"), ("stream", "u4"), ("topic_index", "u4"), ("sqn", "u4")])
    tally["sqn"] = numbers.sample(range(0, 1 << 30, SQNS_PER_MARK), len(tally))
    tally["topic_index"] = tally["sqn"] >> 6 & 1
    tally[:10_000] = tally[30_000:40_000]
    tally["time_ns"] = numbers.sample(range(len(tally)), len(tally))
    rows = pl.DataFrame(
        {"point": "a", "client": "c", "session": 1, "topic_index": tally["topic_index"]}
        | {"store": None, "store_port": None, "sqn": tally["sqn"], "time_ns": tally["time_ns"]},
        frame_schema("marks"),
    )
    pile = MarkPile()
    for begin in range(0, len(tally), 1000):
        pile.add(("a", "c", 1), tally[begin : begin + 1000])
    (found,) = pile.frames()
    whole = sampled(rows.group_by("topic_index", "sqn").agg(pl.all().min()).select(rows.columns))
    assert len(found) == 2 * SAMPLES_MAX
    assert found.sort("topic_index", "sqn").equals(whole.sort("topic_index", "sqn"))
