"""Journal: offsets that can be read again, whatever becomes of the writer; retention; damage."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import struct
import zlib
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")

from tests.waiting import wait_for  # noqa: E402
from umstack.errors import SystemFailure  # noqa: E402
from umstack.recorder import Journal, JournalError, JournalFull, JournalReader, OffsetGone  # noqa: E402

SCHEMA = pa.schema([("number", pa.int64()), ("payload", pa.binary())])


def batch(first: int, count: int, size: int = 20) -> pa.RecordBatch:
    """Rows numbered from `first` on."""
    numbers = range(first, first + count)
    return pa.record_batch([list(numbers), [b"%d" % n + bytes(size) for n in numbers]], schema=SCHEMA)


def numbers(reader: JournalReader, start: int, end: int | None = None) -> list[int]:
    """The numbers of these rows."""
    return [n for found in reader.read(start, end) for n in found.column("number").to_pylist()]


def fill(directory: Path, *counts: int, **options: object) -> None:
    """Append batches of so many rows, numbered by offset."""
    with Journal(directory, SCHEMA, **options) as journal:  # type: ignore[arg-type]
        for count in counts:
            assert journal.append(batch(journal.end, count)) == journal.end - count


def append_many(journal: Journal) -> None:
    """More than any of the limits here lets in."""
    for _ in range(200):
        journal.append(batch(journal.end, 20))


def test_rows_keep_their_offsets(tmp_path: Path) -> None:
    """Append gives offsets, read gives the same rows for them, over segments and restarts."""
    fill(tmp_path, 10, 1, 300, 200, segment_bytes=4096)
    fill(tmp_path, 7, 90, segment_bytes=4096)
    reader = JournalReader(tmp_path)
    assert (reader.start, reader.end) == (0, 608)
    assert len(list(tmp_path.glob("*.arrows"))) > 2
    assert numbers(reader, 0) == list(range(608))
    for start, end in [(0, 1), (9, 11), (10, 11), (3, 511), (511, 512), (600, 608), (5, 5)]:
        assert numbers(reader, start, end) == list(range(start, end))


def test_an_offset_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Offsets that cannot be replayed are reported, not skipped."""
    reader = JournalReader(tmp_path / "journal")
    assert (reader.start, reader.end, numbers(reader, 0)) == (0, 0, [])
    fill(tmp_path / "journal", 10)
    for start, end in [(0, 11), (11, 12), (5, 4)]:
        with pytest.raises(OffsetGone):
            list(reader.read(start, end))


def test_a_segment_is_an_arrow_stream(tmp_path: Path) -> None:
    """Segment files are Arrow IPC, which others read without this library."""
    fill(tmp_path, 3, 4)
    (file,) = tmp_path.glob("*.arrows")
    with pa.ipc.open_stream(file.read_bytes()) as stream:
        assert stream.read_all().column("number").to_pylist() == list(range(7))


@pytest.mark.parametrize("suffix", [".arrows", ".index"])
def test_a_file_cut_at_any_byte_keeps_what_is_before(tmp_path: Path, suffix: str) -> None:
    """Wherever a kill cut the last segment, whole batches stay and appending goes on."""
    whole = tmp_path / "whole"
    fill(whole, 3, 2, 4)
    (data,) = whole.glob("*.arrows")
    (cut_file,) = whole.glob(f"*{suffix}")
    ends = []
    with data.open("rb") as file:
        pa.ipc.read_schema(file)
        for _ in range(3):
            pa.ipc.read_message(file)
            ends.append(file.tell())
    if suffix == ".index":
        ends = [32, 64, 96]
    rows = [0, 3, 5, 9]
    contents = {file.name: file.read_bytes() for file in (data, data.with_suffix(".index"))}
    for size in range(len(contents[cut_file.name]) + 1):
        directory = tmp_path / f"cut{size}"
        directory.mkdir()
        for name, content in contents.items():
            (directory / name).write_bytes(content[:size] if name == cut_file.name else content)
        kept = rows[sum(end <= size for end in ends)]
        with Journal(directory, SCHEMA) as journal:
            assert journal.end == kept, size
            assert journal.append(batch(kept, 2)) == kept
        assert numbers(JournalReader(directory), 0) == list(range(kept + 2)), size


def test_damage_inside_is_found(tmp_path: Path) -> None:
    """A flipped byte is an error that names the file, not a wrong row."""
    fill(tmp_path, 3, 2)
    fill(tmp_path, 4)
    first = min(tmp_path.glob("*.arrows"))
    content = bytearray(first.read_bytes())
    content[-40] ^= 1
    first.write_bytes(content)
    reader = JournalReader(tmp_path)
    assert numbers(reader, 5, 9) == list(range(5, 9))
    with pytest.raises(JournalError, match=first.name):
        list(reader.read(0, 9))


def test_an_index_record_that_follows_no_other_ends_the_segment(tmp_path: Path) -> None:
    """A whole record at the wrong place, or twice, is no batch."""
    fill(tmp_path, 3, 2, 4)
    (index,) = tmp_path.glob("*.index")
    first, second, third = (index.read_bytes()[at : at + 32] for at in (0, 32, 64))
    for records, end in ((first + third, 3), (first + first + second, 3), (second + third, 0)):
        index.write_bytes(records)
        assert JournalReader(tmp_path).end == end
        assert numbers(JournalReader(tmp_path), 0) == list(range(end))


def test_rows_behind_a_missing_segment_are_not_taken_for_those_before(tmp_path: Path) -> None:
    """Each returned row has the requested offset."""
    fill(tmp_path, *[100] * 9, segment_bytes=4096)
    for emptied in sorted(tmp_path.glob("*.index"))[1:-1]:
        emptied.write_bytes(b"")
        rows: list[int] = []
        with pytest.raises(OffsetGone):
            rows.extend(
                row for part in JournalReader(tmp_path).read(0, 900) for row in part["number"].to_pylist()
            )
        assert rows == list(range(len(rows)))


def test_a_damaged_schema_is_reported_like_a_damaged_batch(tmp_path: Path) -> None:
    """The error names the file."""
    fill(tmp_path, 3)
    (file,) = tmp_path.glob("*.arrows")
    content = file.read_bytes()
    for damaged in (bytes(100) + content[100:], content[:20] + b"\xff" * 40 + content[60:]):
        file.write_bytes(damaged)
        with pytest.raises(JournalError, match=file.name):
            numbers(JournalReader(tmp_path), 0)


@pytest.mark.parametrize(
    ("position", "length_bytes"), [(2**63, 10), (2**64 - 1, 2**32 - 1), (1, 2**32 - 1), (5 * 2**30, 10)]
)
def test_an_index_that_names_impossible_bytes_is_damage(
    tmp_path: Path, position: int, length_bytes: int
) -> None:
    """Positions and lengths of a hostile index are an error, and nothing is allocated for them."""
    fill(tmp_path, 3)
    (index,) = tmp_path.glob("*.index")
    fields = struct.pack("<QQIII", 0, position, length_bytes, 3, 0)
    index.write_bytes(fields + struct.pack("<I", zlib.crc32(fields)))
    with pytest.raises(JournalError, match="damaged"):
        numbers(JournalReader(tmp_path), 0)
    fill(tmp_path, 2)
    assert numbers(JournalReader(tmp_path), 0) == [0, 1], "the writer begins again"


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_segment_that_expands_is_refused(tmp_path: Path, compression: str) -> None:
    """A short segment of compressed zeros is refused instead of decompressed; the error names its file."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as stream:
        stream.write_batch(batch(0, 1, size=64 << 20))
    head = SCHEMA.serialize().to_pybytes()
    body = sink.getvalue().to_pybytes()[len(head) : -8]
    assert len(body) < 1 << 20
    (tmp_path / f"{0:020}.arrows").write_bytes(head + body)
    fields = struct.pack("<QQIII", 0, len(head), len(body), 1, zlib.crc32(body))
    (tmp_path / f"{0:020}.index").write_bytes(fields + struct.pack("<I", zlib.crc32(fields)))
    with pytest.raises(JournalError, match=rf"{0:020}\.arrows: the batch at byte {len(head)} has compressed"):
        numbers(JournalReader(tmp_path), 0)


def test_names_that_are_no_offsets_are_ignored(tmp_path: Path) -> None:
    """Files of other names do not end a reader."""
    fill(tmp_path, 3)
    for name in ("\u00b2\u00b3", "7", "\u0661" * 20, "-" + "1" * 19):
        (tmp_path / f"{name}.index").write_bytes(b"")
    assert numbers(JournalReader(tmp_path), 0) == [0, 1, 2]


def test_a_reader_follows_the_writer(tmp_path: Path) -> None:
    """Another process sees each batch once it was appended, over new segments."""
    reader = JournalReader(tmp_path)
    with Journal(tmp_path, SCHEMA, segment_bytes=2000) as journal:
        for _ in range(50):
            journal.append(batch(journal.end, 9))
            assert reader.end == journal.end
            assert numbers(reader, max(0, journal.end - 20)) == list(
                range(max(0, journal.end - 20), journal.end)
            )


def test_one_process_writes(tmp_path: Path) -> None:
    """A second writer is refused, until the first has gone."""
    with Journal(tmp_path, SCHEMA), pytest.raises(JournalError, match="another process"):
        Journal(tmp_path, SCHEMA)
    Journal(tmp_path, SCHEMA).close()


def test_truncate_removes_what_is_before(tmp_path: Path) -> None:
    """Whole segments go, the rest stays at its offsets, also after a restart."""
    fill(tmp_path, *[20] * 20, segment_bytes=2000)
    reader = JournalReader(tmp_path)
    reader.truncate(200)
    assert 0 < reader.start <= 200
    assert numbers(reader, reader.start) == list(range(reader.start, 400))
    second = sorted(int(path.stem) for path in tmp_path.glob("*.index"))[1]
    reader.truncate(second - 1)
    assert reader.start < second
    reader.truncate(second)
    assert reader.start == second
    reader.truncate(400)
    assert reader.end == 400
    fill(tmp_path, 5)
    assert numbers(reader, 400) == list(range(400, 405))


def test_an_empty_last_segment_keeps_its_offset(tmp_path: Path) -> None:
    """A writer that is killed before its first row behind removed segments leaves the offset of that row."""
    fill(tmp_path, *[20] * 20, segment_bytes=2000)
    last = sorted(tmp_path.glob("*.index"), key=lambda path: int(path.stem))[-1]
    JournalReader(tmp_path).truncate(400)
    last.write_bytes(b"")
    for _ in range(3):  # a writer that appends nothing
        with Journal(tmp_path, SCHEMA) as journal:
            assert journal.end == int(last.stem)
    fill(tmp_path, 5)
    assert JournalReader(tmp_path).end == int(last.stem) + 5


def test_the_newest_batch_is_read_however_few_bytes_are_asked_for(tmp_path: Path) -> None:
    """A window of bytes begins at a batch, and always includes the last one."""
    fill(tmp_path, 10, 20, 30)
    reader = JournalReader(tmp_path)
    last_bytes, two_bytes = reader.size_bytes(30), reader.size_bytes(10)
    asked = (0, last_bytes - 1, last_bytes, two_bytes - 1, two_bytes, 10 * two_bytes)
    assert [reader.offset_before_end(count) for count in asked] == [30, 30, 30, 30, 10, 0]


def test_the_size_is_bounded(tmp_path: Path) -> None:
    """With a size given the oldest segments make space, and it is never much exceeded."""
    with Journal(tmp_path, SCHEMA, max_bytes=40_000) as journal:
        for _ in range(200):
            journal.append(batch(journal.end, 20))
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 60_000
        assert journal.start > 0
        assert numbers(journal, journal.start) == list(range(journal.start, 4000))


def test_a_full_journal_can_refuse(tmp_path: Path) -> None:
    """A journal whose rows must not be lost refuses more until some are consumed."""
    with Journal(tmp_path, SCHEMA, max_bytes=40_000, when_full="refuse") as journal:
        with pytest.raises(JournalFull):
            append_many(journal)
        assert not journal.has_space
        full = journal.end
        assert numbers(journal, 0) == list(range(full))
        journal.truncate(full)
        assert journal.has_space
        assert journal.append(batch(full, 20)) == full


def test_a_full_disk_damages_nothing(tmp_path: Path) -> None:
    """When the disk is full, append raises an error and the journal is unchanged."""
    import resource

    with Journal(tmp_path, SCHEMA) as journal:
        journal.append(batch(0, 50))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        try:
            with pytest.raises(JournalError, match="File too large"):
                append_many(journal)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        end = journal.end
        assert numbers(JournalReader(tmp_path), 0) == list(range(end))
        journal.append(batch(end, 20))
    assert numbers(JournalReader(tmp_path), 0) == list(range(end + 20))


def test_a_full_disk_at_the_start_is_an_error_of_the_journal(tmp_path: Path) -> None:
    """The lock file cannot be written: the error names the journal, and the lock is free again."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(SystemFailure, match=f"journal {tmp_path}: File too large") as caught:
            Journal(tmp_path, SCHEMA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "ulimit -f" in str(caught.value.hint)
    with Journal(tmp_path, SCHEMA) as journal:
        journal.append(batch(0, 5))


def test_a_device_error_is_an_error_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Synchronizing and closing report it with the journal's name, and the lock is free again."""

    def fail(_file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = Journal(tmp_path, SCHEMA, fsync_seconds=1000)
    journal.append(batch(0, 5))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(SystemFailure, match=f"journal {tmp_path}: Input/output error"):
            journal.sync()
        with pytest.raises(SystemFailure, match=f"journal {tmp_path}: Input/output error"):
            journal.close()
    with Journal(tmp_path, SCHEMA) as again:
        assert again.end == 5


def _append_forever(directory: Path, acknowledged: int) -> None:
    with Journal(directory, SCHEMA, segment_bytes=20_000) as journal:
        while True:
            journal.append(batch(journal.end, 1 + journal.end % 30, 50))
            os.pwrite(acknowledged, journal.end.to_bytes(8, "little"), 0)


def test_a_killed_writer_loses_nothing_it_had_appended(tmp_path: Path) -> None:
    """Kill -9 again and again; every acknowledged row is there once, in order."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    luck = random.Random(seed)
    directory = tmp_path / "journal"
    file = os.open(tmp_path / "acknowledged", os.O_RDWR | os.O_CREAT)
    reader = JournalReader(directory)
    spawn = multiprocessing.get_context("fork")
    acknowledged = 0
    for _ in range(5):
        process = spawn.Process(target=_append_forever, args=(directory, file))
        process.start()
        goal = acknowledged + luck.randrange(500, 3000)
        wait_for(lambda goal=goal: int.from_bytes(os.pread(file, 8, 0), "little") > goal, "appending")
        process.kill()
        process.join()
        acknowledged = int.from_bytes(os.pread(file, 8, 0), "little")
        with Journal(directory, SCHEMA) as journal:
            assert journal.end >= acknowledged
        assert numbers(reader, 0) == list(range(reader.end))
    os.close(file)
