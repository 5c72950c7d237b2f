"""`python -m tests.store_processes OPTIONS`: Stores on loopback in forked processes, which tests kill.

An order is a directory, a port, 0: any, and perhaps the maximum number of connections; the answer is the port. OPTIONS
are those of the Stores' contexts, in JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from tests.forked_processes import serve_forks
from umstack import Context
from umstack.store.protocol import StoreLimits
from umstack.store.repository import RepositorySettings
from umstack.store.server import StoreServer


def _keep(words: list[str], answer: Callable[[str], None]) -> None:
    directory, port, *maximum = words
    more = {"connections_maximum": int(maximum[0])} if maximum else {}
    limits = StoreLimits(allows_receiver_pacing=True)
    settings = RepositorySettings(segment_bytes=1 << 20, staging_bytes=1 << 20)
    with (
        Context("lo", **json.loads(sys.argv[1])) as context,
        StoreServer(context, directory, ("127.0.0.1", int(port)), settings, limits=limits, **more) as store,
    ):
        answer(str(store.endpoint.port))
        store.serve()


if __name__ == "__main__":
    serve_forks(_keep)
