"""A journal whose files somebody has changed: it is read as far as it is whole, or says what it has not; rows that are
given are rows that were written. A writer opens it, mends it and goes on, and then it is whole.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pyarrow as pa

from umstack.recorder.errors import JournalError
from umstack.recorder.journal import DATA_SUFFIX, INDEX_SUFFIX, Journal, JournalReader

INSTRUMENTED = ("umstack.recorder.journal",)
_SCHEMA = pa.schema([("number", pa.int64())])
_ROWS = 12
_FOLDER = Path(tempfile.mkdtemp())
"""Where tests/fuzz/run says, which takes it away: libFuzzer ends the process without Python's own end."""


def _batch(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], _SCHEMA)


def _written() -> dict[str, bytes]:
    """The files of a journal of several segments."""
    folder = _FOLDER / "written"
    with Journal(folder, _SCHEMA, segment_bytes=700) as journal:
        for first in range(0, _ROWS, 2):
            journal.append(_batch(first, 2))
    files = {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix in (DATA_SUFFIX, INDEX_SUFFIX)
    }
    shutil.rmtree(folder)
    return files


_FILES = _written()


def _changed(data: bytes, folder: Path) -> None:
    """Each four bytes change one file: a byte of it, its length, what it has, or whether it is there."""
    files = dict(_FILES)
    names = list(files)
    for at in range(0, len(data) - 3, 4):
        how, which, place, value = data[at : at + 4]
        name = names[which % len(names)]
        content = bytearray(files.get(name, b""))
        match how % 5:
            case 0 if content:
                content[(place + 256 * (how // 5)) % len(content)] ^= value or 1
            case 1:
                del content[len(content) * place // 256 :]
            case 2:
                content += data[at : at + place]
            case 3:
                files.pop(name, None)
                continue
            case _:
                content = bytearray(files.get(names[value % len(names)], b""))
        files[name] = bytes(content)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _rows(reader: JournalReader, start: int, end: int) -> list[int]:
    """The numbers read. A schema has no checksum: one that was changed into another valid one is told by its types."""
    numbers: list[int] = []
    try:
        for batch in reader.read(start, end):
            if batch.schema != _SCHEMA:
                break
            numbers += batch.column(0).to_pylist()
    except JournalError:
        pass
    return numbers


def _read(reader: JournalReader, start: int, end: int) -> None:
    numbers = _rows(reader, start, end)
    assert numbers == list(range(start, start + len(numbers))), numbers


def one_input(data: bytes) -> None:
    """Read it, then write to it."""
    folder = _FOLDER / "changed"
    folder.mkdir()
    try:
        _changed(data, folder)
        reader = JournalReader(folder)
        start, end = reader.start, reader.end
        _read(reader, start, end)
        reader.size_bytes()
        reader.offset_before_end(100)
        with Journal(folder, _SCHEMA, segment_bytes=700) as journal:
            offset = journal.append(_batch(journal.end, 3))
            assert _rows(JournalReader(folder), offset, journal.end) == list(range(offset, offset + 3))
    finally:
        shutil.rmtree(folder)
