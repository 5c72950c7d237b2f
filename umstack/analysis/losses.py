"""Losses, recovery, NAK storms and retransmissions, from facts. docs/analysis.md defines each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import polars as pl

from umstack.analysis.numbering import Seen, sent_times
from umstack.analysis.rare_rows import Rare
from umstack.capture.reading.schema import LBTRU
from umstack.facts.kinds import SESSION
from umstack.facts.row_pile import RowPile

MS = 1_000_000
_SQN = (*SESSION, "sqn")
_COPY = (*SESSION, "copy")
_RECEIVER = (*SESSION, "receiver")
STORM_NS = 100 * MS
STORM_REQUESTS, STORM_NAKS = 100, 10
"""Minimum NAKs per tenth of a second in a storm: fewer are normal recovery."""
_STORM_WINDOWS = 64
"""Windows whose NAKs are counted together."""
_STORM_BITS = 14
"""Bits of the numbers that are counted together."""


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


def losses(slices: Iterable[Rare], everything: list[Seen]) -> pl.DataFrame:
    """Return one row per session, receiver and lost sequence number."""
    lost = Losses()
    waits = retries(slices, everything)
    for rows in slices:
        lost.add(losses_of(rows, everything, waits))
    return lost.frame()


class Losses:
    """Collects the losses of slices, which are added in order of number, or sorted afterwards."""

    def __init__(self) -> None:
        """Start without losses."""
        self._rows = RowPile()

    def add(self, lost: pl.DataFrame) -> None:
        """Add the losses of the next slice, from `losses_of`."""
        self._rows.add_by(lost, *map(pl.col, SESSION), pl.col("receiver").fill_null(""))

    def sort(self) -> None:
        """Sort the losses by number. Memory holds those of one receiver at a time."""
        rows = RowPile()
        rows.add(self._rows.schema)
        for key, of_receiver in self._rows.groups():
            rows.add(of_receiver.sort("sqn"), key)
        self._rows = rows

    def __iter__(self) -> Iterator[pl.DataFrame]:
        """Yield the losses in order, all losses of a receiver together."""
        return self._rows.slices()

    def frame(self) -> pl.DataFrame:
        """Return all losses in order. Many of them are mapped from a file."""
        return self._rows.frame()


def _judged_naks(rows: Rare, everything: list[Seen]) -> pl.DataFrame:
    """Return the NAKs for each loss. One point, that with the most of them, judges a loss, because the clocks of two
    points differ."""
    time = pl.col("time_ns")
    return (
        _of_sent(rows.naks, everything)
        .group_by(*_RECEIVER, "copy", "sqn", "point")
        .agg(nak_ns=time.min(), last_nak_ns=time.max(), naks=pl.len().cast(pl.Int64), nak_times=time.sort())
        .sort("naks", "nak_ns", "point", descending=[True, False, False])
        .unique([*_RECEIVER, "copy", "sqn"], keep="first", maintain_order=True)
        .rename({"point": "judge"})
    )


def losses_of(rows: Rare, everything: list[Seen], waits: pl.DataFrame) -> pl.DataFrame:
    """Return the losses of one slice in order; `waits` are those of `retries`."""
    time = pl.col("time_ns")
    nak_rows = _judged_naks(rows, everything)
    ignored = rows.ignored.group_by(*_COPY, "sqn").agg(ignored_ns=time.max())
    again = rows.repairs.select(*_COPY, "sqn", "time_ns", "point")
    copy, loss = [*_COPY, "sqn"], [*_RECEIVER, "copy", "sqn"]
    is_own = (pl.col("point") == pl.col("judge")).fill_null(False)
    # A retransmission captured at the same time as its NAK counts: clocks of captures may be coarse.
    judged = (
        nak_rows.join(again, copy, "left")
        .filter(is_own | ~is_own.any().over(loss))
        .join(ignored, copy, "left")
        .join(waits, list(_RECEIVER), "left")
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


def retries(slices: Iterable[Rare], everything: list[Seen]) -> pl.DataFrame:
    """Return by receiver the longest time between two NAKs for one number, and the time of its last NAK of all."""
    return longest_retries(retries_of(rows, everything) for rows in slices)


def retries_of(rows: Rare, everything: list[Seen]) -> pl.DataFrame:
    """Return `retries` of one slice."""
    step, last = pl.col("nak_times").list.diff().list.max().max(), pl.col("last_nak_ns").max()
    return _judged_naks(rows, everything).group_by(*_RECEIVER).agg(retry_ns=step, active_ns=last)


def longest_retries(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Combine the `retries` of slices."""
    return pl.concat(parts).group_by(*_RECEIVER).agg(pl.col("retry_ns", "active_ns").max())


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


def asked(rows: Rare, best: pl.DataFrame) -> pl.DataFrame:
    """Return one row per NAK and number of a slice: session, receiver, number, and the waits before and after it.

    The NAKs are those that the receiver's point of `best_points` saw.

    `wait_ns` is the time since the receiver's NAK before; null for the first. `ncf_reason` is the reason of the last
    NCF for the number before the NAK: the receiver may have waited its suppress interval, also if the NCF passed the
    capture point before the receiver's NAK before. `next_ncf_ns` is the time from the NAK to the next NCF for the
    number. Both are null if there is none. `is_refused` is true if the source refused the NAK because of its ignore
    interval. A NAK for a number that another receiver requested during `wait_ns` is refused by design, and does not
    count as refused.
    """
    key, time = [*_RECEIVER, "copy", "sqn"], pl.col("time_ns")
    seen = [*_COPY, "sqn", "point"]
    own = _at(best, rows).select(*key, "point", "time_ns").unique().sort("time_ns")
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


def best_points(slices: Iterable[Rare]) -> pl.DataFrame:
    """Return for each receiver the point that saw the most of its NAKs."""
    return best_of(map(points_of, slices))


def points_of(rows: Rare) -> pl.DataFrame:
    """Return the number of each receiver's NAKs in a slice by point."""
    return rows.naks.group_by(*_RECEIVER, "point").agg(requests=pl.len())


def best_of(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return `best_points` of slices, given their `points_of`."""
    counts = pl.concat(parts).group_by(*_RECEIVER, "point").agg(pl.col("requests").sum())
    ordered = counts.sort("requests", "point").group_by(*_RECEIVER, maintain_order=True)
    return ordered.agg(pl.col("point").last())


def _at(best: pl.DataFrame, rows: Rare) -> pl.DataFrame:
    """Return the NAKs of each receiver as seen at its point of `best_points`."""
    return rows.naks.join(best, [*_RECEIVER, "point"], "semi")


def recovery_latency(lost: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return one row per session and receiver: losses, how many were repaired, NAKs per loss, and times in
    nanoseconds. `lost` are losses, all losses of a receiver together."""
    parts = []
    for rows in lost:
        timed = rows.select(
            *_RECEIVER,
            "naks",
            "repaired_ns",
            request_ns=request_ns(),
            recovery_ns=pl.col("repaired_ns") - pl.col("sent_ns"),
        )
        of_receivers = timed.group_by(*_RECEIVER).agg(
            lost=pl.len().cast(pl.Int64),
            repaired=pl.col("repaired_ns").count().cast(pl.Int64),
            naks=pl.col("naks").sum(),
            naks_per_loss=pl.col("naks").sum() / pl.len(),
            request_min=pl.col("request_ns").min(),
            **{one.meta.output_name(): one for one in percentiles(pl.col("request_ns"), "request")},
            **{one.meta.output_name(): one for one in percentiles(pl.col("recovery_ns"), "recovery")},
        )
        parts.append(of_receivers.filter(pl.col("receiver").is_not_null()))
    return pl.concat(parts).sort(*_RECEIVER)


def recovery_histogram(lost: Iterable[pl.DataFrame], bins_per_decade: int = 10) -> pl.DataFrame:
    """Return the number of losses by repair time in logarithmic bins (`from_ns`, `to_ns`), session and receiver. `lost`
    are losses, all losses of a receiver together."""
    step = 1.0 / bins_per_decade
    waited = pl.max_horizontal(pl.col("repaired_ns") - pl.coalesce("sent_ns", "nak_ns"), pl.lit(1))
    is_known = pl.col("receiver").is_not_null() & pl.col("repaired_ns").is_not_null()
    parts = [
        rows.select(*_RECEIVER, bin=pl.when(is_known).then((waited.log10() * bins_per_decade).floor()))
        .group_by(*_RECEIVER, "bin")
        .agg(losses=pl.len().cast(pl.Int64))
        for rows in lost
    ]
    return (
        pl.concat(parts)
        .filter(pl.col("bin").is_not_null())
        .select(
            *_RECEIVER,
            (10.0 ** (pl.col("bin") * step)).alias("from_ns"),
            (10.0 ** ((pl.col("bin") + 1) * step)).alias("to_ns"),
            "losses",
        )
        .sort(*_RECEIVER, "from_ns")
    )


def nak_storms(slices: Iterable[Rare], best: pl.DataFrame) -> pl.DataFrame:
    """Return one row per storm: its span, NAKs, numbers requested and requested again, and its receivers."""
    found = Storms()
    for rows in slices:
        found.add(requested(rows, best))
    return found.frame()


def requested(rows: Rare, best: pl.DataFrame) -> pl.DataFrame:
    """Return the numbers that receivers requested in a slice, once for each instant, with the window of a storm."""
    naks = _at(best, rows).select(*_RECEIVER, "time_ns", "sqn").unique()
    return naks.with_columns(window=pl.col("time_ns") // STORM_NS)


class Storms:
    """Collects the requests of slices (`requested`), by time."""

    def __init__(self) -> None:
        """Start without requests."""
        self._requests = RowPile()

    def add(self, requests: pl.DataFrame) -> None:
        """Add the requests of a slice."""
        self._requests.add_by(requests, *map(pl.col, SESSION), pl.col("window") // _STORM_WINDOWS)

    def frame(self) -> pl.DataFrame:
        """Return `nak_storms` of all requests."""
        time, total = pl.col("time_ns"), pl.col("requests").sum()
        parts = [
            rows.group_by(*SESSION, "window", "receiver").agg(
                # The numbers that a receiver requests at one instant count as one NAK.
                requests=pl.len().cast(pl.Int64),
                naks=time.n_unique().cast(pl.Int64),
                start_ns=time.min(),
                end_ns=time.max(),
            )
            for rows in self._requests.slices()
        ]
        by_window = pl.concat(parts)
        windows = by_window.group_by(*SESSION, "window").agg(pl.col("requests", "naks").sum())
        stormy = windows.filter((pl.col("requests") >= STORM_REQUESTS) & (pl.col("naks") >= STORM_NAKS))
        island = pl.col("window") - pl.int_range(pl.len()).over(*SESSION)
        storms = stormy.sort(*SESSION, "window").select(*SESSION, "window", island.alias("storm"))
        of_storm = [*SESSION, "storm", "receiver"]
        spans = [pl.col("start_ns").min(), pl.col("end_ns").max()]
        by_receiver = (
            by_window.join(storms, [*SESSION, "window"])
            .group_by(of_storm)
            .agg(pl.col("requests", "naks").sum(), *spans)
            .join(self._distinct(storms), of_storm)
            .sort("requests", "receiver", descending=True)
        )
        behind = pl.struct("receiver", "requests", share=pl.col("requests") / total)
        return (
            by_receiver.group_by(*SESSION, "storm", maintain_order=True)
            .agg(
                *spans,
                pl.col("naks").sum(),
                total,
                repeated=total - pl.col("distinct").sum(),
                receivers=behind,
            )
            .drop("storm")
            .sort(*SESSION, "start_ns")
        )

    def _distinct(self, storms: pl.DataFrame) -> pl.DataFrame:
        """Return how many numbers each receiver requested in each storm."""
        by_number, block = RowPile(), pl.col("sqn") // 2**_STORM_BITS
        nobody = pl.lit(None, pl.String).alias("receiver")
        by_number.add(storms.clear().select(*SESSION, "storm", nobody, pl.lit(0, pl.Int64).alias("sqn")))
        for rows in self._requests.slices() if len(storms) else ():
            stormy = rows.join(storms, [*SESSION, "window"]).select(*SESSION, "storm", "receiver", "sqn")
            by_number.add_by(stormy, *map(pl.col, SESSION), block)
        of_storm = [*SESSION, "storm", "receiver"]
        numbers = pl.col("sqn").n_unique().cast(pl.Int64)
        parts = [rows.group_by(of_storm).agg(distinct=numbers) for rows in by_number.slices()]
        return pl.concat(parts).group_by(of_storm).agg(pl.col("distinct").sum())


def repairs(slices: Iterable[Rare], window_ns: int = 0) -> pl.DataFrame:
    """Return one row per session and capture point: retransmissions, and how many of them no receiver can have needed.

    With `window_ns`, return one row per window of that length (column `window`), taking earlier windows into account.
    """
    counted, refused = [], []
    for rows in slices:
        counted.append(counted_repairs(rows, window_ns))
        refused.append(counted_refusals(rows, window_ns))
    return total_repairs(counted, refused, window_ns)


def total_repairs(
    counted: Iterable[pl.DataFrame], refused: Iterable[pl.DataFrame], window_ns: int = 0
) -> pl.DataFrame:
    """Return `repairs` of slices, given their `counted_repairs` and `counted_refusals`."""
    key = ["point", *SESSION]
    whole = [*key, *([WINDOW] if window_ns else [])]
    totals = pl.concat(counted).group_by(whole).agg(pl.exclude(whole).sum())
    blind = pl.col("naks").sum().over(key) == 0
    honest = totals.with_columns(
        pl.when(~blind).then(pl.col(name)).alias(name)
        for name in ("unrequested", "repeated", "useless_bytes")
    )
    # A copy of an NCF is sent to every receiver.
    each = pl.concat(refused).group_by([*whole, "copy"]).agg(pl.col(name).sum() for name in REASONS.values())
    refusals = each.group_by(whole).agg(pl.col(name).max() for name in REASONS.values())
    reasons = [pl.col(name).fill_null(0) for name in REASONS.values()]
    return honest.join(refusals, whole, "left").with_columns(reasons).sort(whole)


def counted_repairs(rows: Rare, window_ns: int = 0) -> pl.DataFrame:
    """Return the retransmissions of a slice by point and window."""
    key = ["point", *SESSION]
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
    return judged.group_by([*key, *windowed("time_ns", window_ns)]).agg(
        retransmissions=is_repair.sum().cast(pl.Int64),
        retransmitted_bytes=pl.col("udp_bytes").sum(),
        naks=pl.col("is_own").sum().cast(pl.Int64),
        unrequested=unrequested.sum().cast(pl.Int64),
        repeated=repeated.sum().cast(pl.Int64),
        useless_bytes=pl.col("udp_bytes").filter(repeated | unrequested).sum(),
    )


def counted_refusals(rows: Rare, window_ns: int = 0) -> pl.DataFrame:
    """Return the refused numbers of a slice by point, window, copy and reason."""
    reason = pl.col("ncf_reason")
    refused = [(reason == key).sum().cast(pl.Int64).alias(name) for key, name in REASONS.items()]
    by = ["point", *SESSION, *windowed("time_ns", window_ns), "copy"]
    return rows.refusals.group_by(by).agg(refused)


WINDOW = "window"
"""The column with the start of a time window, in nanoseconds."""


def windowed(time: str, window_ns: int) -> list[pl.Expr]:
    """Return the column `window` of a time as a list to append to others; empty if time is not divided."""
    return [(pl.col(time) // window_ns * window_ns).alias(WINDOW)] if window_ns else []


_PAIR = (*SESSION, "from_point", "to_point")


def lost_repairs(
    slices: Iterable[Rare], counts: pl.DataFrame, ways: pl.DataFrame, window_ns: int = 0
) -> pl.DataFrame:
    """Return one row per session and pair of points: retransmissions past the first and those `lost` before the second.

    `counts` are those of the facts, on the clock of `slices`. `ways` contains the pairs in the direction of the
    datagrams (from `traffic.latency`). A retransmission counts only if it passed the first point while the second was
    capturing the session. With `window_ns`, return one row per window (`window`).
    """
    point = ["point", *_COPY]
    is_unicast = pl.col("transport") == LBTRU
    own = counts.with_columns(copy=pl.when(is_unicast).then("receiver").otherwise(pl.lit("")))
    spans = own.group_by(point).agg(pl.col("first_ns").min(), pl.col("last_ns").max())
    pairs = ways.select(_PAIR).unique()
    missing = pl.max_horizontal(pl.col("sent") - pl.col("arrived").fill_null(0), pl.lit(0, pl.Int64))
    parts = []
    # Without pairs, one slice gives the columns.
    for rows in slices if len(pairs) else islice(slices, 1):
        again = rows.repairs.filter(pl.col("sqn").is_not_null())
        passed = (
            again.rename({"point": "from_point"})
            .join(pairs, ["from_point", *SESSION])
            .join(spans.rename({"point": "to_point"}), ["to_point", *_COPY])
            .filter(pl.col("time_ns").is_between("first_ns", "last_ns"))
            .group_by(*_PAIR, "copy", "sqn")
            .agg(sent=pl.len().cast(pl.Int64), time_ns=pl.col("time_ns").max())
        )
        arrived = again.group_by(*point, "sqn").agg(arrived=pl.len().cast(pl.Int64))
        parts.append(
            passed.join(arrived.rename({"point": "to_point"}), ["to_point", *_COPY, "sqn"], "left")
            .group_by([*_PAIR, *windowed("time_ns", window_ns)])
            .agg(retransmissions=pl.col("sent").sum(), lost=missing.sum())
        )
    order = [*_PAIR, *([WINDOW] if window_ns else [])]
    return (
        pl.concat(parts)
        .group_by(order)
        .agg(pl.col("retransmissions", "lost").sum())
        .filter(pl.col("lost") > 0)
        .sort(order)
    )
