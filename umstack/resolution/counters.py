"""The topic resolution counters of a context; names as in counters.toml."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class ResolutionCounters:
    """Counters that only the thread running the agent writes and any thread can read."""

    tr_dgrams_sent: int = 0
    tr_bytes_sent: int = 0
    tr_dgrams_rcved: int = 0
    tr_bytes_rcved: int = 0
    tr_dgrams_dropped_ver: int = 0
    tr_dgrams_dropped_type: int = 0
    tr_dgrams_dropped_malformed: int = 0
    tr_dgrams_dropped_tag_missing: int = 0
    tr_dgrams_dropped_tag_key: int = 0
    tr_dgrams_dropped_tag_wrong: int = 0
    tr_dgrams_dropped_tag_stale: int = 0
    tr_dgrams_dropped_tag_replayed: int = 0
    tr_dgrams_dropped_stranger: int = 0
    tr_dgrams_dropped_overload: int = 0
    tr_dgrams_send_failed: int = 0
    tr_daemon_changes: int = 0
    tr_src_topics: int = 0
    tr_rcv_topics: int = 0
    tr_rcv_unresolved_topics: int = 0
    tr_advertisements_sent: int = 0
    tr_advertisements_rcved: int = 0
    tr_queries_sent: int = 0
    tr_queries_rcved: int = 0
    tr_queries_not_prompt: int = 0
    tr_records_ignored: int = 0
    tr_records_deferred: int = 0
    tr_sources_refused: int = 0
    tr_wildcard_queries_sent: int = 0
    tr_wildcard_queries_rcved: int = 0
    tr_wildcard_topics: int = 0
    tr_wildcard_topics_refused: int = 0
    tr_patterns_given_up: int = 0
    tr_cache_entries: int = 0
    tr_cache_evictions: int = 0

    def as_dict(self) -> dict[str, int]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}
