"""Losses, incidents, recovery, NAK storms and retransmissions, from facts. docs/analysis.md defines each."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from umstack.analysis.numbering import Reference, Seen, Session, sent_times, unwrapped
from umstack.capture.reading.schema import LBTRU
from umstack.facts.facts import Facts
from umstack.facts.kinds import NAK, NCF, RETRANSMISSION, SESSION

MS = 1_000_000
_SQN = (*SESSION, "sqn")
_COPY = (*SESSION, "copy")
_RECEIVER = (*SESSION, "receiver")
STORM_NS = 100 * MS
STORM_REQUESTS, STORM_NAKS = 100, 10
"""Minimum NAKs per tenth of a second in a storm: fewer are normal recovery."""


@dataclass(frozen=True, slots=True)
class Rare:
    """NAKs, NCFs and retransmissions with unwrapped sequence numbers, one row per number.

    `copy` is the receiver that sent the datagram or was sent it (LBT-RU); "" for a multicast group.
    """

    naks: pl.DataFrame
    ignored: pl.DataFrame
    repairs: pl.DataFrame
    refusals: pl.DataFrame
    """Refused sequence numbers, with the reason in lower case."""


def rare(facts: Facts, known: dict[Session, Reference]) -> Rare:
    """Return the rows of facts, unwrapped with the references."""
    rows = facts.rare.join(
        unicast_sessions(facts), list(SESSION), "left", maintain_order="left"
    ).with_columns(copy=pl.when("is_unicast").then("receiver").otherwise(pl.lit("")))
    rows = rows.drop("is_unicast")
    lists = rows.filter(pl.col("kind").is_in([NAK, NCF])).filter(pl.col("sqns").list.len() > 0)
    listed = lists.drop("sqn").explode("sqns").rename({"sqns": "sqn"})
    listed = unwrapped(listed, known)
    reason = pl.col("ncf_reason").str.to_lowercase()
    again = rows.filter(pl.col("kind") == RETRANSMISSION).drop("sqns")
    # A number in a truncated packet stays unknown.
    numbered = again.filter(pl.col("sqn").is_not_null())
    repairs = pl.concat([unwrapped(numbered, known), again.filter(pl.col("sqn").is_null())])
    return Rare(
        naks=listed.filter(pl.col("kind") == NAK),
        ignored=listed.filter((pl.col("kind") == NCF) & (reason == "ignored")),
        repairs=repairs,
        refusals=listed.filter(pl.col("kind") == NCF).with_columns(ncf_reason=reason),
    )


def unicast_sessions(facts: Facts) -> pl.DataFrame:
    """Return the sessions of LBT-RU, with a column `is_unicast` that is true."""
    found = facts.counts.filter(pl.col("transport") == LBTRU).select(SESSION).unique()
    return found.with_columns(is_unicast=pl.lit(True))


REASONS = {
    "no_retry": "refused_no_retry",
    "ignored": "refused_ignored",
    "rx_delay": "refused_rx_delay",
    "shed": "refused_shed",
}


def _of_sent(naks: pl.DataFrame, everything: list[Seen]) -> pl.DataFrame:
    """Return NAKs without those for numbers that a filter skipped for the receiver: a filter report answers them."""
    key = [*_COPY, "sqn"]
    for one in everything:
        if not len(one.passed[0]):
            continue
        (publisher, session_id), copy = one.session, one.receiver
        nak_rows = naks.filter(publisher=publisher, session_id=session_id, copy=copy).select(key).unique()
        naks = naks.join(nak_rows.filter(one.passed_over(nak_rows["sqn"].to_numpy())), key, "anti")
    return naks


def losses(rows: Rare, everything: list[Seen]) -> pl.DataFrame:
    """Return one row per session, receiver and lost sequence number."""
    time = pl.col("time_ns")
    # One point, that with the most NAKs, judges a loss, because the clocks of two points differ.
    nak_rows = (
        _of_sent(rows.naks, everything)
        .group_by(*_RECEIVER, "copy", "sqn", "point")
        .agg(nak_ns=time.min(), last_nak_ns=time.max(), naks=pl.len().cast(pl.Int64), nak_times=time.sort())
        .sort("naks", "nak_ns", "point", descending=[True, False, False])
        .unique([*_RECEIVER, "copy", "sqn"], keep="first", maintain_order=True)
        .rename({"point": "judge"})
    )
    ignored = rows.ignored.group_by(*_COPY, "sqn").agg(ignored_ns=time.max())
    again = rows.repairs.select(*_COPY, "sqn", "time_ns", "point")
    copy, loss = [*_COPY, "sqn"], [*_RECEIVER, "copy", "sqn"]
    is_own = (pl.col("point") == pl.col("judge")).fill_null(False)
    # A retransmission captured at the same time as its NAK counts: clocks of captures may be coarse.
    judged = (
        nak_rows.join(again, copy, "left")
        .filter(is_own | ~is_own.any().over(loss))
        .join(ignored, copy, "left")
        .join(_retries(nak_rows), list(_RECEIVER), "left")
        .group_by(*_RECEIVER, "sqn", "nak_ns", "naks", "nak_times", "retry_ns", "active_ns")
        .agg(
            final=time.filter(time >= pl.col("last_nak_ns")).min(),
            answer=time.max(),
            met=time.filter(pl.col("ignored_ns") >= pl.col("last_nak_ns")).max(),
        )
        .with_columns(repaired_ns=pl.coalesce("final", _crossing(), "met"))
    )
    # A retransmission for one receiver reaches all of them: the others need not have lost the datagram.
    others = (
        again.join(nak_rows, list(_SQN), "anti")
        .group_by(*_SQN)
        .agg(repaired_ns=time.min())
        .with_columns(
            receiver=pl.lit(None, pl.String), nak_ns=pl.lit(None, pl.Int64), naks=pl.lit(0, pl.Int64)
        )
    )
    names = [*_RECEIVER, "sqn", "nak_ns", "naks", "repaired_ns"]
    known = pl.concat([judged.select(names), others.select(names)])
    sent = sent_times(everything, known.filter(pl.col("sqn").is_not_null()))
    return (
        known.join(sent, list(_SQN), "left")
        .with_columns(lost_ns=pl.coalesce("sent_ns", "nak_ns", "repaired_ns"))
        .select(*_RECEIVER, "sqn", "sent_ns", "nak_ns", "naks", "repaired_ns", "lost_ns")
        .sort(*_RECEIVER, "sqn")
    )


def _retries(nak_rows: pl.DataFrame) -> pl.DataFrame:
    """Return by receiver the longest time between two NAKs for one number, and the time of its last NAK of all."""
    return nak_rows.group_by(*_RECEIVER).agg(
        retry_ns=pl.col("nak_times").list.diff().list.max().max(), active_ns=pl.col("last_nak_ns").max()
    )


def _crossing() -> pl.Expr:
    """Return the time of the last retransmission if the receiver's last NAK crossed it in transit; otherwise null.

    A receiver that NAKs twice after a retransmission has not received it. After a single NAK it has if that NAK came
    sooner than the one before, or if the receiver would have sent another since: it sent NAKs for other numbers for
    longer than it ever waited between two NAKs for one.
    """
    answer, times = pl.col("answer"), pl.col("nak_times")
    last_ns, before_ns = times.list.last(), times.list.get(-2, null_on_oob=True)
    is_single = (before_ns <= answer).fill_null(True)
    is_soon = last_ns - answer <= answer - before_ns
    is_silent = pl.col("active_ns") - last_ns > pl.col("retry_ns")
    return pl.when(is_single & (is_soon | is_silent)).then(answer)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that separate incidents and their causes."""

    quiet_ns: int = 50 * MS
    """An incident ends after this long without a loss."""
    burst_run: int = 4
    """Minimum number of consecutive losses in a burst."""
    connectivity_ns: int = 100 * MS
    """If every datagram is lost for this long, it counts as a path outage."""
    pause_ns: int = 100 * MS
    """If no datagram follows for this long, the previous one counts as the last before a pause."""


def incidents(
    lost: pl.DataFrame,
    known_sessions: pl.DataFrame,
    everything: list[Seen],
    thresholds: Thresholds | None = None,
) -> pl.DataFrame:
    """Return one row per incident: session, receiver, span, sequence numbers, number of losses, and cause."""
    limits = thresholds or Thresholds()
    receiver, at = list(_RECEIVER), pl.col("lost_ns")
    starts = (at - at.shift().over(receiver) > limits.quiet_ns).fill_null(False)
    parts = (
        lost.sort(*receiver, "lost_ns", "sqn", nulls_last=False)
        .with_columns(incident=starts.cast(pl.Int64).cum_sum().over(receiver))
        .sort(*receiver, "sqn")
        .with_columns(run=pl.col("sqn") - pl.int_range(pl.len()).over(receiver))
    )
    runs = parts.group_by(*receiver, "incident", "run").agg(
        start_ns=at.min(),
        end_ns=at.max(),
        first_sqn=pl.col("sqn").min(),
        last_sqn=pl.col("sqn").max(),
        lost=pl.len().cast(pl.Int64),
        unrepaired=pl.col("repaired_ns").is_null().sum().cast(pl.Int64),
        run_ns=at.max() - at.min(),
    )
    many = pl.col("lost")
    whole = [*receiver, "incident"]
    is_burst = many >= limits.burst_run
    # A burst among sporadic losses is an incident with its own cause.
    apart = is_burst & (2 * many.filter(is_burst).sum().over(whole) < many.sum().over(whole))
    split = runs.with_columns(burst=pl.when(apart).then("run"))
    merged = split.group_by(*whole, "burst").agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("first_sqn").min(),
        pl.col("last_sqn").max(),
        many.sum().alias("lost"),
        pl.col("unrepaired").sum(),
        longest_run=many.max(),
        longest_run_ns=pl.col("run_ns").max(),
        in_bursts=many.filter(many >= limits.burst_run).sum(),
    )
    ends = known_sessions.group_by(*SESSION).agg(
        session_first_sqn=pl.col("first_sqn").min(), session_last_sqn=pl.col("last_sqn").max()
    )
    followers = merged.select(*SESSION, sqn=pl.col("last_sqn") + 1)
    after = sent_times(everything, followers).select(
        *SESSION, last_sqn=pl.col("sqn") - 1, next_ns=pl.col("sent_ns")
    )
    paused = pl.col("next_ns") - pl.col("end_ns") >= limits.pause_ns
    is_last = pl.coalesce(paused, pl.col("last_sqn") >= pl.col("session_last_sqn"), pl.lit(False))
    cause = (
        pl.when(pl.col("longest_run_ns") >= limits.connectivity_ns)
        .then(pl.lit("connectivity"))
        .when(pl.col("first_sqn") <= pl.col("session_first_sqn"))
        .then(pl.lit("head"))
        .when(is_last)
        .then(pl.lit("tail"))
        .when(2 * pl.col("in_bursts") >= pl.col("lost"))
        .then(pl.lit("burst"))
        .otherwise(pl.lit("sporadic"))
    )
    return (
        merged.join(ends, list(SESSION), "left")
        .join(after, [*SESSION, "last_sqn"], "left")
        .with_columns(cause=cause)
        .drop("incident", "burst", "in_bursts", "session_first_sqn", "session_last_sqn", "next_ns")
        .sort(*receiver, "start_ns", "first_sqn")
    )


def percentiles(value: pl.Expr, prefix: str) -> list[pl.Expr]:
    """Return columns `prefix_p50` to `prefix_p999` and `prefix_max` of an aggregation: observed values, not
    interpolated."""
    named = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = [
        value.quantile(at, "equiprobable").cast(pl.Int64).alias(f"{prefix}_{name}")
        for name, at in named.items()
    ]
    return [*found, value.max().alias(f"{prefix}_max")]


def request_ns() -> pl.Expr:
    """Return the time from the first NAK to the retransmission of a loss; null if the two crossed in transit."""
    return pl.when(pl.col("repaired_ns") >= pl.col("nak_ns")).then(pl.col("repaired_ns") - pl.col("nak_ns"))


def asked(rows: Rare) -> pl.DataFrame:
    """Return one row per NAK and number: session, receiver, number, and the waits before and after it.

    `wait_ns` is the time since the receiver's NAK before; null for the first. `ncf_reason` is the reason of the last
    NCF for the number before the NAK: the receiver may have waited its suppress interval, also if the NCF passed the
    capture point before the receiver's NAK before. `next_ncf_ns` is the time from the NAK to the next NCF for the
    number. Both are null if there is none. `is_refused` is true if the source refused the NAK because of its ignore
    interval. A NAK for a number that another receiver requested during `wait_ns` is refused by design, and does not
    count as refused.
    """
    key, time = [*_RECEIVER, "copy", "sqn"], pl.col("time_ns")
    seen = [*_COPY, "sqn", "point"]
    own = _at_best_point(rows).select(*key, "point", "time_ns").unique().sort("time_ns")
    own = own.with_columns(before_ns=time.shift().over(key), nak_ns=time)
    answers = rows.refusals.select(*seen, "time_ns", "ncf_reason").sort("time_ns")
    # An NCF at the time of a NAK answers it: clocks of captures may be coarse.
    judged_naks = own.join_asof(
        answers,
        on="time_ns",
        by=seen,
        allow_exact_matches=False,
        check_sortedness=False,
    ).join_asof(
        answers.select(*seen, "time_ns", following_ns="time_ns"),
        on="time_ns",
        by=seen,
        strategy="forward",
        check_sortedness=False,
    )
    answered = answers.filter(pl.col("ncf_reason") == "ignored").join_asof(
        own, on="time_ns", by=seen, check_sortedness=False
    )
    refused = answered.filter(pl.col("before_ns").is_not_null()).select(*key, "before_ns", "nak_ns").unique()
    # A retransmission that another receiver's NAK caused since then may still be on its way.
    others = rows.naks.select(*_COPY, "sqn", other="receiver", other_ns="time_ns")
    by_others = refused.join(others, [*_COPY, "sqn"]).filter(
        (pl.col("other") != pl.col("receiver")) & pl.col("other_ns").is_between("before_ns", "nak_ns")
    )
    judged = refused.join(by_others, [*key, "nak_ns"], "anti").select(*key, "nak_ns", is_refused=pl.lit(True))
    return (
        judged_naks.join(judged, [*key, "nak_ns"], "left")
        .sort(*_RECEIVER, "sqn", "nak_ns")
        .select(
            *_RECEIVER,
            "sqn",
            wait_ns=pl.col("nak_ns") - pl.col("before_ns"),
            ncf_reason="ncf_reason",
            next_ncf_ns=pl.col("following_ns") - pl.col("nak_ns"),
            is_refused=pl.col("is_refused").fill_null(False),
        )
    )


def _at_best_point(rows: Rare) -> pl.DataFrame:
    """Return the NAKs of each receiver as the point saw them that saw the most of them."""
    counts = rows.naks.group_by(*_RECEIVER, "point").agg(requests=pl.len())
    best = (
        counts.sort("requests", "point").group_by(*_RECEIVER, maintain_order=True).agg(pl.col("point").last())
    )
    return rows.naks.join(best, [*_RECEIVER, "point"], "semi")


def recovery_latency(lost: pl.DataFrame) -> pl.DataFrame:
    """Return one row per session and receiver: losses, how many were repaired, NAKs per loss, and times in
    nanoseconds."""
    timed = lost.filter(pl.col("receiver").is_not_null()).with_columns(
        request_ns=request_ns(), recovery_ns=pl.col("repaired_ns") - pl.col("sent_ns")
    )
    return (
        timed.group_by(*_RECEIVER)
        .agg(
            lost=pl.len().cast(pl.Int64),
            repaired=pl.col("repaired_ns").count().cast(pl.Int64),
            naks=pl.col("naks").sum(),
            naks_per_loss=pl.col("naks").sum() / pl.len(),
            request_min=pl.col("request_ns").min(),
            **{one.meta.output_name(): one for one in percentiles(pl.col("request_ns"), "request")},
            **{one.meta.output_name(): one for one in percentiles(pl.col("recovery_ns"), "recovery")},
        )
        .sort(*_RECEIVER)
    )


def recovery_histogram(lost: pl.DataFrame, bins_per_decade: int = 10) -> pl.DataFrame:
    """Return the number of losses by repair time in logarithmic bins (`from_ns`, `to_ns`), session and receiver."""
    known = lost.filter(pl.col("receiver").is_not_null() & pl.col("repaired_ns").is_not_null())
    waited = pl.max_horizontal(pl.col("repaired_ns") - pl.coalesce("sent_ns", "nak_ns"), pl.lit(1))
    step = 1.0 / bins_per_decade
    return (
        known.with_columns(bin=(waited.log10() * bins_per_decade).floor())
        .group_by(*_RECEIVER, "bin")
        .agg(losses=pl.len().cast(pl.Int64))
        .select(
            *_RECEIVER,
            (10.0 ** (pl.col("bin") * step)).alias("from_ns"),
            (10.0 ** ((pl.col("bin") + 1) * step)).alias("to_ns"),
            "losses",
        )
        .sort(*_RECEIVER, "from_ns")
    )


def nak_storms(rows: Rare) -> pl.DataFrame:
    """Return one row per storm: its span, NAKs, numbers requested and requested again, and its receivers."""
    # The numbers that a receiver requests at one instant count as one NAK.
    nak_rows = (
        _at_best_point(rows)
        .unique([*_RECEIVER, "time_ns", "sqn"], maintain_order=True)
        .with_columns(
            window=pl.col("time_ns") // STORM_NS, place=pl.int_range(pl.len()).over(*_RECEIVER, "time_ns")
        )
    )
    first = (pl.col("place") == 0).sum().cast(pl.Int64)
    windows = nak_rows.group_by(*SESSION, "window").agg(requests=pl.len(), naks=first)
    stormy = windows.filter((pl.col("requests") >= STORM_REQUESTS) & (pl.col("naks") >= STORM_NAKS))
    island = pl.col("window") - pl.int_range(pl.len()).over(*SESSION)
    storms = stormy.sort(*SESSION, "window").select(*SESSION, "window", island.alias("storm"))
    by_receiver = (
        nak_rows.join(storms, [*SESSION, "window"])
        .group_by(*SESSION, "storm", "receiver")
        .agg(
            requests=pl.len().cast(pl.Int64),
            naks=first,
            distinct=pl.col("sqn").n_unique().cast(pl.Int64),
            start_ns=pl.col("time_ns").min(),
            end_ns=pl.col("time_ns").max(),
        )
        .sort("requests", "receiver", descending=True)
    )
    total = pl.col("requests").sum()
    behind = pl.struct("receiver", "requests", share=pl.col("requests") / total)
    return (
        by_receiver.group_by(*SESSION, "storm", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("naks").sum(),
            total,
            repeated=total - pl.col("distinct").sum(),
            receivers=behind,
        )
        .drop("storm")
        .sort(*SESSION, "start_ns")
    )


def repairs(rows: Rare, window_ns: int = 0) -> pl.DataFrame:
    """Return one row per session and capture point: retransmissions, and how many of them no receiver can have needed.

    With `window_ns`, return one row per window of that length (column `window`), taking earlier windows into account.
    """
    key = ["point", *SESSION]
    by = [*key, *windowed("time_ns", window_ns)]
    names = [*key, "copy", "sqn", "time_ns", "udp_bytes", "is_repair", "is_own"]
    again = rows.repairs.with_columns(is_repair=pl.lit(True), is_own=pl.lit(False)).select(names)
    nak_rows = rows.naks.with_columns(is_repair=pl.lit(False), udp_bytes=pl.lit(0, pl.Int64))
    # One NAK accounts for the copies of all receivers.
    copies = pl.concat([again.select(*key, "copy"), nak_rows.select(*key, "copy")]).unique()
    nak_rows = (
        nak_rows.rename({"copy": "own"})
        .join(copies, key)
        .with_columns(is_own=pl.col("copy") == pl.col("own"))
    )
    nak_rows = nak_rows.select(names)
    is_repair = pl.col("is_repair")
    number = [*key, "copy", "sqn"]
    # If both have the same time, the NAK goes first: it is the cause.
    judged = (
        pl.concat([again, nak_rows])
        .sort(*number, "time_ns", "is_repair")
        .with_columns(
            naks_so_far=(~is_repair).cast(pl.Int64).cum_sum().over(number),
            after_repair=is_repair.shift().over(number).fill_null(False),
        )
    )
    repeated = is_repair & pl.col("after_repair")
    unrequested = is_repair & (pl.col("naks_so_far") == 0) & ~repeated
    blind = pl.col("naks").sum().over(key) == 0
    counted = judged.group_by(by).agg(
        retransmissions=is_repair.sum().cast(pl.Int64),
        retransmitted_bytes=pl.col("udp_bytes").sum(),
        naks=pl.col("is_own").sum().cast(pl.Int64),
        unrequested=unrequested.sum().cast(pl.Int64),
        repeated=repeated.sum().cast(pl.Int64),
        useless_bytes=pl.col("udp_bytes").filter(repeated | unrequested).sum(),
    )
    honest = counted.with_columns(
        pl.when(~blind).then(pl.col(name)).alias(name)
        for name in ("unrequested", "repeated", "useless_bytes")
    )
    reason = pl.col("ncf_reason")
    refused = [(reason == key).sum().cast(pl.Int64).alias(name) for key, name in REASONS.items()]
    # A copy of an NCF is sent to every receiver.
    each = rows.refusals.group_by([*by, "copy"]).agg(refused)
    whole = [*key, *([WINDOW] if window_ns else [])]
    refusals = each.group_by(whole).agg(pl.col(name).max() for name in REASONS.values())
    reasons = [pl.col(name).fill_null(0) for name in REASONS.values()]
    return honest.join(refusals, whole, "left").with_columns(reasons).sort(whole)


WINDOW = "window"
"""The column with the start of a time window, in nanoseconds."""


def windowed(time: str, window_ns: int) -> list[pl.Expr]:
    """Return the column `window` of a time as a list to append to others; empty if time is not divided."""
    return [(pl.col(time) // window_ns * window_ns).alias(WINDOW)] if window_ns else []


_PAIR = (*SESSION, "from_point", "to_point")


def lost_repairs(rows: Rare, counts: pl.DataFrame, ways: pl.DataFrame, window_ns: int = 0) -> pl.DataFrame:
    """Return one row per session and pair of points: retransmissions past the first and those `lost` before the second.

    `counts` are those of the facts, on the clock of `rows`. `ways` contains the pairs in the direction of the datagrams
    (from `traffic.latency`). A retransmission counts only if it passed the first point while the second was capturing
    the session. With `window_ns`, return one row per window (`window`).
    """
    point = ["point", *_COPY]
    is_unicast = pl.col("transport") == LBTRU
    own = counts.with_columns(copy=pl.when(is_unicast).then("receiver").otherwise(pl.lit("")))
    spans = own.group_by(point).agg(pl.col("first_ns").min(), pl.col("last_ns").max())
    again = rows.repairs.filter(pl.col("sqn").is_not_null())
    pairs = ways.select(_PAIR).unique()
    passed = (
        again.rename({"point": "from_point"})
        .join(pairs, ["from_point", *SESSION])
        .join(spans.rename({"point": "to_point"}), ["to_point", *_COPY])
        .filter(pl.col("time_ns").is_between("first_ns", "last_ns"))
        .group_by(*_PAIR, "copy", "sqn")
        .agg(sent=pl.len().cast(pl.Int64), time_ns=pl.col("time_ns").max())
    )
    arrived = again.group_by(*point, "sqn").agg(arrived=pl.len().cast(pl.Int64)).rename({"point": "to_point"})
    missing = pl.max_horizontal(pl.col("sent") - pl.col("arrived").fill_null(0), pl.lit(0, pl.Int64))
    by = [*_PAIR, *windowed("time_ns", window_ns)]
    order = [*_PAIR, *([WINDOW] if window_ns else []), "retransmissions", "lost"]
    return (
        passed.join(arrived, ["to_point", *_COPY, "sqn"], "left")
        .group_by(by)
        .agg(retransmissions=pl.col("sent").sum(), lost=missing.sum())
        .filter(pl.col("lost") > 0)
        .select(order)
        .sort(order[:-2])
    )
