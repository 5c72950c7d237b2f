"""The text tables that `umstack bench` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table

from umstack.bench.compare import Row
from umstack.bench.result import Result
from umstack.bench.targets import Target

_BASELINES = ("raw-udp", "raw-udp-packed", "raw-udp-gso", "raw-xdp")


def empty_table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=SIMPLE, show_edge=False)
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table


def rate_text(per_second: float | None) -> str:
    """Format a rate."""
    if per_second is None:
        return ""
    return f"{per_second / 1e6:.3f} M" if per_second >= 100_000 else f"{per_second:,.0f}"


def ratio_text(one: Mapping[str, Any], baseline: str) -> str:
    found = (one["ratios"] or {}).get(baseline)
    return f"{found:.2f}" if found is not None else ""


def count_text(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _cpu(one: Result) -> tuple[str, str]:
    """Return CPU nanoseconds per message at the publisher and at the subscriber."""
    sent = (one["detail"] or {}).get("sent")
    if not sent:
        return "", ""
    spent = one["cpu_seconds"]
    return f"{spent['publisher'] / sent * 1e9:,.0f}", f"{spent['subscriber'] / sent * 1e9:,.0f}"


def throughput_table(results: Sequence[Result]) -> Table:
    """Return a table of rates next to raw sockets, and of faults."""
    left = ("what", "size", "API")
    right = (
        "messages/s",
        "datagrams/s",
        "x raw",
        "x packed",
        "x GSO",
        "x rings",
        "cpu ns: send",
        "receive",
        "lost",
    )
    table = empty_table(left, (*right, "disordered", "retransmitted"))
    for one in results:
        table.add_row(
            one["what"],
            str(one["size"]),
            one["api"] or "",
            rate_text(one["messages_per_second"]),
            rate_text(one["datagrams_per_second"]),
            *(ratio_text(one, baseline) for baseline in _BASELINES),
            *_cpu(one),
            count_text(one["lost"]),
            count_text(one["out_of_order"]),
            count_text(one["retransmissions"]),
        )
    return table


def latency_table(results: Sequence[Result]) -> Table:
    """Return a table of round trips in microseconds."""
    table = empty_table(
        ("what", "wait", "loop"),
        ("p50 us", "p99 us", "p99.9 us", "x raw", "x rings", "x TCP", "x ZeroMQ", "round trips"),
    )
    for one in results:
        trip = one["round_trip_us"]
        table.add_row(
            one["what"],
            one["wait"],
            one["loop"],
            *(f"{trip[key]:.1f}" for key in ("p50", "p99", "p999")),
            ratio_text(one, "raw-udp"),
            ratio_text(one, "raw-xdp"),
            ratio_text(one, "raw-tcp"),
            ratio_text(one, "zmq-pair-python"),
            count_text((one["detail"] or {}).get("samples")),
        )
    return table


def recovery_tables(results: Sequence[Result]) -> Group:
    """Return the tables of a recovery measurement: the second only if there were captures."""
    tables = [_recovery_table(results)]
    if any((one["detail"] or {}).get("recovery") for one in results):
        tables.append(_stall_table(results))
    return Group(*tables)


def _recovery_table(results: Sequence[Result]) -> Table:
    """Return a table of rates with and without loss, and of the recovery."""
    right = (
        "messages/s",
        "x lossless",
        "x no program",
        "lost by the switch",
        "NAKs each",
        "recovery ms",
        "longest",
    )
    table = empty_table(("what", "size", "loss"), (*right, "unrecoverable", "p50 us", "p99 us", "p99.9 us"))
    for one in results:
        detail, trip = one["detail"], one["round_trip_us"]
        naks, took = detail.get("naks_per_datagram_dropped"), detail.get("recovery_ms") or {}
        table.add_row(
            f"{one['what']} round trip" if trip else one["what"],
            str(one["size"]),
            f"{detail.get('loss', 0):.2%}" if detail.get("has_port_program", True) else "no program",
            "" if trip else rate_text(one["messages_per_second"]),
            *(ratio_text(one, baseline) for baseline in ("lossless", "no program")),
            count_text(detail.get("datagrams_dropped")),
            "" if naks is None else f"{naks:.3f}",
            *(f"{took[key]:.2f}" if took.get(key) else "" for key in ("mean", "max")),
            count_text(one["unrecoverable"]),
            *(f"{trip[key]:.0f}" if trip else "" for key in ("p50", "p99", "p999")),
        )
    return table


def _stall_table(results: Sequence[Result]) -> Table:
    """Return a table of stalls and times to repair, for all subscribers of a stream and for each."""
    times = ("NAK to repair p50 ms", "p99 ms", "p99.9 ms")
    right = ("losses", "repairs per loss", "NAKs per loss", *times, "standing still", "not captured")
    table = empty_table(("loss", "subscriber"), right)
    for one in results:
        found = (one["detail"] or {}).get("recovery")
        if found is None:
            continue
        whole = found | {"address": "all", "still": found["standing_share"]}
        for row in (whole, *(one | {"still": one["holding_share"]} for one in found["subscribers"])):
            took = row["nak_to_repair_ms"]
            table.add_row(
                f"{one['detail'].get('loss', 0):.2%}" if row["address"] == "all" else "",
                row["address"],
                count_text(row["losses"]),
                *(_decimal(row.get(name)) for name in ("repairs_per_loss", "naks_per_loss")),
                *(_decimal(took[at]) for at in ("p50", "p99", "p999")),
                "" if row["still"] is None else f"{row['still']:.2%}",
                count_text(row.get("not_captured")),
            )
    return table


def _decimal(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def flow_table(results: Sequence[Result]) -> Table:
    """Return a table of the rate a stream settled at, next to the maximum of its slowest subscriber."""
    table = empty_table(
        ("what", "size"), ("subscribers", "us per message", "own maximum", "settled", "x", "lost")
    )
    for one in results:
        detail = one["detail"]
        table.add_row(
            one["what"],
            str(one["size"]),
            str(detail["receivers"]),
            f"{detail['cost_us']:g}",
            rate_text(detail["own_maximum"]),
            rate_text(one["messages_per_second"]),
            ratio_text(one, "own_maximum"),
            count_text(one["lost"]),
        )
    return table


def isolation_table(results: Sequence[Result]) -> Table:
    """Return a table of the healthy topics' rate and delay, with the first topic read and never read."""
    table = empty_table(
        ("link", "size"), ("topics", "first topic", "messages/s", "p50 us", "p99 us", "x", "lost")
    )
    for one in results:
        detail = one["detail"]
        table.add_row(
            one["mode"],
            str(one["size"]),
            str(detail["topics"]),
            detail["first_topic"],
            rate_text(one["messages_per_second"]),
            f"{detail['delays_us']['p50']:,.0f}",
            f"{detail['delays_us']['p99']:,.0f}",
            ratio_text(one, "all_read"),
            count_text(one["lost"]),
        )
    return table


def ipc_table(results: Sequence[Result]) -> Table:
    """Return a table of streams and round trips through shared memory, beside those of a bare ring."""
    table = empty_table(
        ("what", "loop", "wait"), ("size", "readers", "messages/s", "p50 us", "p99 us", "x ring", "lost")
    )
    for one in results:
        trip = one["round_trip_us"]
        table.add_row(
            one["what"],
            one["loop"] or "",
            one["wait"] or "",
            str(one["size"]),
            str((one["detail"] or {}).get("readers", "")),
            "" if trip else rate_text(one["messages_per_second"]),
            f"{trip['p50']:.2f}" if trip else "",
            f"{trip['p99']:.2f}" if trip else "",
            ratio_text(one, "bare-ring"),
            count_text(one["lost"]),
        )
    return table


def store_table(results: Sequence[Result]) -> Table:
    """Return a table of the bytes that a repository writes, beside those of a loop of write and sync."""
    table = empty_table(("what",), ("size", "messages/s", "MB/s on disk", "commits", "x loop", "lost"))
    for one in results:
        detail = one["detail"]
        table.add_row(
            one["what"],
            str(one["size"]),
            rate_text(one["messages_per_second"]),
            f"{detail['disk_bytes_per_second'] / 1e6:.0f}",
            str(detail["commits"]),
            ratio_text(one, "write-loop"),
            count_text(one["lost"]),
        )
    return table


def store_tables(results: Sequence[Result]) -> Group:
    """Return the tables of a repository and of the streams that Stores keep."""
    streams = [one for one in results if "stores" in one["detail"]]
    return Group(store_table([one for one in results if one not in streams]), _store_stream_table(streams))


def _store_stream_table(results: Sequence[Result]) -> Table:
    """Return a table of streams without and with Stores."""
    right = ("size", "live messages/s", "x no Store", "stable messages/s", "send to stable p50 us", "p99 us")
    table = empty_table(("Stores",), (*right, "sync p50 us", "p99 us", "replayed messages/s", "lost"))
    for one in results:
        detail = one["detail"]
        times = [
            f"{detail[key][point]:,.0f}" if detail["stores"] else ""
            for key in ("stable_us", "sync_us")
            for point in ("p50_us", "p99_us")
        ]
        stable, replayed = (
            rate_text(detail[key]) if detail["stores"] else ""
            for key in ("stable_per_second", "replayed_per_second")
        )
        table.add_row(
            str(detail["stores"]),
            str(one["size"]),
            rate_text(one["messages_per_second"]),
            ratio_text(one, "no Store"),
            stable,
            *times,
            replayed,
            count_text(one["lost"]),
        )
    return table


def scale_table(results: Sequence[Result]) -> Table:
    """Return a table of the CPU cost per message by number of topics and subscribers."""
    right = ("topics", "subscribers", "messages/s", "cpu ns: send", "receive", "compared")
    table = empty_table(("what", "size"), (*right, "lost"))
    for one in results:
        detail = one["detail"]
        sent = detail["sent"]
        spent = (detail["publisher_cpu_seconds_until_sent"], one["cpu_seconds"]["subscriber"])
        ratios = one["ratios"] or {}
        table.add_row(
            one["what"],
            str(one["size"]),
            str(detail.get("topics", "")),
            str(detail["receivers"]),
            rate_text(one["messages_per_second"]),
            *(f"{seconds / sent * 1e9:,.0f}" for seconds in spent),
            ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in ratios.items()),
            count_text(one["lost"]),
        )
    return table


def comparison_table(rows: Sequence[Row], waits: Sequence[str]) -> Table:
    """Return a table of both links and the raw baselines by message size."""
    trips = [f"{wait}: {key} us" for wait in waits for key in ("p50", "p99")]
    right = ("messages/s", "datagrams/s", "x sockets", "cpu ns: send", "receive", *trips)
    table = empty_table(("size", "what"), right)
    for row, before in zip(rows, [None, *rows], strict=False):
        if before is not None and before.size != row.size:
            table.add_section()
        times = [row.round_trip_us.get(wait, {}).get(key) for wait in waits for key in ("p50", "p99")]
        table.add_row(
            str(row.size) if before is None or before.size != row.size else "",
            row.what,
            rate_text(row.messages_per_second),
            rate_text(row.datagrams_per_second),
            "" if row.to_sockets is None else f"{row.to_sockets:.2f}",
            *("" if spent is None else f"{spent:,.0f}" for spent in (row.publisher_ns, row.subscriber_ns)),
            *("" if time is None else f"{time:.1f}" for time in times),
        )
    return table


def target_table(targets: Sequence[Target]) -> Table:
    """Return a table of targets, measured values and verdicts."""
    table = empty_table(("target",), ("measured", "demanded", "aim", "met"))
    for target in targets:
        verdict = "[green]yes[/]" if target.is_met else "[red]no[/]"
        aim = "" if target.aim is None else f"{target.aim:g}"
        table.add_row(
            target.what,
            "none" if target.measured is None else f"{target.measured:.3g} {target.unit}",
            f"{target.sense} {target.bound:g}",
            aim,
            f"{verdict}{', aim too' if target.is_aim_met else ''}",
        )
    return table


def pipeline_table(found: Mapping[str, Any]) -> Table:
    """Return a table of a decode or report measurement, one line per figure."""
    table = empty_table((str(found["what"]),), ("",))
    table.add_row("packets", f"{found['packets']:,}")
    table.add_row("packets/s", rate_text(found["packets_per_second"]))
    if found["what"] == "decode":
        table.add_row("packets/s of tshark", rate_text(found["tshark_packets_per_second"]) or "not installed")
        table.add_row("x tshark", ratio_text(found, "tshark"))
        return table
    table.add_row("seconds", f"{found['seconds']:.1f}")
    table.add_row("cpu s", f"{found['cpu_seconds']:.1f}")
    _add_memory(table, found)
    return table


def _add_memory(table: Table, found: Mapping[str, Any]) -> None:
    for kind, peak in found["peak_memory_bytes"].items():
        table.add_row(f"MiB at most: {kind.replace('_', ' ')}", f"{peak / (1 << 20):,.0f}")


def live_table(found: Mapping[str, Any]) -> Table:
    """Return a table of a live query, one line per figure."""
    table = empty_table(("live",), ("",))
    table.add_row("messages", f"{found['messages']:,}")
    table.add_row("messages/s: offered", rate_text(found["rate_offered"]))
    table.add_row("messages/s: sent", rate_text(found["rate_sent"]))
    table.add_row("s behind at the end", f"{found['seconds_behind']:.2f}")
    table.add_row("messages behind at most", count_text(found["backlog_messages"]))
    for fault in ("lost", "duplicates", "out_of_order"):
        table.add_row(fault.replace("_", " "), count_text(found[fault]))
    table.add_row("cores", str(found["cores"]))
    for kind, spent in found["cpu_seconds"].items():
        table.add_row(f"cpu s: {kind.replace('_', ' ')}", f"{spent:.1f}")
    table.add_row("cpu s: whole machine", f"{found['machine_cpu_seconds']:.1f}")
    _add_memory(table, found)
    table.add_row("MiB at most: together", f"{found['together_memory_bytes'] / (1 << 20):,.0f}")
    return table
