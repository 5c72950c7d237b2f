"""CounterLog: logs lost messages and mode changes, based on a context's counters.

Loggers are named after the packages: `umstack.receiver`, `umstack.source`, `umstack.link`, `umstack.resolution`,
`umstack.context`. Each record has extras: `umstack_counter` (group.name of the schema), `umstack_count` (increase
since the last record for it), `umstack_total`, `umstack_object` (topic or session, escaped as foreign text) and
`umstack_interface`.

The counters are read once per `_INTERVAL_SECONDS`. Increases at level WARNING are also noted in the error log of the
process. No records are written if the only handler is NullHandler. One thread at a time calls update().
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from umstack.error_log import process_errors
from umstack.errors import Closed
from umstack.foreign_text import displayed
from umstack.telemetry.counters import CounterKind, schema

_INTERVAL_SECONDS = 5.0
_WARNING, _INFO = logging.WARNING, logging.INFO

# By reporting object, the counters of lost messages and of conditions that soon lead to loss. The record's text is the
# schema's doc.
_WATCHED: dict[str, tuple[str, dict[str, int]]] = {
    "receiver_transports": (
        "umstack.receiver",
        {
            "unrecovered_txw": _WARNING,
            "dgrams_dropped_tag_missing": _WARNING,
            "dgrams_dropped_tag_key": _WARNING,
            "dgrams_dropped_tag_wrong": _WARNING,
            "dgrams_dropped_tag_stale": _WARNING,
            "dgrams_dropped_tag_replayed": _WARNING,
            "dgrams_dropped_tag_encryption": _WARNING,
            "unrecovered_tmo": _WARNING,
            "loss_map_overflows": _WARNING,
            "claims_given_up": _WARNING,
            "naks_rate_limited": _WARNING,
            "nak_cutoffs": _WARNING,
            "lost": _INFO,
        },
    ),
    "receivers": (
        "umstack.receiver",
        {
            "cut_loose": _WARNING,
            "unrecoverable_loss_events": _WARNING,
            "burst_loss_events": _WARNING,
            "leading_losses": _WARNING,
            "messages_too_long": _WARNING,
            "malformed_fragments": _WARNING,
            "properties_dropped": _WARNING,
            "order_map_overflows": _WARNING,
            "queue_full_pauses": _INFO,
            "bos_events": _INFO,
            "eos_events": _INFO,
        },
    ),
    "event_queues": ("umstack.receiver", {"size_warnings": _WARNING, "delay_warnings": _WARNING}),
    "source_transports": (
        "umstack.source",
        {
            "naks_shed": _WARNING,
            "dgrams_dropped_tag_missing": _WARNING,
            "dgrams_dropped_tag_key": _WARNING,
            "dgrams_dropped_tag_wrong": _WARNING,
            "dgrams_dropped_tag_stale": _WARNING,
            "dgrams_dropped_tag_replayed": _WARNING,
            "dgrams_dropped_tag_encryption": _WARNING,
            "naks_out_of_window": _WARNING,
            "datagrams_given_up": _WARNING,
            "receivers_timed_out": _WARNING,
            "receivers_refused": _WARNING,
            "receivers_stalled": _WARNING,
            "naks_over_share": _WARNING,
            "naks_cut_off": _WARNING,
            "not_connected": _INFO,
            "unblocked_publications": _WARNING,
            "snd_bpe": _INFO,
        },
    ),
    "sources": ("umstack.source", {"sends_refused": _INFO}),
    "link_counters": (
        "umstack.link",
        {
            "receive_drops": _WARNING,
            "receive_truncated": _WARNING,
            "receive_errors": _WARNING,
            "send_errors": _WARNING,
            "oversize_sends": _INFO,
            "ring_checksum_errors": _WARNING,
            "ring_ip_errors": _WARNING,
            "ring_martians": _WARNING,
            "xdp_rx_dropped": _WARNING,
            "xdp_rx_ring_full": _WARNING,
        },
    ),
    "context": (
        "umstack.context",
        {
            "sessions_refused": _WARNING,
            "sessions_evicted": _INFO,
            "hold_store_full": _WARNING,
            "fragments_unrecoverably_lost": _WARNING,
            "tr_dgrams_send_failed": _WARNING,
            "tr_dgrams_dropped_tag_missing": _WARNING,
            "tr_dgrams_dropped_tag_key": _WARNING,
            "tr_dgrams_dropped_tag_wrong": _WARNING,
            "tr_dgrams_dropped_tag_stale": _WARNING,
            "tr_dgrams_dropped_tag_replayed": _WARNING,
            "tr_dgrams_dropped_malformed": _INFO,
            "tr_sources_refused": _WARNING,
        },
    ),
}
_GROUPS = {
    "receiver_transports": "receiver_transport",
    "receivers": "receiver",
    "event_queues": "event_queue",
    "source_transports": "source_transport",
    "sources": "source",
    "link_counters": "link",
    "context": "context",
}
_LOGGERS = {logger: logging.getLogger(logger) for logger, _ in _WATCHED.values()}
_MODE = ("link", "link_mode", "datagram_bytes")


def is_heard(logger: logging.Logger) -> bool:
    """Return true if a warning of this logger is written: by a handler, or by Python's default to stderr."""
    if not logger.isEnabledFor(logging.WARNING):
        return False
    handlers: list[logging.Handler] = []
    at: logging.Logger | None = logger
    while at is not None:
        handlers += at.handlers
        at = at.parent if at.propagate else None
    is_default = not handlers and logging.lastResort is not None
    return is_default or any(not isinstance(handler, logging.NullHandler) for handler in handlers)


class CounterLog:
    """Watches one context. The first update reports the counts since the context was created."""

    def __init__(
        self, read: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`read` returns the counters as Context.stats does."""
        self._read = read
        self._clock = clock
        self._next = float("-inf")
        self._seen: dict[tuple[str, str, str], int] = {}
        """The counts that were logged."""
        self._noted: dict[tuple[str, str, str], int] = {}
        """The counts that are in the error log."""
        self._mode: dict[str, Any] = {}

    def update(self) -> None:
        """Note and log the changes, if the interval has passed."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _INTERVAL_SECONDS
        with contextlib.suppress(Closed):
            self._compare(self._read())

    def _compare(self, stats: Mapping[str, Any]) -> None:
        seen: dict[tuple[str, str, str], int] = {}
        for key, (_, watched) in _WATCHED.items():
            for name, figures in _objects(stats.get(key, [])):
                for counter in watched:
                    at = (key, name, counter)
                    seen[at] = seen.get(at, 0) + int(figures.get(counter) or 0)
        interface = displayed(stats["interface"])
        for at, more, _ in _increases(self._noted, seen):
            _note(*at, more, interface)
        self._noted = seen
        if any(is_heard(logger) for logger in _LOGGERS.values()):
            self._log(stats, seen, interface)

    def _log(self, stats: Mapping[str, Any], seen: dict[tuple[str, str, str], int], interface: str) -> None:
        mode = {name: stats.get(name) for name in _MODE}
        if mode != self._mode:
            self._mode = mode
            text = "link %s in mode %s on %s, datagrams of %s bytes"
            extra = {f"umstack_{name}": value for name, value in {**mode, "interface": interface}.items()}
            _LOGGERS["umstack.link"].info(
                text, mode["link"], mode["link_mode"], interface, mode["datagram_bytes"], extra=extra
            )
        for (key, name, counter), more, total in _increases(self._seen, seen):
            self._record(key, name, counter, more, total, interface)
        self._seen = seen

    def _record(self, key: str, name: str, counter: str, more: int, total: int, interface: str) -> None:
        logger, watched = _WATCHED[key]
        described = schema().group(_GROUPS[key]).counter(counter)
        extra = {
            "umstack_counter": f"{_GROUPS[key]}.{counter}",
            "umstack_count": more,
            "umstack_total": total,
            "umstack_object": displayed(name),
            "umstack_interface": interface,
        }
        _LOGGERS[logger].log(
            watched[counter],
            "%s: %s +%d %s: %s",
            displayed(name) or interface,
            counter,
            more,
            described.unit,
            described.doc,
            extra=extra,
        )


def _increases(
    before: Mapping[tuple[str, str, str], int], now: Mapping[tuple[str, str, str], int]
) -> Iterator[tuple[tuple[str, str, str], int, int]]:
    """Yield each counter that grew, by how much, and its value. Counters of a new object start at zero."""
    for at, total in now.items():
        more = total - min(before.get(at, 0), total)
        if more:
            yield at, more, total


def _note(key: str, name: str, counter: str, more: int, interface: str) -> None:
    """Note the increase of a counter in the error log, if its level is WARNING."""
    logger, watched = _WATCHED[key]
    if watched[counter] < _WARNING:
        return
    text = f"{counter}: {schema().group(_GROUPS[key]).counter(counter).doc}"
    process_errors.note(logger, counter, text, subject=displayed(name) or interface, count=more)


def _objects(found: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects under one key of a report, each with its topic, session or queue."""
    for item in found if isinstance(found, list) else [found]:
        yield str(item.get("topic") or item.get("transport") or item.get("queue") or ""), item


def watched_counters() -> Iterator[tuple[str, str, CounterKind]]:
    """Group, name and kind of every counter that is logged; KeyError for an unknown counter."""
    for key, (_, watched) in _WATCHED.items():
        for name in watched:
            yield _GROUPS[key], name, schema().group(_GROUPS[key]).counter(name).kind
