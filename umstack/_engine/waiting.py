"""Waits of the application in the core. They consist of slices, between which Python handles signals.

A slice of sequential mode is shorter, because the duty cycle runs between slices.
"""

from __future__ import annotations

SLICE_NS = 100_000_000
"""The longest single wait inside the core, in embedded mode."""

SEQUENTIAL_SLICE_NS = 10_000_000
"""The same in sequential mode."""

_NS_PER_S = 1_000_000_000


def timeout_ns(timeout: float | None) -> int:
    """Return a timeout in seconds as the core's nanoseconds. None, no timeout, becomes -1."""
    return -1 if timeout is None else int(timeout * _NS_PER_S)
