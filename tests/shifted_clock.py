"""A child process whose wall clock a test sets: a library loaded before libc adds seconds from a shared file."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

_SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *ahead_s;

__attribute__((constructor)) static void open_shift(void)
{
    int fd = open(getenv("SHIFT_FILE"), O_RDONLY);
    void *found = fd < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);
    ahead_s = found == MAP_FAILED ? NULL : found;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    long result = syscall(SYS_clock_gettime, id, out);
    if (id == CLOCK_REALTIME && ahead_s != NULL)
        out->tv_sec += *ahead_s;
    return (int)result;
}
"""


class ShiftedProcess:
    """A Python script in a child process whose clock can be set. Its lines of JSON are read as they come."""

    def __init__(self, folder: Path, script: str, spec: dict[str, Any]) -> None:
        """Start it with the clock of the host. The script finds `spec` as JSON in its first argument."""
        compiler = shutil.which("cc") or pytest.skip("no C compiler")
        source, library, shift = folder / "shift.c", folder / "shift.so", folder / "shift"
        source.write_text(_SHIM)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
        shift.write_bytes(bytes(8))
        with shift.open("r+b") as file:
            self._shift = mmap.mmap(file.fileno(), 8)
        self.latest: dict[str, Any] = {}
        environment = {**os.environ, "LD_PRELOAD": str(library), "SHIFT_FILE": str(shift)}
        self._child = subprocess.Popen(
            [sys.executable, "-c", script, json.dumps(spec)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.latest = json.loads(line)

    def set_ahead(self, seconds: int) -> None:
        """Set the child's clock this far ahead of the host's."""
        struct.pack_into("=q", self._shift, 0, seconds)

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.wait()
        self._reader.join()
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._shift.close()
