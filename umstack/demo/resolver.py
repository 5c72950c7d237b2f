"""The resolution daemon of the demo, where its hosts have no multicast between them: `umstack resolver`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from umstack.demo.errors import DemoFailed

_END_SECONDS = 5.0


@contextlib.contextmanager
def resolving(run: Callable[..., subprocess.Popen[Any]], address: str) -> Iterator[None]:
    """Have `run` start the daemon, to listen at ADDRESS:PORT; wait until it does, and end it at the end."""
    command = [sys.executable, "-m", "umstack", "resolver", "--listen", address]
    daemon = run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert daemon.stderr is not None
    try:
        first_line = daemon.stderr.readline()
        if not first_line.startswith("relaying"):
            raise DemoFailed(
                f"the resolution daemon at {address} did not start: {first_line}{daemon.stderr.read()}".strip(),
                hint="leave --resolver out, or end what listens there",
            )
        yield
    finally:
        daemon.terminate()
        try:
            daemon.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.communicate()
