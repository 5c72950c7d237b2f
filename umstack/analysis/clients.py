"""Clients: the receivers of LBT-RU and LBT-TCP, from facts. docs/analysis.md defines each column."""

from __future__ import annotations

import polars as pl

from umstack.analysis.numbering import gaps
from umstack.analysis.once import POINT
from umstack.capture.reading.schema import LBTRU, LBTTCP
from umstack.facts.facts import Facts
from umstack.facts.kinds import (
    ACKNOWLEDGEMENT,
    CLOSE,
    CONNECTION_REQUEST,
    DATA,
    NAK,
    OPEN,
    RETRANSMISSION,
    SEGMENT,
    SESSION,
    SESSION_MESSAGE,
)

_CLIENT = (*SESSION, "receiver")
_HOST = pl.col("receiver").str.replace(r":\d+$", "")


def clients(facts: Facts) -> pl.DataFrame:
    """Return one row per session and client, from the capture point that saw most of it: datagrams or messages sent to
    it, time of its connection request, whether its end was seen, and the topic sequence numbers missing over LBT-TCP.

    A client of LBT-RU is an address and port, which it keeps when it reconnects; a client of LBT-TCP is a connection.
    """
    kind, packets = pl.col("kind"), pl.col("packets")
    of_clients = facts.counts.filter(pl.col("receiver").is_not_null())
    known = of_clients.filter(pl.col("transport").is_in([LBTRU, LBTTCP])).select(_CLIENT).unique()
    first, last = pl.col("first_ns"), pl.col("last_ns")
    sent = (DATA, SEGMENT)
    of_point = (
        of_clients.join(known, list(_CLIENT), "semi")
        .group_by(*POINT, "receiver")
        .agg(
            pl.col("transport").max(),
            total=packets.sum(),
            first_ns=first.min(),
            last_ns=last.max(),
            connects=packets.filter(kind.is_in([CONNECTION_REQUEST, OPEN])).sum(),
            last_connect_ns=last.filter(kind.is_in([CONNECTION_REQUEST, OPEN])).max(),
            closes=packets.filter(kind == CLOSE).sum(),
            first_data_ns=first.filter(kind.is_in(sent)).min(),
            datagrams=packets.filter(kind == DATA).sum(),
            retransmissions=packets.filter(kind == RETRANSMISSION).sum(),
            session_messages=packets.filter(kind == SESSION_MESSAGE).sum(),
            acknowledgements=packets.filter(kind == ACKNOWLEDGEMENT).sum(),
            naks=packets.filter(kind == NAK).sum(),
            segments=packets.filter(kind.is_in([SEGMENT, OPEN, CLOSE])).sum(),
            messages=pl.col("messages").filter(kind.is_in(sent)).sum(),
            message_bytes=pl.col("message_bytes").filter(kind.is_in(sent)).sum(),
        )
    )
    columns = [name for name in of_point.columns if name not in (*_CLIENT, "point", "total")]
    best = of_point.sort(*_CLIENT, "total", "point").group_by(_CLIENT, maintain_order=True)
    whole = best.agg(pl.col(columns).last())
    # A reconnection is one that a host opens after another of its connections has ended.
    ended_ns = last.filter(pl.col("closes") > 0).min().over(*SESSION, _HOST)
    opens_again = (pl.col("connects") > 0) & (ended_ns <= first)
    asks_again = pl.col("last_connect_ns") > pl.col("first_data_ns")
    again = pl.when(pl.col("transport") == LBTRU).then(asks_again).otherwise(opens_again).fill_null(False)
    known = whole.with_columns(reconnected=again).drop("last_connect_ns", "first_data_ns")
    return with_missing(known, missing_at_best(gaps([], facts.runs), []), []).sort(_CLIENT)


def missing_at_best(missed: pl.DataFrame, windows: list[pl.Expr]) -> pl.DataFrame:
    """Return by connection, and by `windows`, the number of missing topic sequence numbers (`numbering.gaps`) at the
    capture point with the fewest, because a number that any point saw is not missing."""
    of_point = missed.group_by("point", *_CLIENT, *windows).agg(pl.col("missing").sum())
    by = [name for name in of_point.columns if name not in ("point", "missing")]
    return of_point.group_by(by).agg(pl.col("missing").min())


def with_missing(known: pl.DataFrame, missing: pl.DataFrame, windows: list[str]) -> pl.DataFrame:
    """Return the rows of clients with the number of topic sequence numbers missing for each."""
    named = known.drop("missing", strict=False).join(missing, [*_CLIENT, *windows], "left")
    return named.with_columns(pl.col("missing").fill_null(0))


def totals(known: pl.DataFrame, windows: tuple[str, ...] = ()) -> pl.DataFrame:
    """Return one row per session over all its clients: the numbers of clients, hosts, and opened and closed
    connections; the clients that reconnected, with a count (`again`), and those with missing messages (`missed`), both
    in descending order.
    """
    by = [*windows, *SESSION]
    counted = known.group_by(by).agg(
        pl.col("transport").max(),
        clients=pl.len().cast(pl.Int64),
        hosts=_HOST.n_unique().cast(pl.Int64),
        connected=(pl.col("connects") > 0).sum().cast(pl.Int64),
        ended=(pl.col("closes") > 0).sum().cast(pl.Int64),
    )
    who = pl.when(pl.col("transport") == LBTRU).then("receiver").otherwise(_HOST).alias("who")
    again = known.group_by([*by, who]).agg(many=pl.col("reconnected").sum().cast(pl.Int64) + 1)
    missed = known.group_by([*by, pl.col("receiver").alias("who")]).agg(many=pl.col("missing").sum())
    for name, found, least in (("again", again, 2), ("missed", missed, 1)):
        rows = found.filter(pl.col("many") >= least).sort("many", "who", descending=[True, False])
        listed = rows.group_by(by, maintain_order=True).agg(pl.struct("who", "many").alias(name))
        counted = counted.join(listed, by, "left")
    return counted.sort(by)
