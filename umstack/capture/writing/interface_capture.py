"""Captures a network interface into a series of pcapng files."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from umstack._core import ffi, lib
from umstack.capture.writing.egress_way import EgressChoice, WantedWay, open_egress
from umstack.capture.writing.errors import CaptureError
from umstack.capture.writing.file_names import file_name, make_directory
from umstack.capture.writing.frame_origin import FrameOrigin
from umstack.capture.writing.packet_filter import PacketFilter
from umstack.errors import error_from_result
from umstack_xdp.closing import Closing
from umstack_xdp.egress_tap import EgressTap
from umstack_xdp.probe import running_kernel

PART_SUFFIX = ".part"
_SLICE_NS = 100_000_000
_BLOCK_BYTES = 1 << 20
_NS_PER_S = 1_000_000_000
_DRAIN_SLICE_NS = 10_000_000
_DRAIN_SECONDS = 5.0
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Settings of a capture. A file ends at `rotate_bytes` or after `rotate_seconds`; 0: never."""

    packet_filter: PacketFilter | None = None
    """Filter of the packets; None captures everything."""
    snap_bytes: int = 0
    rotate_bytes: int = 0
    rotate_seconds: float = 0.0
    keep_files: int = 0
    """Number of files of this capture to keep; 0: all."""
    ring_bytes: int = 64 << 20
    promiscuous: bool = False
    egress: WantedWay = "auto"
    """Where outgoing packets are captured."""
    stream: Path | None = None
    """Write everything to this pipe instead of to files in the directory; the capture stops when the reader of the pipe
    has closed it. There is no rotation."""


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """Counts of a capture so far."""

    packets: int
    dropped: int
    """Packets lost because a ring of the kernel was full."""
    files: tuple[Path, ...]
    """Complete files that are still kept."""
    splits_runs: bool
    """True if every run of datagrams that the kernel keeps whole (UDP GSO) is written as single datagrams; False if
    only those of LBT-RM are, whose headers are sufficient (Linux before 6.2)."""


def _has_run_headers() -> bool:
    """Return true if packet sockets can describe a UDP GSO run (Linux 6.2); older kernels drop such runs on request."""
    return running_kernel() >= (6, 2)


class InterfaceCapture(Closing):
    """A capture that collects packets from its creation on; `run` writes them. Close it, or use `with`.

    A file's name ends in ".part" until the file is complete. If the process was killed, such a file can be read up to
    its last complete block. An interrupt may occur at any time, also between two files: `close` then continues from
    there.
    """

    def __init__(self, interface: str, directory: str | Path, settings: CaptureSettings) -> None:
        """Open the rings; packets are collected from now on."""
        self.interface = interface
        self.directory = Path(directory)
        self._settings = settings
        self._handle: Any = None
        self._part: Path | None = None
        self._files: deque[Path] = deque()
        self._report = CaptureReport(0, 0, (), splits_runs=False)
        self._egress: EgressTap | None = None
        self._opened_at = 0.0
        self._failed = self._stopping = False
        self._origin = FrameOrigin(interface)
        # Removing a large file may take longer than the rings can buffer.
        self._remover = ThreadPoolExecutor(1, thread_name_prefix="umstack-remover")
        self._removals: deque[Future[None]] = deque()
        self._arrivals = ffi.new("um_interface_capture_arrivals *")
        if settings.stream is None:
            make_directory(self.directory)
        self.egress: EgressChoice
        """Where outgoing packets are captured, and the reason."""
        try:
            self.egress, self._egress = open_egress(
                interface, settings.egress, settings.packet_filter, settings.ring_bytes
            )
            self._open()
        except BaseException:
            self._release()
            raise

    def _open(self) -> None:
        settings = self._settings
        config = ffi.new("um_interface_capture_config *")
        program = settings.packet_filter.program() if settings.packet_filter else []
        text = str(settings.packet_filter or "")
        keep = (
            ffi.new("char[]", self.interface.encode()),
            ffi.new("char[]", text.encode()),
            ffi.new("struct sock_filter[]", program),
        )
        config.interface, config.filter_text, config.filter = keep
        config.filter_length = len(program)
        config.block_bytes = _BLOCK_BYTES
        config.block_count = max(2, settings.ring_bytes // config.block_bytes)
        config.snap_bytes = settings.snap_bytes
        config.is_promiscuous = settings.promiscuous
        config.has_run_headers = _has_run_headers()
        egress = self._egress_config()
        config.egress = egress
        opened = ffi.new("um_interface_capture **")
        result = lib.um_interface_capture_open(config, opened)
        self._handle = opened[0]
        if result < 0:
            step = ffi.string(lib.um_interface_capture_failed_step(self._handle)).decode()
            raise error_from_result(result, f"capturing {self.interface} ({step})")
        # The filter is read only while opening, but its text is written into every file.
        self._filter_text = keep

    def _egress_config(self) -> Any:
        if self._egress is None:
            return ffi.NULL
        config = ffi.new("um_frame_merge_config *")
        config.maps.ring_fd, config.maps.ring_bytes = self._egress.ring_fd, self._egress.ring_bytes
        config.maps.counters_fd = self._egress.counters_fd
        config.mirror_index = self._egress.mirror_index
        for socket_filter, found in (
            (config.incoming, self._egress.incoming),
            (config.mirrored, self._egress.mirrored),
        ):
            socket_filter.program_fd, socket_filter.stamps_fd = found.program_fd, found.stamps_fd
        return config

    def run(
        self, seconds: float | None = None, on_progress: Callable[[CaptureReport], None] | None = None
    ) -> None:
        """Write packets for `duration` seconds (None: forever), or until stop() is called."""
        if self._part is None:
            self._begin_file()
        end = None if seconds is None else time.monotonic() + seconds
        while not self._stopping and (end is None or time.monotonic() < end):
            left_ns = _SLICE_NS if end is None else int((end - time.monotonic()) * _NS_PER_S)
            self._write(max(0, min(left_ns, _SLICE_NS)))
            if on_progress is not None:
                on_progress(self.report())

    def stop(self) -> None:
        """Make run() return soon. For signal handlers and other threads."""
        self._stopping = True

    def _write(self, timeout_ns: int) -> None:
        if self._is_due():
            self._next_file()
        result = lib.um_interface_capture_wait(self._handle, timeout_ns)
        if result == 0:
            known = self._origin.look()
            self._arrivals.until_ns, self._arrivals.queue, self._arrivals.verdict = known
            limit_bytes = self._settings.rotate_bytes
            result = lib.um_interface_capture_write(self._handle, self._arrivals, limit_bytes)
            self._failed = result < 0  # packets of a removed interface are still written
        if self._has_lost_reader(result):
            self.stop()
        elif result < 0 and -result in _DISK_ERRORS:
            raise self._failure(-result)
        elif result < 0:
            raise error_from_result(result, f"capturing {self.interface}")

    def _has_lost_reader(self, result: int) -> bool:
        """Return true if the reader has closed the pipe, which ends a live capture."""
        return self._settings.stream is not None and result == -errno.EPIPE

    def _is_due(self) -> bool:
        """Return true if the open file has reached its size or age; a file without packets stays open."""
        settings = self._settings
        counters = self._counters()
        if counters.file_packet_count == 0:
            return False
        aged = settings.rotate_seconds and time.monotonic() - self._opened_at >= settings.rotate_seconds
        return bool(aged or (settings.rotate_bytes and counters.file_bytes >= settings.rotate_bytes))

    def _failure(self, number: int) -> CaptureError:
        return CaptureError(
            f"capturing {self.interface} to {self._part}: {os.strerror(number)}", errno=number
        )

    def _next_file(self) -> None:
        while self._removals and self._removals[0].done():
            self._removals.popleft().result()
        self._end_file()
        self._begin_file()

    def _begin_file(self) -> None:
        self._part = self._settings.stream or self._new_part()
        self._opened_at = time.monotonic()
        result = lib.um_interface_capture_begin_file(self._handle, os.fsencode(self._part))
        self._failed = result < 0
        if self._has_lost_reader(result):
            self.stop()
        elif result < 0:
            raise self._failure(-result)

    def _new_part(self) -> Path:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        return self.directory / f"{file_name(self.interface)}-{stamp}.pcapng{PART_SUFFIX}"

    def _end_file(self) -> None:
        """Complete the file; after a full disk it is truncated to its last complete packet.

        An interrupted call may have done some of the steps already.
        """
        if self._part is None:
            return
        result = lib.um_interface_capture_end_file(self._handle)
        whole = self._part if self._settings.stream else self._keep(self._part)
        self._part = None
        while self._settings.keep_files and len(self._files) > self._settings.keep_files:
            self._removals.append(self._remover.submit(self._files[0].unlink, missing_ok=True))
            self._files.popleft()
        if result < 0 and not self._has_lost_reader(result):
            self._failed = True
            raise CaptureError(
                f"capturing {self.interface} to {whole}: {os.strerror(-result)}", errno=-result
            )

    def _keep(self, part: Path) -> Path:
        """Rename a complete file to its final name."""
        whole = part.with_suffix("")
        if part.exists():
            part.rename(whole)
        if whole.exists() and whole not in self._files:
            self._files.append(whole)
        return whole

    def _counters(self) -> Any:
        counters = ffi.new("um_interface_capture_counters *")
        lib.um_interface_capture_read(self._handle, counters)
        return counters

    def report(self) -> CaptureReport:
        """Return the counts so far, or the final ones once closed."""
        if self._handle is not None:
            counters = self._counters()
            splits_runs = bool(lib.um_interface_capture_splits_runs(self._handle))
            self._report = CaptureReport(
                counters.packet_count, counters.drop_count, tuple(self._files), splits_runs
            )
        return self._report

    def close(self) -> None:
        """Write the packets that have arrived, end the last file and stop."""
        if self._handle is None:
            return
        try:
            try:
                self._drain()
            finally:
                self._end_file()
        finally:
            self.report()
            self._release()

    def _drain(self) -> None:
        """Write the rest of the ring; the kernel releases a part of it with a delay."""
        has_begun = self._part is not None or self._files
        if self._failed or not has_begun:
            return
        if not lib.um_interface_capture_has_file(self._handle):
            self._next_file()
        if self._egress is not None:
            self._egress.detach()
        if lib.um_interface_capture_end_arrivals(self._handle) < 0:
            return
        end = time.monotonic() + _DRAIN_SECONDS
        while not lib.um_interface_capture_is_drained(self._handle) and time.monotonic() < end:
            self._write(_DRAIN_SLICE_NS)

    def _release(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            if handle:
                lib.um_interface_capture_close(handle)
        if self._egress is not None:
            self._egress.close()
        self._remover.shutdown()
        while self._removals:
            self._removals.popleft().result()
