"""Which failures are repeated alone (tests/time_limits.py), in runs of a few tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.time_limits import FILE, REPEATED_MAX, STATUS

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests import time_limits

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(time_limits.TimeLimits())
    config.pluginmanager.register(time_limits, "marks")
"""
HEAD = """
import subprocess, sys, time
import pytest
from tests.waiting import wait_for

deadline = 0.0
"""
PASSES = "def test_passes():\n    pass\n"
WAITS = "def test_waits():\n    wait_for(lambda: False, 'never', seconds=0.01)\n"
ENDINGS = """
def test_waits_for_a_condition():
    wait_for(lambda: False, "never", seconds=0.01)

def test_waits_until_a_deadline():
    assert time.monotonic() < deadline, "late"

def test_waits_for_a_program():
    subprocess.run([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, timeout=0.01)

def test_waits_for_a_call():
    raise TimeoutError

@pytest.mark.timeout(0.2)
def test_takes_too_long():
    time.sleep(20)
"""
FAILURES = {
    "a wrong value": "def test_fails():\n    assert 1 == 2\n",
    "a slow figure": "def test_fails():\n    assert time.monotonic() - deadline < 0\n",
    "an error": "def test_fails():\n    raise ValueError\n",
    "a fixture": "@pytest.fixture\ndef broken():\n    raise TimeoutError\n\ndef test_fails(broken):\n    pass\n",
    "a file": "import there_is_no_such_module\n",
}


def run(folder: Path, *tests: str, workers: int = 0) -> tuple[int, list[str]]:
    """Return the exit status of a run of these tests, and the tests that it would repeat."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_few.py").write_text(HEAD + "\n\n".join(tests))
    listed = folder / "listed"
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "-n", str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), FILE: str(listed)}
    done = subprocess.run([*command, "test_few.py"], cwd=folder, env=environment, capture_output=True)
    return done.returncode, listed.read_text().split() if listed.exists() else []


def test_what_ran_out_of_time_is_repeated(tmp_path: Path) -> None:
    """A condition, a program or the whole test did not end in time; workers report it as one process does."""
    for workers in (0, 2):
        status, listed = run(tmp_path, PASSES, ENDINGS, workers=workers)
        assert status == STATUS
        assert sorted(listed) == sorted(f"test_few.py::{name}" for name in re.findall(r"test_\w+", ENDINGS))
        (tmp_path / "listed").unlink()


@pytest.mark.parametrize("failure", FAILURES)
def test_any_other_failure_is_final(tmp_path: Path, failure: str) -> None:
    """Also beside a test that ran out of time."""
    status, listed = run(tmp_path, WAITS, FAILURES[failure])
    assert status not in (0, STATUS)
    assert not listed


def test_many_tests_that_ran_out_of_time_fail_the_run(tmp_path: Path) -> None:
    """A product that hangs is not tried again and again."""
    tests = [WAITS.replace("test_waits", f"test_waits{number}") for number in range(REPEATED_MAX + 1)]
    assert run(tmp_path, *tests) == (1, [])
