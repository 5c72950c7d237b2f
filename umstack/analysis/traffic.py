"""Sessions, topics, rates, datagram sizes and latency, from facts. docs/analysis.md defines each column."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from umstack.analysis import once
from umstack.analysis.clocks import Clocks
from umstack.analysis.losses import WINDOW, percentiles, windowed
from umstack.analysis.numbering import Seen, Session
from umstack.analysis.restarts import restarts
from umstack.capture.reading.schema import LBTTCP
from umstack.facts.facts import Facts
from umstack.facts.kinds import (
    BUCKET_NS,
    DATA,
    NAK,
    NCF,
    RATED_NS,
    RETRANSMISSION,
    SESSION,
    SESSION_MESSAGE,
    STATUS,
)

NS_PER_SECOND = 1_000_000_000
IP_AND_UDP_BYTES = 28
STEP_DATAGRAMS = 8
"""Number of datagrams on each side of a step of the clock that show it."""
_POINT = ("point", *SESSION)
_COUNTS = {
    DATA: "datagrams",
    RETRANSMISSION: "retransmissions",
    SESSION_MESSAGE: "session_messages",
    NAK: "naks",
    NCF: "ncfs",
    STATUS: "status_messages",
}
_VOLUMES = {"messages": "messages", "message_bytes": "message_bytes", "data_bytes": "udp_bytes"}


def sessions(facts: Facts, covered: pl.DataFrame) -> pl.DataFrame:
    """Return one row per session and capture point: transport, span, datagrams by kind, volume and rate.

    Over LBT-RU each datagram counts once, regardless of the number of receivers. Over LBT-TCP there are no datagrams:
    each message counts once, and `data_bytes` is the messages' payload.
    """
    kind, original = pl.col("kind"), pl.col("kind") == DATA
    known = facts.counts.filter(pl.col("transport").is_not_null()).select(SESSION).unique()
    of_sessions = once.counts(facts).join(known, list(SESSION), "semi")
    counted = of_sessions.group_by(*_POINT).agg(
        pl.col("transport").max(),
        pl.col("group").max(),
        pl.col("first_ns").min(),
        pl.col("last_ns").max(),
        *(pl.col("packets").filter(kind == one).sum().alias(name) for one, name in _COUNTS.items()),
        *(pl.col(of).filter(original).sum().alias(name) for name, of in _VOLUMES.items()),
    )
    ends = facts.counts.group_by(*_POINT).agg(
        receivers=pl.col("receiver").drop_nulls().n_unique().cast(pl.Int64)
    )
    counted = _with_streams(counted, facts).join(ends, list(_POINT), "left")
    counted = counted.join(_restarts(facts), list(_POINT), "left").with_columns(
        pl.col("restarts").fill_null(0)
    )
    numbers = covered.group_by(*_POINT).agg(first_sqn=pl.col("low").min(), last_sqn=pl.col("high").max())
    seconds = pl.col("seconds")
    is_rated = seconds >= RATED_NS / NS_PER_SECOND
    order = [*(name for name in counted.columns if name != "receivers"), "first_sqn", "last_sqn", "receivers"]
    return (
        counted.join(numbers, list(_POINT), "left")
        .select(order)
        .with_columns(seconds=(pl.col("last_ns") - pl.col("first_ns")) / NS_PER_SECOND)
        .with_columns(
            datagrams_per_second=pl.when(is_rated).then(pl.col("datagrams") / seconds),
            bits_per_second=pl.when(is_rated).then(pl.col("data_bytes") * 8 / seconds),
        )
        .sort(*_POINT)
    )


def _restarts(facts: Facts) -> pl.DataFrame:
    """Return how often the source of a session restarted, by point."""
    rows = [
        (point, *session, len(times))
        for session, points in restarts(facts).items()
        for point, times in points.items()
    ]
    schema = {"point": pl.String, "publisher": pl.String, "session_id": pl.Int64, "restarts": pl.Int64}
    return pl.DataFrame(rows, schema, orient="row")


def _with_streams(counted: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Add the volume of LBT-TCP sessions: that of their topics, each message once."""
    volume = (
        once.topics(facts, ("point",))
        .group_by(*_POINT)
        .agg(streamed=pl.col("messages").sum(), streamed_bytes=pl.col("payload_bytes").sum())
    )
    streamed = pl.col("transport") == LBTTCP

    def instead(name: str, of_stream: str) -> pl.Expr:
        return pl.when(streamed).then(pl.col(of_stream).fill_null(0)).otherwise(name).alias(name)

    joined = counted.join(volume, list(_POINT), "left").with_columns(
        instead("messages", "streamed"),
        instead("message_bytes", "streamed_bytes"),
        instead("data_bytes", "streamed_bytes"),
    )
    return joined.drop("streamed", "streamed_bytes")


def topics(facts: Facts) -> pl.DataFrame:
    """Return one row per topic of a session, from the capture point that saw most of it."""
    return once.topics(facts)


def at_one_point(rated: pl.DataFrame) -> pl.DataFrame:
    """Return a session's rates of each second at the point that saw most of it, because two points must not double the
    rate. Another second may have another point: that of an earlier run of the source, captured elsewhere."""
    second = (pl.col("start_ns") // NS_PER_SECOND).alias("second")
    key = [*SESSION, "second"]
    timed = rated.with_columns(second)
    totals = timed.group_by(*key, "point").agg(total=pl.col("bytes").sum()).sort("total", "point")
    best = totals.group_by(key, maintain_order=True).agg(pl.col("point").last())
    return timed.join(best, [*key, "point"], "semi").drop("second")


def of_a_steady_clock(rated: pl.DataFrame, everything: list[Seen]) -> pl.DataFrame:
    """Return the rates without the times that a point's clock showed twice because it was set back: rates from before
    and after the step add up there.

    `everything` has the times of each point's own clock. A step counts if the `STEP_DATAGRAMS` numbers before it are
    all later than those after it, which no reordering of fewer datagrams causes.
    """
    near = np.arange(STEP_DATAGRAMS)
    parts = [rated.select(*_POINT).clear().with_columns(from_ns=pl.lit(0), to_ns=pl.lit(0))]
    for one in everything:
        first_after = one.steps_back()
        distinct = len(one) - int(one.copied().sum())
        is_inside = (first_after >= STEP_DATAGRAMS) & (first_after <= distinct - STEP_DATAGRAMS)
        first_after = first_after[is_inside, np.newaxis]
        before, after = (
            one.first_times_at(places) for places in (first_after - 1 - near, first_after + near)
        )
        at = np.flatnonzero(before.min(axis=1) > after.max(axis=1))
        # A rate's bucket may begin before the span, and reach into it.
        spans = {"from_ns": after[at].min(axis=1) - BUCKET_NS, "to_ns": before[at].max(axis=1)}
        key = zip(_POINT, (one.point, *one.session), strict=True)
        known = [pl.lit(value, rated.schema[name]).alias(name) for name, value in key]
        parts.append(pl.DataFrame(spans).select(*known, "from_ns", "to_ns"))
    steps = pl.concat(parts, how="vertical_relaxed").sort("from_ns")
    # The newest span that begins before a time, with the latest end of all before it, shows if any span covers it.
    steps = steps.with_columns(pl.col("to_ns").cum_max().over(_POINT))
    timed = rated.sort("start_ns")
    covering = timed.join_asof(
        steps, left_on="start_ns", right_on="from_ns", by=_POINT, check_sortedness=False
    )
    return timed.filter((covering["to_ns"] < covering["start_ns"]).fill_null(True))


def rate_summary(rated: pl.DataFrame) -> pl.DataFrame:
    """Return one row per session and capture point: mean, p99 and peak of the milliseconds in which it sent, in
    bytes/s."""
    per_second = 1e9 / BUCKET_NS
    volume = pl.col("bytes")
    return (
        rated.group_by(*_POINT)
        .agg(
            busy_buckets=pl.len().cast(pl.Int64),
            busy_bytes_per_second=volume.mean() * per_second,
            p50_bytes_per_second=volume.quantile(0.5, "equiprobable") * per_second,
            p99_bytes_per_second=volume.quantile(0.99, "equiprobable") * per_second,
            peak_bytes_per_second=volume.max() * per_second,
            peak_datagrams_per_second=pl.col("datagrams").max() * per_second,
        )
        .sort(*_POINT)
    )


def bursts(rated: pl.DataFrame, factor: float = 3.0) -> pl.DataFrame:
    """Return runs of milliseconds in which a session sent at least `factor` times its mean: start, length, volume."""
    key, start = list(_POINT), pl.col("start_ns")
    span = start.max() - start.min() + BUCKET_NS
    means = rated.group_by(key).agg(mean_bytes=pl.col("bytes").sum() * BUCKET_NS / span)
    fast = (
        rated.join(means, key).filter(pl.col("bytes") >= factor * pl.col("mean_bytes")).sort(*key, "start_ns")
    )
    found = fast.with_columns(island=start - pl.int_range(pl.len()).over(key) * BUCKET_NS)
    lasted = start.max() - start.min() + BUCKET_NS
    return (
        found.group_by(*key, "island")
        .agg(
            start_ns=start.min(),
            duration_ns=lasted,
            datagrams=pl.col("datagrams").sum(),
            bytes=pl.col("bytes").sum(),
            peak_bytes_per_second=pl.col("bytes").max() * 1e9 / BUCKET_NS,
            mean_bytes=pl.col("mean_bytes").first(),
        )
        .with_columns(times_mean=pl.col("bytes") * BUCKET_NS / pl.col("duration_ns") / pl.col("mean_bytes"))
        .drop("island", "mean_bytes")
        .sort(*key, "start_ns")
    )


def duplicates(covered: pl.DataFrame) -> pl.DataFrame:
    """Return one row per session and capture point at which datagrams were seen more often than they were sent."""
    return (
        covered.group_by(*_POINT)
        .agg(pl.col("datagrams").sum(), pl.col("distinct").sum())
        .with_columns(copies=pl.col("datagrams") - pl.col("distinct"))
        .filter(pl.col("copies") > 0)
        .sort(*_POINT)
    )


def datagram_fill(sized: pl.DataFrame, mtu: int) -> pl.DataFrame:
    """Return one row per session and capture point: messages per datagram, fill relative to the MTU, payload share."""
    space = mtu - IP_AND_UDP_BYTES
    many, size, messages = pl.col("datagrams"), pl.col("udp_bytes"), pl.col("message_count")
    total = (many * messages).sum()
    return (
        sized.group_by(*_POINT)
        .agg(
            datagrams=many.sum(),
            messages=total,
            messages_per_datagram=total / many.sum(),
            most_messages=messages.max(),
            fill=(many * size).sum() / (many.sum() * space),
            half_empty=many.filter(2 * size < space).sum(),
            over_mtu=many.filter(size > space).sum(),
            payload_share=pl.col("message_bytes").sum() / pl.col("frame_bytes").sum(),
            payload_bytes_per_datagram=pl.col("message_bytes").sum() / many.sum(),
        )
        .sort(*_POINT)
    )


def fill_histogram(sized: pl.DataFrame, mtu: int, bins: int = 20) -> pl.DataFrame:
    """Return the number of datagrams by fill in equal bins from 0 to 1; the last includes those over the MTU."""
    space = mtu - IP_AND_UDP_BYTES
    position = pl.min_horizontal(pl.col("udp_bytes") * bins // space, pl.lit(bins - 1, pl.Int64))
    counted = sized.group_by(*SESSION, position.alias("bin")).agg(pl.col("datagrams").sum())
    edges = [(pl.col("bin") / bins).alias("from"), ((pl.col("bin") + 1) / bins).alias("to")]
    return counted.select(*SESSION, *edges, "datagrams").sort(*SESSION, "from")


_LATENCY = {
    "publisher": pl.String,
    "session_id": pl.Int64,
    "from_point": pl.String,
    "to_point": pl.String,
    "receiver": pl.String,
    **dict.fromkeys(("datagrams", "negative", "latency_min"), pl.Int64),
    **dict.fromkeys((f"latency_{one}" for one in ("p50", "p90", "p99", "p999", "max")), pl.Int64),
    "offset_ns": pl.Int64,
    "uncertainty_ns": pl.Int64,
    "drift": pl.Float64,
    "is_corrected": pl.Boolean,
}


def _pairs(everything: list[Seen]) -> Iterator[tuple[Seen, Seen]]:
    """Yield pairs of capture points of a session, or of its copies for an LBT-RU receiver, in both directions."""
    streams: dict[tuple[Session, str], list[Seen]] = {}
    for one in everything:
        streams.setdefault((one.session, one.receiver), []).append(one)
    for here in everything:
        for there in streams[here.session, here.receiver]:
            if there is not here:
                yield here, there


def _compared(clocks: Clocks, here: Seen, there: Seen) -> list[pl.Expr]:
    """Return how far the clock of `there` is ahead of that of `here`; the columns are null if nothing is known."""
    mine, theirs = clocks.get((here.session, here.point)), clocks.get((there.session, there.point))
    references = {clock.reference for clock in (mine, theirs) if clock is not None}
    known = [clock is not None or one.point in references for clock, one in ((mine, here), (theirs, there))]
    both = [clock for clock in (mine, theirs) if clock is not None]
    values: tuple[int | None, int | None, float | None, bool | None] = (None, None, None, None)
    if all(known):
        signs = [-1 if clock is mine else 1 for clock in both]
        values = (
            round(sum(sign * clock.offset_ns for sign, clock in zip(signs, both, strict=True))),
            round(sum(clock.uncertainty_ns for clock in both)),
            sum(sign * clock.drift for sign, clock in zip(signs, both, strict=True)),
            any(clock.is_corrected for clock in both),
        )
    names = ("offset_ns", "uncertainty_ns", "drift", "is_corrected")
    return [pl.lit(value, _LATENCY[name]).alias(name) for name, value in zip(names, values, strict=True)]


def latency(everything: list[Seen], clocks: Clocks, window_ns: int = 0) -> pl.DataFrame:
    """Return one row per session, pair of points and (LBT-RU) receiver: datagrams seen at both points, and the time
    between them in nanoseconds.

    A pair is listed in the direction in which most times are positive. `offset_ns` is how far the clock of the second
    point is ahead (`umstack.analysis.clocks`), which is subtracted if `is_corrected`. With `window_ns` one row per
    window of that length (`window`) in which datagrams were seen at the first point.
    """
    by = windowed("from_ns", window_ns)
    empty = pl.DataFrame(schema=_LATENCY)
    parts = [empty.with_columns(pl.lit(0, pl.Int64).alias(WINDOW)).clear() if window_ns else empty]
    order = parts[0].columns
    took = pl.col("took_ns")
    for here, there in _pairs(everything):
        from_sqns, from_ns = here.first_times()
        to_sqns, to_ns = there.first_times()
        _, at, to_at = np.intersect1d(from_sqns, to_sqns, assume_unique=True, return_indices=True)
        times = to_ns[to_at] - from_ns[at]
        total = int(times.sum())
        if not len(times) or total < 0 or (total == 0 and here.point > there.point):
            continue
        rows = pl.DataFrame({"took_ns": times, "from_ns": from_ns[at]})
        pair = [
            pl.lit(here.session[0]).alias("publisher"),
            pl.lit(here.session[1], pl.Int64).alias("session_id"),
            pl.lit(here.point).alias("from_point"),
            pl.lit(there.point).alias("to_point"),
            pl.lit(here.receiver or None, pl.String).alias("receiver"),
            *_compared(clocks, here, there),
        ]
        spread = [
            pl.len().cast(pl.Int64).alias("datagrams"),
            (took < 0).sum().cast(pl.Int64).alias("negative"),
            took.min().alias("latency_min"),
            *percentiles(took, "latency"),
        ]
        found = rows.group_by(by).agg(spread) if by else rows.select(spread)
        parts.append(found.with_columns(pair).select(order))
    return pl.concat(parts)
