"""Counters of requests and responses; names as in counters.toml."""

from __future__ import annotations

from dataclasses import dataclass

from umstack.streams.counters import NamedCounters


@dataclass(slots=True)
class RequesterCounters(NamedCounters):
    """Counters of requests sent by the context's sources. Written by the thread that holds the intake's lock."""

    requests_sent: int = 0
    requests_pending: int = 0
    request_responders: int = 0
    request_responders_refused: int = 0
    responses_rcved: int = 0
    response_bytes_rcved: int = 0
    responses_late: int = 0
    responses_dropped: int = 0
    responses_malformed: int = 0
    responses_incomplete: int = 0
    uim_dup_msgs_rcved: int = 0
    uim_msgs_no_stream_rcved: int = 0


@dataclass(slots=True)
class ResponderCounters(NamedCounters):
    """Counters of responses sent by the context's receivers. Written with the responder's lock held."""

    responses_sent: int = 0
    response_bytes_sent: int = 0
    response_connections: int = 0
    response_connections_opened: int = 0
    response_connections_failed: int = 0
    response_connections_stalled: int = 0
    responses_unsent: int = 0
    resp_blocked: int = 0
    resp_would_block: int = 0


@dataclass(slots=True)
class ResponseTagCounters(NamedCounters):
    """Counters of response connections ended for their tags, at either end. Written by any thread."""

    responses_dropped_tag_missing: int = 0
    responses_dropped_tag_key: int = 0
    responses_dropped_tag_wrong: int = 0
    responses_dropped_tag_replayed: int = 0
    responses_dropped_tag_encryption: int = 0


__all__ = ["RequesterCounters", "ResponderCounters", "ResponseTagCounters"]
