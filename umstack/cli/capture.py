"""`umstack capture`: captures the traffic of an interface to pcapng files."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import click

from umstack.capture.writing.egress_way import WantedWay
from umstack.capture.writing.interface_capture import CaptureReport, CaptureSettings, InterfaceCapture
from umstack.capture.writing.packet_filter import PacketFilter
from umstack.cli.interruption import INTERRUPTED_STATUS, stoppable, terminable
from umstack.cli.meter import Meter
from umstack.cli.service_manager import ServiceManager
from umstack.cli.stack_options import JSON_OPTION, configuration
from umstack.config import Scope

_MEGABYTE = 1 << 20
_STANDARD_OUTPUT = Path("/proc/self/fd/1")
_EXAMPLES = """\b
Examples:
  umstack capture eth1
  umstack capture eth1 --out /var/captures --rotate-size 100 --files 20
  umstack capture eth1 --group 224.10.10.10-224.10.10.14 --port 14400 --seconds 60 --json
  umstack capture eth1 --all --snaplen 128
  umstack capture eth1 --live | wireshark -k -i -
"""


EGRESS_OPTION = click.option(
    "--egress",
    type=click.Choice(["auto", "tc", "device"]),
    default="auto",
    show_default=True,
    help="Where sent datagrams are captured: at the device, or before the kernel segments them, "
    "which costs the sender less.",
)

PRIORITY_OPTION = click.option(
    "--priority",
    type=click.Choice(["idle", "normal"]),
    default="idle",
    show_default=True,
    help="CPU priority of the capture: idle time only, or a normal share.",
)


@click.command(epilog=_EXAMPLES)
@click.argument("interface", metavar="IFACE")
@click.option(
    "--out", "directory", metavar="DIR", help="Directory for the files. Default: the current directory."
)
@click.option("--live", is_flag=True, help="Write to standard output (for Wireshark) instead of files.")
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="ADDRESS",
    help="Capture this group, range A-B or network; repeatable.",
)
@click.option(
    "--port", "ports", multiple=True, metavar="PORT", help="Capture only this port of the groups; repeatable."
)
@click.option("--all", "everything", is_flag=True, help="Capture every frame, not only the stack's.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="Stop after this many seconds. Default: at Ctrl-C.",
)
@click.option(
    "--rotate-size",
    type=click.FloatRange(0, min_open=True),
    metavar="MIB",
    help="Start a new file at this size.",
)
@click.option(
    "--rotate-seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Start a new file after this many seconds.",
)
@click.option(
    "--files", "keep_files", type=click.IntRange(1), metavar="N", help="Keep the last N files of this run."
)
@click.option(
    "--snaplen", type=click.IntRange(64), metavar="BYTES", help="Bytes to keep of each frame. Default: all."
)
@click.option(
    "--ring",
    "ring_mebibytes",
    type=click.IntRange(2, 2048),
    default=64,
    show_default=True,
    metavar="MIB",
    help="Buffer memory.",
)
@PRIORITY_OPTION
@EGRESS_OPTION
@click.option("--promiscuous", is_flag=True, help="Capture frames for other hosts, too, as on a mirror port.")
@click.option(
    "-c", "--config", "config_file", metavar="FILE", help="Configuration file with the groups and ports."
)
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option of the stack; repeatable.",
)
@JSON_OPTION
def command(
    interface: str,
    directory: str | None,
    live: bool,
    groups: tuple[str, ...],
    ports: tuple[str, ...],
    everything: bool,
    seconds: float | None,
    rotate_size: float | None,
    rotate_seconds: float | None,
    keep_files: int | None,
    snaplen: int | None,
    ring_mebibytes: int,
    priority: str,
    egress: WantedWay,
    promiscuous: bool,
    config_file: str | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Capture the traffic of the interface IFACE: the stack's groups, or all frames.

    Files are named umstack-IFACE-TIME.pcapng, with the suffix .part until they are complete. Frames that an XDP program
    redirects are not captured: use a context's tap for those. The data path has priority: a capture with too little
    CPU time drops packets and slows no other process. Use --priority normal if the capture matters more.

    With --live the packets are written to standard output as they arrive, until the reader closes it.

    Exits with status 0 if it ran for the requested time. Dropped packets are counted in the files and in the summary.
    """
    if everything and (groups or ports):
        raise click.UsageError("--all cannot be used with --group or --port")
    if live:
        given = (directory, rotate_size, rotate_seconds, keep_files, as_json or None)
        _check_live(any(value is not None for value in given))
    config = configuration((Scope.CONTEXT, Scope.SOURCE), {}, config_file, options)
    settings = CaptureSettings(
        packet_filter=None if everything else PacketFilter.of_configuration(config).narrowed(groups, ports),
        snap_bytes=snaplen or 0,
        rotate_bytes=int((rotate_size or 0) * _MEGABYTE),
        rotate_seconds=rotate_seconds or 0.0,
        keep_files=keep_files or 0,
        ring_bytes=ring_mebibytes * _MEGABYTE,
        promiscuous=promiscuous,
        egress=egress,
        stream=_STANDARD_OUTPUT if live else None,
    )
    usual = os.sched_getscheduler(0), os.sched_getparam(0)
    started, started_cpu = time.monotonic(), time.process_time()
    with (
        Meter() as meter,
        terminable(once=True),
        InterfaceCapture(interface, directory or ".", settings) as capture,
        stoppable(capture.stop) as asked,
    ):
        _note_cost(capture)
        _note_runs(capture)
        ServiceManager().announce_readiness()
        # Not earlier: on a busy host, a refusal would take many seconds to be reported at this priority.
        if priority == "idle":
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            capture.run(seconds, lambda report: meter.show(_progress(report)))
        finally:
            # Draining the ring is limited in time, as is the report of an error, and must not wait for an idle CPU.
            # To leave the idle class, a process needs CAP_SYS_NICE or a limit that allows its nice value.
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(0, *usual)
    _print_summary(
        capture,
        time.monotonic() - started,
        time.process_time() - started_cpu,
        cut_short=asked.has_come and seconds is not None,
        as_json=as_json,
    )


def _check_live(has_files: bool) -> None:
    if has_files:
        raise click.UsageError(
            "--live writes packets to standard output: leave out --out, --rotate-*, --files and --json"
        )
    if sys.stdout.isatty():
        raise click.UsageError(
            "--live writes packets to standard output; pipe it to a reader: "
            "'umstack capture eth1 --live | wireshark -k -i -'"
        )


def _note_cost(capture: InterfaceCapture) -> None:
    if capture.egress.is_costly:
        click.echo(
            f"note: a sender on this host pays for every datagram captured: {capture.egress.reason}", err=True
        )
    if capture.egress.copied:
        click.echo(f"note: the sender copies each outgoing datagram: {capture.egress.copied}", err=True)


def _note_runs(capture: InterfaceCapture) -> None:
    if not capture.report().splits_runs:
        click.echo(
            "note: this kernel (Linux before 6.2) does not report how GRO joined datagrams: those of LBT-RM are "
            "written one by one, others as they were joined",
            err=True,
        )


def _progress(report: CaptureReport) -> str:
    dropped = f", {report.dropped:,} dropped" if report.dropped else ""
    return f"captured {report.packets:,} packets{dropped}"


def _print_summary(
    capture: InterfaceCapture, seconds: float, cpu_seconds: float, *, cut_short: bool, as_json: bool
) -> None:
    report = capture.report()
    if as_json:
        summary = {
            "ok": not cut_short,
            "interface": capture.interface,
            "packets": report.packets,
            "dropped": report.dropped,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "files": [str(file) for file in report.files],
            "splits_runs": report.splits_runs,
            "egress": capture.egress.way,
            "egress_reason": capture.egress.reason,
            "egress_copied": capture.egress.copied,
        }
        click.echo(json.dumps(summary))
    else:
        for file in report.files:
            click.echo(file)
        seen_at = "tc egress" if capture.egress.way == "tc" else "the device"
        click.echo(
            f"{_progress(report)} in {seconds:.1f} s; outgoing datagrams were captured at {seen_at}", err=True
        )
    if cut_short:
        raise SystemExit(INTERRUPTED_STATUS)
