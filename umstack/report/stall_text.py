"""Describes stalls: which receiver held the window of a publisher, for how long, and why."""

from __future__ import annotations

from umstack.report.quantities import count, duration
from umstack.report.summary import Row


def stall(row: Row) -> str:
    """Describe a row of `stalls`."""
    held = f"window held at {row['sqn']} by {row['receiver']} for {duration(row['stall_ns'])}"
    return f"{held}: {stall_cause(row)}"


def stall_cause(row: Row) -> str:
    """Describe the wait that was the longest part of a row of `stalls`."""
    if row["lost_repair_ns"] is not None:
        waited_ns = row["last_nak_ns"] - row["lost_repair_ns"]
        return f"its repair was lost and NAKed again after {duration(waited_ns)}"
    if row["naks"] > 1:
        waited_ns = row["last_nak_ns"] - row["nak_ns"]
        return f"{count(row['naks'])} NAKs were sent within {duration(waited_ns)} before its repair"
    unrequested_ns, answered_ns = row["nak_ns"] - row["start_ns"], row["repaired_ns"] - row["nak_ns"]
    if unrequested_ns > answered_ns:
        return f"its first NAK came after {duration(unrequested_ns)}"
    return f"its repair came {duration(answered_ns)} after its NAK"
