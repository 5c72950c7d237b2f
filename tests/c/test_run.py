"""The runner of the C tests, as a contributor uses it for one program."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import RUN_TIMEOUT_SECONDS, SKIP_STATUS

RUN = Path(__file__).with_name("run")


@pytest.mark.timeout(RUN_TIMEOUT_SECONDS)
def test_a_chosen_program_reports_its_progress() -> None:
    """Programs, sanitizer and times of building and running are on stderr; results are on stdout."""
    done = subprocess.run([RUN, "publication_log"], text=True, capture_output=True)
    if done.returncode == SKIP_STATUS:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    results, progress = done.stdout.splitlines(), done.stderr.splitlines()
    assert results
    assert all(line.startswith("ok ") for line in results)
    assert re.fullmatch(r"building 1 programs with -fsanitize=address,undefined .*\.\.\.", progress[0])
    times = [line for line in progress if re.fullmatch(r"built in \d+\.\d s", line)]
    assert len(times) == 1
    started = [line for line in progress if line.startswith("running ")]
    assert [
        re.fullmatch(r"running test_publication_log \(\w+-address\) \.\.\.", line) is not None
        for line in started
    ] == [True]
    assert re.fullmatch(r"test_publication_log \(\w+-address\) passed in \d+\.\d s", progress[-1])
