"""Captures on an object store: a local server of Amazon's protocol is used like any other store."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("polars")
pytest.importorskip("moto")

from tests.unit.object_store import made_bucket, running_store
from umstack.capture import CaptureError, CapturePorts, Split, decode
from umstack.capture.generate import Traffic, generate
from umstack.capture.reading import container, remote
from umstack.capture.reading.capture_files import capture_files, copies, total_bytes
from umstack.capture.reading.ranges import joined, range_count, walked_range
from umstack.capture.reading.remote import shown
from umstack.capture.reading.split import walk
from umstack.cli import monitor, pipeline
from umstack.facts.facts import facts_of
from umstack.facts.points import short_names
from umstack.pipeline.upload import default_work_folder, is_store
from umstack.report import make_report
from umstack.report.errors import ReportError


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Run a store; yield the query part of a URI that reaches it."""
    with running_store() as query:
        yield query


@pytest.fixture
def bucket(store: str, tmp_path: Path) -> tuple[list[Path], str]:
    """Return two local captures, and the URI of a folder with the same captures."""
    plain = generate(tmp_path / "switch-0001.pcap", 3000, Traffic(seed=1, loss=0.01)).path
    other = generate(tmp_path / "other.pcap", 1000, Traffic(seed=2, sessions=2)).path
    packed = tmp_path / "switch-0002.pcap.gz"
    packed.write_bytes(gzip.compress(other.read_bytes(), 1))
    filesystem = made_bucket("captures", store)
    for file in (plain, packed):
        with filesystem.open_output_stream(f"captures/today/{file.name}", compression=None) as stream:
            stream.write(file.read_bytes())
    with filesystem.open_output_stream("captures/today/notes.txt") as stream:
        stream.write(b"no capture")
    return [plain, packed], f"s3://captures/today?{store}"


def test_facts_of_a_store_equal_those_of_files(bucket: tuple[list[Path], str]) -> None:
    """A folder of a store is listed, and its captures, plain and compressed, are read as a stream."""
    local, uri = bucket
    files = capture_files([uri])
    assert [shown(file) for file in files] == [f"s3://captures/today/{path.name}" for path in local]
    assert total_bytes(files) == sum(path.stat().st_size for path in local)
    assert copies(files) == {}
    facts = [facts_of(files), facts_of([str(path) for path in local])]
    of_store, of_files = (one.renamed(short_names(one.points()), {}) for one in facts)
    assert of_store.equals(of_files)
    query = uri.partition("?")[2]
    assert capture_files([f"s3://captures/today/*.gz?{query}"]) == files[1:]
    assert capture_files([files[0]]) == files[:1]


def test_rows_contain_the_file_name_without_credentials(bucket: tuple[list[Path], str]) -> None:
    """Keys and endpoints do not appear in columns, and therefore not in reports."""
    _, uri = bucket
    batch = next(decode(capture_files([uri])[0]))
    assert set(batch.column("capture_file").to_pylist()) == {"s3://captures/today/switch-0001.pcap"}
    assert shown("s3://key:secret@captures/today/a.pcap?region=x") == "s3://captures/today/a.pcap"


@pytest.mark.parametrize("scheme", ["s3a", "s3n", "S3A"])
def test_hadoops_names_of_a_store_name_the_same_files(bucket: tuple[list[Path], str], scheme: str) -> None:
    """Folders, globs and files are those of s3://, so that a file has one name in rows, streams and work folders."""
    _, uri = bucket
    files = capture_files([uri])
    hadoop, query = uri.replace("s3://", f"{scheme}://"), uri.partition("?")[2]
    assert capture_files([hadoop]) == files
    assert capture_files([f"{scheme}://captures/today/*.gz?{query}"]) == files[1:]
    named = files[0].replace("s3://", f"{scheme}://")
    assert capture_files([named]) == files[:1]
    assert shown(named) == shown(files[0])
    assert facts_of([named]).equals(facts_of(files[:1]))
    assert default_work_folder(hadoop) == default_work_folder(uri)
    assert is_store(hadoop)


def test_a_url_is_refused_where_a_folder_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of that name would be a new folder in the current one."""
    capture = str(generate(tmp_path / "switch.pcap", 100, Traffic(seed=1)).path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReportError, match="s3://bucket/out is a URL"):
        make_report([capture], "s3a://bucket/out?region=x")
    for command, *arguments in (
        (monitor.command, "--parquet", "s3a://bucket/out"),
        (monitor.command, "--checkpoint", "hdfs://head/out"),
        (pipeline.command, "--tables", "s3://bucket/tables", "--work", "s3://bucket/work"),
    ):
        refused = CliRunner().invoke(command, [str(tmp_path), *arguments])
        assert refused.exit_code == 2
        assert "is a URL: name a folder of a file system" in " ".join(refused.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["switch.pcap"]


def test_a_missing_capture_is_reported(bucket: tuple[list[Path], str]) -> None:
    """A missing file and a URI that Arrow does not support cause errors."""
    query = bucket[1].partition("?")[2]
    with pytest.raises(CaptureError, match=r"s3://captures/absent\.pcap does not exist"):
        capture_files([f"s3://captures/absent.pcap?{query}"])
    with pytest.raises(CaptureError, match=r"ftp://somewhere/a\.pcap"):
        capture_files(["ftp://somewhere/a.pcap"])


def _positions(parts: list[Split]) -> list[int]:
    """Return the positions of the packets of splits, in their order."""
    return [
        position
        for part in parts
        for batch in decode(part)
        for position in batch.column("position").to_pylist()
    ]


def test_splits_of_a_remote_file_are_found_and_read_by_ranges(
    bucket: tuple[list[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of the local file; a reader fetches the bytes of its own part, not those before it."""
    [plain, _], uri = bucket
    file, ports, size = capture_files([uri])[0], CapturePorts(), 500_000
    starts: list[int] = []
    real = remote.open_ranged

    def opened(path: str, start: int) -> Any:
        starts.append(start)
        return real(path, start)

    monkeypatch.setattr(container, "open_ranged", opened)
    count = range_count(plain.stat().st_size, size)
    walked = {number: walked_range(Split(file), number, size, ports) for number in range(count)}
    assert sorted(set(starts)) == [number * size for number in range(count)]
    parts = joined(Split(file), walked, size, ports)
    local = joined(Split(str(plain)), {}, size, ports)
    assert [(part.start, part.end) for part in parts] == [(part.start, part.end) for part in local]
    assert len(parts) > 5
    starts.clear()
    assert _positions(parts) == _positions([Split(str(plain))])
    assert starts == [part.start for part in parts]


def test_a_compressed_file_is_read_from_a_byte_of_its_content(bucket: tuple[list[Path], str]) -> None:
    """On disk and in a store; positions are those of the content."""
    [_, packed], uri = bucket
    whole = _positions([Split(str(packed))])
    middle = whole[len(whole) // 2]
    for file in (str(packed), capture_files([uri])[1]):
        place = walk(Split(file), middle).place
        assert place.start == middle
        assert (
            _positions([replace(place, end=whole[-3]), walk(place, whole[-3]).place])
            == whole[len(whole) // 2 :]
        )
        ended = walk(place, 2**63)
        assert (ended.length, ended.problem) == (ended.place.start, None)
    packed.write_bytes(packed.read_bytes()[:-1000])
    assert walk(Split(str(packed)), 2**63).problem is not None
