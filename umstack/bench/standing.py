"""Measures from a capture at the publisher's port how long a stream stands still, and how long its repairs take."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import polars as pl

from umstack.analysis.losses import percentiles, request_ns
from umstack.analysis.stalls import paused_ns
from umstack.analysis.tables import Tables, tables_of
from umstack.bench.capture import capturing
from umstack.bench.result import Result
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import Pins, measure_stream
from umstack.capture.reading.capture_files import capture_files
from umstack.facts.facts import Facts, facts_of
from umstack.lab import Lab
from umstack.lab.cables import port_name

_CAPTURE = ("--all", "--snaplen", "512", "--ring", "256", "--priority", "normal")
"""A NAK of up to a hundred numbers is captured whole."""


def measure_captured(lab: Lab, spec: StreamSpec, pins: Pins) -> Result:
    """Measure one stream while the switch captures the publisher's port; `detail.recovery` has what the capture shows.

    The capture uses processor time, so the rate is lower than without it.
    """
    with tempfile.TemporaryDirectory(prefix="umstack-bench-") as directory:
        with capturing(lab.switch_namespace, port_name(0), Path(directory), _CAPTURE) as summary:
            found = measure_stream(lab, spec, pins)
        facts = facts_of(capture_files([directory]))
    recovery = recovery_of(facts) | {"captured": summary["packets"], "not_captured": summary["dropped"]}
    if summary["dropped"]:
        # Packets that the capture dropped would look like a pause.
        recovery["standing_share"] = None
    return {**found, "detail": {**found["detail"], "recovery": recovery}}


def recovery_of(facts: Facts) -> dict[str, Any]:
    """Return the share of time in which first sendings stood still, times from NAK to repair, and repairs per loss, of
    a capture with one session; the times also by subscriber."""
    sends = max(facts.sends.values(), key=len)
    span_ns = int(sends.times_ns[-1] - sends.times_ns[0])
    tables = tables_of(facts)
    lost = tables["losses"].filter(pl.col("receiver").is_not_null())
    repairs = int(tables["repairs"]["retransmissions"].sum())
    numbers = lost["sqn"].n_unique()
    return {
        "seconds": span_ns / 1e9,
        "standing_share": paused_ns(sends) / span_ns,
        "losses": len(lost),
        "repairs_per_loss": repairs / numbers if numbers else None,
        "nak_to_repair_ms": _times(lost),
        "subscribers": [_subscriber(row, tables, span_ns) for row in tables["recovery_latency"].to_dicts()],
    }


def _times(lost: pl.DataFrame) -> dict[str, float | None]:
    [row] = lost.select(percentiles(request_ns(), "ns")).to_dicts()
    return {at: None if row[f"ns_{at}"] is None else row[f"ns_{at}"] / 1e6 for at in ("p50", "p99", "p999")}


def _subscriber(row: dict[str, Any], tables: Tables, span_ns: int) -> dict[str, Any]:
    of_receiver = pl.col("receiver") == row["receiver"]
    held_ns = tables["stalls"].filter(of_receiver)["stall_ns"].sum()
    return {
        "address": row["receiver"],
        "losses": row["lost"],
        "naks_per_loss": row["naks_per_loss"],
        "nak_to_repair_ms": _times(tables["losses"].filter(of_receiver)),
        "holding_share": held_ns / span_ns,
    }
