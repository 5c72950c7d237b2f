"""`umstack store verify` and `umstack store dump`, and the measurement of a repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from umstack.bench import store_stream
from umstack.bench.store import StorePlan, measure
from umstack.cli import command
from umstack.cli.bench_tables import store_tables
from umstack.store.repository import Repository, RepositorySettings


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with two sources and one closed segment."""
    settings = RepositorySettings(segment_bytes=1 << 18, staging_bytes=1 << 19, commit_bytes=1 << 18)
    with Repository(tmp_path, settings) as repository:
        for number in (0, 1):
            source = repository.register_source(f"topic {number}", number + 1).number
            repository.append_many(source, 10, [b"message %d" % sqn for sqn in range(10, 15)])
        repository.mark_lost(0, 15, 17)
        repository.commit()
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    """Run the command and return its status and output."""
    done = CliRunner().invoke(command, ["store", *arguments])
    return done.exit_code, done.output


def test_verify_accepts_a_sound_repository(directory: Path) -> None:
    """Also as JSON; and nothing is changed."""
    (segment,) = directory.glob("*.seg")
    before = segment.read_bytes()
    status, text = run("verify", str(directory))
    assert status == 0
    assert text.endswith("11 records: ok\n")
    status, text = run("verify", str(directory), "--json")
    report = json.loads(text)
    assert report["ok"]
    assert report["segments"][0]["is_sealed"]
    assert segment.read_bytes() == before


def test_verify_finds_a_flipped_bit_anywhere(directory: Path) -> None:
    """In the header, in records, in the footer: status 1, except in padding and reserved bytes."""
    (segment,) = directory.glob("*.seg")
    content = segment.read_bytes()
    for at in range(0, len(content), 29):
        damaged = bytearray(content)
        damaged[at] ^= 1
        segment.write_bytes(damaged)
        status, text = run("verify", str(directory), "--json")
        report = json.loads(text)["segments"][0]
        found = status == 1 or report["torn_bytes"] or not report["is_sealed"]
        assert found or content[at] == 0, f"byte {at} of {len(content)}"


def test_dump_lists_records(directory: Path) -> None:
    """Filtered by source and numbers; a marker of lost messages is listed if it covers the number."""
    status, text = run("dump", str(directory), "--json", "--content")
    records = [json.loads(line) for line in text.splitlines()]
    assert status == 0
    assert [(one["source"], one["sqn"]) for one in records] == [
        *((0, sqn) for sqn in range(10, 15)),
        *((1, sqn) for sqn in range(10, 15)),
        (0, 15),
    ]
    assert bytes.fromhex(records[3]["message"]) == b"message 13"
    status, text = run("dump", str(directory), "--source", "0", "--first", "16")
    assert "sqn 15" in text
    assert "3 lost" in text
    assert len(text.splitlines()) == 1


def test_a_directory_without_a_repository_is_refused(tmp_path: Path) -> None:
    """The message names the missing file."""
    done = CliRunner().invoke(command, ["store", "verify", str(tmp_path)])
    assert done.exit_code != 0
    assert "clients.db" in str(done.exception) + done.output


def test_the_measurement_compares_with_a_loop(tmp_path: Path) -> None:
    """Every message of the measured repository is held, and the ratio is taken from the same round."""
    loop, found = measure(StorePlan(tmp_path, sizes=(1024,), seconds=0.1, rounds=1), lambda _: None)
    assert found["lost"] == 0
    assert found["messages_per_second"] > 0
    rates = [one["detail"]["disk_bytes_per_second"] for one in (found, loop)]
    assert found["ratios"]["write-loop"] == pytest.approx(rates[0] / rates[1])


def test_a_stream_with_stores_is_measured_beside_one_without(tmp_path: Path) -> None:
    """Every message arrives and becomes stable; what the stream has sent is read back from a Store."""
    shown: list[str] = []
    plan = store_stream.StoreStreamPlan(tmp_path, seconds=0.1, rounds=1, samples=5)
    results = store_stream.measure(plan, shown.append)
    assert [one["detail"]["stores"] for one in results] == [0, 1, 3]
    assert len(shown) == 3
    for one in results:
        assert one["lost"] == 0
        assert one["detail"]["unstable"] == 0
        assert one["messages_per_second"] > 0
    for one in results[1:]:
        detail = one["detail"]
        assert one["ratios"]["no Store"] == one["messages_per_second"] / results[0]["messages_per_second"]
        assert (
            0
            < detail["stable_us"]["min_us"]
            <= detail["stable_us"]["p50_us"]
            <= detail["stable_us"]["p99_us"]
        )
        assert detail["sync_us"]["p50_us"] > 0
        assert detail["stable_per_second"] > 0
        assert detail["replayed"] == detail["sent"] + 5
    assert list(tmp_path.iterdir()) == []
    console = Console(width=200, record=True)
    console.print(store_tables(results))
    assert f"{results[1]['detail']['sync_us']['p50_us']:,.0f}" in console.export_text()
