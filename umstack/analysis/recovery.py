"""Recovery latency: how long a receiver waited for what it had lost."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.losses import request_ns
from umstack.analysis.observations import SESSION

_PERCENTILES = (0.5, 0.9, 0.99, 0.999)
_ACCURACY = 10_000


def percentiles(value: str | Column, prefix: str) -> list[Column]:
    """Columns `prefix_p50` to `prefix_p999` and `prefix_max` of an aggregation."""
    found = F.percentile_approx(value, list(_PERCENTILES), _ACCURACY)
    named = [found[at].alias(f"{prefix}_p{str(p)[2:].ljust(2, '0')}") for at, p in enumerate(_PERCENTILES)]
    return [*named, F.max(value).alias(f"{prefix}_max")]


def recovery_latency(losses: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a session and receiver: losses, how many were repaired, NAKs a loss, and times in nanoseconds.

    `request` is from the first NAK to the retransmission, what the source and the network take; `recovery` from the
    sending of what was lost, what the application waits. The latter needs the first sending in the capture.
    A retransmission that met the NAK on its way counts for the latter alone. `by` names more columns that tell rows
    apart.
    """
    timed = losses.where("receiver IS NOT NULL").withColumns(
        {
            "request_ns": request_ns(),
            "recovery_ns": F.col("repaired_ns") - F.col("sent_ns"),
        }
    )
    return timed.groupBy(*SESSION, "receiver", *by).agg(
        F.count("*").alias("lost"),
        F.count("repaired_ns").alias("repaired"),
        F.sum("naks").alias("naks"),
        (F.sum("naks") / F.count("*")).alias("naks_per_loss"),
        F.min("request_ns").alias("request_min"),
        *percentiles("request_ns", "request"),
        *percentiles("recovery_ns", "recovery"),
    )


def recovery_histogram(losses: DataFrame, bins_per_decade: int = 10) -> DataFrame:
    """How many losses took how long: logarithmic bins (`from_ns`, `to_ns`), by session and receiver."""
    waited = F.greatest(F.col("repaired_ns") - F.coalesce("sent_ns", "nak_ns"), F.lit(1))
    step = F.lit(1.0 / bins_per_decade)
    return (
        losses.where("receiver IS NOT NULL AND repaired_ns IS NOT NULL")
        .withColumn("bin", F.floor(F.log10(waited) * bins_per_decade))
        .groupBy(*SESSION, "receiver", "bin")
        .agg(F.count("*").alias("losses"))
        .select(
            *SESSION,
            "receiver",
            F.pow(F.lit(10.0), F.col("bin") * step).alias("from_ns"),
            F.pow(F.lit(10.0), (F.col("bin") + 1) * step).alias("to_ns"),
            "losses",
        )
    )
