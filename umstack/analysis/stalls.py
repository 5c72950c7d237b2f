"""Stalls: the time in which lost datagrams kept a publisher from sending, from facts. docs/analysis.md defines them."""

from __future__ import annotations

import numpy as np
import polars as pl

from umstack.analysis.losses import MS
from umstack.analysis.rare_rows import Rare
from umstack.facts.facts import Facts
from umstack.facts.kinds import SESSION, STATUS
from umstack.facts.sends import Sends, neighbours_of, pieces_of

STALL_NS = 5 * MS
"""The minimum time between two first sendings in a stall."""
_RESUMED_NS = MS
"""How soon after a repair the publisher must resume, unless the stall is long: then within a tenth of it."""

STALLS = {
    "publisher": pl.String,
    "session_id": pl.Int64,
    "point": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "stall_ns": pl.Int64,
    "receiver": pl.String,
    "sqn": pl.Int64,
    "nak_ns": pl.Int64,
    "naks": pl.Int64,
    "last_nak_ns": pl.Int64,
    "lost_repair_ns": pl.Int64,
    "repaired_ns": pl.Int64,
}


def paused_ns(sends: Sends) -> int:
    """Return the sum of all times of more than `STALL_NS` between two successive first sendings."""
    # Both ends of a pause are kept where only some times are.
    steps = (np.diff(times)[np.diff(at) == 1] for at, times in pieces_of(sends.times_ns))
    return sum(int(piece[piece > STALL_NS].sum()) for piece in steps)


def paced_streams(facts: Facts) -> dict[tuple[str, int], tuple[str, Sends]]:
    """Return for each session with flow control the point that saw most of its first sendings, and these.

    Over LBT-RU, they are those to the receiver that was sent the most.
    """
    paced = set(facts.counts.filter(pl.col("kind") == STATUS).select(SESSION).iter_rows())
    best: dict[tuple[str, int], tuple[str, Sends]] = {}
    for (point, publisher, session_id, _), sends in facts.sends.items():
        session = (publisher, session_id)
        if session in paced and (session not in best or len(sends) > len(best[session][1])):
            best[session] = (point, sends)
    return best


def stalls_of(rows: Rare, paced: dict[tuple[str, int], tuple[str, Sends]]) -> pl.DataFrame:
    """Return the stalls that losses of a slice ended, once for each loss. `last_of_each` combines those of all slices.

    A stall is a pause between two first sendings that ended when a receiver's loss was repaired. All times of a session
    are those of one point, from `paced_streams`.
    """
    found = [pl.DataFrame(schema=STALLS)]
    for (publisher, session_id), (point, sends) in paced.items():
        where = {"publisher": publisher, "session_id": session_id, "point": point}
        waits = _waits(rows.naks.filter(**where), rows.repairs.filter(**where))
        named = _ended_by(waits, sends).with_columns(
            pl.lit(value).alias(name) for name, value in where.items()
        )
        found.append(named.select(pl.col(name).cast(kind) for name, kind in STALLS.items()))
    return pl.concat(found)


def _waits(naks: pl.DataFrame, repairs: pl.DataFrame) -> pl.DataFrame:
    """Return the losses that were repaired after a NAK, in order of the time of repair. `lost_repair_ns` is the time of
    the last repair before the last NAK, which did not arrive."""
    time, last = pl.col("time_ns"), pl.col("last_nak_ns")
    asked = naks.group_by("receiver", "copy", "sqn").agg(
        nak_ns=time.min(), naks=pl.len().cast(pl.Int64), last_nak_ns=time.max()
    )
    return (
        asked.join(repairs.select("copy", "sqn", "time_ns"), ["copy", "sqn"])
        .group_by("receiver", "sqn", "nak_ns", "naks", "last_nak_ns")
        .agg(
            lost_repair_ns=time.filter((time >= pl.col("nak_ns")) & (time < last)).max(),
            repaired_ns=time.filter(time >= last).min(),
        )
        .filter(pl.col("repaired_ns").is_not_null())
        .sort("repaired_ns")
    )


def last_of_each(found: pl.DataFrame) -> pl.DataFrame:
    """Return one row per stall, with the last repair before its end."""
    stall = [*SESSION, "start_ns"]
    last = found.sort("repaired_ns", "sqn", "receiver", descending=[False, True, True])
    return last.unique(stall, keep="last", maintain_order=True).sort(stall)


def _ended_by(waits: pl.DataFrame, sends: Sends) -> pl.DataFrame:
    """Return the pauses that ended with these repairs, once for each repair."""
    within, before_ns, after_ns = neighbours_of(sends.times_ns, waits["repaired_ns"].to_numpy())
    timed = waits.filter(pl.Series(within)).with_columns(
        start_ns=pl.Series(before_ns, dtype=pl.Int64), end_ns=pl.Series(after_ns, dtype=pl.Int64)
    )
    paused = timed.with_columns(stall_ns=pl.col("end_ns") - pl.col("start_ns"))
    pause, idle = pl.col("stall_ns"), pl.col("end_ns") - pl.col("repaired_ns")
    resumed = idle <= pl.max_horizontal(pause // 10, pl.lit(_RESUMED_NS))
    return paused.filter((pause > STALL_NS) & resumed)
