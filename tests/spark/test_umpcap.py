"""The umpcap data source: captures with known contents, read whole, in parts, and while they grow."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from tests.unit.capture_bytes import Packet, frame, pcap
from umstack.capture import decode, split
from umstack.capture.generate import Traffic, Truth, generate
from umstack.capture.reading.capture_files import capture_files
from umstack.facts.facts import Facts, facts_of
from umstack.facts.packed import unpacked
from umstack.spark import UmpcapDataSource
from umstack.spark.umpcap_copies import copies_among

PACKETS = 20_000
FEW = 1000
TRAFFIC = Traffic(seed=7, sessions=2, receivers=3, messages_per_datagram=3, message_bytes=60, loss=0.005)
COUNTED = "position bigint, time_ns bigint, packet_type string, status string, capture_file string"


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """A generated capture and its contents."""
    return generate(tmp_path_factory.mktemp("captures") / "switch.pcap", PACKETS, TRAFFIC)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small capture of other traffic."""
    path = tmp_path_factory.mktemp("others") / "other.pcap"
    return generate(path, FEW, Traffic(seed=8, sessions=1, receivers=1)).path


@pytest.fixture(scope="module")
def source(spark: Any) -> Any:
    """The session with the data source registered."""
    spark.dataSource.register(UmpcapDataSource)
    return spark


def read(source: Any, schema: str | StructType | None = COUNTED, **options: Any) -> Any:
    """Return a reader of some columns."""
    reader = source.read.format("umpcap").options(**options)
    return reader.schema(schema) if schema else reader


def test_a_file_is_split_and_every_packet_is_in_one_part(source: Any, truth: Truth) -> None:
    """Partitions can split a file: no packet is lost or repeated with parts of any size."""
    frame = read(source, targetPartitionBytes=300_000).load(str(truth.path))
    assert frame.rdd.getNumPartitions() == -(-truth.path.stat().st_size // 300_000)
    assert frame.count() == PACKETS
    assert frame.select("position").distinct().count() == PACKETS


def test_facts_of_parts_are_those_of_the_file(source: Any, truth: Truth) -> None:
    """Workers make the facts of their parts; together these have the same rows as the facts of the whole
    file.
    """
    reader = read(source, None, rows="facts", notes="true", targetPartitionBytes=300_000)
    rows = reader.load(str(truth.path))
    assert rows.rdd.getNumPartitions() > 3
    assert unpacked([rows.toArrow()])[0].equals(facts_of([str(truth.path)]))


def test_facts_by_windows_add_up(source: Any, truth: Truth) -> None:
    """Facts by time windows each have the first transmissions of their window, and together they have all of
    them.
    """
    rows = read(source, None, rows="facts", windowSeconds="0.05").load(str(truth.path)).toArrow()
    windows = unpacked([rows])
    whole = facts_of([str(truth.path)])
    assert len(windows) > 2
    assert Facts.merged(windows.values()).equals(whole)
    for begin_ns, facts in windows.items():
        times = facts.frame("rare")["time_ns"]
        assert begin_ns % 50_000_000 == 0
        assert times.is_between(begin_ns, begin_ns + 50_000_000, closed="left").all()


def test_broken_captures_give_their_rows_and_a_note(
    source: Any, truth: Truth, other: Path, tmp_path: Path
) -> None:
    """Valid data of files that are cut in a packet, empty, foreign, copied or compressed is read, and the
    rest is noted.
    """
    whole = truth.path.read_bytes()
    (tmp_path / "cut.pcap").write_bytes(whole[:-20])
    (tmp_path / "empty.pcap").write_bytes(b"")
    (tmp_path / "other.pcap").write_bytes(b"#!/bin/sh\necho this is no capture\n")
    (tmp_path / "packed.pcap.gz").write_bytes(gzip.compress(other.read_bytes(), 1))
    zeros = 64 * gzip.compress(bytes(1 << 20))
    (tmp_path / "expands.pcap.gz").write_bytes(gzip.compress(other.read_bytes()) + zeros)
    shutil.copy(truth.path, tmp_path / "one.pcap")
    shutil.copy(truth.path, tmp_path / "two.pcap")
    (tmp_path / "notes.txt").write_text("not named like a capture")
    rows = read(source, notes="true").load(str(tmp_path)).groupBy("capture_file", "status").count().collect()
    by_file: dict[str, dict[str, int]] = {}
    for row in rows:
        by_file.setdefault(Path(row["capture_file"]).name, {})[row["status"]] = row["count"]
    assert by_file["cut.pcap"].pop("ok") == PACKETS - 1
    assert by_file["packed.pcap.gz"] == {"ok": FEW}
    assert by_file["expands.pcap.gz"].pop("ok") == FEW
    assert by_file["one.pcap"] == {"ok": PACKETS}
    assert "notes.txt" not in by_file
    said = {name: " ".join(statuses) for name, statuses in by_file.items()}
    assert "truncated" in said["cut.pcap"]
    assert "an empty file" in said["empty.pcap"]
    assert "not a capture" in said["other.pcap"]
    assert "the same as" in said["two.pcap"]
    assert "expands more than 500-fold" in said["expands.pcap.gz"]


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("time_ns bigint, colour string", {}, "no column colour"),
        ("time_ns string", {}, "time_ns is bigint"),
        (COUNTED, {"targetPartitionBytes": "many"}, "targetPartitionBytes is many"),
        (COUNTED, {"onlyOur": "true"}, "(?i)no option onlyOur"),
        (COUNTED, {"onlyOurs": "perhaps"}, "onlyOurs is perhaps"),
        (None, {"rows": "bytes"}, "rows is bytes"),
        (None, {"rows": "facts", "windowSeconds": "-1"}, "windowSeconds is -1"),
    ],
)
def test_a_wrong_option_or_column_is_refused(
    source: Any, truth: Truth, schema: str | None, options: Any, said: str
) -> None:
    """Errors name unknown columns, types and options before anything is read."""
    with pytest.raises(Exception, match=said):
        read(source, schema, **options).load(str(truth.path)).count()


def test_columns_have_comments_and_units(source: Any, truth: Truth) -> None:
    """Each column has a comment, quantities have a unit, and the time has a type of Spark."""
    for rows in ("packets", "facts"):
        schema = source.read.format("umpcap").option("rows", rows).load(str(truth.path)).schema
        assert all(field.metadata["comment"] for field in schema)
        units = {field.name: field.metadata.get("unit") for field in schema}
        assert all(units[name] == "ns" for name in units if name.endswith("_ns"))
        assert all(units[name] == "bytes" for name in units if name.endswith("_bytes"))
    packets = source.read.format("umpcap").load(str(truth.path))
    differ = packets.where("unix_micros(timestamp) != time_ns div 1000 OR timestamp IS NULL")
    assert dict(packets.dtypes)["timestamp"] == "timestamp"
    assert differ.count() == 0


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


def stream(source: Any, folder: Path, **options: Any) -> Any:
    """All rows of a streaming query of `folder/captures` after one more run."""
    reader = source.readStream.format("umpcap").options(**options).schema(COUNTED)
    query = (
        reader.load(str(folder / "captures"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "out"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert query.exception() is None
    return source.read.schema(COUNTED).parquet(str(folder / "out"))


def counts_and_notes(rows: Any) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The number of packets by file and the notes by file."""
    found = rows.selectExpr(
        "element_at(split(capture_file, '/'), -1) AS file", "status", "status LIKE 'note: %' AS is_note"
    )
    counts = found.where("NOT is_note").groupBy("file").count().collect()
    notes = found.where("is_note").collect()
    return {row[0]: row[1] for row in counts}, sorted((row["file"], row["status"]) for row in notes)


def zstd(path: Path, content: bytes) -> None:
    """Compress a file with zstd."""
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(content)


def test_a_compressed_copy_is_read_once(source: Any, other: Path, tmp_path: Path) -> None:
    """A copy may be next to its original, elsewhere with another name, or compressed twice; only identical
    contents count as a copy.
    """
    content = other.read_bytes()
    (tmp_path / "away").mkdir()
    (tmp_path / "a.pcap").write_bytes(content)
    (tmp_path / "a.pcap.gz").write_bytes(gzip.compress(content, 1))
    zstd(tmp_path / "away" / "a.pcap.zst", content)
    (tmp_path / "away" / "renamed.pcap.gz").write_bytes(gzip.compress(content, 9))
    (tmp_path / "b.pcap.gz").write_bytes(gzip.compress(content[:-1000], 1))
    zstd(tmp_path / "b.pcap.zst", content[:-1000])
    (tmp_path / "c.pcap").write_bytes(content[:50_000] + b"\0" + content[50_001:])
    (tmp_path / "c.pcap.gz").write_bytes(gzip.compress(content[:50_000], 1)[:-20])
    counts, notes = counts_and_notes(read(source, notes="true").load(str(tmp_path)))
    assert counts.keys() == {"a.pcap", "b.pcap.gz", "c.pcap", "c.pcap.gz"}
    assert counts["a.pcap"] == FEW
    same = [(file, text.rpartition("the same as ")[2]) for file, text in notes if "the same as" in text]
    original = f"{tmp_path}/a.pcap, not read again"
    assert same == [
        ("a.pcap.gz", original),
        ("a.pcap.zst", original),
        ("b.pcap.zst", f"{tmp_path}/b.pcap.gz, not read again"),
        ("renamed.pcap.gz", original),
    ]


def test_a_stream_reads_one_of_several_copies_across_restarts(
    source: Any, truth: Truth, other: Path, tmp_path: Path
) -> None:
    """A file is a copy if it was copied earlier, in two steps, or while it grew; a file that differs later is
    read whole.
    """
    captures, whole = tmp_path / "captures", truth.path.read_bytes()
    captures.mkdir()
    half = whole[: split(truth.path, len(whole) // 2)[0].end]
    for name in ("a.pcap", "b.pcap"):
        (captures / name).write_bytes(half)
    (captures / "z.pcap").write_bytes(other.read_bytes())
    counts, notes = counts_and_notes(stream(source, tmp_path, notes="true"))
    some = counts["a.pcap"]
    assert counts == {"a.pcap": some, "z.pcap": FEW}
    same = ("b.pcap", f"note: {captures}/b.pcap: the same as {captures}/a.pcap, not read again")
    assert notes == [same]
    # Sorts before its original, and is still incomplete.
    (captures / "c.pcap").write_bytes(other.read_bytes()[:60_003])
    (captures / "a.pcap").write_bytes(whole)
    (captures / "b.pcap").write_bytes(whole[:-100_000])
    counts, notes = counts_and_notes(stream(source, tmp_path, notes="true"))
    assert (counts, notes) == ({"a.pcap": PACKETS, "z.pcap": FEW}, [same])
    (captures / "c.pcap").write_bytes(other.read_bytes())
    counts, notes = counts_and_notes(stream(source, tmp_path, notes="true"))
    copied = ("c.pcap", f"note: {captures}/c.pcap: the same as {captures}/z.pcap, not read again")
    assert (counts, notes) == ({"a.pcap": PACKETS, "z.pcap": FEW}, [same, copied])
    # The original is gone, and the copy stays a copy.
    (captures / "z.pcap").unlink()
    (captures / "b.pcap").write_bytes(half + other.read_bytes()[24:])
    for _ in range(2):
        got = stream(source, tmp_path, notes="true")
        counts, notes = counts_and_notes(got)
        assert counts == {"a.pcap": PACKETS, "b.pcap": some + FEW, "z.pcap": FEW}
        assert [text.rpartition(": ")[2] for file, text in notes if file == "b.pcap"] == [
            "no longer a copy, read from its beginning",
            f"the same as {captures}/a.pcap, not read again",
        ]
        packets = got.where("status NOT LIKE 'note: %'")
        assert packets.select("capture_file", "position").distinct().count() == packets.count()


def test_captures_that_only_begin_alike_are_no_copies(tmp_path: Path) -> None:
    """A file that shares only a header with another is read when it has other contents; a file being read is
    not held back.
    """
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    Path(one).write_bytes(b"header")
    Path(two).write_bytes(b"header")
    found = copies_among({one: 6, two: 6}, {}, {})
    assert found == {two: (one, 6)}
    Path(one).write_bytes(b"header and one")
    Path(two).write_bytes(b"header and two")
    assert copies_among({one: 14, two: 14}, {one: 6}, found) == {}
    Path(two).write_bytes(b"header and one")
    assert copies_among({one: 14, two: 14}, {one: 6, two: 6}, {}) == {}
    Path(two).write_bytes(b"header and one more")
    assert copies_among({one: 14, two: 19}, {one: 6}, found) == {}
    assert copies_among({one: 14, two: 14}, {two: 6}, {}) == {one: (two, 14)}, "a started file continues"


def test_a_stream_notes_omitted_data_once(source: Any, other: Path, tmp_path: Path) -> None:
    """Files that are foreign, damaged, cut or complete have one row each, in three runs. Those that are compressed,
    by name or by content, are read.
    """
    captures, content = tmp_path / "captures", other.read_bytes()
    captures.mkdir()
    (captures / "foreign.pcap").write_bytes(b"#!/bin/sh\necho this is no capture\n")
    (captures / "damaged.pcap").write_bytes(content + b"\xff" * 64)
    (captures / "packed.pcap.gz").write_bytes(gzip.compress(content[:9000]))
    (captures / "hidden.pcap").write_bytes(gzip.compress(content[:8000]))
    rotated, growing = captures / "ring-0001.pcap", captures / "ring-0002.pcap"
    rotated.write_bytes(pcap([Packet(10**18, frame(b"rotated"))])[:-3])
    growing.write_bytes(pcap([Packet(2 * 10**18, frame(b"growing"))])[:-3])
    long_ago = captures / "left.pcap"
    long_ago.write_bytes(pcap([Packet(3 * 10**18, frame(b"left"))])[:-3])
    hour_ns = 3600 * 10**9
    for age_ns, one in ((-hour_ns, growing), (0, rotated), (hour_ns, long_ago)):
        os.utime(one, ns=(rotated.stat().st_mtime_ns - age_ns,) * 2)
    wanted = [
        ("damaged.pcap", f"damaged at byte {len(content)}"),
        ("foreign.pcap", "not a capture: it begins with 23 21 2f 62"),
        ("hidden.pcap", "truncated: the record at byte 7"),
        ("left.pcap", "truncated: the record at byte 24 has only"),
        ("packed.pcap.gz", "truncated: the record at byte 8"),
        ("ring-0001.pcap", "truncated: the record at byte 24 has only"),
    ]
    for number in range(3):
        (captures / f"more{number}.pcap").write_bytes(pcap([Packet(number * 10**18, frame(b"more"))]))
        counts, notes = counts_and_notes(stream(source, tmp_path, notes="true"))
        assert [file for file, _ in notes] == [file for file, _ in wanted], (number, notes)
        assert all(text in note for (_, note), (_, text) in zip(notes, wanted, strict=True))
        packed = counts.pop("hidden.pcap"), counts.pop("packed.pcap.gz")
        assert 0 < packed[0] < packed[1] < FEW
        assert counts == {"damaged.pcap": FEW} | {f"more{one}.pcap": 1 for one in range(number + 1)}


def test_a_growing_folder_is_read_exactly_once_across_restarts(
    source: Any, truth: Truth, other: Path, tmp_path: Path
) -> None:
    """Files that are cut inside a packet, grow, appear and are rotated are read over three runs of a query,
    each packet once.
    """
    captures, whole = tmp_path / "captures", truth.path.read_bytes()
    captures.mkdir()
    growing = captures / "growing.pcap"

    def run() -> Any:
        return stream(source, tmp_path, targetPartitionBytes=500_000)

    growing.write_bytes(whole[: len(whole) // 3])
    read_so_far = run().count()
    assert PACKETS / 4 < read_so_far < PACKETS / 2
    with growing.open("ab") as file:
        file.write(whole[len(whole) // 3 : len(whole) // 2])
    (captures / "another.pcap").write_bytes(other.read_bytes()[:50_003])
    (captures / "packed.pcap.gz").write_bytes(gzip.compress(whole[:50_000]))
    run()
    run()
    with growing.open("ab") as file:
        file.write(whole[len(whole) // 2 :])
    got = run()
    by_file = {
        Path(row[0]).name: row for row in got.groupBy("capture_file").agg({"position": "count"}).collect()
    }
    assert by_file.keys() == {"growing.pcap", "another.pcap", "packed.pcap.gz"}
    assert by_file["growing.pcap"][1] == PACKETS
    assert by_file["packed.pcap.gz"][1] == sum(len(batch) for batch in decode(captures / "packed.pcap.gz"))
    assert got.select("capture_file", "position").distinct().count() == got.count()
