"""The descriptors and threads that this process holds, for tests of every tier that nothing is left behind."""

from __future__ import annotations

import gc
import re
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.waiting import SECONDS

_INODE = re.compile(r"\[\d+\]")


def held() -> Counter[str]:
    """Return how many descriptors of each kind and threads of each name this process holds, apart from garbage."""
    gc.collect()
    return _held_now()


def wait_until_released(before: Counter[str], seconds: float = 2 * SECONDS) -> None:
    """Wait until nothing is held beyond `before`: threads of contexts close descriptors a moment later.

    Less is allowed: garbage of an earlier test may be collected meanwhile. A failure names the rest.
    """
    deadline = time.monotonic() + seconds
    while left := _held_now() - before:
        assert time.monotonic() < deadline, f"not released within {seconds} s: {dict(left)}"
        time.sleep(0.01)


def _held_now() -> Counter[str]:
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile, as the one that listed them
            found[f"descriptor {_INODE.sub('', str(entry.readlink()))}"] += 1
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            found[f"thread {(task / 'comm').read_text().strip()}"] += 1
    return found
