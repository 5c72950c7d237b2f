"""The recovery counters of a context; names as in counters.toml."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class RecoveryCounters:
    """One writer, the thread of the recovery service. Readable from any thread."""

    recovery_connections: int = 0
    recovery_connections_refused: int = 0
    recovery_connections_idle: int = 0
    recovery_malformed: int = 0
    recovery_dropped_tag_missing: int = 0
    recovery_dropped_tag_key: int = 0
    recovery_dropped_tag_wrong: int = 0
    recovery_dropped_tag_replayed: int = 0
    late_joins: int = 0
    late_joins_given_up: int = 0
    otr_connections: int = 0
    otr_given_up: int = 0
    sources_resumed: int = 0

    def as_dict(self) -> dict[str, int]:
        """Every counter by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}
