"""The umpcap data source: captures whose truth is known, read whole, in parts, and while they grow."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.unit.capture_bytes import Packet, frame, pcap
from umstack.analysis.losses import losses
from umstack.analysis.observations import NEEDED, RETRANSMISSION, classify, observe
from umstack.analysis.sessions import topics
from umstack.capture.generate import Traffic, Truth, generate
from umstack.resolution.codec import Advertisement, LbtrmAddress, ResolutionDatagram, encode
from umstack.spark import UmpcapDataSource
from umstack.spark.capture_files import capture_files

PACKETS = 20_000
TRAFFIC = Traffic(seed=7, sessions=2, receivers=3, messages_per_datagram=3, message_bytes=60, loss=0.005)
COUNTED = "position bigint, time_ns bigint, packet_type string, status string, capture_file string"


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """Give a generated capture and what it holds."""
    return generate(tmp_path_factory.mktemp("captures") / "switch.pcap", PACKETS, TRAFFIC)


@pytest.fixture(scope="module")
def source(spark: Any) -> Any:
    """Give the session with the data source registered."""
    spark.dataSource.register(UmpcapDataSource)
    return spark


def read(source: Any, schema: str | None = COUNTED, **options: Any) -> Any:
    """A reader of some columns."""
    reader = source.read.format("umpcap").options(**options)
    return reader.schema(schema) if schema else reader


def test_a_file_is_split_and_every_packet_is_in_one_part(source: Any, truth: Truth) -> None:
    """Partitions inside a file: no packet lost, none twice, whatever the parts' size."""
    frame = read(source, targetPartitionBytes=300_000).load(str(truth.path))
    assert frame.rdd.getNumPartitions() == -(-truth.path.stat().st_size // 300_000)
    assert frame.count() == PACKETS
    assert frame.select("position").distinct().count() == PACKETS


def test_losses_are_those_that_were_generated(source: Any, truth: Truth) -> None:
    """Who lost what, how often it was asked for, and when it came back: the analysis finds the generator's truth."""
    columns = ", ".join(f"{name} {kind}" for name, kind in _types(source, NEEDED))
    packets = read(source, columns, onlyOurs="true").load(str(truth.path))
    kinds = {row["kind"]: row["count"] for row in classify(packets).groupBy("kind").count().collect()}
    assert kinds["DATA"] == truth.data
    assert kinds[RETRANSMISSION] == truth.retransmissions
    assert (kinds["NAK"], kinds["NCF"]) == (truth.naks, truth.ncfs)
    found = {
        (row["session_id"], row["receiver"], row["sqn"] % 2**32): row
        for row in losses(observe(packets)).where("receiver IS NOT NULL").collect()
    }
    asked = truth.losses[truth.losses["nak_count"] > 0]
    wanted = {
        (
            truth.session_id(int(one["session"])),
            truth.receiver_address(int(one["receiver"])),
            int(one["sqn"]),
        ): one
        for one in asked
    }
    assert found.keys() == wanted.keys()
    assert len(found) > 100
    for key, one in wanted.items():
        assert (found[key]["naks"], found[key]["nak_ns"]) == (one["nak_count"], one["first_nak_ns"])
        if one["outcome"] == 0:
            assert found[key]["repaired_ns"] is not None


def _types(source: Any, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    everything = UmpcapDataSource({"path": "any"}).schema()
    return ((name, everything[name].dataType.simpleString()) for name in names)


def test_topics_are_the_same_with_and_without_a_row_a_message(source: Any, truth: Truth) -> None:
    """The partial counts of `rows=topics` add up to what the messages themselves give."""
    quick = topics(read(source, None, rows="topics").load(str(truth.path)))
    needed = ["packet_type", "retransmission", "session_id", "source_address", "time_ns", "messages"]
    schema = ", ".join(f"{name} {kind}" for name, kind in _types(source, tuple(needed)))
    slow = topics(read(source, schema).load(str(truth.path)))
    counted = sorted(tuple(row) for row in quick.collect())
    assert counted == sorted(tuple(row) for row in slow.collect())
    assert len(counted) == TRAFFIC.sessions * TRAFFIC.topics
    assert sum(row[5] for row in counted) == truth.data * TRAFFIC.messages_per_datagram


def test_topics_have_the_names_that_were_advertised(source: Any, truth: Truth, tmp_path: Path) -> None:
    """Advertised elsewhere than it is published, in one datagram or several: by session and index it is the name."""
    session_id, publisher = truth.session_id(0), truth.source_address(0)
    address = LbtrmAddress(publisher, "224.10.10.10", session_id, 14400, 14390)
    told = [Advertisement(f"topic.{index}", index, 0, address) for index in (1, 2)]
    other = Advertisement("other", 1, 0, address._replace(session_id=session_id + 99))
    payloads = [
        encode(ResolutionDatagram(("asked",), (told[0], other))),
        encode(ResolutionDatagram((), (told[1],))),
    ]
    packets = [
        Packet(1_700_000_000 * 10**9 + n, frame(one, destination_port=12965))
        for n, one in enumerate(payloads)
    ]
    (tmp_path / "resolution.pcap").write_bytes(pcap(packets))
    paths = [str(truth.path), str(tmp_path / "resolution.pcap")]
    quick = topics(read(source, None, rows="topics").load(paths))
    needed = ["packet_type", "retransmission", "session_id", "source_address", "time_ns", "messages"]
    schema = ", ".join(f"{name} {kind}" for name, kind in _types(source, (*needed, "advertisements")))
    slow = topics(read(source, schema).load(paths))
    named = {
        (row["publisher"], row["session_id"], row["topic_index"]): row["topic"] for row in quick.collect()
    }
    assert len(named) == TRAFFIC.sessions * TRAFFIC.topics, (
        "what was only advertised is no topic of the capture"
    )
    assert {key: name for key, name in named.items() if name is not None} == {
        (publisher, session_id, 1): "topic.1",
        (publisher, session_id, 2): "topic.2",
    }
    assert sorted(map(str, quick.collect())) == sorted(map(str, slow.collect()))


def test_broken_captures_give_their_rows_and_a_note(source: Any, truth: Truth, tmp_path: Path) -> None:
    """Cut in a packet, empty, something else, a copy, compressed: what is there is read, the rest is told."""
    whole = truth.path.read_bytes()
    (tmp_path / "cut.pcap").write_bytes(whole[:-20])
    (tmp_path / "empty.pcap").write_bytes(b"")
    (tmp_path / "other.pcap").write_bytes(b"#!/bin/sh\necho this is no capture\n")
    (tmp_path / "packed.pcap.gz").write_bytes(gzip.compress(whole, 1))
    shutil.copy(truth.path, tmp_path / "one.pcap")
    shutil.copy(truth.path, tmp_path / "two.pcap")
    (tmp_path / "notes.txt").write_text("not named like a capture")
    rows = read(source, notes="true").load(str(tmp_path)).groupBy("capture_file", "status").count().collect()
    by_file: dict[str, dict[str, int]] = {}
    for row in rows:
        by_file.setdefault(Path(row["capture_file"]).name, {})[row["status"]] = row["count"]
    assert by_file["cut.pcap"].pop("ok") == PACKETS - 1
    assert by_file["packed.pcap.gz"] == {"ok": PACKETS}
    assert by_file["one.pcap"] == {"ok": PACKETS}
    assert "notes.txt" not in by_file
    said = {name: " ".join(statuses) for name, statuses in by_file.items()}
    assert "truncated" in said["cut.pcap"]
    assert "an empty file" in said["empty.pcap"]
    assert "not a capture" in said["other.pcap"]
    assert "the same as" in said["two.pcap"]


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("time_ns bigint, colour string", {}, "no column colour"),
        ("time_ns string", {}, "time_ns is bigint"),
        (COUNTED, {"targetPartitionBytes": "many"}, "targetPartitionBytes is many"),
        (COUNTED, {"onlyOurs": "perhaps"}, "onlyOurs is perhaps"),
        (None, {"rows": "bytes"}, "rows is bytes"),
    ],
)
def test_a_wrong_question_is_refused(
    source: Any, truth: Truth, schema: str | None, options: Any, said: str
) -> None:
    """Unknown columns, types and options are errors that name them, before anything is read."""
    with pytest.raises(Exception, match=said):
        read(source, schema, **options).load(str(truth.path)).count()


def test_globs_and_links_name_each_file_once(tmp_path: Path) -> None:
    """Files, folders and globs may overlap."""
    for name in ("a.pcap", "b.pcapng", "c.pcap1", "sub/d.cap", "sub/e.pcap.gz", "f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "link.pcap").symlink_to(tmp_path / "a.pcap")
    found = capture_files([str(tmp_path), f"{tmp_path}/*.pcap", f"file:{tmp_path}/f.txt"])
    assert [Path(file).name for file in found] == [
        "a.pcap",
        "b.pcapng",
        "c.pcap1",
        "f.txt",
        "d.cap",
        "e.pcap.gz",
    ]


def test_a_growing_folder_is_read_exactly_once_across_restarts(
    source: Any, truth: Truth, tmp_path: Path
) -> None:
    """Files cut in mid-packet, that grow, join and are rotated, over three runs of a query: each packet once."""
    captures, out, marks = tmp_path / "captures", tmp_path / "out", tmp_path / "checkpoint"
    captures.mkdir()
    whole = truth.path.read_bytes()
    growing = captures / "growing.pcap"
    stream = (
        source.readStream.format("umpcap")
        .option("targetPartitionBytes", 500_000)
        .schema(COUNTED)
        .load(str(captures))
    )

    def run() -> None:
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(marks))
            .option("path", str(out))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert query.exception() is None

    growing.write_bytes(whole[: len(whole) // 3])
    run()
    read_so_far = source.read.parquet(str(out)).count()
    assert PACKETS / 4 < read_so_far < PACKETS / 2
    with growing.open("ab") as file:
        file.write(whole[len(whole) // 3 : len(whole) // 2])
    (captures / "another.pcap").write_bytes(whole[:100_003])
    (captures / "packed.pcap.gz").write_bytes(gzip.compress(whole[:50_000]))
    run()
    run()
    with growing.open("ab") as file:
        file.write(whole[len(whole) // 2 :])
    run()
    got = source.read.parquet(str(out))
    by_file = {
        Path(row[0]).name: row for row in got.groupBy("capture_file").agg({"position": "count"}).collect()
    }
    assert by_file.keys() == {"growing.pcap", "another.pcap"}
    assert by_file["growing.pcap"][1] == PACKETS
    assert got.select("capture_file", "position").distinct().count() == got.count()
