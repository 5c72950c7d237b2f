"""Recorder: messages of topics in a journal and as Parquet; kills, restarts, patterns, a full disk."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.dataset as ds  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from tests.interrupting import interruptions  # noqa: E402
from tests.unit.loopback import SHARED, configuration_file, open_context  # noqa: E402
from tests.waiting import SECONDS, wait_for  # noqa: E402
from umstack import Context, Source  # noqa: E402
from umstack.errors import OptionError  # noqa: E402
from umstack.recorder import Journal, JournalReader, RecorderError, tables  # noqa: E402
from umstack.recorder.groups import GroupSet  # noqa: E402
from umstack.recorder.parquet_parts import open_part_writers  # noqa: E402
from umstack.recorder.recorder import JOURNAL_NAME, Recorder, RecorderSettings  # noqa: E402
from umstack.telemetry.statistics_reader import read_statistics  # noqa: E402

QUICK_SOURCE: dict[str, Any] = {"flow_control": "min", "flow_control_receiver_timeout": 500}
GROUP: str = SHARED["transport_lbtrm_multicast_address"]
QUICK = RecorderSettings(part_seconds=0.2, interval_seconds=0.05)


def table(out: Path, name: str) -> Any:
    """Return a table as a Parquet reader returns it, ordered by offset."""
    files = sorted((out / name).glob("day=*/session=*/*.parquet"), key=lambda file: file.name)
    if not files:
        return pa.table({"payload": []})
    return pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])


def payloads(out: Path) -> list[bytes]:
    """Return every recorded message."""
    found: list[bytes] = table(out, "messages").column("payload").to_pylist()
    return found


def journalled(out: Path) -> int:
    """Return the number of messages ever written to the journal below `out`."""
    return JournalReader(out / JOURNAL_NAME / "messages").end


def record(recorder: Recorder, messages: int) -> None:
    """Step the recorder until `messages` are recorded."""
    wait_for(lambda: recorder.step() is not None and recorder.report.messages >= messages, "messages")


def connected(context: Context, topic: str, recorder: Recorder) -> Source:
    """Return a source that is connected to the recorder's receiver."""
    source = context.source(topic, flow_control="min")
    wait_for(lambda: recorder.step() is not None and source.is_connected, "the recorder's receiver")
    return source


def send_numbers(source: Source, recorder: Recorder) -> None:
    """Send the next ten numbers, one per message, and wait until the queue of the recorder's receiver has them."""
    (receiver,) = recorder._follower.receivers.values()
    first = receiver.stats()["messages_delivered"]
    source.send_many([b"%d" % number for number in range(first, first + 10)], flush=True)
    wait_for(lambda: receiver.stats()["messages_delivered"] == first + 10, "messages in the queue")


def test_messages_events_and_transports_are_tables(tmp_path: Path) -> None:
    """Parquet has every message by day and session, in order, with session events and counters."""
    sent = [b"message %d" % number for number in range(20_000)]
    with (
        open_context() as context,
        Recorder(context, ["orders"], out=tmp_path, settings=QUICK) as recorder,
    ):
        source = connected(context, "orders", recorder)
        sender = threading.Thread(target=lambda: source.send_many(sent, flush=True))
        sender.start()
        record(recorder, len(sent))
        sender.join()
        transport = source.transport
    report = recorder.report
    assert (report.messages, report.lost, report.topics) == (len(sent), 0, 1)
    rows = table(tmp_path, "messages")
    assert rows.column("payload").to_pylist() == sent
    assert set(rows.column("topic").to_pylist()) == {"orders"}
    nanoseconds, instants = rows.column("received_ns").to_pylist(), rows.column("received")
    assert instants.type == pa.timestamp("us", "UTC")
    assert instants.cast(pa.int64()).to_pylist() == [n // 1000 for n in nanoseconds]
    partitioned = ds.dataset(tmp_path / "messages", partitioning="hive").to_table()
    assert set(partitioned.column("session").to_pylist()) == {transport}
    kinds = table(tmp_path, "events").column("kind").to_pylist()
    assert kinds[0] == "beginning_of_session"
    counted = table(tmp_path, "transports")
    assert set(counted.column("transport").to_pylist()) == {transport}
    assert sum(counted.column("msgs_rcved").to_pylist()) > 0
    assert not list(tmp_path.rglob(".*.tmp"))


def test_the_journal_alone_can_be_replayed(tmp_path: Path) -> None:
    """With a journal and no Parquet, every message has an offset and is kept."""
    with (
        open_context() as context,
        Recorder(context, ["orders"], journal=tmp_path, settings=QUICK) as recorder,
    ):
        source = connected(context, "orders", recorder)
        source.send_many([b"%d" % n for n in range(1000)], flush=True)
        record(recorder, 1000)
    reader = JournalReader(tmp_path / "messages")
    assert (reader.start, reader.end) == (0, 1000)
    rows = [value for batch in reader.read(400, 600) for value in batch.column("payload").to_pylist()]
    assert rows == [b"%d" % n for n in range(400, 600)]


def test_topics_by_pattern(tmp_path: Path) -> None:
    """A regular expression selects the topics whose whole name it matches, including later topics."""
    with (
        open_context() as context,
        Recorder(context, ["market/.*", "news"], regex=True, journal=tmp_path, settings=QUICK) as recorder,
    ):
        early = context.source("market/a", flow_control="min")
        other = context.source("marketing", flow_control="none")
        wait_for(lambda: recorder.step() is not None and early.is_connected, "the existing topic")
        late = connected(context, "market/b", recorder)
        for source in (early, late, other):
            source.send(source.topic.encode(), flush=True)
        record(recorder, 2)
        assert set(context.topics()) >= {"market/a", "market/b", "marketing"}
        assert recorder.report.topics == 2
    found = [row for batch in JournalReader(tmp_path / "messages").read(0) for row in batch.to_pylist()]
    assert sorted((row["topic"], row["payload"]) for row in found) == [
        ("market/a", b"market/a"),
        ("market/b", b"market/b"),
    ]


@pytest.mark.parametrize("regex", [False, True])
@pytest.mark.parametrize(("groups", "recorded"), [((), {b"other", b"chosen"}), ((GROUP,), {b"chosen"})])
def test_sources_by_group(tmp_path: Path, groups: tuple[str, ...], recorded: set[bytes], regex: bool) -> None:
    """Only the sources of a topic in the given groups are recorded."""
    flow_control = "none" if groups else "min"  # a source that waits for receivers would wait forever
    with (
        open_context() as sending,
        sending.source("orders", flow_control=flow_control) as other,
        sending.source("orders", flow_control="min", **SHARED) as chosen,
        open_context() as context,
        Recorder(context, ["orders"], regex=regex, groups=groups, journal=tmp_path) as recorder,
    ):

        def are_found() -> bool:
            recorder.step()
            are_connected = chosen.is_connected and (bool(groups) or other.is_connected)
            return are_connected and context.stats()["context"]["tr_cache_entries"] == 2

        wait_for(are_found, "both sources")
        for source, payload in ((other, b"other"), (chosen, b"chosen")):
            source.send_many([payload] * 10, flush=True)
        record(recorder, 10 * len(recorded))
        joined = {reading["transport"] for reading in context.stats()["receiver_transports"]}
    assert joined == {source.transport for source in (other, chosen)[-len(recorded) :]}
    rows = [row for batch in JournalReader(tmp_path / "messages").read(0) for row in batch.to_pylist()]
    assert {row["payload"] for row in rows} == recorded


def test_groups_are_parsed_as_in_a_capture() -> None:
    """A group can be an address, a range, a network, or several of them."""
    groups = GroupSet.of(["239.1.1.1, 239.2.0.1-239.2.0.9", "239.3.0.0/16"])
    inside = ("239.1.1.1", "239.2.0.1", "239.2.0.9", "239.3.0.0", "239.3.255.255")
    outside = ("239.1.1.0", "239.1.1.2", "239.2.0.0", "239.2.0.10", "239.2.255.255", "239.4.0.0")
    assert [group in groups for group in inside + outside] == [True] * 5 + [False] * 6


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("nonsense", "not a group"),
        ("", "not a group"),
        ("239.1.1.1,", "not a group"),
        ("239.1.1.9-239.1.1.1", "above"),
        ("10.0.0.0/8", "not a multicast group"),
        ("0.0.0.0/0", "not a multicast group"),
    ],
)
def test_an_invalid_group_is_refused(tmp_path: Path, group: str, expected: str) -> None:
    """The error shows a valid group."""
    with open_context() as context, pytest.raises(OptionError, match=expected) as refused:
        Recorder(context, ["orders"], groups=[group], journal=tmp_path)
    assert "224.1.1.1-224.1.1.9" in (refused.value.hint or "")


def test_rates_are_counts_per_second() -> None:
    """Each interval has rates over the time that passed, even if the clock was set meanwhile."""
    intervals = tables.TransportIntervals(0)
    seconds = 1_000_000_000
    found = []
    for wall_ns, at_ns, messages, size in [
        (2 * seconds, 2 * seconds, 100, 5000),
        (302 * seconds, 2 * seconds + seconds // 2, 200, 5000),
        (1, 3 * seconds, 300, 6000),
    ]:
        reading = {"transport": "LBTRM:a", "lbm_msgs_rcved": messages, "bytes_rcved": size}
        found += intervals.rows([reading], wall_ns, at_ns).to_pylist()
    rates = [(row["messages_per_second"], row["bytes_per_second"]) for row in found]
    assert rates == [(50.0, 2500.0), (200.0, 0.0), (200.0, 2000.0)]


def test_a_journal_of_two_versions_becomes_parquet(tmp_path: Path) -> None:
    """Rows left in the journal by a version with fewer columns are written, and so are the following rows."""
    journals, out = tmp_path / "journals", tmp_path / "out"
    now = tables.transports().schema
    before = pa.schema([field for field in now if not field.name.endswith("_per_second")])
    for schema, transport in ((before, "LBTRM:old"), (now, "LBTRM:new")):
        row = {"time_ns": 1, "interval_ns": 1, "transport": transport}
        with Journal(journals / "transports", schema) as journal:
            journal.append(pa.RecordBatch.from_pylist([row] * 3, schema=schema))
    (writer,) = open_part_writers([tables.transports()], journals, out)
    while writer.write_next(1000, 1 << 20):
        pass
    files = sorted((out / "transports").rglob("*.parquet"), key=lambda file: file.name)
    read = [pq.read_table(file, partitioning=None).column("transport").to_pylist() for file in files]
    assert read == [["LBTRM:old"] * 3, ["LBTRM:new"] * 3]


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    """The error states the remedy: no output, no pattern, topics unknown without the cache."""
    with open_context() as context:
        with pytest.raises(OptionError):
            Recorder(context, ["orders"])
        with pytest.raises(OptionError, match="regular expression"):
            Recorder(context, ["("], regex=True, journal=tmp_path)
    with open_context(resolver_cache=0) as context, pytest.raises(OptionError, match="resolver_cache"):
        context.topics()


def test_a_full_journal_blocks_the_source(tmp_path: Path) -> None:
    """A bounded journal that refuses more rows loses nothing: the source waits until rows are released."""
    settings = RecorderSettings(journal_bytes=1 << 20, when_full="refuse", segment_bytes=1 << 18)
    sent = [b"%06d" % n + bytes(994) for n in range(30_000)]
    with (
        open_context() as context,
        Recorder(context, ["orders"], journal=tmp_path, settings=settings) as recorder,
    ):
        source = connected(context, "orders", recorder)
        sender = threading.Thread(target=lambda: source.send_many(sent, flush=True))
        sender.start()
        reader = JournalReader(tmp_path / "messages")
        found: list[bytes] = []

        def drain() -> bool:
            recorder.step()
            if recorder.report.paused_seconds > 0 and not recorder._messages.has_space:
                end = reader.end
                found.extend(
                    v[:6] for b in reader.read(len(found), end) for v in b.column("payload").to_pylist()
                )
                reader.truncate(end)
            return recorder.report.messages >= len(sent)

        wait_for(drain, "all messages", 40)
        sender.join()
        found.extend(v[:6] for b in reader.read(len(found)) for v in b.column("payload").to_pylist())
    assert recorder.report.paused_seconds > 0
    assert recorder.report.lost == 0
    assert found == [message[:6] for message in sent]


# ---- killed, restarted, full ----


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration with the addresses of this test process."""
    return configuration_file(tmp_path)


@pytest.fixture
def start(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Start `umstack record`; a process still running at the end is killed."""
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    running: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "umstack", "record", "-i", "lo", "-c", str(config), *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def recording(process: subprocess.Popen[str]) -> None:
    """Wait until the process has its receivers."""

    def is_ready() -> bool:
        assert process.poll() is None, process.communicate()
        return any(report["receivers"] for report in read_statistics(process.pid))

    wait_for(is_ready, "the recorder", 6 * SECONDS)


def test_a_killed_recorder_leaves_whole_files_and_resumes(start: Callable[..., Any], tmp_path: Path) -> None:
    """After kill -9 every file is whole, and each journalled message exists once, in order."""
    out = tmp_path / "out"
    arguments = ("orders", "--out", str(out), "--part-seconds", "0.1", "--part-rows", "2000", "--json")
    sent = 0
    with open_context() as context, context.source("orders", **QUICK_SOURCE) as source:
        for run in range(3):
            process = start(*arguments)
            source.wait_connected(timeout=6 * SECONDS)
            source.send_many([b"%d" % n for n in range(sent, sent + 10_000)], flush=True)
            sent += 10_000

            goal = (run + 1) * 2000
            wait_for(lambda goal=goal: journalled(out) >= goal, "messages in the journal")
            process.kill()
            process.wait()
            wait_for(lambda: not source.is_connected, "the receiver's end", 4 * SECONDS)
            for file in out.rglob("*.parquet"):
                pq.read_table(file, partitioning=None)
        process = start(*arguments)
        source.wait_connected(timeout=6 * SECONDS)
        source.send_many([b"last"], flush=True)
        wait_for(lambda: b"last" in payloads(out), "the last message", 2 * SECONDS)
        process.terminate()
        output, errors = process.communicate(timeout=20)
        assert process.returncode == 0, errors
        assert json.loads(output)["ok"]
    found = payloads(out)
    assert found[-1] == b"last"
    recorded = [int(payload) for payload in found[:-1]]
    assert len(recorded) >= 3000
    assert recorded == sorted(set(recorded)), "no duplicates, in order"
    assert not list(out.rglob(".part-*"))


def events(journal: Path) -> list[dict[str, Any]]:
    """Return the events in a journal."""
    return [row for batch in JournalReader(journal / "events").read(0) for row in batch.to_pylist()]


def rows_of(journal: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a journal."""
    return [row for batch in JournalReader(journal / name).read(0) for row in batch.to_pylist()]


def send_until_journalled(source: Source, journal: Path) -> None:
    """Send until a recorder has one more message: without flow control nothing holds the source back."""
    before = JournalReader(journal / "messages").end

    def journalled() -> bool:
        source.send(b"heard", flush=True)
        return JournalReader(journal / "messages").end > before

    wait_for(journalled, "a message in the journal", 6 * SECONDS)


def check_gap(journal: Path) -> int:
    """Assert that the single gap event covers exactly the missing messages; return their number."""
    rows = rows_of(journal, "messages")
    recorded = {row["sequence_number"] for row in rows}
    missing = sorted(set(range(min(recorded), max(recorded) + 1)) - recorded)
    [gap] = [row for row in rows_of(journal, "events") if row["kind"] == "recorder_gap"]
    assert (gap["topic"], gap["source"]) == ("orders", rows[0]["source"])
    assert missing == list(range(gap["first_sequence_number"], gap["sequence_number"] + 1))
    assert gap["lost"] == len(missing)
    return len(missing)


def test_messages_between_a_kill_and_a_restart_are_reported(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """The second recorder compares the stream with the journal and reports the loss as an event, a log line
    and a count.
    """
    journal = tmp_path / "journal"
    arguments = ("orders", "--journal", str(journal), "--json")
    with open_context() as context, context.source("orders", flow_control="none") as source:
        process = start(*arguments)
        send_until_journalled(source, journal)
        process.kill()
        process.communicate()
        source.send_many([b"missed"] * 77, flush=True)
        process = start(*arguments)
        send_until_journalled(source, journal)
        process.terminate()
        output, errors = process.communicate(timeout=20)
        assert process.returncode == 0, errors
    missed = check_gap(journal)
    assert missed >= 77
    assert json.loads(output)["missed"] == missed
    assert f"umstack: {missed:,} messages of 'orders'" in errors
    assert "while no recorder ran" in errors


def test_each_gap_is_one_event(tmp_path: Path) -> None:
    """Messages have several fragments; a second recorder missed nothing, a third starts after a gap, and a
    fourth follows.
    """
    settings = RecorderSettings(interval_seconds=1000)
    gaps: list[int] = []

    def record_for_a_while(*, fragments: bool) -> None:
        with (
            open_context() as context,
            Recorder(
                context,
                ["orders"],
                journal=tmp_path,
                settings=settings,
                on_gap=lambda gap: gaps.append(gap.lost),
            ) as recorder,
        ):
            sent = 0
            while recorder.report.messages < 3:
                # Messages sent before the receiver exists are a gap; only one test wants that.
                if not fragments or (recorder.report.events and sent == recorder.report.messages):
                    source.send(bytes(4000) if fragments else b"small", flush=True)
                    sent += 1
                recorder.step()
            # Messages still in flight would be a gap of the next recorder.
            quiet_since, recorded = time.monotonic(), recorder.report.messages
            while time.monotonic() - quiet_since < 0.1:
                recorder.step()
                if recorder.report.messages != recorded:
                    quiet_since, recorded = time.monotonic(), recorder.report.messages

    with open_context() as sender, sender.source("orders", flow_control="none") as source:
        source.send(b"first", flush=True)
        record_for_a_while(fragments=False)
        record_for_a_while(fragments=True)
        assert gaps == []
        source.send_many([b"unheard"] * 3, flush=True)
        record_for_a_while(fragments=True)
        assert gaps == [3]
        record_for_a_while(fragments=True)
    assert gaps == [3]
    assert gaps_of(tmp_path) == [3]


def test_messages_that_late_join_brings_again_are_no_gap(tmp_path: Path) -> None:
    """A recorder that starts again gets the retained messages once more."""
    settings = RecorderSettings(interval_seconds=1000)
    with open_context() as sender, sender.source("orders", late_join=1) as source:
        source.send_many([b"retained"] * 3, flush=True)
        for _ in range(2):
            with (
                open_context() as context,
                Recorder(context, ["orders"], journal=tmp_path, settings=settings) as recorder,
            ):
                while recorder.report.messages < 3:
                    recorder.step()
    assert gaps_of(tmp_path) == []
    assert [row["sequence_number"] for row in rows_of(tmp_path, "messages")] == [0, 1, 2, 0, 1, 2]


def gaps_of(journal: Path) -> list[int]:
    """Return the sizes of the recorded gaps."""
    return [row["lost"] for row in rows_of(journal, "events") if row["kind"] == "recorder_gap"]


def test_an_interrupted_recording_has_no_gap(tmp_path: Path) -> None:
    """At whichever point of a step an interrupt arrives, the recorded messages are the first ones, once each."""
    steps = (
        Recorder._step,
        Recorder._take,
        Recorder._gather,
        Recorder._flush,
        Journal.append,
        Journal._write,
    )
    settings = RecorderSettings(interval_seconds=1000)
    for number, interrupted in enumerate(interruptions(*steps, lines_min=40)):
        journal = tmp_path / str(number)
        with (
            open_context() as context,
            Recorder(context, ["orders"], journal=journal, settings=settings) as recorder,
        ):
            source = connected(context, "orders", recorder)
            with interrupted:
                send_numbers(source, recorder)
                recorder.step()
                send_numbers(source, recorder)
                recorder.step()
                recorder._gathered_at = 0.0
                recorder.step()
            send_numbers(source, recorder)
        rows = [row for batch in JournalReader(journal / "messages").read(0) for row in batch.to_pylist()]
        assert [row["payload"] for row in rows] == [b"%d" % n for n in range(len(rows))], f"line {number + 1}"


def test_a_range_interrupted_between_its_files_is_rewritten(tmp_path: Path) -> None:
    """If the recorder is killed after the first file of a range, a restart makes the same files."""
    with open_context() as context:
        settings = RecorderSettings(part_seconds=1000)
        with Recorder(context, ["a", "b"], out=tmp_path, settings=settings) as recorder:
            sources = [connected(context, topic, recorder) for topic in ("a", "b")]
            for done, source in enumerate(sources, 1):
                source.send_many([source.topic.encode() * 10] * 50, flush=True)
                record(recorder, 50 * done)
            progress = (tmp_path / JOURNAL_NAME / "parquet-progress.json").read_bytes()
            recorder._parts._forget = False  # type: ignore[union-attr]
        whole = sorted(payloads(tmp_path))
        assert len(whole) == 100
        files = sorted((tmp_path / "messages").rglob("*.parquet"))
        assert len(files) == len({source.transport for source in sources})
        (tmp_path / JOURNAL_NAME / "parquet-progress.json").write_bytes(progress)
        files[-1].rename(files[-1].with_name(f".{files[-1].name}.tmp"))
        smaller = RecorderSettings(part_seconds=1000, part_rows=30)
        with Recorder(context, ["c"], out=tmp_path, settings=smaller):
            pass
    assert sorted(payloads(tmp_path)) == whole
    assert sorted((tmp_path / "messages").rglob("*.parquet")) == files


def events_batch(first: int, count: int) -> Any:
    """Rows of events whose first column counts."""
    schema = tables.events().schema
    rows = []
    for number in range(first, first + count):
        row = {name: 0 if pa.types.is_integer(schema.field(name).type) else None for name in schema.names}
        strings = {name: "x" for name in schema.names if pa.types.is_string(schema.field(name).type)}
        rows.append(row | strings | {tables.events().time_column: number})
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def test_a_journal_cut_by_a_crash_loses_no_later_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Parquet has more rows than the journal kept: rows that follow are written, under names of their own."""
    table = tables.events()
    directory = tmp_path / "journals"
    with Journal(directory / table.name, table.schema) as journal:
        for first in range(0, 3000, 100):
            journal.append(events_batch(first, 100))
    [writer] = open_part_writers((table,), directory, tmp_path / "out")
    while writer.write_next(1000, 1 << 30):
        pass
    index = next((directory / table.name).glob("*.index"))
    os.truncate(index, index.stat().st_size // 30 * 20)  # 2,000 rows were on the disk
    for first, count in ((10_000, 1500), (20_000, 100)):
        with Journal(directory / table.name, table.schema) as journal:
            [writer] = open_part_writers((table,), directory, tmp_path / "out")
            journal.append(events_batch(first, count))
            while writer.write_next(1000, 1 << 30):
                pass
            writer.forget_written()
    found = ds.dataset(tmp_path / "out", format="parquet", partitioning=None).to_table()
    times = sorted(found.column(table.time_column).to_pylist())
    assert times == [*range(3000), *range(10_000, 11_500), *range(20_000, 20_100)]
    assert len([one for one in caplog.records if "part of the journal was lost" in one.message]) == 1


def test_progress_covers_only_rows_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is synced before progress is stored, also if the journal is otherwise never synced."""
    table = tables.events()
    directory = tmp_path / "journals"
    with Journal(directory / table.name, table.schema) as journal:
        journal.append(events_batch(0, 10))
    [writer] = open_part_writers((table,), directory, tmp_path / "out")
    order: list[str] = []
    sync, save = writer._reader.sync_before, type(writer._progress).save

    def synced(_reader: JournalReader, before: int) -> None:
        order.append(f"sync {before}")
        sync(before)

    def saved(progress: Any) -> None:
        order.append("progress")
        save(progress)

    monkeypatch.setattr(JournalReader, "sync_before", synced)
    monkeypatch.setattr(type(writer._progress), "save", saved)
    assert writer.write_next(1000, 1 << 30) == 10
    assert order == ["sync 10", "progress"]


def test_a_full_disk_is_reported_and_damages_nothing(tmp_path: Path) -> None:
    """A full disk causes a clear error, and the existing files are whole."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open_context() as context:
        recorder = Recorder(context, ["orders"], out=tmp_path, settings=QUICK)
        source = connected(context, "orders", recorder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            source.send_many([os.urandom(1000) for _ in range(1000)], flush=True)
            with pytest.raises(RecorderError, match="File too large"):
                record(recorder, 1000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
            recorder.close()
    for file in tmp_path.rglob("*.parquet"):
        pq.read_table(file, partitioning=None)
    assert not list(tmp_path.rglob(".part-*"))


def test_the_command_ends_after_a_count(start: Callable[..., Any], tmp_path: Path) -> None:
    """CLI rule: --count ends the command with status 0 and one JSON object."""
    process = start("orders", "--journal", str(tmp_path / "journal"), "--count", "500", "--json")
    recording(process)
    with open_context() as context, context.source("orders", flow_control="min") as source:
        source.wait_connected(timeout=SECONDS)
        source.send_many([b"x"] * 500, flush=True)
        output, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    summary = json.loads(output)
    assert (summary["messages"], summary["journal_start"], summary["journal_end"]) == (500, 0, 500)


def test_the_command_accepts_groups(start: Callable[..., Any], tmp_path: Path) -> None:
    """CLI rule: --group selects sources of a topic; an invalid one ends the command with a hint."""
    journal = tmp_path / "journal"
    process = start("orders", "--group", f"239.0.0.1,{GROUP}", "--journal", str(journal), "--count", "500")
    recording(process)
    with (
        open_context() as context,
        context.source("orders", flow_control="none") as other,
        context.source("orders", flow_control="min", **SHARED) as chosen,
    ):
        chosen.wait_connected(timeout=SECONDS)
        for source, said in ((other, b"other"), (chosen, b"chosen")):
            source.send_many([said] * 500, flush=True)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    rows = [row for batch in JournalReader(journal / "messages").read(0) for row in batch.to_pylist()]
    assert [row["payload"] for row in rows] == [b"chosen"] * 500
    process = start("orders", "--group", "10.1.1.1", "--journal", str(tmp_path / "none"))
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "10.1.1.1 is not a multicast group" in errors
    assert "224.1.1.1-224.1.1.9" in errors
