"""The exporter's text: reports of contexts as Prometheus metrics, with names, kinds, units and texts of the schema.

A report consists of `Context.stats()` and the identity of its process (umstack.telemetry.endpoint,
umstack.telemetry.statistics_reader). Each counter of the schema becomes one metric:

    source_transport.msgs_sent   counter   ->  umstack_source_transport_msgs_sent_total{transport=...}
    source_transport.txw_bytes   snapshot  ->  umstack_source_transport_txw_bytes{transport=...}
    receiver_transport.nak_stm_max   ms    ->  umstack_receiver_transport_nak_stm_max_seconds{transport=...}

Objects of one context with the same labels (two receivers of a topic) are one series. The numbers of topics, sessions,
queues and Stores with their own labels are bounded; the others are added up under `(others)`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from umstack.foreign_text import displayed
from umstack.telemetry.counters import Counter, CounterKind, schema
from umstack.telemetry.time_histogram import (
    HISTOGRAMS,
    CommitHistogram,
    LatencyHistogram,
    RecoveryHistogram,
    TimeHistogram,
)

Report = Mapping[str, Any]
Values = Mapping[str, int | float | None]
Labels = tuple[tuple[str, str], ...]

TOPICS_MAX = 2000
SESSIONS_MAX = 1000
QUEUES_MAX = 1000
STORES_MAX = 100
OTHERS = "(others)"
RECOVERY_SECONDS = "umstack_receiver_transport_recovery_seconds"
LATENCY_SECONDS = "umstack_receiver_transport_latency_seconds"
COMMIT_SECONDS = "umstack_store_commit_seconds"
_BUCKETS_PER_BOUND = 4
"""The core's histogram has four buckets per octave; one per octave is enough for a dashboard."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the schema: its key in a report, and the fields that identify its objects."""

    key: str
    name: str
    labels: tuple[str, ...] = ()


GROUPS = (
    Group("context", "context"),
    Group("link_counters", "link"),
    Group("source_transports", "source_transport", ("transport",)),
    Group("receiver_transports", "receiver_transport", ("transport",)),
    Group("sources", "source", ("topic", "transport")),
    Group("receivers", "receiver", ("topic",)),
    Group("event_queues", "event_queue", ("queue",)),
    Group("hot_failover", "hot_failover", ("queue",)),
    Group("stores", "store", ("store",)),
)
_MERGED = {CounterKind.MIN: min, CounterKind.MAX: max}


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter of the schema with its Prometheus name. A value times `factor` is in the metric's unit."""

    name: str
    type: str
    help: str
    counter: Counter
    factor: float


@dataclass(frozen=True, slots=True)
class Series:
    """The values for one set of labels, by the names of the schema."""

    labels: Labels
    values: Values
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", labels_text(self.labels))


@dataclass(frozen=True, slots=True)
class Family:
    """One metric and its samples: (suffix of the name, labels as text, value)."""

    name: str
    type: str
    help: str
    samples: Sequence[tuple[str, str, int | float]]


def metric_of(counter: Counter) -> Metric:
    """Return the Prometheus metric of a counter: group and name, base unit, and `_total` if it only grows."""
    name, factor, unit = f"umstack_{counter.group}_{counter.name}", 1.0, counter.unit
    if unit == "ms":
        name, factor, unit = f"{name}_seconds", 1e-3, "seconds"
    elif unit == "bytes" and "bytes" not in counter.name:
        name += "_bytes"
    grows = counter.kind is CounterKind.COUNTER
    kind = "" if counter.kind in (CounterKind.COUNTER, CounterKind.SNAPSHOT) else f" ({counter.kind})"
    return Metric(
        name=f"{name}_total" if grows else name,
        type="counter" if grows else "gauge",
        help=f"{counter.doc} Unit: {unit}{kind}.",
        counter=counter,
        factor=factor,
    )


@cache
def metrics_of(group: str) -> tuple[Metric, ...]:
    """Return the metrics of a group of the schema."""
    return tuple(metric_of(counter) for counter in schema().group(group).counters)


def labels_text(labels: Iterable[tuple[str, str]]) -> str:
    """Return labels in the text format, without the braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class LabelBound:
    """Selects the values of a label that get their own series: the first `limit` seen, as long as they exist.

    A value keeps its series until a scrape no longer contains it; then the next of the others takes its place.
    """

    __slots__ = ("_admitted", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._admitted: set[Hashable] = set()

    def admit(self, values: Iterable[Hashable]) -> set[Hashable]:
        """Return the values of this scrape that are shown by name."""
        present = dict.fromkeys(values)
        admitted = {value for value in self._admitted if value in present}
        for value in present:
            if len(admitted) >= self._limit:
                break
            admitted.add(value)
        self._admitted = admitted
        return admitted


class Exposition:
    """Converts reports to metric families, scrape after scrape. One thread at a time."""

    def __init__(self, topics_max: int = TOPICS_MAX, sessions_max: int = SESSIONS_MAX) -> None:
        """Show at most this many topics and sessions by name, and QUEUES_MAX queues and STORES_MAX Stores."""
        self._bounds = {
            "topic": LabelBound(topics_max),
            "transport": LabelBound(sessions_max),
            "queue": LabelBound(QUEUES_MAX),
            "store": LabelBound(STORES_MAX),
        }

    def families(self, reports: Sequence[Report]) -> Iterator[Family]:
        """Yield all metrics of the reports."""
        owners = [_owner(report) for report in reports]
        shown: dict[str, set[Hashable]] = {}
        folded: list[tuple[str, str, int | float]] = []
        for label, bound in self._bounds.items():
            present = {
                (owner, item[label]): None
                for owner, report in zip(owners, reports, strict=True)
                for group in GROUPS
                if label in group.labels
                for item in report[group.key]
            }
            shown[label] = bound.admit(present)
            folded.append(("", f'label="{label}"', len(present) - len(shown[label])))
        yield from _about(reports, owners)
        yield from _clock(reports, owners)
        yield Family("umstack_folded_labels", "gauge", f"Label values added up under {OTHERS}.", folded)
        for group in GROUPS:
            series = _series(group, reports, owners, shown)
            for metric in metrics_of(group.name):
                yield _family(metric, series)
            if group.name == "receiver_transport":
                yield _histogram(
                    series,
                    RecoveryHistogram,
                    RECOVERY_SECONDS,
                    "Time from detecting a lost datagram to receiving it.",
                )
                yield _histogram(
                    series,
                    LatencyHistogram,
                    LATENCY_SECONDS,
                    "Time from the sending of a message (publisher's clock) to its arrival (this host's clock).",
                )
            if group.name == "store":
                yield _histogram(
                    series,
                    CommitHistogram,
                    COMMIT_SECONDS,
                    "Time that a Store took to commit staged messages.",
                )


def render(families: Iterable[Family]) -> str:
    """Return the text format of Prometheus, version 0.0.4."""
    lines: list[str] = []
    for family in families:
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {family.name} {text}\n# TYPE {family.name} {family.type}\n")
        name = family.name
        lines += [f"{name}{suffix}{{{labels}}} {value}\n" for suffix, labels, value in family.samples]
    return "".join(lines)


def _owner(report: Report) -> Labels:
    return (
        ("pid", str(report["pid"])),
        ("context", str(report["number"])),
        ("interface", displayed(report["interface"])),
    )


def program(command: str) -> str:
    """Return the program of a command line, without interpreter, folder and arguments, which may contain secrets."""
    words = command.split()
    interpreter = words[0].rpartition("/")[2] if words else ""
    if not interpreter.startswith("python"):
        return displayed(interpreter)
    # A script or module follows the interpreter's options; -c is followed by code.
    named = next((word for word in words[1:] if word == "-c" or not word.startswith("-")), "-c")
    return displayed(interpreter if named == "-c" else named.rpartition("/")[2])


def _about(reports: Sequence[Report], owners: Sequence[Labels]) -> Iterator[Family]:
    """Yield the contexts and their start times."""
    info, started = [], []
    for report, owner in zip(reports, owners, strict=True):
        facts = (("program", program(report["command"])), ("link", displayed(report["link"])))
        info.append(("", labels_text((*owner, *facts)), 1))
        started.append(("", labels_text(owner), float(report["started_at"])))
    yield Family("umstack_context_info", "gauge", "A context, with its program and link.", info)
    yield Family(
        "umstack_context_start_time_seconds", "gauge", "Start time of the context, Unix time.", started
    )


def _clock(reports: Sequence[Report], owners: Sequence[Labels]) -> Iterator[Family]:
    """Yield the accuracy of the wall clock used for latencies; no sample if it is unknown."""
    synchronized, bounds = [], []
    for report, owner in zip(reports, owners, strict=True):
        clock = report.get("clock") or {}
        if (state := clock.get("synchronized")) is not None:
            synchronized.append(("", labels_text(owner), int(state)))
        if (bound := clock.get("max_error_ns")) is not None:
            bounds.append(("", labels_text(owner), bound / 1e9))
    text = "1 if a time daemon keeps the host's wall clock synchronized with a reference, else 0."
    yield Family("umstack_clock_synchronized", "gauge", text, synchronized)
    text = "Largest distance of the host's wall clock from its reference, as the kernel reports it. Unit: seconds."
    yield Family("umstack_clock_max_error_seconds", "gauge", text, bounds)


def _series(
    group: Group, reports: Sequence[Report], owners: Sequence[Labels], shown: Mapping[str, set[Hashable]]
) -> list[Series]:
    """Return the objects of a group by their labels; those with the same labels are one."""
    found: dict[Labels, list[Values]] = {}
    for report, owner in zip(reports, owners, strict=True):
        listed = report[group.key]
        for item in listed if isinstance(listed, list) else [listed]:
            labels = owner
            for label in group.labels:
                value = item[label] if (owner, item[label]) in shown[label] else OTHERS
                labels = (*labels, (label, displayed(value)))
            found.setdefault(labels, []).append(item)
    return [
        Series(labels, items[0] if len(items) == 1 else _merged(group.name, items))
        for labels, items in found.items()
    ]


def _merged(group: str, items: Sequence[Values]) -> Values:
    """Merge objects: sums of counters and snapshots, extremes of extremes, means of means."""
    merged: dict[str, Any] = {}
    for counter in schema().group(group).counters:
        values = [value for item in items if (value := item.get(counter.name)) is not None]
        if values and counter.kind is CounterKind.MEAN:
            merged[counter.name] = sum(values) / len(values)
        elif values:
            merged[counter.name] = _MERGED.get(counter.kind, sum)(values)
    for key in (f"{one.NAME}_counts" for one in HISTOGRAMS):
        if histograms := [item[key] for item in items if key in item]:
            merged[key] = [sum(counts) for counts in zip(*histograms, strict=True)]
    return merged


def _family(metric: Metric, series: Sequence[Series]) -> Family:
    name, factor = metric.counter.name, metric.factor
    samples = [("", one.text, value) for one in series if (value := one.values.get(name)) is not None]
    if factor != 1.0:
        samples = [(suffix, labels, value * factor) for suffix, labels, value in samples]
    return Family(metric.name, metric.type, metric.help, samples)


def _histogram(series: Sequence[Series], kind: type[TimeHistogram], name: str, text: str) -> Family:
    """Return the histogram of one kind of time for each session."""
    samples: list[tuple[str, str, int | float]] = []
    starts = [kind.bucket_start_ns(bucket) for bucket in range(kind.BUCKETS + 1)]
    for one in series:
        counts: Any = one.values.get(f"{kind.NAME}_counts")
        if counts is None:
            continue
        below, total_ns = 0, 0.0
        for bucket, count in enumerate(counts):
            below += count
            total_ns += count * (starts[bucket] + starts[bucket + 1]) / 2
            is_bound = (bucket + 1) % _BUCKETS_PER_BOUND == 0
            bound = math.inf if bucket + 1 == len(counts) else starts[bucket + 1] / 1e9
            if is_bound:
                le = "+Inf" if bound == math.inf else repr(bound)
                samples.append(("_bucket", f'{one.text},le="{le}"', below))
        samples.append(("_sum", one.text, total_ns / 1e9))
        samples.append(("_count", one.text, below))
    return Family(
        name, "histogram", f"{text} The sum is estimated from finer buckets. Unit: seconds.", samples
    )
