"""Recordings of a lossy network: the tables contain the transports' repairs and the lost messages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from tests.netns.contexts import Member, members
from tests.netns.endpoints import QUICK_SOURCE
from tests.waiting import wait_for
from umstack import Source
from umstack.lab import Lab
from umstack.recorder.journal import JournalReader
from umstack.recorder.recorder import Recorder, RecorderSettings

MakeLab = Callable[..., Lab]

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 20_000
SIZE = 1000
COUNTED = (
    *("msgs_rcved", "lost", "naks_sent", "nak_pckts_sent", "rxs_rcved", "duplicate_data", "out_of_order"),
    *("unrecovered_txw", "unrecovered_tmo", "lbm_msgs_rcved", "recovered"),
)


def table(out: Path, name: str) -> pa.Table:
    """Return a table of the Parquet files, in the order of recording."""
    files = sorted((out / name).glob("day=*/session=*/*.parquet"), key=lambda file: file.name)
    return pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])


def column(rows: pa.Table, name: str) -> list[Any]:
    """Return the values of a column without nulls."""
    return [value for value in rows.column(name).to_pylist() if value is not None]


def rows_of(journal: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a journal."""
    return [row for batch in JournalReader(journal / name).read(0) for row in batch.to_pylist()]


def recorded(journal: Path) -> int:
    """Return the number of messages in a journal."""
    return JournalReader(journal / "messages").end


def lost(journal: Path) -> list[int]:
    """Return the sequence numbers of the loss events, one per event."""
    rows = [row for row in rows_of(journal, "events") if row["lost"]]
    assert {row["kind"] for row in rows} <= {"unrecoverable_loss"}
    return [row["sequence_number"] for row in rows]


def send(source: Source, count: int) -> None:
    """Send `count` numbered messages, each in its own datagram."""
    source.send_many([b"%08d" % number + bytes(SIZE - 8) for number in range(count)], flush=True)


def repaired(publisher: Member, subscriber: Member) -> bool:
    """Return true once nothing is missing and every NAK has been answered."""
    (sent,) = publisher.context.stats()["source_transports"]
    (received,) = subscriber.context.stats()["receiver_transports"]
    return bool(received["loss_map_entries"] == 0 and sent["naks_rcved"] == received["naks_sent"])


def test_what_a_transport_had_to_repair_is_recorded(make_lab: MakeLab, tmp_path: Path) -> None:
    """NAKs, repairs, duplicates and rates by interval add up to the context's counters."""
    lab = make_lab(hosts=2)
    settings = RecorderSettings(interval_seconds=0.1, part_seconds=0.5)
    with members(*lab.hosts) as (publisher, subscriber):
        recorder = subscriber.host.call(
            lambda: Recorder(subscriber.context, ["orders"], out=tmp_path, settings=settings)
        )
        with recorder:
            source = publisher.source("orders", **QUICK_SOURCE)
            wait_for(lambda: recorder.step() is not None and source.is_connected, "the recorder")
            lab.port(1).set(loss=0.03, duplicate=0.02)
            four_intervals = time.monotonic() + 4 * settings.interval_seconds
            sending = threading.Thread(target=send, args=(source, MESSAGES))
            sending.start()
            wait_for(lambda: recorder.step() is not None and recorder.report.messages >= MESSAGES, "messages")
            sending.join()
            wait_for(lambda: repaired(publisher, subscriber), "repairs")
            wait_for(
                lambda: recorder.step() is not None and time.monotonic() > four_intervals, "four intervals"
            )
            lab.port(1).set(loss=0.0, duplicate=0.0)
            source.close()
            (counters,) = subscriber.context.stats()["receiver_transports"]
    rows = table(tmp_path, "transports")
    assert len(rows) > 1, "several intervals"
    assert {name: sum(column(rows, name)) for name in COUNTED} == {name: counters[name] for name in COUNTED}
    assert recorder.report.lost == 0
    dropped, duplicated = lab.port(1).counters().dropped, lab.port(1).counters().duplicated
    assert dropped > MESSAGES * 0.02
    assert duplicated > MESSAGES * 0.01
    assert sum(column(rows, "lost")) >= dropped * 0.8
    assert sum(column(rows, "naks_sent")) > 0
    assert 0 < sum(column(rows, "recovered")) <= sum(column(rows, "lost"))
    assert sum(column(rows, "rxs_rcved")) > 0
    assert sum(column(rows, "duplicate_data")) >= duplicated * 0.8
    p50, p99 = (column(rows, f"recovery_{percentile}_ms")[-1] for percentile in ("p50", "p99"))
    assert 0 < p50 <= p99
    for rate, counter in (("messages_per_second", "lbm_msgs_rcved"), ("bytes_per_second", "bytes_rcved")):
        grown = [
            per_second * interval / 1e9
            for per_second, interval in zip(
                rows.column(rate).to_pylist(), rows.column("interval_ns").to_pylist(), strict=True
            )
        ]
        assert grown == pytest.approx(rows.column(counter).to_pylist())


def test_what_is_lost_for_good_is_recorded_and_said(make_lab: MakeLab, tmp_path: Path) -> None:
    """If no NAK gets through, each lost message is in an event, and the status is then 1."""
    lab = make_lab(hosts=2)
    journal, count = tmp_path / "journal", 2000
    command = [sys.executable, "-m", "umstack", "record", "orders", "--journal", str(journal), "--json"]
    command += ["-i", "eth0", "-o", "receiver.transport_lbtrm_nak_generation_interval=200"]
    command += ["-o", "receiver.delivery_control_loss_check_interval=50"]
    with members(lab.hosts[0]) as (publisher,):
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        recorder = lab.hosts[1].run(command, cwd=ROOT, **pipes)
        source = publisher.source("orders", **{**QUICK_SOURCE, "flow_control": "none"})
        wait_for(lambda: (journal / "messages").exists(), "the recorder")
        lab.await_join(source.transport.split(":")[4], 1)
        send(source, 1)  # losses before the first received message cannot be detected
        wait_for(lambda: recorded(journal) == 1, "the first message")
        lab.port(1, "from_host").set(block=True, unicast=True)
        lab.port(1).set(loss=0.03)
        send(source, count - 1)
        wait_for(lambda: recorded(journal) + len(lost(journal)) >= count, "word of every message")
        recorder.send_signal(signal.SIGTERM)
        said, complained = recorder.communicate(timeout=20)
    numbers = lost(journal)
    assert recorder.returncode == 1, complained
    report = json.loads(said)
    assert (report["ok"], report["messages"], report["lost"]) == (False, count - len(numbers), len(numbers))
    assert len(numbers) > count * 0.01
    assert len(set(numbers)) == len(numbers)
    (transport,) = {row["transport"] for row in rows_of(journal, "transports")}
    assert transport == source.transport
    given_up = sum(row["unrecovered_tmo"] + row["unrecovered_txw"] for row in rows_of(journal, "transports"))
    assert 0 <= given_up - len(numbers) <= 5, (
        "one datagram per message, and a few that only carry topic sequence numbers"
    )
