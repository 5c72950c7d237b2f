"""Which failures are repeated alone (tests/repeats.py), in runs of a few tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repeats import FILE, REPEATED_MAX, STATUS_FAILED, STATUS_LATE

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests import repeats

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(repeats.Repeats())
    config.pluginmanager.register(repeats, "marks")
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
WRONG = (
    "def test_fails():\n    assert 1 == 2\n",
    "def test_fails():\n    assert time.monotonic() - deadline < 0\n",
    "def test_fails():\n    raise ValueError\n",
    # Its last frame is in a compiled file, which is no Python.
    "def test_fails():\n    import pyarrow\n    pyarrow.array([1, 'a'])\n",
)
FINAL = {
    "a fixture": "@pytest.fixture\ndef broken():\n    raise TimeoutError\n\ndef test_fails(broken):\n    pass\n",
    "an end": "@pytest.fixture\ndef broken():\n    yield\n    assert 1 == 2\n\ndef test_fails(broken):\n    pass\n",
    "a file": "import there_is_no_such_module\n",
}


def run(folder: Path, *tests: str, workers: int = 0, tier: str = "unit") -> tuple[int, list[str]]:
    """Return the exit status of a run of these tests, and the tests that it would repeat."""
    file = Path("tests", tier, "test_few.py")
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / file).write_text(HEAD + "\n\n".join(tests))
    listed = folder / "listed"
    listed.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "-n", str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), FILE: str(listed)}
    done = subprocess.run([*command, str(file)], cwd=folder, env=environment, capture_output=True)
    return done.returncode, listed.read_text().split() if listed.exists() else []


@pytest.mark.parametrize("tier", ["unit", "sim"])
def test_a_test_that_ran_out_of_time_is_repeated(tmp_path: Path, tier: str) -> None:
    """A condition, a program or the whole test did not end in time; workers report it as one process does."""
    for workers in (0, 2):
        status, listed = run(tmp_path, PASSES, ENDINGS, workers=workers, tier=tier)
        assert status == STATUS_LATE
        names = re.findall(r"test_\w+", ENDINGS)
        assert sorted(listed) == sorted(f"tests/{tier}/test_few.py::{name}" for name in names)


@pytest.mark.parametrize("tier", ["unit", "spark", "netns"])
def test_another_failure_is_repeated_in_a_tier_of_real_time(tmp_path: Path, tier: str) -> None:
    """Its status differs from that of a run in which tests only ran out of time."""
    tests = [test.replace("fails", f"fails{number}") for number, test in enumerate(WRONG)]
    status, listed = run(tmp_path, WAITS, *tests, tier=tier)
    assert status == STATUS_FAILED
    names = ["test_waits", *(f"test_fails{number}" for number in range(len(WRONG)))]
    assert sorted(listed) == sorted(f"tests/{tier}/test_few.py::{name}" for name in names)


@pytest.mark.parametrize("tier", ["property", "sim"])
def test_another_failure_with_a_seed_is_final(tmp_path: Path, tier: str) -> None:
    """Also beside a test that ran out of time."""
    assert run(tmp_path, WAITS, WRONG[0], tier=tier) == (1, [])


@pytest.mark.parametrize("failure", FINAL)
def test_a_failure_outside_a_test_is_final(tmp_path: Path, failure: str) -> None:
    """Also beside a test that ran out of time."""
    status, listed = run(tmp_path, WAITS, FINAL[failure])
    assert status not in (0, STATUS_LATE, STATUS_FAILED)
    assert not listed


@pytest.mark.parametrize("test", [WAITS, WRONG[0]])
def test_many_failures_are_final(tmp_path: Path, test: str) -> None:
    """A product that hangs or is broken is not tried again and again."""
    tests = [test.replace("def test_", f"def test_{number}_") for number in range(REPEATED_MAX + 1)]
    assert run(tmp_path, *tests) == (1, [])
