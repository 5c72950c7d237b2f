"""The processes of a measured stream that Stores keep: the Stores, the publisher and the subscriber.

`python -m umstack.bench.store_ends keep|publish|subscribe SPEC`, the spec being a `StoreSpec` in JSON.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

import numpy as np

from umstack.bench.children import has_order, receive_order, say
from umstack.bench.endpoint import READY_SECONDS, EndSpec, await_sources, run
from umstack.bench.raw import percentiles_us
from umstack.persistent_source import PersistentSource
from umstack.source import Source
from umstack.store.repository import Durability, RepositorySettings
from umstack.store.server import StoreServer

_POLL_ROWS = 4096
_POLL_SECONDS = 0.01
_DRAIN_SECONDS = 30.0
_SYNC_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec(EndSpec):
    """Arguments of every child process."""

    topic: str
    directory: str
    size: int = 1024
    seconds: float = 2.0
    samples: int = 200
    durability: str = "disk"
    ports: tuple[int, ...] = ()
    """Ports of the Stores, on loopback; empty: the source has none."""


def keep(spec: StoreSpec) -> None:
    """Run one Store in the directory until an order arrives."""
    settings = RepositorySettings(Durability(spec.durability))
    with (
        spec.open_context() as context,
        StoreServer(context, spec.directory, ("127.0.0.1", 0), settings) as store,
    ):
        thread = threading.Thread(target=store.serve)
        thread.start()
        say(port=store.endpoint.port)
        receive_order()
        store.stop()
        thread.join()


def publish(spec: StoreSpec) -> None:
    """Send for the time of the spec, then measure the time from a send to its stability, one message at a time."""
    with spec.open_context() as context:
        source: Source | PersistentSource = (
            context.source(spec.topic, store=[("127.0.0.1", port) for port in spec.ports], session_id=1)
            if spec.ports
            else context.source(spec.topic)
        )
        with source:
            source.wait_connected(1 + len(spec.ports), timeout=READY_SECONDS)
            say(ready=True)
            receive_order()
            say(**_stream(spec, source))
            receive_order()
            say(**(_stability(spec, source) if isinstance(source, PersistentSource) else {}))
            receive_order()


def _stream(spec: StoreSpec, source: Source | PersistentSource) -> dict[str, float]:
    message, sent = bytes(spec.size), 0
    started = time.monotonic()
    while time.monotonic() - started < spec.seconds:
        for _ in range(32):
            source.send(message)
        sent += 32
    source.flush()
    if isinstance(source, PersistentSource):
        source.wait_stable(_DRAIN_SECONDS)
        unstable = len(source.unstable)
    else:
        source.wait_drained(_DRAIN_SECONDS)
        unstable = 0
    return {"sent": sent, "started": started, "unstable": unstable, "seconds": time.monotonic() - started}


def _stability(spec: StoreSpec, source: PersistentSource) -> dict[str, dict[str, float]]:
    """Alternate a write and sync of 4 KiB in the directory with a message that is sent and becomes stable."""
    message, block = bytes(spec.size), os.urandom(_SYNC_BYTES)
    syncs, stable = [], []
    with tempfile.NamedTemporaryFile(dir=spec.directory) as file:
        os.posix_fallocate(file.fileno(), 0, _SYNC_BYTES * spec.samples)
        os.fsync(file.fileno())
        for at in range(spec.samples):
            started_ns = time.monotonic_ns()
            os.pwrite(file.fileno(), block, at * _SYNC_BYTES)
            os.fdatasync(file.fileno())
            synced_ns = time.monotonic_ns()
            source.send(message, True)
            source.wait_stable(_DRAIN_SECONDS)
            stable.append(time.monotonic_ns() - synced_ns)
            syncs.append(synced_ns - started_ns)
    return {
        "stable_us": percentiles_us(np.array(stable, np.uint64)),
        "sync_us": percentiles_us(np.array(syncs, np.uint64)),
    }


def subscribe(spec: StoreSpec) -> None:
    """Count messages until as many have arrived as the order states; report the time of the last one."""
    with spec.open_context() as context, context.receiver(spec.topic) as receiver:
        say(ready=True)
        await_sources(context, [receiver])
        received, expected, last = 0, -1, time.monotonic()
        while received != expected and time.monotonic() - last < _DRAIN_SECONDS:
            batch = receiver.poll(_POLL_ROWS, _POLL_SECONDS)
            if count := len(batch) - batch.event_count:
                received, last = received + count, time.monotonic()
            elif expected < 0 and has_order():
                expected = receive_order()["count"]
        say(received=received, last=last)
        receive_order()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], StoreSpec, {"keep": keep, "publish": publish, "subscribe": subscribe}))
