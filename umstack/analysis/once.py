"""The traffic of a session counted once: facts of LBT-RU and LBT-TCP without the copies sent to further receivers.

Facts count the copies of each receiver separately, by blocks of numbers (`umstack.facts.sessions`). For each block, the
copies sent to the receiver with the largest part of it count as the session's traffic; for each millisecond, the copies
sent to the receiver with the most bytes in it. LBT-RM sends to a group, so all of its facts remain.
"""

from __future__ import annotations

import polars as pl

from umstack.facts.facts import Facts
from umstack.facts.kinds import DATA, NCF, RETRANSMISSION, SESSION, SESSION_MESSAGE

POINT = ("point", *SESSION)
_OF_SOURCE = (DATA, RETRANSMISSION, SESSION_MESSAGE, NCF)


def _once(frame: pl.DataFrame, what: list[str], most: str) -> pl.DataFrame:
    """Return, of the rows with a receiver, only those of the receiver with the most `most` per value of `what`."""
    copies = frame.filter(pl.col("receiver").is_not_null())
    if not len(copies):
        return frame
    totals = copies.group_by([*what, "receiver"]).agg(total=pl.col(most).sum()).sort("total", "receiver")
    best = totals.group_by(what, maintain_order=True).agg(pl.col("receiver").last())
    chosen = copies.join(best, [*what, "receiver"], "semi", nulls_equal=True)
    return pl.concat([frame.filter(pl.col("receiver").is_null()), chosen])


def counts(facts: Facts) -> pl.DataFrame:
    """Return the counts of packets; those of the source once and without a receiver."""
    kind = pl.col("kind")
    sent = facts.counts.filter(kind.is_in(_OF_SOURCE))
    once = _once(sent, [*POINT, "kind", "block"], "packets")
    others = facts.counts.filter(~kind.is_in(_OF_SOURCE))
    return pl.concat([once.with_columns(pl.lit(None, pl.String).alias("receiver")), others])


def rates(facts: Facts) -> pl.DataFrame:
    """Return the rates of every session."""
    copies = _once(facts.receiver_rates, [*POINT, "start_ns"], "bytes")
    return pl.concat([facts.rates, copies.select(facts.rates.columns)])


def sizes(facts: Facts) -> pl.DataFrame:
    """Return the sizes of datagrams of every session."""
    key = [*POINT, "udp_bytes", "message_count"]
    chosen = _once(facts.sizes, [*POINT, "block"], "datagrams")
    totals = ("datagrams", "message_bytes", "frame_bytes")
    return chosen.group_by(key).agg(pl.col(totals).sum()).sort(key)


def topics(facts: Facts, by: tuple[str, ...] = ()) -> pl.DataFrame:
    """Return one row per topic of a session, from the capture point that saw most of it; with `by` a point, one for
    each."""
    columns = ["first_ns", "last_ns", "messages", "fragments", "payload_bytes", "lowest_sqn", "highest_sqn"]
    key = [*by, *SESSION, "topic_index"]
    best = facts.topics.sort(*key, "block", "fragments", "point", "receiver", nulls_last=False)
    of_block = best.group_by([*key, "block"], maintain_order=True)
    blocks = of_block.agg(*(pl.col(name).last() for name in columns), pl.col("topic").max())
    whole = blocks.group_by(key, maintain_order=True).agg(
        pl.col("first_ns").min(),
        pl.col("last_ns").max(),
        *(pl.col(name).sum() for name in ("messages", "fragments", "payload_bytes")),
        pl.col("lowest_sqn").min(),
        pl.col("highest_sqn").max(),
        pl.col("topic").max(),
    )
    return whole.filter(pl.col("fragments") > 0)
