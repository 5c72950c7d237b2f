"""Receiver-paced persistence: kinds of receivers, and values of a registration (docs/store.md#receiver-pacing)."""

from __future__ import annotations

import enum

PACING_NAME = "ume_receiver_paced_persistence"
"""Configuration value of a receiver's registration: its Pacing."""
FLIGHT_BYTES_NAME = "ume_flight_size_bytes"
FLIGHT_MESSAGES_NAME = "ume_flight_size"
"""Configuration values of a source's registration: its limits of messages in flight."""
RETAINED_BYTES_NAME = "ume_repository_disk_file_size_limit"
"""Configuration value of a source's registration: maximum bytes that a Store keeps of it."""
REPLAY_NAME = "umstack_replay"
"""Configuration value of a reader's registration, "1": it reads what there is, and no message is kept for it."""


class Pacing(enum.IntEnum):
    """How a receiver takes part in receiver-paced persistence."""

    NONE = 0
    """It does not."""
    BLOCKING = 1
    """Messages that it has not acknowledged are kept, and stop the source when there is no space for more."""
    NON_BLOCKING = 2
    """Messages that it has not acknowledged are kept while there is space."""


__all__ = [
    "FLIGHT_BYTES_NAME",
    "FLIGHT_MESSAGES_NAME",
    "PACING_NAME",
    "REPLAY_NAME",
    "RETAINED_BYTES_NAME",
    "Pacing",
]
