"""The metrics of a Store: Prometheus scrapes them with those of its context."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.loopback import configuration_file, open_context, write_counters
from tests.unit.store_thread import running_store
from tests.unit.test_metrics import free_address
from tests.waiting import wait_for
from umstack.cli import command
from umstack.store import server
from umstack.store.client import replay
from umstack.store.server import StoreServer
from umstack.telemetry.counters import schema
from umstack.telemetry.time_histogram import CommitHistogram


def _samples(text: str) -> dict[str, float]:
    """Return the samples of the only Store in a page, by name and by `le`."""
    found = re.findall(r"^(umstack_store_\w+)\{[^}]*?(?:,le=\"([^\"]+)\")?\} (\S+)$", text, re.MULTILINE)
    return {f"{name} {le}".strip(): float(value) for name, le, value in found}


def _scraped(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return _samples(answer.read().decode())


def test_a_store_is_scraped_with_its_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page counts messages received, written, acknowledged and replayed; so does the exporter's."""
    monkeypatch.setattr(server, "_LIFETIMES_NS", 10_000_000)
    address = free_address()
    url = f"http://{address}/metrics"
    with running_store(tmp_path, metrics=address) as store, open_context() as context:
        with context.source("orders", store=[store.endpoint], session_id=7) as source:
            for _ in range(3):
                source.send(b"data")
            assert source.close() == []
        assert len(list(replay("orders", store.endpoint, 3))) == 3
        assert list(replay("orders", store.endpoint, 3)) == []
        wait_for(lambda: _scraped(url)["umstack_store_receivers"] == 1)
        found = _scraped(url)
        expected = {
            "messages_total": 3,
            "message_bytes_total": 3 * (12 + 4),
            "registrations_total": 3,
            "replays_total": 1,
            "served_total": 3,
            "refused_total": 0,
            "disk_errors_total": 0,
            "sources": 1,
            "receivers": 1,
            "retained_messages": 3,
            "retained_bytes": 3 * (32 + 16),
            "segments": 1,
        }
        assert {name: found[f"umstack_store_{name}"] for name in expected} == expected
        commits = found["umstack_store_commits_total"]
        assert 1 <= commits <= 3
        assert found["umstack_store_commit_bytes_total"] == 3 * (32 + 16)
        assert found["umstack_store_acknowledgements_total"] >= 1
        assert found["umstack_store_commit_seconds_count"] == commits
        assert found["umstack_store_commit_seconds_bucket +Inf"] == commits
        assert found["umstack_store_commit_seconds_sum"] > 0
        write_counters(store._context)
        printed = CliRunner().invoke(command, ["exporter", "--once"]).stdout
        assert f'store="{tmp_path}"' in printed
        assert _samples(printed)["umstack_store_messages_total"] == 3


def test_a_closed_store_is_not_reported(tmp_path: Path) -> None:
    """Its context may stay open."""
    with open_context() as context:
        with StoreServer(context, tmp_path, ("127.0.0.1", 0)):
            assert [store["store"] for store in context.stats()["stores"]] == [str(tmp_path)]
        assert context.stats()["stores"] == []


def test_the_schema_names_every_counter_of_a_store(tmp_path: Path) -> None:
    """And each of them is an integer."""
    with open_context() as context, StoreServer(context, tmp_path, ("127.0.0.1", 0)) as store:
        status = store.status()
        named = {counter.name for counter in schema().group("store").counters}
        assert set(status) - set(CommitHistogram.empty().summary()) == named
        assert all(isinstance(status[name], int) for name in named)


def test_the_command_serves_the_metrics_of_its_stores(tmp_path: Path) -> None:
    """`--metrics` names one address for all directories."""
    folders = [str(tmp_path / "1"), str(tmp_path / "2")]
    address, config = free_address(), configuration_file(tmp_path)
    line = [sys.executable, "-m", "umstack", "store", "run", *folders, "--listen", "127.0.0.1:0", "-i", "lo"]
    line += ["-c", str(config), "--metrics", address]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for _ in folders:
                assert " at " in process.stderr.readline()
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert re.findall(r'umstack_store_messages_total\{.*store="(.*)"\} 0', text) == folders


@pytest.mark.parametrize("seed", range(3))
def test_a_commit_is_counted_in_the_bucket_of_its_time(seed: int) -> None:
    """The first and the last bucket take shorter and longer ones."""
    luck = random.Random(seed)
    for _ in range(300):
        time_ns = luck.randrange(1 << luck.randrange(1, 40))
        bucket = CommitHistogram.bucket_of(time_ns)
        last = CommitHistogram.BUCKETS - 1
        assert 0 <= bucket <= last
        assert bucket == 0 or CommitHistogram.bucket_start_ns(bucket) <= time_ns, time_ns
        assert bucket == last or time_ns < CommitHistogram.bucket_start_ns(bucket + 1), time_ns
