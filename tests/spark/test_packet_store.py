"""Packets stored by the tasks themselves: the same rows as through Spark, each once whatever fails on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from tests.spark.story import PUBLISHER, RECEIVERS, Story
from umstack.analysis.observations import NEEDED, label
from umstack.capture import Split
from umstack.capture.generate import Traffic, generate
from umstack.facts.labels import labelled
from umstack.facts.packet_columns import PACKETS
from umstack.spark.packet_store import STORED, PacketStore, PartWriter
from umstack.spark.umpcap_parts import CapturePart, UmpcapOptions

COUNT = 3_000


def odd_packets() -> pa.Table:
    """Packets of every kind, and what is missing or wrong in some."""
    story = Story()
    story.stream(1_000, 10, 2**32 - 2, 4)
    story.again(2_000, 1)
    story.nak(3_000, RECEIVERS[0], 1, 2)
    story.ncf(4_000, "no_retry", 2)
    story.status(5_000, RECEIVERS[1], 3)
    story.data(6_000, 5, status="malformed: too short")
    story.data(7_000, 6, session_id=None)
    story.data(8_000, 7)
    story.packets[-1]["time_ns"] = None
    story.data(9_000, 8, destination_address="224.0.0.9", destination_port=None)
    story.data(9_500, 9, destination_address="2001:db8::1")
    # Of a receiver, but of no session: it still says who asked whom.
    story.nak(10_000, RECEIVERS[2], 3)
    story.packets[-1]["session_id"] = None
    nothing: dict[str, Any] = dict.fromkeys(
        ("packet_type", "session_id", "source_address", "destination_address")
    )
    story.data(11_000, 10, **nothing, status="not IP")
    story.data(12_000, 11, packet_type=None, session_id=None, ip_fragment=True, retransmission=None)
    story.data(13_000, 12, packet_type=None, session_id=None, status="note: the file ends here")
    story.packets.append(
        {
            **story.packets[0],
            "packet_type": "SM",
            "transport_sqn": None,
            "lead_sqn": 77,
            "retransmission": None,
        }
    )
    added = {"point": "switch", "message_count": 1, "message_bytes": 100}
    rows = [
        {name: {**dict.fromkeys(PACKETS.names), **packet, **added}[name] for name in NEEDED}
        for packet in story.packets
    ]
    return pa.Table.from_pylist(rows, pa.schema([PACKETS.field(name) for name in NEEDED]))


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as texts that can be compared."""
    return sorted(str(sorted(row.items())) for row in rows)


def test_arrow_labels_as_spark_does(spark: Any) -> None:
    """Every column of every kind of packet, with what may be missing missing, is what `label` gives."""
    packets = odd_packets()
    wanted = [row.asDict() for row in label(spark.createDataFrame(packets)).collect()]
    [batch] = packets.combine_chunks().to_batches()
    got = [{**row, "kind": kind} for kind, rows in labelled(batch) for row in rows.to_pylist()]
    assert in_order(got) == in_order(wanted)
    assert len({row["kind"] for row in got}) == 9
    assert {row["publisher"] for row in got} >= {PUBLISHER, None}


def test_a_part_that_is_done_again_replaces_itself(spark: Any, tmp_path: Path) -> None:
    """A task that died, or ran twice, neither loses nor doubles a packet; half a file is never seen."""
    truth = generate(tmp_path / "switch.pcap", COUNT, Traffic(seed=5, loss=0.01))
    store = PacketStore(tmp_path / "packets")
    for _ in range(2):
        counts = store.fill(spark, [str(truth.path)], only_ours=True)
        assert counts.count() > 0
        assert counts.count() > 0
        assert not store.folder.exists() or len(list(store.folder.iterdir())) > 2
        store.commit()
    stored = spark.read.schema(STORED).parquet(str(store.folder))
    by_kind = {row["kind"]: row["count"] for row in stored.groupBy("kind").count().collect()}
    assert (by_kind["DATA"], by_kind["RETRANSMISSION"]) == (truth.data, truth.retransmissions)
    assert stored.count() == COUNT


def test_an_attempt_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """A capture that goes away while it is read: the error is told, and no file of the part is there."""
    truth = generate(tmp_path / "switch.pcap", COUNT, Traffic(seed=5))
    options = UmpcapOptions.of({"path": str(truth.path), "batchRows": "1000"})
    part = CapturePart(Split(str(truth.path)))
    gone = replace(part, split=Split(str(tmp_path / "gone.pcap")))
    writer = PartWriter(str(tmp_path / "out"), options, [part, gone])
    numbers = pa.record_batch({"id": pa.array([0, 1])})
    with pytest.raises(Exception, match=r"gone\.pcap"):
        list(writer([numbers]))
    files = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert set(files) == {"part-000000.parquet"}
