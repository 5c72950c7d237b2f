"""The umstack data source: live topics read through a journal, exactly once across restarts; publishing rows."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import from_arrow_schema

from tests.unit.loopback import SHARED, configuration_file, open_context
from tests.waiting import collect, wait_for
from umstack import Source
from umstack.errors import SystemFailure
from umstack.recorder import Journal, JournalReader
from umstack.recorder.background import BackgroundRecorder, is_recording, writer_of
from umstack.recorder.journal import arrow
from umstack.recorder.recorder import Recorder
from umstack.recorder.tables import messages
from umstack.spark import live_sink
from umstack.spark.live_options import LiveOptions, PublishOptions
from umstack.spark.live_source import LiveReader, UmstackDataSource, live_schema, ranges
from umstack.spark.streaming_query import start_connected

START_SECONDS = 150.0
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration with the addresses of this test process."""
    return configuration_file(tmp_path)


@pytest.fixture
def live(spark: Any) -> Any:
    """Return the session, with the data source registered."""
    spark.dataSource.register(UmstackDataSource)
    return spark


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Path]:
    """A folder for a journal; its recorder is ended after the test."""
    place = tmp_path / "journal"
    yield place
    if is_recording(place):
        with suppress(ProcessLookupError):
            os.kill(writer_of(place), signal.SIGKILL)


class Numbers:
    """Publishes consecutive numbers until it is stopped."""

    def __init__(self, source: Source) -> None:
        self.sent = 0
        self._source = source
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopping.wait(0.05):
            self._source.send_many([b"%d" % n for n in range(self.sent, self.sent + 50)], flush=True)
            self.sent += 50

    def __enter__(self) -> Numbers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


@contextmanager
def running(query: Any) -> Iterator[Any]:
    """Run a query and stop it at the end."""
    try:
        yield query
    finally:
        query.stop()


def numbers(live: Any, out: Path) -> list[int]:
    """The numbers that a query has written."""
    rows = live.read.parquet(str(out)).selectExpr("CAST(CAST(payload AS STRING) AS LONG) AS n").collect()
    return sorted(row.n for row in rows)


def test_a_restarted_query_neither_loses_nor_repeats(
    live: Any, journal: Path, config: Path, tmp_path: Path
) -> None:
    """Three runs of a query with messages all the time, and the journal of a killed recorder."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def start() -> Any:
        rows = (
            live.readStream.format("umstack")
            .option("topicPattern", "live/.*")
            .option("interface", "lo")
            .option("config", str(config))
            .option("rowsPerPartition", 3000)
            .option("maxRowsPerTrigger", 10000)
            .load(str(journal))
        )
        return rows.writeStream.option("checkpointLocation", str(checkpoint)).start(str(out))

    def taken(query: Any) -> int:
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    def await_rows(query: Any) -> None:
        wait_for(lambda: not query.isActive or taken(query) > 1000, "rows", START_SECONDS)
        if (error := query.exception()) is not None:
            raise error

    with open_context() as context, context.source("live/numbers", flow_control="min") as source:
        with running(start_connected(start)) as query:
            wait_for(lambda: query.isActive and source.is_connected, "the recorder", START_SECONDS)
            recorder = writer_of(journal)
            with Numbers(source) as publishing:
                await_rows(query)
                query.stop()
                sent = publishing.sent
                wait_for(lambda: publishing.sent > sent + 500, "messages while no query runs")
                start_connected(start, await_rows).stop()
            assert source.wait_drained(10)
        wait_for(lambda: JournalReader(journal / "messages").end == publishing.sent, "all in the journal")
        assert writer_of(journal) == recorder
        os.kill(recorder, signal.SIGKILL)
        wait_for(lambda: not is_recording(journal), "the recorder's end")
        start_connected(start).stop()
    assert numbers(live, out) == list(range(publishing.sent))


def test_the_journal_as_a_table(live: Any, tmp_path: Path) -> None:
    """A batch query reads the current rows, with offsets, in partitions; columns may be selected."""
    with open_context() as context, Recorder(context, ["orders"], journal=tmp_path) as recorder:
        source = context.source("orders", flow_control="min")
        wait_for(lambda: recorder.step() is not None and source.is_connected, "the receiver")
        source.send_many([b"%d" % n for n in range(1000)], flush=True)
        wait_for(lambda: recorder.step() is not None and recorder.report.messages == 1000, "messages")
    rows = live.read.format("umstack").option("rowsPerPartition", 300).load(str(tmp_path))
    assert rows.rdd.getNumPartitions() == 4
    found = rows.orderBy("offset").collect()
    assert [(row.offset, row.payload) for row in found] == [(n, b"%d" % n) for n in range(1000)]
    assert {row.topic for row in found} == {"orders"}
    narrow = live.read.format("umstack").schema("payload BINARY, offset LONG").load(str(tmp_path))
    assert narrow.where("offset = 7").collect() == [(b"7", 7)]


def test_rows_are_published(live: Any, config: Path) -> None:
    """`df.write` publishes every row to its topic; the write ends when the receivers have all rows."""
    with open_context() as context:
        receivers = [context.receiver(f"spark/{n}") for n in range(2)]
        rows = live.range(2000, numPartitions=2).selectExpr(
            "concat('spark/', id % 2) AS topic", "CAST(id AS STRING) AS payload"
        )
        found: list[list[int]] = [[], []]

        def read() -> None:
            for numbers, receiver in zip(found, receivers, strict=True):
                numbers += sorted(int(message.data) for message in collect(receiver, 1000, START_SECONDS))

        reading = threading.Thread(target=read)
        reading.start()
        writer = rows.write.format("umstack").mode("append").option("interface", "lo")
        writer.option("config", str(config)).save()
        reading.join()
    assert found == [list(range(0, 2000, 2)), list(range(1, 2000, 2))]


@pytest.mark.parametrize("on_retry", ["publish", "fail"])
def test_a_repeated_task_publishes_as_configured(
    config: Path, monkeypatch: pytest.MonkeyPatch, on_retry: str
) -> None:
    """Rows published by a failed task are sent again, or not, as configured."""
    options = PublishOptions.of(
        {"topic": "retried", "interface": "lo", "config": str(config), "onRetry": on_retry}
    )
    batches = [
        arrow().RecordBatch.from_pydict({"payload": [b"%d" % n for n in range(start, start + 100)]})
        for start in (0, 100)
    ]

    def dying() -> Iterator[Any]:
        yield batches[0]
        raise RuntimeError("as if the worker had died")

    def attempt(number: int, rows: Iterator[Any]) -> int:
        monkeypatch.setattr(
            live_sink.TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: number)
        )
        return live_sink.publish_all(options, rows).rows

    with open_context() as context:
        receiver = context.receiver("retried")
        with pytest.raises(RuntimeError):
            attempt(0, dying())
        if on_retry == "publish":
            assert attempt(1, iter(batches)) == 200
        else:
            with pytest.raises(SystemFailure, match="onRetry does not allow to publish them again"):
                attempt(1, iter(batches))
        expected = [*range(100), *range(200)] if on_retry == "publish" else [*range(100)]
        received = [int(message.data) for message in collect(receiver, len(expected))]
        assert receiver.poll(10, 0.2).messages() == []
    assert received == expected


def test_committed_rows_are_released(tmp_path: Path) -> None:
    """Commit removes rows that no restart needs; offsets stay; triggers are bounded."""
    table = messages()
    with Journal(tmp_path / "messages", table.schema, segment_bytes=2000) as journal:
        for n in range(100):
            row = {"topic": "t", "source": "s", "sequence_number": n, "received_ns": n, "payload": bytes(50)}
            journal.append(arrow().RecordBatch.from_pylist([row] * 10, schema=table.schema))
    options = LiveOptions.of({"path": str(tmp_path), "forgetCommitted": "true", "maxRowsPerTrigger": "300"})
    reader = LiveReader(from_arrow_schema(live_schema()), options)
    assert reader.initialOffset() == {"offset": 0}
    reader.partitions({"offset": 0}, {"offset": 200})
    assert reader.latestOffset() == {"offset": 500}
    reader.commit({"offset": 200})
    assert 0 < reader.initialOffset()["offset"] <= 200
    (part,) = reader.partitions({"offset": 200}, {"offset": 500})
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(200, 500))
    assert [row["sequence_number"] for row in rows] == [n // 10 for n in range(200, 500)]


def numbered(first: int, end: int) -> Any:
    """Return journal rows with these numbers."""
    rows = [
        {"topic": "t", "source": "s", "sequence_number": n, "received_ns": n, "payload": b""}
        for n in range(first, end)
    ]
    return arrow().RecordBatch.from_pylist(rows, schema=messages().schema)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_the_first_trigger_takes_no_more_than_the_others(tmp_path: Path, start: str) -> None:
    """A query that starts on a long journal gets one trigger's rows, whether Spark requests the start or the
    end first. A query that resumes from a checkpoint does, too, because Spark first passes it the last
    offset.
    """
    options = LiveOptions.of({"path": str(tmp_path), "maxRowsPerTrigger": "300", "startingOffset": start})
    schema = from_arrow_schema(live_schema())
    with Journal(tmp_path / "messages", messages().schema) as journal:
        journal.append(numbered(0, 1000))
        reader = LiveReader(schema, options)
        begin = 0 if start == "earliest" else 1000
        first = reader.latestOffset()
        journal.append(numbered(1000, 5000))
        assert first == {"offset": 300 if start == "earliest" else 1000}
        assert reader.initialOffset() == {"offset": begin}
        reader.partitions(reader.initialOffset(), first)
        assert reader.latestOffset() == {"offset": first["offset"] + 300}
        again = LiveReader(schema, options)
        again.partitions({"offset": 700}, {"offset": 700})
        assert again.latestOffset() == {"offset": 1000}


def test_the_recorder_of_a_query_takes_groups(journal: Path, config: Path) -> None:
    """With option("group"), the query's recorder subscribes only to sources on these groups."""
    group = SHARED["transport_lbtrm_multicast_address"]
    given = {"path": str(journal), "topics": "orders", "interface": "lo", "config": str(config)}
    options = LiveOptions.of({**given, "group": f"239.0.0.1, {group}"})
    with open_context() as context, context.source("orders", flow_control="none") as other:
        chosen = context.source("orders", flow_control="min", **SHARED)
        reader = LiveReader(from_arrow_schema(live_schema()), options)
        wait_for(lambda: chosen.is_connected, "the recorder", START_SECONDS)
        for source, said in ((other, b"other"), (chosen, b"chosen")):
            source.send_many([said] * 100, flush=True)
        wait_for(lambda: reader.latestOffset()["offset"] >= 100, "messages in the journal")
    rows = [row for batch in JournalReader(journal / "messages").read(0) for row in batch.to_pylist()]
    assert [row["payload"] for row in rows] == [b"chosen"] * 100


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "x", "topics": "a", "group": "nonsense"}, "nonsense is not a group"),
        ({"path": "x", "topics": "a", "group": "10.1.1.1"}, "not a multicast group"),
        ({"path": "x", "group": "239.1.1.1"}, "topics or topicPattern"),
        ({"path": ""}, "no journal is named"),
        ({"path": "x", "maxRowPerTrigger": "5"}, "(?i)no option maxRowPerTrigger"),
        ({"path": "x", "startingOffset": "middle"}, "earliest or latest"),
        ({"path": "x", "topics": "a", "topicPattern": "b"}, "exclude"),
        ({"path": "x", "rowsPerPartition": "0"}, "above 0"),
    ],
)
def test_an_error_names_a_wrong_option(live: Any, options: dict[str, str], said: str) -> None:
    """The error names the wrong option or value."""
    with pytest.raises(Exception, match=said):
        live.read.format("umstack").options(**options).load().collect()


def test_a_recorder_that_cannot_start_is_an_error(journal: Path) -> None:
    """The recorder's error message reaches the query."""
    with pytest.raises(Exception, match="nowhere0"):
        BackgroundRecorder(journal, ("orders",), interface="nowhere0").ensure()


def test_ranges_cover_without_overlap() -> None:
    """Partitions of a range contain each of its rows once."""
    for start, end, rows in [(0, 0, 5), (3, 4, 5), (0, 5, 5), (0, 6, 5), (7, 1000, 13)]:
        parts = ranges(start, end, rows)
        assert [n for part in parts for n in range(part.start, part.end)] == list(range(start, end))
        assert all(0 < part.end - part.start <= rows for part in parts)
