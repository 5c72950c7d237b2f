"""Which option would have helped whom: values after the vendor's rules, from what was observed.

initial backoff       longest burst of losses + usual round trip
backoff               at least the initial backoff, and longer than repairs took, so that nobody asks twice
transmission window   peak bytes/s x (initial backoff + 3 x backoff + 2 x longest round trip)
retransmit limit      below a tenth of the mean data rate
data limit            four fifths of the rate that was lost at

A round trip is from NAK to repair, as the point of capture saw it. The usual one is the median of the receiver whose
median is longest. The longest is of all losses that were asked for once: of several NAKs nobody knows which one was
answered. Where all have a re-NAK it is from the first NAK, too long rather than too short.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.losses import request_ns
from umstack.analysis.observations import SESSION
from umstack.analysis.rates import at_one_point

MS = 1_000_000
_PEAK_NS = 100 * MS
_BURST_NS = 10 * MS
_BACKOFFS = 3
_ROUND_TRIPS = 2
_RETRANSMIT_SHARE = 0.1
_SUSTAINABLE_SHARE = 0.8
_REPEATING = 1.1
"""More NAKs a loss than this, and receivers ask before an answer can have come."""


def suggestions(
    losses: DataFrame,
    incidents: DataFrame,
    latencies: DataFrame,
    rated: DataFrame,
    by: tuple[str, ...] = (),
) -> DataFrame:
    """One row a session and option: the value to set, its unit, why, and whom it would have helped.

    Takes what `losses`, `incidents`, `recovery_latency` and `rates` gave. `losses_helped` is how many losses the option
    bears on, `receivers` are those that had them, as far as they are known, and `receivers_helped` is their number.
    `by` names more columns that tell rows apart, which all of these have.
    """
    facts = _facts(losses, incidents, latencies, rated, [*SESSION, *by])
    initial = F.greatest(F.ceil((F.col("burst_ns") + F.col("usual_trip_ns")) / MS), F.lit(1))
    # NAKs are drawn from half to one and a half times the interval: so the earliest repeat comes after the repair.
    backoff = F.greatest(initial, F.ceil(2 * F.col("repair_ns") / MS), F.lit(1))
    longest_trip = F.ceil(F.col("longest_trip_ns") / MS)
    waiting_ms = initial + _BACKOFFS * backoff + _ROUND_TRIPS * longest_trip
    choices = F.array(
        _choice(
            "transport_lbtrm_nak_initial_backoff_interval",
            initial,
            "ms",
            "the longest burst of losses and a round trip: what is only late is not asked for",
            F.col("lost") > 0,
            F.col("lost"),
            F.col("losing"),
        ),
        _choice(
            "transport_lbtrm_nak_backoff_interval",
            backoff,
            "ms",
            "repairs took longer than receivers waited before they asked again",
            F.col("repeats") > (_REPEATING - 1) * F.col("lost"),
            F.col("asked_again"),
            F.col("repeating"),
        ),
        _choice(
            "transport_lbtrm_transmission_window_size",
            F.ceil(F.col("peak_bytes_per_second") * waiting_ms / 1000),
            "bytes",
            "holds what is sent at the peak rate for as long as a receiver may go on asking",
            F.col("lost") > 0,
            F.col("unrepaired"),
            F.col("unrepairing"),
        ),
        _choice(
            "transport_lbtrm_retransmit_rate_limit",
            F.floor(F.col("mean_bytes_per_second") * 8 * _RETRANSMIT_SHARE),
            "bits/s",
            "a tenth of the mean data rate: repairs do not crowd out data",
            F.col("lost") > 0,
            F.col("lost"),
            F.col("losing"),
        ),
        _choice(
            "transport_lbtrm_data_rate_limit",
            F.floor(F.col("lossy_bytes_per_second") * 8 * _SUSTAINABLE_SHARE),
            "bits/s",
            "four fifths of the rate at which datagrams were lost in bursts",
            F.col("lossy_bytes_per_second") < F.col("peak_bytes_per_second") / _SUSTAINABLE_SHARE,
            F.col("burst_lost"),
            F.col("bursting"),
        ),
    )
    return (
        facts.select(*SESSION, *by, F.explode(choices).alias("choice"))
        .where("choice.wanted")
        .select(
            *SESSION,
            *by,
            "choice.option",
            "choice.value",
            "choice.unit",
            "choice.reason",
            "choice.losses_helped",
            F.size("choice.receivers").cast("long").alias("receivers_helped"),
            "choice.receivers",
        )
    )


def _choice(
    option: str,
    value: Column,
    unit: str,
    reason: str,
    wanted: Column,
    losses_helped: Column,
    receivers: Column,
) -> Column:
    return F.struct(
        F.lit(option).alias("option"),
        value.cast("long").alias("value"),
        F.lit(unit).alias("unit"),
        F.lit(reason).alias("reason"),
        F.coalesce(wanted & value.isNotNull(), F.lit(False)).alias("wanted"),
        F.coalesce(losses_helped, F.lit(0)).cast("long").alias("losses_helped"),
        F.coalesce(receivers, F.array().cast("array<string>")).alias("receivers"),
    )


def _receivers(condition: str = "true") -> Column:
    """The receivers of the losses of which this is so. Who lost what was sent again without a NAK is not known."""
    return F.array_sort(F.collect_set(F.when(F.expr(condition), F.col("receiver"))))


def _facts(
    losses: DataFrame, incidents: DataFrame, latencies: DataFrame, rated: DataFrame, key: list[str]
) -> DataFrame:
    """One row a session, or part of one, of everything the rules want to know."""
    trip = request_ns()
    lost = losses.groupBy(*key).agg(
        F.count("*").alias("lost"),
        F.count_if(F.expr("naks > 1")).alias("asked_again"),
        F.sum(F.greatest(F.col("naks") - 1, F.lit(0))).alias("repeats"),
        F.count_if(F.expr("repaired_ns IS NULL")).alias("unrepaired"),
        _receivers().alias("losing"),
        _receivers("naks > 1").alias("repeating"),
        _receivers("repaired_ns IS NULL").alias("unrepairing"),
        F.coalesce(F.max(F.when(F.col("naks") == 1, trip)), F.max(trip)).alias("longest_trip_ns"),
    )
    in_bursts = incidents.where("cause = 'burst'")
    burst = in_bursts.groupBy(*key).agg(
        F.max("longest_run_ns").alias("burst_ns"),
        F.sum("lost").alias("burst_lost"),
        _receivers().alias("bursting"),
    )
    waits = latencies.groupBy(*key).agg(
        F.max("request_p50").alias("usual_trip_ns"), F.max("request_p99").alias("repair_ns")
    )
    return (
        lost.join(burst, key, "left")
        .join(waits, key, "left")
        .join(_volumes(rated, key), key, "left")
        .join(_lossy_rates(in_bursts, rated, key), key, "left")
        .fillna(0, subset=["burst_ns", "usual_trip_ns", "longest_trip_ns", "repair_ns"])
    )


def _volumes(rated: DataFrame, key: list[str]) -> DataFrame:
    peak_window = F.expr(f"start_ns div {_PEAK_NS}").alias("window")
    data = F.col("bytes") - F.col("retransmitted_bytes")
    windows = (
        at_one_point(rated)
        .groupBy(*key, peak_window)
        .agg(
            F.sum(data).alias("bytes"),
            F.min("start_ns").alias("first_ns"),
            F.max("start_ns").alias("last_ns"),
        )
    )
    span_s = (F.max("last_ns") - F.min("first_ns") + MS) / 1e9
    return windows.groupBy(*key).agg(
        (F.max("bytes") * (1e9 / _PEAK_NS)).alias("peak_bytes_per_second"),
        (F.sum("bytes") / span_s).alias("mean_bytes_per_second"),
    )


def _lossy_rates(in_bursts: DataFrame, rated: DataFrame, key: list[str]) -> DataFrame:
    """The rate, over ten milliseconds, at which bursts of loss began; the lower tenth of what was seen."""
    window = F.expr(f"start_ns div {_BURST_NS}").alias("window")
    sent = at_one_point(rated).groupBy(*key, window).agg(F.sum("bytes").alias("bytes"))
    began = in_bursts.select(*key, window)
    found = began.join(sent, [*key, "window"])
    return found.groupBy(*key).agg(
        (F.percentile_approx("bytes", 0.1, 1000) * (1e9 / _BURST_NS)).alias("lossy_bytes_per_second")
    )
