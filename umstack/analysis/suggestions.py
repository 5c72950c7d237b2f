"""Suggests options that would have helped: values by the vendor's rules, listed in docs/analysis.md."""

from __future__ import annotations

import polars as pl

from umstack.analysis.losses import request_ns
from umstack.analysis.traffic import at_one_point
from umstack.facts.kinds import SESSION

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
    lost: pl.DataFrame,
    incidents: pl.DataFrame,
    rated: pl.DataFrame,
    unicast: pl.DataFrame,
    asked: pl.DataFrame,
) -> pl.DataFrame:
    """Return one row per session and option: the value to set, its unit, the reason, and the receivers it would have
    helped.

    `unicast` contains the sessions of LBT-RU (`losses.unicast_sessions`), whose options have other names; `asked` the
    NAKs and the waits before and after them (`losses.asked`).
    """
    sent = at_one_point(rated)
    known = _known(lost, incidents, asked, sent).join(unicast, list(SESSION), "left")
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


def _known(
    lost: pl.DataFrame,
    incidents: pl.DataFrame,
    asked: pl.DataFrame,
    sent: pl.DataFrame,
) -> pl.DataFrame:
    """Return one row per session with the inputs of all rules."""
    key, trip, naks = list(SESSION), request_ns(), pl.col("naks")
    loss = [*SESSION, "receiver", "sqn"]
    open_still = pl.col("repaired_ns").is_null()
    # A wait that includes a lost retransmission or a refused NAK is no time of the path.
    of_first = asked.filter(pl.col("wait_ns").is_null()).group_by(loss).agg(pl.col("next_ncf_ns").min())
    is_answered = (naks == 1) & (trip < pl.col("next_ncf_ns")).fill_null(True)
    answered = pl.when(is_answered).then(trip)
    # A recovery that took longer than those with one NAK lost a retransmission, too.
    usual = answered.quantile(0.99, "equiprobable").over(key)
    is_lost_again = ((naks > 1) & (trip > usual)).fill_null(False)
    marked = lost.join(of_first, loss, "left").with_columns(is_lost_again=is_lost_again)
    about = marked.group_by(key).agg(
        lost_again=pl.col("is_lost_again").sum().cast(pl.Int64),
        lost=pl.len().cast(pl.Int64),
        asked_again=(naks > 1).sum().cast(pl.Int64),
        repeats=pl.max_horizontal(naks - 1, pl.lit(0, pl.Int64)).sum(),
        unrepaired=open_still.sum().cast(pl.Int64),
        losing=_receivers(),
        repeating=_receivers(naks > 1),
        unrepairing=_receivers(open_still),
        longest_trip_ns=pl.coalesce(answered.max(), trip.max()),
        # If receivers repeat every NAK before it can be answered, their usual wait is that of the path.
        repair_ns=pl.coalesce(
            answered.quantile(0.99, "equiprobable"), trip.quantile(0.5, "equiprobable")
        ).cast(pl.Int64),
    )
    in_bursts = incidents.filter(pl.col("cause") == "burst")
    burst = in_bursts.group_by(key).agg(
        burst_ns=pl.col("longest_run_ns").max(), burst_lost=pl.col("lost").sum(), bursting=_receivers()
    )
    usual_of_receiver = [one.quantile(0.5, "equiprobable") for one in (answered, trip)]
    waits = (
        marked.group_by(*key, "receiver")
        .agg(usual_trip_ns=pl.coalesce(usual_of_receiver))
        .group_by(key)
        .agg(pl.col("usual_trip_ns").max())
    )
    whole = about
    of_repeats = _repeat_waits(asked, marked.filter("is_lost_again"))
    for more in (burst, waits, _first_waits(lost), of_repeats, _volumes(sent), _lossy_rates(in_bursts, sent)):
        whole = whole.join(more, key, "left")
    per_receiver = pl.col("lost") / pl.max_horizontal(pl.col("losing").list.len(), pl.lit(1))
    whole = whole.with_columns(loss_share=per_receiver / pl.col("datagrams"))
    times = ("burst_ns", "usual_trip_ns", "longest_trip_ns", "repair_ns")
    return whole.with_columns(pl.col(name).fill_null(0) for name in times)


def _first_waits(lost: pl.DataFrame) -> pl.DataFrame:
    """Return by session the usual time from a sending to the first NAK for it. A NAK for a burst waited for the last
    datagram of it."""
    asked = lost.with_columns(first_wait_ns=pl.col("nak_ns") - pl.col("sent_ns"))
    by_nak = asked.group_by(*SESSION, "receiver", "nak_ns").agg(pl.col("first_wait_ns").min())
    return by_nak.group_by(list(SESSION)).agg(pl.col("first_wait_ns").median())


def _repeat_waits(asked: pl.DataFrame, lost_again: pl.DataFrame) -> pl.DataFrame:
    """Return by session how long receivers usually waited before they repeated a NAK: before one that was refused, for
    a lost retransmission, and at most for a number after its first NCF. Only the last contains a suppress interval."""
    wait, loss = pl.col("wait_ns"), [*SESSION, "receiver", "sqn"]
    is_backoff = wait.is_not_null() & pl.col("ncf_reason").is_null()
    after_ncf = wait.is_not_null() & pl.col("ncf_reason").is_not_null()
    retries = asked.filter(is_backoff).join(lost_again, loss, "semi")
    of_losses = asked.group_by(loss).agg(
        refused_ns=wait.filter(is_backoff & pl.col("is_refused")).max(),
        ncf_wait_ns=wait.filter(after_ncf).max(),
        is_limited=(pl.col("ncf_reason") != "ignored").any(),
    )
    refused, suppressed = pl.col("refused_ns"), pl.col("ncf_wait_ns")
    usual = of_losses.group_by(list(SESSION)).agg(
        refused_wait_ns=refused.quantile(0.5, "equiprobable"),
        refused=refused.count().cast(pl.Int64),
        refusing=_receivers(refused.is_not_null()),
        ncf_wait_ns=suppressed.median(),
        suppressed=suppressed.count().cast(pl.Int64),
        suppressing=_receivers(suppressed.is_not_null()),
        is_limited=pl.col("is_limited").any(),
    )
    return usual.join(retries.group_by(list(SESSION)).agg(retry_wait_ns=wait.median()), list(SESSION), "left")


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
