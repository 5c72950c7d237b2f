"""The planning of a read: splits are found once, on workers, and small files share a task."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import from_arrow_schema

from umstack.capture import Split
from umstack.capture.generate import Traffic, generate
from umstack.capture.reading import capture_files
from umstack.capture.reading.remote import version_of
from umstack.facts.packet_columns import PACKETS
from umstack.spark import UmpcapDataSource, find_splits, umpcap_manifest
from umstack.spark.umpcap import UmpcapReader
from umstack.spark.umpcap_parts import UmpcapOptions
from umstack.spark.umpcap_tasks import CapturePart, packed_tasks

FEW, MANY = 50, 1500
TARGET = "100000"
STATE_BYTES = 4112
"""State of a split: the packets of which its first ones may be copies."""


def captures(folder: Path, *packets: int) -> None:
    """Write captures with these numbers of packets."""
    folder.mkdir()
    for number, count in enumerate(packets):
        generate(folder / f"{number}.pcap", count, Traffic(message_bytes=1000 + number))


def positions(reader: UmpcapReader) -> list[tuple[str, int]]:
    """The packets of all tasks of a reader."""
    return [
        (row["capture_file"], row["position"])
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.select(["capture_file", "position"]).to_pylist()
    ]


def reader_of(folder: Path, **options: str) -> UmpcapReader:
    """A reader as Spark makes one for each action."""
    chosen = UmpcapOptions.of({"path": str(folder), "targetPartitionBytes": TARGET, **options})
    return UmpcapReader(from_arrow_schema(PACKETS), chosen)


def test_workers_find_splits_once_and_reads_use_them(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only large files without a manifest are split; a file that changes is split again."""
    folder = tmp_path / "captures"
    captures(folder, MANY, FEW, MANY)
    kept = {"manifestFolder": str(tmp_path / "kept")}
    plan = {"targetPartitionBytes": TARGET, **kept}
    assert find_splits(spark, [str(folder)], **plan) == 2
    assert find_splits(spark, [str(folder)], **plan) == 0
    assert find_splits(spark, [str(folder)], **{**plan, "targetPartitionBytes": "150000"}) == 2
    split_again: list[str] = []
    original = umpcap_manifest.split

    def counted(file: str, *arguments: Any, **options: Any) -> list[Split]:
        split_again.append(Path(file).name)
        return original(file, *arguments, **options)

    monkeypatch.setattr(umpcap_manifest, "split", counted)
    reader = reader_of(folder, **kept)
    assert len(reader.partitions()) > 2 * MANY * 1000 // int(TARGET)
    found = positions(reader)
    assert len(found) == len(set(found)) == FEW + 2 * MANY
    assert split_again == []
    with (folder / "2.pcap").open("ab") as file:
        file.write((folder / "1.pcap").read_bytes()[24:])
    for _ in range(2):
        assert len(positions(reader_of(folder, **kept))) == 2 * FEW + 2 * MANY
    assert split_again == ["2.pcap"]


def test_a_terabyte_is_planned_from_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No capture is walked or hashed, and Spark gets tens of megabytes for all of its tasks."""
    folder, splits_per_file = tmp_path / "captures", 150
    folder.mkdir()
    options = UmpcapOptions.of({"path": str(folder), "manifestFolder": str(tmp_path / "kept")})
    for number in range(100):
        path = folder / f"{number}.pcap"
        path.write_bytes(f"capture {number}".encode())
        os.truncate(path, splits_per_file * options.target_bytes)
        # Random, because copies of packets are recognized by hashes.
        state = [os.urandom(STATE_BYTES) for _ in range(splits_per_file)]
        starts = range(0, path.stat().st_size, options.target_bytes)
        splits = [
            Split(str(path), start, start + options.target_bytes, format=1, copies=copies)
            for start, copies in zip(starts, state, strict=True)
        ]
        umpcap_manifest._keep(str(path), version_of(str(path)), options, umpcap_manifest._stored(splits))
    monkeypatch.delattr(umpcap_manifest, "split")
    monkeypatch.delattr(capture_files, "_digest")
    began = time.process_time()
    tasks = UmpcapReader(from_arrow_schema(PACKETS), options).partitions()
    took = time.process_time() - began
    assert len(tasks) == 100 * splits_per_file
    size = sum(len(pickle.dumps(task)) for task in tasks)
    print(f"1 TB: {took:.1f} s of processor time, {len(tasks)} tasks, {size / 1e6:.0f} MB")
    assert size < 100e6


def test_a_read_works_if_splits_cannot_be_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the file and the reason."""
    folder = tmp_path / "captures"
    captures(folder, MANY)
    (tmp_path / "occupied").write_text("a file where the folder should be")
    assert len(positions(reader_of(folder, manifestFolder=str(tmp_path / "occupied" / "kept")))) == MANY
    assert "0.pcap are not kept" in caplog.text


def test_a_damaged_manifest_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log names it; the file is split again."""
    folder, kept = tmp_path / "captures", tmp_path / "kept"
    captures(folder, MANY)
    wanted = positions(reader_of(folder, manifestFolder=str(kept)))
    [manifest] = kept.glob("*.splits")
    content = manifest.read_bytes()
    for damaged in (content[:100], content[:-1000] + b"damage" + content[-994:], b""):
        manifest.write_bytes(damaged)
        caplog.clear()
        assert positions(reader_of(folder, manifestFolder=str(kept))) == wanted
        assert f"{manifest} is damaged" in caplog.text
        assert manifest.read_bytes() == content


def test_small_files_share_tasks_and_large_parts_do_not() -> None:
    """Tasks hold at most the target, parts keep their order, and a file has a least weight."""
    sizes = [10, 10, 900, 80, 1000, 1500, 10, 995, 0]
    parts = [CapturePart(Split(str(number)), size_bytes=size) for number, size in enumerate(sizes)]
    tasks = packed_tasks(parts, 1000)
    assert [[part.size_bytes for part in task.parts] for task in tasks] == [
        *([10, 10, 900], [80], [1000], [1500], [10], [995], [0]),
    ]
    empty = [CapturePart(Split("empty"))] * 200
    assert [len(task.parts) for task in packed_tasks(empty, 6400)] == [64, 64, 64, 8]
    assert packed_tasks([], 1000) == []


def test_a_folder_of_small_files_is_one_task(spark: Any, tmp_path: Path) -> None:
    """Each packet of each file is read once; of copies only one file, with a note on each other."""
    folder = tmp_path / "captures"
    captures(folder, *[FEW] * 20)
    for number in range(3):
        shutil.copy(folder / "7.pcap", folder / f"copy{number}.pcap")
    spark.dataSource.register(UmpcapDataSource)
    frame = spark.read.format("umpcap").option("notes", "true").load(str(folder))
    assert frame.rdd.getNumPartitions() == 1
    rows = frame.select("capture_file", "position", "status").collect()
    packets = {(row["capture_file"], row["position"]) for row in rows if "note: " not in row["status"]}
    assert len(packets) == 20 * FEW
    assert sum("the same as" in row["status"] for row in rows) == 3
