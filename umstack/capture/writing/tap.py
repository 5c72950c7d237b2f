"""Tap: what a context sends and receives, written to a pcapng file, or a series of them, while it goes on."""

from __future__ import annotations

import errno
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umstack._core import ffi, lib
from umstack.capture.writing.errors import CaptureError, TapRunning
from umstack.capture.writing.file_names import file_name, make_directory
from umstack.errors import InvalidArgument, error_from_result
from xdp.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

    from umstack._engine.core_context import CoreContext

TAP_RING_BYTES = 16 << 20
"""What the data path may be ahead of the file; more is left out of it and counted."""

_NS_PER_S = 1_000_000_000
Endpoint = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TapReport:
    """What a tap has done so far."""

    path: Path
    """The file, or the directory of a series."""
    datagrams: int
    """Written to the file, or to all of the series."""
    dropped: int
    """Missing in the file: the ring was full, or the file could not be written."""
    file_bytes: int
    files: int = 1
    """Begun so far, whether or not they are still kept."""


@dataclass(frozen=True, slots=True)
class TapSettings:
    """How a tap writes. With a limit to its size or age, a file is followed by another, in a directory."""

    snap_bytes: int = 0
    """Keep so much of a datagram, headers included; 0: all of it."""
    ring_bytes: int = TAP_RING_BYTES
    rotate_bytes: int = 0
    rotate_seconds: float = 0.0
    keep_files: int = 0
    """The last so many; 0: all."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if min(self.snap_bytes, self.rotate_bytes, self.rotate_seconds, self.keep_files) < 0:
            raise InvalidArgument("a tap has a limit below 0", hint="0 is no limit")
        if self.keep_files and not self.is_series:
            raise InvalidArgument("a tap that writes one file has none to remove", hint=_LIMIT_NEEDED)

    @property
    def is_series(self) -> bool:
        """Whether there may be several files."""
        return bool(self.rotate_bytes or self.rotate_seconds)


_LIMIT_NEEDED = "give rotate_bytes or rotate_seconds with keep_files"


class Tap(Closing):
    """A running tap. Made by Context.tap(); ends with stop(), with its context, or as a context manager."""

    __slots__ = ("_context", "_report", "path")

    def __init__(self, context: CoreContext, path: str | Path, settings: TapSettings) -> None:
        """Start it. The path is that of the file; of a series, that of the directory, which is made."""
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
        """What it has done so far, or in all once it is stopped."""
        if self._report is not None:
            return self._report
        counters = ffi.new("um_tap_counters *")
        lib.um_context_tap_read(self._context.handle, counters)
        return self._read(counters)

    def stop(self) -> TapReport:
        """Write what is still in the ring and close the file. Raises CaptureError if writing failed meanwhile."""
        if self._report is None:
            counters = ffi.new("um_tap_counters *")
            result = self._context.end_tap(self, counters)
            self._report = self._read(counters)
            if result < 0:
                report = self._report
                raise CaptureError(
                    f"tap to {self.path}: {os.strerror(-result)}: the file has {report.datagrams} datagrams "
                    f"and lacks {report.dropped}",
                    errno=-result,
                )
        return self._report

    def close(self) -> None:
        """Stop it."""
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
    """A function that shows the tap of a context datagrams that pass none of its links: topic resolution."""

    def observe(sent: bool, source: Endpoint, destination: Endpoint, data: bytes) -> None:
        # Asked of Python first: a call into C gives up the interpreter's lock, thousands of times a second.
        if context.has_tap and lib.um_context_tap_is_running(context.handle):
            lib.um_context_tap_datagram(
                context.handle, sent, _address(source)[0], _address(destination)[0], data, len(data)
            )

    return observe


def _address(endpoint: Endpoint) -> Any:
    return ffi.new("um_address *", {"ip": int(ipaddress.IPv4Address(endpoint[0])), "port": endpoint[1]})
