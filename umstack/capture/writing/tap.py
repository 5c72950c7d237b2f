"""Tap: writes the datagrams that a context sends and receives to a pcapng file, or to a series of them."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umstack._core import ffi, lib
from umstack._engine.core_address import core_address
from umstack.capture.writing.errors import CaptureError, TapRunning
from umstack.capture.writing.file_names import file_name, make_directory
from umstack.errors import InvalidArgument, error_from_result
from umstack_xdp.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

    from umstack._engine.core_context import CoreContext

TAP_RING_BYTES = 16 << 20
"""Limit of the data path's lead over the file. Datagrams beyond the limit are omitted and counted."""

_NS_PER_S = 1_000_000_000
Endpoint = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TapReport:
    """Counts of a tap so far."""

    path: Path
    """The file, or the directory of a series."""
    datagrams: int
    """Datagrams written to the file, or to all files of a series."""
    dropped: int
    """Datagrams missing in the file: the ring was full, or writing failed."""
    file_bytes: int
    files: int = 1
    """Files started so far, including removed ones."""


@dataclass(frozen=True, slots=True)
class TapSettings:
    """Settings of a tap. With a limit on size or age, it writes a series of files into a directory."""

    snap_bytes: int = 0
    """Captured bytes per datagram, including headers; 0: all."""
    ring_bytes: int = TAP_RING_BYTES
    rotate_bytes: int = 0
    rotate_seconds: float = 0.0
    keep_files: int = 0
    """Number of files to keep; 0: all."""

    def __post_init__(self) -> None:
        """Check the limits."""
        if min(self.snap_bytes, self.rotate_bytes, self.rotate_seconds, self.keep_files) < 0:
            raise InvalidArgument("a tap has a limit below 0", hint="0 is no limit")
        if self.keep_files and not self.is_series:
            raise InvalidArgument("a tap that writes one file has none to remove", hint=_LIMIT_NEEDED)

    @property
    def is_series(self) -> bool:
        """True if the tap writes a series of files."""
        return bool(self.rotate_bytes or self.rotate_seconds)


_LIMIT_NEEDED = "give rotate_bytes or rotate_seconds with keep_files"


class Tap(Closing):
    """A running tap. Made by Context.tap(); ends with stop(), with its context, or as a context manager."""

    __slots__ = ("_context", "_report", "path")

    def __init__(self, context: CoreContext, path: str | Path, settings: TapSettings) -> None:
        """Start the tap. `path`: the file, or the directory of a series, which is created."""
        self.path = Path(path)
        self._context = context
        self._report: TapReport | None = None
        config = ffi.new("um_tap_config *")
        keep = (ffi.new("char[]", os.fsencode(self.path)), ffi.new("char[]", context.interface.name.encode()))
        config.path, config.interface = keep
        config.ring_bytes = settings.ring_bytes
        config.snap_bytes = settings.snap_bytes
        if settings.is_series:
            make_directory(self.path)
            name = ffi.new("char[]", file_name(context.interface.name).encode())
            config.file_name = name
            config.rotate_bytes, config.keep_files = settings.rotate_bytes, settings.keep_files
            config.rotate_ns = int(settings.rotate_seconds * _NS_PER_S)
        config.ttl = context.options.resolver_multicast_ttl
        result = lib.um_context_tap_start(context.handle, config)
        if result == -errno.EBUSY:
            raise TapRunning(f"the context on {context.interface.name} has a tap already")
        if result < 0:
            raise error_from_result(result, f"tap to {self.path}")

    def report(self) -> TapReport:
        """Return the counts so far, or the final ones once stopped."""
        if self._report is not None:
            return self._report
        counters = ffi.new("um_tap_counters *")
        lib.um_context_tap_read(self._context.handle, counters)
        return self._read(counters)

    def stop(self) -> TapReport:
        """Write the rest of the ring and close the file. Raises CaptureError if writing has failed."""
        if self._report is None:
            counters = ffi.new("um_tap_counters *")
            result = self._context.end_tap(self, counters)
            self._report = self._read(counters)
            if result < 0:
                report = self._report
                raise CaptureError(
                    f"tap to {self.path}: {os.strerror(-result)}: the file has {report.datagrams} datagrams "
                    f"and misses {report.dropped}",
                    errno=-result,
                )
        return self._report

    def close(self) -> None:
        """Stop the tap."""
        self.stop()

    def _read(self, counters: Any) -> TapReport:
        return TapReport(
            self.path,
            counters.written_count,
            counters.dropped_count,
            counters.file_bytes,
            counters.file_count,
        )


def datagram_observer(context: CoreContext) -> Callable[[bool, Endpoint, Endpoint, bytes], None]:
    """Return a function that records datagrams outside the context's links in its tap: topic resolution."""

    def observe(sent: bool, source: Endpoint, destination: Endpoint, data: bytes) -> None:
        # Checked in Python first: a call into C releases the GIL, thousands of times per second.
        if context.has_tap and lib.um_context_tap_is_running(context.handle):
            lib.um_context_tap_datagram(
                context.handle, sent, _address(source)[0], _address(destination)[0], data, len(data)
            )

    return observe


def _address(endpoint: Endpoint) -> Any:
    return ffi.new("um_address *", core_address(endpoint))
