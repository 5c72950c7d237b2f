"""The tables `umstack bench` prints for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table

from umstack.bench.result import Result

_BASELINES = ("raw-udp", "raw-udp-packed", "raw-udp-gso")


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=SIMPLE, show_edge=False)
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table


def _rate(per_second: float | None) -> str:
    """A rate in as few digits as tell something."""
    if per_second is None:
        return ""
    return f"{per_second / 1e6:.3f} M" if per_second >= 100_000 else f"{per_second:,.0f}"


def _ratio(one: Result, baseline: str) -> str:
    found = (one["ratios"] or {}).get(baseline)
    return f"{found:.2f}" if found is not None else ""


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _cpu(one: Result) -> tuple[str, str]:
    """Nanoseconds of processor time a message, at the publisher and at the subscriber."""
    sent = (one["detail"] or {}).get("sent")
    if not sent:
        return "", ""
    spent = one["cpu_seconds"]
    return f"{spent['publisher'] / sent * 1e9:,.0f}", f"{spent['subscriber'] / sent * 1e9:,.0f}"


def throughput_table(results: Sequence[Result]) -> Table:
    """Rates, what raw sockets moved, and what went wrong."""
    left = ("what", "size", "API")
    right = ("messages/s", "datagrams/s", "x raw", "x packed", "x GSO", "cpu ns: send", "receive", "lost")
    table = _table(left, (*right, "disordered", "retransmitted"))
    for one in results:
        table.add_row(
            one["what"],
            str(one["size"]),
            one["api"] or "",
            _rate(one["messages_per_second"]),
            _rate(one["datagrams_per_second"]),
            *(_ratio(one, baseline) for baseline in _BASELINES),
            *_cpu(one),
            _count(one["lost"]),
            _count(one["out_of_order"]),
            _count(one["retransmissions"]),
        )
    return table


def latency_table(results: Sequence[Result]) -> Table:
    """Round trips in microseconds."""
    table = _table(("what", "wait", "loop"), ("p50 us", "p99 us", "p99.9 us", "x raw", "round trips"))
    for one in results:
        trip = one["round_trip_us"]
        table.add_row(
            one["what"],
            one["wait"],
            one["loop"],
            *(f"{trip[key]:.1f}" for key in ("p50", "p99", "p999")),
            _ratio(one, "raw-udp"),
            _count((one["detail"] or {}).get("samples")),
        )
    return table
