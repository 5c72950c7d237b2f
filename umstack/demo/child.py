"""Runs an `umstack` command, and ends it when its standard input closes because the demo that started it has ended.

python -m umstack.demo.child recv demo/tree ...
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

_GRACE_SECONDS = 2.0
_ORPHANED_STATUS = 3


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(_ORPHANED_STATUS)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    runpy.run_module("umstack", run_name="__main__")
