"""Killed workers, full disks, schemas of an older version.

The disks are small file systems in separate mount namespaces; nothing outside sees them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.errors import StreamingQueryException

from umstack.capture.generate import Traffic, generate
from umstack.errors import SystemFailure
from umstack.recorder import Journal
from umstack.recorder.tables import messages
from umstack.spark import UmpcapDataSource
from umstack.spark.live_source import UmstackDataSource
from umstack.spark.streaming_query import run_query, wait_for_end

pytestmark = pytest.mark.timeout(300)

PACKETS = 60_000
TRAFFIC = Traffic(seed=3, sessions=1, receivers=2, messages_per_datagram=1, message_bytes=40, loss=0.002)


def test_a_killed_worker_loses_and_doubles_nothing(spark: Any, tmp_path: Path) -> None:
    """The table written is complete although a Python worker is killed with -9 while it reads a partition."""
    capture, out, killed = tmp_path / "switch.pcap", tmp_path / "out", tmp_path / "killed"
    generate(capture, PACKETS, TRAFFIC)

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 1:
                with suppress(FileExistsError):
                    killed.touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    spark.dataSource.register(UmpcapDataSource)
    reader = spark.read.format("umpcap").schema("capture_file string, position bigint, time_ns bigint")
    packets = reader.option("targetPartitionBytes", 2_000_000).option("batchRows", 1000).load(str(capture))
    assert packets.rdd.getNumPartitions() > 2
    packets.mapInArrow(die_once, packets.schema).write.parquet(str(out))
    assert killed.exists(), "a worker was killed"
    table = spark.read.parquet(str(out))
    assert table.count() == table.distinct().count() == PACKETS


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize(
    ("engine", "size", "step"), [(("--master", "local[2]"), "32k", "write"), ((), "32k", "write")]
)
def test_a_full_disk_ends_a_report_with_an_error(
    tmp_path: Path, engine: tuple[str, ...], size: str, step: str
) -> None:
    """If the report's folder is on a full disk, with or without Spark, the status is 1, one line has a hint,
    and no page is written.
    """
    capture = generate(tmp_path / "switch.pcap", PACKETS * 5, TRAFFIC).path
    small = tmp_path / "small"
    small.mkdir()
    command = [sys.executable, "-m", "umstack", "report", str(capture), "--out", str(small), *engine]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", _ON_A_SMALL_DISK, "sh", str(small), size, *command],
        capture_output=True,
        text=True,
        timeout=200,
    )
    lines = done.stderr.splitlines()
    assert lines[-1] == (
        f"umstack: making the report in {small} (step {step}): No space left on device; "
        "the file system is full: make space, or choose another place"
    )
    status, *left = done.stdout.split()
    assert status == "1"
    assert "report.html" not in left
    assert not [name for name in left if name.startswith("part-")], (
        "parts written before are hidden or removed"
    )
    assert not list(small.iterdir()), "nothing is mounted outside"


# Prints the status of the report and the files that remain.
_ON_A_SMALL_DISK = """\
mount -t tmpfs -o size="$2" tmpfs "$1" || exit 9
cd "$1" && echo old > report.html && shift 2
"$@"
echo $?
find . -type f -printf '%f\\n'
"""


def test_a_journal_of_an_older_version_is_refused_or_read_as_far_as_it_goes(
    spark: Any, tmp_path: Path
) -> None:
    """The error names the missing columns with a hint; the columns that exist can be read."""
    table = messages()
    old = pa.schema([column for column in table.schema if column.name != "source"])
    with Journal(tmp_path / table.name, old) as journal:
        row = {"topic": "orders", "sequence_number": 7, "received_ns": 10**18, "payload": b"x"}
        journal.append(pa.RecordBatch.from_pylist([row] * 5, schema=old))
    spark.dataSource.register(UmstackDataSource)
    reader = spark.read.format("umstack")
    with pytest.raises(Exception, match=r"has no source: another version wrote it.*leave it out"):
        reader.load(str(tmp_path)).collect()
    rows = reader.schema("topic string, sequence_number bigint, offset bigint").load(str(tmp_path)).collect()
    assert [tuple(row) for row in rows] == [("orders", 7, offset) for offset in range(5)]


class _EndedQuery:
    """A query that has ended, as Spark shows it."""

    isActive = False  # noqa: N815

    def __init__(self, failure: str | None) -> None:
        self._failure = failure
        self.stops = 0

    def exception(self) -> Exception | None:
        return None if self._failure is None else StreamingQueryException(self._failure)

    def stop(self) -> None:
        self.stops += 1


def test_a_query_whose_source_starts_too_slowly_is_started_again() -> None:
    """Only for that failure, which precedes the first batch, and not forever."""
    slow = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back."

    def run(failures: list[str | None]) -> None:
        queries, left = list[_EndedQuery](), list(failures)

        def start() -> Any:
            queries.append(_EndedQuery(left.pop(0)))
            return queries[-1]

        ran.append(queries)
        run_query(
            start, lambda: starts.append(1), lambda one: wait_for_end(one, never, "the query", "see above")
        )

    ran, starts, never = list[list[_EndedQuery]](), list[int](), threading.Event()
    run([slow, slow, None])
    assert [one.stops for one in ran[0]] == [1, 1, 1]
    assert len(starts) == 1
    with pytest.raises(SystemFailure, match=r"the query ended: .*connect back"):
        run([slow] * 100)
    assert 3 < len(ran[1]) < 20
    with pytest.raises(SystemFailure, match="the query ended: disk full"):
        run(["disk full", None])
    assert [one.stops for one in ran[2]] == [1]
