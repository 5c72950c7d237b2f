"""`umstack decode`: prints the packets of captures, or writes them as JSON, CSV or Parquet."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import click

from umstack._engine.core_address import named
from umstack.capture import SCHEMA, CaptureNotes, CapturePorts, decode
from umstack.capture.reading.schema import arrow
from umstack.cli.meter import Meter
from umstack.cli.stack_options import HARDWARE_TIMES_OPTION, JSON_OPTION
from umstack.errors import naming_path
from umstack.foreign_text import displayed, displayed_lines

_EXAMPLES = """\b
Examples:
  umstack decode switch.pcapng | less
  umstack decode capture.pcap.gz --type NAK --type NCF
  umstack decode captures/*.pcap --parquet packets.parquet
  umstack decode capture.pcapng --json
"""
_TYPES = ("DATA", "SM", "NAK", "NCF", "STATUS", "LBMR", "TCP", "ACK", "CREQ", "RST", "FILTER")
_SQNS_SHOWN = 8
_CONTROL_BYTES = {
    ("LBT-RM", "SM"): 24, ("LBT-RM", "NAK"): 12, ("LBT-RM", "NCF"): 16,
    ("LBT-RU", "SM"): 16, ("LBT-RU", "NAK"): 8, ("LBT-RU", "NCF"): 12, ("LBT-RU", "ACK"): 8, ("LBT-RU", "CREQ"): 4,
    ("LBT-RU", "RST"): 4,
}  # fmt: skip
"""Bytes of UDP payload, without a list of sequence numbers and without LBT-RU's options."""
_OPTION_BYTES = 8
_COOKIE_BYTES = 20
_TRAILER_BYTES = 28
_CSV_LEFT_OUT = ("sqns", "messages", "advertisements")


def _ports(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """Read `14400` or `14390-14401`."""
    first, _, last = value.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()):
        raise click.BadParameter(f"{value} is neither a port nor a range of ports")
    low, high = int(first), int(last or first)
    if not low <= high <= 65535:
        raise click.BadParameter(f"{value} is not a range within 0-65535")
    return low, high


@click.command(epilog=_EXAMPLES)
@click.argument("captures", nargs=-1, required=True, type=click.Path(), metavar="CAPTURE...")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(_TYPES),
    help="Show only packets of this type; repeatable.",
)
@click.option("--all", "everything", is_flag=True, help="Also show packets of other protocols.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after N packets.")
@click.option("--parquet", type=click.Path(), metavar="FILE", help="Write all columns to a Parquet file.")
@click.option(
    "--csv", "csv_file", type=click.Path(), metavar="FILE", help="Write all columns except lists as CSV."
)
@click.option(
    "--lbtrm-ports",
    default="14390-14401",
    metavar="FIRST[-LAST]",
    show_default=True,
    callback=_ports,
    help="UDP ports of LBT-RM.",
)
@click.option(
    "--lbtru-ports",
    default="14360-14389",
    metavar="FIRST[-LAST]",
    show_default=True,
    callback=_ports,
    help="UDP ports of LBT-RU, of sources and of receivers.",
)
@click.option(
    "--resolution-ports",
    default="12965",
    metavar="FIRST[-LAST]",
    show_default=True,
    callback=_ports,
    help="UDP ports of topic resolution.",
)
@click.option(
    "--tcp-ports",
    default="14371-14395",
    metavar="FIRST[-LAST]",
    show_default=True,
    callback=_ports,
    help="TCP ports of sources: LBT-TCP, late join and off-transport recovery.",
)
@click.option(
    "--store-ports",
    default="14567-14569",
    metavar="FIRST[-LAST]",
    show_default=True,
    callback=_ports,
    help="TCP ports of Stores.",
)
@HARDWARE_TIMES_OPTION
@JSON_OPTION
def command(
    captures: tuple[str, ...],
    types: tuple[str, ...],
    everything: bool,
    limit: int | None,
    parquet: str | None,
    csv_file: str | None,
    lbtrm_ports: tuple[int, int],
    lbtru_ports: tuple[int, int],
    resolution_ports: tuple[int, int],
    tcp_ports: tuple[int, int],
    store_ports: tuple[int, int],
    hardware_times: bool,
    as_json: bool,
) -> None:
    """Show the packets in captures: pcap, pcapng or ERF, plain or compressed with gzip or zstd.

    Notes on a file, such as truncation or a clock step, are written to standard error. --json prints one object with
    counts and these notes; rows are written only to --parquet or --csv.
    """
    files = [CaptureNotes(path=path) for path in captures]
    ports = CapturePorts(lbtrm_ports, resolution_ports, tcp_ports, lbtru_ports, store_ports)
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        writers = [_parquet_writer(stack, parquet)] if parquet else []
        writers += [_csv_writer(stack, csv_file)] if csv_file else []
        shown = not (as_json or writers)
        meter = stack.enter_context(Meter(enabled=not shown))
        for batch in _limited(_batches(files, ports, everything, types, hardware_times, meter), limit):
            counts.update(_counted(batch))
            for writer in writers:
                writer(batch)
            if shown:
                _show(batch)
    _report(files, counts, as_json)
    if any(note.rows_are_missing for notes in files for note in notes.notes):
        sys.exit(1)


def _batches(
    files: list[CaptureNotes],
    ports: CapturePorts,
    everything: bool,
    types: tuple[str, ...],
    hardware_times: bool,
    meter: Meter,
) -> Iterator[Any]:
    rows = 0
    for notes in files:
        for batch in decode(
            notes.path, only_ours=not everything, ports=ports, notes=notes, hardware_times=hardware_times
        ):
            rows += batch.num_rows
            meter.show(f"{notes.path}: {rows:,} packets")
            yield _of_types(batch, types)


def _of_types(batch: Any, types: tuple[str, ...]) -> Any:
    if not types:
        return batch
    import pyarrow.compute as compute

    return batch.filter(compute.is_in(batch["packet_type"], arrow().array(types)))


def _limited(batches: Iterator[Any], limit: int | None) -> Iterator[Any]:
    left = limit
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return


def _counted(batch: Any) -> dict[str, int]:
    """Count packets by type, or by status if they have no type or are malformed."""
    groups = (
        arrow().Table.from_batches([batch]).group_by(["packet_type", "status"]).aggregate([([], "count_all")])
    )
    counts: Counter[str] = Counter()
    for row in groups.to_pylist():
        name = row["packet_type"] if row["packet_type"] and row["status"] == "ok" else row["status"]
        counts[name] += row["count_all"]
    return dict(counts)


def _parquet_writer(stack: ExitStack, path: str) -> Any:
    import pyarrow.parquet as parquet

    with naming_path(f"writing {path}"):
        writer = stack.enter_context(parquet.ParquetWriter(path, SCHEMA, compression="zstd"))
    return writer.write_batch


def _csv_writer(stack: ExitStack, path: str) -> Any:
    import pyarrow.csv as csv

    fields = [field for field in SCHEMA if field.name not in _CSV_LEFT_OUT]
    names = [field.name for field in fields]
    with naming_path(f"writing {path}"):
        writer = stack.enter_context(csv.CSVWriter(path, arrow().schema(fields)))
    return lambda batch: writer.write_batch(batch.select(names))


def _show(batch: Any) -> None:
    """Format a packet as one line."""
    lines = [_line(row) for row in batch.to_pylist()]
    if lines:
        click.echo("\n".join(lines))


def _line(row: dict[str, Any]) -> str:
    when = "-" if row["time_ns"] is None else _when(row["time_ns"])
    ends = f"{_end(row, 'source')} > {_end(row, 'destination')}"
    what = row["packet_type"] or "-"
    session = "" if row["session_id"] is None else f" {row['session_id']:08x}"
    client = "" if row["client_id"] is None else f" client {row['client_id']:08x}"
    tag = " tag" if _has_trailer(row) else ""
    status = "" if row["status"] == "ok" else f"  [{row['status']}]"
    return f"{when}  {ends:<44} {what:<6}{session}{client}{_details(row)}{tag}{status}".rstrip()


def _when(time_ns: int) -> str:
    """Format a time as UTC with nanoseconds; a time out of range (damaged file) as a number."""
    seconds, fraction = divmod(time_ns, 10**9)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{fraction:09}"
    except (OverflowError, ValueError):
        return f"{seconds}.{fraction:09}"


def _end(row: dict[str, Any], end: str) -> str:
    address, port = row[f"{end}_address"], row[f"{end}_port"]
    if address is None:
        return "-"
    return address if port is None else named(address, port)


def _details(row: dict[str, Any]) -> str:
    kind = row["packet_type"]
    if kind == "STATUS" and row["next_sqn"] is not None:
        return f" next {row['next_sqn']} window {row['window_bytes']:,}"
    if kind in ("DATA", "STATUS") and row["transport_sqn"] is not None:
        again = " again" if row["retransmission"] else ""
        return f" sqn {row['transport_sqn']}{again} trail {row['trail_sqn']} {_messages(row['messages'])}"
    if kind == "FILTER":
        return f" {row['sqns'][0]} to {row['sqns'][1]} passed over" if row["sqns"] else " nothing passed over"
    if kind == "TCP":
        purpose = f" {row['recovery'].replace('_', ' ')}:" if row["recovery"] else ""
        return f"{purpose} {_messages(row['messages'])}" if row["tcp_bytes"] else purpose.rstrip(":")
    if kind == "ACK" and row["ack_sqn"] is not None:
        return f" sqn {row['ack_sqn']}"
    if kind == "SM" and row["lead_sqn"] is not None:
        behind = int(row["udp_bytes"] or 0) - _CONTROL_BYTES.get((row["transport"], kind), 0)
        padded = (
            f" {behind} more bytes"
            if row["transport"] == "LBT-RM" and behind > _COOKIE_BYTES + _TRAILER_BYTES
            else ""
        )
        return f" {row['sm_sqn']} lead {row['lead_sqn']} trail {row['trail_sqn']}{padded}"
    if row["advertisements"] is not None:
        return " " + " ".join(
            f"{displayed(one['topic'])}={one['topic_index']}" for one in row["advertisements"]
        )
    if row["sqns"] is not None:
        reason = f" {row['ncf_reason']}" if row["ncf_reason"] else ""
        more = f" and {len(row['sqns']) - _SQNS_SHOWN} more" if len(row["sqns"]) > _SQNS_SHOWN else ""
        return f"{reason} {' '.join(map(str, row['sqns'][:_SQNS_SHOWN]))}{more}"
    return ""


def _has_trailer(row: dict[str, Any]) -> bool:
    """True if a control datagram has an authentication trailer, judged by its length; DATA has a header for it."""
    kind = row["packet_type"]
    if kind in ("STATUS", "FILTER"):
        return any(message["kind"] == "tag" for message in row["messages"] or ())
    fixed = _CONTROL_BYTES.get((row["transport"], kind))
    if fixed is None or row["udp_bytes"] is None or row["status"] != "ok":
        return False
    options = 0
    if row["transport"] == "LBT-RU":
        options = _OPTION_BYTES * ((row["session_id"] is not None) + (row["client_id"] is not None))
    tagged = fixed + 4 * len(row["sqns"] or ()) + options + _TRAILER_BYTES
    return int(row["udp_bytes"]) in (tagged, tagged + (_COOKIE_BYTES if kind == "SM" else 0))


def _messages(messages: list[dict[str, Any]]) -> str:
    """Format counts such as `2 messages of 34 bytes`."""
    kinds = Counter(message["kind"] for message in messages)
    size = sum(message["payload_bytes"] for message in messages)
    texts = [
        f"{count} {kind}{'s' if count > 1 and kind == 'message' else ''}" for kind, count in kinds.items()
    ]
    return f"{', '.join(texts)}, {size} bytes" if texts else "empty"


def _report(files: list[CaptureNotes], counts: Counter[str], as_json: bool) -> None:
    if not as_json:
        for notes in files:
            if notes.notes:
                click.echo(displayed_lines(str(notes)), err=True)
        return
    described = [
        {
            "path": notes.path,
            "format": notes.format,
            "compression": notes.compression,
            "packets": notes.packets,
            "notes": [
                {"kind": note.kind, "text": note.text, "position": note.position} for note in notes.notes
            ],
        }
        for notes in files
    ]
    click.echo(json.dumps({"packets": dict(counts), "files": described}))
