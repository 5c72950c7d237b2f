"""The stream reader of captures without a query: its results as files change between batches."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture_bytes import START_NS, Packet, data, frame, message, pcap, pieces, udp

pytest.importorskip("pyspark")
pytest.importorskip("moto")

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from tests.unit.object_store import made_bucket, running_store
from umstack.capture import Split
from umstack.capture.reading.ranges import joined
from umstack.capture.reading.remote import version_of
from umstack.capture.reading.split import walk
from umstack.facts.packet_columns import PACKETS
from umstack.pipeline import run
from umstack.pipeline.layout import Layout
from umstack.spark import umpcap_manifest
from umstack.spark.umpcap import UmpcapReader
from umstack.spark.umpcap_parts import UmpcapOptions
from umstack.spark.umpcap_stream import UmpcapStreamReader
from umstack.spark.umpcap_tasks import CaptureTask


def capture(*sqns: int, size: int = 40) -> bytes:
    """A capture with one datagram per number."""
    packets = [frame(data(sqn, message(1, sqn, bytes(size)))) for sqn in sqns]
    return pcap([Packet(START_NS + number * 1000, one) for number, one in enumerate(packets)])


class Query:
    """A driver that uses a reader as Spark does: offsets go to a checkpoint as JSON, and a restart makes
    another reader.
    """

    def __init__(self, folder: Path | str, **options: str) -> None:
        self._options = {"path": str(folder), "targetPartitionBytes": "500", **options}
        self.tasks: list[list[CaptureTask]] = []
        """The tasks of each micro-batch."""
        self.restart()
        self._start: Any = self._reader.initialOffset()

    def restart(self, path: str | None = None) -> None:
        """Resume from the checkpoint with another reader, as Spark does after the driver died."""
        if path is not None:
            self._options["path"] = path
        self._reader = UmpcapStreamReader(from_arrow_schema(PACKETS), UmpcapOptions.of(self._options))
        if hasattr(self, "_start"):
            # Spark first passes the last offsets to a restarted reader.
            self._reader.partitions(self._start, self._start)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the next micro-batch, in partition order."""
        end = json.loads(json.dumps(self._reader.latestOffset()))
        parts = self._reader.partitions(self._start, end)
        self.tasks.append(parts)
        rows = [row for part in parts for batch in self._reader.read(part) for row in batch.to_pylist()]
        self._reader.commit(end)
        self._start = end
        return rows

    def sqns(self) -> list[int]:
        """Return the sequence numbers of the next micro-batch."""
        return [row["transport_sqn"] for row in self.rows()]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_capture_replaced_by_a_shorter_one_is_read_from_its_beginning(
    tmp_path: Path, restarted: bool
) -> None:
    """If a different file gets the same name, all of its packets become rows, later ones included, once each."""
    file = tmp_path / "capture.pcap"
    query = Query(tmp_path)
    file.write_bytes(capture(*range(100)))
    assert query.sqns() == list(range(100))
    assert query.sqns() == []
    file.write_bytes(capture(*range(500, 530)))
    if restarted:
        query.restart()
    assert query.sqns() == list(range(500, 530))
    file.write_bytes(capture(*range(500, 700)))
    if restarted:
        query.restart()
    assert query.sqns() == list(range(530, 700))
    assert query.sqns() == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_capture_emptied_and_rewritten_loses_nothing(tmp_path: Path, restarted: bool) -> None:
    """The file was empty between two micro-batches; a repeated batch returns the same rows."""
    file = tmp_path / "capture.pcap"
    query = Query(tmp_path)
    file.write_bytes(capture(*range(50)))
    assert len(query.sqns()) == 50
    file.write_bytes(b"")
    assert query.sqns() == []
    file.write_bytes(capture(*range(7, 90)))
    if restarted:
        query.restart()
    assert query.sqns() == list(range(7, 90))


def test_a_batch_about_a_shorter_capture_is_the_same_when_it_is_run_again(tmp_path: Path) -> None:
    """The two offsets alone determine the rows, because Spark uses another reader after the driver died."""
    file = tmp_path / "capture.pcap"
    options = UmpcapOptions.of({"path": str(tmp_path), "targetPartitionBytes": "500"})
    schema = from_arrow_schema(PACKETS)
    file.write_bytes(capture(*range(60)))
    reader = UmpcapStreamReader(schema, options)
    start = reader.latestOffset()
    reader.partitions(reader.initialOffset(), start)
    file.write_bytes(capture(*range(900, 920)))
    end = reader.latestOffset()
    for again in (reader, UmpcapStreamReader(schema, options)):
        parts = again.partitions(start, end)
        rows = [row for part in parts for batch in again.read(part) for row in batch.to_pylist()]
        assert [row["transport_sqn"] for row in rows] == list(range(900, 920))


def test_a_note_is_repeated_for_a_replaced_capture(tmp_path: Path) -> None:
    """Both files are damaged; the damage of the second file is also noted, and only once."""
    file = tmp_path / "capture.pcap"
    query = Query(tmp_path, notes="true")

    def noted() -> list[str]:
        return [row["status"] for row in query.rows() if row["status"].startswith("note: ")]

    # No record can start with these lengths.
    damage = b"\xff" * 64
    file.write_bytes(capture(*range(50)) + damage)
    assert len(noted()) == 1
    assert noted() == []
    file.write_bytes(capture(*range(10)) + damage)
    assert len(noted()) == 1
    assert noted() == []


def test_a_batch_takes_the_oldest_packets_of_all_files_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch, including the first, has at most the limit plus a piece; no capture gets ahead of another;
    everything is read.
    """
    piece, limit, count = 500, 2000, 100
    monkeypatch.setattr("umstack.spark.umpcap_stream._CHUNK_BYTES_LEAST", piece)
    for name in ("a", "b"):
        (tmp_path / f"{name}.pcap").write_bytes(capture(*range(count)))
    query = Query(tmp_path, maxBytesPerTrigger=str(limit))
    size = (tmp_path / "a.pcap").stat().st_size / count
    (tmp_path / "b.pcap").write_bytes(capture(*range(count, 2 * count)))
    found: list[int] = []
    latest_ns = START_NS
    while batch := query.rows():
        assert len(batch) * size <= limit + 2 * piece
        assert min(row["time_ns"] for row in batch) >= latest_ns - 2000 * piece / size
        latest_ns = max(row["time_ns"] for row in batch)
        found += [row["transport_sqn"] for row in batch]
        query.restart()
    assert sorted(found) == list(range(2 * count))


@pytest.mark.parametrize("restarted", [False, True])
def test_fragments_across_batches_are_one_datagram(tmp_path: Path, restarted: bool) -> None:
    """The row comes with the batch that has the last fragment; a batch read over a whole file finds the same rows."""
    parts = pieces(udp(data(5, message(1, 5, bytes(4000)))))
    frames = [
        parts[0],
        frame(data(4, message(1, 4, b"4"))),
        parts[2],
        parts[1],
        frame(data(6, message(1, 6, b"6"))),
    ]
    content = pcap(Packet(START_NS + number * 1000, one) for number, one in enumerate(frames))
    ends = [24]
    for one in frames:
        ends.append(ends[-1] + 16 + len(one))
    query, got = Query(tmp_path), []
    for end in ends[1:]:
        (tmp_path / "capture.pcap").write_bytes(content[:end])
        if restarted:
            query.restart()
        got.append(query.rows())
    assert [[row["transport_sqn"] for row in rows] for rows in got] == [[], [4], [], [5], [6]]
    [row] = got[3]
    assert (row["status"], row["message_bytes"], row["frame_bytes"]) == ("ok", 4000, sum(map(len, parts)))
    options = UmpcapOptions.of({"path": str(tmp_path), "targetPartitionBytes": "500"})
    reader = UmpcapReader(from_arrow_schema(PACKETS), options)
    parts_read = reader.partitions()
    assert len(parts_read) > 2
    again = [row for part in parts_read for batch in reader.read(part) for row in batch.to_pylist()]
    assert again == [row for rows in got for row in rows]


def compressed(content: bytes, suffix: str) -> bytes:
    """Return content compressed as files of this suffix are."""
    return gzip.compress(content, 1) if suffix == ".gz" else bytes(pa.compress(content, "zstd", asbytes=True))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_that_rotation_compresses_continues(tmp_path: Path, suffix: str, restarted: bool) -> None:
    """It grew and was compressed while no batch ran: the rest is read, from the position in the content."""
    plain = tmp_path / "capture.pcap"
    packed = tmp_path / f"capture.pcap{suffix}"
    query = Query(tmp_path)
    whole = capture(*range(100))
    plain.write_bytes(whole[: len(whole) // 2])
    assert query.sqns() == list(range(49))
    plain.write_bytes(whole)
    content = compressed(whole, suffix)
    for written in (b"", content[: len(content) // 2], content):
        packed.write_bytes(written)
        if written == content:
            plain.unlink()
        if restarted:
            query.restart()
        assert query.sqns() == (list(range(49, 100)) if written == b"" else [])
    (tmp_path / "next.pcap").write_bytes(capture(7))
    assert query.sqns() == [7]


def test_a_file_compressed_while_the_stream_was_stopped_is_read_once(tmp_path: Path) -> None:
    """It was read in part; then only the compressed one exists."""
    plain = tmp_path / "capture.pcap"
    query = Query(tmp_path)
    whole = capture(*range(100))
    plain.write_bytes(whole[: len(whole) // 2])
    assert query.sqns() == list(range(49))
    (tmp_path / "capture.pcap.gz").write_bytes(compressed(whole, ".gz"))
    plain.unlink()
    query.restart()
    assert query.sqns() == list(range(49, 100))
    query.restart()
    assert query.sqns() == []
    plain.write_bytes(whole)  # decompressed again by a person
    assert query.sqns() == []
    (tmp_path / "capture.pcap.gz").unlink()
    assert query.sqns() == []


def test_a_checkpoint_of_a_version_without_compressed_files_counts_none_twice(tmp_path: Path) -> None:
    """Compressed files that exist at the upgrade may be of plain ones that were read; others are read."""
    query = Query(tmp_path)
    (tmp_path / "old.pcap.gz").write_bytes(compressed(capture(1, 2), ".gz"))
    live = tmp_path / "live.pcap"
    live.write_bytes(capture(3))
    query.rows()
    del query._start["inflated"], query._start["files"][str(tmp_path / "old.pcap.gz")]
    query.restart()
    live.write_bytes(capture(3, 4))
    (tmp_path / "live.pcap.gz").write_bytes(compressed(live.read_bytes(), ".gz"))
    live.unlink()
    assert query.sqns() == [4]
    query.restart()
    (tmp_path / "new.pcap.gz").write_bytes(compressed(capture(5), ".gz"))
    assert query.sqns() == [5]


def test_a_complete_compressed_file_is_inflated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each look, and not after a restart: a folder may have thousands. A growing one is read up to its end."""
    inflated: list[str] = []

    def counted(place: Split, *others: Any) -> Any:
        inflated.append(Path(place.path).name)
        return walk(place, *others)

    monkeypatch.setattr("umstack.spark.umpcap_stream.walk", counted)
    query = Query(tmp_path)
    (tmp_path / "done.pcap.gz").write_bytes(compressed(capture(*range(10)), ".gz"))
    growing, content = tmp_path / "growing.pcap.zst", compressed(capture(*range(100, 5000)), ".zst")
    growing.write_bytes(content[:-3000])
    first = query.sqns()
    assert first[:10] == list(range(10))
    assert 4900 > len(first) > 1000
    growing.write_bytes(content)
    assert query.sqns() == [], "it may still grow"
    assert [*first, *query.sqns()] == [*range(10), *range(100, 5000)]
    inflated.clear()
    for _ in range(2):
        assert query.sqns() == []
        query.restart()
    assert inflated == []


def test_random_rotation_and_compression_counts_each_packet_once(tmp_path: Path) -> None:
    """Files grow, rotate, are compressed and removed; batches and restarts come between any two steps."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    drawn = random.Random(seed)
    query, found, written = Query(tmp_path, maxBytesPerTrigger="70000", targetPartitionBytes="30000"), [], 0
    for rotation in range(10):
        many = drawn.randint(1, 400)
        whole = capture(*range(written, written + many), size=drawn.randint(10, 300))
        written += many
        name, suffix = f"ring-{rotation:04}.pcap", drawn.choice((".gz", ".zst"))
        plain, packed = tmp_path / name, tmp_path / f"{name}{suffix}"
        content = compressed(whole, suffix)

        def batches() -> None:
            if drawn.random() < 0.2:
                query.restart()
            for _ in range(drawn.randint(0, 2)):
                found.extend(query.sqns())

        for _ in range(drawn.randint(0, 2)):
            plain.write_bytes(
                whole[: drawn.randint(plain.stat().st_size if plain.exists() else 0, len(whole))]
            )
            batches()
        plain.write_bytes(whole)
        batches()
        if drawn.random() < 0.7:
            packed.write_bytes(content[: drawn.randint(0, len(content))])
            batches()
            packed.write_bytes(content)
            batches()
            plain.unlink()
            batches()
    for _ in range(40):
        found += query.sqns()
    assert sorted(found) == list(range(written))


def test_a_stream_follows_a_folder_of_a_store(tmp_path: Path) -> None:
    """Each object is read once, oldest first, also after a restart with other parameters and Hadoop's
    name of the scheme; later versions are noted."""
    with running_store() as parameters:
        store = made_bucket("growing", parameters)

        def put(name: str, content: bytes) -> None:
            with store.open_output_stream(f"growing/today/{name}", compression=None) as stream:
                stream.write(content)

        query = Query(f"s3://growing/today?{parameters}", notes="true", maxBytesPerTrigger="1")

        def statuses() -> tuple[list[int], list[str]]:
            rows = query.rows()
            noted = [row["status"] for row in rows if row["status"].startswith("note: ")]
            return [row["transport_sqn"] for row in rows if not row["status"].startswith("note: ")], noted

        assert statuses() == ([], [])
        put("a.pcap", capture(1, 2, 3))
        assert statuses() == ([1, 2, 3], [])
        put("b.pcap.gz", compressed(capture(4, 5), ".gz"))
        put("c.pcap", capture(6, 7)[:-3])
        query.restart(f"s3a://growing/today?{parameters.replace('127.0.0.1', 'localhost')}")
        assert sorted([statuses()[0], statuses()[0]]) == [[4, 5], [6]]
        put("a.pcap", capture(1, 2, 3, 8))
        rows, noted = statuses()
        assert rows == []
        assert len(noted) == 1
        assert "s3://growing/today/a.pcap: replaced by a file of another length" in noted[0]
        assert statuses() == ([], [])


def test_an_object_whose_splits_are_known_is_read_by_several_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each packet and each note is there once, also if the object is replaced between listing and planning. A pipeline
    finds the splits of objects that it has not listed before.
    """
    with running_store() as parameters:
        store = made_bucket("large", parameters)
        url = f"s3://large/today?{parameters}"
        query = Query(url, notes="true", manifestFolder=str(tmp_path))
        options = UmpcapOptions.of(query._options)

        def put(name: str, content: bytes) -> str:
            with store.open_output_stream(f"large/today/{name}", compression=None) as stream:
                stream.write(content)
            return f"s3://large/today/{name}?{parameters}"

        def keep_splits(uri: str) -> None:
            splits = joined(Split(uri), {}, options.target_bytes, options.ports)
            kept = umpcap_manifest._stored(splits)
            umpcap_manifest._keep(uri, version_of(uri), options, kept)

        keep_splits(put("a.pcap", capture(*range(60))[:-3]))
        rows = query.rows()
        noted = [row["status"] for row in rows if row["status"].startswith("note: ")]
        assert [row["transport_sqn"] for row in rows if row["status"] == "ok"] == list(range(59))
        assert len(noted) == 1
        assert len(query.tasks[-1]) > 5
        put("b.pcap", capture(*range(100, 140)))
        listed = query._reader.latestOffset()
        keep_splits(put("b.pcap", capture(*range(200, 260))))
        parts = query._reader.partitions(query._start, listed)
        assert len(parts) == 1
        found = [row for part in parts for batch in query._reader.read(part) for row in batch.to_pylist()]
        assert [row["transport_sqn"] for row in found if row["status"] == "ok"] == list(range(200, 260))

        made, layout = list[list[str]](), Layout(tmp_path / "tables")
        monkeypatch.setattr(run, "find_splits", lambda _spark, files, **_: made.append(files))
        layout.state.mkdir(parents=True)
        layout.add_captures(["s3://large/today/a.pcap"])
        for source in (url, url.replace("today", "tomorrow"), str(tmp_path)):
            run._split_new_objects(None, layout, run.PipelineOptions(source, layout.root))  # type: ignore[arg-type]
        assert made == [[f"s3://large/today/b.pcap?{parameters}"]]
