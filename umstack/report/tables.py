"""The tables of a report: the captures are decoded once into Parquet, every analysis is one more table beside it.

A table is written before another is made of it, so nothing is worked out twice, and memory holds none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from umstack.analysis.datagram_fill import datagram_fill, fill_histogram, sizes
from umstack.analysis.incidents import incidents
from umstack.analysis.ip_fragments import ip_fragments
from umstack.analysis.latency import latency
from umstack.analysis.losses import coverage, gaps, losses
from umstack.analysis.nak_storms import nak_storms
from umstack.analysis.observations import addressed, of_sessions, references, unwrap
from umstack.analysis.rates import bursts, rate_summary, rates
from umstack.analysis.recovery import recovery_histogram, recovery_latency
from umstack.analysis.remarks import remarks
from umstack.analysis.repairs import duplicates, repairs
from umstack.analysis.sessions import sessions, topics
from umstack.analysis.suggestions import suggestions
from umstack.spark.packet_store import STORED, PacketStore

PACKETS = "packets"


@dataclass(slots=True)
class Tables:
    """The tables of one report, under `folder`."""

    spark: SparkSession
    folder: str
    captures: Sequence[str]
    mtu: int
    only_ours: bool = True
    names: list[str] = field(default_factory=list)
    _schemas: dict[str, StructType] = field(default_factory=dict)
    _references: DataFrame | None = None

    def path(self, name: str) -> str:
        """Where a table is."""
        return f"{self.folder}/{name}"

    def local_path(self, name: str) -> Path:
        """Where that is for what is not Spark."""
        return Path(url2pathname(urlsplit(self.path(name)).path))

    def read(self, name: str) -> DataFrame:
        """A table that was written. Its schema is known: Spark need not open files to find it."""
        return self.spark.read.schema(self._schemas[name]).parquet(self.path(name))

    def write(self, name: str, frame: DataFrame) -> None:
        """Write a table, in place of an older one."""
        frame.write.mode("overwrite").parquet(self.path(name))
        self._wrote(name, frame)

    def _wrote(self, name: str, frame: DataFrame) -> None:
        self._schemas[name] = frame.schema
        self.names.append(name)

    def classified(self) -> DataFrame:
        """The packets of sessions, whose sequence numbers still wrap: enough where none is looked at."""
        return of_sessions(self.read(PACKETS))

    def observations(self) -> DataFrame:
        """The observations, from the packets that were written."""
        return unwrap(self.classified(), self._references)

    def steps(self) -> Iterator[dict[str, Callable[[], None]]]:
        """What there is to do, by name; what is in one of these dictionaries may be done at the same time."""
        yield {"decode": self._decode}
        yield {"references": self._refer}
        whole: dict[str, Callable[[DataFrame], DataFrame]] = {
            "sessions": sessions,
            "losses": losses,
            "repairs": repairs,
            "coverage": coverage,
            "nak_storms": nak_storms,
        }
        unnumbered: dict[str, Callable[[DataFrame], DataFrame]] = {
            "rates": rates,
            "datagram_sizes": sizes,
        }
        analyses = {name: partial(self._analyse, name, analysis) for name, analysis in whole.items()}
        analyses |= {name: partial(self._describe, name, analysis) for name, analysis in unnumbered.items()}
        yield {**analyses, "remarks": self._remarks}
        derived: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
            "recovery_latency": ("losses", recovery_latency),
            "recovery_histogram": ("losses", recovery_histogram),
            "rate_summary": ("rates", rate_summary),
            "bursts": ("rates", bursts),
            "duplicates": ("coverage", duplicates),
            "datagram_fill": ("datagram_sizes", partial(datagram_fill, mtu=self.mtu)),
            "fill_histogram": ("datagram_sizes", partial(fill_histogram, mtu=self.mtu)),
        }
        more = {name: partial(self._derive, name, of, analysis) for name, (of, analysis) in derived.items()}
        yield {"incidents": self._incidents, "gaps": self._gaps, **more, "latency": self._latency}
        yield {"suggestions": self._suggestions}

    def tasks(self) -> tuple[int, int]:
        """Of what Spark is at: the tasks that are done, and how many there are."""
        tracker = self.spark.sparkContext.statusTracker()
        found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        stages = [stage for stage in found if stage is not None]
        return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)

    def _decode(self) -> None:
        """Packets and topics in one pass: the tasks write the packets, and count by topic what they decode."""
        store = PacketStore(self.local_path(PACKETS))
        partial_counts = store.fill(self.spark, self.captures, only_ours=self.only_ours)
        self.write("topics", topics(partial_counts))
        store.commit()
        self._schemas[PACKETS] = STORED
        self.names.append(PACKETS)

    def _refer(self) -> None:
        """Keep the references to unwrap by: a row a session and minute, wanted by every analysis."""
        found = references(self.classified())
        self._references = self.spark.createDataFrame(found.toArrow())

    def _analyse(self, name: str, analysis: Callable[[DataFrame], DataFrame]) -> None:
        self.write(name, analysis(self.observations()))

    def _describe(self, name: str, analysis: Callable[[DataFrame], DataFrame]) -> None:
        self.write(name, analysis(self.classified()))

    def _derive(self, name: str, of: str, analysis: Callable[[DataFrame], DataFrame]) -> None:
        self.write(name, analysis(self.read(of)))

    def _gaps(self) -> None:
        self.write("gaps", gaps(self.observations(), self.read("coverage")))

    def _incidents(self) -> None:
        made = incidents(self.observations(), lost=self.read("losses"), known_sessions=self.read("sessions"))
        self.write("incidents", made)

    def _suggestions(self) -> None:
        made = suggestions(
            self.read("losses"), self.read("incidents"), self.read("recovery_latency"), self.read("rates")
        )
        self.write("suggestions", made)

    def _latency(self) -> None:
        if len(self.read("sessions").where("datagrams > 0").select("point").distinct().take(2)) > 1:
            self.write("latency", latency(self.observations()))

    def _remarks(self) -> None:
        """What is no session's: IP fragments, what the reader noted, packets that are malformed."""
        packets = self.read(PACKETS)
        # The first fragment of a datagram shows the session.
        self.write("ip_fragments", ip_fragments(addressed(packets)))
        self.write("remarks", remarks(packets))
