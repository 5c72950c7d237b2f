"""`umstack bench live`: a live query fed at a rate over real sockets; every message is checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.spark.conftest import need_java
from umstack.bench.children import BenchError
from umstack.bench.live import Arrivals, Taken, judged
from umstack.recorder import JournalReader

_MIB = 1 << 20
_SECONDS = 280


@pytest.mark.timeout(_SECONDS + 5)
def test_a_live_query_is_measured_and_every_message_checked(tmp_path: Path) -> None:
    """One command measures the delay of a live query and the memory of each process."""
    need_java()
    arguments = ["--rate", "5000", "--seconds", "2", "--json"]
    command = [sys.executable, "-m", "umstack", "bench", "live", *arguments]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    (found,) = said["results"]
    assert (found["what"], found["messages"], found["rows"], found["size"]) == ("live", 10_000, 10_000, 100)
    assert [found[fault] for fault in ("lost", "duplicates", "out_of_order")] == [0, 0, 0]
    assert 2 <= found["seconds"] < _SECONDS
    assert 0 < found["seconds_behind"] < _SECONDS
    assert 0 < found["backlog_messages"] <= 10_000
    processes = {"driver", "virtual_machine", "worker", "recorder", "publisher"}
    assert processes <= found["cpu_seconds"].keys()
    peaks = found["peak_memory_bytes"]
    assert processes <= peaks.keys()
    assert 100 * _MIB < peaks["virtual_machine"] < found["together_memory_bytes"] < 4096 * _MIB
    assert len(said["targets"]) == 4
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("umstack-")]
    assert not _processes_that_name(tmp_path)


def _processes_that_name(folder: Path) -> list[str]:
    """The command lines of this machine's processes that contain the folder's path."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in found if str(folder) in line]


def _arrivals(tmp_path: Path, *batches: Taken) -> Arrivals:
    found = Arrivals(JournalReader(tmp_path))
    found.batches = dict(enumerate(batches))
    found.rows = sum(batch.rows for batch in batches)
    return found


@pytest.mark.parametrize(
    ("batches", "faults"),
    [
        ([Taken(4, 6, 0, 3), Taken(6, 39, 4, 9)], {}),
        ([Taken(4, 6, 0, 3), Taken(5, 30, 4, 8)], {"lost": 1}),
        ([Taken(4, 6, 0, 3), Taken(7, 42, 3, 9, 7)], {"duplicates": 1, "out_of_order": 7}),
        ([], {"lost": 10}),
    ],
)
def test_arrivals_are_compared_with_sent_messages(
    tmp_path: Path, batches: list[Taken], faults: dict[str, int]
) -> None:
    """Missing and repeated messages are detected."""
    clean = {"lost": 0, "duplicates": 0, "out_of_order": 0}
    assert _arrivals(tmp_path, *batches).faults(10) == clean | faults


def test_the_right_number_of_wrong_messages_is_detected(tmp_path: Path) -> None:
    """The sum of the numbers shows if one message is lost and another arrives twice."""
    with pytest.raises(BenchError, match="not each once"):
        _arrivals(tmp_path, Taken(10, 44, 0, 9)).faults(10)


def test_a_micro_batch_that_is_run_again_counts_once(tmp_path: Path) -> None:
    """Spark uses the same number for a repeated batch."""
    row = SimpleNamespace(
        asDict=lambda: {"rows": 3, "number_sum": 3, "lowest": 0, "highest": 2, "misplaced": 0}
    )
    frame: Any = SimpleNamespace(selectExpr=lambda *_: frame, collect=lambda: [row])
    found = _arrivals(tmp_path)
    found.take(frame, 0)
    found.take(frame, 0)
    assert (found.rows, found.faults(3)) == (3, {"lost": 0, "duplicates": 0, "out_of_order": 0})


@pytest.mark.parametrize(
    ("changed", "is_met"),
    [
        ({}, True),
        ({"rate_sent": 150_000.0}, False),
        ({"seconds_behind": 3.5}, False),
        ({"lost": 1}, False),
        ({"together_memory_bytes": 4096 * _MIB}, False),
    ],
)
def test_keeping_up_has_four_conditions(changed: dict[str, float], is_met: bool) -> None:
    """The rate was reached, the last message arrived soon, no message is missing, and memory is bounded."""
    kept_up = {
        "rate_offered": 200_000,
        "rate_sent": 199_900.0,
        "seconds_behind": 1.0,
        "cores": 2,
        "together_memory_bytes": 1500 * _MIB,
        **dict.fromkeys(("lost", "duplicates", "out_of_order"), 0),
    }
    assert all(target.is_met for target in judged({**kept_up, **changed})) == is_met
