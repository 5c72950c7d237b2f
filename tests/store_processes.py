"""Stores as processes of their own, forked from one that has loaded everything, so that kills and starts cost little.

`python -m tests.store_processes OPTIONS` is that process: for each line with a directory and a port it forks a Store
and prints its process id and port.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self


class StoreProcesses:
    """Starts and kills Stores on loopback."""

    def __init__(self, options: dict[str, Any]) -> None:
        """`options` are those of the Stores' contexts."""
        self._pids: dict[int, int] = {}
        line = [sys.executable, "-m", "tests.store_processes", json.dumps(options)]
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for port in list(self._pids):
            self.kill(port)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self, directory: Path, port: int = 0) -> int:
        """Start a Store and return its port."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{directory} {port}\n")
        self._process.stdin.flush()
        pid, port = map(int, self._process.stdout.readline().split())
        self._pids[port] = pid
        return port

    def kill(self, port: int) -> None:
        """Kill the Store at a port."""
        os.kill(self._pids.pop(port), signal.SIGKILL)


def _serve() -> None:
    from umstack import Context
    from umstack.store.repository import RepositorySettings
    from umstack.store.server import StoreServer

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    options = json.loads(sys.argv[1])
    settings = RepositorySettings(segment_bytes=1 << 20, staging_bytes=1 << 20)
    for line in sys.stdin:
        directory, port = line.split()
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            with (
                Context("lo", **options) as context,
                StoreServer(context, directory, ("127.0.0.1", int(port)), settings) as store,
            ):
                os.write(writable, b"%d\n" % store.endpoint.port)
                store.serve()
            os._exit(0)
        os.close(writable)
        print(pid, int(os.read(readable, 16)), flush=True)
        os.close(readable)


if __name__ == "__main__":
    _serve()
