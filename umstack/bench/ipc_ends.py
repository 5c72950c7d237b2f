"""The ends of a bare ring in shared memory, the baseline of LBT-IPC.

`python -m umstack.bench.ipc_ends send|receive|ping|echo SPEC`, the spec being a `RingSpec` in JSON.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from umstack._sim_bench import ffi, lib
from umstack.bench.children import receive_order, say
from umstack.bench.endpoint import EndSpec, run
from umstack.bench.raw import percentiles_us
from umstack.errors import error_from_result

_WARMUP_COUNT = 500
_RING_BYTES = 1 << 20
"""About the size of a second-level cache. A larger ring is slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSpec(EndSpec):
    """Arguments of both ends."""

    files: list[str]
    """The rings: one of a stream; for round trips, of the requests and of the replies."""
    size: int
    seconds: float = 2.0
    samples: int = 200_000


def make_ring(file: Path, size: int) -> None:
    """Make an empty ring in a file, for messages of this size."""
    capacity = 1 << max((_RING_BYTES // size).bit_length() - 1, 1)
    memory = bytearray(lib.um_bare_ring_bytes(capacity, size))
    lib.um_bare_ring_init(ffi.from_buffer(memory), capacity, size)
    file.write_bytes(memory)


@contextmanager
def _mapped(spec: RingSpec) -> Iterator[list[Any]]:
    """Map the rings, and wait for the order to start."""
    maps = []
    for name in spec.files:
        with Path(name).open("r+b") as file:
            maps.append(mmap.mmap(file.fileno(), 0))
    rings = [ffi.from_buffer(one) for one in maps]
    say(ready=True)
    receive_order()
    yield rings
    for ring in rings:
        ffi.release(ring)
    for one in maps:
        one.close()


def send(spec: RingSpec) -> None:
    """Fill the ring for the given time."""
    with _mapped(spec) as (ring,):
        say(sent=lib.um_bare_ring_send(ring, int(spec.seconds * 1e9), 2**63))


def receive(spec: RingSpec) -> None:
    """Empty the ring until the end."""
    result = ffi.new("um_bare_ring_result *")
    with _mapped(spec) as (ring,):
        lib.um_bare_ring_receive(ring, result)
    say(received=result.message_count, misplaced=result.misplaced_count, seconds=result.elapsed_ns / 1e9)


def ping(spec: RingSpec) -> None:
    """Send one message after another and record the time until each one comes back."""
    samples = np.zeros(spec.samples, dtype=np.uint64)
    buffer = ffi.from_buffer("uint64_t[]", samples, require_writable=True)
    result = ffi.new("um_raw_ping_result *")
    with _mapped(spec) as (requests, replies):
        duration_ns = int(spec.seconds * 1e9)
        status = lib.um_bare_ring_ping(
            requests, replies, _WARMUP_COUNT, spec.samples, duration_ns, buffer, result
        )
    if status < 0:
        raise error_from_result(status, "waiting for the other end of the ring")
    count = result.sample_count
    say(
        samples=count,
        misplaced=result.stale_count,
        seconds=result.elapsed_ns / 1e9,
        **percentiles_us(samples[:count]),
    )


def echo(spec: RingSpec) -> None:
    """Return every message."""
    with _mapped(spec) as (requests, replies):
        lib.um_bare_ring_echo(requests, replies)
    say(ended=True)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], RingSpec, {"send": send, "receive": receive, "ping": ping, "echo": echo}))
