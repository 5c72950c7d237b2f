"""A journal whose files were changed: it is read as far as it is whole, or its errors name the missing rows, and all
rows read are rows that were written. A writer opens it, repairs it and continues, and then it is whole.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from umstack.recorder.errors import JournalError
from umstack.recorder.journal import _ENTRY_BYTES, DATA_SUFFIX, INDEX_SUFFIX, Journal, JournalReader, _Entry

INSTRUMENTED = ("umstack.recorder.journal",)
_SCHEMA = pa.schema([("number", pa.int64())])
_ROWS = 12
_FORGING = 160
"""Operations from this number on forge an entry of an index instead of replacing a file."""
_FOLDER = Path(tempfile.mkdtemp())
"""In the temporary directory of tests/fuzz/run, which removes it: libFuzzer exits without Python's cleanup."""


def _batch(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], _SCHEMA)


def _written() -> dict[str, bytes]:
    """Return the files of a journal of several segments."""
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


def _forge(index: bytearray, place: int, value: int) -> None:
    """Give an entry a position, length or row count that no file has, with a valid checksum, as an attacker does."""
    at = place % (len(index) // _ENTRY_BYTES) * _ENTRY_BYTES
    entry = _Entry.unpacked(bytes(index[at : at + _ENTRY_BYTES]))
    if entry is None:
        return
    match value % 3:
        case 0:
            entry = replace(entry, position=(1 << 63) + value)
        case 1:
            entry = replace(entry, length_bytes=(1 << 32) - 1 - value)
        case _:
            entry = replace(entry, row_count=(1 << 32) - 1 - value)
    index[at : at + _ENTRY_BYTES] = entry.packed()


def _changed(data: bytes, folder: Path) -> None:
    """Write the files, changed: each four bytes change a byte, the length or the content of one file, or remove it."""
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
            case _ if how >= _FORGING and name.endswith(INDEX_SUFFIX) and len(content) >= _ENTRY_BYTES:
                _forge(content, place, value)
            case _:
                content = bytearray(files.get(names[value % len(names)], b""))
        files[name] = bytes(content)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _rows(reader: JournalReader, start: int, end: int) -> list[int]:
    """Return the numbers read. A schema has no checksum: if it was changed to another valid one, its types differ."""
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
    """Read the changed journal, then write to it."""
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
