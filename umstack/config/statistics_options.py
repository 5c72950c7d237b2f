"""Context options of the counter files, the base of StreamContextOptions."""

from __future__ import annotations

from dataclasses import dataclass

from umstack.config.option import Kind, option


@dataclass(frozen=True, slots=True)
class StatisticsOptions:
    """Options of scope `context` for the files in which `umstack stat` finds the counters."""

    statistics_ended_maximum: int = option(
        Kind.INTEGER,
        ours=32,
        maximum=10_000,
        zero="keep none",
        doc="Maximum number of counter files of ended processes, which did not close their contexts, in the statistics "
        "directory: a new context removes the oldest ones of its user.",
    )
    statistics_ended_interval_ns: int = option(
        Kind.SECONDS,
        ours=86_400,
        minimum=1,
        maximum=31_536_000,
        doc="How long those files stay: a new context removes older ones of its user.",
    )
