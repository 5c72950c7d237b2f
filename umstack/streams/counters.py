"""Counters of a context's TCP streams; names as in counters.toml."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class NamedCounters:
    """Base class: reports integer fields as counters by name. Readable from any thread."""

    def as_dict(self) -> dict[str, int]:
        """Return every counter by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


@dataclass(slots=True)
class StreamCounters(NamedCounters):
    """Counters of the request port and of recovery, written only by the streams thread."""

    recovery_connections: int = 0
    recovery_connections_refused: int = 0
    recovery_connections_idle: int = 0
    recovery_connections_displaced: int = 0
    recovery_malformed: int = 0
    recovery_requests_unknown: int = 0
    recovery_dropped_tag_missing: int = 0
    recovery_dropped_tag_key: int = 0
    recovery_dropped_tag_wrong: int = 0
    recovery_dropped_tag_replayed: int = 0
    recovery_dropped_tag_encryption: int = 0
    late_joins: int = 0
    late_joins_given_up: int = 0
    otr_connections: int = 0
    otr_given_up: int = 0
    sources_resumed: int = 0


__all__ = ["NamedCounters", "StreamCounters"]
