"""Reads counters of the core by name: of one object, or the report of a whole context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from umstack._core import ffi, lib
from umstack._engine.engine import Engine
from umstack._engine.publication import Publication
from umstack._engine.queue_memory import QueueMemory
from umstack._engine.sessions import SourceSession
from umstack._engine.source_events import receiver_accounts
from umstack._engine.subscription import Subscription
from umstack._engine.transport_address import address_of, transport_name
from umstack.telemetry.counters import schema
from umstack.telemetry.host_clock import kernel_clock
from umstack.telemetry.time_histogram import LatencyHistogram, RecoveryHistogram, TimeHistogram

_ACCOUNTS_REPORTED = 8
Histogram = TypeVar("Histogram", bound=TimeHistogram)

Counters = dict[str, int | float | None]
"""Values by name; None for a minimum without a sample."""


@dataclass(frozen=True, slots=True)
class ReportedStore:
    """The counters of a Store that receives with a context: its part in the registry of the context."""

    directory: str
    read: Callable[[], dict[str, Any]]


def read_counters(group: str, read: Callable[[Any, Any], int], handle: Any) -> Counters:
    """Return the counters of one group of the schema by name; empty if the object no longer exists in the core."""
    out = ffi.new("uint64_t[]", lib.UM_STATISTICS_FIELDS_MAX)
    count = read(handle, out)
    if count == 0:
        return {}
    return schema().group(group).of_core(ffi.unpack(out, count))


def session_counters(session: SourceSession) -> Counters:
    """Return the counters of a source's transport session."""
    return read_counters("source_transport", lib.um_statistics_source_transport, session.handle)


def publication_counters(publication: Publication, of_session: Counters | None = None) -> Counters:
    """Return the counters of a source and of its transport session, which are read unless passed."""
    own = read_counters("source", lib.um_statistics_source, publication.handle)
    return {**(session_counters(publication.session) if of_session is None else of_session), **own}


def subscription_counters(subscription: Subscription) -> Counters:
    """Return the counters of a receiver."""
    return read_counters("receiver", lib.um_statistics_receiver, subscription.handle)


def queue_counters(queue: QueueMemory) -> Counters:
    """Return the counters of an event queue."""
    return read_counters("event_queue", lib.um_statistics_event_queue, queue.handle)


def hot_failover_counters(queue: QueueMemory) -> Counters:
    """Return the counters of a hot failover receiver; empty for any other event queue."""
    return read_counters("hot_failover", lib.um_event_queue_hot_failover_counters, queue.handle)


def receiver_transports(context: Any) -> list[dict[str, Any]]:
    """Return the counters of every receiving session of a context, with its recovery times and latencies."""
    found: list[dict[str, Any]] = []
    identity = ffi.new("um_session_id *")

    def read(handle: Any, out: Any) -> int:
        return int(lib.um_statistics_receiver_transport(handle, len(found), identity, out))

    while counters := read_counters("receiver_transport", read, context):
        recovery = RecoveryHistogram.read(context, len(found)).summary()
        latency = LatencyHistogram.read(context, len(found)).summary()
        transport = transport_name(address_of(identity))
        found.append({"transport": transport, **counters, **recovery, **latency})
    return found


def context_report(
    engine: Engine, resolution: dict[str, int], *, repeats_sessions: bool = True
) -> dict[str, Any]:
    """Return every counter of a context. Objects closed in the meantime stay readable until it returns. Any thread.

    Each source has the counters of its session, too, if `repeats_sessions`.
    """
    core, registry = engine.core, engine.registry
    with registry.listing:
        # Read once, regardless of the number of topics of a session.
        by_session = {session: session_counters(session) for session in engine.sessions.sessions}
        return {
            "interface": core.interface.name,
            "link": engine.link.kind,
            **engine.link.stats(),
            "datagram_bytes": core.datagram_bytes,
            "clock": kernel_clock().as_json(),
            "context": {
                **read_counters("context", lib.um_statistics_context, core.handle),
                **resolution,
            },
            "link_counters": read_counters("link", lib.um_statistics_link, core.handle),
            "source_transports": [
                {
                    "transport": session.name,
                    **counters,
                    "nak_accounts": receiver_accounts(session)[:_ACCOUNTS_REPORTED],
                }
                for session, counters in by_session.items()
            ],
            "receiver_transports": receiver_transports(core.handle),
            "sources": [
                {
                    "topic": one.topic,
                    "transport": one.session.name,
                    **publication_counters(one, by_session.get(one.session) if repeats_sessions else {}),
                }
                for one in registry.parts(Publication)
            ],
            "receivers": [
                {"topic": one.topic, "transports": one.transports, **subscription_counters(one)}
                for one in registry.parts(Subscription)
            ],
            "event_queues": [
                {"queue": one.name, **queue_counters(one)} for one in registry.parts(QueueMemory)
            ],
            "hot_failover": [
                {"queue": one.name, **counters}
                for one in registry.parts(QueueMemory)
                if (counters := hot_failover_counters(one))
            ],
            "stores": [{"store": one.directory, **one.read()} for one in registry.parts(ReportedStore)],
        }


def latencies(engine: Engine) -> LatencyHistogram:
    """Return the one-way latencies of all open receiving sessions, added up."""
    return _added_up(LatencyHistogram, engine.core.handle)


def recovery_times(engine: Engine) -> RecoveryHistogram:
    """Return the recovery times of all open receiving sessions, added up."""
    return _added_up(RecoveryHistogram, engine.core.handle)


def _added_up(kind: type[Histogram], context: Any) -> Histogram:
    times = kind.empty()
    for session in range(len(receiver_transports(context))):
        times = times.merged(kind.read(context, session))
    return times
