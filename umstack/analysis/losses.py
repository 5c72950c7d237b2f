"""Lost datagrams: one row for each sequence number a receiver did not get at first, and what became of it.

A receiver says what it lost by a NAK. What was sent again although no NAK was captured is known as well, only not
whose loss it was: such rows have no receiver.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import DATA, NAK, NCF, RETRANSMISSION, SESSION

# Whether a bucket of sequence numbers has holes costs no sort: what was seen of each 64 of them is one long of bits.
_BUCKET_BITS = 15
_WORD_BITS = 6


def nakked(observations: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a sequence number and NAK that asks for it, with the columns `by` besides."""
    return observations.where(F.col("kind") == NAK).select(
        "point", "time_ns", *SESSION, *by, "receiver", F.explode("sqns").alias("sqn")
    )


def losses(observations: DataFrame) -> DataFrame:
    """One row a session, receiver and lost sequence number.

    `sent_ns` is when the datagram was sent (if its first sending was captured), `nak_ns` when its receiver first asked
    for it, `repaired_ns` the retransmission it did not ask again after, `lost_ns` the best that is known of when it was
    lost. A NAK that several points of capture saw is one. One that the source ignored because the retransmission was
    on its way is answered by that, which passed before it.
    """
    asked = (
        nakked(observations)
        .groupBy(*SESSION, "receiver", "sqn", "point")
        .agg(
            F.min("time_ns").alias("nak_ns"),
            F.max("time_ns").alias("last_nak_ns"),
            F.count("*").alias("naks"),
        )
        .groupBy(*SESSION, "receiver", "sqn")
        .agg(
            F.min("nak_ns").alias("nak_ns"),
            F.max("last_nak_ns").alias("last_nak_ns"),
            F.max("naks").alias("naks"),
        )
    )
    repairs = (
        observations.where(F.col("kind") == RETRANSMISSION)
        .groupBy(*SESSION, "sqn")
        .agg(F.array_sort(F.collect_list("time_ns")).alias("repairs"))
    )
    # A retransmission that was captured at the same time as its NAK counts: clocks of captures may be coarse.
    answers = F.filter("repairs", lambda time: time >= F.col("nak_ns"))
    # Who asks again has not got the answer before. A last NAK without one was refused: the answer was on its way.
    final = F.try_element_at(F.filter("repairs", lambda time: time >= F.col("last_nak_ns")), F.lit(1))
    met_on_the_way = F.when(
        F.col("ignored_ns") >= F.col("last_nak_ns"), F.try_element_at("repairs", F.lit(-1))
    )
    answered = F.coalesce(final, F.try_element_at(answers, F.lit(-1)), met_on_the_way)
    known = (
        asked.join(repairs, [*SESSION, "sqn"], "full")
        .join(_ignored(observations), [*SESSION, "sqn"], "left")
        .withColumn(
            "repaired_ns",
            F.when(F.col("nak_ns").isNull(), F.try_element_at("repairs", F.lit(1))).otherwise(answered),
        )
        .drop("repairs", "last_nak_ns", "ignored_ns")
    )
    wanted = F.broadcast(known.select(*SESSION, "sqn").distinct())
    sent = (
        observations.where(F.col("kind") == DATA)
        .join(wanted, [*SESSION, "sqn"], "left_semi")
        .groupBy(*SESSION, "sqn")
        .agg(F.min("time_ns").alias("sent_ns"))
    )
    return known.join(sent, [*SESSION, "sqn"], "left").select(
        *SESSION,
        "receiver",
        "sqn",
        "sent_ns",
        "nak_ns",
        F.coalesce("naks", F.lit(0)).alias("naks"),
        "repaired_ns",
        F.coalesce("sent_ns", "nak_ns", "repaired_ns").alias("lost_ns"),
    )


def request_ns() -> Column:
    """Of a row of `losses`: from the first NAK to the repair, where that did not meet it on its way."""
    return F.expr("CASE WHEN repaired_ns >= nak_ns THEN repaired_ns - nak_ns END")


def _ignored(observations: DataFrame) -> DataFrame:
    """When the source last said that it ignores a NAK for a number, as it does for a while after it has sent it."""
    ignoring = (F.col("kind") == NCF) & (F.lower("ncf_reason") == "ignored")
    said = observations.where(ignoring).select("time_ns", *SESSION, F.explode("sqns").alias("sqn"))
    return said.groupBy(*SESSION, "sqn").agg(F.max("time_ns").alias("ignored_ns"))


def coverage(observations: DataFrame) -> DataFrame:
    """One row for each 32768 sequence numbers of a session at a point: how many were captured, how many are `missing`.

    Exact, and without a sort.
    """
    bit = F.expr(f"shiftleft(1L, CAST(sqn & {(1 << _WORD_BITS) - 1} AS int))")
    words = (
        originals(observations)
        .groupBy("point", *SESSION, "bucket", F.shiftright("sqn", _WORD_BITS).alias("word"))
        .agg(
            F.min("sqn").alias("low"),
            F.max("sqn").alias("high"),
            F.min_by("time_ns", "sqn").alias("low_ns"),
            F.max_by("time_ns", "sqn").alias("high_ns"),
            F.count("*").alias("datagrams"),
            F.bit_or(bit).alias("seen"),
        )
    )
    counted = words.groupBy("point", *SESSION, "bucket").agg(
        F.min("low").alias("low"),
        F.max("high").alias("high"),
        F.min_by("low_ns", "low").alias("low_ns"),
        F.max_by("high_ns", "high").alias("high_ns"),
        F.sum("datagrams").alias("datagrams"),
        F.sum(F.bit_count("seen")).alias("distinct"),
    )
    return counted.withColumn("missing", F.col("high") - F.col("low") + 1 - F.col("distinct"))


def originals(observations: DataFrame) -> DataFrame:
    """First sendings, with the `bucket` of sequence numbers that `coverage` counts them in."""
    sent = observations.where(F.col("kind") == DATA).select("point", *SESSION, "sqn", "time_ns")
    return sent.withColumn("bucket", F.shiftright("sqn", _BUCKET_BITS))


def gaps(observations: DataFrame, covered: DataFrame | None = None) -> DataFrame:
    """Runs of sequence numbers whose first sending was not captured: `first_sqn` to `last_sqn`, and when.

    They were lost before the point of capture, or the capture itself dropped them. `covered` is what `coverage` gave,
    where it was kept.
    """
    bucketed = originals(observations)
    key = ["point", *SESSION, "bucket"]
    buckets = coverage(observations) if covered is None else covered
    by_bucket = Window.partitionBy("point", *SESSION).orderBy("bucket")
    between = (
        buckets.withColumns(
            {"before": F.lag("high").over(by_bucket), "before_ns": F.lag("high_ns").over(by_bucket)}
        )
        .where("low > before + 1")
        .select(
            "point",
            *SESSION,
            F.expr("before + 1").alias("first_sqn"),
            F.expr("low - 1").alias("last_sqn"),
            F.col("before_ns"),
            F.col("low_ns").alias("after_ns"),
        )
    )
    holed = F.broadcast(buckets.where("missing > 0").select(*key))
    by_sqn = Window.partitionBy(*key).orderBy("sqn", "time_ns")
    inside = (
        bucketed.join(holed, key, "left_semi")
        .withColumns({"before": F.lag("sqn").over(by_sqn), "before_ns": F.lag("time_ns").over(by_sqn)})
        .where("sqn > before + 1")
        .select(
            "point",
            *SESSION,
            F.expr("before + 1").alias("first_sqn"),
            F.expr("sqn - 1").alias("last_sqn"),
            F.col("before_ns"),
            F.col("time_ns").alias("after_ns"),
        )
    )
    return inside.unionByName(between).withColumn("missing", F.expr("last_sqn - first_sqn + 1"))
