"""The stream reader of captures without a query: its results as files change between batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture_bytes import START_NS, Packet, data, frame, message, pcap, pieces, udp

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import from_arrow_schema

from umstack.facts.packet_columns import PACKETS
from umstack.spark.umpcap import UmpcapReader
from umstack.spark.umpcap_parts import UmpcapOptions
from umstack.spark.umpcap_stream import UmpcapStreamReader


def capture(*sqns: int, size: int = 40) -> bytes:
    """A capture with one datagram per number."""
    packets = [frame(data(sqn, message(1, sqn, bytes(size)))) for sqn in sqns]
    return pcap([Packet(START_NS + number * 1000, one) for number, one in enumerate(packets)])


class Query:
    """A driver that uses a reader as Spark does: offsets go to a checkpoint as JSON, and a restart makes
    another reader.
    """

    def __init__(self, folder: Path, **options: str) -> None:
        self._options = {"path": str(folder), "targetPartitionBytes": "500", **options}
        self.restart()
        self._start: Any = self._reader.initialOffset()

    def restart(self) -> None:
        """Resume from the checkpoint with another reader, as Spark does after the driver died."""
        self._reader = UmpcapStreamReader(from_arrow_schema(PACKETS), UmpcapOptions.of(self._options))
        if hasattr(self, "_start"):
            # Spark first passes the last offsets to a restarted reader.
            self._reader.partitions(self._start, self._start)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the next micro-batch, in partition order."""
        end = json.loads(json.dumps(self._reader.latestOffset()))
        parts = self._reader.partitions(self._start, end)
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
