"""Suggests options that would have helped: values by the vendor's rules, listed in docs/analysis.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import polars as pl

from umstack.analysis.losses import request_ns
from umstack.analysis.traffic import at_one_point
from umstack.facts.kinds import SESSION
from umstack.facts.row_pile import RowPile

MS = 1_000_000
_PEAK_NS = 100 * MS
_BURST_NS = 10 * MS
_BACKOFFS = 3
_ROUND_TRIPS = 2
_SUSTAINABLE_SHARE = 0.8
_LAST_BITS = 1e-12
_REPEATING = 1.1
"""With more NAKs per loss than this, receivers re-NAK before a retransmission can have arrived."""
_LOST_AGAIN = 0.02
"""If more than this share of the retransmissions is lost, a longer back-off would delay recovery. Retransmissions are
lost at least as often as first sendings."""


def suggestions(
    waits: Waits, incidents: pl.DataFrame, rated: pl.DataFrame, unicast: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per session and option: the value to set, its unit, the reason, and the receivers it would have
    helped.

    `unicast` contains the sessions of LBT-RU (`rare_rows.unicast_sessions`), whose options have other names.
    """
    sent = at_one_point(rated)
    known = _known(waits, incidents, sent).join(unicast, list(SESSION), "left")
    some = pl.col("lost") > 0
    initial = _at_least_one(_ceil((pl.col("burst_ns") + pl.col("usual_trip_ns")) / MS))
    # Back-offs are drawn from half to one and a half times the interval; half of this value is the repair time.
    # A NAK that was sent before the retransmission can have arrived is refused by design.
    ignored = pl.when(pl.col("refused_wait_ns") > pl.col("repair_ns")).then(
        _at_least_one(_floor(pl.col("refused_wait_ns") / MS))
    )
    backoff = pl.max_horizontal(initial, _ceil(2 * pl.col("repair_ns") / MS), 2 * ignored, pl.lit(2.0))
    repeats = pl.col("repeats") > (_REPEATING - 1) * pl.col("lost")
    # No option is suggested that would make recovery slower. A capture does not show the options in force, but the
    # waits that they caused.
    first_ms = (pl.col("first_wait_ns") - pl.col("usual_trip_ns")) / MS
    again_ms = pl.col("retry_wait_ns") / MS
    sooner = (initial < first_ms).fill_null(False)
    is_lost_again = pl.max_horizontal(pl.col("lost_again") / pl.col("lost"), "loss_share") > _LOST_AGAIN
    premature = repeats & ~is_lost_again.fill_null(False)
    late = (backoff < again_ms).fill_null(False)
    # The intervals belong together: a NAK that comes sooner meets the end of a burst and is sent again.
    renewed = sooner | premature | late | ignored.is_not_null()
    half = pl.coalesce(ignored, _at_least_one(_floor(backoff / 2)))
    # Suppressing NAKs for longer than the source refuses them only delays recovery, unless the source limits its rate.
    after_ncf_ms = pl.col("ncf_wait_ns") / MS
    asked_after_ms = half + pl.when(renewed).then(backoff).otherwise(pl.coalesce(again_ms, backoff))
    resumed = asked_after_ms < after_ncf_ms
    suppressed = ~pl.col("is_limited").fill_null(False) & resumed.fill_null(renewed)
    longest_trip = _ceil(pl.col("longest_trip_ns") / MS)
    waiting_ms = initial + _BACKOFFS * backoff + _ROUND_TRIPS * longest_trip
    known = _with_window(known.with_columns(waiting_ms=waiting_ms), sent)
    peak, lossy = pl.col("peak_bytes_per_second"), pl.col("lossy_bytes_per_second")
    choices = [
        _choice(
            "nak_initial_backoff_interval",
            initial,
            "ms",
            pl.format(
                "the longest burst of losses plus a round trip: a first NAK then comes after about {} ms, not {}",
                initial.cast(pl.Int64),
                first_ms.round(1),
            ),
            sooner,
            "lost",
            "losing",
        ),
        _choice(
            "nak_backoff_interval",
            backoff,
            "ms",
            pl.when(ignored.is_not_null())
            .then(pl.lit("twice the ignore interval, because a receiver waits only half of it at times"))
            .when(late)
            .then(
                pl.format(
                    "lost retransmissions are requested again after about {} ms, not {}",
                    backoff.cast(pl.Int64),
                    again_ms.round(1),
                )
            )
            .when(premature)
            .then(pl.lit("retransmissions took longer than receivers waited before their next NAK"))
            .otherwise(pl.lit("twice the usual time to a retransmission, and at least the initial back-off")),
            renewed,
            "asked_again",
            "repeating",
        ),
        _choice(
            "ignore_interval",
            half,
            "ms",
            pl.when(ignored.is_not_null())
            .then(
                pl.lit(
                    "at most half of the back-off: the source refused NAKs for retransmissions that were lost"
                )
            )
            .otherwise(
                pl.lit("half of the back-off, so that the source refuses no NAK for a lost retransmission")
            ),
            renewed,
            "refused",
            "refusing",
        ),
        _choice(
            "nak_suppress_interval",
            half,
            "ms",
            pl.when(resumed)
            .then(
                pl.format(
                    "as long as the source refuses NAKs: the NAK after an NCF then comes after about {} ms, not {}",
                    asked_after_ms.round(0).cast(pl.Int64),
                    after_ncf_ms.round(1),
                )
            )
            .otherwise(pl.lit("as long as the source refuses NAKs for a number that it just retransmitted")),
            suppressed,
            "suppressed",
            "suppressing",
        ),
        _choice(
            "transmission_window_size",
            pl.col("window_bytes"),
            "bytes",
            "holds the most data that was sent within the time for which a receiver may send NAKs",
            some,
            "unrepaired",
            "unrepairing",
        ),
        _choice(
            "data_rate_limit",
            _floor(lossy * 8 * _SUSTAINABLE_SHARE),
            "bits/s",
            "four fifths of the rate at which datagrams were lost in bursts",
            lossy < peak / _SUSTAINABLE_SHARE,
            "burst_lost",
            "bursting",
        ),
    ]
    parts = [known.select(*SESSION, *choice).filter("wanted") for choice in choices]
    return pl.concat(parts).drop("wanted").sort(*SESSION, "option")


def _floor(value: pl.Expr) -> pl.Expr:
    """Round down, except from just below a whole number: the last bits depend on the order of a sum."""
    return (value * (1 + _LAST_BITS)).floor()


def _ceil(value: pl.Expr) -> pl.Expr:
    """Round up, except from just above a whole number."""
    return (value * (1 - _LAST_BITS)).ceil()


def _at_least_one(value: pl.Expr) -> pl.Expr:
    return pl.max_horizontal(value, pl.lit(1.0))


def _choice(
    option: str,
    value: pl.Expr,
    unit: str,
    reason: str | pl.Expr,
    wanted: pl.Expr,
    helped: str,
    receivers: str,
) -> list[pl.Expr]:
    who = pl.col(receivers).fill_null(pl.lit([], pl.List(pl.String)))
    return [
        pl.when("is_unicast")
        .then(pl.lit(f"transport_lbtru_{option}"))
        .otherwise(pl.lit(f"transport_lbtrm_{option}"))
        .alias("option"),
        value.cast(pl.Int64).alias("value"),
        pl.lit(unit).alias("unit"),
        (pl.lit(reason) if isinstance(reason, str) else reason).alias("reason"),
        pl.col(helped).fill_null(0).cast(pl.Int64).alias("losses_helped"),
        who.list.len().cast(pl.Int64).alias("receivers_helped"),
        who.alias("receivers"),
        (wanted & value.is_not_null()).fill_null(False).alias("wanted"),
    ]


def _receivers(condition: pl.Expr | None = None) -> pl.Expr:
    """Return the receivers of the losses that match. The receiver is unknown if a loss was retransmitted without a
    NAK."""
    who = pl.col("receiver") if condition is None else pl.col("receiver").filter(condition)
    return who.drop_nulls().unique().sort()


class Waits:
    """Collects how long receivers waited for each loss, slice by slice."""

    def __init__(self) -> None:
        """Start without losses."""
        self._losses, self._repeats, self._retries = RowPile(), RowPile(), RowPile()

    @staticmethod
    def of_slice(lost: pl.DataFrame, asked: pl.DataFrame) -> dict[str, pl.DataFrame]:
        """Return the frames of a slice: of its losses (`losses.losses_of`), and of its NAKs with the waits
        before and after them (`losses.asked`)."""
        loss, naks, trip = [*SESSION, "receiver", "sqn"], pl.col("naks"), pl.col("trip_ns")
        of_first = asked.filter(pl.col("wait_ns").is_null()).group_by(loss).agg(pl.col("next_ncf_ns").min())
        # A wait that includes a lost retransmission or a refused NAK is no time of the path.
        is_answered = (naks == 1) & (trip < pl.col("next_ncf_ns")).fill_null(True)
        own = lost.with_columns(trip_ns=request_ns(), first_wait_ns=pl.col("nak_ns") - pl.col("sent_ns"))
        timed = own.join(of_first, loss, "left").with_columns(answered_ns=pl.when(is_answered).then(trip))
        is_open = pl.col("repaired_ns").is_null()
        times = ("trip_ns", "answered_ns", "nak_ns", "first_wait_ns")
        wait = pl.col("wait_ns")
        is_backoff = wait.is_not_null() & pl.col("ncf_reason").is_null()
        after_ncf = wait.is_not_null() & pl.col("ncf_reason").is_not_null()
        repeats = asked.group_by(loss).agg(
            refused_ns=wait.filter(is_backoff & pl.col("is_refused")).max(),
            ncf_wait_ns=wait.filter(after_ncf).max(),
            is_limited=(pl.col("ncf_reason") != "ignored").any(),
        )
        is_repeated = pl.any_horizontal(pl.col("refused_ns", "ncf_wait_ns").is_not_null(), "is_limited")
        retried = timed.filter(naks > 1).select(*loss, "trip_ns")
        return {
            "waits": timed.select("receiver", "naks", *SESSION, *times, is_open=is_open),
            "repeats": repeats.filter(is_repeated).drop("sqn"),
            "retried": asked.filter(is_backoff).join(retried, loss).select(*SESSION, "wait_ns", "trip_ns"),
        }

    def add_losses(self, waits: pl.DataFrame) -> None:
        """Add the frame `waits` of a slice."""
        self._losses.add_by(waits, *map(pl.col, SESSION), pl.col("receiver").fill_null(""))

    def add_repeats(self, repeats: pl.DataFrame) -> None:
        """Add the frame `repeats` of a slice."""
        self._repeats.add(repeats)

    def add_retried(self, retried: pl.DataFrame) -> None:
        """Add the frame `retried` of a slice."""
        self._retries.add(retried)

    def of_sessions(self) -> pl.DataFrame:
        """Return one row per session that lost something: its losses, and the usual times of its path."""
        found = []
        for session, receivers in groupby(self._losses.groups(), lambda group: group[0][:-1]):
            found.append(_of_session(rows for _, rows in receivers))
            found[-1] |= dict(zip(SESSION, session, strict=True))
        return pl.DataFrame(found, _OF_SESSION)

    def of_repeats(self) -> pl.DataFrame:
        """Return one row per loss with a NAK that was refused or came after an NCF."""
        return self._repeats.frame()

    def of_retries(self) -> pl.DataFrame:
        """Return the wait before each repeated NAK that no NCF delayed, and the time that its loss took."""
        return self._retries.frame()


_OF_SESSION: dict[str, Any] = {
    "publisher": pl.String,
    "session_id": pl.Int64,
    **dict.fromkeys(("lost", "asked_again", "repeats", "unrepaired", "lost_again"), pl.Int64),
    **dict.fromkeys(("losing", "repeating", "unrepairing"), pl.List(pl.String)),
    "usual_ns": pl.Float64,
    "longest_trip_ns": pl.Int64,
    "repair_ns": pl.Int64,
    "usual_trip_ns": pl.Float64,
    "first_wait_ns": pl.Float64,
}


def _of_session(receivers: Iterable[pl.DataFrame]) -> dict[str, Any]:
    """Return the values of one session's losses, given by receiver."""
    trip, answered, naks = pl.col("trip_ns"), pl.col("answered_ns"), pl.col("naks")
    totals: Counter[str] = Counter()
    usual_trips, named = [], {name: list[str]() for name in ("losing", "repeating", "unrepairing")}
    trips, first_waits, repeated = [], [], []
    for rows in receivers:
        [found] = rows.select(
            lost=pl.len().cast(pl.Int64),
            asked_again=(naks > 1).sum().cast(pl.Int64),
            repeats=pl.max_horizontal(naks - 1, pl.lit(0, pl.Int64)).sum(),
            unrepaired=pl.col("is_open").sum().cast(pl.Int64),
        ).to_dicts()
        totals.update(found)
        usual_trips.append(
            rows.select(pl.coalesce(one.quantile(0.5, "equiprobable") for one in (answered, trip)))
        )
        if (receiver := rows["receiver"][0]) is not None:
            counts = ("lost", "asked_again", "unrepaired")
            for those, count in zip(named.values(), counts, strict=True):
                those += [receiver] if found[count] else []
        trips.append(rows.select("trip_ns", "answered_ns"))
        by_nak = rows.select("nak_ns", "first_wait_ns").group_by("nak_ns").agg(pl.col("first_wait_ns").min())
        first_waits.append(by_nak["first_wait_ns"])
        repeated.append(rows.select("naks", "trip_ns").filter(naks > 1)["trip_ns"])
    of_all = pl.concat(trips)
    [usual] = of_all.select(
        usual_ns=answered.quantile(0.99, "equiprobable"),
        longest_trip_ns=pl.coalesce(answered.max(), trip.max()),
        # If receivers repeat every NAK before it can be answered, their usual wait is that of the path.
        repair_ns=pl.coalesce(
            answered.quantile(0.99, "equiprobable"), trip.quantile(0.5, "equiprobable")
        ).cast(pl.Int64),
    ).to_dicts()
    # A recovery that took longer than those with one NAK lost a retransmission, too.
    again = pl.concat(repeated)
    lost_again = 0 if usual["usual_ns"] is None else int((again > usual["usual_ns"]).sum())
    return {
        **totals,
        **named,
        **usual,
        "lost_again": lost_again,
        "usual_trip_ns": pl.concat(usual_trips).max().item(),
        "first_wait_ns": pl.concat(first_waits).median(),
    }


def _known(waits: Waits, incidents: pl.DataFrame, sent: pl.DataFrame) -> pl.DataFrame:
    """Return one row per session with the inputs of all rules."""
    key, trip = list(SESSION), pl.col("trip_ns")
    in_bursts = incidents.filter(pl.col("cause") == "burst")
    burst = in_bursts.group_by(key).agg(
        burst_ns=pl.col("longest_run_ns").max(), burst_lost=pl.col("lost").sum(), bursting=_receivers()
    )
    whole = waits.of_sessions()
    longer = trip > pl.col("usual_ns")
    retries = waits.of_retries().join(whole.select(*key, "usual_ns"), key).filter(longer)
    retry = retries.group_by(key).agg(retry_wait_ns=pl.col("wait_ns").median())
    repeats = _repeat_waits(waits.of_repeats())
    for more in (burst, repeats, retry, _volumes(sent), _lossy_rates(in_bursts, sent)):
        whole = whole.join(more, key, "left")
    per_receiver = pl.col("lost") / pl.max_horizontal(pl.col("losing").list.len(), pl.lit(1))
    whole = whole.with_columns(loss_share=per_receiver / pl.col("datagrams"))
    times = ("burst_ns", "usual_trip_ns", "longest_trip_ns", "repair_ns")
    return whole.with_columns(pl.col(name).fill_null(0) for name in times)


def _repeat_waits(repeats: pl.DataFrame) -> pl.DataFrame:
    """Return by session how long receivers usually waited before they repeated a NAK that was refused, and at most for
    a number after its first NCF. Only the latter contains a suppress interval."""
    refused, suppressed = pl.col("refused_ns"), pl.col("ncf_wait_ns")
    return repeats.group_by(list(SESSION)).agg(
        refused_wait_ns=refused.quantile(0.5, "equiprobable"),
        refused=refused.count().cast(pl.Int64),
        refusing=_receivers(refused.is_not_null()),
        ncf_wait_ns=suppressed.median(),
        suppressed=suppressed.count().cast(pl.Int64),
        suppressing=_receivers(suppressed.is_not_null()),
        is_limited=pl.col("is_limited").any(),
    )


def _with_window(known: pl.DataFrame, sent: pl.DataFrame) -> pl.DataFrame:
    """Add the most bytes that each session sent within its `waiting_ms`."""
    most = []
    of_session = sent.sort("start_ns").partition_by(list(SESSION), as_dict=True)
    data = pl.col("bytes") - pl.col("retransmitted_bytes")
    waiting = known.select(*SESSION, "waiting_ms").filter(pl.col("waiting_ms") > 0)
    for *session, waiting_ms in waiting.rows():
        if (own := of_session.get(tuple(session))) is not None:
            within = data.rolling_sum_by("start_ns", f"{round(waiting_ms * MS)}i")
            most.append((*session, own.select(within.max()).item()))
    schema = {name: known.schema[name] for name in SESSION} | {"window_bytes": pl.Int64}
    return known.join(pl.DataFrame(most, schema, orient="row"), list(SESSION), "left")


def _volumes(sent: pl.DataFrame) -> pl.DataFrame:
    start, data = pl.col("start_ns"), pl.col("bytes") - pl.col("retransmitted_bytes")
    windows = (
        sent.filter(data > 0)
        .group_by(*SESSION, (start // _PEAK_NS).alias("window"))
        .agg(
            bytes=data.sum(),
            datagrams=(pl.col("datagrams") - pl.col("retransmissions")).sum(),
        )
    )
    return windows.group_by(*SESSION).agg(
        peak_bytes_per_second=pl.col("bytes").max() * (1e9 / _PEAK_NS),
        datagrams=pl.col("datagrams").sum(),
    )


def _lossy_rates(in_bursts: pl.DataFrame, sent: pl.DataFrame) -> pl.DataFrame:
    """Return the 10th percentile of the rate, over ten milliseconds, at which bursts of loss started."""
    window = (pl.col("start_ns") // _BURST_NS).alias("window")
    rates = sent.group_by(*SESSION, window).agg(bytes=pl.col("bytes").sum())
    found = in_bursts.select(*SESSION, window).join(rates, [*SESSION, "window"])
    lower = pl.col("bytes").quantile(0.1, "equiprobable") * (1e9 / _BURST_NS)
    return found.group_by(*SESSION).agg(lossy_bytes_per_second=lower)
