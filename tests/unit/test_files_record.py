"""File records: every one of them survives the wire, and nothing that is none gets past the decoder."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umstack.files import Manifest, ManifestEntry, RecordError
from umstack.files.record import (
    CHUNK_HEADER_BYTES,
    HEADER,
    MAGIC,
    VERSION,
    Chunk,
    Directory,
    FileAbandoned,
    FileBegin,
    FileEnd,
    Kind,
    Link,
    PackedRecord,
    TreeBegin,
    TreeEnd,
    decode_body,
    decode_header,
    encode,
    write_chunk_header,
)

ENTRIES = (
    ManifestEntry("directory", b"d", 0o755),
    ManifestEntry("file", b"d/f", 0o644, 3, b"\1" * 32),
    ManifestEntry("link", b"l", 0o777, target=b"d/f"),
)


def digest(*entries: ManifestEntry) -> bytes:
    """The digest of a tree."""
    manifest = Manifest()
    for entry in entries:
        manifest.add(entry)
    return manifest.sha256


def test_the_digest_of_a_tree_covers_all_its_facts() -> None:
    """As umstack/files/manifest.py lays it out, byte by byte: who writes another receiver gets the same."""
    expected = (
        struct.pack(">BIH", 2, 0o755, 1) + b"d"
        + struct.pack(">BIH", 4, 0o644, 3) + b"d/f" + struct.pack(">Q", 3) + b"\1" * 32
        + struct.pack(">BIH", 3, 0o777, 1) + b"l" + b"d/f"
    )  # fmt: skip
    assert digest(*ENTRIES) == hashlib.sha256(expected).digest()


U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)
DIGESTS = st.binary(min_size=32, max_size=32)
PATHS = st.binary(max_size=300)
RECORDS = st.one_of(
    st.just(TreeBegin()),
    st.builds(Directory, PATHS, U32, TIMES),
    st.builds(Link, PATHS, PATHS),
    st.builds(FileBegin, PATHS, U64, U32, TIMES),
    st.builds(FileEnd, DIGESTS),
    st.builds(FileAbandoned, st.text(st.characters(exclude_categories=["Cs"]), max_size=200)),
    st.builds(TreeEnd, U64, U64, U64, U64, DIGESTS),
)


@given(U64, U32, RECORDS)
def test_a_record_survives_the_wire(transfer: int, entry: int, record: PackedRecord) -> None:
    """Decoding returns the encoded header and body."""
    message = memoryview(encode(transfer, entry, record))
    assert decode_header(message) == (transfer, entry, record.KIND)
    assert decode_body(record.KIND, message) == record


@given(U64, U32, U64, st.binary(max_size=2000))
def test_a_chunk_survives_the_wire(transfer: int, entry: int, offset: int, data: bytes) -> None:
    """A chunk is packed next to its data and decoded without a copy."""
    message = bytearray(CHUNK_HEADER_BYTES) + data
    write_chunk_header(memoryview(message), transfer, entry, offset)
    view = memoryview(message)
    assert decode_header(view) == (transfer, entry, Kind.CHUNK)
    chunk = decode_body(Kind.CHUNK, view)
    assert isinstance(chunk, Chunk)
    assert (chunk.offset, bytes(chunk.data), chunk.data.obj) == (offset, data, message)


@given(st.binary(max_size=200))
def test_noise_is_no_record(noise: bytes) -> None:
    """Whatever comes, the decoder gives a record or a RecordError."""
    message = memoryview(noise)
    try:
        _, _, kind = decode_header(message)
        decode_body(kind, message)
    except RecordError:
        pass


@given(st.integers(0, 255), st.binary(max_size=100))
def test_a_noisy_body_is_no_record(kind: int, body: bytes) -> None:
    """The same with a header that is right, so that every body's decoder is reached."""
    message = memoryview(HEADER.pack(MAGIC, VERSION, kind, 1, 2) + body)
    try:
        record = decode_body(kind, message)
    except RecordError:
        return
    assert kind == record.KIND


@pytest.mark.parametrize("record", [FileBegin(b"a", 1, 2, 3), FileEnd(b"d" * 32), Directory(b"d", 1, 2)])
def test_a_truncated_record_is_refused(record: PackedRecord) -> None:
    """A record cut anywhere before its variable part is no record."""
    whole = encode(1, 1, record)
    fixed = len(whole) - len(getattr(record, "path", b""))
    for length in range(fixed):
        with pytest.raises(RecordError):
            decode_body(decode_header(memoryview(whole[:length]))[2], memoryview(whole[:length]))


def test_another_version_is_named() -> None:
    """A record of a later version is refused by number."""
    later = struct.pack(">HBBIQ", MAGIC, VERSION + 1, Kind.CHUNK, 1, 1)
    with pytest.raises(RecordError, match=f"version {VERSION + 1}"):
        decode_header(memoryview(later))


def test_the_layout_is_the_documented_one() -> None:
    """docs/file-transfer.md: magic, version, kind, entry, transfer, body, big endian."""
    message = encode(0x0102030405060708, 0x0A0B0C0D, Link(b"a", b"bc"))
    assert message.hex() == "554601030a0b0c0d01020304050607080001616263"
